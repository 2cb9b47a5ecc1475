"""Which model is made of which blocks: one declaration per `model_type`.

`architecture(config)` is the way in. A family is a function from the figures of a
`config.json` to an `Architecture`; each file here holds families that resemble each other.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from finegauge.errors import FieldError, UnsupportedError, shown
from finegauge.graph.blocks import Architecture, Branch, Layer, MixtureOfExperts

FAMILIES: dict[str, str] = {  # model_type -> "module.function"; only the module needed is imported
    "arctic": "moe_shared.arctic",
    "baichuan": "renamed.baichuan",
    "bamba": "hybrid.bamba",
    "blackmamba": "ssm.blackmamba",
    "bloom": "parallel.bloom",
    "chatglm": "renamed.chatglm",
    "cohere": "parallel.cohere",
    "dbrx": "moe_shared.dbrx",
    "deepseek": "moe_shared.deepseek",
    "deepseek_v2": "latent.deepseek_v2",
    "deepseek_v3": "latent.deepseek_v3",
    "deepseek_v32": "latent.deepseek_v32",
    "exaone": "renamed.exaone",
    "exaone4": "llama.exaone4",
    "falcon": "parallel.falcon",
    "falcon_mamba": "ssm.falcon_mamba",
    "gemma": "gemma.gemma",
    "gemma2": "gemma.gemma2",
    "gemma3": "vision.gemma3",
    "gemma3_text": "gemma.gemma3_text",
    "glm4_moe": "moe_shared.glm4_moe",
    "glm_moe_dsa": "latent.glm_moe_dsa",
    "gpt2": "gpt.gpt2",
    "gpt_bigcode": "gpt.gpt_bigcode",
    "gpt_neox": "parallel.gpt_neox",
    "gpt_oss": "moe.gpt_oss",
    "gptj": "parallel.gptj",
    "granite": "llama.llama",
    "granitemoe": "moe.granitemoe",
    "granitemoehybrid": "hybrid.granitemoehybrid",
    "grok-1": "moe_shared.grok_1",
    "internlm": "renamed.internlm",
    "internlm2": "renamed.internlm2",
    "jamba": "hybrid.jamba",
    "kimi_k2": "latent.deepseek_v3",
    "kimi_k25": "vision.kimi_k25",
    "llama": "llama.llama",
    "llama4": "vision.llama4",
    "llama4_text": "vision.llama4_text",
    "mamba": "ssm.mamba",
    "mamba2": "ssm.mamba2",
    "mimo": "renamed.mimo",
    "mimo_v2_flash": "moe_shared.mimo_v2_flash",
    "minicpm": "renamed.minicpm",
    "minicpm3": "latent.minicpm3",
    "minimax_m2": "moe.minimax_m2",
    "ministral3": "llama.ministral3",
    "mistral": "llama.mistral",
    "mixtral": "moe.mixtral",
    "mllama": "vision.mllama",
    "mpt": "parallel.mpt",
    "nemotron": "parallel.nemotron",
    "nemotron_h": "hybrid.nemotron_h",
    "olmo2": "llama.olmo2",
    "olmo3": "llama.olmo3",
    "olmoe": "moe.olmoe",
    "opt": "gpt.opt",
    "orion": "renamed.orion",
    "phi": "parallel.phi",
    "phi3": "llama.phi3",
    "phi3small": "renamed.phi3small",
    "phi4": "llama.phi3",
    "phimoe": "moe.phimoe",
    "qwen": "renamed.qwen",
    "qwen2": "llama.qwen2",
    "qwen2_moe": "moe.qwen2_moe",
    "qwen3": "llama.qwen3",
    "qwen3_5": "vision.qwen3_5",
    "qwen3_5_moe": "vision.qwen3_5_moe",
    "qwen3_5_moe_text": "qwen_next.qwen3_5_moe_text",
    "qwen3_5_text": "qwen_next.qwen3_5_text",
    "qwen3_moe": "moe.qwen3_moe",
    "qwen3_next": "qwen_next.qwen3_next",
    "qwen3_vl": "vision.qwen3_vl",
    "qwen3_vl_moe": "vision.qwen3_vl_moe",
    "stablelm": "parallel.stablelm",
    "xverse": "renamed.xverse",
}


def architecture(config: Mapping[str, Any], num_experts_per_tok: int | None = None) -> Architecture:
    """Return what the model of a `config.json` is made of.

    Args:
        config: The parsed file, keys as Hugging Face writes them.
        num_experts_per_tok: Experts that each token passes, in place of the config's;
            all of them for dense fine-tuning of a mixture of experts.

    Raises:
        FieldError: A figure that no model can have.
        UnsupportedError: A `model_type` that is not described here.
    """
    model_type = _model_type(config)
    if model_type not in FAMILIES:
        raise UnsupportedError(_refusal(model_type))
    if config.get("per_layer_config"):
        raise UnsupportedError(
            f"model_type '{model_type}': layers that differ by per_layer_config are not described yet."
        )
    module, function = FAMILIES[model_type].split(".")
    described: Architecture = getattr(import_module(f"{__name__}.{module}"), function)(config)
    if num_experts_per_tok is not None:
        described = _with_top_k(described, num_experts_per_tok)
    return described


def supported_model_types() -> list[str]:
    """Return every `model_type` that `architecture` accepts."""
    return sorted(FAMILIES)


def _model_type(config: Mapping[str, Any]) -> str:
    if not isinstance(config, Mapping):
        raise FieldError(f"The model's config is {shown(config)}, not a mapping of figures.")
    model_type = config.get("model_type")
    if model_type is None and "mamba_moe_layers" in config:
        return "blackmamba"  # its files carry no model_type
    if model_type is None and config.get("architectures") == ["MiniCPM3ForCausalLM"]:
        return "minicpm3"  # nor does this one
    if model_type is None:
        raise FieldError(
            "The model's config has no 'model_type'; take the config.json of the model's repository."
        )
    if not isinstance(model_type, str):
        raise FieldError(f"model_type={shown(model_type)} is not a text such as 'llama'.")
    return model_type


def _refusal(model_type: str) -> str:
    from finegauge.errors import did_you_mean

    hint = did_you_mean(model_type, FAMILIES)
    return (
        f"model_type {shown(model_type)} is not described yet, so its parameters and operators are unknown; "
        f"supported are {len(FAMILIES)} types, e.g. llama, mixtral, qwen3, deepseek_v3.{hint}"
    )


def _with_top_k(described: Architecture, top_k: int) -> Architecture:
    """Return the architecture with `top_k` experts per token in every routed feed-forward."""

    def routed(branch: Branch) -> Branch:
        moe = branch.mixer
        if not isinstance(moe, MixtureOfExperts):
            return branch
        if not isinstance(top_k, int) or not 1 <= top_k <= moe.num_experts:
            raise FieldError(f"num_experts_per_tok={shown(top_k)}, but there are {moe.num_experts} experts.")
        return branch._replace(mixer=moe._replace(top_k=top_k))

    def rerouted(layer: Layer) -> Layer:
        return layer._replace(branches=tuple(routed(branch) for branch in layer.branches))

    if not any(
        isinstance(b.mixer, MixtureOfExperts) for layer, _ in described.layers for b in layer.branches
    ):
        raise FieldError(
            f"num_experts_per_tok={top_k}, but '{described.model_type}' has no routed experts; leave it out."
        )
    return described._replace(layers=tuple((rerouted(layer), count) for layer, count in described.layers))
