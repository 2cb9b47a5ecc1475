"""How the column `parallelism` of a measurement table divides a run.

Tokens are joined by +: ddp, fsdp, fsdp_shard_grad_op, hsdp, zero1 to zero3, tpN, spN, ppN, vppN, cpN,
epN, dpN, naive_mp. Beside tensor parallelism, sp is Megatron's sequence parallelism. InternEvo
writes `zero1(size N)tpM`, where N = -1 is all data-parallel ranks.
"""

import re
from typing import Any

from finegauge.errors import FieldError, did_you_mean, shown

_DEGREES = {
    "tp": "tensor_parallel",
    "pp": "pipeline_parallel",
    "vpp": "virtual_pipeline_stages",
    "cp": "context_parallel",
    "ep": "expert_parallel",
    "dp": "data_parallel_replicate",
}
_SHARDING = {
    **{name: name for name in ("fsdp", "fsdp_shard_grad_op", "zero1", "zero2", "zero3")},
    **{"fsdp2": "fsdp", "fsdp_full_shard": "fsdp", "hsdp": "hybrid", "hybrid": "hybrid"},
    **dict.fromkeys(("ddp", "dp", "zero0", "none"), "none"),
}
_GROUP = re.compile(r"\(\s*size\s*(-?\d+)\s*\)")
_DEGREE = re.compile(r"(tp|vpp|pp|cp|sp|ep|dp)[-=]?(\d+)")


def parallelism(cell: str, num_gpus: int) -> dict[str, Any]:
    """Return the fields of a run that `cell` states for `num_gpus` GPUs.

    Raises: FieldError naming the token that is not known.
    """
    group = _GROUP.search(cell.lower())
    text = _GROUP.sub("+", cell.lower())
    fields: dict[str, Any] = {}
    sequence = 1
    for token in filter(None, re.split(r"[+,;/\s]+", text)):
        degree = _DEGREE.fullmatch(token)
        if token in _SHARDING:
            fields["sharding"] = _SHARDING[token]
        elif token == "sp":
            fields["sequence_parallel"] = True
        elif token == "naive_mp":
            fields["pipeline_schedule"] = "naive"
        elif degree and degree.group(1) == "sp":
            sequence = int(degree.group(2))
        elif degree:
            fields[_DEGREES[degree.group(1)]] = int(degree.group(2))
        else:
            hint = did_you_mean(token, (*_SHARDING, "naive_mp", "tp2", "pp2"))
            raise FieldError(f"parallelism={shown(cell)} has an unknown token {shown(token)}.{hint}")
    _settle(fields, sequence, int(group.group(1)) if group else 0, num_gpus)
    return fields


def _settle(fields: dict[str, Any], sequence: int, group: int, num_gpus: int) -> None:
    """Resolve sequence parallelism, the size of a sharding group, and data parallelism under sharding."""
    if sequence > 1 and fields.get("tensor_parallel", 1) == 1:
        fields["context_parallel"] = sequence  # Ulysses: the sequence is divided, weights are not
    elif sequence > 1:
        fields["sequence_parallel"] = True
    if fields.get("tensor_parallel", 1) == 1:
        fields.pop("sequence_parallel", None)
    if group > 0:
        fields["data_parallel_shard"] = group
    if fields.get("sharding", "none") != "none" and "data_parallel_replicate" in fields and group <= 0:
        replicas = fields.pop("data_parallel_replicate")
        if fields["sharding"] == "hybrid":
            fields["data_parallel_replicate"] = replicas
    if fields.get("pipeline_schedule") == "naive":
        fields["pipeline_parallel"] = num_gpus
    if num_gpus == 1:
        fields.clear()
