"""Operators of attention: projections, rotary embedding, the attention kernel.

Scores and values cost 4·A·D FLOPs per query-key pair forward, halved where the kernel
skips what causality masks; FlashAttention's backward recomputes the scores and costs 2.5
times its forward [1]. It keeps q, k, v, the output and one log-sum-exp per query; eager
attention keeps the probabilities in fp32 and in the compute dtype.

[1] Dao 2023, arXiv:2307.08691
"""

from finegauge.graph.blocks import Attention, LatentAttention, Linear
from finegauge.graph.lowering import Tape
from finegauge.graph.op import Cost, Op, Poly

ROTARY_BYTES = 20.0  # per channel: two products, negate and concatenate, sum (16 bit)
ROTARY_LAUNCHES = 10.0


def attention(tape: Tape, block: Attention) -> None:
    """Add grouped-query attention to the tape, its input already normalised."""
    low, part = tape.lowering, block.path
    *inputs, output = block.projections
    c = low.compute_bytes
    kept = tape.kept_entry(block.hidden_size, *inputs, part=part)
    for i, projection in enumerate(inputs):
        tape.linear(part, projection, keeps=0.0 if i else kept, first_use=not i)
    value_dim = block.value_head_dim or block.head_dim
    q, k = block.num_heads * block.head_dim, block.num_key_value_heads * block.head_dim
    v = block.num_key_value_heads * value_dim
    for norm in block.qk_norms:
        width = q if norm.name.startswith("q") else k
        tape.norm(norm, part, repeats=max(1, width // norm.size))
    if block.rotary:
        _rotary(tape, part, q + k)
    # rotated queries and keys are copies; the values of a fused projection are a view of all it returned
    held_with_values = float(q + k) if len(inputs) == 1 and block.rotary else 0.0
    if low.repeats_keys and block.num_heads != block.num_key_value_heads:
        k, v = q, block.num_heads * value_dim
        held_with_values = 0.0
        tape.elementwise((part, "repeat keys"), 2.0 * (k + v) * c, launches=2, backward_launches=2)
    out = block.num_heads * value_dim
    _kernel(tape, part, q, k, v, out, block.num_heads, window=block.window, extra=held_with_values)
    if block.output_gate:
        tape.elementwise((part, "output gate"), 5.0 * out * c, launches=2, saved=2.0 * out * c)
    # the kernel's output is kept by the kernel itself; the output projection's input is the same storage
    tape.linear(part, output, keeps=_own_copy(tape, part, block.output_gate, out, output))


def latent_attention(tape: Tape, block: LatentAttention) -> None:
    """Add multi-head latent attention [DeepSeek-V2, arXiv:2405.04434] to the tape."""
    low, part = tape.lowering, block.path
    c = low.compute_bytes
    heads = block.num_heads
    q = heads * (block.qk_nope_head_dim + block.qk_rope_head_dim)
    entry = [p for p in block.projections[:-1] if p.in_features == block.hidden_size]
    kept = tape.kept_entry(block.hidden_size, *entry, part=part)
    inner = [p for p in block.projections[:-1] if p not in entry]
    for i, projection in enumerate(entry):
        tape.linear(part, projection, keeps=0.0 if i else kept, first_use=not i)
    for norm in block.norms:
        tape.norm(norm, part)
    for projection in inner:
        tape.linear(part, projection, keeps=low.kept_input(projection.in_features, projection, part=part))
    rope = (heads + 1) * block.qk_rope_head_dim
    _rotary(tape, part, rope)
    v, output = heads * block.value_head_dim, block.projections[-1]
    tape.elementwise((part, "concatenate"), 2.0 * 2 * q * c, launches=4)
    padded = low.attention == "flash" and q != v  # FlashAttention wants heads of one width
    if padded:
        tape.elementwise((part, "pad values"), (q + v) * c, launches=1)
        _kernel(tape, part, q, q, q, q, heads)
    else:  # the values are a view of what kv_b_proj returned, its keys beside them
        _kernel(tape, part, q, q, v, v, heads, extra=float(heads * block.qk_nope_head_dim))
    tape.linear(part, output, keeps=_own_copy(tape, part, padded, v, output))


def _rotary(tape: Tape, part: str, channels: float) -> None:
    """Add the rotary embedding of queries and keys; it keeps nothing of its own size."""
    scale = tape.lowering.compute_bytes / 2
    fused = tape.lowering.fused_kernels
    moved = (4.0 if fused else ROTARY_BYTES) * channels * scale
    tape.elementwise((part, "rotary"), moved, moved, launches=1.0 if fused else ROTARY_LAUNCHES)


def _own_copy(tape: Tape, part: str, copied: bool, width: float, output: Linear) -> float:
    """Return the bytes the output projection keeps beyond what the kernel already keeps."""
    low = tape.lowering
    kept = low.kept_input(width, output, part=part)
    return kept if copied or low.attention == "eager" else 0.0


def _kernel(
    tape: Tape,
    part: str,
    q: float,
    k: float,
    v: float,
    out: float,
    heads: int,
    *,
    window: int | None = None,
    extra: float = 0.0,
) -> None:
    """Add the attention kernel over `q`, `k`, `v`, `out` channels per token.

    `extra` are channels that stay in memory because q, k or v are views of a wider tensor;
    the matrix products of eager attention copy such views.
    """
    low = tape.lowering
    c = float(low.compute_bytes)
    io = c * (q + k + v + out)
    flash = low.attention != "eager"
    flops = Poly(pair=2.0 * (q + out))
    if flash:
        tape.ops.append(
            Op(
                path=(part, "attention kernel"),
                kind="attention",
                forward=Cost(flops.times(0.5), Poly(token=io), launches=1),
                backward=Cost(flops.times(1.25), Poly(token=2.5 * io), launches=3),
                saved_bytes=Poly(token=io + c * extra + 4.0 * heads),
                live_backward_bytes=Poly(token=io + 4.0 * out),
                dtype=low.compute_dtype,
                window=window,
            )
        )
        return
    tape.ops.append(
        Op(
            path=(part, "attention kernel"),
            kind="attention_eager",
            forward=Cost(flops, Poly(token=io, pair=heads * (7.0 * c + 8.0)), launches=6),
            backward=Cost(flops.times(2), Poly(token=2 * io, pair=heads * (10.0 * c + 12.0)), launches=9),
            saved_bytes=Poly(token=c * (q + k + v), pair=heads * (4.0 + c)),
            live_forward_bytes=Poly(pair=heads * 4.0),
            live_backward_bytes=Poly(pair=heads * (4.0 + 2 * c)),
            dtype=low.compute_dtype,
        )
    )
