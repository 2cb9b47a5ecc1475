"""The live memory of a training step on the fullest of several ranks, phase by phase."""

from collections.abc import Mapping
from typing import NamedTuple

from finegauge.arithmetic import smallest
from finegauge.graph.op import Extents
from finegauge.predict.memory import (
    HEAD_BACKWARD,
    LiveSet,
    Update,
    largest_parts,
    live_set,
    optimizer_scratch,
)
from finegauge.predict.sharding import (
    AFTER_BACKWARD,
    Share,
    frozen_layers_moment,
    gathered_memory,
    gradients_left,
)
from finegauge.predict.stages import stage_graphs
from finegauge.profile import Breakdown, Path
from finegauge.workload.run import Run


class Beside(NamedTuple):
    """What a rank holds beside its weights and activations, whatever the micro-batch."""

    gathered: Mapping[str, Mapping[Path, float]]  # by phase
    update: Update


def beside_of(run: Run, share: Share) -> Beside:
    """Return what the rank of `share` gathers, and what its update takes."""
    update = Update(optimizer_scratch(share.run, share.graph.weights), kept_fraction=gradients_left(run))
    if run.optimizer_implementation == "in_backward":  # gradients are used up as they come
        most = max(share.layer_gradient_bytes, share.outer_gradient_bytes)
        update = update._replace(most_gradients_bytes=most)
    gathered = gathered_memory(run, share)
    if gathered:
        gathered = {HEAD_BACKWARD: gathered["backward"], **gathered}
    return Beside(gathered, update)


def rank_live_set(
    run: Run, share: Share, extents: Extents, cublas: float, beside: Beside | None = None
) -> LiveSet:
    """Return the live memory of each phase on the fullest rank, gathered weights and buckets included."""
    gathered, update = beside or beside_of(run, share)
    in_backward, most = run.optimizer_implementation == "in_backward", update.most_gradients_bytes
    phases: dict[str, Breakdown] = {}
    for stage, graph in stage_graphs(run, share.graph).items():
        live = live_set(share.run, graph, extents, cublas, update, head_apart=bool(gathered))
        phases |= {
            name + stage: parts + Breakdown(gathered.get(name, {})) for name, parts in live.phases.items()
        }
        if AFTER_BACKWARD in gathered:
            own = {
                p: v for p, v in live.phases["optimizer"].parts.items() if p[0] in ("weights", "optimizer")
            }
            phases[AFTER_BACKWARD + stage] = Breakdown(own) + Breakdown(gathered[AFTER_BACKWARD])
    frozen = frozen_layers_moment(run, share, extents)
    if frozen:
        held = {p: v for p, v in phases["backward"].parts.items() if p[0] not in ("activations", "logits")}
        phases["backward of frozen layers"] = Breakdown({**held, **frozen})
    for name in [name for name in phases if name.startswith(HEAD_BACKWARD)]:  # of one stage or another
        layers = name.replace(HEAD_BACKWARD, "backward")
        phases[layers] = Breakdown(largest_parts([phases.pop(name).parts, phases[layers].parts]))
    if in_backward:
        phases = {name: _capped(parts, most) for name, parts in phases.items() if name != "optimizer"}
    return LiveSet(phases)


def _capped(parts: Breakdown, most: float) -> Breakdown:
    """Return `parts` with gradients of at most `most` bytes."""
    return Breakdown({p: smallest(v, most) if p[0] == "gradients" else v for p, v in parts.parts.items()})
