"""ZeRO stage and offload out of a DeepSpeed JSON file that a config names.

The file is read only inside the project: below the working folder, or below the folder
above the config's. Where it is not there, its name often tells the stage (ds_z3_config.json).
"""

import os
from collections.abc import Mapping
from typing import Any

from finegauge.errors import FileFormatError, shown
from finegauge.workload.readers import yaml_safe
from finegauge.workload.readers.text_file import read_text

_STAGES = {0: "none", 1: "zero1", 2: "zero2", 3: "zero3"}


def sharding(named: Any, config_file: str) -> tuple[str, str, str]:
    """Return (sharding, cpu_offload, warning) of a DeepSpeed file name or an inline mapping."""
    if isinstance(named, Mapping):
        return (*_of_keys(named), "")
    path, outside = _find(str(named), config_file)
    if path is not None:
        try:
            keys = yaml_safe.load(read_text(path), os.path.basename(path))
        except FileFormatError as error:
            return "none", "none", f"deepspeed: {error} The run is taken as not sharded."
        if isinstance(keys, dict):
            return (*_of_keys(keys), "")
    stage = None if outside else _stage_in_name(str(named))
    reason = "lies outside the project folder and is not read" if outside else "was not found"
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
    offloads = [name for name in ("optimizer", "param") if _to_host(zero.get(f"offload_{name}"))]
    offload = {0: "none", 2: "all"}.get(len(offloads)) or ("params" if offloads == ["param"] else "optimizer")
    return _STAGES.get(stage, "none") if isinstance(stage, int) else "none", offload


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
