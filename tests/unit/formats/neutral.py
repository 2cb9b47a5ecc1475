"""The expected readings of the reference examples, under the names of a run's fields.

They were written before the fields had their names, and some say what a run has no field for.
"""

from collections.abc import Callable
from typing import Any

from finegauge.catalogue.models import model
from finegauge.errors import UnknownNameError
from finegauge.run.run import Run

RENAMED = {
    "objective": "phase",
    "rank": "lora_rank",
    "alpha": "lora_alpha",
    "load_dtype": "weights_dtype",
    "compute_dtype": "autocast",
    "trainable_dtype": "adapter_dtype",
    "cutoff": "seq_len",
    "micro_batch": "micro_batch_size",
    "grad_accum": "gradient_accumulation_steps",
    "gpus": "num_gpus",
    "nodes": "num_nodes",
    "tp": "tensor_parallel",
    "pp": "pipeline_parallel",
    "cp": "context_parallel",
    "dp_shard": "data_parallel_shard",
    "dp": "data_parallel",
    "global_batch": "global_batch_size",
    "model": "model",
    "val_fraction": "validation_fraction",
    "over_length": "over_length",
}
AS_THEY_ARE = ("method", "epochs", "max_steps", "compile", "sequence_parallel")
VALUES: dict[str, dict[Any, str]] = {
    "checkpointing": {"full+cpu-offload": "offload"},
    "attention": {"fa2": "flash", "framework-default": "sdpa"},
    "loss": {"full-logits": "full_logits", "fused-linear-ce": "fused"},
    "optimizer": {"adamw_torch_fused": "adamw", "adamw_bnb_8bit": "adamw_8bit"},
    "offload": {True: "params", False: "none", "none": "none"},
}
FIELDS = {"checkpointing": "activation_checkpointing", "offload": "cpu_offload"}
TARGETS: dict[Any, tuple[str, ...]] = {
    "all-linear": ("all-linear",),
    "*_proj": ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
}
# What a run has no field for (max_samples counts each data set by itself), and remarks.
NO_FIELD = {
    "from_default", "needs", "coerce", "resolve_auto", "max_samples", "vision_frozen",
}  # fmt: skip


def neutral(expected: dict[str, Any]) -> dict[str, Any]:
    """Return {field of a run: expected value} of one example."""
    fields: dict[str, Any] = {}
    for key, value in expected.items():
        if key not in NO_FIELD and value not in (None, "from-checkpoint", "rest-of-world"):
            fields |= _one(key, value)
    return fields


def _one(key: str, value: Any) -> dict[str, Any]:
    """Return what one older field says."""
    special: dict[str, Callable[[], dict[str, Any]]] = {
        "targets": lambda: {"lora_targets": TARGETS.get(str(value)) or _targets(value)},
        "zero_stage": lambda: {"sharding": f"zero{value}"},
        "fsdp": lambda: {"sharding": "fsdp", "cpu_offload": "params" if value["offload"] else "none"},
        "batching": lambda: _batching(value),
        "quant": lambda: {"method": "qlora", "weights_dtype": "nf4_dq"},  # LoRA on 4 bits: qlora here
    }
    if key in special:
        return special[key]()
    if (values := VALUES.get(key)) is not None:
        return {FIELDS.get(key, key): values.get(value, value)}
    return {RENAMED[key] if key not in AS_THEY_ARE else key: value}


def _targets(value: list[str]) -> tuple[str, ...]:
    """Return the projections of a list; NeMo 1's fused one is three of them."""
    return ("q_proj", "k_proj", "v_proj") if value == ["qkv"] else tuple(value)


def _batching(value: dict[str, Any]) -> dict[str, Any]:
    """Return packing and padding of the older description of batches."""
    kind = value["kind"]
    found: dict[str, Any] = {"packing": kind == "packed"}
    if kind == "packed" and value.get("isolated"):
        found["padding"] = "free"
    if kind != "packed":
        found["padding"] = {"pad-longest": "longest", "padding-free": "free"}[kind]
    if "multiple" in value:
        found["pad_to_multiple_of"] = value["multiple"]
    if kind == "packed" and isinstance(value.get("pad_to"), int):
        found["seq_len"] = value["pad_to"]
    return found


def wrong(run: Run, fields: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return {field: (expected, read)} where they differ."""
    found = {}
    for field, expected in fields.items():
        read = getattr(run, field)
        same = _same_model(expected, read) if field == "model" else read == expected
        if not same:
            found[field] = (expected, read)
    return found


def _same_model(expected: str, read: str) -> bool:
    """Return whether two names mean one model of the catalogue."""
    try:
        return expected == read or model(expected).name == model(read).name
    except UnknownNameError:
        return False
