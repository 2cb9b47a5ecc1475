"""What a run's fields ask of its model: divisible heads, enough layers and experts."""

from collections.abc import Mapping
from typing import Any

from finegauge.errors import FieldError

_EXPERT_KEYS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")


def num_experts(config: Mapping[str, Any]) -> int:
    """Return how many routed experts a layer of the model has; 0 if it has none."""
    for key in _EXPERT_KEYS:
        if isinstance(config.get(key), int):
            return int(config[key])
    pattern = config.get("mamba_moe_layers")  # BlackMamba: "r" a Mamba layer, "8" eight experts
    if isinstance(pattern, list | tuple):
        return max((int(kind) for kind in map(str, pattern) if kind.isdecimal()), default=0)
    return 0


def fit(values: dict[str, Any], whole_config: Mapping[str, Any]) -> None:
    """Resolve "all" experts and refuse what the model cannot be divided into.

    Raises: FieldError naming the model's figure that stands against the field.
    """
    text_config = whole_config.get("text_config")
    config = text_config if isinstance(text_config, Mapping) else whole_config
    _fit_experts(values, config)
    _fit_heads(values, config)
    for field, key in (
        ("pipeline_parallel", "num_hidden_layers"),
        ("freeze_trainable_layers", "num_hidden_layers"),
    ):
        layers = config.get(key)
        if isinstance(layers, int) and (values[field] or 1) > max(layers, 1):
            raise FieldError(f"{field}={values[field]} exceeds the {layers} layers of {values['model']}.")
    chunks, stages = values["virtual_pipeline_stages"], values["pipeline_parallel"]
    layers = config.get("num_hidden_layers")
    if isinstance(layers, int) and stages > 1 and chunks * stages > max(layers, 1):
        raise FieldError(
            f"virtual_pipeline_stages={chunks} of pipeline_parallel={stages} stages exceed the {layers} "
            f"layers of {values['model']}; use at most {max(1, layers // stages)}."
        )
    hidden_size = config.get("hidden_size")
    if isinstance(hidden_size, int) and values["lora_rank"] > max(hidden_size, 16):
        raise FieldError(
            f"lora_rank={values['lora_rank']} exceeds hidden_size={hidden_size} of {values['model']}; "
            f"a rank of 8 to 256 is usual."
        )


def _fit_experts(values: dict[str, Any], config: Mapping[str, Any]) -> None:
    """Resolve and check the experts per token and the expert-parallel degree."""
    asked, model = values["num_experts_per_tok"], values["model"]
    experts = num_experts(config)
    if not experts and (asked is not None or values["expert_parallel"] > 1):
        field = "expert_parallel" if asked is None else "num_experts_per_tok"
        raise FieldError(f"{field} is stated, but {model} has no experts; remove it.")
    if asked == "all":
        values["num_experts_per_tok"] = asked = experts
    if asked is not None and asked > experts:
        raise FieldError(
            f"num_experts_per_tok={asked} exceeds the {experts} experts of {model}; use 1 to {experts}."
        )
    if experts % values["expert_parallel"]:
        raise FieldError(
            f"expert_parallel={values['expert_parallel']} does not divide the {experts} experts of {model}; "
            f"use {_divisors(experts)}."
        )


def _fit_heads(values: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Refuse a tensor-parallel degree that does not divide the heads."""
    degree = values["tensor_parallel"]
    for key in ("num_key_value_heads", "num_attention_heads"):
        heads = config.get(key)
        if isinstance(heads, int) and heads > 0 and heads % degree:
            raise FieldError(
                f"tensor_parallel={degree} does not divide {key}={heads} of {values['model']}; "
                f"use {_divisors(heads)}."
            )


def _divisors(number: int) -> str:
    """Return the divisors of `number` as "1, 2, 4 or 8", at most eight of them."""
    found = [str(n) for n in range(1, min(number, 4096) + 1) if number % n == 0][:8]
    return f"{', '.join(found[:-1])} or {found[-1]}" if len(found) > 1 else found[0]
