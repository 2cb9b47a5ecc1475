"""Operators outside the layers: embedding, final norm, output head and loss.

For a large vocabulary the loss is the peak of the step: logits in 16 bit, their fp32
copy, the log-probabilities and their gradient are V values per token each. How many of
them live together depends on the code: 14 V bytes per token in transformers 4.46-4.49
(16-bit logits, fp32 copy, shifted copy, log-probabilities), 12 V before (the 16-bit logits
are dropped) and after (the labels are shifted instead; the peak moves to the backward).
"""

from finegauge.graph.blocks import Architecture, Linear
from finegauge.graph.lowering import Lowering, Tape
from finegauge.graph.op import Cost, Op, Poly, per_token

FULL_LOSS_FORWARD_BYTES = 22.0  # to fp32 (6), shift (8), log-softmax (8), per logit
FULL_LOSS_BACKWARD_BYTES = 34.0  # nll (4), log-softmax (12), shift (12), to 16 bit (6)
FUSED_LOSS_BYTES = 16.0
CHUNK_TOKENS = 256.0


def embedding(tape: Tape, model: Architecture) -> None:
    """Add the look-up of token (and position) embeddings."""
    low, h = tape.lowering, model.hidden_size
    a = low.activation_bytes
    table = float(model.vocab_size * h * a) if low.weights_train else 0.0
    tape.ops.append(
        Op(
            ("embedding", "look up"),
            "gather",
            forward=Cost(bytes=per_token(2.0 * h * a), launches=2),
            backward=Cost(
                bytes=Poly(const=2 * table, token=3.0 * h * a if table else 0.0), launches=2 if table else 0
            ),
            saved_bytes=per_token(24.0),
            dtype=low.compute_dtype,
        )
    )


def head(tape: Tape, model: Architecture) -> None:
    """Add final norm, output projection and cross-entropy loss."""
    low, v = tape.lowering, float(model.vocab_size)
    tape.norm(model.final_norm, "head")
    projection = model.head or Linear("lm_head", model.hidden_size, model.vocab_size)
    tape.linear(
        "head",
        projection,
        kind="head",
        keeps=low.kept_input(model.hidden_size, projection, kind="head", part="head"),
    )
    forward, backward = FULL_LOSS_FORWARD_BYTES, FULL_LOSS_BACKWARD_BYTES
    launches = 8.0
    if low.loss != "full_logits":
        forward = backward = FUSED_LOSS_BYTES / 2
        launches = 3.0
    elif low.narrow_loss:
        forward, backward = forward / 2, backward / 2
    saved, live = loss_bytes(low, model)
    states = per_token(float(low.activation_bytes * model.hidden_size))  # the output object holds them
    tape.ops.append(
        Op(
            ("loss", "cross entropy"),
            "loss",
            forward=Cost(bytes=per_token(forward * v), launches=launches),
            backward=Cost(bytes=per_token(backward * v), launches=launches),
            saved_bytes=saved,
            live_forward_bytes=live.plus(states),
            live_backward_bytes=live,
            dtype="fp32",
        )
    )


def loss_bytes(low: Lowering, model: Architecture) -> tuple[Poly, Poly]:
    """Return (kept until the loss's own backward, alive besides at the loss's peak)."""
    v, h = float(model.vocab_size), float(model.hidden_size)
    if low.loss == "chunked":
        return Poly(), Poly(const=CHUNK_TOKENS * 12.0 * v, token=4.0 * h)
    if low.loss == "fused":
        head_gradient = v * h * low.weight_bytes if low.weights_train else 0.0
        return Poly(token=2.0 * h), Poly(const=head_gradient, token=8.0 * h)
    held = 2.0 if low.logits_held else 0.0
    if low.narrow_loss:
        return per_token(2.0 * v), per_token((4.0 if low.fused_kernels else 6.0) * v)
    if low.fused_kernels:  # a fused cross-entropy over whole logits works in place
        return per_token(4.0 * v), per_token((4.0 + held) * v)
    return per_token(4.0 * v), per_token((8.0 + held) * v)
