"""Operators of attention: projections, rotary embedding, the attention kernel.

Scores and values cost 4·A·D FLOPs per query-key pair forward, halved where the kernel
skips what causality masks; FlashAttention's backward recomputes the scores and costs 2.5
times its forward [1]. It keeps q, k, v, the output and one log-sum-exp per query; eager
attention keeps the probabilities in fp32 and in the compute dtype.

[1] Dao 2023, arXiv:2307.08691
[2] softmax_backward_cuda_out in aten/src/ATen/native/cuda/SoftMax.cu of PyTorch (read 2026-11-22)
"""

from finegauge.model.blocks import Attention, LatentAttention, Linear, Norm
from finegauge.model.lowering import Lowering
from finegauge.model.op import Cost, Op, Poly, per_token
from finegauge.model.op_builder import OpBuilder, cut_below, is_adapter, unreached

ROTARY_BYTES = 20.0  # per channel: two products, negate and concatenate, sum (16 bit)
ROTARY_LAUNCHES = 10.0
# stand for the generation of PyTorch's memory-efficient kernel, which takes masks and fp32; heads of more
# than 128 channels take one that sums its output in memory
EFFICIENT, EFFICIENT_WIDE_HEADS, MOST_IN_REGISTERS = 0, -1, 128
UNPADDING_LAUNCHES = 13.0  # the kernel's own; lengths, their sum and largest; three copies in, one out

Widths = tuple[float, float, float, float]  # channels per token of q, k and v as they are read, of the output
Needed = tuple[bool, bool, bool]  # which of q, k and v need a gradient


def attention(builder: OpBuilder, block: Attention) -> None:
    """Add grouped-query attention, its input already normalised."""
    low, part = builder.lowering, block.path
    *inputs, output = block.projections
    c, beside = low.compute_bytes, 0.0
    builder.entry_kept = 0.0 if block.scaled else builder.entry_kept
    kept = builder.kept_entry(block.hidden_size, *inputs[: 1 if block.crosses else None], part=part)
    reached: list[bool] = []
    for projection in inputs:
        rows = low.source_ratio if block.crosses and reached else 1.0  # an encoder's states are kept once
        builder.linear(part, projection, rows=rows, keeps=kept, first_use=not beside, beside=beside / rows)
        beside, kept = beside + rows * projection.out_features, 0.0
        reached.append(builder.reached or low.rank(projection, "linear", part) > 0)
    of_q, of_k, of_v = (reached * 3)[:3]
    prefixed = low.adapter == "prefix_tuning"
    needed = (of_q, of_k or prefixed, of_v or prefixed)
    q, k, v, out = block.widths
    if low.padded_adapters and len(inputs) == 1:  # the copy between zeros keeps what it copies
        widths = {"q_proj": q, "k_proj": k, "v_proj": v}
        adapted = float(sum(map(widths.__getitem__, low.padded_adapters)))
        builder.elementwise((part, "pad adapters"), (q + k + v + adapted) * c, saved=adapted * c)
    if block.clipped:  # keeps what is not bounded yet
        width = (q + k) * float(low.activation_bytes if block.norms else c) + v * float(c)
        alive = (width, 2 * width, width)
        builder.elementwise((part, "clip"), 2 * width, 3 * width, saved=width, alive=alive)
    for norm in block.norms:
        queries = norm.name.startswith("q")
        vectors = max(1, (q if queries else k) // norm.size)
        builder.norm(norm, part, repeats=vectors, inside=not block.norms_last)
        if not (of_q if queries else of_k):
            builder.ops[-1] = unreached(builder.ops[-1])
    if block.rotary:
        tables = 2.0 * low.numerics.own_tables * (block.rotary_dim or block.head_dim)
        _rotary(builder, part, q, k, around=block.hidden_size + v, tables=tables)
    if prefixed:
        _prefix(builder, part, q, float(k + v))
    if block.relative:
        _relative(builder, block, needed)
    products = _attend(builder, block, needed)
    if block.output_gate:
        # the sigmoid and, where no kernel keeps it, what it multiplies
        kept = (block.gate_size or out) * c + (out * c if products else 0.0)
        builder.elementwise((part, "output gate"), 5.0 * out * c, launches=2, saved=kept)
    # the kernel's output is kept by the kernel itself; the output projection's input is the same storage
    builder.norm(block.out_norm, part, inside=True, beside=(out + block.hidden_size) * float(c))
    joined = block.joins and low.attention != "flash"
    copied = block.output_gate or products or block.out_norm or joined or not any(needed)
    builder.linear(part, output, keeps=low.kept_input(out, output, part=part) if copied else 0.0)


def _prefix(builder: OpBuilder, part: str, queries: int, width: float) -> None:
    """Add the keys and values of prefix tuning, which every query sees before those of its sequence.

    They are written behind each other, and kept with them, `width` channels of a token in all.
    """
    low = builder.lowering
    tokens, c = low.adapter_size, low.compute_bytes
    seen = per_token(4.0 * queries * tokens)
    copied = Poly(sequence=2.0 * tokens * width * c, token=2.0 * width * c)
    builder.ops.append(
        Op(
            (part, "adapter"),
            "gemm",
            forward=Cost(seen, copied, launches=2),
            backward=Cost(seen.times(2.5), copied, launches=2),
            saved_bytes=Poly(sequence=tokens * width * c),
            gradient_bytes=tokens * width * low.adapter_bytes,
            dtype=low.compute_dtype,
        )
    )


def _relative(builder: OpBuilder, block: Attention, needed: Needed) -> None:
    """Add the scores of words with distances and of distances with words [DeBERTa, arXiv:2006.03654].

    The projections of queries and keys read a table of distances too, once for all sequences; what they
    return is copied for every sequence and multiplied with keys and queries; each pair picks its distance.

    Picking keeps what it picks from. Without dropout one table serves all layers; it is counted for each.

    Neglects: the pairs' distances, whole numbers that all sequences share.
    """
    low, part, (q, k, _, _) = builder.lowering, block.path, block.widths
    rows, hidden, c = float(block.relative), float(block.hidden_size), float(low.compute_bytes)
    of_q, of_k, _ = needed
    pair, met = block.num_heads * c, block.num_heads * rows * c
    made = made_back = 0.0
    learns: list[bool] = []
    for linear, width in zip(block.projections, (q, k), strict=False):
        product, rank = 2.0 * rows * hidden * width, low.rank(linear, "linear", part)
        made += product + 2.0 * rows * rank * (hidden + width)
        made_back += product * low.weights_train * (1 if low.last_layers else 2)
        made_back += 2.0 * rows * rank * (hidden + 2 * width)
        learns.append(low.weights_train or rank > 0)
    of_words, of_distances = 2.0 * rows * (q * of_q + k * of_k), 2.0 * rows * (k * learns[1] + q * learns[0])
    tables = rows * (q + k) * c
    dropped = rows * hidden * (c + ("attention" in low.numerics.dropout)) * any(learns)
    builder.ops.append(
        Op(
            path=(part, "relative positions"),
            kind="attention_eager",
            forward=Cost(
                Poly(const=made, token=2.0 * rows * (q + k)),
                Poly(sequence=2.0 * tables, token=(q + k) * c + 4.0 * met, pair=7.0 * pair),
                launches=20,
            ),
            backward=Cost(
                Poly(const=made_back, token=of_words + of_distances),
                Poly(sequence=4.0 * tables, token=3.0 * (q + k) * c + 6.0 * met, pair=8.0 * pair),
                launches=24,
            ),
            saved_bytes=Poly(
                const=dropped,
                sequence=rows * c * (k * of_q + q * of_k),
                token=k * c * learns[0] + met * (of_q or learns[1]) + met * (of_k or learns[0]),
                pair=1.0,
            ),
            live_forward_bytes=Poly(token=met, pair=pair),
            live_backward_bytes=Poly(sequence=tables / 2, token=met + q * c, pair=2.0 * pair),
            passing_bytes=Poly(sequence=tables, token=2.0 * (q + k) * c + met, pair=2.0 * pair),
            dtype=low.compute_dtype,
            heads=block.num_heads,
        )
    )


def _attend(builder: OpBuilder, block: Attention, needed: Needed) -> bool:
    """Add the kernel that serves this block; return whether it is made of matrix products.

    Rotated queries and keys are copies; the values of a fused projection are a view of all
    that it returned.
    """
    low, part, c = builder.lowering, block.path, builder.lowering.attention_bytes
    q, k, v, out = block.widths
    rows = low.source_ratio if block.crosses else 1.0
    heads, kv_heads = block.num_heads, block.num_key_value_heads
    sdpa, grouped, always = low.attention == "sdpa", heads != kv_heads, low.numerics.always_masks
    masked = sdpa and (always or low.masks or block.window in low.masked_windows)
    # PyTorch's own, of products in fp32, where no fused kernel takes such: a GPU's do not
    flashless = (c == 4 and not low.on_cpu) or low.flashless
    composite = sdpa and grouped and (always or (flashless and low.composite_groups and not masked))
    products = composite or low.attention == "eager"
    fused = len(block.projections) == 2 and not block.copies_values
    # a norm on queries and keys that keeps what it reads, and no fp32 copy, keeps all of a fused projection
    normed = (
        fused and bool(block.norms) and block.norms[0].kind == "layer" and not builder.widens(inside=True)
    )
    viewed = float(q + k) if fused and block.rotary and not normed else 0.0
    if grouped and (low.repeats_keys or masked or products):
        k, v, viewed, normed = q, out, 0.0, False
        builder.elementwise((part, "repeat keys"), 2.0 * (k + v) * c, launches=2, backward_launches=2)
    if not products:
        widths = q, rows * k, rows * v, out
        op = _fused(low, part, widths, heads, extra=viewed, masked=masked, causal=block.causal)
        builder.ops.append(op._replace(window=None if masked else block.window).of_pairs(rows))
        return False
    op = _products(low, part, (q, rows * k, rows * v, out), heads, needed, wide=composite).of_pairs(rows)
    # several sequences' heads are copied together, those of one are multiplied where they lie
    copies = c * v if normed else 0.0
    repeated = 0.0  # keys and values that are only views of their heads
    if grouped and (kv_heads == 1 or (always and not composite)):
        repeated = (4.0 if composite else c) * (k + v) * (1 - kv_heads / heads)
    shared = c * (k + v) * (1 - 1 / heads) if grouped and kv_heads == 1 else 0.0
    held = op.saved_bytes.plus(Poly(token=copies, single=c * viewed - copies - repeated))
    passing = op.passing_bytes.plus(per_token(c * _named(block, fused=fused) - shared))
    op = op._replace(saved_bytes=held, passing_bytes=passing)
    if composite:
        op = _widened(builder, op, block, values=v)
    builder.ops.append(op)
    return True


def _widened(builder: OpBuilder, op: Op, block: Attention, *, values: float) -> Op:
    """Return PyTorch's own attention `op`, which multiplies `values` channels per token, with its copies.

    Queries and keys are there in fp32 before and after they are scaled, values once, beside the narrow ones
    and a mask: with the scores and what the mask leaves of them, after which the operator before is the
    worst, then with the softmax, its narrow copy and the product.
    """
    q, k, v, out = block.widths
    c, heads = float(builder.lowering.attention_bytes), block.num_heads
    held = 4.0 * (2 * q + 2 * k + v) + c * (block.hidden_size + 2 * q + k + v)
    scores = Poly(token=held, pair=8.0 * heads + c)
    builder.ops[-1] = builder.ops[-1]._replace(passing_bytes=scores)
    return op._replace(
        live_forward_bytes=op.live_forward_bytes.plus(
            Poly(token=4.0 * (q + k) + c * (2 * q + 2 * k + v), pair=c)
        ),
        passing_bytes=Poly(token=held + 4.0 * (values + out - k), pair=(4.0 + c) * heads + c),
    )


def _named(block: Attention, *, fused: bool) -> float:
    """Return the channels that the module's code holds beside what the products read.

    Keys and values before they are repeated; the whole of a fused projection, of which the
    values are a view; the channels that do not rotate, views of whole heads, beside those that do.
    """
    q, k, v, _ = block.widths
    named = float(k + v) if 1 < block.num_key_value_heads < block.num_heads else 0.0
    if not block.rotary:
        return named
    if fused:
        named += q + k
    if block.rotary_dim:
        heads = q + k if block.norms or not fused else 0
        named += heads + (q + k) * block.rotary_dim / block.head_dim
    return named


def latent_attention(builder: OpBuilder, block: LatentAttention) -> None:
    """Add multi-head latent attention [DeepSeek-V2, arXiv:2405.04434]."""
    low, part, heads, start = builder.lowering, block.path, block.num_heads, len(builder.ops)
    c, rope, v = low.compute_bytes, float(block.qk_rope_head_dim), heads * block.value_head_dim
    q, nope = heads * (block.qk_nope_head_dim + block.qk_rope_head_dim), float(heads * block.qk_nope_head_dim)
    needed = _through_low_rank(builder, block)
    if block.rotary:
        _rotary(builder, part, heads * rope, rope, around=block.hidden_size + 2.0 * q)
    builder.elementwise((part, "concatenate"), 2.0 * 2 * q * c, launches=4)
    padded = low.attention == "flash" and q != v  # FlashAttention wants heads of one width
    if padded:
        builder.elementwise((part, "pad values"), (q + v) * c, launches=1)
        op = _fused(low, part, (q, q, q, q), heads, extra=0.0, masked=False)
    elif low.attention == "eager":  # the module's input, both projections down, what they and rotation left
        held = block.hidden_size + nope + (heads + 2) * rope + 2.0 * block.kv_lora_rank
        op = _products(low, part, (q, q, v, v), heads, needed)
        op = op._replace(  # one sequence's heads are multiplied where they lie
            saved_bytes=op.saved_bytes.plus(Poly(single=c * nope)),
            passing_bytes=op.passing_bytes.plus(per_token(held * c)),
        )
    else:  # the values are a view of what kv_b_proj returned, its keys beside them
        op = _fused(low, part, (q, q, v, v), heads, extra=nope, masked=False)
    builder.ops.append(op)
    output, gate = block.projections[-1], next((p for p in block.projections if p.name == "g_proj"), None)
    if gate:  # a sigmoid of the block's input, and what it multiplies where no kernel keeps that
        kept = gate.out_features * (c + 4.0) + (v * c if low.attention == "eager" else 0.0)
        builder.elementwise((part, "output gate"), 5.0 * v * c, launches=4, saved=kept)
    copied = padded or gate or low.attention == "eager" or not any(needed)
    builder.linear(part, output, keeps=low.kept_input(v, output, part=part) if copied else 0.0)
    if not any(needed):
        builder.ops[start:] = cut_below(builder.ops[start:], dropout=low.lora_dropout)


def _through_low_rank(builder: OpBuilder, block: LatentAttention) -> Needed:
    """Add the projections of queries, and of keys and values; return which of these need a gradient.

    Where the block's input needs none, each of the two ways is cut below its own first adapter.
    """
    low, part, start = builder.lowering, block.path, len(builder.ops)
    entry = [p for p in block.projections[:-1] if p.in_features == block.hidden_size]
    inner = [p for p in block.projections[:-1] if p not in entry]
    kept = builder.kept_entry(block.hidden_size, *entry, part=part)
    keeper = next((p for p in entry if low.rank(p, "linear", part)), entry[0])
    of_queries: list[bool] = []  # of every operator
    parts: tuple[Linear | Norm, ...] = (*entry, *block.norms, *inner)
    for each in parts:
        if not isinstance(each, Linear):
            builder.norm(each, part, inside=True)
        elif each in entry:
            builder.linear(part, each, keeps=kept if each is keeper else 0.0, first_use=each is entry[0])
        else:
            builder.linear(part, each, keeps=low.kept_input(each.in_features, each, part=part))
        of_queries += [each.name.startswith("q")] * (len(builder.ops) - start - len(of_queries))
    if builder.reached:
        return True, True, True
    ways: dict[bool, list[Op]] = {True: [], False: []}
    for way, op in zip(of_queries, builder.ops[start:], strict=True):
        ways[way].append(op)
    q, kv = (any(map(is_adapter, ways[way])) for way in (True, False))
    rest = {way: iter(cut_below(ops, dropout=low.lora_dropout)) for way, ops in ways.items()}
    builder.ops[start:] = [next(rest[way]) for way in of_queries]
    return q, kv, kv


def _rotary(builder: OpBuilder, part: str, q: float, k: float, around: float, tables: float = 0.0) -> None:
    """Add the rotary embedding of queries, then keys; it keeps nothing of its own size.

    `around` are the channels that the module still holds meanwhile: its input, the values;
    `tables` those of the sines and cosines that it made itself, and keeps.
    """
    low, channels = builder.lowering, q + k
    c, fused = float(low.attention_bytes), low.fused_kernels
    moved = (4.0 if fused else ROTARY_BYTES) * channels * c / 2
    builder.elementwise(
        (part, "rotary"),
        moved,
        moved,
        launches=1.0 if fused else ROTARY_LAUNCHES,
        saved=Poly(length=tables * (4 if low.numerics.wide_tables else low.activation_bytes)),
        alive=(3.0 * channels * c, 3.0 * channels * c, (max(4.0 * q + k, 2.0 * q + 4.0 * k) + around) * c),
    )


def _fused(
    low: Lowering, part: str, widths: Widths, heads: int, *, extra: float, masked: bool, causal: bool = True
) -> Op:
    """Return attention as one kernel over its channels per token, for every pair before each query, or all.

    `extra` are channels that stay in memory because q, k or v are views of a wider tensor;
    `masked`: it reads a mask, as PyTorch's memory-efficient kernel does, and skips nothing.
    """
    c, (q, _, _, out) = float(low.attention_bytes), widths
    io, mask = c * sum(widths), c if masked else 0.0
    efficient = low.attention == "sdpa" and (masked or c == 4 or low.flashless)
    flops = Poly(pair=2.0 * (q + out) * (0.5 if causal and not masked else 1.0))
    own = EFFICIENT if max(q, out) <= MOST_IN_REGISTERS * heads else EFFICIENT_WIDE_HEADS
    return Op(
        path=(part, "attention kernel"),
        kind="attention",
        forward=Cost(flops, Poly(token=io), launches=UNPADDING_LAUNCHES if low.unpads else 1),
        backward=Cost(flops.times(2.5), Poly(token=2.5 * io), launches=3),
        saved_bytes=Poly(token=io + c * extra + 4.0 * heads, pair=mask),
        live_forward_bytes=Poly(token=c * out),
        live_backward_bytes=Poly(token=io + 4.0 * out),
        passing_bytes=Poly(token=2.0 * io, pair=mask),
        dtype="fp32" if c == 4 else low.compute_dtype,
        heads=heads,
        generation=own if not low.on_cpu and efficient else low.attention_generation,
        is_sdpa=low.attention == "sdpa",
        synchronises=low.unpads,
    )


def _products(
    low: Lowering, part: str, widths: Widths, heads: int, needed: Needed, *, wide: bool = False
) -> Op:
    """Return attention as matrix products and a softmax, over all pairs whatever the mask hides.

    `wide`: all in fp32, as PyTorch's own composite computes it. The softmax keeps its result, in fp32 for
    most, for the gradient of the scores; the product with the values keeps what it reads, for theirs: that
    result in the compute dtype, or what dropout left of it. Dropout keeps its mask, a soft cap its tanh.
    """
    (q, k, v, out), numerics, c = widths, low.numerics, float(low.attention_bytes)
    (of_q, of_k, of_v), scored, io = needed, needed[0] or needed[1], c * sum(widths)
    scores, values = Poly(pair=2.0 * q), Poly(pair=2.0 * out)
    backward = scores.times(of_q + of_k).plus(values.times(scored + of_v))
    scoring = 4.0 if wide or (numerics.wide_scores and not low.autocast) else c
    kept = scoring * (q * of_k + k * of_q) + (4.0 if wide else c) * v * scored
    column, dropped = numerics.sinks == "column", "scores" in numerics.dropout
    narrow = (numerics.narrow_softmax and not low.autocast) or low.megatron
    if column:  # scores and sinks in one tensor, as wide as the wider of both
        narrow = low.weight_bytes < 4 and not numerics.wide_scores
    softmax = c if narrow else 4.0  # bytes per score of what it returns
    per_score = 4.0 if wide else 0.0
    if scored and not wide:
        per_score += softmax + (c if numerics.softcap else 0.0) + (1.0 if dropped else 0.0)
    if of_v and not wide and (dropped or c != softmax or not scored):
        per_score += c
    moved, moved_back, launches = 7.0 * c + 8.0, 10.0 * c + 12.0, (6, 9)
    if low.megatron:  # products write and read scores, one softmax reads and writes them; dropout, its mask
        mask = 2.0 * c + 1.0 if dropped else 0.0
        moved, moved_back, launches = 4.0 * c + mask, 7.0 * c + mask, (4, 6)
    if low.clamps_scores:  # backward: equal, halved, chosen, less, filled (`maximum` in derivatives.yaml)
        per_score, launches = per_score + c * scored, (launches[0] + 1, launches[1] + 5)
        moved, moved_back = moved + 2.0 * c, moved_back + 9.0 * c + 4.0
    beside = c if c < softmax else c if column else 0.0  # scores and sinks beside the scores
    differentiated, gradients = 2.0 * softmax - (c if c < softmax else 0.0), io
    if not (low.on_cpu or low.megatron):
        # CUDA multiplies gradient and result first, and widens fp16 itself [2]; values have their gradient
        itself = c < softmax and low.compute_dtype == "fp16"
        beside -= c if itself else 0.0
        differentiated = 2.0 * softmax if itself else 3.0 * softmax - (c if c < softmax else 0.0)
        gradients = c * v
    return Op(
        path=(part, "attention kernel"),
        kind="attention_eager",
        forward=Cost(scores.plus(values), Poly(token=io, pair=heads * moved), launches=launches[0]),
        backward=Cost(backward, Poly(token=2 * io, pair=heads * moved_back), launches=launches[1]),
        saved_bytes=Poly(token=kept, pair=heads * per_score).plus(
            _kept_of_sinks(low, heads, out, scored=scored)
        ),
        live_forward_bytes=Poly(pair=heads * 4.0),
        live_backward_bytes=Poly(token=gradients, pair=heads * differentiated),
        passing_bytes=Poly(token=c * (2.0 * q + k + v), pair=heads * (2.0 * softmax + beside)),
        lingering_bytes=Poly() if wide else Poly(pair=heads * c),  # the probabilities
        dtype="fp32" if wide or c == 4 else low.compute_dtype,
        heads=heads,
    )


def _kept_of_sinks(low: Lowering, heads: int, out: float, *, scored: bool) -> Poly:
    """Return what sinks make attention by products keep beside its softmax.

    As a column of the scores: their place in the softmax, and where each query's largest
    score stands (int64). As a scale of the output, sigmoid(logsumexp(scores) - sink) in fp32:
    the scores, their logsumexp, the sigmoid, and both factors of the product.
    """
    c = float(low.compute_bytes)
    if low.numerics.sinks == "column" and scored:
        return Poly(token=heads * ((4.0 if low.weight_bytes == 4 else c) + 8.0))
    if low.numerics.sinks == "scaled":
        through = heads * (c + 4.0) + c * out if scored else 0.0
        return Poly(token=through + heads * c, pair=heads * c if scored else 0.0)
    return Poly()
