"""Operators of state-space and linear-attention mixers.

Mamba-1's fused kernel keeps the two halves of its input projection, the scan's output, its
low-rank inputs and a state every 2,048 tokens (one per sequence is counted), and
recomputes convolution and step sizes in backward [1]; the scan is
memory-bound, about 9·T·d_inner·d_state FLOPs. Mamba-2 works in chunks of Q tokens, mostly
matrix products: Q·(d_state + head_dim) per token and head inside a chunk and
2·d_state·head_dim between chunks [2]. The slow path in plain PyTorch materialises the
state for every token.

[1] Gu and Dao 2023, arXiv:2312.00752   [2] Dao and Gu 2024, arXiv:2405.21060
"""

from finegauge.graph.blocks import LinearAttention, Mamba1, Mamba2
from finegauge.graph.lowering import Tape
from finegauge.graph.op import Cost, Op, Poly, per_token

SCAN_FLOPS = 9.0
SLOW_SCAN_STEPS = 64.0  # kernels of the Python loop; it grows with the sequence, this is its floor


def mamba1(tape: Tape, block: Mamba1) -> None:
    """Add a Mamba-1 mixer to the tape, its input already normalised.

    One fused kernel does everything between `in_proj` and the residual stream, unless
    norms on the time step, B and C (Jamba) stand between its parts.
    """
    low, part = tape.lowering, block.path
    c, d, n, rank = low.compute_bytes, block.inner_size, block.state_size, block.dt_rank
    enter, x, dt, leave = block.projections
    fused = low.ssm_kernels == "fused"
    whole = fused and not block.norms
    tape.linear(part, enter, keeps=tape.kept_entry(block.hidden_size, enter, part=part))
    _convolution(tape, part, d, block.conv_kernel, saved=2.0 * d * c)  # both halves of in_proj's output
    tape.linear(part, x, keeps=0.0 if whole else low.kept_input(d, x, part=part))
    for norm in block.norms:
        tape.norm(norm, part)
    # the fused kernel keeps x_proj's output whatever trains, and contiguous copies of B and C
    low_rank = (rank + 2.0 * n) * c if whole else low.kept_input(rank, dt, part=part)
    tape.linear(part, dt, keeps=low_rank + (2.0 * n * c if fused else 0.0))
    tape.ops.append(_selective_scan(tape, block, whole=whole))
    tape.linear(part, leave, keeps=0.0 if whole else low.kept_input(d, leave, part=part))


def _selective_scan(tape: Tape, block: Mamba1, *, whole: bool) -> Op:
    """Return the selective scan; `whole`: inside the kernel that recomputes its inputs in backward."""
    low, d, n = tape.lowering, block.inner_size, block.state_size
    c = low.compute_bytes
    flops = per_token(SCAN_FLOPS * d * n)
    if low.ssm_kernels == "fused":
        # its output; outside the whole kernel also its inputs, contiguous: x, time step, gate
        width = 1.0 if whole else 4.0
        decay = 4.0 * d * n * (2 if low.weights_train else 1)  # A = -exp(A_log), and the exponential
        kept = Poly(const=decay, token=width * d * c, sequence=d * n * 8.0)
        moved = per_token(5.0 * d * c)
        forward, backward = Cost(flops, moved, 1), Cost(flops.times(2.5), moved.times(3), 4)
    else:
        kept = per_token(d * n * 4.0 * 4 + 6.0 * d * c)
        moved = per_token(d * n * 4.0 * 10)
        forward = Cost(flops, moved, 12 + 4.0 * SLOW_SCAN_STEPS)
        backward = Cost(flops.times(2), moved.times(2), 700)
    return Op(
        (block.path, "scan"),
        "scan",
        forward,
        backward,
        saved_bytes=kept,
        live_backward_bytes=per_token(6.0 * d * c),
        dtype="fp32",
    )


def mamba2(tape: Tape, block: Mamba2) -> None:
    """Add a Mamba-2 mixer to the tape, its input already normalised.

    One fused kernel does everything between `in_proj` and the residual stream. It keeps
    what enters it, the scan's output and the gated norm's inverse deviation, and
    recomputes the rest, chunk states included.
    """
    low, part = tape.lowering, block.path
    c, d, n = low.compute_bytes, block.inner_size, block.state_size
    enter, leave = block.projections
    fused = low.ssm_kernels == "fused"
    convolved = d + 2 * block.num_groups * n
    tape.linear(part, enter, keeps=tape.kept_entry(block.hidden_size, enter, part=part))
    _convolution(tape, part, convolved, block.conv_kernel, saved=float(enter.out_features * c))
    heads, p, q = block.num_heads, block.head_dim, block.chunk_size
    flops = per_token(2.0 * (block.num_groups * q * n / 2 + heads * (q * p / 2 + 2 * n * p)))
    states = 4.0 * heads * p * n / q
    scale = 1.0 if fused else 4.0
    moved = per_token((6.0 * d * c + 2 * convolved * c + 4 * states) * scale)
    kernels = 5.0 if fused else 40.0
    tape.ops.append(
        Op(
            (part, "scan"),
            "scan",
            forward=Cost(flops, moved, kernels),
            backward=Cost(flops.times(2.5), moved.times(2.5), 3 * kernels),
            saved_bytes=per_token(float(d * c) if fused else (d * c + states + 8.0 * heads) * scale),
            live_backward_bytes=per_token(4.0 * d * c + states),
            dtype=low.compute_dtype,
        )
    )
    for norm in block.norms:
        if fused:
            tape.elementwise((part, "norm"), 3.0 * d * c, 5.0 * d * c, launches=1, saved=4.0, kind="norm")
        else:
            tape.norm(norm, part)
    tape.linear(part, leave, keeps=0.0 if fused else low.kept_input(d, leave, part=part))


def linear_attention(tape: Tape, block: LinearAttention) -> None:
    """Add a chunked linear-attention mixer (gated delta rule and its relatives) to the tape."""
    low, part = tape.lowering, block.path
    c = low.compute_bytes
    *inputs, output = block.projections
    kept = tape.kept_entry(block.hidden_size, *inputs, part=part)
    for i, projection in enumerate(inputs):
        tape.linear(part, projection, keeps=0.0 if i else kept, first_use=not i)
    if block.conv_kernel > 1 and block.conv_size:
        _convolution(tape, part, block.conv_size, block.conv_kernel, saved=float(block.conv_size * c))
    heads, dk, dv, q = block.num_heads, block.key_head_dim, block.value_head_dim, block.chunk_size
    flops = per_token(2.0 * heads * (q * (dk + dv) + 2 * dk * dv))
    io = float(heads * (2 * dk + 2 * dv) * c)
    states = 4.0 * heads * dk * dv / q
    tape.ops.append(
        Op(
            (part, "scan"),
            "scan",
            forward=Cost(flops, per_token(2 * io + 2 * states), 8),
            backward=Cost(flops.times(2.5), per_token(5 * io + 4 * states), 20),
            saved_bytes=per_token(io + states),
            live_backward_bytes=per_token(io),
            dtype=low.compute_dtype,
        )
    )
    for norm in block.norms:
        tape.norm(norm, part, repeats=max(1, heads * dv // norm.size))
    tape.linear(part, output, keeps=low.kept_input(heads * dv, output, part=part))


def _convolution(tape: Tape, part: str, channels: float, kernel: int, *, saved: float) -> None:
    """Add the short causal convolution with its activation over `channels` per token."""
    c = tape.lowering.compute_bytes
    tape.elementwise(
        (part, "convolution"),
        2.0 * channels * c,
        4.0 * channels * c,
        launches=1,
        backward_launches=2,
        saved=saved,
        kind="convolution",
        flops=2.0 * channels * kernel,
    )
