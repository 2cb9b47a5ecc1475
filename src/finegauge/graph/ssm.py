"""Operators of state-space and linear-attention mixers.

Mamba-1's fused kernel keeps the two halves of its input projection, the scan's output and
its low-rank inputs, and recomputes convolution and step sizes in backward [1]; the scan is
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
SCAN_CHUNK = 2048  # tokens between two states that the fused scan keeps


def mamba1(tape: Tape, block: Mamba1) -> None:
    """Add a Mamba-1 mixer to the tape, its input already normalised."""
    low, part = tape.lowering, block.path
    c, d, n = low.compute_bytes, block.inner_size, block.state_size
    enter, x, dt, leave = block.projections
    tape.linear(part, enter, keeps=low.kept_input(block.hidden_size, enter, part=part))
    _convolution(tape, part, d, block.conv_kernel, saved=2.0 * d * c)
    tape.linear(part, x)
    for norm in block.norms:
        tape.norm(norm, part)
    tape.linear(part, dt, keeps=low.kept_input(block.dt_rank + 2 * n, dt, part=part))
    flops = per_token(SCAN_FLOPS * d * n)
    if low.ssm_kernels == "fused":
        kept = Poly(token=float(d * c), sequence=d * n * 8.0)
        moved = per_token(5.0 * d * c)
        forward, backward = Cost(flops, moved, 1), Cost(flops.times(2.5), moved.times(3), 4)
    else:
        kept = per_token(d * n * 4.0 * 4 + 6.0 * d * c)
        moved = per_token(d * n * 4.0 * 10)
        forward, backward = (
            Cost(flops, moved, 12 + 4.0 * SLOW_SCAN_STEPS),
            Cost(flops.times(2), moved.times(2), 700),
        )
    tape.ops.append(
        Op(
            (part, "scan"),
            "scan",
            forward,
            backward,
            saved_bytes=kept,
            live_backward_bytes=per_token(6.0 * d * c),
            dtype="fp32",
        )
    )
    tape.linear(part, leave, keeps=low.kept_input(d, leave, part=part) if low.ssm_kernels != "fused" else 0.0)


SLOW_SCAN_STEPS = 64.0  # kernels of the Python loop; it grows with the sequence, this is its floor


def mamba2(tape: Tape, block: Mamba2) -> None:
    """Add a Mamba-2 mixer to the tape, its input already normalised."""
    low, part = tape.lowering, block.path
    c, d, n = low.compute_bytes, block.inner_size, block.state_size
    enter, leave = block.projections
    convolved = d + 2 * block.num_groups * n
    tape.linear(part, enter, keeps=low.kept_input(block.hidden_size, enter, part=part))
    _convolution(tape, part, convolved, block.conv_kernel, saved=float(enter.out_features * c))
    heads, p, q = block.num_heads, block.head_dim, block.chunk_size
    flops = per_token(2.0 * (block.num_groups * q * n / 2 + heads * (q * p / 2 + 2 * n * p)))
    states = 4.0 * heads * p * n / q
    scale = 1.0 if low.ssm_kernels == "fused" else 4.0
    moved = per_token((6.0 * d * c + 2 * convolved * c + 4 * states) * scale)
    kernels = 5.0 if low.ssm_kernels == "fused" else 40.0
    tape.ops.append(
        Op(
            (part, "scan"),
            "scan",
            forward=Cost(flops, moved, kernels),
            backward=Cost(flops.times(2.5), moved.times(2.5), 3 * kernels),
            saved_bytes=per_token((d * c + states + 8.0 * heads) * scale),
            live_backward_bytes=per_token(4.0 * d * c + states),
            dtype=low.compute_dtype,
        )
    )
    for norm in block.norms:
        tape.norm(norm, part)
    tape.linear(part, leave, keeps=low.kept_input(d, leave, part=part))


def linear_attention(tape: Tape, block: LinearAttention) -> None:
    """Add a chunked linear-attention mixer (gated delta rule and its relatives) to the tape."""
    low, part = tape.lowering, block.path
    c = low.compute_bytes
    *inputs, output = block.projections
    kept = low.kept_input(block.hidden_size, *inputs, part=part)
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
