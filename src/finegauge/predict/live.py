"""The live memory of a training step on the fullest of several ranks, phase by phase."""

from math import inf

from finegauge.graph.op import Extents
from finegauge.predict.memory import LiveSet, live_set
from finegauge.predict.sharding import Share, frozen_layers_moment, gathered_memory, stage_graph
from finegauge.profile import Breakdown
from finegauge.workload.run import Run


def rank_live_set(run: Run, share: Share, extents: Extents, architecture: str) -> LiveSet:
    """Return the live memory of each phase on the fullest rank, gathered weights and buckets included."""
    in_backward = run.optimizer_implementation == "in_backward"  # gradients are used up as they come
    most = max(share.layer_gradient_bytes, share.outer_gradient_bytes) if in_backward else inf
    live = live_set(share.run, stage_graph(run, share.graph), extents, architecture, most)
    beside = gathered_memory(run, share)
    phases = {name: parts + Breakdown(beside.get(name, {})) for name, parts in live.phases.items()}
    frozen = frozen_layers_moment(run, share, extents)
    if frozen:
        held = {p: v for p, v in phases["backward"].parts.items() if p[0] not in ("activations", "logits")}
        phases["backward of frozen layers"] = Breakdown({**held, **frozen})
    if in_backward:
        phases = {name: _capped(parts, most) for name, parts in phases.items() if name != "optimizer"}
    return LiveSet(phases)


def _capped(parts: Breakdown, most: float) -> Breakdown:
    """Return `parts` with gradients of at most `most` bytes."""
    return Breakdown({p: min(v, most) if p[0] == "gradients" else v for p, v in parts.parts.items()})
