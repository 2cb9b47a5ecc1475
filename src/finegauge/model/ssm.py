"""Operators of mixers with a state: Mamba-1, Mamba-2, linear attention, by fused kernels or in PyTorch.

Mamba-1's fused kernel keeps the two halves of its input projection, the scan's output, its
low-rank inputs and a state every 2,048 tokens (one per sequence is counted), and
recomputes convolution and step sizes in backward [1]; the scan is memory-bound, about
9·T·d_inner·d_state FLOPs. Mamba-2 works in chunks of Q tokens, mostly matrix products:
Q·(d_state + head_dim) per token and head inside a chunk, halved by causality, and
2·d_state·head_dim between chunks [2].

Without the kernels transformers computes the same in PyTorch. Mamba-1 then keeps the state
of every token; its FLOPs are those of its matrix products, the rest is memory traffic.
Mamba-2 keeps every operand of its products in fp32. Chunks are taken to divide the sequence.

Linear attention by the gated delta rule (Qwen3-Next, Qwen3.5): every head keeps a matrix of key_head_dim x
value_head_dim, corrected and decayed token by token [3] and computed in chunks of Q = 64 tokens. The kernel
of flash-linear-attention keeps normalised queries and keys, the values, the decay and one Q x Q matrix per
chunk; transformers' own PyTorch code keeps every operand in fp32, and the state at each chunk. Kimi's delta
attention (arXiv:2510.26692) decays every channel of the keys by a number of its own, which low-rank
projections make, and keeps two such matrices.

RG-LRU of RecurrentGemma (arXiv:2402.19427) walks through the tokens one by one, lightning attention of
MiniMax (arXiv:2401.04658) through blocks of them; transformers writes both out in PyTorch. Neglected: that
their launches grow with the sequence.

[1] Gu and Dao 2023, arXiv:2312.00752   [2] Dao and Gu 2024, arXiv:2405.21060
[3] Yang et al. 2024, arXiv:2412.06464
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from finegauge.model.blocks import Chain, Linear, Norm, ShortConvolution, Tensor
from finegauge.model.op import Cost, Op, Poly, per_token
from finegauge.model.op_builder import OpBuilder, cut_below, is_adapter

SCAN_FLOPS = 9.0
SCAN_BACKWARD_RATIO = 2.5
SLOW_SCAN_LAUNCHES = 270.0  # of the loop over tokens; it grows with the sequence, this is its floor
FUSED_CHUNK_LAUNCHES, SLOW_CHUNK_LAUNCHES = 5.0, 60.0


class Mamba1(NamedTuple):
    """A Mamba-1 mixer (selective scan, arXiv:2312.00752)."""

    hidden_size: int
    inner_size: int
    state_size: int
    conv_kernel: int
    dt_rank: int
    projections: tuple[Linear, ...]  # in, x, dt, out
    extra: tuple[Tensor, ...]  # conv1d, A_log, D
    norms: tuple[Norm, ...] = ()
    path: str = "mamba"

    def state_bytes(self, width: float) -> float:
        """Return what a sequence's state takes, and the inputs that its convolution looks back to."""
        return width * self.inner_size * (self.state_size + self.conv_kernel)


class Mamba2(NamedTuple):
    """A Mamba-2 mixer (state-space duality, arXiv:2405.21060)."""

    hidden_size: int
    inner_size: int
    state_size: int
    conv_kernel: int
    num_heads: int
    head_dim: int
    num_groups: int
    chunk_size: int
    projections: tuple[Linear, ...]  # in, out
    extra: tuple[Tensor, ...]  # conv1d, dt_bias, A_log, D
    norms: tuple[Norm, ...] = ()
    scaled: bool = False  # what in_proj returns is multiplied by numbers as wide as the weights (Falcon-H1)
    path: str = "mamba"
    kind: str = "mamba2"  # of its layer

    def state_bytes(self, width: float) -> float:
        """Return the same of Mamba-2."""
        channels = self.inner_size + 2 * self.num_groups * self.state_size
        return width * (self.inner_size * self.state_size + channels * self.conv_kernel)


class LinearAttention(NamedTuple):
    """A recurrent mixer with a matrix state per head: the gated delta rule.

    `num_heads` heads keep a state of `key_head_dim` x `value_head_dim`, updated in chunks of `chunk_size`
    tokens. `decay_bytes`, if not 0: every channel of the keys decays by a number of its own (Kimi), and what
    makes it keeps so many bytes.
    """

    hidden_size: int
    num_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_size: int  # channels that pass the short convolution
    conv_kernel: int
    chunk_size: int
    projections: tuple[Linear, ...]
    extra: tuple[Tensor, ...] = ()
    norms: tuple[Norm, ...] = ()
    path: str = "linear_attention"
    decay_bytes: float = 0.0

    def state_bytes(self, width: float) -> float:
        """Return the same of linear attention, whose state is fp32."""
        state = self.num_heads * self.key_head_dim * self.value_head_dim
        return 4.0 * state + width * self.conv_size * self.conv_kernel


class Recurrence(NamedTuple):
    """A recurrence that transformers writes out in PyTorch and that no kernel of it replaces.

    `flops` are those of its products, with weights of its own or (`unweighted`) of activations alone;
    `unused_flops` what of their backward a sequence does not need: its first state has no gradient, its last
    is not read. Of every token it keeps `narrow_values` in the compute dtype, `trained_values` more where
    weights train, and `wide_values` in fp32, as are `widened_values` of the narrow ones under autocast;
    `beside_values` are of a branch that its output multiplies; of a sequence `state_values`. The last
    projection reads what it returns; `gated`: times the sigmoid of what the last but one makes of the
    block's input.
    """

    hidden_size: int
    width: int  # channels that it returns
    projections: tuple[Linear, ...]
    flops: float
    narrow_values: float
    wide_values: float
    state_values: float
    launches: float
    trained_values: float = 0.0
    widened_values: float = 0.0
    beside_values: float = 0.0
    unused_flops: float = 0.0
    unweighted: bool = False
    gated: bool = False
    conv_size: int = 0
    conv_kernel: int = 0
    extra: tuple[Tensor, ...] = ()
    norms: tuple[Norm, ...] = ()
    path: str = "recurrence"

    def state_bytes(self, width: float) -> float:
        """Return the state, in fp32, and what the convolution looks back to."""
        return 4.0 * self.state_values + width * self.conv_size * self.conv_kernel


def mamba1(builder: OpBuilder, block: Mamba1) -> None:
    """Add a Mamba-1 mixer, its input already normalised.

    One fused kernel does everything between `in_proj` and the residual stream, unless
    norms with weights on the time step, B and C (Jamba) stand between its parts.
    """
    low, part = builder.lowering, block.path
    c, d, n, rank = low.compute_bytes, block.inner_size, block.state_size, block.dt_rank
    enter, x, dt, leave = block.projections
    fused = low.ssm_kernels == "fused"
    whole = fused and not any(norm.weight for norm in block.norms)
    builder.linear(part, enter, keeps=builder.kept_entry(block.hidden_size, enter, part=part))
    both = 2.0 * d * c  # halves of in_proj's output
    convolution(builder, part, d, block.conv_kernel, both, block.extra)
    _project(builder, part, x, 0.0 if whole else low.kept_input(d, x, part=part), whole=whole)
    for norm in () if whole else block.norms:
        builder.norm(norm, part)
    if whole:  # kept whatever trains, and contiguous copies of B and C
        low_rank = (rank + 4.0 * n) * c
    elif block.norms:
        low_rank = (rank if low.weights_train else 0.0) * c + (2.0 if fused else 1.0) * n * c
    else:  # B, C and the time step are views of one tensor
        low_rank = (rank + 2.0 * n) * c
    _project(builder, part, dt, low_rank, whole=whole, bare=True)
    scan = _fused_scan(builder, block, whole=whole) if fused else _slow_scan(builder, block)
    if not whole:
        builder.ops.append(scan)
    _project(builder, part, leave, 0.0 if whole else low.kept_input(d, leave, part=part), whole=whole)
    if whole:  # what the kernel keeps it keeps when all of it is done
        builder.ops.append(scan)


def _project(
    builder: OpBuilder, part: str, linear: Linear, keeps: float, *, whole: bool, bare: bool = False
) -> None:
    """Add a projection that a kernel may contain (`whole`) or whose weight is read past its module (`bare`).

    Neither sees PEFT's adapter, and a kernel computes the weight's gradient, wanted or not.
    """
    low = builder.lowering._replace(lora_rank=0) if whole or bare else builder.lowering
    inner = OpBuilder(low, ops=builder.ops)
    start = len(builder.ops)
    inner.linear(part, linear, keeps=keeps, kind=linear.kind)
    if whole:
        builder.ops[start:] = [
            op._replace(backward=op.backward._replace(flops=op.forward.flops.times(2)), enclosed=True)
            for op in builder.ops[start:]
        ]


def _fused_scan(builder: OpBuilder, block: Mamba1, *, whole: bool) -> Op:
    """Return the selective scan; `whole`: inside the kernel that recomputes its inputs in backward."""
    low, d, n = builder.lowering, block.inner_size, block.state_size
    c = low.compute_bytes
    flops = per_token(SCAN_FLOPS * d * n)
    moved = per_token(5.0 * d * c)
    # its output; outside the whole kernel also its inputs, contiguous: x, time step, gate
    width = 1.0 if whole else 4.0
    decay = 4.0 * d * n * (2 if low.weights_train else 1)  # A = -exp(A_log), and the exponential
    return Op(
        (block.path, "scan"),
        "scan",
        Cost(flops, moved, 1),
        Cost(flops.times(SCAN_BACKWARD_RATIO), moved.times(3), 4),
        saved_bytes=Poly(const=decay + 8.0 * d, token=width * d * c, sequence=8.0 * d * n),
        live_forward_bytes=per_token((5.0 if whole else 3.0) * d * c),
        live_backward_bytes=per_token(6.0 * d * c),
        # in_proj's output, its copy or the parts' copies, and what convolution, step and scan return
        passing_bytes=Poly(
            const=decay, token=8.0 * d * c + (block.hidden_size + 4.0 * n) * c, sequence=8.0 * d * n
        ),
        gradient_bytes=gradients_of(builder, block.extra, "state"),
        dtype="fp32",
    )


def _slow_scan(builder: OpBuilder, block: Mamba1) -> Op:
    """Return the scan as a loop over tokens, each of which multiplies decay, state and C."""
    low, d, n = builder.lowering, float(block.inner_size), float(block.state_size)
    c, trains = low.compute_bytes, low.weights_train
    state = d * n
    per_channel = 3 * c + 8.0  # step before and after softplus, activated gate; input and output in fp32
    per_channel += c if trains else 0.0  # the input, for D's gradient
    per_channel += 6.0 if low.autocast else 0.0  # softplus is in fp32, the narrow input beside its copy
    narrow = c if c < 4 else 0  # in fp32 there are no copies
    kept = Poly(
        # A, its exponential, D; the step's B; decay and its factor, every state in fp32 and 16 bit
        const=4.0 * state * (2 if trains else 1) + 4.0 * d,
        token=per_channel * d + 4.0 * n + (8.0 + 4.0 + narrow) * state,
        sequence=(c - 4.0) * state,  # the first state, zeros of 16 bit, has no fp32 copy
    )
    flops, moved = per_token(2.0 * state), per_token(40.0 * state)
    return Op(
        (block.path, "scan"),
        "scan",
        Cost(flops, moved, SLOW_SCAN_LAUNCHES),
        Cost(flops.times(2), moved.times(2), 3 * SLOW_SCAN_LAUNCHES),
        saved_bytes=kept,
        # decay, factor and stepped input are as wide as all states, and so are their gradients, one twice
        live_forward_bytes=per_token(4.0 * state + 8.0 * d),
        live_backward_bytes=per_token(12.0 * state),
        passing_bytes=per_token(12.0 * state + 24.0 * d + block.hidden_size * c),
        gradient_bytes=gradients_of(builder, block.extra, "state"),
        dtype="fp32",
    )


def mamba2(builder: OpBuilder, block: Mamba2) -> None:
    """Add a Mamba-2 mixer, its input already normalised.

    One fused kernel does everything between `in_proj` and the residual stream. It keeps
    what enters it, the scan's output and the gated norm's inverse deviation, and
    recomputes the rest, chunk states included.
    """
    low, part = builder.lowering, block.path
    c, d = float(_scan_bytes(builder, block)), float(block.inner_size)
    enter, leave = block.projections
    fused = low.ssm_kernels == "fused"
    convolved = d + 2.0 * block.num_groups * block.state_size
    builder.linear(part, enter, keeps=builder.kept_entry(block.hidden_size, enter, part=part))
    convolution(builder, part, convolved, block.conv_kernel, enter.out_features * c, block.extra)
    if not fused:
        builder.ops.append(_slow_chunks(builder, block))
    if block.norms:
        _gated_norm(builder, block)
    _project(builder, part, leave, 0.0 if fused else low.kept_input(d, leave, part=part), whole=fused)
    if fused:  # what the kernel keeps it keeps when all of it is done
        builder.ops.append(_fused_chunks(builder, block, convolved))


def _scan_bytes(builder: OpBuilder, block: Mamba2) -> int:
    low = builder.lowering
    return max(low.compute_bytes, low.weight_bytes) if block.scaled else low.compute_bytes


def _fused_chunks(builder: OpBuilder, block: Mamba2, convolved: float) -> Op:
    """Return the chunked scan inside the fused kernel."""
    low, d, n = builder.lowering, float(block.inner_size), block.state_size
    heads, p, q, c = block.num_heads, block.head_dim, block.chunk_size, float(_scan_bytes(builder, block))
    flops = per_token(2.0 * (block.num_groups * q * n / 2 + heads * (q * p / 2 + 2 * n * p)))
    states = 4.0 * heads * p * n / q
    moved = per_token(6.0 * d * c + 2 * convolved * c + 4 * states)
    return Op(
        (block.path, "scan"),
        "scan",
        forward=Cost(flops, moved, FUSED_CHUNK_LAUNCHES),
        backward=Cost(flops.times(SCAN_BACKWARD_RATIO), moved.times(2.5), 3 * FUSED_CHUNK_LAUNCHES),
        saved_bytes=Poly(const=4.0 * heads * (2 if low.weights_train else 1), token=d * c),
        live_forward_bytes=per_token(2.0 * d * c + states),
        live_backward_bytes=per_token(4.0 * d * c + states),
        # its input, that of in_proj, the scan's output, two more as large
        passing_bytes=per_token(
            (block.projections[0].out_features + block.hidden_size + 3.0 * d) * c + states
        ),
        gradient_bytes=gradients_of(builder, block.extra, "state"),
        dtype=low.compute_dtype,
    )


def _slow_chunks(builder: OpBuilder, block: Mamba2) -> Op:
    """Return the chunked scan in PyTorch: products within chunks, their states, and among chunks.

    The n = S/Q chunks of a sequence see each other: (n+1)² decays and n+1 states per head.
    """
    low, trains = builder.lowering, builder.lowering.weights_train
    heads, p, q, n = float(block.num_heads), block.head_dim, float(block.chunk_size), block.state_size
    d, c = float(block.inner_size), low.compute_bytes
    among = Poly(token=2 / q, pair=1 / q**2, sequence=1.0)  # (n+1)² per sequence
    flops = per_token(2.0 * heads * (q * n + q * p + 2 * n * p)).plus(among.times(2.0 * heads * p * n))
    token = 20.0 * heads * n  # B and C, B decayed, both as operands
    # input (twice if D trains), stepped input twice, the states' part
    token += (20.0 if trains else 16.0) * d
    token += 12.0 * heads * q  # decay within the chunk, scores, their product
    token += 8.0 * heads * p * n / q  # the states and what they begin with
    # step before and after softplus, in fp32 (twice where A trains), two decays
    token += heads * (2 * c + (16.0 if trains else 12.0))
    kept = Poly(
        const=4.0 * heads * (2 if trains else 1) + 2 * q * q, token=token, sequence=4.0 * heads * p * n
    ).plus(among.times(4.0 * heads))
    return Op(
        (block.path, "scan"),
        "scan",
        forward=Cost(flops, per_token(2.0 * token), SLOW_CHUNK_LAUNCHES),
        backward=Cost(flops.times(2), per_token(4.0 * token), 3 * SLOW_CHUNK_LAUNCHES),
        saved_bytes=kept,
        live_forward_bytes=per_token(8.0 * heads * max(n, q)),
        live_backward_bytes=per_token(16.0 * heads * max(n, q)),
        passing_bytes=per_token(16.0 * heads * max(n, q) + 12.0 * d),
        gradient_bytes=gradients_of(builder, block.extra, "state"),
        dtype="fp32",
    )


def _gated_norm(builder: OpBuilder, block: Mamba2) -> None:
    """Add the norm of the gated output, in groups: all in fp32 where it is written in PyTorch."""
    low, d, saved = builder.lowering, float(block.inner_size), 4.0 * block.num_groups
    c, trained = float(low.compute_bytes), sum(t.size for norm in block.norms for t in norm.tensors())
    moved, alive, launches = (3.0 * d * c, 5.0 * d * c), (0.0, 0.0, 0.0), 1.0
    if low.ssm_kernels != "fused":
        saved += (20.0 if low.norms_train else 16.0) * d  # output, gate, its activation, product, normalised
        moved, alive, launches = (44.0 * d, 72.0 * d), (4.0 * d, 16.0 * d, 24.0 * d), 12.0
    gradient = float(trained * low.weight_bytes) if low.norms_train else 0.0
    path = (block.path, "norm")
    builder.elementwise(
        path, *moved, launches=launches, saved=saved, alive=alive, gradient=gradient, kind="norm"
    )


def convolution(
    builder: OpBuilder, part: str, channels: float, kernel: int, saved: float, extra: Iterable[Tensor],
    *, activates: bool = True,
) -> None:  # fmt: skip
    """Add the short causal convolution over `channels` per token, with its activation if it `activates`.

    It keeps its input, `saved` bytes per token, whatever trains. In PyTorch it computes kernel - 1 further
    tokens per sequence, and the activation keeps what it returned. Without one there is no kernel of it.
    """
    low = builder.lowering
    c = low.compute_bytes
    fused = activates and low.ssm_kernels == "fused"
    flops = Poly(token=2.0 * channels * kernel)
    kept = per_token(saved)
    if not fused:
        flops = flops._replace(sequence=2.0 * channels * kernel * (kernel - 1))
    if activates and not fused:
        kept = Poly(token=saved + channels * c, sequence=channels * c * (kernel - 1))
    moved = per_token(2.0 * channels * c)
    passes = 2 if low.weights_train or fused else 1
    builder.ops.append(
        Op(
            (part, "convolution"),
            "convolution",
            forward=Cost(flops, moved, 1 if fused else 3),
            backward=Cost(flops.times(passes), moved.times(2), 2 if fused else 5),
            saved_bytes=kept,
            live_forward_bytes=per_token(channels * c),
            live_backward_bytes=per_token(3.0 * channels * c),
            passing_bytes=per_token(3.0 * channels * c),
            gradient_bytes=gradients_of(builder, extra, "conv", "bias"),
            dtype=low.compute_dtype,
        )
    )


def short_convolution(builder: OpBuilder, block: ShortConvolution) -> None:
    """Add a gated short convolution, its input already normalised: out(C * conv(B * x))."""
    low, part = builder.lowering, block.path
    enter, leave = block.projections
    d = float(block.hidden_size * low.compute_bytes)
    builder.linear(part, enter, keeps=builder.kept_entry(block.hidden_size, enter, part=part))
    # the gates keep what in_proj returned, of which they are views, and what the convolution returned
    builder.elementwise((part, "input gate"), 3.0 * d, 6.0 * d, saved=3.0 * d, alive=(d, 3.0 * d, 4.0 * d))
    convolution(builder, part, block.hidden_size, block.conv_kernel, d, block.extra)
    kept = d if low.ssm_kernels == "fused" else 0.0
    builder.elementwise((part, "output gate"), 3.0 * d, 6.0 * d, saved=kept, alive=(d, 3.0 * d, 5.0 * d))
    builder.linear(part, leave, keeps=low.kept_input(block.hidden_size, leave, part=part))


def linear_attention(builder: OpBuilder, block: LinearAttention) -> None:
    """Add a gated-delta-rule mixer, its input already normalised."""
    low, part = builder.lowering, block.path
    c = low.compute_bytes
    *inputs, output = block.projections
    entry = [linear for linear in inputs if linear.in_features == block.hidden_size]
    kept, start = builder.kept_entry(block.hidden_size, *entry, part=part), len(builder.ops)
    cut: list[bool] = []  # of every operator: whether its input needs no gradient
    for i, projection in enumerate(inputs):
        own = 0.0 if projection in entry else low.kept_input(projection.in_features, projection, part=part)
        builder.linear(part, projection, keeps=own if i else kept, first_use=not i)
        # what a low-rank pair's second reads needs a gradient where its first is adapted
        inside = projection not in entry and low.rank(inputs[i - 1], "linear", part) > 0
        cut += [not (builder.reached or inside)] * (len(builder.ops) - start - len(cut))
    last = len(builder.ops)
    fused = low.ssm_kernels == "fused"
    if block.conv_kernel > 1 and block.conv_size:
        size = block.conv_size
        convolution(builder, part, size, block.conv_kernel, float(size * c), block.extra)
    # the correction's strength, a sigmoid, and the decay -exp(A_log)·softplus(a + bias), in fp32
    heads, trains = float(block.num_heads), low.weights_train
    decays = heads * block.key_head_dim if block.decay_bytes else heads
    of_decay = (block.decay_bytes or 4.0) + (4.0 if trains else 0.0)
    builder.elementwise(
        (part, "gates"),
        24.0 * decays,
        launches=8,
        saved=Poly(const=4.0 * heads * (2 if trains else 1), token=heads * c + decays * of_decay),
        alive=(8.0 * decays, 12.0 * decays, 12.0 * decays),
        gradient=gradients_of(builder, block.extra, "state"),
    )
    builder.ops.append(_fused_rule(builder, block) if fused else _chunked_rule(block))
    for norm in block.norms:
        _gated_head_norm(builder, block, norm.size)
    kept = low.kept_input(block.num_heads * block.value_head_dim, output, part=part)
    builder.linear(part, output, keeps=kept)
    if builder.reached:
        return
    if not any(map(is_adapter, builder.ops[start:last])):
        builder.ops[start:] = cut_below(builder.ops[start:], dropout=low.lora_dropout)
        return
    ended = [op for op, ends in zip(builder.ops[start:last], cut, strict=True) if ends]
    rest = iter(cut_below(ended, dropout=low.lora_dropout))
    ways = zip(builder.ops[start:last], cut, strict=True)
    builder.ops[start:last] = [next(rest) if ends else op for op, ends in ways]


def _fused_rule(builder: OpBuilder, block: LinearAttention) -> Op:
    low = builder.lowering
    c = float(low.compute_bytes)
    heads, dk, dv, q = float(block.num_heads), block.key_head_dim, block.value_head_dim, block.chunk_size
    keys = (block.conv_size - heads * dv) / 2  # channels of all key heads, fewer than value heads
    flops = per_token(2.0 * heads * (q * (dk + dv) + 2 * dk * dv))
    io = c * (2 * keys + 2 * heads * dv)
    states = 4.0 * heads * dk * dv / q
    # q and k normalised with their scales, what the convolution returned (v is a part of it), decay, matrix
    matrices, decays = (2, dk) if block.decay_bytes else (1, 1)
    kept = c * (2 * keys + block.conv_size + matrices * heads * q) + 8.0 * keys / dk + 4.0 * heads * decays
    return Op(
        (block.path, "scan"),
        "scan",
        forward=Cost(flops, per_token(2 * io + 2 * states), 8),
        backward=Cost(flops.times(SCAN_BACKWARD_RATIO), per_token(5 * io + 4 * states), 20),
        saved_bytes=per_token(kept),
        live_forward_bytes=per_token(3.0 * heads * dv * c),
        live_backward_bytes=per_token(5.0 * heads * dv * c + 2 * keys * c),
        passing_bytes=per_token(kept + 3.0 * heads * dv * c),
        dtype=low.compute_dtype,
    )


def _chunked_rule(block: LinearAttention) -> Op:
    """Return transformers' PyTorch code: all chunks at once, then a loop that hands the state on."""
    heads, dk, dv = float(block.num_heads), block.key_head_dim, block.value_head_dim
    q = float(block.chunk_size)
    # per chunk: key-key and query-key products, their use, and three products with the state
    flops = per_token(2.0 * heads * (2 * q * dk + q * dv + 3 * dk * dv))
    solved = per_token(2.0 * heads * q * (dk + dv))  # the triangular system's own gradient
    # the first state needs no gradient, the last is not used
    unused = Poly(sequence=-8.0 * heads * dk * dv * q)
    state = 4.0 * heads * dk * dv / q
    # queries and keys as they came, normalised, decayed, solved; scores and decays; values as they came,
    # solved and corrected; the inverse norms, the strength and three decays per head; the states
    token = heads * (32.0 * dk + 20.0 * q + 12.0 * dv + 24.0 + 4.0 / q) + state
    launches = 60.0
    return Op(
        (block.path, "scan"),
        "scan",
        forward=Cost(flops, per_token(2.0 * token), launches),
        backward=Cost(flops.times(2).plus(solved).plus(unused), per_token(4.0 * token), 3 * launches),
        saved_bytes=Poly(const=q * q, token=token),
        live_forward_bytes=per_token(heads * (8.0 * dk + 8.0 * dv)),
        live_backward_bytes=per_token(heads * (16.0 * dk + 12.0 * q + 8.0 * dv)),
        passing_bytes=per_token(token / 2),
        dtype="fp32",
    )


def _gated_head_norm(builder: OpBuilder, block: LinearAttention, size: int) -> None:
    """Add the RMS norm of each head's output and its product with the activated gate, in fp32.

    It keeps the output, the gate and its activation in fp32, the normalised value (if its
    weight trains) and the weighted one in 16 bit, and an inverse deviation per head.
    """
    low = builder.lowering
    width = float(block.num_heads * block.value_head_dim)
    c = float(low.compute_bytes)
    kept = width * (12.0 + c + (c if low.norms_train else 0.0)) + 4.0 * width / size
    # the gate and its activation in fp32, the weighted value; what came in, and what the mixer still holds
    passing = 8.0 * width + (3.0 * width + block.conv_size + block.hidden_size) * c
    if block.decay_bytes:  # a sigmoid keeps its result alone, and the weight is fp32, too
        kept = width * (8.0 + (4.0 if low.norms_train else 0.0) + 4.0) + 4.0 * width / size
        passing = 24.0 * width
    builder.elementwise(
        (block.path, "norm"),
        44.0 * width,
        72.0 * width,
        launches=12,
        saved=kept,
        alive=(8.0 * width, 16.0 * width, passing),
        gradient=float(size * low.weight_bytes) if low.norms_train else 0.0,
        kind="norm",
    )


def recurrence(builder: OpBuilder, block: Recurrence) -> None:
    """Add a recurrence written out in PyTorch, its input already normalised."""
    low, part = builder.lowering, block.path
    *entry, output = block.projections
    c, width = float(low.compute_bytes), float(block.width)
    kept = builder.kept_entry(block.hidden_size, *entry, part=part)
    for i, projection in enumerate(entry[:-1] if block.gated else entry):
        builder.linear(part, projection, keeps=0.0 if i else kept, first_use=not i)
    if block.conv_kernel:
        size = float(block.conv_size)
        convolution(builder, part, size, block.conv_kernel, size * c, block.extra, activates=False)
    token = (
        c * (block.narrow_values + (block.trained_values if low.weights_train else 0.0))
        + 4.0 * block.wide_values
        + low.autocast * (4.0 - c) * block.widened_values
    )
    # autocast's copies of the weights that it multiplies by
    copies = 0.0 if block.unweighted or not low.autocast or low.weight_bytes < 4 else c * block.flops / 2
    flops = per_token(block.flops)
    back = flops.times(2 if block.unweighted or low.weights_train else 1)
    builder.ops.append(
        Op(
            (part, "scan"),
            "scan",
            forward=Cost(flops, per_token(2.0 * token), block.launches),
            backward=Cost(
                back._replace(sequence=-block.unused_flops), per_token(4.0 * token), 3 * block.launches
            ),
            saved_bytes=Poly(const=copies, token=token),
            live_forward_bytes=per_token(3.0 * width * c),
            live_backward_bytes=per_token(12.0 * width),
            passing_bytes=per_token(8.0 * width),
            gradient_bytes=gradients_of(builder, block.extra, "state"),
            dtype=low.compute_dtype,
        )
    )
    if beside := block.beside_values * c:
        builder.elementwise((part, "branch"), 2.0 * beside, launches=2, saved=beside)
    for norm in block.norms:
        builder.norm(norm, part, inside=True)
    if block.gated:
        builder.linear(part, entry[-1], first_use=False)
        builder.elementwise((part, "gate"), 5.0 * width * c, launches=2, saved=2.0 * width * c)
    builder.linear(part, output, keeps=low.kept_input(output.in_features, output, part=part))


def chain(builder: OpBuilder, block: Chain) -> None:
    """Add projections one after the other."""
    for index, linear in enumerate(block.projections):
        kept = builder.lowering.kept_input(linear.in_features, linear, part=block.path)
        builder.linear(block.path, linear, keeps=0.0 if block.beside and not index else kept)


def gradients_of(builder: OpBuilder, tensors: Iterable[Tensor], *kinds: str) -> float:
    """Return the bytes of the gradients of those tensors that are of these kinds, if weights train."""
    low = builder.lowering
    size = sum(tensor.size for tensor in tensors if tensor.kind in kinds)
    return float(size * low.weight_bytes) if low.weights_train else 0.0


BUILT: dict[Any, Callable[..., None]] = {
    Mamba1: mamba1, Mamba2: mamba2, LinearAttention: linear_attention, ShortConvolution: short_convolution,
    Recurrence: recurrence, Chain: chain,
}  # fmt: skip
