"""Which model is made of which blocks: one declaration per `model_type`.

`architecture(config)` is the way in. A family is a function from the figures of a
`config.json` to an `Architecture`; each file here holds families that resemble each other.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from finegauge.errors import FieldError, UnsupportedError, shown
from finegauge.model.blocks import Architecture, Branch, Layer, MixtureOfExperts

FAMILIES: dict[str, str] = {  # model_type -> "module.function"; only the module needed is imported
    "afmoe": "routed.afmoe",
    "apertus": "dense.apertus",
    "arcee": "dense.arcee",
    "arctic": "moe_shared.arctic",
    "aria_text": "routed.aria_text",
    "axk1": "latent.axk1",
    "baichuan": "renamed.baichuan",
    "bamba": "hybrid.bamba",
    "biogpt": "gpt.biogpt",
    "blackmamba": "ssm.blackmamba",
    "bloom": "parallel.bloom",
    "chatglm": "renamed.chatglm",
    "codegen": "parallel.codegen",
    "cohere": "cohere.cohere",
    "cohere2": "cohere.cohere2",
    "cohere2_moe": "cohere.cohere2_moe",
    "cwm": "dense.cwm",
    "dbrx": "moe_shared.dbrx",
    "deepseek": "moe_shared.deepseek",
    "deepseek_v2": "latent.deepseek_v2",
    "deepseek_v3": "latent.deepseek_v3",
    "deepseek_v32": "latent.deepseek_v32",
    "dots1": "routed.dots1",
    "ernie4_5": "dense.ernie4_5",
    "ernie4_5_moe": "routed.ernie4_5_moe",
    "exaone": "renamed.exaone",
    "exaone4": "llama.exaone4",
    "exaone_moe": "routed.exaone_moe",
    "falcon": "parallel.falcon",
    "falcon_mamba": "ssm.falcon_mamba",
    "flex_olmo": "routed.flex_olmo",
    "gemma": "gemma.gemma",
    "gemma2": "gemma.gemma2",
    "gemma3": "vision.gemma3",
    "gemma3_text": "gemma.gemma3_text",
    "glm": "dense.glm",
    "glm4": "dense.glm4",
    "glm4_moe": "moe_shared.glm4_moe",
    "glm4_moe_lite": "latent.glm4_moe_lite",
    "glm_moe_dsa": "latent.glm_moe_dsa",
    "gpt-sw3": "gpt.gpt2",
    "gpt2": "gpt.gpt2",
    "gpt_bigcode": "gpt.gpt_bigcode",
    "gpt_neo": "gpt.gpt_neo",
    "gpt_neox": "parallel.gpt_neox",
    "gpt_oss": "moe.gpt_oss",
    "gptj": "parallel.gptj",
    "granite": "llama.granite",
    "granite_swa": "dense.granite_swa",
    "granitemoe": "moe.granitemoe",
    "granitemoe_swa": "routed.granitemoe_swa",
    "granitemoehybrid": "hybrid.granitemoehybrid",
    "granitemoeshared": "routed.granitemoeshared",
    "grok-1": "moe_shared.grok_1",
    "helium": "dense.helium",
    "hunyuan_v1_dense": "dense.hunyuan_v1_dense",
    "hunyuan_v1_moe": "routed.hunyuan_v1_moe",
    "hy_v3": "routed.hy_v3",
    "hyperclovax": "dense.hyperclovax",
    "internlm": "renamed.internlm",
    "internlm2": "renamed.internlm2",
    "internlm3": "dense.internlm3",
    "iquestcoder": "dense.iquestcoder",
    "jais2": "dense.jais2",
    "jamba": "hybrid.jamba",
    "kimi_k2": "latent.deepseek_v3",
    "kimi_k25": "vision.kimi_k25",
    "kolibri1": "routed.kolibri1",
    "laguna": "routed.laguna",
    "llama": "llama.llama",
    "llama4": "vision.llama4",
    "llama4_text": "vision.llama4_text",
    "llava": "vision.llava",
    "mamba": "ssm.mamba",
    "mamba2": "ssm.mamba2",
    "mellum": "routed.mellum",
    "mimo": "renamed.mimo",
    "mimo_v2_flash": "moe_shared.mimo_v2_flash",
    "minicpm": "renamed.minicpm",
    "minicpm3": "latent.minicpm3",
    "minimax_m2": "moe.minimax_m2",
    "ministral": "dense.ministral",
    "ministral3": "llama.ministral3",
    "mistral": "llama.mistral",
    "mistral3": "vision.mistral3",
    "mixtral": "moe.mixtral",
    "mllama": "vision.mllama",
    "mpt": "parallel.mpt",
    "nanochat": "dense.nanochat",
    "nemotron": "parallel.nemotron",
    "nemotron-nas": "renamed.nemotron_nas",
    "nemotron_h": "hybrid.nemotron_h",
    "olmo": "dense.olmo",
    "olmo2": "llama.olmo2",
    "olmo3": "llama.olmo3",
    "olmoe": "moe.olmoe",
    "openai-gpt": "gpt.openai_gpt",
    "opt": "gpt.opt",
    "orion": "renamed.orion",
    "persimmon": "parallel.persimmon",
    "phi": "parallel.phi",
    "phi3": "llama.phi3",
    "phi3small": "renamed.phi3small",
    "phi4": "llama.phi3",
    "phimoe": "moe.phimoe",
    "qwen": "renamed.qwen",
    "qwen2": "llama.qwen2",
    "qwen2_5_vl": "vision.qwen2_5_vl",
    "qwen2_moe": "moe.qwen2_moe",
    "qwen2_vl": "vision.qwen2_vl",
    "qwen3": "llama.qwen3",
    "qwen3_5": "vision.qwen3_5",
    "qwen3_5_moe": "vision.qwen3_5_moe",
    "qwen3_5_moe_text": "qwen_next.qwen3_5_moe_text",
    "qwen3_5_text": "qwen_next.qwen3_5_text",
    "qwen3_moe": "moe.qwen3_moe",
    "qwen3_next": "qwen_next.qwen3_next",
    "qwen3_vl": "vision.qwen3_vl",
    "qwen3_vl_moe": "vision.qwen3_vl_moe",
    "seed_oss": "dense.seed_oss",
    "smollm3": "dense.smollm3",
    "solar_open": "routed.solar_open",
    "stablelm": "parallel.stablelm",
    "starcoder2": "dense.starcoder2",
    "vaultgemma": "dense.vaultgemma",
    "xverse": "renamed.xverse",
    "youtu": "latent.youtu",
}

# What the models need that neither a block here nor a transformers class (5.23) has.
WITHOUT_CLASS = {
    "kimi_k3": "the residual attention and latent experts of Kimi K3",
    "minimax_m3": "the block-sparse attention of MiniMax-M3",
    "rwkv5": "RWKV-5's time mixing",
    "rwkv6": "RWKV-6's time mixing",
    "rwkv7": "RWKV-7's time mixing",
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
        return _traced(config, num_experts_per_tok)
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


def _traced(config: Mapping[str, Any], num_experts_per_tok: int | None) -> Architecture:
    """Return the architecture that `finegauge trace` cached.

    Raises: UnsupportedError where it cached none that holds, naming the command.
    """
    from finegauge.errors import did_you_mean
    from finegauge.model.trace_file import read

    model_type = str(config.get("model_type"))
    if model_type in WITHOUT_CLASS:
        raise UnsupportedError(
            f"model_type '{model_type}': {WITHOUT_CLASS[model_type]} is not described, "
            "and transformers has no class of it that could be traced."
        )
    found, problem = read(config)
    if found is None:
        why = (
            problem
            or f"model_type {shown(model_type)} is not described yet.{did_you_mean(model_type, FAMILIES)}"
        )
        raise UnsupportedError(
            f"{why} Run 'finegauge trace MODEL_DIR' once, the folder of this config.json, to take the "
            f"operators from its transformers class; described are {len(FAMILIES)} types, such as llama."
        )
    if num_experts_per_tok is not None:
        raise UnsupportedError(
            f"num_experts_per_tok={num_experts_per_tok}: a traced model_type ({model_type}) keeps those "
            "of its config.json; change them there and trace it again."
        )
    return found


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
