"""How the work is divided among GPUs: degrees, sharding, offload.

The degrees multiply to the number of GPUs (torchtitan's vocabulary):
    data_parallel_replicate · data_parallel_shard · tensor · pipeline · context = num_gpus
"""

from collections.abc import Collection
from math import prod
from typing import TYPE_CHECKING, Any

from finegauge.errors import FieldError
from finegauge.workload.field import Check, choice, flag, number, whole

if TYPE_CHECKING:
    from finegauge.workload.run import Run

FSDP = ("fsdp", "fsdp_shard_grad_op", "hybrid")
SHARDING = ("none", "zero1", "zero2", "zero3", *FSDP)
PIPELINE_SCHEDULES = ("1f1b", "gpipe", "naive")  # naive: layers spread over GPUs, one working at a time
CPU_OFFLOAD = ("none", "optimizer", "params", "all", "nvme")  # nvme: states and weights, on local drives
MODEL_DEGREES = ("tensor_parallel", "pipeline_parallel", "context_parallel")
DATA_DEGREES = ("data_parallel_replicate", "data_parallel_shard")
MAX_GPUS = 1_000_000
REDUCES_EVERY_MICRO_BATCH = ("foundry", "composer", "torchtune", "torchtitan", "internevo", "megatron")

CHECKS: dict[str, Check] = {
    "num_gpus": whole(1, MAX_GPUS),
    "num_nodes": whole(1, MAX_GPUS),
    "node_network_gbit_per_s": number(0.1, 1e6, "Gbit/s"),
    **{name: whole(1, MAX_GPUS) for name in (*DATA_DEGREES, *MODEL_DEGREES, "expert_parallel")},
    "sequence_parallel": flag,
    "virtual_pipeline_stages": whole(1, 1000),
    "pipeline_schedule": choice(PIPELINE_SCHEDULES, {"naive_mp": "naive"}),
    "sharding": choice(SHARDING, {"false": "none", "ddp": "none", "zero0": "none"}),
    "cpu_offload": choice(CPU_OFFLOAD, {"false": "none", "true": "all"}),
}


def settle(values: dict[str, Any], stated: Collection[str]) -> None:
    """Fill in the degrees that the others leave open and refuse those that do not multiply."""
    del stated  # the degrees must multiply whoever stated them
    _check_schedule(values)
    model_parallel = prod(values[name] for name in MODEL_DEGREES)
    data_parallel = prod(values[name] or 1 for name in DATA_DEGREES)
    if values["num_gpus"] is None:
        values["num_gpus"] = model_parallel * data_parallel
    num_gpus, num_nodes = values["num_gpus"], values["num_nodes"]
    if num_gpus % num_nodes:
        raise FieldError(
            f"num_gpus={num_gpus} (all nodes together) is not a multiple of num_nodes={num_nodes}."
        )
    open_degrees = [name for name in DATA_DEGREES if values[name] is None]
    left, remainder = divmod(num_gpus, model_parallel * data_parallel)
    if remainder or (left > 1 and not open_degrees) or not left:
        degrees = " · ".join(
            f"{n}={values[n]}" for n in (*DATA_DEGREES, *MODEL_DEGREES) if (values[n] or 1) > 1
        )
        product = model_parallel * data_parallel
        raise FieldError(
            f"{degrees} multiply to {product}, which does not fill num_gpus={num_gpus}; "
            f"set num_gpus={product} or change a degree."
        )
    replicated = values["sharding"] == "none" or "data_parallel_shard" not in open_degrees
    rest = "data_parallel_replicate" if replicated else "data_parallel_shard"
    for name in open_degrees:
        values[name] = left if name == rest or len(open_degrees) == 1 else 1


def accumulates_whole(run: "Run") -> bool:
    """Return whether FSDP's gradients stay whole on every rank until the last micro-batch of a step.

    So they do under `no_sync`, which accelerate enters unless told `sync_each_batch` (its guide to
    gradient synchronization says so) and litgpt by Fabric's `no_backward_sync`.
    """
    spares = not any(name in run.framework.lower() for name in REDUCES_EVERY_MICRO_BATCH)
    return run.sharding in FSDP and run.gradient_accumulation_steps > 1 and spares


def _check_schedule(values: dict[str, Any]) -> None:
    """Refuse chunks of stages that no schedule passes in turn, and drives that nothing streams from."""
    chunks, schedule = values["virtual_pipeline_stages"], values["pipeline_schedule"]
    if chunks > 1 and schedule != "1f1b":
        raise FieldError(
            f"virtual_pipeline_stages={chunks} is interleaved 1F1B, which pipeline_schedule={schedule} is "
            f"not; use pipeline_schedule=1f1b."
        )
    if values["cpu_offload"] == "nvme" and values["sharding"] != "zero3":
        raise FieldError(
            f"cpu_offload=nvme is DeepSpeed's ZeRO-Infinity, which sharding={values['sharding']} is not; use "
            f"sharding=zero3."
        )
