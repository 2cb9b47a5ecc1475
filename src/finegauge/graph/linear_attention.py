"""Operators of linear attention by the gated delta rule (Qwen3-Next, Qwen3.5).

Every head keeps a matrix of key_head_dim x value_head_dim, corrected and decayed token by
token (Yang et al. 2024, arXiv:2412.06464) and computed in chunks of Q = 64 tokens. The
kernel of flash-linear-attention keeps normalised queries and keys, the values, the decay
and one Q x Q matrix per chunk; transformers' own PyTorch code keeps every operand in fp32,
and the state at each chunk. Chunks are taken to divide the sequence.
"""

from finegauge.graph.blocks import LinearAttention
from finegauge.graph.op import Cost, Op, Poly, per_token
from finegauge.graph.ssm import SCAN_BACKWARD_RATIO, convolution
from finegauge.graph.tape import Alive, Tape


def linear_attention(tape: Tape, block: LinearAttention) -> None:
    """Add a gated-delta-rule mixer to the tape, its input already normalised."""
    low, part = tape.lowering, block.path
    c = low.compute_bytes
    *inputs, output = block.projections
    kept = tape.kept_entry(block.hidden_size, *inputs, part=part)
    for i, projection in enumerate(inputs):
        tape.linear(part, projection, keeps=0.0 if i else kept, first_use=not i)
    fused = low.ssm_kernels == "fused"
    if block.conv_kernel > 1 and block.conv_size:
        convolution(tape, part, block.conv_size, block.conv_kernel, float(block.conv_size * c), block.extra)
    _gates(tape, block)
    tape.ops.append(_fused_rule(tape, block) if fused else _chunked_rule(tape, block))
    for norm in block.norms:
        _gated_norm(tape, block, norm.size)
    tape.linear(part, output, keeps=low.kept_input(block.num_heads * block.value_head_dim, output, part=part))


def _gates(tape: Tape, block: LinearAttention) -> None:
    """Add the correction's strength, a sigmoid, and the decay -exp(A_log)·softplus(a + bias), in fp32."""
    low, heads = tape.lowering, float(block.num_heads)
    trains = low.weights_train
    kept = heads * (low.compute_bytes + (8.0 if trains else 4.0))
    gradient = sum(t.size for t in block.extra if t.kind == "state") * low.weight_bytes
    tape.elementwise(
        (block.path, "gates"),
        24.0 * heads,
        launches=8,
        saved=Poly(const=4.0 * heads * (2 if trains else 1), token=kept),
        alive=Alive(8.0 * heads, 12.0 * heads, 12.0 * heads),
        gradient=float(gradient) if trains else 0.0,
    )


def _fused_rule(tape: Tape, block: LinearAttention) -> Op:
    """Return flash-linear-attention's kernel."""
    low = tape.lowering
    c = float(low.compute_bytes)
    heads, dk, dv, q = float(block.num_heads), block.key_head_dim, block.value_head_dim, block.chunk_size
    keys = (block.conv_size - heads * dv) / 2  # channels of all key heads, fewer than value heads
    flops = per_token(2.0 * heads * (q * (dk + dv) + 2 * dk * dv))
    io = c * (2 * keys + 2 * heads * dv)
    states = 4.0 * heads * dk * dv / q
    # q and k normalised with their scales, what the convolution returned (v is a part of it), decay, matrix
    kept = c * (2 * keys + block.conv_size + heads * q) + 8.0 * keys / dk + 4.0 * heads
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


def _chunked_rule(tape: Tape, block: LinearAttention) -> Op:
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


def _gated_norm(tape: Tape, block: LinearAttention, size: int) -> None:
    """Add the RMS norm of each head's output and its product with the activated gate, in fp32.

    It keeps the output, the gate and its activation in fp32, the normalised value (if its
    weight trains) and the weighted one in 16 bit, and an inverse deviation per head.
    """
    low = tape.lowering
    width = float(block.num_heads * block.value_head_dim)
    c = float(low.compute_bytes)
    kept = width * (12.0 + c + (c if low.norms_train else 0.0)) + 4.0 * width / size
    tape.elementwise(
        (block.path, "norm"),
        44.0 * width,
        72.0 * width,
        launches=12,
        saved=kept,
        alive=Alive(8.0 * width, 16.0 * width, 24.0 * width),
        gradient=float(size * low.weight_bytes) if low.norms_train else 0.0,
        kind="norm",
    )
