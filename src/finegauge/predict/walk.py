"""What is alive at the worst moment of one pass over a stretch of operators.

Three passes: forward with everything kept for backward, forward with nothing kept (a
checkpointed layer, which will run again), and backward, which frees what each operator
kept and leaves the gradients of its weights behind. Layers of one kind repeat, so a pass
over one of them serves them all.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from finegauge.arithmetic import PLAIN, chosen, place_of_largest
from finegauge.graph.op import Extents, Op


class Moment(NamedTuple):
    """Bytes alive at one moment of a pass, because of the stretch alone."""

    kept_bytes: float = 0.0  # by autograd
    beside_bytes: float = 0.0  # inputs, outputs, gradients and temporaries of the operator at work
    made_bytes: float = 0.0  # gradients of the weights that the stretch has reached so far
    op: Op | None = None  # at work; not known where it differs from one candidate to the next

    @property
    def total(self) -> float:
        """Return all of it."""
        return self.kept_bytes + self.beside_bytes + self.made_bytes


def worst(moments: Sequence[Moment]) -> Moment:
    """Return the first of `moments` with the most bytes alive; the empty moment where there are none."""
    found, most = Moment(), 0.0
    for moment in moments:
        total = moment.total
        if not isinstance(total, PLAIN):
            return _worst_of_each(moments)
        if total > most:
            found, most = moment, total
    return found


def _worst_of_each(moments: Sequence[Moment]) -> Moment:
    """Return the worst moment of every candidate."""
    place = place_of_largest([moment.total for moment in moments])
    kept, beside, made, _ = zip(*moments, strict=True)
    return Moment(chosen(kept, place), chosen(beside, place), chosen(made, place))


def saved_bytes(ops: Iterable[Op], extents: Extents) -> float:
    """Return the bytes that autograd keeps because of `ops`."""
    return sum(op.saved_bytes.at(extents) for op in ops)


def gradient_bytes(ops: Iterable[Op]) -> float:
    """Return the bytes of the gradients of the weights in `ops`."""
    return sum(op.gradient_bytes for op in ops)


def forward_moment(
    ops: Sequence[Op], extents: Extents, stream: float, *, keeping: bool, held: float = 0.0
) -> Moment:
    """Return the worst moment of a forward pass.

    After each residual addition the caller still holds the layer's input beside the sum:
    one more `stream`, in bytes. `held` is what it holds from the layer before.
    """
    moments, kept, streams = [], 0.0, held
    for op in ops:
        if keeping:
            kept = kept + op.saved_bytes.at(extents)
        live = op.live_forward_bytes if keeping else op.passing_bytes
        moments.append(Moment(kept, streams + live.at(extents), 0.0, op))
        if op.path[-1] == "residual":
            streams = streams + stream
        if not keeping or op.path[-1] == "residual":
            streams = streams + op.lingering_bytes.at(extents)
    return worst(moments)


def backward_moment(ops: Sequence[Op], extents: Extents, *, accumulating: bool) -> Moment:
    """Return the worst moment of a backward pass.

    Gradients of weights stay; where they add to those of earlier micro-batches
    (`accumulating`), which the caller counts, each is alive only until it is added.
    """
    moments, kept, gradients = [], saved_bytes(ops, extents), 0.0
    for op in reversed(ops):
        made = op.gradient_bytes + (0.0 if accumulating else gradients)
        moments.append(Moment(kept, op.live_backward_bytes.at(extents), made, op))
        kept = kept - op.saved_bytes.at(extents)
        gradients = gradients + op.gradient_bytes
    return worst(moments)
