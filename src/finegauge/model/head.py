"""Operators outside the layers: embedding, final norm, output head and loss.

For a large vocabulary the loss is the peak of the step: logits in 16 bit, their fp32
copy, the log-probabilities and their gradient are V values per token each. How many of
them live together depends on the code: 14 V bytes per token in transformers 4.46-4.49
(16-bit logits, fp32 copy, shifted copy, log-probabilities), 12 V before (the 16-bit logits
are dropped) and after (the labels are shifted instead; the peak moves to the backward).
"""

from finegauge.model.blocks import Architecture, Attention
from finegauge.model.gradient_pruning import cut_below, unreached
from finegauge.model.lowering import Lowering
from finegauge.model.op import Cost, Op, Poly, per_token
from finegauge.model.op_builder import OpBuilder

FULL_LOSS_FORWARD_BYTES = 22.0  # to fp32 (6), shift (8), log-softmax (8), per logit
FULL_LOSS_BACKWARD_BYTES = 34.0  # nll (4), log-softmax (12), shift (12), to 16 bit (6)
FUSED_LOSS_BYTES = 16.0
CHUNK_TOKENS = 256.0
OUTPUT_CHUNKS = 8  # CEWithChunkedOutputLoss of torchtune 0.4, which keeps them all (read 2026-11-21)


def embedding(builder: OpBuilder, model: Architecture) -> None:
    """Add the look-up of token (and position) embeddings."""
    low, h = builder.lowering, model.hidden_size
    a = low.activation_bytes
    words, *others = (float(t.size * low.weight_bytes) * low.weights_train for t in model.embeddings)
    table = words + sum(others)
    kept = float(h) if "embedding" in low.numerics.dropout and low.input_gradients else 0.0  # a mask
    builder.ops.append(
        Op(
            ("embedding", "look up"),
            "gather",
            forward=Cost(bytes=per_token(2.0 * h * a), launches=2),
            backward=Cost(
                bytes=Poly(const=2 * table, token=3.0 * h * a if table else 0.0), launches=2 if table else 0
            ),
            saved_bytes=_positions(low, model).plus(per_token(kept)),
            live_backward_bytes=Poly(const=words if model.head is None else 0.0),  # the head's is beside it
            gradient_bytes=table if model.head is not None else sum(others),
            dtype=low.compute_dtype,
        )
    )
    start = len(builder.ops)
    for linear in model.widening[:1]:
        builder.linear(
            "embedding", linear, keeps=low.kept_input(linear.in_features, linear, part="embedding")
        )
    if not low.input_gradients:
        builder.ops[start:] = cut_below(builder.ops[start:], dropout=low.lora_dropout)
    if model.embedding_norm is not None:
        builder.norm(model.embedding_norm, "embedding")
        if not (low.input_gradients or low.norms_train):
            builder.ops[-1] = unreached(builder.ops[-1])


def _positions(low: Lowering, model: Architecture) -> Poly:
    """Return the bytes of the sines and cosines that all layers of a model share and keep."""
    if low.numerics.own_tables:
        return Poly()
    channels = 2.0 * sum(model.rotary_dims)
    if low.numerics.tables_by_kind:
        mixers = (branch.mixer for layer, _ in model.layers for branch in layer.branches)
        channels *= len({mixer.window is None for mixer in mixers if isinstance(mixer, Attention)})
    return Poly(length=channels * (4 if low.numerics.wide_tables else low.activation_bytes))


def head(builder: OpBuilder, model: Architecture) -> None:
    """Add final norm, output projection and cross-entropy loss."""
    low, v, width = builder.lowering, float(model.vocab_size), model.projection.in_features
    builder.norm(model.final_norm, "head")
    for linear in model.widening[1:]:
        builder.linear("head", linear, keeps=low.kept_input(linear.in_features, linear, part="head"))
    builder.linear(
        "head",
        model.projection,
        kind="head",
        keeps=low.kept_input(width, model.projection, kind="head", part="head"),
    )
    if low.loss == "full_logits" and (low.numerics.scaled_logits or low.numerics.logit_cap):
        w = v * low.compute_bytes
        read = 0.0 if builder.ops[-1].saved_bytes.token else float(low.compute_bytes * width)
        builder.elementwise(("head", "scale"), 2 * w, alive=(2 * w + read, 2 * w, 0.0))
    forward, backward = FULL_LOSS_FORWARD_BYTES, FULL_LOSS_BACKWARD_BYTES
    launches = 8.0
    if low.loss != "full_logits":
        forward = backward = FUSED_LOSS_BYTES / 2
        launches = 3.0
    elif low.narrow_loss:
        forward, backward = forward / 2, backward / 2
    saved, live, differentiated = loss_bytes(low, model)
    if low.loss != "full_logits":
        builder.ops[-1] = _inside_the_loss(builder.ops[-1], low, model)
    elif low.numerics.wide_logits and low.compute_bytes < 4:
        both = builder.ops[-1].live_forward_bytes.plus(per_token(4.0 * v))
        builder.ops[-1] = builder.ops[-1]._replace(live_forward_bytes=both)
    # the output object holds the final states, which a trained head keeps anyway if it reads them as they are
    reads = low.weights_train and low.stream_bytes == low.compute_bytes
    states = per_token(0.0 if reads else float(low.stream_bytes * width))
    builder.ops.append(
        Op(
            ("loss", "cross entropy"),
            "loss",
            forward=Cost(bytes=per_token(forward * v), launches=launches),
            backward=Cost(bytes=per_token(backward * v), launches=launches),
            saved_bytes=saved.plus(_beside_logits(low, v)),
            live_forward_bytes=live if low.loss == "chunked" else live.plus(states),
            live_backward_bytes=differentiated,
            dtype="fp32",
        )
    )


def _inside_the_loss(projection: Op, low: Lowering, model: Architecture) -> Op:
    """Return the head of a loss that takes its logits in chunks: all of them are never there."""
    width = model.projection.in_features
    table = float(model.vocab_size * width * low.weight_bytes) if low.weights_train else 0.0
    states = per_token(float(low.compute_bytes * width))
    return projection._replace(
        live_forward_bytes=states, live_backward_bytes=states.plus(Poly(const=table)), passing_bytes=states
    )


def _beside_logits(low: Lowering, v: float) -> Poly:
    """Return what a loss keeps beside the logits: labels (int64) and their number, the tanh of a cap."""
    if low.loss == "fused":
        return Poly()
    if low.loss == "chunked":
        return per_token(8.0)
    return Poly(const=4.0, token=8.0 + (low.compute_bytes * v if low.numerics.logit_cap else 0.0))


def loss_bytes(low: Lowering, model: Architecture) -> tuple[Poly, Poly, Poly]:
    """Return what the loss keeps, and what is alive beside that in the loss and in its backward."""
    v, h = float(model.vocab_size), float(model.projection.in_features)
    if low.chunks_kept:
        return _kept_chunks_bytes(low, v, h)
    if low.loss == "chunked":
        logits = CHUNK_TOKENS * v
        summed = (
            v * h * low.weight_bytes if low.weights_train else 0.0
        )  # the head's gradient, chunk after chunk
        differentiated = Poly(const=12.0 * logits + summed, token=low.compute_bytes * h)
        # the states as wide as they come; a trained head counts them as it reads them
        kept = (low.stream_bytes - (low.compute_bytes if low.weights_train else 0)) * h
        return Poly(token=kept), Poly(const=8.0 * logits), differentiated
    if low.loss == "fused":
        head_gradient = v * h * low.weight_bytes if low.weights_train else 0.0
        parts = Poly(const=head_gradient, token=8.0 * h)
        return Poly(token=2.0 * h), parts, parts
    return _whole_logits_bytes(low, v)


def _kept_chunks_bytes(low: Lowering, v: float, h: float) -> tuple[Poly, Poly, Poly]:
    """Return the same of a loss that widens its logits in chunks and keeps all of them (torchtune).

    Kept are the 16-bit logits, whose place their gradients take, and the fp32 log-probabilities
    unless a compiled loss makes them again; of the head, the gradient of one chunk beside their sum.
    """
    summed = v * h * low.weight_bytes if low.weights_train else 0.0
    probabilities = 0.0 if low.fused_kernels else 4.0 * v
    states = (low.stream_bytes - (low.compute_bytes if low.weights_train else 0)) * h
    one = 0.0 if low.fused_kernels else 8.0 * v / OUTPUT_CHUNKS
    kept = per_token(low.compute_bytes * v + probabilities + states)
    return kept, per_token(one), Poly(const=2.0 * summed, token=low.compute_bytes * h)


def _whole_logits_bytes(low: Lowering, v: float) -> tuple[Poly, Poly, Poly]:
    """Return the same of a loss over all logits at once."""
    if low.litgpt:  # fp32 logits and log-probabilities, both gradients of one chunk of four
        return per_token(4.0 * v), per_token(6.0 * v), per_token(6.0 * v)
    held = low.compute_bytes if low.logits_held else 0.0
    if low.narrow_loss:
        # logits, their shifted copy (a fused loss works in place on it), log-probabilities
        return per_token(2.0 * v), per_token((2.0 if low.fused_kernels else 4.0) * v), per_token(4.0 * v)
    if low.fused_kernels:  # a fused cross-entropy over whole logits works in place
        return per_token(4.0 * v), per_token((4.0 + held) * v), per_token(4.0 * v)
    narrow = low.compute_bytes < 4 and not low.numerics.wide_logits
    cast = low.compute_bytes if narrow else 0.0  # the logits beside their fp32 copy
    beside = 4.0 if low.logits_shifted else cast
    return per_token(4.0 * v), per_token((4.0 + beside + held) * v), per_token(8.0 * v)
