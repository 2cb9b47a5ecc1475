"""Operators of dense and routed feed-forwards.

A gated feed-forward keeps its input, gate, activation, up and (if down trains or is
adapted) their product: 2(H + 4F) bytes per token in 16 bit. A mixture of experts does the
same for every token-expert pair, k·T rows in all, and adds the router, the gather of
each expert's rows and the weighted sum of what comes back. Dense fine-tuning of a mixture
is k = E (Xia et al. 2024, section III).

Bytes follow transformers 5: experts "grouped_mm" sort the pairs by expert and multiply
them in one call; "eager" is the loop over experts of transformers 4.
"""

from finegauge.graph.blocks import FeedForward, MixtureOfExperts
from finegauge.graph.lowering import Tape
from finegauge.graph.op import Cost, Op, Poly, per_token

# Values per channel that an activation keeps, beside the product it feeds to the next projection.
# One kernel keeps its input, and a gated one also its result and `up` (all others: 1 and 3); an
# activation written out in PyTorch keeps what each of its steps needs.
ACTIVATION_KEEPS = {"gelu_new": 4.0, "clamped_swiglu": 6.0}
GATED_KEEPS, PLAIN_KEEPS = 3.0, 1.0
GROUPED_PAIR_BYTES = 28.0  # row, order and its inverse (int64), sorted weight (fp32): per token-expert pair
EAGER_PAIR_BYTES = 8.0
GROUPED_LAUNCHES = 12.0
EAGER_EXPERT_LAUNCHES = 14.0  # where, gather, weight, index_add and their index tensors, per expert


def feedforward(tape: Tape, block: FeedForward) -> None:
    """Add a dense feed-forward to the tape, its input already normalised."""
    low, part, width = tape.lowering, block.path, float(block.intermediate_size)
    *ups, down = block.projections
    kept = tape.kept_entry(block.hidden_size, *ups, part=part)
    for i, projection in enumerate(ups):
        tape.linear(part, projection, keeps=0.0 if i else kept, first_use=not i)
    _activation(tape, part, width, block.activation, gated=block.gated)
    kept = low.kept_input(width, down, part=part)
    if block.activation == "relu" and not block.gated:
        kept = 0.0  # its input is ReLU's result, which ReLU keeps itself
    tape.linear(part, down, keeps=kept)


def _activation(tape: Tape, part: str, width: float, name: str, *, gated: bool) -> None:
    """Add the activation and, if gated, the product with `up`, over `width` channels per token."""
    low = tape.lowering
    w = width * low.compute_bytes
    kept = ACTIVATION_KEEPS.get(name, GATED_KEEPS if gated else PLAIN_KEEPS)
    if low.fused_kernels and gated:
        tape.elementwise((part, "activation"), 3 * w, 5 * w, launches=1, saved=2 * w, live_backward=w)
    elif gated:
        steps = kept / GATED_KEEPS
        tape.elementwise(
            (part, "activation"),
            5 * w * steps,
            9 * w * steps,
            launches=2 * steps,
            backward_launches=3 * steps,
            saved=kept * w,
            live_backward=2 * w,
        )
    else:
        steps = kept / PLAIN_KEEPS
        tape.elementwise(
            (part, "activation"),
            2 * w * steps,
            3 * w * steps,
            launches=steps,
            backward_launches=steps,
            saved=kept * w,
        )


def mixture_of_experts(tape: Tape, block: MixtureOfExperts) -> None:
    """Add router, experts and shared experts to the tape, their input already normalised."""
    low, part = tape.lowering, block.path
    top_k = min(block.top_k, block.num_experts)
    _router(tape, block, top_k)
    for projection in block.latent[:1]:
        tape.linear(part, projection, keeps=tape.kept_entry(block.hidden_size, projection, part=part))
    pairs = float(top_k * block.expert_width * low.compute_bytes)
    eager = low.experts == "eager"
    launches = EAGER_EXPERT_LAUNCHES * block.num_experts if eager else GROUPED_LAUNCHES
    tape.ops.append(
        Op(
            (part, "gather tokens"),
            "gather",
            forward=Cost(bytes=per_token(2.0 * pairs + 16.0 * top_k), launches=0.4 * launches),
            backward=Cost(bytes=per_token(3.0 * pairs), launches=0.6 * launches),
            saved_bytes=per_token((EAGER_PAIR_BYTES if eager else GROUPED_PAIR_BYTES) * top_k),
            live_forward_bytes=per_token(pairs),
            dtype=low.compute_dtype,
            synchronises=eager,
        )
    )
    _experts(tape, block, top_k)
    tape.ops.append(
        Op(
            (part, "weighted sum"),
            "gather",
            forward=Cost(bytes=per_token(5.0 * pairs), launches=0.6 * launches),
            backward=Cost(bytes=per_token(6.0 * pairs), launches=0.8 * launches),
            saved_bytes=per_token(pairs) if low.weights_train or low.lora_rank else Poly(),
            live_backward_bytes=per_token(pairs),
            dtype=low.compute_dtype,
        )
    )
    for projection in block.latent[1:]:
        tape.linear(part, projection, keeps=low.kept_input(block.expert_width, projection, part=part))
    _shared_experts(tape, block)


def _router(tape: Tape, block: MixtureOfExperts, top_k: int) -> None:
    """Add the scores of all experts and the choice of `top_k` of them.

    It keeps the scores and the chosen ones' (fp32) and their indices (int64). A router in
    fp32 casts its input and its weight, and keeps both if it trains.
    """
    low, part, e, h = tape.lowering, block.path, block.num_experts, block.hidden_size
    weight = Poly()
    if low.wide_router:
        trains = low.weights_train or low.folds(block.router, "router", part)
        kept = 4.0 * h if trains else 0.0
        weight = Poly(const=4.0 * h * e)
        tape.elementwise((part, "to fp32"), 6.0 * h, launches=2, backward_launches=2)
    else:
        kept = tape.kept_entry(h, block.router, kind="router", part=part)
    tape.linear(part, block.router, kind="router", keeps=kept)
    scores = per_token(4.0 * e + 12.0 * top_k).plus(weight)
    tape.elementwise((part, "top-k"), 16.0 * e, launches=6, saved=scores, kind="softmax")


def _experts(tape: Tape, block: MixtureOfExperts, top_k: int) -> None:
    """Add the routed experts' projections over `top_k` rows per token."""
    low, part, e = tape.lowering, block.path, block.num_experts
    h, f = block.expert_width, block.intermediate_size
    *ups, down = block.expert_projections(apart=low.experts == "eager")
    kept = low.kept_input(top_k * h, *ups, kind="experts", part=part)
    for i, projection in enumerate(ups):
        tape.linear(
            part, projection, rows=top_k, groups=e, kind="experts", keeps=0.0 if i else kept, first_use=not i
        )
    _activation(tape, part, float(top_k * f), block.activation, gated=block.gated)
    kept = low.kept_input(top_k * f, down, kind="experts", part=part)
    tape.linear(part, down, rows=top_k, groups=e, kind="experts", keeps=kept)


def _shared_experts(tape: Tape, block: MixtureOfExperts) -> None:
    """Add the experts that every token passes, and the gate that scales them."""
    if block.shared is None:
        return
    part = block.path
    row = float(block.hidden_size * tape.lowering.compute_bytes)
    feedforward(tape, block.shared)
    if block.shared_gate is not None:  # its product keeps the experts' output and the gate
        kept = tape.kept_entry(block.hidden_size, block.shared_gate, kind="router", part=part)
        tape.linear(part, block.shared_gate, kind="router", keeps=kept)
        tape.elementwise((part, "shared gate"), 2.0 * row, launches=2, saved=row)
    tape.elementwise((part, "add shared"), 3.0 * row, launches=1)
