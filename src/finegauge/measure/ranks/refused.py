"""What cannot be measured on several processes of this machine, each with what to do instead."""

import os

import torch

from finegauge.errors import UnsupportedError
from finegauge.measure.options import Options
from finegauge.measure.ranks.zero import check_installed
from finegauge.workload.parallelism import FSDP
from finegauge.workload.run import Run

PHASES = ("sft", "pretrain", "reward", "dpo", "ppo", "grpo")
MODEL_DEGREES = ("tensor_parallel", "pipeline_parallel", "context_parallel", "expert_parallel")
ALONE = ("layers", "kernels", "ncu", "experts", "evaluate", "tasks", "trace_path")
MOST_PER_CORE = 4


def refuse(run: Run, options: Options) -> None:
    """Refuse what several processes cannot be asked.

    Raises: UnsupportedError.
    """
    for name in MODEL_DEGREES:
        if getattr(run, name) > 1:
            raise UnsupportedError(
                f"{name}={getattr(run, name)} is predicted and not measured; several processes are measured "
                f"data parallel: set {name}=1."
            )
    for name in ALONE:
        if getattr(options, name):
            raise UnsupportedError(
                f"--{name.removesuffix('_path')} looks at one process; leave it out or set num_gpus=1."
            )
    _refuse_places(run, options)
    _refuse_kinds(run)


def _refuse_places(run: Run, options: Options) -> None:
    """Refuse more ranks than this machine has room for."""
    if run.num_nodes > 1:
        raise UnsupportedError(f"num_nodes={run.num_nodes}: only this machine is measured; set num_nodes=1.")
    cores = os.cpu_count() or 1
    most = torch.cuda.device_count() if options.device == "cuda" else max(8, MOST_PER_CORE * cores)
    if run.num_gpus > most:
        has = f"{most} GPUs" if options.device == "cuda" else f"{cores} cores, for {most} processes at most"
        raise UnsupportedError(
            f"num_gpus={run.num_gpus}: this machine has {has}; set num_gpus={most}, or ask "
            "'finegauge estimate'."
        )


def _refuse_kinds(run: Run) -> None:
    """Refuse what the libraries that divide models do not take."""
    kind = run.sharding
    if run.phase not in PHASES:
        raise UnsupportedError(
            f"phase={run.phase} is measured in one process; several run {', '.join(PHASES)}: set num_gpus=1."
        )
    if kind == "none":
        return
    if kind.startswith("zero"):
        check_installed()
    reasons = {
        "method=qlora": run.method == "qlora",
        "autocast=fp16": run.autocast == "fp16",
        f"cpu_offload={run.cpu_offload}": run.cpu_offload != "none",
        f"optimizer={run.optimizer}": run.optimizer not in ("adamw", "sgd"),
        "optimizer_implementation=in_backward": run.optimizer_implementation == "in_backward",
        "loss=chunked on ZeRO-3": kind == "zero3" and run.loss == "chunked",
        "a hybrid mesh with one copy": kind == "hybrid" and run.data_parallel_replicate == 1,
    }
    for what, asked in reasons.items():
        if asked:
            raise UnsupportedError(f"{what} is not measured with sharding={kind}; use sharding=none.")
    if kind in FSDP and run.compile:
        raise UnsupportedError(f"compile=true is not measured with sharding={kind}; set compile=false.")
