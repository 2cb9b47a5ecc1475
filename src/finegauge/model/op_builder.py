"""The operators of one layer, collected in the order in which the forward pass runs them.

Sizes in bytes follow the eager implementations of transformers, PEFT [1] and
bitsandbytes: an adapter whose dtype differs from the activations' casts its input, and a
4-bit weight is dequantised once per use.

[1] Hu et al. 2021, arXiv:2106.09685 (LoRA); Dettmers et al. 2023, arXiv:2305.14314 (QLoRA)
"""

from typing import NamedTuple

from finegauge.model.blocks import Linear, Norm
from finegauge.model.lowering import QUANTIZED_BYTES, Lowering
from finegauge.model.op import NOTHING, Cost, Gemm, Op, Poly, per_token
from finegauge.profile import Path

UNPACKED_BYTES = 16.5  # per weight: shifted 4.5, to int8 5, masked 2, less the zero 2, times the scale 3
UNPACKING_KERNELS = 9.0


def dequantised(low: Lowering, part: str, weights: float, groups: int) -> Op:
    """Return the operator that makes `weights` values of `groups` matrices 16-bit."""
    path = (part, "dequantise")
    if low.unpacks_in_torch:
        unpacked = Cost(bytes=Poly(const=weights * UNPACKED_BYTES), launches=UNPACKING_KERNELS * groups)
        return Op(path, "dequantise", unpacked, dtype=low.compute_dtype)
    moved = weights * (QUANTIZED_BYTES[low.quantized] + low.compute_bytes)
    kernels = (3.0 if low.quantized == "nf4_dq" else 2.0) * (groups if low.experts == "eager" else 1)
    cost = Cost(bytes=Poly(const=moved), launches=kernels)
    return Op(path, "dequantise", cost, cost, dtype=low.compute_dtype)


def narrowed(low: Lowering, part: str, read: float, made: float, weights: float) -> Op:
    """Return the casts to fp8 of a product that reads and makes so many values per token."""
    both = low.compute_bytes + 2.0
    forward = Cost(bytes=Poly(const=both * weights, token=both * read), launches=2)
    backward = Cost(bytes=per_token(both * made), launches=1)
    return Op((part, "fp8 casts"), "elementwise", forward, backward, dtype=low.compute_dtype)


ADAPTER_CALLS = 2.0  # module calls of an adapter pair: A and B
RMS_FORWARD_BYTES = 36.0  # to fp32, pow, mean, rsqrt, mul, to bf16, mul: per channel, 16-bit activations
RMS_BACKWARD_BYTES = 60.0
RMS_LIVE_BYTES = (
    20.0  # five fp32 values at its worst: two ways to the input, and the square's gradient in three steps
)


class Alive(NamedTuple):
    """Bytes per token that are alive only at the worst moment of a pass (see `Op`)."""

    forward: float = 0.0
    backward: float = 0.0
    passing: float = 0.0


NOTHING_ALIVE = Alive()


class Tape:
    """The operators of one layer, in forward order."""

    def __init__(self, lowering: Lowering, *, reached: bool = True) -> None:
        """Start with no operators; `reached`: gradients are taken to the input of the layer."""
        self.lowering = lowering
        self.reached = reached
        self.ops: list[Op] = []
        self._entry_kept = 0.0  # bytes per token of the branch's input that a projection keeps already

    def enter(self, norm: Norm | None, part: str, *, beside: bool) -> None:
        """Begin a residual branch with its norm, if it has one.

        A branch `beside` another reads the same stream, which one LayerNorm keeps for
        both, and without a norm of its own it reads the other's normalised input.
        """
        if norm is not None or not beside:
            self._entry_kept = 0.0
        self.norm(norm, part, keeps_input=not beside)

    @property
    def keeps_entry(self) -> bool:
        """Return whether autograd keeps the branch's input itself."""
        return self._entry_kept > 0

    def kept_entry(self, width: float, *linears: Linear, part: str, kind: str = "linear") -> float:
        """Return what `linears` make autograd keep of the branch's input beyond what is kept already."""
        kept = self.lowering.kept_input(width, *linears, part=part, kind=kind)
        if self.lowering.activation_bytes > self.lowering.compute_bytes:
            return kept  # every cast is a copy of its own
        new = max(0.0, kept - self._entry_kept)
        self._entry_kept += new
        return new

    def elementwise(
        self,
        path: Path,
        forward_bytes: float,
        backward_bytes: float | None = None,
        *,
        launches: float = 1.0,
        backward_launches: float | None = None,
        saved: float | Poly = 0.0,
        alive: Alive = NOTHING_ALIVE,
        gradient: float = 0.0,
        kind: str = "elementwise",
    ) -> None:
        """Add a memory-bound operator; all amounts but `gradient` are bytes per token."""
        self.ops.append(
            Op(
                path=path,
                kind=kind,
                forward=Cost(bytes=per_token(forward_bytes), launches=launches),
                backward=Cost(
                    bytes=per_token(2 * forward_bytes if backward_bytes is None else backward_bytes),
                    launches=2 * launches if backward_launches is None else backward_launches,
                ),
                saved_bytes=saved if isinstance(saved, Poly) else per_token(saved),
                live_forward_bytes=per_token(alive.forward),
                live_backward_bytes=per_token(alive.backward),
                passing_bytes=per_token(alive.passing),
                gradient_bytes=gradient,
                dtype=self.lowering.compute_dtype,
            )
        )

    def norm(
        self,
        norm: Norm | None,
        part: str,
        *,
        repeats: int = 1,
        keeps_input: bool = True,
        inside: bool = False,
    ) -> None:
        """Add a normalisation of `repeats` vectors of `norm.size` channels per token.

        RMSNorm in eager transformers is eight kernels and keeps the fp32 input, the
        inverse deviation and, if its weight trains, the normalised value that the weight
        multiplies (as wide as the input; fp32 under wide norms); LayerNorm and fused
        RMSNorm are one kernel and keep their input, unless another norm of the same keeps
        it. A LayerNorm written out in fp32 keeps the centred input twice.

        Args:
            norm: The norm, or None to add nothing.
            part: First name of the path.
            repeats: Vectors per token (heads).
            keeps_input: No other norm keeps the same input.
            inside: Its input is what a projection returned, not the residual stream.
        """
        if norm is None:
            return
        low, n = self.lowering, float(norm.size * repeats)
        a = low.compute_bytes if inside else low.activation_bytes
        a = low.stream_bytes if part == "head" else a
        written = low.numerics.written_layer_norms and norm.kind == "layer"
        fused, kept = norm.kind == "layer" or low.fused_kernels, 0.0
        if fused and not written:
            read = 4.0 if norm.kind == "layer" and self.widens(inside=inside) else a
            saved = (read * n if keeps_input else 0.0) + 4.0 * repeats * (2 if norm.kind == "layer" else 1)
            forward, backward, launches = 2 * a * n, 3 * a * n, 1.0
            live, back, passing, itself = a * n, 2 * a * n, a * n, True
        else:
            wide = written or low.numerics.wide_norms
            kept = (4.0 if wide else a) * n if low.norms_train and norm.weight else 0.0
            saved = (8.0 if written else 4.0) * n + kept + 4.0 * repeats
            forward, backward, launches = RMS_FORWARD_BYTES * n * a / 2, RMS_BACKWARD_BYTES * n * a / 2, 8.0
            live = (4 + 2 * a) * n - min(kept, a * n)  # the wide product, its narrow copy, the output
            back, passing, itself = RMS_LIVE_BYTES * n - kept, 8 * n, a == 4
        copy = self._weight_copy(norm)
        if not self.reached and low.norms_train and norm.weight:  # its weight is the first that trains
            saved, copy = (kept, 0.0) if written or not fused else (saved, copy)
            self.reached = True
        trained = sum(tensor.size for tensor in norm.tensors()) if low.norms_train else 0
        self.elementwise(
            (part, "norm"),
            forward,
            backward,
            launches=launches,
            backward_launches=1.6 * launches,
            saved=Poly(const=copy, token=saved),
            alive=Alive(live, back, passing),
            gradient=float(trained * low.weight_bytes),
            kind="norm",
        )
        self.ops[-1] = self.ops[-1]._replace(keeps_input=itself and keeps_input)

    def widens(self, *, inside: bool) -> bool:
        """Return whether a LayerNorm reads an fp32 copy: its own doing, or autocast's."""
        low = self.lowering
        narrow = inside or low.activation_bytes == low.compute_bytes
        return low.numerics.wide_layer_norms or (low.autocast and narrow)

    def _weight_copy(self, norm: Norm) -> float:
        """Return the bytes of the weight that the norm makes from the stored one and keeps."""
        low = self.lowering
        written = low.numerics.written_layer_norms and norm.kind == "layer"
        if not norm.weight or not (written or low.numerics.unit_norms):
            return 0.0
        if written and low.weight_bytes == 4:
            return 0.0  # the stored one is wide enough
        size = float(norm.size * max(1, norm.heads))
        return size * (low.weight_bytes if norm.kind == "layer" and not written else 4.0)

    def residual(self, part: str, hidden_size: int) -> None:
        """Add the residual addition; its backward adds the gradients of both ways.

        Where the branch's output passes dropout first, the mask is kept, a byte per value.
        """
        low = self.lowering
        if part in low.numerics.dropout:
            h, c = float(hidden_size), float(low.compute_bytes * hidden_size)
            moved, alone = (
                (h, 0.0) if low.megatron else (2 * c + h, 1.0)
            )  # there the addition reads and writes
            self.elementwise(
                (part, "dropout"), moved, 2 * c + h, saved=h, launches=alone, backward_launches=1
            )
        a = low.stream_bytes * hidden_size
        self.elementwise((part, "residual"), 3 * a, 3 * a, launches=1, backward_launches=1)
        if part == "attention" and low.numerics.holds_attention:
            self.ops[-1] = self.ops[-1]._replace(lingering_bytes=per_token(a))

    def linear(
        self,
        part: str,
        linear: Linear,
        *,
        rows: float = 1.0,
        groups: int = 1,
        kind: str = "linear",
        keeps: float = 0.0,
        first_use: bool = True,
        beside: float = 0.0,
    ) -> None:
        """Add a projection with its adapter and, if quantised, its dequantisation.

        Args:
            part: First name of the path: "attention", "moe", ...
            linear: The projection; with `groups` > 1 there are that many of it.
            rows: Rows per token (experts see top_k of them in all groups together).
            groups: How many weights share the rows (experts).
            kind: "linear", "experts" or "router".
            keeps: Bytes per token that this projection makes autograd keep (see `kept_input`).
            first_use: No projection before it reads the same input.
            beside: Channels that projections before it return for the same step: alive meanwhile,
                and backward their gradients are.
        """
        low = self.lowering
        weights = float(linear.in_features * linear.out_features * groups)
        folds = low.folds(linear, kind, part)
        if low.quantizes(kind):
            if not low.repacks:  # else the product reads 4-bit values itself
                self.ops.append(dequantised(low, part, weights, groups))
        elif low.autocast and low.weight_bytes == 4 and not folds:
            self._weight_cast(part, weights)
        waiting = rows * beside * low.compute_bytes
        entry = rows * linear.in_features * low.compute_bytes
        stashes = first_use and low.stash_survives and low.quantizes(kind)
        product = self._product(part, linear, rows, groups, kind, keeps, waiting)
        if product.dtype == "fp8":
            read, made = rows * linear.in_features * first_use, rows * linear.out_features
            self.ops.append(narrowed(low, part, read, made, weights))
        self.ops.append(product._replace(stash_bytes=per_token(entry if stashes else 0.0)))
        if low.quantizes(kind) and low.returned_bytes > low.compute_bytes:  # Linear4bit: narrow, widen again
            moved = (
                rows * (linear.in_features + linear.out_features) * (low.returned_bytes + low.compute_bytes)
            )
            self.elementwise((part, "cast"), moved, moved, launches=2)
        if folds:
            self._folded_adapter(part, linear, low.rank(linear, kind, part), groups)
        elif rank := low.rank(linear, kind, part):
            self._adapter(part, linear, rank, rows, groups, waiting)

    def _product(
        self, part: str, linear: Linear, rows: float, groups: int, kind: str, keeps: float, waiting: float
    ) -> Op:
        """Return the product of a projection itself; `waiting` bytes per token are alive meanwhile."""
        low = self.lowering
        k, n, c = linear.in_features, linear.out_features, low.compute_bytes
        weights = float(k * n * groups)
        gemm = Gemm(rows, n, k, groups)
        flops = per_token(2.0 * rows * k * n)
        moved = Poly(const=weights * c, token=rows * (k + n) * c)
        folds, quantized = low.folds(linear, kind, part), low.quantizes(kind)
        repacked = quantized and low.repacks
        unpacked = quantized and low.unpacks_in_torch  # then, and folded, it is a copy that is kept
        copy = weights * c if folds or unpacked else 0.0
        passes = 2 if low.weights_train or folds else 1  # a folded weight has a gradient of its own
        launches = float(groups) if kind == "experts" and low.experts == "eager" else 1.0
        calls = launches if quantized else 0.0
        buffer = (
            weights / launches * c * (2 if low.litgpt else 1)
            if quantized and not (unpacked or repacked)
            else 0.0
        )
        trained, made = self._weight_gradients(linear, groups, kind)
        unkept = 0.0 if keeps else rows * k * c
        around = rows * (k + n) * c + waiting
        return Op(
            path=(part, linear.name),
            kind="grouped_gemm" if groups > 1 else "gemm",
            forward=Cost(flops, moved, launches, calls, (gemm,)),
            backward=Cost(
                flops.times(passes), moved.times(passes), launches * passes, calls, (gemm,) * passes
            ),
            saved_bytes=Poly(const=copy, token=keeps),
            live_forward_bytes=Poly(const=buffer, token=rows * n * c + unkept),
            live_backward_bytes=Poly(const=buffer + made, token=around),
            passing_bytes=Poly(const=buffer, token=around),
            gradient_bytes=trained,
            keeps_input=0 < keeps <= k * c and low.activation_bytes == c,
            dtype=low.product_dtype(kind),
            reads_4bit=repacked,
        )

    def _weight_gradients(self, linear: Linear, groups: int, kind: str) -> tuple[float, float]:
        """Return the bytes of the gradients of a projection's own tensors, and of those they are made from.

        Under autocast a gradient is there in 16 bit first. In a loop over fused experts it is
        that of one expert's slice first, then as large as all.
        """
        low = self.lowering
        if not low.weights_train:
            return 0.0, 0.0
        weights = float(linear.in_features * linear.out_features * groups)
        biases = float(linear.out_features * groups) if linear.bias else 0.0
        trained = (weights + biases) * low.weight_bytes
        made = weights * low.compute_bytes if low.autocast and low.weight_bytes > low.compute_bytes else 0.0
        if kind == "experts" and low.experts == "eager" and low.fused_experts:
            made += trained * (1 + 1 / groups)
        return trained, made

    def _folded_adapter(self, part: str, linear: Linear, rank: int, groups: int) -> None:
        """Add PEFT's adapters of bare parameters: W + B·A of all experts, kept and differentiated whole.

        The product is made once for a router; with the sum, for experts, when the
        parametrisation is registered and again when it is used.
        """
        low = self.lowering
        k, n = linear.in_features, linear.out_features
        weights = float(k * n * groups)
        copy = weights * low.compute_bytes
        casts = rank * (k + n) * groups * low.compute_bytes if low.adapter_bytes != low.compute_bytes else 0
        cost = Cost(Poly(const=4.0 * rank * weights), Poly(const=4.0 * copy), 2.0, ADAPTER_CALLS)
        made = 1.0 if groups > 1 else 0.5
        self.ops.append(
            Op(
                path=(part, "adapter"),
                kind="gemm",
                forward=cost._replace(flops=cost.flops.times(made)),
                backward=cost,
                saved_bytes=Poly(const=casts),
                live_backward_bytes=Poly(const=copy),
                passing_bytes=Poly(const=copy),
                gradient_bytes=float(rank * (k + n) * groups * low.adapter_bytes),
                dtype=low.compute_dtype,
            )
        )

    def _weight_cast(self, part: str, weights: float) -> None:
        """Add autocast's 16-bit copy of an fp32 weight: made once per step, kept for backward."""
        trained = self.lowering.weights_train
        cast = Cost(bytes=Poly(const=6.0 * weights), launches=1)
        back = Cost(bytes=Poly(const=6.0 * weights), launches=1) if trained else NOTHING
        self.ops.append(
            Op(
                (part, "cast weights"),
                "elementwise",
                cast,
                back,
                saved_bytes=Poly(const=2.0 * weights),
                dtype="fp32",
            )
        )

    def _adapter(
        self, part: str, linear: Linear, rank: int, rows: float, groups: int, waiting: float
    ) -> None:
        """Add a LoRA pair: x·A·B scaled and added to the projection's output (LoRA eq. 3).

        The pair computes in the adapter's dtype unless autocast is on: its input is cast
        (and kept) once per projection, and its output, scaling and sum are as wide.
        """
        low = self.lowering
        k, n, w = linear.in_features, linear.out_features, low.adapter_bytes
        c = low.compute_bytes
        inner = low.compute_bytes if low.autocast else w
        cast = w != low.compute_bytes
        saved = Poly(token=rows * rank * inner)
        if low.autocast and w == 4:  # autocast's 16-bit copies of A and B, kept for backward
            saved = saved.plus(Poly(const=2.0 * rank * (k + n) * groups))
        if low.lora_dropout:  # what dropout leaves, and its mask of one byte
            saved = saved.plus(per_token(rows * k * (inner + 1)))
        elif cast and (not low.autocast or not low.quantized):
            saved = saved.plus(per_token(rows * k * inner))
        # a copy as wide as the adapter leaves its input behind, and dropout both
        copied = rows * k * (c + (inner if low.lora_dropout else 0)) if cast else 0.0
        flops = per_token(2.0 * rows * rank * (k + n))
        moved = rows * (k * inner + 2 * rank * inner + n * inner * 3 + n * low.compute_bytes * 2)
        moved += rows * k * (inner + low.compute_bytes) if cast else 0.0
        calls = groups if low.experts == "eager" else 1
        gemms = (Gemm(rows, rank, k, groups), Gemm(rows, n, rank, groups))
        self.ops.append(
            Op(
                path=(part, "adapter"),
                kind="gemm",
                forward=Cost(
                    flops, per_token(moved), (7.0 if cast else 4.0) * calls, ADAPTER_CALLS * calls, gemms
                ),
                backward=Cost(
                    flops.times(2),
                    per_token(2 * moved),
                    (11.0 if cast else 8.0) * calls,
                    ADAPTER_CALLS * calls,
                    gemms * 2,
                ),
                saved_bytes=saved,
                live_forward_bytes=per_token(rows * n * (c + 2 * inner) + copied),
                live_backward_bytes=per_token(rows * (n * c + max(2 * n * inner, k * (inner + c))) + waiting),
                passing_bytes=per_token(
                    rows * (k * (c + (inner if cast else 0)) + n * (c + 2 * inner)) + waiting
                ),
                gradient_bytes=float(rank * (k + n) * groups * w),
                dtype="fp32" if inner == 4 else low.compute_dtype,
            )
        )
