"""The operators of one layer, of vision towers, and outside the layers: embedding, final norm, head, loss.

A layer is its branches, each with its norms and residual addition.

A tower and its projector read the images of a sequence before the text does: the operators of any layer,
over patches in place of tokens: every sequence brings so many crops, whose patches attend to each other and
to no others. A frozen tower keeps nothing and has no backward; what trains first ends the gradient, as in
the text's layers.

For a large vocabulary the loss is the peak of the step: logits in 16 bit, their fp32
copy, the log-probabilities and their gradient are V values per token each. How many of
them live together depends on the code: 14 V bytes per token in transformers 4.46-4.49
(16-bit logits, fp32 copy, shifted copy, log-probabilities), 12 V before (the 16-bit logits
are dropped) and after (the labels are shifted instead; the peak moves to the backward).

A loss over tiles multiplies states and head tile by tile, in forward and again in backward [2].

[1] torch/distributed/tensor/parallel/loss.py of 2.13, _nll_loss_and_log_softmax_backward
[2] trl/kernels/chunked_logprob.py and add_fused_lm_head of TRL 1.15 and 1.16 (read 2026-11-23)
[3] VocabParallelCrossEntropy in megatron/core/tensor_parallel/cross_entropy.py (read 2026-11-28)
"""

from collections.abc import Iterator
from typing import Any

from finegauge.model.attention import attention, latent_attention
from finegauge.model.blocks import (
    Architecture,
    Attention,
    FeedForward,
    LatentAttention,
    Layer,
    Linear,
    Mixer,
    MixtureOfExperts,
    Neck,
    Norm,
    Numerics,
    Part,
    Tensor,
    Tower,
)
from finegauge.model.lowering import Lowering
from finegauge.model.moe import activation, feedforward, mixture_of_experts
from finegauge.model.op import Cost, Extents, Op, Poly, per_token
from finegauge.model.op_builder import OpBuilder, cut_below, is_adapter, unreached, weighed
from finegauge.records import NamedTuple


def layer_ops(builder: OpBuilder, layer: Layer, hidden_size: int) -> None:
    """Add one layer's branches, each with its norms and its residual addition.

    A branch beside another reads the same stream, which one LayerNorm keeps for both, and without a norm of
    its own it reads the other's normalised input.
    """
    reached = builder.reached
    for index, (mixer, before, after) in enumerate(layer.branches):
        part, start, begin = mixer.path, len(builder.ops), len(builder.ops)
        beside = 0 < index < layer.parallel
        if hasattr(mixer, "rests"):
            from finegauge.model.traced import traced

            whole: Any = mixer
            traced(builder, whole)  # norms and residual additions included
        else:
            if before is not None or not beside:
                builder.entry_kept = 0.0
            builder.norm(before, part, keeps_input=not beside)
            begin = len(builder.ops)
            _mixer(builder, mixer)
            if index < layer.borrowed and builder.lowering.weights_train:  # autocast keeps their copies
                builder.ops[begin:] = [op for op in builder.ops[begin:] if op.path[-1] != "cast weights"]
            if layer.sums:
                _shares_gradient(builder, hidden_size)
                builder.residual(part, hidden_size)
            builder.norm(after, part, inside=not layer.sums)
            if not layer.sums:
                builder.residual(part, hidden_size)
        if not builder.reached:
            adapted = any(is_adapter(op) for op in builder.ops[start:])
            reached = reached or adapted
            if adapted and (
                isinstance(mixer, MixtureOfExperts | LatentAttention) or part == "linear_attention"
            ):  # has cut its parts
                builder.ops[start:begin] = map(unreached, builder.ops[start:begin])
            else:
                builder.ops[start:] = cut_below(builder.ops[start:], dropout=builder.lowering.lora_dropout)
            builder.reached = reached and index + 1 >= layer.parallel
    builder.reached = builder.reached or reached


def _shares_gradient(builder: OpBuilder, hidden_size: int) -> None:
    """Count once what the last product's output and the stream share: the gradient of their sum.

    Dropout between them makes a copy.
    """
    low = builder.lowering
    if builder.ops[-1].path[0] in low.numerics.dropout:
        return
    for index in range(
        len(builder.ops) - 2 if is_adapter(builder.ops[-1]) else len(builder.ops) - 1, len(builder.ops)
    ):
        op = builder.ops[index]
        live = op.live_backward_bytes.plus(per_token(-float(low.stream_bytes * hidden_size)))
        builder.ops[index] = op._replace(live_backward_bytes=live)


def _mixer(builder: OpBuilder, mixer: Mixer) -> None:
    match mixer:
        case Attention():
            attention(builder, mixer)
        case FeedForward():
            feedforward(builder, mixer)
        case MixtureOfExperts():
            mixture_of_experts(builder, mixer)
        case LatentAttention():
            latent_attention(builder, mixer)
        case _:
            from finegauge.model.ssm import BUILT

            BUILT[type(mixer)](builder, mixer)


NAMES = {True: "projector", False: "vision tower"}


class TowerPart(NamedTuple):
    """The operators of one step of a tower, and what of it each sequence of the text brings."""

    count: int  # type: ignore[assignment]  # in place of a method of tuples
    ops: tuple[Op, ...]
    is_layer: bool  # which checkpointing may run again
    hidden_size: int
    crops: float  # per sequence
    rows: float
    pairs: float
    longest_rows: float

    def of(self, extents: Extents) -> Extents:
        """Return the extents that it sees of the images of a micro-batch."""
        sequences = extents.sequences
        return Extents(
            self.crops * sequences, self.rows * sequences, self.pairs * sequences, self.longest_rows
        )


def tower_parts(tower: Tower, low: Lowering) -> tuple[TowerPart, ...]:
    """Return the operators of `tower` for the images of `low`, equal layers together."""
    reached, found = tower.encoder and low.input_gradients, list[TowerPart]()
    for part in tower.parts:
        own = tower_lowering(low, projector=part.projector)
        if tower.encoder:
            own = own._replace(numerics=low.numerics)
        whole = reached or own.weights_train
        for number in (part.count,) if whole or not own.lora_rank else (1, part.count - 1):
            if not number:
                continue
            builder = OpBuilder(own, reached=reached or own.weights_train)
            _add(builder, part, tower.hidden_size)
            ops = builder.ops
            if part.idle or not (builder.reached or any(map(is_adapter, ops))):
                ops = [unreached(op) for op in ops]
            elif not builder.reached and not isinstance(part.what, Layer):
                ops = cut_below(ops, dropout=own.lora_dropout)
            if part is tower.parts[0] and not isinstance(part.what, Tensor):  # pixels need no gradient
                ops = [weighed(op) if op.backward.gemms else op for op in ops]
            reached = reached or builder.reached or any(map(is_adapter, ops))
            name = "encoder" if tower.encoder else NAMES[part.projector]
            named = tuple(op._replace(path=(name, *op.path[1:])) for op in ops)
            found.append(
                TowerPart(number, named, isinstance(part.what, Layer), tower.hidden_size, *_sizes(part, low))
            )
    return tuple(found)


def tower_lowering(low: Lowering, *, projector: bool) -> Lowering:
    """Return how the tower, or its projector, is run: as the text, but with a class of its own."""
    trains, adapts = low.tower_trains[projector], low.tower_adapts[projector]
    return low._replace(
        weights_train=trains,
        norms_train=trains,
        lora_rank=low.lora_rank if adapts else 0,
        numerics=Numerics(),
        masks=False,
        masked_windows=(),
        megatron=False,
        litgpt=False,
        last_layers=0,
        narrow="",
    )


def images_among_words(builder: OpBuilder, hidden_size: int) -> None:
    """Add what puts rows of images in the place of words: a copy of the embeddings, and the rows in it."""
    moved = 3.0 * builder.lowering.activation_bytes * hidden_size
    builder.elementwise(("embedding", "images"), moved, moved, launches=3)


def _add(builder: OpBuilder, part: Part, hidden_size: int) -> None:
    match part.what:
        case Layer():
            layer_ops(builder, part.what, hidden_size)
        case FeedForward():
            feedforward(builder, part.what)
        case Norm():
            builder.norm(part.what, NAMES[part.projector])
        case Tensor():
            _look_up(builder, part.what)
        case Neck():
            _add(builder, part._replace(what=part.what.linear), hidden_size)
            width = float(part.what.linear.out_features)
            activation(builder, "projector", width, part.what.activation, gated=False, held=width)
        case Linear():
            low, linear = builder.lowering, part.what
            kept = low.kept_input(linear.in_features, linear, part=linear.name, kind=linear.kind)
            builder.linear(NAMES[part.projector], linear, kind=linear.kind, keeps=kept)


def _look_up(builder: OpBuilder, table: Tensor) -> None:
    """Add the look-up of words; the gradient of their table comes beside that which the decoder has made."""
    low, width = builder.lowering, float(table.shape[1])
    moved = 2.0 * width * low.activation_bytes
    builder.elementwise(("encoder", "look up"), moved, 1.5 * moved, launches=2, kind="gather")
    biases = Poly(const=low.held_biases[0] * low.attention_bytes)
    builder.ops[-1] = builder.ops[-1]._replace(saved_bytes=biases)
    if not low.weights_train and low.input_gradients:  # what it returns is made to need a gradient
        row = Poly(token=width * low.activation_bytes)
        builder.ops[-1] = builder.ops[-1]._replace(saved_bytes=biases.plus(row), live_backward_bytes=row)
    if low.weights_train:
        made = Poly(const=float(table.size * low.weight_bytes))
        builder.ops[-1] = builder.ops[-1]._replace(live_backward_bytes=made)


def _sizes(part: Part, low: Lowering) -> Iterator[float]:
    """Yield the crops, rows, pairs of rows, and rows of the longest crop, that each sequence brings."""
    crops = rows = pairs = longest = 0.0
    for image in low.images:
        own = (image.patches + part.extra) * part.parted / part.joined
        crops, rows, longest = crops + image.crops, rows + image.crops * own, max(longest, own)
        pairs += image.crops * own * min(own, part.window or own)
    yield from (crops, rows, pairs, longest)


FULL_LOSS_FORWARD_BYTES = 22.0  # to fp32 (6), shift (8), log-softmax (8), per logit
FULL_LOSS_BACKWARD_BYTES = 34.0  # nll (4), log-softmax (12), shift (12), to 16 bit (6)
FUSED_LOSS_BYTES = 16.0
CHUNK_TOKENS = 256.0
TILE_WORDS = 32768.0  # of the vocabulary, in a buffer of that width whatever the vocabulary [2]
TILE_FORWARD_BYTES, TILE_BACKWARD_BYTES = 12.0, 29.0  # per logit, beside it, without Triton's kernels [2]
OUTPUT_CHUNKS = 8  # CEWithChunkedOutputLoss of torchtune 0.4, which keeps them all (read 2026-11-21)


def embedding(builder: OpBuilder, model: Architecture) -> None:
    """Add the look-up of token (and position) embeddings; the layers' shared tables of rotation are kept."""
    low, h, a = builder.lowering, model.hidden_size, builder.lowering.activation_bytes
    words, *others = [float(t.size * low.weight_bytes) * low.weights_train for t in model.embeddings]
    table, channels = words + sum(others), 2.0 * sum(model.rotary_dims)
    if low.numerics.own_tables:
        channels = 0.0
    if low.numerics.tables_by_kind:
        mixers = [branch.mixer for layer, _ in model.layers for branch in layer.branches]
        channels *= len({mixer.window is None for mixer in mixers if isinstance(mixer, Attention)})
    kept = float(h) if "embedding" in low.numerics.dropout and low.input_gradients else 0.0  # a mask
    kept += low.held_values * a
    # beside the head's gradient of tied words comes the table's, and their sum, which has no place of its own
    # where the head's is a view: of a product, which nothing casts
    summed = 1.0 if low.autocast and low.weight_bytes > low.compute_bytes else 2.0
    builder.ops.append(
        Op(
            ("embedding", "look up"),
            "gather",
            forward=Cost(bytes=per_token(2.0 * h * a), launches=2),
            backward=Cost(
                bytes=Poly(const=2 * table, token=3.0 * h * a if table else 0.0), launches=2 if table else 0
            ),
            saved_bytes=Poly(
                const=low.held_biases[1] * low.attention_bytes,
                token=kept + low.source_ratio * h * a,  # the source's states, which all layers read
                length=channels * (4 if low.numerics.wide_tables else a),
            ),
            live_backward_bytes=Poly(const=summed * words * model.tied),
            gradient_bytes=sum(others) if model.tied else table,
            dtype=low.compute_dtype,
        )
    )
    start = len(builder.ops)
    for part in model.beside:
        if isinstance(part, Norm):
            repeats = model.outer_linears[-1].out_features // part.size
            builder.norm(part, "embedding", repeats=repeats, inside=True)
        else:
            keeps = (
                0.0 if low.held_values else low.kept_input(h, part, part="embedding")
            )  # by the first layer
            builder.linear("embedding", part, keeps=keeps)
    for linear in model.widening[:1]:
        kept = low.kept_input(linear.in_features, linear, part="embedding")
        builder.linear("embedding", linear, keeps=kept)
    if not low.input_gradients:
        builder.ops[start:] = cut_below(builder.ops[start:], dropout=low.lora_dropout)
    if model.embedding_norm is not None:
        builder.norm(model.embedding_norm, "embedding")
        if not (low.input_gradients or low.norms_train):
            builder.ops[-1] = unreached(builder.ops[-1])


def head(builder: OpBuilder, model: Architecture) -> None:
    """Add final norm, what stands before the output projection, that itself, and its loss.

    Where the head reads one row of every sequence, what follows is computed for these alone.
    """
    builder.norm(model.final_norm, "head")
    for linear in model.widening[1:]:
        kept = builder.lowering.kept_input(linear.in_features, linear, part="head")
        builder.linear("head", linear, keeps=kept)
    start = len(builder.ops)
    if model.neck is not None and model.scores:
        _neck(builder, model.neck)
    if model.dropped:
        moved = model.hidden_size * (2.0 * builder.lowering.compute_bytes + 1.0)
        builder.elementwise(("head", "dropout"), moved, moved, saved=float(model.hidden_size))
    if not model.scores:
        idle = model.neck.linear if model.neck else Linear("", 0, 0)
        forward = Cost(per_token(2.0 * idle.in_features * idle.out_features), launches=8)
        dtype = builder.lowering.compute_dtype
        builder.ops.append(Op(("loss", "similarity"), "loss", forward, Cost(launches=8), dtype=dtype))
    else:
        _scores(builder, model)
    if model.pooled:
        builder.ops[start:] = [op.of_sequences() for op in builder.ops[start:]]
        builder.ops.insert(start, _pooled(builder, model))


def _neck(builder: OpBuilder, neck: Neck) -> None:
    """Add a projection, its activation and its norm."""
    linear, own = neck.linear, builder.lowering
    builder.lowering = _trained_whole(own, linear)
    kept = builder.lowering.kept_input(linear.in_features, linear, part="head", kind=linear.kind)
    builder.linear("head", linear, kind=linear.kind, keeps=kept)
    width = float(linear.out_features)
    activation(builder, "head", width, neck.activation, gated=False, held=float(linear.in_features))
    builder.norm(neck.norm, "head", inside=True)
    builder.lowering = own


def _trained_whole(low: Lowering, linear: Linear) -> Lowering:
    """Return how a classifier is run, which PEFT trains whole beside adapters."""
    return low._replace(weights_train=True, lora_rank=0) if linear.kind == "head" and low.lora_rank else low


def _pooled(builder: OpBuilder, model: Architecture) -> Op:
    """Return what takes a row of every sequence: the first, or the mean under a mask as wide as the states.

    The gradient of the first is as large as all states. The mean is sentence-transformers' (`Pooling`), whose
    mask in the states' format is kept for backward.
    """
    low = builder.lowering
    row = float(model.hidden_size * (low.stream_bytes if model.final_norm is None else low.activation_bytes))
    mean = 0.0 if model.scores else row
    return Op(
        ("head", "pooling"),
        "elementwise",
        forward=Cost(bytes=per_token(4.0 * mean), launches=4 if mean else 1),
        backward=Cost(bytes=per_token(row + 2.0 * mean), launches=2),
        saved_bytes=per_token(mean),
        live_forward_bytes=per_token(mean),
        live_backward_bytes=per_token(row),
        dtype=low.compute_dtype,
    )


def _scores(builder: OpBuilder, model: Architecture) -> None:
    """Add the output projection and the loss over what it returns."""
    v, projection = float(model.vocab_size), model.projection
    low = _trained_whole(builder.lowering, projection)
    width, c, numerics, builder.lowering = projection.in_features, low.compute_bytes, low.numerics, low
    kept = low.kept_input(width, projection, kind="head", part="head")
    builder.linear("head", projection, kind="head", keeps=kept)
    # the output object holds the final states, which a trained head keeps anyway if it reads them as they are
    reads = low.weights_train and low.stream_bytes == c
    held = per_token(0.0 if reads else float(low.stream_bytes * width))
    if model.pooled:
        held = per_token(0.0)
    if low.loss in ("full_logits", "compiled") or model.task != "causal_lm":
        if numerics.scaled_logits or numerics.logit_cap:
            read = 0.0 if builder.ops[-1].saved_bytes.token else float(c * width)
            more = v * c if numerics.uncapped_named else 0.0
            builder.elementwise(("head", "scale"), 2 * v * c, alive=(2 * v * c + read + more, 2 * v * c, 0.0))
        saved, live, differentiated = _whole_logits(low, v)
        live, last = live.plus(held), builder.ops[-1]
        # labels (int64) and their number, the tanh of a cap
        saved = saved.plus(Poly(const=4.0, token=8.0 + (c * v if numerics.logit_cap else 0.0)))
        if numerics.wide_logits and c < 4:
            both = last.live_forward_bytes.plus(per_token(4.0 * v))
            builder.ops[-1] = last._replace(live_forward_bytes=both)
        narrow = 4.0 / c if low.narrow_loss else 1.0
        moved, launches = (FULL_LOSS_FORWARD_BYTES / narrow, FULL_LOSS_BACKWARD_BYTES / narrow), 8.0
        if low.loss == "compiled":
            moved, launches = (FUSED_LOSS_BYTES / 2, FUSED_LOSS_BYTES / 2), 3.0
    else:  # takes its logits in chunks: all of them are never there
        states = per_token(float(c * width))
        table = v * width * low.weight_bytes if low.weights_train else 0.0
        builder.ops[-1] = builder.ops[-1]._replace(
            live_forward_bytes=states,
            live_backward_bytes=states.plus(Poly(const=table)),
            passing_bytes=states,
        )
        if low.tiled:
            saved, live, differentiated = _tiles(low, v, float(width))
        else:
            saved, live, differentiated = _chunks(low, v, float(width), table)
        live = live.plus(held) if low.loss == "fused" else live
        moved, launches = (FUSED_LOSS_BYTES / 2, FUSED_LOSS_BYTES / 2), 3.0
    builder.ops.append(
        Op(
            ("loss", "cross entropy"),
            "loss",
            forward=Cost(bytes=per_token(moved[0] * v), launches=launches),
            backward=Cost(bytes=per_token(moved[1] * v), launches=launches),
            saved_bytes=saved,
            live_forward_bytes=live,
            live_backward_bytes=differentiated,
            dtype="fp32",
        )
    )


def _chunks(low: Lowering, v: float, h: float, table: float) -> tuple[Poly, Poly, Poly]:
    """Return what a loss over chunks keeps, and what is alive beside that in the loss and in its backward.

    `table` bytes are the gradient of the head, summed chunk after chunk. torchtune's widens its logits in
    chunks and keeps all of them: the 16-bit logits, whose place their gradients take, and the fp32
    log-probabilities unless a compiled loss makes them again.
    """
    if low.loss == "fused":
        parts = Poly(const=table, token=8.0 * h)
        return Poly(token=2.0 * h), parts, parts
    # labels (int64), and the states as wide as they come; a trained head counts them as it reads them
    states = 8.0 + (low.stream_bytes - (low.compute_bytes if low.weights_train else 0)) * h
    gradient = Poly(token=low.compute_bytes * h)
    if not low.chunks_kept:
        logits = CHUNK_TOKENS * v
        return Poly(token=states), Poly(const=8.0 * logits), gradient._replace(const=12.0 * logits + table)
    wide = 0.0 if low.fused_kernels else 4.0 * v
    saved = per_token(low.compute_bytes * v + wide + states)
    return saved, per_token(2.0 * wide / OUTPUT_CHUNKS), gradient._replace(const=2.0 * table)


def _tiles(low: Lowering, v: float, h: float) -> tuple[Poly, Poly, Poly]:
    """Return the same of a loss over tiles: states and head meet in one buffer, their gradients in fp32.

    The states are copied, without those that nothing predicts; the model's own go when the loss is there.
    Where the processor has no Triton, what a kernel does in place is written out beside the tile.
    """
    c, stream, words = low.compute_bytes, low.stream_bytes, min(v, TILE_WORDS)
    cast = Poly(const=0.0 if low.weight_bytes == c else c * h * words)
    tile, forward, backward = TILE_WORDS * c, 0.0, 0.0
    if low.on_cpu:
        forward, backward = TILE_FORWARD_BYTES * words, TILE_BACKWARD_BYTES * words
    narrowed = stream if stream < 4 and not low.on_cpu else 0
    weights = (4.0 + (low.weight_bytes if low.weight_bytes < 4 else 0)) * v * h * low.weights_train
    saved = per_token(16.0 + (stream - (c if low.weights_train else 0)) * h)  # labels, their sum, the entropy
    live = cast.plus(Poly(token=28.0 + stream * h, tile=tile + forward))
    return saved, live, cast.plus(Poly(const=weights, token=(4.0 + narrowed) * h, tile=tile + backward))


def _whole_logits(low: Lowering, v: float) -> tuple[Poly, Poly, Poly]:
    """Return the same of a loss over all logits at once."""
    held = low.compute_bytes if low.logits_held else 0.0
    narrow = low.compute_bytes < 4 and not low.numerics.wide_logits
    cast = low.compute_bytes if narrow else 0.0  # the logits beside their fp32 copy
    if low.loss == "compiled":  # widened inside its kernels: the logits, and their gradient beside them
        c = float(low.compute_bytes)
        return per_token(c * v), per_token(0.0), per_token(c * v)
    kept, live, back = 4.0, 4.0 + (4.0 if low.logits_shifted else cast) + held, 8.0
    if low.numerics.bare_loss and (not low.autocast):  # log-probabilities beside the logits, as wide as these
        c = float(low.compute_bytes)
        return per_token(c * v), per_token(c * v), per_token(2.0 * c * v)
    if low.litgpt:  # fp32 logits and log-probabilities, both gradients of one chunk of four
        live, back = 6.0, 6.0
    elif low.narrow_loss:  # logits, their shifted copy (a fused loss works in place on it), log-probabilities
        kept = float(low.compute_bytes)
        live, back = kept if low.fused_kernels else 2.0 * kept, 2.0 * kept
    elif low.parallel_loss:  # log-probabilities, one-hot, their exponentials, the sum, its multiple [1]
        back = 12.0
    elif low.megatron:  # in place on fp32 logits, beside the narrow ones or their gradient [3]
        live = back = cast
    elif low.fused_kernels and not low.written_loss:  # a fused cross-entropy works in place
        live, back = 4.0 + held, 4.0
    return per_token(kept * v), per_token(live * v), per_token(back * v)
