"""What a training step computes and moves, path by path: what its seconds are divided into.

The paths are those of a predicted step time, (stage, part, operator), so that a measured
time at a path gives the rate that was reached there.
"""

from collections.abc import Mapping
from typing import NamedTuple

from finegauge.predict.checkpointing import rerun
from finegauge.predict.predictor import mean_extents
from finegauge.predict.sharding import rank_extents, share_of
from finegauge.profile import Path
from finegauge.workload.data import shape
from finegauge.workload.run import Run

TRAINING_PHASES = ("sft", "pretrain", "reward")


class Work(NamedTuple):
    """What one path of a step does."""

    flops: float = 0.0
    num_bytes: float = 0.0  # read and written


def work_of(run: Run) -> Mapping[Path, Work]:
    """Return the work of one step of `run` by path; empty for phases that are more than one pass."""
    if run.phase not in TRAINING_PHASES:
        return {}
    graph, extents = share_of(run).graph, rank_extents(run, mean_extents(shape(run)))
    found: dict[Path, Work] = {}
    for count, ops in graph.stretches:
        for stage, those in (("forward", ops), ("recompute", rerun(run, graph, ops)), ("backward", ops)):
            for op in those:
                cost = op.backward if stage == "backward" else op.forward
                times = count * run.gradient_accumulation_steps
                before = found.get((stage, *op.path), Work())
                found[stage, *op.path] = Work(
                    before.flops + times * cost.flops.at(extents.windowed(op.window)),
                    before.num_bytes + times * cost.bytes.at(extents),
                )
    return found
