"""A layer that was traced, not described: what its class did, and the operators that follow from it.

`finegauge trace` runs the transformers class on tensors without data and writes down, per kind
of layer, its projections, its attention kernels and everything else. Projections become the
same operators as in a described layer, so adapters, quantisation and autocast act on them
alike. What autograd keeps is listed by keeper: a tensor stays for backward if it always does, or
if one of the weights that need it trains or has an adapter.
"""

from collections.abc import Mapping
from typing import NamedTuple

from finegauge.errors import UnsupportedError
from finegauge.model.blocks import Linear, Tensor
from finegauge.model.lowering import Lowering
from finegauge.model.op import NOTHING, Cost, Op, Poly
from finegauge.model.op_builder import OpBuilder

OTHERS = "others"  # the keeper that stands for every weight which is no projection's
MODES = (  # FlashAttention knows no fp32
    *("bf16/flash", "bf16/sdpa", "bf16/eager", "autocast/flash", "autocast/sdpa", "autocast/eager"),
    *("fp32/sdpa", "fp32/eager"),
)


class Use(NamedTuple):
    """One product of the activations with a weight."""

    part: str  # attention, mlp, ...: the layer's module that holds it
    linear: Linear  # its kind: linear (a module), router or experts (a bare parameter)
    rows: float = 1.0  # per token; experts see top_k in all groups together
    groups: int = 1  # experts that share the rows
    share: float = 1.0  # of its adapter that this layer owns: weights may serve several layers


class Kernel(NamedTuple):
    """One fused attention kernel: channels per token of all query heads and of its output."""

    query: float
    output: float
    window: int | None = None


class Kept(NamedTuple):
    """Bytes that autograd keeps if one of the `keepers` needs them; of none: always."""

    keepers: tuple[str, ...]  # names of uses, or OTHERS
    bytes: Poly

    def by(self, active: frozenset[str]) -> bool:
        """Return whether it is kept when the weights named in `active` need their inputs."""
        return not self.keepers or not active.isdisjoint(self.keepers)


class Rest(NamedTuple):
    """What one part of a layer does in one mode: fused attention, and all beside it and the projections."""

    part: str
    kernels: tuple[Kernel, ...] = ()
    kept: tuple[Kept, ...] = ()
    forward: Cost = NOTHING
    backward: Cost = NOTHING  # activations alone
    backward_trained: Cost = NOTHING  # and weights
    live_forward_bytes: Poly = Poly()
    live_backward_bytes: Poly = Poly()
    passing_bytes: Poly = Poly()


class Traced(NamedTuple):
    """The mixer of a traced layer: all of it, norms and residual additions included."""

    parameters: tuple[Tensor, ...]
    uses: tuple[Use, ...]
    rests: Mapping[str, tuple[Rest, ...]]  # by mode
    path: str = "layer"

    def tensors(self) -> list[Tensor]:
        """Return the parameters."""
        return list(self.parameters)

    @property
    def projections(self) -> tuple[Linear, ...]:
        """Return the projections in order of use."""
        return tuple(use.linear for use in self.uses)

    @property
    def idle_parameters(self) -> int:
        """Return the parameters of the experts that a token does not pass."""
        return round(
            sum(
                max(0.0, use.groups - use.rows) * use.linear.in_features * use.linear.out_features * use.share
                for use in self.uses
                if use.groups > 1
            )
        )


def mode_of(low: Lowering) -> str:
    """Return the mode of the trace that answers for `low`."""
    widths = {(2, 2): "bf16", (4, 2): "autocast", (4, 4): "fp32"}
    width = widths.get((low.activation_bytes, low.compute_bytes), "bf16")
    attention = "sdpa" if low.attention == "flash" and width == "fp32" else low.attention
    return f"{width}/{attention}"


def traced(builder: OpBuilder, block: Traced) -> None:
    """Add the operators of a traced layer, part by part in forward order.

    Raises: UnsupportedError where the class could not be traced in the mode that is asked for.
    """
    mode = mode_of(builder.lowering)
    if mode not in block.rests:
        raise UnsupportedError(
            f"This model's class could not be traced as {mode} (width/attention), only as "
            f"{', '.join(block.rests)}; state another attention or weights_dtype."
        )
    active = _keepers(builder.lowering, block)
    for rest in block.rests[mode]:
        for use in block.uses:
            if use.part == rest.part:
                _use(builder, use)
        for kernel in rest.kernels:
            _kernel(builder, rest.part, kernel)
        _rest(builder, block, rest, active)


def _use(builder: OpBuilder, use: Use) -> None:
    """Add a projection; a grouped product of fp32 experts is not among what autocast narrows."""
    low, kind = builder.lowering, use.linear.kind
    folded = low.folds(use.linear, kind, use.part)
    if kind == "experts" and low.autocast and low.weight_bytes == 4 and not (low.quantizes(kind) or folded):
        builder.lowering = low._replace(compute_bytes=4, compute_dtype="fp32", autocast=False)
    builder.linear(use.part, use.linear, rows=use.rows, groups=use.groups, kind=kind)
    builder.lowering = low


def _keepers(low: Lowering, block: Traced) -> frozenset[str]:
    """Return the names of the weights that need their inputs in backward."""
    names = {
        use.linear.name
        for use in block.uses
        if low.kept_input(1.0, use.linear, part=use.part, kind=use.linear.kind)
    }
    return frozenset(names | ({OTHERS} if low.weights_train or low.norms_train else set()))


def _kernel(builder: OpBuilder, part: str, kernel: Kernel) -> None:
    """Add the work of an attention kernel; what it keeps stands with the rest of its part."""
    c = float(builder.lowering.compute_bytes)
    flops = Poly(pair=2.0 * (kernel.query + kernel.output))
    io = c * 2.0 * (kernel.query + kernel.output)
    builder.ops.append(
        Op(
            path=(part, "attention kernel"),
            kind="attention",
            forward=Cost(flops.times(0.5), Poly(token=io), launches=1),
            backward=Cost(flops.times(1.25), Poly(token=2.5 * io), launches=3),
            dtype=builder.lowering.compute_dtype,
            window=kernel.window,
        )
    )


def _rest(builder: OpBuilder, block: Traced, rest: Rest, active: frozenset[str]) -> None:
    """Add everything else of one part, and what all of the part keeps."""
    low = builder.lowering
    saved = Poly()
    for kept in rest.kept:
        if kept.by(active):
            saved = saved.plus(kept.bytes)
    trains = OTHERS in active
    builder.ops.append(
        Op(
            path=(rest.part, "everything else"),
            kind="elementwise",
            forward=rest.forward,
            backward=rest.backward_trained if trains else rest.backward,
            saved_bytes=saved,
            live_forward_bytes=rest.live_forward_bytes,
            live_backward_bytes=rest.live_backward_bytes,
            passing_bytes=rest.passing_bytes,
            gradient_bytes=_other_weights(block, rest.part) * low.weight_bytes if low.weights_train else 0.0,
            dtype=low.compute_dtype,
        )
    )


def _other_weights(block: Traced, part: str) -> float:
    """Return the parameters of one part that no projection owns: norms, biases, convolutions."""
    held = sum(tensor.size for tensor in block.parameters if _part(tensor, block) == part)
    used = sum(
        use.groups * use.linear.in_features * use.linear.out_features
        for use in block.uses
        if use.part == part
    )
    return float(max(0, held - used))


def _part(tensor: Tensor, block: Traced) -> str:
    """Return the part that holds a parameter, by the first name of its path."""
    return part_name(tensor.name.split(".")[0])


def part_name(module: str) -> str:
    """Return what reports call a module of a layer: every kind of attention is "attention"."""
    if "norm" in module or module.startswith("ln"):
        return "norms"
    return "attention" if "attn" in module or "attention" in module else module
