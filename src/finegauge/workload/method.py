"""Which parameters train: the phase, the method, the adapters.

[1] Hu et al. 2021, arXiv:2106.09685 (LoRA)
[2] Dettmers et al. 2023, arXiv:2305.14314 (QLoRA)
"""

from collections.abc import Collection
from typing import Any

from finegauge.errors import FieldError
from finegauge.workload.field import Check, choice, choices, names, number, whole
from finegauge.workload.precision import QUANTIZED_BY_METHOD, QUANTIZED_DTYPES

PHASES = ("sft", "pretrain", "reward", "dpo", "ppo", "grpo", "evaluate", "prefill", "decode")
METHODS = ("full", "lora", "qlora", "gptq_lora", "freeze")
ADAPTER_METHODS = ("lora", "qlora", "gptq_lora")
TRAINABLE_EXTRAS = ("embed_tokens", "lm_head", "norms")

LORA_FIELDS = ("lora_rank", "lora_alpha", "lora_dropout", "lora_targets", "adapter_dtype")

CHECKS: dict[str, Check] = {
    "phase": choice(PHASES, {"pt": "pretrain", "rm": "reward", "eval": "evaluate"}),
    "method": choice(METHODS),
    "lora_rank": whole(1, 65_536),
    "lora_alpha": number(1e-6, 1e6),
    "lora_dropout": number(0.0, 1.0),
    "lora_targets": names,
    "trainable_extra": choices(TRAINABLE_EXTRAS),
    "freeze_trainable_layers": whole(1, 10_000, "layers"),
}


def settle(values: dict[str, Any], stated: Collection[str]) -> None:
    """Fill in what follows from the method and refuse what contradicts it."""
    method = values["method"]
    if method not in ADAPTER_METHODS:
        for name in LORA_FIELDS:
            if name in stated:
                raise FieldError(
                    f"{name} is stated, but method={method} trains no adapters; use method=lora or remove it."
                )
    if "freeze_trainable_layers" in stated and method != "freeze":
        raise FieldError(
            f"freeze_trainable_layers is stated, but method={method}; use method=freeze or remove it."
        )
    if method == "freeze" and values["freeze_trainable_layers"] is None:
        values["freeze_trainable_layers"] = 2
    if values["lora_rank"] is None:
        values["lora_rank"] = 16
    if values["lora_alpha"] is None:
        values["lora_alpha"] = 2.0 * values["lora_rank"]
    if values["lora_dropout"] is None:
        values["lora_dropout"] = 0.0
    targets = values["lora_targets"] or ("all-linear",)
    values["lora_targets"] = ("all-linear",) if "all" in targets or "all-linear" in targets else targets


def forget(values: dict[str, Any], method: str) -> None:
    """Remove from stated `values` what another method had needed and `method` does not."""
    if method not in ADAPTER_METHODS:
        for name in LORA_FIELDS:
            values.pop(name, None)
    if method != "freeze":
        values.pop("freeze_trainable_layers", None)
    quantized = QUANTIZED_BY_METHOD.get(method)
    if not quantized:
        values.pop("upcast_unquantized", None)
    rest = str(values.get("weights_dtype")).strip().lower()
    if rest not in quantized if quantized else rest in QUANTIZED_DTYPES:
        values.pop("weights_dtype", None)
