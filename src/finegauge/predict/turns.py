"""What models that one step trains hold for each other while they take turns, as PPO's policy and value do.

While one trains, judges or writes, the other keeps what its implementation leaves: DDP its buckets,
ZeRO-3 its bucket and its part of the gradients, for good; between backward passes and the update all the
gradients that wait, whole where FSDP reduces them in the last micro-batch.
"""

from typing import NamedTuple

from finegauge.predict.memory import LiveSet
from finegauge.predict.sharding import Share, gathered_memory, gradients_left
from finegauge.predict.stages import stage_layers
from finegauge.profile import Breakdown, Path
from finegauge.workload.parallelism import accumulates_whole
from finegauge.workload.run import Run

GRADIENTS: Path = ("gradients",)
PASSING = ("workspace", "gathered weights")  # of what stays where, weights alone come and go


class Trained(NamedTuple):
    """One model of a step: its share of a rank, and what it holds while it trains."""

    share: Share
    live: LiveSet


def left_behind(run: Run, share: Share) -> dict[Path, float]:
    """Return what a model that a step trains keeps on its rank while others are at work."""
    if run.sharding not in ("none", "zero3"):
        return {}
    found = gathered_memory(run, share).get("backward" if run.sharding == "none" else "loss", {})
    return {path: part for path, part in found.items() if path != PASSING}


def taking_turns(run: Run, first: Trained, second: Trained) -> dict[str, Breakdown]:
    """Return the phases of two models of which one trains at a time, by the larger of both.

    The second to train finds the gradients of the first, and with several micro-batches the first those
    of the second; both wait for one optimizer step.
    """
    ours, theirs = (left_behind(run, one.share) for one in (first, second))
    several = run.gradient_accumulation_steps > 1
    phases: dict[str, Breakdown] = {}
    for name, held in first.live.phases.items():
        other = second.live.phases.get(name, Breakdown({}))
        if name == "optimizer":
            waits = {GRADIENTS: other.parts.get(GRADIENTS, 0.0)}
            phases[name] = held + Breakdown({**theirs, **waits})
            continue
        moving = {path: part for path, part in other.parts.items() if not _at_rest(path)}
        static = {path: part for path, part in held.parts.items() if _at_rest(path)}
        their_turn = Breakdown({**static, **moving}) + Breakdown(
            {**ours, GRADIENTS: _waiting(run, first.share)}
        )
        accumulated = {GRADIENTS: _waiting(run, second.share)} if several else {}
        our_turn = held + Breakdown({**theirs, **accumulated})
        phases[name] = max((our_turn, their_turn), key=lambda parts: parts.total)
    return phases


def _waiting(run: Run, share: Share) -> float:
    """Return the gradients of a model between its backward passes."""
    if accumulates_whole(run):
        layers = stage_layers(run, share.graph.model)
        return layers * share.layer_gradient_bytes + share.outer_gradient_bytes
    reduced = gradients_left(run) if run.gradient_accumulation_steps == 1 else 1.0
    return share.graph.weights.gradient_bytes * reduced


def _at_rest(path: Path) -> bool:
    """Return whether what is at `path` stays whichever model trains."""
    return path[0] in ("weights", "optimizer") or path == ("workspace", "cuBLAS")
