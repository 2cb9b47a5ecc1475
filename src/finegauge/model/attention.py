"""Operators of attention: projections, rotary embedding, the attention kernel.

Scores and values cost 4·A·D FLOPs per query-key pair forward, halved where the kernel
skips what causality masks; FlashAttention's backward recomputes the scores and costs 2.5
times its forward [1]. It keeps q, k, v, the output and one log-sum-exp per query; eager
attention keeps the probabilities in fp32 and in the compute dtype.

[1] Dao 2023, arXiv:2307.08691
"""

from typing import NamedTuple

from finegauge.model.blocks import Attention, LatentAttention, Linear, Norm
from finegauge.model.gradient_pruning import cut_below, is_adapter, unreached
from finegauge.model.lowering import Lowering
from finegauge.model.op import Cost, Op, Poly, per_token
from finegauge.model.op_builder import Alive, Tape

ROTARY_BYTES = 20.0  # per channel: two products, negate and concatenate, sum (16 bit)
ROTARY_LAUNCHES = 10.0
UNPADDING_LAUNCHES = 13.0  # the kernel's own; lengths, their sum and largest; three copies in, one out


def attention(tape: Tape, block: Attention) -> None:
    """Add grouped-query attention to the tape, its input already normalised."""
    low, part = tape.lowering, block.path
    *inputs, output = block.projections
    c = low.compute_bytes
    kept = tape.kept_entry(block.hidden_size, *inputs, part=part)
    for i, projection in enumerate(inputs):
        beside = float(sum(before.out_features for before in inputs[:i]))
        tape.linear(part, projection, keeps=0.0 if i else kept, first_use=not i, beside=beside)
    value_dim = block.value_head_dim or block.head_dim
    q, k = block.num_heads * block.head_dim, block.num_key_value_heads * block.head_dim
    v = block.num_key_value_heads * value_dim
    if low.padded_adapters and len(inputs) == 1:  # the copy between zeros keeps what it copies
        widths = zip(("q_proj", "k_proj", "v_proj"), (q, k, v), strict=True)
        adapted = float(sum(width for name, width in widths if name in low.padded_adapters))
        tape.elementwise((part, "pad adapters"), (q + k + v + adapted) * c, saved=adapted * c)
    if block.clipped:  # keeps what is not bounded yet
        width = (q + k) * float(low.activation_bytes if block.qk_norms else c) + v * float(c)
        tape.elementwise(
            (part, "clip"), 2 * width, 3 * width, saved=width, alive=Alive(width, 2 * width, width)
        )
    asked = _asked(tape, block)
    for norm in block.qk_norms:
        of_q = norm.name.startswith("q")
        tape.norm(norm, part, repeats=max(1, (q if of_q else k) // norm.size), inside=not block.norms_last)
        if not (asked.q if of_q else asked.k):
            tape.ops[-1] = unreached(tape.ops[-1])
    if block.rotary:
        tables = 2.0 * low.numerics.own_tables * (block.rotary_dim or block.head_dim)
        _rotary(tape, part, q, k, around=block.hidden_size + v, tables=tables)
    products = _attend(tape, block, asked)
    out = block.num_heads * value_dim
    if block.output_gate:
        # the sigmoid and, where no kernel keeps it, what it multiplies
        kept = (block.gate_size or out) * c + (out * c if products else 0.0)
        tape.elementwise((part, "output gate"), 5.0 * out * c, launches=2, saved=kept)
    # the kernel's output is kept by the kernel itself; the output projection's input is the same storage
    copied = block.output_gate or products or not any(asked)
    tape.linear(part, output, keeps=_own_copy(tape, part, copied, out, output))


def _attend(tape: Tape, block: Attention, asked: "Asked") -> bool:
    """Add the kernel that serves this block; return whether it is made of matrix products.

    Rotated queries and keys are copies; the values of a fused projection are a view of all
    that it returned.
    """
    low, part, c = tape.lowering, block.path, tape.lowering.compute_bytes
    q, k = block.num_heads * block.head_dim, block.num_key_value_heads * block.head_dim
    v = block.num_key_value_heads * (block.value_head_dim or block.head_dim)
    out = block.num_heads * (block.value_head_dim or block.head_dim)
    sdpa, grouped = low.attention == "sdpa", block.num_heads != block.num_key_value_heads
    always = sdpa and low.numerics.always_masks
    masked = always or (sdpa and block.window in low.masked_windows)
    # PyTorch's own, of products in fp32, where no fused kernel takes such: a GPU's do not
    composite = sdpa and grouped and (always or (c == 4 and not masked and not low.on_cpu))
    products = composite or low.attention == "eager"
    fused = len(block.projections) == 2 and not block.copies_values
    normed = fused and _keeps_its_input(tape, block.qk_norms)  # such a norm keeps all of it
    viewed = float(q + k) if fused and block.rotary and not normed else 0.0
    if grouped and (low.repeats_keys or masked or products):
        k, v, viewed, normed = q, out, 0.0, False
        tape.elementwise((part, "repeat keys"), 2.0 * (k + v) * c, launches=2, backward_launches=2)
    if not products:
        op = _fused(low, part, Widths(q, k, v, out), block.num_heads, extra=viewed, masked=masked)
        tape.ops.append(op._replace(window=None if masked else block.window))
        return False
    op = _products(low, part, Widths(q, k, v, out), block.num_heads, asked, wide=composite)
    # several sequences' heads are copied together, those of one are multiplied where they lie
    copies = c * v if normed else 0.0
    repeated = 0.0  # keys and values that are only views of their heads
    if grouped and (block.num_key_value_heads == 1 or (low.numerics.always_masks and not composite)):
        read = 4.0 if composite else c
        repeated = read * (k + v) * (1 - block.num_key_value_heads / block.num_heads)
    shared = c * (k + v) * (1 - 1 / block.num_heads) if grouped and block.num_key_value_heads == 1 else 0.0
    held = op.saved_bytes.plus(Poly(token=copies, single=c * viewed - copies - repeated))
    passing = op.passing_bytes.plus(per_token(c * _named(block, fused=fused) - shared))
    tape.ops.append(op._replace(saved_bytes=held, passing_bytes=passing))
    return True


def _named(block: Attention, *, fused: bool) -> float:
    """Return the channels that the module's code holds beside what the products read.

    Keys and values before they are repeated; the whole of a fused projection, of which the
    values are a view; the channels that do not turn, views of whole heads, beside those that do.
    """
    q, k = block.num_heads * block.head_dim, block.num_key_value_heads * block.head_dim
    v = block.num_key_value_heads * (block.value_head_dim or block.head_dim)
    named = float(k + v) if 1 < block.num_key_value_heads < block.num_heads else 0.0
    if not block.rotary:
        return named
    if fused:
        named += q + k
    if block.rotary_dim:
        heads = q + k if block.qk_norms or not fused else 0
        named += heads + (q + k) * block.rotary_dim / block.head_dim
    return named


def _keeps_its_input(tape: Tape, norms: tuple[Norm, ...]) -> bool:
    """Return whether norms on queries and keys keep what they read itself, not an fp32 copy."""
    return bool(norms) and norms[0].kind == "layer" and not tape.widens(inside=True)


def _asked(tape: Tape, block: Attention) -> "Asked":
    """Return which of queries, keys and values need a gradient."""
    low, inputs = tape.lowering, block.projections[:-1]
    reached = [tape.reached or low.rank(p, "linear", block.path) > 0 for p in inputs]
    return Asked(*(reached * 3)[:3] if len(inputs) < 3 else reached[:3])


def latent_attention(tape: Tape, block: LatentAttention) -> None:
    """Add multi-head latent attention [DeepSeek-V2, arXiv:2405.04434] to the tape."""
    low, part = tape.lowering, block.path
    c = low.compute_bytes
    heads = block.num_heads
    q = heads * (block.qk_nope_head_dim + block.qk_rope_head_dim)
    start = len(tape.ops)
    asked = _through_low_rank(tape, block)
    rope = float(block.qk_rope_head_dim)
    _rotary(tape, part, heads * rope, rope, around=block.hidden_size + 2.0 * q)
    v, output = heads * block.value_head_dim, block.projections[-1]
    tape.elementwise((part, "concatenate"), 2.0 * 2 * q * c, launches=4)
    padded = low.attention == "flash" and q != v  # FlashAttention wants heads of one width
    if padded:
        tape.elementwise((part, "pad values"), (q + v) * c, launches=1)
        tape.ops.append(_fused(low, part, Widths(q, q, q, q), heads, extra=0.0, masked=False))
    else:  # the values are a view of what kv_b_proj returned, its keys beside them
        nope = float(heads * block.qk_nope_head_dim)
        if low.attention == "eager":  # the module's input, both projections down, what they and rotation left
            held = block.hidden_size + nope + (heads + 2) * rope + 2.0 * block.kv_lora_rank
            op = _products(low, part, Widths(q, q, v, v), heads, asked)
            op = op._replace(  # one sequence's heads are multiplied where they lie
                saved_bytes=op.saved_bytes.plus(Poly(single=c * nope)),
                passing_bytes=op.passing_bytes.plus(per_token(held * c)),
            )
        else:
            op = _fused(low, part, Widths(q, q, v, v), heads, extra=nope, masked=False)
        tape.ops.append(op)
    tape.linear(part, output, keeps=_own_copy(tape, part, padded or not any(asked), v, output))
    if not any(asked):
        tape.ops[start:] = cut_below(tape.ops[start:], dropout=low.lora_dropout)


def _through_low_rank(tape: Tape, block: LatentAttention) -> "Asked":
    """Add the projections of queries, and of keys and values; return which of these need a gradient.

    Where the block's input needs none, each of the two ways is cut below its own first adapter.
    """
    low, part, start = tape.lowering, block.path, len(tape.ops)
    entry = [p for p in block.projections[:-1] if p.in_features == block.hidden_size]
    inner = [p for p in block.projections[:-1] if p not in entry]
    kept = tape.kept_entry(block.hidden_size, *entry, part=part)
    keeper = next((i for i, p in enumerate(entry) if low.rank(p, "linear", part)), 0)
    of_queries: list[bool] = []  # of every operator
    for i, projection in enumerate(entry):
        tape.linear(part, projection, keeps=kept if i == keeper else 0.0, first_use=not i)
        of_queries += [projection.name.startswith("q")] * (len(tape.ops) - start - len(of_queries))
    for norm in block.norms:
        tape.norm(norm, part, inside=True)
        of_queries += [norm.name.startswith("q")] * (len(tape.ops) - start - len(of_queries))
    for projection in inner:
        tape.linear(part, projection, keeps=low.kept_input(projection.in_features, projection, part=part))
        of_queries += [projection.name.startswith("q")] * (len(tape.ops) - start - len(of_queries))
    if tape.reached:
        return Asked()
    ways = {True: list[Op](), False: list[Op]()}
    for way, op in zip(of_queries, tape.ops[start:], strict=True):
        ways[way].append(op)
    q, kv = (any(map(is_adapter, ways[way])) for way in (True, False))
    rest = {way: iter(cut_below(ops, dropout=low.lora_dropout)) for way, ops in ways.items()}
    tape.ops[start:] = [next(rest[way]) for way in of_queries]
    return Asked(q, kv, kv)


def _rotary(tape: Tape, part: str, q: float, k: float, around: float, tables: float = 0.0) -> None:
    """Add the rotary embedding of queries, then keys; it keeps nothing of its own size.

    `around` are the channels that the module still holds meanwhile: its input, the values;
    `tables` those of the sines and cosines that it made itself, and keeps.
    """
    channels, scale = q + k, tape.lowering.compute_bytes / 2
    fused = tape.lowering.fused_kernels
    moved = (4.0 if fused else ROTARY_BYTES) * channels * scale
    c = float(tape.lowering.compute_bytes)
    tape.elementwise(
        (part, "rotary"),
        moved,
        moved,
        launches=1.0 if fused else ROTARY_LAUNCHES,
        saved=Poly(
            length=tables * (4 if tape.lowering.numerics.wide_tables else tape.lowering.activation_bytes)
        ),
        alive=Alive(
            3.0 * channels * c, 3.0 * channels * c, (max(4.0 * q + k, 2.0 * q + 4.0 * k) + around) * c
        ),
    )


def _own_copy(tape: Tape, part: str, copied: bool, width: float, output: Linear) -> float:
    """Return the bytes the output projection keeps beyond what the kernel already keeps."""
    low = tape.lowering
    kept = low.kept_input(width, output, part=part)
    return kept if copied or low.attention == "eager" else 0.0


def _fused(low: Lowering, part: str, widths: "Widths", heads: int, *, extra: float, masked: bool) -> Op:
    """Return attention as one kernel over its channels per token, for every pair before each query.

    `extra` are channels that stay in memory because q, k or v are views of a wider tensor;
    `masked`: it reads a mask, as PyTorch's memory-efficient kernel does, and skips nothing.
    """
    c = float(low.compute_bytes)
    io = c * sum(widths)
    flops = Poly(pair=2.0 * (widths.q + widths.out)).times(1.0 if masked else 0.5)
    return Op(
        path=(part, "attention kernel"),
        kind="attention",
        forward=Cost(flops, Poly(token=io), launches=UNPADDING_LAUNCHES if low.unpads else 1),
        backward=Cost(flops.times(2.5), Poly(token=2.5 * io), launches=3),
        saved_bytes=Poly(token=io + c * extra + 4.0 * heads, pair=c if masked else 0.0),
        live_forward_bytes=Poly(token=c * widths.out),
        live_backward_bytes=Poly(token=io + 4.0 * widths.out),
        passing_bytes=Poly(token=2.0 * io, pair=c if masked else 0.0),
        dtype=low.compute_dtype,
        heads=heads,
        generation=low.attention_generation,
        synchronises=low.unpads,
    )


class Widths(NamedTuple):
    """Channels per token of what attention reads and returns, keys and values repeated."""

    q: float
    k: float
    v: float
    out: float


class Asked(NamedTuple):
    """Which inputs of attention need a gradient."""

    q: bool = True
    k: bool = True
    v: bool = True


def _products(
    low: Lowering, part: str, widths: Widths, heads: int, asked: Asked, *, wide: bool = False
) -> Op:
    """Return attention as matrix products and a softmax, over all pairs whatever the mask hides.

    `wide`: all in fp32, as PyTorch's own composite computes it.
    """
    q, k, v, out = widths
    c = float(low.compute_bytes)
    io = c * sum(widths)
    scores, values = Poly(pair=2.0 * q), Poly(pair=2.0 * out)
    scored = asked.q or asked.k
    backward = scores.times(asked.q + asked.k).plus(values.times(scored + asked.v))
    scoring = 4.0 if wide or (low.numerics.wide_scores and not low.autocast) else c
    kept = scoring * (q * asked.k + k * asked.q) + (4.0 if wide else c) * v * scored
    per_score = 4.0 if wide else _kept_per_score(low, scored=scored, weighed=asked.v)
    softmax = _softmax_bytes(low)
    joined = c if low.numerics.sinks == "column" else 0.0  # scores and sinks beside the scores
    moved, moved_back, launches = 7.0 * c + 8.0, 10.0 * c + 12.0, (6, 9)
    if (
        low.megatron
    ):  # products write and read scores, one softmax reads and writes them; dropout and its mask
        dropped = 2.0 * c + 1.0 if "scores" in low.numerics.dropout else 0.0
        moved, moved_back, launches = 4.0 * c + dropped, 7.0 * c + dropped, (4, 6)
    return Op(
        path=(part, "attention kernel"),
        kind="attention_eager",
        forward=Cost(scores.plus(values), Poly(token=io, pair=heads * moved), launches=launches[0]),
        backward=Cost(backward, Poly(token=2 * io, pair=heads * moved_back), launches=launches[1]),
        saved_bytes=Poly(token=kept, pair=heads * per_score).plus(_kept_of_sinks(low, heads, out, asked)),
        live_forward_bytes=Poly(pair=heads * 4.0),
        live_backward_bytes=Poly(token=io, pair=heads * (2.0 * softmax - (c if c < softmax else 0.0))),
        passing_bytes=Poly(
            token=c * (2.0 * q + k + v), pair=heads * (2.0 * softmax + (c if c < softmax else joined))
        ),
        lingering_bytes=Poly() if wide else Poly(pair=heads * c),  # the probabilities
        dtype=low.compute_dtype,
        heads=heads,
    )


def _softmax_bytes(low: Lowering) -> float:
    """Return the bytes per score of what the softmax returns."""
    narrow = (low.numerics.narrow_softmax and not low.autocast) or low.megatron
    if low.numerics.sinks == "column":  # scores and sinks in one tensor, as wide as the wider of both
        narrow = low.weight_bytes < 4
    return float(low.compute_bytes) if narrow else 4.0


def _kept_per_score(low: Lowering, *, scored: bool, weighed: bool) -> float:
    """Return the bytes that attention by products keeps per head, query and key.

    The softmax keeps its result, in fp32 for most, for the gradient of the scores; the
    product with the values keeps what it reads, for theirs: that result in the compute
    dtype, or what dropout left of it. Dropout keeps its mask, a soft cap its tanh.
    """
    c = float(low.compute_bytes)
    softmax = _softmax_bytes(low)
    dropped = "scores" in low.numerics.dropout
    kept = 0.0
    if scored:
        kept += softmax + (c if low.numerics.softcap else 0.0) + (1.0 if dropped else 0.0)
    if weighed and (dropped or c != softmax or not scored):
        kept += c
    return kept


def _kept_of_sinks(low: Lowering, heads: int, out: float, asked: Asked) -> Poly:
    """Return what sinks make attention by products keep beside its softmax.

    As a column of the scores: their place in the softmax, and where each query's largest
    score stands (int64). As a scale of the output, sigmoid(logsumexp(scores) - sink) in fp32:
    the scores, their logsumexp, the sigmoid, and both factors of the product.
    """
    c, scored = float(low.compute_bytes), asked.q or asked.k
    if low.numerics.sinks == "column":
        column = 4.0 if low.weight_bytes == 4 else c
        return Poly(token=heads * (column + 8.0) if scored else 0.0)
    if low.numerics.sinks == "scaled":
        through = heads * (c + 4.0) + c * out if scored else 0.0
        return Poly(token=through + heads * c, pair=heads * c if scored else 0.0)
    return Poly()
