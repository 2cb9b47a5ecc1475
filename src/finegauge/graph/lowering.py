"""How one method, precision and software stack turns a block into operators.

`Lowering` answers the questions that every block asks (does this weight train? is it
quantised? what does its adapter copy?) and `Tape` collects the operators of one layer in
the order in which the forward pass runs them.

Sizes in bytes follow the eager implementations of transformers, PEFT [1] and
bitsandbytes: an adapter whose dtype differs from the activations' casts its input, a
4-bit weight is dequantised once per use, and bitsandbytes before 0.43.2 stashed the input
of every 4-bit linear on the autograd context, where non-reentrant checkpointing cannot
discard it [2].

[1] Hu et al. 2021, arXiv:2106.09685 (LoRA); Dettmers et al. 2023, arXiv:2305.14314 (QLoRA)
[2] bitsandbytes release notes, 0.43.2
"""

from typing import NamedTuple

from finegauge.graph.blocks import Linear, Norm
from finegauge.graph.op import NOTHING, Cost, Gemm, Op, Poly, per_token
from finegauge.profile import Path

ADAPTER_CALLS = 2.0  # module calls of an adapter pair: A and B
# Per parameter: NF4 in blocks of 64 with a 32-bit scale, whose scales double quantisation takes down to 8 bit
# (section 3 of the second paper in [1]); GPTQ in groups of 128.
QUANTIZED_BYTES = {
    "nf4": (4 + 32 / 64) / 8,
    "nf4_dq": (4 + 8 / 64 + 32 / (64 * 256)) / 8,
    "gptq4": (4 + 16 / 128 + 4 / 128) / 8,
    "gptq8": (8 + 16 / 128 + 8 / 128) / 8,
    "int8": 1.0,
    "fp8": 1.0,
}
# What users call the projections of an expert, Mixtral's way or Llama's, by what they are called here;
# PEFT rewrites these names where transformers 5 fuses the experts.
EXPERT_NAMES = {
    "w1": ("gate_proj",),
    "w3": ("up_proj",),
    "w2": ("down_proj",),
    "gate_up_proj": ("w1", "w3", "gate_proj", "up_proj"),
    "down_proj": ("w2",),
}
RMS_FORWARD_BYTES = 36.0  # to fp32, pow, mean, rsqrt, mul, to bf16, mul: per channel, 16-bit activations
RMS_BACKWARD_BYTES = 60.0


class Lowering(NamedTuple):
    """The choices of a run that decide which operators a block becomes."""

    activation_bytes: int  # per element of the residual stream
    compute_bytes: int  # per element inside the layers (autocast computes in 16 bit)
    compute_dtype: str
    weight_bytes: int  # per element of an unquantised frozen or trained weight
    autocast: bool
    weights_train: bool
    norms_train: bool
    lora_rank: int
    lora_targets: tuple[str, ...]
    lora_dropout: bool
    adapter_bytes: int
    quantized: str  # "" or the format of the quantised linears
    experts_quantized: bool
    stashes_inputs: bool  # 4-bit linears keep their input whatever trains
    stash_survives: bool  # ... and checkpointing cannot discard it
    attention: str
    experts: str
    fused_kernels: bool
    loss: str
    logits_held: bool  # the 16-bit logits live until the loss is done
    narrow_loss: bool  # the loss is computed in 16 bit
    ssm_kernels: str
    wide_norms: bool  # an RMS norm multiplies by its weight in fp32 (Gemma, OLMo-2)
    wide_router: bool  # the router computes in fp32 (DeepSeek)
    repeats_keys: bool  # keys and values are copied for every query head that shares them

    def rank(self, linear: Linear, kind: str, part: str) -> int:
        """Return the LoRA rank of `linear` in the block called `part`, 0 without an adapter.

        PEFT gives the gate and up of fused experts, one tensor, the ranks of both.
        """
        if not self.lora_rank or not any(
            self._means(target, linear, kind, part) for target in self.lora_targets
        ):
            return 0
        both = kind == "experts" and linear.name == "gate_up_proj"
        return self.lora_rank * (2 if both else 1)

    @staticmethod
    def _means(target: str, linear: Linear, kind: str, part: str) -> bool:
        """Return whether a LoRA target, as the user wrote it, means this projection."""
        if target == "all-linear" and kind in ("linear", "experts", "router"):
            return True
        if target == "attention" and part == "attention":
            return True
        name, asked = linear.name.rsplit(".", 1)[-1], target.rsplit(".", 1)[-1]
        return asked == name or (kind == "experts" and asked in EXPERT_NAMES.get(name, ()))

    def folds(self, linear: Linear, kind: str, part: str) -> bool:
        """Return whether an adapter is added to its weight before the product.

        So it is for what transformers 5 holds as a parameter, not a module: fused experts
        and their router.
        """
        held_bare = kind in ("experts", "router") and self.experts != "eager"
        return held_bare and self.rank(linear, kind, part) > 0

    def quantizes(self, kind: str) -> bool:
        """Return whether a projection of this kind is held quantised."""
        if not self.quantized:
            return False
        return self.experts_quantized if kind == "experts" else kind == "linear"

    def kept_input(self, width: float, *linears: Linear, part: str, kind: str = "linear") -> float:
        """Return the bytes that autograd keeps of an input of `width` that all `linears` share.

        A trained weight keeps its input; so does an adapter in the same dtype without
        dropout, and an old 4-bit linear. A frozen one keeps nothing. Where autocast
        narrows an fp32 residual stream, each projection keeps a copy of its own.
        """
        shared_adapter = not self.lora_dropout and (
            self.adapter_bytes == self.compute_bytes or (self.autocast and bool(self.quantized))
        )
        stashes = self.stashes_inputs and self.quantizes(kind)
        keepers = [
            linear
            for linear in linears
            if self.weights_train
            or stashes
            or self.folds(linear, kind, part)
            or (shared_adapter and self.rank(linear, kind, part))
        ]
        copies = len(keepers) if self.activation_bytes > self.compute_bytes else min(1, len(keepers))
        return copies * width * self.compute_bytes


class Tape:
    """The operators of one layer, in forward order."""

    def __init__(self, lowering: Lowering) -> None:
        """Start with no operators."""
        self.lowering = lowering
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
        live_backward: float = 0.0,
        kind: str = "elementwise",
        flops: float = 0.0,
    ) -> None:
        """Add a memory-bound operator; all amounts are bytes per token."""
        self.ops.append(
            Op(
                path=path,
                kind=kind,
                forward=Cost(flops=per_token(flops), bytes=per_token(forward_bytes), launches=launches),
                backward=Cost(
                    flops=per_token(2 * flops),
                    bytes=per_token(2 * forward_bytes if backward_bytes is None else backward_bytes),
                    launches=2 * launches if backward_launches is None else backward_launches,
                ),
                saved_bytes=saved if isinstance(saved, Poly) else per_token(saved),
                live_backward_bytes=per_token(live_backward),
                dtype=self.lowering.compute_dtype,
            )
        )

    def norm(self, norm: Norm | None, part: str, *, repeats: int = 1, keeps_input: bool = True) -> None:
        """Add a normalisation of `repeats` vectors of `norm.size` channels per token.

        RMSNorm in eager transformers is eight kernels and keeps the fp32 input, the
        inverse deviation and, if its weight trains, the normalised value that the weight
        multiplies (16-bit; fp32 under `wide_norms`); LayerNorm and fused RMSNorm are one
        kernel and keep their input, unless another norm of the same keeps it.
        """
        if norm is None:
            return
        low, n = self.lowering, float(norm.size * repeats)
        a = low.activation_bytes
        fused = norm.kind == "layer" or low.fused_kernels
        if fused:
            saved = (a * n if keeps_input else 0.0) + 4.0 * repeats * (2 if norm.kind == "layer" else 1)
            forward, backward, launches = 2 * a * n, 3 * a * n, 1.0
        else:
            kept = (4.0 if low.wide_norms else a) * n if low.norms_train and norm.weight else 0.0
            saved = 4.0 * n + kept + 4.0 * repeats
            scale = a / 2
            forward, backward, launches = RMS_FORWARD_BYTES * n * scale, RMS_BACKWARD_BYTES * n * scale, 8.0
        self.elementwise(
            (part, "norm"),
            forward,
            backward,
            launches=launches,
            backward_launches=1.6 * launches,
            saved=saved,
            live_backward=4.0 * n,
            kind="norm",
        )

    def residual(self, part: str, hidden_size: int) -> None:
        """Add the residual addition; its backward adds the gradients of both ways."""
        a = self.lowering.activation_bytes * hidden_size
        self.elementwise((part, "residual"), 3 * a, 3 * a, launches=1, backward_launches=1)

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
        """
        low = self.lowering
        k, n = linear.in_features, linear.out_features
        weights = float(k * n * groups)
        if low.quantizes(kind):
            self._dequantise(part, weights, groups)
        c = low.compute_bytes
        gemm = Gemm(rows, n, k, groups)
        flops = per_token(2.0 * rows * k * n)
        moved = Poly(const=weights * c, token=rows * (k + n) * c)
        folds = low.folds(linear, kind, part)
        passes = 2 if low.weights_train or folds else 1  # a folded weight has a gradient of its own
        stash = rows * k * c if first_use and low.stash_survives and low.quantizes(kind) else 0.0
        launches = float(groups) if kind == "experts" and low.experts == "eager" else 1.0
        buffer = weights / launches * c if low.quantizes(kind) else 0.0
        calls = launches * (1.0 if low.quantizes(kind) else 0.0)
        self.ops.append(
            Op(
                path=(part, linear.name),
                kind="grouped_gemm" if groups > 1 else "gemm",
                forward=Cost(flops, moved, launches, calls, (gemm,)),
                backward=Cost(
                    flops.times(passes), moved.times(passes), launches * passes, calls, (gemm,) * passes
                ),
                saved_bytes=per_token(keeps),
                stash_bytes=per_token(stash),
                live_forward_bytes=Poly(const=buffer, token=rows * n * c),
                live_backward_bytes=Poly(const=buffer, token=rows * (k + n) * c),
                dtype=low.compute_dtype,
            )
        )
        if low.autocast and low.weight_bytes == 4 and not low.quantizes(kind):
            self._weight_cast(part, weights)
        if folds:
            self._folded_adapter(part, linear, low.rank(linear, kind, part), groups)
        elif rank := low.rank(linear, kind, part):
            self._adapter(part, linear, rank, rows, groups)

    def _folded_adapter(self, part: str, linear: Linear, rank: int, groups: int) -> None:
        """Add PEFT's adapters of bare parameters: W + B·A of all experts, kept and differentiated whole.

        The sum is made when the parametrisation is registered and again when it is used.
        """
        low = self.lowering
        k, n = linear.in_features, linear.out_features
        weights = float(k * n * groups)
        copy = weights * low.compute_bytes
        casts = rank * (k + n) * groups * low.compute_bytes if low.adapter_bytes != low.compute_bytes else 0
        cost = Cost(Poly(const=4.0 * rank * weights), Poly(const=4.0 * copy), 2.0, ADAPTER_CALLS)
        self.ops.append(
            Op(
                path=(part, "adapter"),
                kind="gemm",
                forward=cost,
                backward=cost,
                saved_bytes=Poly(const=copy + casts),
                live_backward_bytes=Poly(const=copy),
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

    def _dequantise(self, part: str, weights: float, groups: int) -> None:
        """Add the dequantisation of a frozen weight, paid forward and backward."""
        low = self.lowering
        read = QUANTIZED_BYTES[low.quantized]
        each = groups if low.experts == "eager" else 1
        kernels = (3.0 if low.quantized == "nf4_dq" else 2.0) * each
        cost = Cost(bytes=Poly(const=weights * (read + low.compute_bytes)), launches=kernels)
        self.ops.append(Op((part, "dequantise"), "dequantise", cost, cost, dtype=low.compute_dtype))

    def _adapter(self, part: str, linear: Linear, rank: int, rows: float, groups: int) -> None:
        """Add a LoRA pair: x·A·B scaled and added to the projection's output (LoRA eq. 3).

        The pair computes in the adapter's dtype unless autocast is on: its input is cast
        (and kept) once per projection, and its output, scaling and sum are as wide.
        """
        low = self.lowering
        k, n, w = linear.in_features, linear.out_features, low.adapter_bytes
        inner = low.compute_bytes if low.autocast else w
        cast = w != low.compute_bytes
        saved = Poly(token=rows * rank * inner)
        if low.autocast and w == 4:  # autocast's 16-bit copies of A and B, kept for backward
            saved = saved.plus(Poly(const=2.0 * rank * (k + n) * groups))
        if low.lora_dropout:  # what dropout leaves, and its mask of one byte
            saved = saved.plus(per_token(rows * k * (inner + 1)))
        elif cast and (not low.autocast or not low.quantized):
            saved = saved.plus(per_token(rows * k * inner))
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
                live_forward_bytes=per_token(2 * rows * n * inner),
                live_backward_bytes=per_token(rows * (n + k) * inner),
                dtype="fp32" if inner == 4 else low.compute_dtype,
            )
        )
