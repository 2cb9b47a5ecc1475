"""The operators of one layer, collected in the order of the forward pass; which of them need no backward.

Sizes in bytes follow the eager implementations of transformers, PEFT [1] and bitsandbytes: an adapter whose
dtype differs from the activations' casts its input, and a 4-bit weight is dequantised once per use: a kernel
of its own reads the packed values and writes the weight, forward and again backward.

AutoGPTQ's plain module, which HF and Qwen fine-tune with, unpacks with PyTorch's: int32 values shifted, cut
to int8, masked, less their zero, times their scale; the product that follows keeps the result for backward,
so that nothing is unpacked there (qlinear_cuda_old.py of 0.4, read 2026-11-21). For products in fp8
TransformerEngine reads 16 bit and writes each value twice, once for the transposed product: the input and the
weights forward, the gradient of the result backward.

With frozen embeddings the first adapters have inputs that need no gradient. Autograd then
keeps nothing for the operators before them, and takes no gradient to the input of the
projections beside them. Checkpointing undoes this: its layers' inputs are made to need
gradients, or nothing in them would get one.

[1] Hu et al. 2021, arXiv:2106.09685 (LoRA); Dettmers et al. 2023, arXiv:2305.14314 (QLoRA)
"""

from collections.abc import Iterable, Sequence

from finegauge.errors import UnsupportedError
from finegauge.model.blocks import Architecture, Layer, Linear, Norm
from finegauge.model.lowering import QUANTIZED_BYTES, STORED, Lowering
from finegauge.model.op import NOTHING, ZERO, Cost, Gemm, Op, Poly, per_token
from finegauge.profile import Path

ADAPTER_CALLS = 2.0  # module calls of an adapter pair: A and B
RMS_FORWARD_BYTES = 36.0  # to fp32, pow, mean, rsqrt, mul, to bf16, mul: per channel, 16-bit activations
RMS_BACKWARD_BYTES = 60.0
RMS_LIVE_BYTES = 20.0  # five fp32 values: two ways to the input, and the square's gradient in three steps
# How often a cast reads a value, and the bytes that it writes: the value for the product, and once more for
# the product over its other dimension, each with its scales. Scales of a whole tensor take a pass over it
# before the cast, unless they are those of the steps before (delayed); of a row, both for each dimension;
# of a block, none. NVFP4 has both: a scale of the tensor, and of every 16 values.
NARROW_CASTS = {
    "delayed": (1.0, 2.0),
    "tensorwise": (2.0, 2.0),
    "rowwise": (4.0, 2.0),
    "blockwise": (1.0, 2.0 * (1.0 + 4.0 / 128)),
    "mxfp8": (1.0, 2.0 * (1.0 + 1.0 / 32)),
    "nvfp4": (2.0, 2.0 * (0.5 + 1.0 / 16)),
    "mxfp4": (1.0, 2.0 * (0.5 + 1.0 / 32)),
}
NARROW_DTYPES = {
    **dict.fromkeys(("delayed", "tensorwise", "rowwise"), "fp8"),
    **{"blockwise": "fp8_block", "mxfp8": "mxfp8", "nvfp4": "nvfp4", "mxfp4": "mxfp4"},
}
CASTS, EXPERTS_CASTS = "fp8 casts", "fp8 casts of experts"
UNPACKED_BYTES = 16.5  # per weight: shifted 4.5, to int8 5, masked 2, less the zero 2, times the scale 3
UNPACKING_KERNELS = 9.0


class OpBuilder:
    """The operators of one layer, in forward order."""

    def __init__(self, lowering: Lowering, *, reached: bool = True, ops: list[Op] | None = None) -> None:
        """Start with no operators, or go on with `ops`; `reached`: the layer's input needs gradients."""
        self.lowering = lowering
        self.reached = reached
        self.ops: list[Op] = [] if ops is None else ops
        self.entry_kept = 0.0  # bytes per token of the branch's input that a projection keeps already

    def kept_entry(self, width: float, *linears: Linear, part: str, kind: str = "linear") -> float:
        """Return what `linears` make autograd keep of the branch's input beyond what is kept already."""
        kept = self.lowering.kept_input(width, *linears, part=part, kind=kind)
        if self.lowering.activation_bytes > self.lowering.compute_bytes:
            return kept  # every cast is a copy of its own
        new = max(0.0, kept - self.entry_kept)
        self.entry_kept += new
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
        alive: tuple[float, float, float] = (0.0, 0.0, 0.0),
        gradient: float = 0.0,
        kind: str = "elementwise",
    ) -> None:
        """Add a memory-bound operator; all amounts but `gradient` are bytes per token.

        `alive`: only at the worst moment of its forward, its backward, and a forward that keeps nothing.
        """
        back = 2 * forward_bytes if backward_bytes is None else backward_bytes
        self.ops.append(
            Op(
                path=path,
                kind=kind,
                forward=Cost(bytes=Poly(token=forward_bytes), launches=launches),
                backward=Cost(
                    bytes=Poly(token=back),
                    launches=2 * launches if backward_launches is None else backward_launches,
                ),
                saved_bytes=saved if isinstance(saved, Poly) else Poly(token=saved),
                live_forward_bytes=Poly(token=alive[0]),
                live_backward_bytes=Poly(token=alive[1]),
                passing_bytes=Poly(token=alive[2]),
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
        beside: float = 0.0,
    ) -> None:
        """Add a normalisation of `repeats` vectors of `norm.size` channels per token; of None, nothing.

        RMSNorm in eager transformers is eight kernels and keeps the fp32 input, the inverse deviation and, if
        its weight trains, the normalised value that the weight multiplies (as wide as the input; fp32 under
        wide norms); LayerNorm and fused RMSNorm are one kernel and keep their input, unless another norm of
        the same keeps it. A LayerNorm written out in fp32 keeps the centred input twice. Some norms keep the
        copy of the weight that they multiply by.

        Args:
            norm: The norm, or None.
            part: First name of the path.
            repeats: Vectors per token (heads).
            keeps_input: No other norm keeps the same input.
            inside: Its input is what a projection returned, not the residual stream.
            beside: Bytes per token that are alive meanwhile, its input if nothing else keeps that.
        """
        if norm is None:
            return
        low, n, layer = self.lowering, float(norm.size * repeats), norm.kind == "layer"
        a = low.compute_bytes if inside else low.stream_bytes if part == "head" else low.activation_bytes
        written = low.numerics.written_layer_norms and layer
        trains = low.norms_train and norm.weight
        fused, kept, copy = (layer or low.fused_kernels) and not written, 0.0, 0.0
        if fused:
            read = 4.0 if layer and self.widens(inside=inside) else a
            saved = (read * n if keeps_input else 0.0) + 4.0 * repeats * (2 if layer else 1)
            forward, backward, launches = 2 * a * n, 3 * a * n, 1.0
            live, back, passing, itself = a * n, 2 * a * n, a * n, True
        else:
            kept = (4.0 if written or low.numerics.wide_norms else a) * n if trains else 0.0
            saved = (8.0 if written else 4.0) * n + kept + 4.0 * repeats
            forward, backward, launches = RMS_FORWARD_BYTES * n * a / 2, RMS_BACKWARD_BYTES * n * a / 2, 8.0
            live = (4 + 2 * a) * n - min(kept, a * n)  # the wide product, its narrow copy, the output
            back, passing, itself = RMS_LIVE_BYTES * n - kept, 8 * n, a == 4
        copies = (written and low.weight_bytes < 4) or (low.numerics.unit_norms and not written)
        if norm.weight and copies:
            copy = float(norm.size * max(1, norm.heads)) * (low.weight_bytes if fused and layer else 4.0)
        if not self.reached and trains:  # its weight is the first that trains
            saved, copy = (saved, copy) if fused else (kept, 0.0)
            self.reached = True
        gradient = 0.0
        for tensor in norm.tensors() if low.norms_train else ():
            gradient += tensor.size * low.weight_bytes
        self.elementwise(
            (part, "norm"),
            forward,
            backward,
            launches=launches,
            backward_launches=1.6 * launches,
            saved=Poly(const=copy, token=saved),
            alive=(live + beside, back, passing + beside),
            gradient=gradient,
            kind="norm",
        )
        self.ops[-1] = self.ops[-1]._replace(keeps_input=itself and keeps_input)

    def widens(self, *, inside: bool) -> bool:
        """Return whether a LayerNorm reads an fp32 copy: its own doing, or autocast's."""
        low = self.lowering
        narrow = inside or low.activation_bytes == low.compute_bytes
        return low.numerics.wide_layer_norms or (low.autocast and narrow)

    def residual(self, part: str, hidden_size: int) -> None:
        """Add the residual addition; its backward adds the gradients of both ways.

        Where the branch's output passes dropout first, the mask is kept, a byte per value; in Megatron the
        addition reads and writes for it.
        """
        low = self.lowering
        if part in low.numerics.dropout:
            h, c = float(hidden_size), float(low.compute_bytes * hidden_size)
            moved, alone = (h, 0.0) if low.megatron else (2 * c + h, 1.0)
            path = (part, "dropout")
            self.elementwise(path, moved, 2 * c + h, saved=h, launches=alone, backward_launches=1)
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

        Each token has `rows` rows, shared by `groups` weights (experts see top_k rows in all groups
        together). `keeps` is bytes per token that this projection makes autograd keep (see `kept_input`),
        `first_use` that no projection before it reads the same input; `beside` is channels that projections
        before it return for the same step: alive meanwhile, and backward their gradients are.
        """
        low, k, n = self.lowering, linear.in_features, linear.out_features
        weights, c = float(k * n * groups), low.compute_bytes
        quantized, folds = low.quantizes(kind), low.folds(linear, kind, part)
        if quantized:
            if not (low.repacks or low.stored):  # else the product reads narrow values itself
                self._dequantise(part, weights, groups)
        elif low.autocast and low.weight_bytes == 4 and not folds:  # a copy made once per step, and kept
            cast = Cost(bytes=Poly(const=6.0 * weights), launches=1)
            back, copy = cast if low.weights_train else NOTHING, Poly(const=2.0 * weights)
            self.ops.append(
                Op((part, "cast weights"), "elementwise", cast, back, saved_bytes=copy, dtype="fp32")
            )
        if low.narrows(kind):
            reads, written = NARROW_CASTS[low.narrow]
            value = reads * c + written
            # TransformerEngine's norms and activations write their result narrow, in one kernel; its weights
            # are cast once per step, which is neglected
            alone = 0.0 if low.megatron and keeps else value * rows * k * first_use
            own = low.casts_weights and not low.megatron
            read = Poly(const=value * weights * own, token=alone)
            forward = Cost(bytes=read, launches=2)
            back = Cost(bytes=per_token(value * rows * n), launches=1)
            name = EXPERTS_CASTS if kind == "experts" else CASTS
            self.ops.append(Op((part, name), "elementwise", forward, back, dtype=low.compute_dtype))
        waiting = rows * beside * c
        product = self._product(part, linear, rows, groups, kind, keeps, waiting)
        if first_use and low.stash_survives and quantized:
            product = product._replace(stash_bytes=per_token(rows * k * c))
        self.ops.append(product)
        if quantized and low.returned_bytes > c:  # Linear4bit: narrow, widen again
            moved = rows * (k + n) * (low.returned_bytes + c)
            self.elementwise((part, "cast"), moved, moved, launches=2)
        if rank := low.rank(linear, kind, part):
            if folds:
                self._folded_adapter(part, linear, rank, groups)
            else:
                self._adapter(part, linear, rows, groups, waiting, keeps)

    def _dequantise(self, part: str, weights: float, groups: int) -> None:
        low, path = self.lowering, (part, "dequantise")
        if low.unpacks_in_torch:
            forward = Cost(bytes=Poly(const=weights * UNPACKED_BYTES), launches=UNPACKING_KERNELS * groups)
            backward = NOTHING
        else:
            moved = weights * (QUANTIZED_BYTES[low.quantized] + low.compute_bytes)
            kernels = (3.0 if low.quantized == "nf4_dq" else 2.0) * (groups if low.experts == "eager" else 1)
            forward = backward = Cost(bytes=Poly(const=moved), launches=kernels)
        self.ops.append(Op(path, "dequantise", forward, backward, dtype=low.compute_dtype))

    def _product(
        self, part: str, linear: Linear, rows: float, groups: int, kind: str, keeps: float, waiting: float
    ) -> Op:
        """Return the product of a projection itself; `waiting` bytes per token are alive meanwhile.

        Under autocast the gradient of its weight is there in 16 bit first. In a loop over fused experts it
        is that of one expert's slice first, then as large as all.
        """
        low = self.lowering
        k, n, c = linear.in_features, linear.out_features, low.compute_bytes
        weights = float(k * n * groups)
        gemm, flops = Gemm(rows, n, k, groups), per_token(2.0 * rows * k * n)
        folds, quantized = low.folds(linear, kind, part), low.quantizes(kind)
        read = QUANTIZED_BYTES[low.stored] if low.stored and quantized else c
        moved = Poly(const=weights * read, token=rows * (k + n) * c)
        unpacked = quantized and low.unpacks_in_torch  # then, and folded, it is a copy that is kept
        copy = weights * c if folds or unpacked else 0.0
        passes = 2 if low.weights_train or folds else 1  # a folded weight has a gradient of its own
        looped = kind == "experts" and low.experts == "eager"
        launches = float(groups) if looped else 1.0
        calls = launches if quantized and not low.stored else 0.0
        frees = quantized and not (unpacked or low.repacks or low.stored)
        buffer = weights / launches * c * (2 if low.litgpt else 1) if frees else 0.0
        trained = made = 0.0
        if low.weights_train:
            trained = (weights + (n * groups if linear.bias else 0)) * low.weight_bytes
            made = weights * c if low.autocast and low.weight_bytes > c else 0.0
            made += trained * (1 + 1 / groups) if looped and low.fused_experts else 0.0
        around = rows * (k + n) * c + waiting
        # the gradient of an expert's slice of one tensor: zeros as large as all, added to those before it
        slices = (4.0 * groups - 3.0) * trained if looped and low.fused_experts else 0.0
        back_moved = moved.times(passes).plus(Poly(const=slices))
        back = Cost(flops.times(passes), back_moved, launches * passes, calls, (gemm,) * passes)
        return Op(
            path=(part, linear.name),
            kind="grouped_gemm" if groups > 1 else "gemm",
            forward=Cost(flops, moved, launches, calls, (gemm,)),
            backward=back,
            saved_bytes=Poly(const=copy, token=keeps),
            live_forward_bytes=Poly(const=buffer, token=rows * n * c + (0.0 if keeps else rows * k * c)),
            live_backward_bytes=Poly(const=buffer + made, token=around),
            passing_bytes=Poly(const=buffer, token=around),
            gradient_bytes=trained,
            keeps_input=0 < keeps <= k * c and low.activation_bytes == c,
            dtype=_computes_in(low, kind),
            reads_4bit=quantized and low.repacks,
        )

    def _folded_adapter(self, part: str, linear: Linear, rank: int, groups: int) -> None:
        """Add PEFT's adapters of bare parameters: W + B·A of all experts, kept and differentiated whole.

        The product is made once for a router; with the sum, for experts, when the
        parametrisation is registered and again when it is used.
        """
        low, k, n = self.lowering, linear.in_features, linear.out_features
        weights = float(k * n * groups)
        copy = weights * low.compute_bytes
        casts = rank * (k + n) * groups * low.compute_bytes if low.adapter_bytes != low.compute_bytes else 0
        cost = Cost(Poly(const=4.0 * rank * weights), Poly(const=4.0 * copy), 2.0, ADAPTER_CALLS)
        self.ops.append(
            Op(
                path=(part, "adapter"),
                kind="gemm",
                forward=cost._replace(flops=cost.flops.times(1.0 if groups > 1 else 0.5)),
                backward=cost,
                saved_bytes=Poly(const=casts),
                live_backward_bytes=Poly(const=copy),
                passing_bytes=Poly(const=copy),
                gradient_bytes=float(rank * (k + n) * groups * low.adapter_bytes),
                dtype=low.compute_dtype,
            )
        )

    def _adapter(
        self, part: str, linear: Linear, rows: float, groups: int, waiting: float, keeps: float
    ) -> None:
        """Add an adapter; LoRA's is x·A·B, scaled and added to the projection's output (LoRA eq. 3).

        It computes in the adapter's dtype unless autocast is on: its input is cast
        (and kept) once per projection, and its output, scaling and sum are as wide.
        """
        low, form = self.lowering, self.lowering.form(linear, part)
        k, n, w, c = linear.in_features, linear.out_features, low.adapter_bytes, low.compute_bytes
        inner, cast = c if low.autocast else w, w != c
        # autocast's 16-bit copies of A and B, kept for backward
        const = 2.0 * form.num_multiplied * groups if low.autocast and w == 4 else 0.0
        const, token = const + form.made_values * groups * inner, rows * form.kept_values * inner
        if low.lora_dropout:  # what dropout leaves, and its mask of one byte
            token += rows * k * (inner * form.reads_input + 1)
        elif cast and not (low.autocast and low.quantized):
            token += rows * k * inner * form.reads_input
        # a copy as wide as the adapter leaves its input behind, and dropout both
        widened = cast and low.autocast and not low.quantized  # and is held beside its narrow copy
        copied = rows * k * (c + (inner if low.lora_dropout else 0) + (w if widened else 0)) if cast else 0.0
        # the projection's gradient of the input is added to this, not in its place, which a view of rows has
        views = groups == 1 and not (cast or low.lora_dropout or keeps)
        summed = 3.0 * k * c * (views and bool(form.products))
        wide, made = form.wide_rows * n, form.making_values * groups * w
        unmade = form.unmaking_values * groups * w
        flops = Poly(const=form.made_flops * groups, token=rows * form.flops)
        made_back = 0.0 if form.detached else 2.0 * form.made_flops * groups
        back_flops = Poly(const=made_back, token=rows * form.back_flops)
        moved = rows * (k * inner + 2 * form.kept_values * inner + n * inner * 3 + n * c * 2)
        moved += rows * k * (inner + c) if cast else 0.0
        written = Poly(const=2.0 * (form.made_values + form.making_values) * groups * w, token=moved)
        calls = groups if low.experts == "eager" else 1
        kernels, python = form.kernel_launches + (3.0 if cast else 0.0), ADAPTER_CALLS * calls
        gemms = tuple([Gemm(rows, out, inside, groups) for out, inside in form.products])
        passing = rows * (k * (c + (inner if cast else 0)) + n * c + wide * inner) + waiting
        if widened:  # the wide copy with the narrow one, or with what the pair returns and its multiple
            passing = rows * (k * (c + w) + n * c + max(k, wide) * inner) + waiting
        self.ops.append(
            Op(
                path=(part, "adapter"),
                kind="gemm",
                forward=Cost(flops, written, kernels * calls, python, gemms),
                backward=Cost(
                    back_flops, written.times(2), (kernels + form.kernel_launches) * calls, python, gemms * 2
                ),
                saved_bytes=Poly(const=const, token=token),
                live_forward_bytes=Poly(const=made, token=rows * (n * c + wide * inner) + copied),
                live_backward_bytes=Poly(
                    const=unmade,
                    token=rows * max(n * c + max(wide * inner, k * (inner + c)), summed) + waiting,
                ),
                passing_bytes=Poly(const=made + form.made_values * groups * w, token=passing),
                gradient_bytes=float(form.num_trained * groups * w),
                dtype="fp32" if inner == 4 else low.compute_dtype,
                drops_input=low.lora_dropout,
            )
        )


def _computes_in(low: Lowering, kind: str) -> str:
    if low.narrows(kind):
        return NARROW_DTYPES[low.narrow]
    return (STORED.get(low.stored) if low.quantizes(kind) else "") or low.compute_dtype


PROJECTIONS = frozenset({"gemm", "grouped_gemm", "dequantise"})


def cut_below(ops: list[Op], *, dropout: bool) -> list[Op]:
    """Return the operators of a branch whose input needs no gradient.

    The first adapter and the projections beside it, which read the same input, are
    neighbours; what comes after them needs all gradients. `dropout`: adapters drop inputs.
    """
    adapted = [index for index, op in enumerate(ops) if is_adapter(op)]
    if not adapted:
        return [unreached(op) for op in ops]
    start = end = adapted[0]
    while start > 0 and _is_projection(ops[start - 1]):
        start -= 1
    while end < len(ops) and _is_projection(ops[end]):
        end += 1
    beside = [
        _first(op, dropout=dropout) if is_adapter(op) else weighed(op) if _is_folded(after) else _frozen(op)
        for op, after in zip(ops[start:end], [*ops[start + 1 : end], None], strict=True)
    ]
    return [unreached(op) for op in ops[:start]] + beside + ops[end:]


def is_passive(ops: Iterable[Op]) -> bool:
    """Return whether no gradient comes to a layer of these operators: nothing in or before it trains."""
    return all(op.backward == NOTHING for op in ops)


def last_layers(model: Architecture, count: int) -> list[tuple[Layer, int]]:
    """Return the last `count` layers of a model, equal ones together.

    Raises: UnsupportedError where the order of the last layers is not known: kinds alternate.
    """
    found: list[tuple[Layer, int]] = []
    if sum(layer == model.layers[-1][0] for layer, _ in model.layers) > 1:
        raise UnsupportedError(
            f"method=freeze is not predicted for {model.model_type}, whose kinds of layers alternate; "
            f"full and lora are."
        )
    for layer, number in reversed(model.layers):
        taken = min(number, count)
        count -= taken
        if taken:
            found.insert(0, (layer, taken))
    return found


def lending(model: Architecture, layers: Sequence[tuple[Op, ...]]) -> tuple[list[tuple[Op, ...]], float]:
    """Return `layers` without the gradients of weights that several share, and the bytes of these.

    The last layer makes them, the others add theirs: they are there from the head on, which counts them.
    """
    lent = {branch.mixer.path for layer, _ in model.layers for branch in layer.branches[: layer.borrowed]}
    if not lent:
        return list(layers), 0.0
    holders = sum([count for layer, count in model.layers if layer.nested and not layer.borrowed])
    shared = max([sum([op.gradient_bytes for op in ops if op.path[0] in lent]) for ops in layers])
    return [
        tuple([_lent(op) if op.path[0] in lent else op for op in ops]) for ops in layers
    ], holders * shared


def _lent(op: Op) -> Op:
    made = op.live_backward_bytes.plus(Poly(const=op.gradient_bytes))
    return op._replace(gradient_bytes=0.0, live_backward_bytes=made)


def is_adapter(op: Op) -> bool:
    """Return whether `op` is an adapter."""
    return op.path[-1] == "adapter"


def _is_folded(op: Op | None) -> bool:  # an adapter that is added to the weight of the product before it
    return op is not None and is_adapter(op) and not op.backward.gemms


def _is_projection(op: Op) -> bool:  # or its adapter, or a cast of its weight
    return op.kind in PROJECTIONS or op.path[-1] == "cast weights"


def unreached(op: Op) -> Op:
    """Return `op` without a backward."""
    return _frozen(op)._replace(saved_bytes=ZERO)


def _frozen(op: Op) -> Op:
    """Return a frozen projection that passes no gradient on; the input it notes is the adapters'."""
    saved = ZERO if op.path[-1] == "cast weights" else op.saved_bytes
    return op._replace(backward=NOTHING, saved_bytes=saved, live_backward_bytes=ZERO)


def weighed(op: Op) -> Op:
    """Return a projection that takes the gradient of its weight alone, for which it keeps no weight."""
    backward = op.backward._replace(flops=op.forward.flops, gemms=op.forward.gemms)
    return op._replace(backward=backward, saved_bytes=op.saved_bytes._replace(const=0.0))


def _first(op: Op, *, dropout: bool) -> Op:
    """Return an adapter whose input needs no gradient.

    Of the four products of its backward three remain, and no mask of its dropout is kept.
    """
    if len(op.backward.gemms) < 2:  # folded into the weight: there is no input
        return op
    down, *others = op.backward.gemms
    width = down.rows_per_token * down.k
    flops = op.backward.flops._replace(token=op.backward.flops.token - 2.0 * width * down.n)
    up = others[0]
    saved = Poly(  # autocast's copies of the pair's weights: of the first none is needed
        const=op.saved_bytes.const * up.n / (up.n + down.k),
        token=op.saved_bytes.token - (width if dropout else 0.0),
    )
    backward = op.backward._replace(flops=flops, gemms=tuple(others))
    return op._replace(backward=backward, saved_bytes=saved)
