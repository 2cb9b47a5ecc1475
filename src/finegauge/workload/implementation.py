"""How the work is carried out: optimizer, kernels, checkpointing, software versions.

What a version of transformers does unasked:
    fused AdamW is the default optimizer from 4.56 on; experts are one fused tensor per
    projection from 5.0 on, run as grouped matrix products and left alone by bitsandbytes.
"""

from collections.abc import Collection
from typing import Any

from finegauge.errors import FieldError, shown
from finegauge.workload.field import Check, choice, choices, flag, label, text

OPTIMIZERS = (
    "adamw",
    "adamw_8bit",
    "paged_adamw",
    "paged_adamw_8bit",
    "adafactor",
    "lion",
    "lion_8bit",
    "sgd",
)
ACTIVATION_CHECKPOINTING = ("none", "full", "selective", "offload")
ATTENTION = ("sdpa", "flash", "eager")
ATTENTION_KERNELS = ("triton", "flash3")  # of FlashAttention's first generation, and its third
KERNELS = ("liger", "unsloth", "foak", "megatron", *ATTENTION_KERNELS)
LOSSES = ("full_logits", "chunked", "fused")

_FLASH = ("fa", "fa2", "fa3", "flash_attn", "flash_attention", "flash_attention_2", "flash_attention_3")
_ADAMW = ("adam", "adamw_torch", "adamw_hf", "adamw_torch_fused", "adamw_fused", "adamw_apex_fused")


def version_numbers(version: str) -> tuple[int, int, int]:
    """Return the numbers of a version: (4, 40, 2) of "4.40.2", (5, 0, 0) of "v5"."""
    parts = [*version.lower().removeprefix("v").split(".")[:3], "0", "0"][:3]
    if not all(part.isdecimal() and len(part) < 5 for part in parts):
        raise FieldError(f"{shown(version)} is not a version; write it as 5.23 or 4.40.2.")
    return int(parts[0]), int(parts[1]), int(parts[2])


def version(name: str, value: Any) -> str:
    """Return a version such as "4.40", which YAML reads as the number 4.4 unless it is quoted."""
    if isinstance(value, float) and round(value, 1) == value:
        raise FieldError(f"{name}={value} may have lost a zero; put the version in quotes, as '4.40'.")
    written = text(name, value)
    try:
        version_numbers(written)
    except FieldError as error:
        raise FieldError(f"{name}: {error}") from None
    return written


CHECKS: dict[str, Check] = {
    "optimizer": choice(
        OPTIMIZERS,
        {
            **dict.fromkeys(_ADAMW, "adamw"),
            **dict.fromkeys(("adamw8bit", "adamw_bnb_8bit", "adamw_torch_8bit"), "adamw_8bit"),
            "paged_adamw_32bit": "paged_adamw",
            "lion_32bit": "lion",
        },
    ),
    "optimizer_implementation": choice(("fused", "foreach", "loop", "in_backward")),
    "activation_checkpointing": choice(ACTIVATION_CHECKPOINTING, {"true": "full", "false": "none"}),
    "checkpointing_reentrant": flag,
    "synchronous": flag,
    "attention": choice(ATTENTION, dict.fromkeys(_FLASH, "flash")),
    "kernels": choices(KERNELS),
    "loss": choice(LOSSES, {"full": "full_logits"}),
    "experts_implementation": choice(("eager", "grouped_mm")),
    "ssm_kernels": choice(("fused", "slow")),
    "compile": flag,
    "framework": label,
    "framework_version": label,
    "transformers_version": version,
    "bitsandbytes_version": version,
}


def settle(values: dict[str, Any], stated: Collection[str]) -> None:
    """Fill in what the software version does unasked."""
    del stated  # nothing here contradicts
    version = version_numbers(values["transformers_version"])
    fused_experts = version >= (5, 0)
    if values["optimizer_implementation"] is None:
        values["optimizer_implementation"] = "fused" if version >= (4, 56) else "foreach"
    if values["experts_implementation"] is None:
        values["experts_implementation"] = "grouped_mm" if fused_experts else "eager"
    if values["quantize_experts"] is None:
        values["quantize_experts"] = not fused_experts
    if values["loss"] is None:
        values["loss"] = "fused" if "liger" in values["kernels"] else "full_logits"
