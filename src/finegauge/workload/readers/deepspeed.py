"""What a DeepSpeed JSON says of a run: ZeRO stage, offload, batch, number format, tensor parallelism.

A file that a config names is read only inside the project: below the working folder, or below the
folder above the config's. Where it is not there, its name often tells the stage (ds_z3_config.json).
"auto" leaves a value to the trainer, that is to the training file; the bucket sizes that the trainer
works out from the hidden size are the ones predictions assume.
"""

import os
from collections.abc import Mapping
from typing import Any

from finegauge.errors import FileFormatError, shown
from finegauge.workload.field import flag, whole
from finegauge.workload.readers import yaml_safe
from finegauge.workload.readers.text_file import read_text

_STAGES = {0: "none", 1: "zero1", 2: "zero2", 3: "zero3"}
_TELLING = frozenset(("zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size"))


def recognises(keys: Mapping[str, Any]) -> bool:
    """Return whether `keys` are those of a DeepSpeed file."""
    return not _TELLING.isdisjoint(keys)


def fields_of_file(path: str) -> dict[str, Any]:
    """Return the fields that a DeepSpeed file states.

    Raises: FileFormatError if it is none.
    """
    name = os.path.basename(path)
    keys = yaml_safe.load(read_text(path), name)
    if not isinstance(keys, dict) or not recognises(keys):
        raise FileFormatError(f"{name} is no DeepSpeed file: it has no zero_optimization.")
    return fields_of(keys)


def fields_of(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that DeepSpeed's keys state; what is "auto" is not among them."""
    kind, offload = _of_keys(keys)
    fields: dict[str, Any] = {"sharding": kind, "cpu_offload": offload}
    for key, field in (
        ("train_micro_batch_size_per_gpu", "micro_batch_size"),
        ("gradient_accumulation_steps", "gradient_accumulation_steps"),
    ):
        if keys.get(key) not in (None, "auto"):
            fields[field] = whole(1, 10**6)(key, keys[key])
    for dtype in ("bf16", "fp16"):
        section = keys.get(dtype)
        enabled = section.get("enabled") if isinstance(section, Mapping) else None
        if enabled not in (None, "auto") and flag(f"{dtype}.enabled", enabled):
            fields["autocast"] = dtype
    tensor = keys.get("tensor_parallel")
    if isinstance(tensor, Mapping) and tensor.get("autotp_size") not in (None, 0, 1):
        fields["tensor_parallel"] = whole(1, 10**6)("autotp_size", tensor["autotp_size"])
    return fields


def sharding(named: Any, config_file: str) -> tuple[str, str, str]:
    """Return (sharding, cpu_offload, warning) of a DeepSpeed file name or an inline mapping."""
    keys, reason = load(named, config_file)
    if keys is not None:
        return (*_of_keys(keys), "")
    if reason.startswith("deepspeed:"):
        return "none", "none", reason
    stage = None if "outside" in reason else _stage_in_name(str(named))
    if stage is None:
        return (
            "none",
            "none",
            f"deepspeed: {shown(named)} {reason}; state sharding=zero2 or zero3 if it shards.",
        )
    offload = ("all" if stage == 3 else "optimizer") if "offload" in str(named).lower() else "none"
    return (
        _STAGES[stage],
        offload,
        f"deepspeed: {shown(named)} {reason}; ZeRO stage {stage} is taken from its name.",
    )


def load(named: Any, config_file: str) -> tuple[Mapping[str, Any] | None, str]:
    """Return the keys of a DeepSpeed file that a config names, or None and why they are not read."""
    if isinstance(named, Mapping):
        return named, ""
    path, outside = _find(str(named), config_file)
    if path is not None:
        try:
            keys = yaml_safe.load(read_text(path), os.path.basename(path))
        except FileFormatError as error:
            return None, f"deepspeed: {error} The run is taken as not sharded."
        if isinstance(keys, dict):
            return keys, ""
    return None, "lies outside the project folder and is not read" if outside else "was not found"


def _find(named: str, config_file: str) -> tuple[str | None, bool]:
    """Return the file if it lies inside the project, and whether it lies outside."""
    working, beside = os.path.realpath(os.curdir), os.path.dirname(os.path.realpath(config_file))
    above = os.path.dirname(beside)
    roots = [os.path.join(root, "") for root in (working, beside, above) if len(root) > 1]
    outside = False
    for base in (working, beside):
        try:
            path = os.path.realpath(os.path.join(base, named))
        except (OSError, ValueError):
            continue
        if not any(path.startswith(root) for root in roots):
            outside = True
        elif path.endswith(".json") and os.path.isfile(path):
            return path, False
    return None, outside


def _of_keys(keys: Mapping[str, Any]) -> tuple[str, str]:
    """Return (sharding, cpu_offload) of DeepSpeed's keys."""
    zero = keys.get("zero_optimization")
    if not isinstance(zero, Mapping):
        return "none", "none"
    stage = zero.get("stage")
    stage = int(stage) if isinstance(stage, str) and stage in ("0", "1", "2", "3") else stage
    offloads = [name for name in ("optimizer", "param") if _to_host(zero.get(f"offload_{name}"))]
    offload = {0: "none", 2: "all"}.get(len(offloads)) or ("params" if offloads == ["param"] else "optimizer")
    if stage == 3 and len(offloads) == 2 and all(_device(zero, name) == "nvme" for name in offloads):
        offload = "nvme"
    return _STAGES.get(stage, "none") if isinstance(stage, int) else "none", offload


def _device(zero: Mapping[str, Any], what: str) -> str:
    """Return where DeepSpeed keeps the optimizer's states ("optimizer") or the weights ("param")."""
    offload = zero.get(f"offload_{what}")
    return str(offload.get("device")) if isinstance(offload, Mapping) else "none"


def _to_host(offload: Any) -> bool:
    """Return whether an offload_* entry moves anything off the GPU."""
    return isinstance(offload, Mapping) and offload.get("device") in ("cpu", "nvme")


def _stage_in_name(name: str) -> int | None:
    """Return the ZeRO stage that a file name tells, such as ds_z3_config.json."""
    folded = os.path.basename(name).lower()
    found = [
        n
        for n in range(4)
        if any(f"{word}{n}" in folded for word in ("z", "zero", "zero_", "zero-", "stage"))
    ]
    return found[0] if len(found) == 1 else None
