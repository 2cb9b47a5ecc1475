"""Operators of dense and routed feed-forwards.

A gated feed-forward keeps its input, gate, activation, up and (if down trains or is
adapted) their product: 2(H + 4F) bytes per token in 16 bit. A mixture of experts does the
same for every token-expert pair, k·T rows in all, and adds the router, the gather of
each expert's rows and the weighted sum of what comes back. Dense fine-tuning of a mixture
is k = E (Xia et al. 2024, section III).
"""

from finegauge.graph.blocks import FeedForward, Linear, MixtureOfExperts
from finegauge.graph.lowering import Tape
from finegauge.graph.op import Cost, Op, Poly, per_token

EAGER_EXPERT_LAUNCHES = 14.0  # where, gather, weight, index_add and their index tensors, per expert


def feedforward(tape: Tape, block: FeedForward, *, rows: float = 1.0) -> None:
    """Add a dense feed-forward to the tape, its input already normalised."""
    low, part = tape.lowering, block.path
    *ups, down = block.projections
    kept = low.kept_input(rows * block.hidden_size, *ups, part=part)
    for i, projection in enumerate(ups):
        tape.linear(part, projection, rows=rows, keeps=0.0 if i else kept, first_use=not i)
    _activation(tape, part, rows * block.intermediate_size, gated=block.gated)
    tape.linear(part, down, rows=rows, keeps=low.kept_input(rows * block.intermediate_size, down, part=part))


def _activation(tape: Tape, part: str, width: float, *, gated: bool) -> None:
    """Add the activation and, if gated, the product with `up`, over `width` channels per token."""
    low = tape.lowering
    w = width * low.compute_bytes
    if low.fused_kernels and gated:
        tape.elementwise((part, "activation"), 3 * w, 5 * w, launches=1, saved=2 * w, live_backward=w)
    elif gated:
        tape.elementwise(
            (part, "activation"),
            5 * w,
            9 * w,
            launches=2,
            backward_launches=3,
            saved=3 * w,
            live_backward=2 * w,
        )
    else:
        tape.elementwise((part, "activation"), 2 * w, 3 * w, launches=1, backward_launches=1, saved=w)


def mixture_of_experts(tape: Tape, block: MixtureOfExperts) -> None:
    """Add router, experts and shared experts to the tape, their input already normalised."""
    low, part = tape.lowering, block.path
    h, f, k, e = (
        block.hidden_size,
        block.intermediate_size,
        min(block.top_k, block.num_experts),
        block.num_experts,
    )
    c = low.compute_bytes
    up = 2 * f if block.gated else f
    ups = (
        [Linear("w1", h, f), Linear("w3", h, f)]
        if low.experts == "eager"
        else [Linear("gate_up_proj", h, up)]
    )
    if not block.gated:
        ups = [Linear("up_proj", h, f)]
    down = Linear("w2" if low.experts == "eager" else "down_proj", f, h)
    tape.linear(
        part, block.router, kind="router", keeps=low.kept_input(h, block.router, kind="router", part=part)
    )
    tape.elementwise((part, "top-k"), 16.0 * e, launches=6, saved=4.0 * e + 12.0 * k, kind="softmax")
    eager = low.experts == "eager"
    launches = EAGER_EXPERT_LAUNCHES * e if eager else 12.0
    tape.ops.append(
        Op(
            (part, "gather tokens"),
            "gather",
            forward=Cost(bytes=per_token(2.0 * k * h * c + 16.0 * k), launches=0.4 * launches),
            backward=Cost(bytes=per_token(3.0 * k * h * c), launches=0.6 * launches),
            saved_bytes=per_token(8.0 * k),
            live_forward_bytes=per_token(k * h * c),
            dtype=low.compute_dtype,
            synchronises=eager,
        )
    )
    kept = low.kept_input(k * h, *ups, kind="experts", part=part)
    for i, projection in enumerate(ups):
        tape.linear(
            part, projection, rows=k, groups=e, kind="experts", keeps=0.0 if i else kept, first_use=not i
        )
    _activation(tape, part, float(k * f), gated=block.gated)
    tape.linear(
        part,
        down,
        rows=k,
        groups=e,
        kind="experts",
        keeps=low.kept_input(k * f, down, kind="experts", part=part),
    )
    saved = Poly(token=float(k * h * c)) if low.weights_train or low.lora_rank else Poly()
    tape.ops.append(
        Op(
            (part, "weighted sum"),
            "gather",
            forward=Cost(bytes=per_token(5.0 * k * h * c), launches=0.6 * launches),
            backward=Cost(bytes=per_token(6.0 * k * h * c), launches=0.8 * launches),
            saved_bytes=saved,
            live_backward_bytes=per_token(k * h * c),
            dtype=low.compute_dtype,
        )
    )
    if block.shared is not None:
        feedforward(tape, block.shared)
        if block.shared_gate is not None:
            tape.linear(part, block.shared_gate, kind="router")
        tape.elementwise((part, "add shared"), 3.0 * h * c, launches=1)
