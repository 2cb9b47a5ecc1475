"""What an accelerate YAML says of a run: GPUs, nodes, sharding, offload, number format, degrees.

Names and defaults are those of `accelerate config` (accelerate 1.10, both FSDP generations).
"""

import os
from collections.abc import Mapping
from typing import Any

from finegauge.errors import FieldError, FileFormatError, shown
from finegauge.workload.field import flag, whole
from finegauge.workload.readers import deepspeed, yaml_safe
from finegauge.workload.readers.text_file import read_text

_TELLING = frozenset(("compute_environment", "distributed_type", "num_processes", "machine_rank"))
_STRATEGIES = {
    "1": "fsdp", "full_shard": "fsdp", "true": "fsdp",
    "2": "fsdp_shard_grad_op", "shard_grad_op": "fsdp_shard_grad_op", "false": "fsdp_shard_grad_op",
    "3": "none", "no_shard": "none",
    "4": "hybrid", "hybrid_shard": "hybrid", "5": "hybrid", "hybrid_shard_zero2": "hybrid",
}  # fmt: skip
_DEGREES = {
    "dp_replicate_size": "data_parallel_replicate",
    "dp_shard_size": "data_parallel_shard",
    "tp_size": "tensor_parallel",
    "cp_size": "context_parallel",
    "sp_size": "context_parallel",
}


def recognises(keys: Mapping[str, Any]) -> bool:
    """Return whether `keys` are those of an accelerate file."""
    return len(_TELLING & set(keys)) > 1


def fields_of_file(path: str) -> dict[str, Any]:
    """Return the fields that an accelerate file states.

    Raises: FileFormatError if it is none.
    """
    name = os.path.basename(path)
    keys = yaml_safe.load(read_text(path), name)
    if not isinstance(keys, dict) or not recognises(keys):
        raise FileFormatError(f"{name} is no accelerate file: it has neither distributed_type nor ….")
    return fields_of(keys, path)


def fields_of(keys: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Return the fields that accelerate's keys state."""
    fields: dict[str, Any] = {}
    kind = str(keys.get("distributed_type") or "NO").upper()
    if keys.get("num_processes") is not None:
        fields["num_gpus"] = whole(1, 10**6)("num_processes", keys["num_processes"])
    if keys.get("num_machines") not in (None, 1):
        fields["num_nodes"] = whole(1, 10**6)("num_machines", keys["num_machines"])
    precision = str(keys.get("mixed_precision") or "no").lower()
    if precision in ("bf16", "fp16"):
        fields["autocast"] = precision
    if kind == "FSDP":
        fields |= _fsdp(_section(keys, "fsdp_config"))
    elif kind == "DEEPSPEED":
        fields |= _deepspeed(_section(keys, "deepspeed_config"), path)
    elif kind == "MEGATRON_LM":
        fields |= _megatron(_section(keys, "megatron_lm_config"))
    dynamo = _section(keys, "dynamo_config")
    backend = str(dynamo.get("dynamo_backend") or dynamo.get("dynamo_config_dynamo_backend") or "NO")
    if backend.upper() not in ("NO", "FALSE"):
        fields["compile"] = True
    fields |= _degrees(keys)
    if fields.get("sharding") == "fsdp" and fields.get("data_parallel_replicate", 1) > 1:
        fields["sharding"] = "hybrid"
    return fields


def _section(keys: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a section; empty where there is none."""
    section = keys.get(name)
    return section if isinstance(section, Mapping) else {}


def _fsdp(section: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of fsdp_config, of FSDP 1 or 2."""
    named = {str(key).removeprefix("fsdp_"): value for key, value in section.items()}
    strategy = named.get("reshard_after_forward", named.get("sharding_strategy", "FULL_SHARD"))
    if strategy is None:
        strategy = "FULL_SHARD"
    word = str(strategy).lower()
    if word not in _STRATEGIES:
        raise FieldError(f"fsdp_sharding_strategy={shown(word)} is unknown; use FULL_SHARD or SHARD_GRAD_OP.")
    fields: dict[str, Any] = {"sharding": _STRATEGIES[word]}
    if flag("fsdp_offload_params", named.get("offload_params") or False):
        fields["cpu_offload"] = "params"
    if flag("fsdp_activation_checkpointing", named.get("activation_checkpointing") or False):
        fields["activation_checkpointing"] = "full"
    return fields


def _deepspeed(section: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Return the fields of deepspeed_config: a file named in it, or its own few keys."""
    named = section.get("deepspeed_config_file")
    if named:
        keys, reason = deepspeed.load(named, path)
        kind, offload, _ = deepspeed.sharding(named, path)
        if keys is None and kind == "none":
            raise FieldError(
                f"deepspeed_config_file {shown(str(named))} {reason}; copy it beside the project."
            )
        return deepspeed.fields_of(keys) if keys is not None else {"sharding": kind, "cpu_offload": offload}
    whole_file: dict[str, Any] = {
        "zero_optimization": {
            "stage": section.get("zero_stage", 2),
            **{
                f"offload_{what}": {"device": section.get(f"offload_{what}_device")}
                for what in ("optimizer", "param")
            },
        },
        "gradient_accumulation_steps": section.get("gradient_accumulation_steps", "auto"),
    }
    return deepspeed.fields_of(whole_file)


def _megatron(section: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of megatron_lm_config."""
    fields = {}
    for key, field in (("tp_degree", "tensor_parallel"), ("pp_degree", "pipeline_parallel")):
        if section.get(f"megatron_lm_{key}") is not None:
            fields[field] = section[f"megatron_lm_{key}"]
    return fields


def _degrees(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return the degrees of parallelism_config, whose keys may carry its name as a prefix."""
    fields = {}
    for key, value in _section(keys, "parallelism_config").items():
        field = _DEGREES.get(str(key).removeprefix("parallelism_config_"))
        if field is not None and value not in (None, 0, 1):
            fields[field] = whole(1, 10**6)(str(key), value)
    return fields
