"""Tiny models that bitsandbytes quantises for real on the CPU, and our answer for the same run."""

from typing import Any

from finegauge.model.graph import Graph, build
from finegauge.run.run import Run
from tests.on_disk import config_file

BASE: dict[str, Any] = {
    "vocab_size": 1000,
    "hidden_size": 96,  # 96 x 200: blocks of 64 and 256 do not divide its scales
    "intermediate_size": 200,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "dense": {"model_type": "llama"},
    "experts": {"model_type": "mixtral", "num_local_experts": 4},
}


def graph_of(family: str, **fields: Any) -> Graph:
    """Return our graph of the tiny model under QLoRA."""
    return build(run_of(family, **fields))


def run_of(family: str, **fields: Any) -> Run:
    """Return the run: QLoRA over a config on disk."""
    asked = {"lora_targets": ("q_proj", "v_proj"), "adapter_dtype": "bf16", "attention": "eager", **fields}
    return Run(model=config_file({**BASE, **FAMILIES[family]}), method="qlora", **asked)


def quantized_model(family: str, *, nested: bool, unfused: bool = False) -> Any:
    """Return the model as bitsandbytes holds it, its experts taken apart first if asked."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    figures = {**BASE, **FAMILIES[family]}
    config = CONFIG_MAPPING[figures.pop("model_type")](**figures)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="eager")
    if unfused:
        for module in model.modules():
            if hasattr(getattr(module, "experts", None), "gate_up_proj"):
                module.experts = _apart(module.experts)
    _quantize(model, nested=nested)
    model.requires_grad_(False)
    return model


def _apart(experts: Any) -> Any:
    """Return fused experts as modules, three linears each."""
    import torch

    number, width, hidden = experts.gate_up_proj.shape
    shapes = {"w1": (hidden, width // 2), "w3": (hidden, width // 2), "w2": (width // 2, hidden)}
    return torch.nn.ModuleList(
        torch.nn.ModuleDict(
            {
                name: torch.nn.Linear(*shape, bias=False, dtype=torch.bfloat16)
                for name, shape in shapes.items()
            }
        )
        for _ in range(number)
    )


def _quantize(module: Any, *, nested: bool) -> None:
    """Replace every linear but the head, as transformers' integration does."""
    import bitsandbytes as bnb
    import torch

    for name, child in list(module.named_children()):
        if not isinstance(child, torch.nn.Linear) or name == "lm_head":
            _quantize(child, nested=nested)
            continue
        linear = bnb.nn.Linear4bit(
            child.in_features, child.out_features, bias=False,
            compute_dtype=torch.bfloat16, quant_type="nf4", compress_statistics=nested,
        )  # fmt: skip
        linear.weight = bnb.nn.Params4bit(
            child.weight.data, requires_grad=False, quant_type="nf4", compress_statistics=nested
        )
        setattr(module, name, linear.to("cpu"))


def bytes_by_tensor(model: Any) -> dict[str, int]:
    """Return what each parameter takes, the quantiser's own tensors included.

    The table of 8-bit scales is one for all where a model is quantised in place; a model
    that is loaded has one per tensor, and so it is counted.
    """
    found: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        found[name] = parameter.untyped_storage().nbytes()
        state = getattr(parameter, "quant_state", None)
        if state is not None:
            parts = [state.absmax, state.code]
            parts += [state.offset, state.state2.absmax, state.state2.code] if state.nested else []
            found[name] += sum(part.untyped_storage().nbytes() for part in parts)
    return found
