"""Operators of mixtures of experts: router, chosen rows, experts, weighted sum, shared experts.

The experts keep what a dense feed-forward keeps for every token-expert pair, k·T rows in
all; beside it stand the router's scores, the indices of the pairs and what comes back from
the experts, which the weights multiply. Dense fine-tuning of a mixture is k = E (Xia et
al. 2024, section III).

Bytes follow transformers 5: "grouped_mm" sorts the pairs by expert and multiplies them in
one call, in the experts' own dtype whatever autocast says; "eager" loops over the experts,
of which one at a time is at work. Where experts differ in load, the bytes of their sum do not.
"""

from finegauge.model.blocks import FeedForward, MixtureOfExperts
from finegauge.model.gradient_pruning import cut_below, is_adapter
from finegauge.model.op import Cost, Op, Poly, per_token
from finegauge.model.op_builder import Alive, Tape

# Values per channel that an activation keeps, beside the product it feeds to the next projection.
# One kernel keeps its input, and a gated one also its result and `up` (all others: 1 and 3); an
# activation written out in PyTorch keeps what each of its steps needs.
ACTIVATION_KEEPS = {"gelu_new": 4.0, "clamped_swiglu": 6.0, "xielu": 4.5}
# Values per channel alive where nothing is kept, and beside what is kept backward: one kernel's input and
# result; written out, the steps between them too.
PASSING = {"gelu_new": 4.0, "xielu": 5.5, "bloom_gelu": 5.0}
BACKWARD = {"gelu_new": 3.0, "xielu": 4.0, "bloom_gelu": 6.0}
AUTOCAST_ALIVE = {"gelu_new": (6.0, 6.0)}  # the same two
AUTOCAST_KEEPS = {
    "gelu_new": 7.0,
    "relu2": 3.0,
    "xielu": 7.5,
}  # autocast takes powers in fp32, of a copy that is kept
GATED_KEEPS, PLAIN_KEEPS = 3.0, 1.0


def feedforward(tape: Tape, block: FeedForward) -> None:
    """Add a dense feed-forward to the tape, its input already normalised."""
    low, part, width = tape.lowering, block.path, float(block.intermediate_size)
    *ups, down = block.projections
    kept = tape.kept_entry(block.hidden_size, *ups, part=part)
    for i, projection in enumerate(ups):
        tape.linear(part, projection, keeps=0.0 if i else kept, first_use=not i, beside=i * width)
    held = block.hidden_size + (width if block.gated and len(ups) == 1 else 0.0)  # the gate beside `up`
    activation(tape, part, width, block.activation, gated=block.gated, held=held)
    kept = low.kept_input(width, down, part=part)
    if block.activation == "relu" and not block.gated:
        kept = 0.0  # its input is ReLU's result, which ReLU keeps itself
    tape.linear(part, down, keeps=kept)


def activation(tape: Tape, part: str, width: float, name: str, *, gated: bool, held: float) -> None:
    """Add the activation and, if gated, the product with `up`, over `width` channels per token.

    `held` channels of the module's input are alive until it returns.
    """
    low = tape.lowering
    w = width * low.returned_bytes
    entry = held * low.returned_bytes
    name = "gelu" if low.megatron and name.startswith("gelu") else name  # one kernel, whichever form of it
    kept = ACTIVATION_KEEPS.get(name, GATED_KEEPS if gated else PLAIN_KEEPS)
    if low.autocast and not gated:
        kept = AUTOCAST_KEEPS.get(name, kept)
    if name == "xielu" and not low.weights_train:  # one value less, in fp32 under autocast: no factor trains
        kept -= low.activation_bytes / low.compute_bytes
    if low.fused_activation and gated:
        tape.elementwise(
            (part, "activation"), 3 * w, 5 * w, launches=1, saved=2 * w,
            alive=Alive(w, 3 * w, 3 * w + entry),
        )  # fmt: skip
    elif gated:
        steps = kept / GATED_KEEPS
        tape.elementwise(
            (part, "activation"),
            5 * w * steps,
            9 * w * steps,
            launches=2 * steps,
            backward_launches=3 * steps,
            saved=kept * w,
            alive=Alive(w, 3 * w * steps, 3 * w * steps + entry),
        )
    else:
        steps = kept / PLAIN_KEEPS
        passing, back = PASSING.get(name, 2.0), BACKWARD.get(name, 2.0)
        if low.autocast:
            passing, back = AUTOCAST_ALIVE.get(name, (passing, back))
        tape.elementwise(
            (part, "activation"),
            2 * w * steps,
            3 * w * steps,
            launches=steps,
            backward_launches=steps,
            saved=kept * w,
            alive=Alive(w, back * w, passing * w + entry),
        )


INDEX_BYTES = 8.0  # int64
GROUPED_LAUNCHES = 12.0
LOOPED_EXPERT_LAUNCHES = 14.0  # where, gather, weight, index_add and their index tensors, per expert


def mixture_of_experts(tape: Tape, block: MixtureOfExperts) -> None:
    """Add router, experts and shared experts to the tape, their input already normalised."""
    low, part = tape.lowering, block.path
    if block.shared_first:
        _shared_experts(tape, block)
    start = len(tape.ops)
    _router(tape, block)
    weighs, start = _apart(tape, start), len(tape.ops)
    for projection in block.latent[:1]:
        tape.linear(part, projection, keeps=tape.kept_entry(block.hidden_size, projection, part=part))
    if block.visits_all:
        _all_experts(tape, block)
        computed = _apart(tape, start)
    else:
        computed = _chosen_experts(tape, block, start, weighs=weighs)
    start = len(tape.ops)
    for projection in block.latent[1:]:
        tape.linear(part, projection, keeps=low.kept_input(block.expert_width, projection, part=part))
    if not (weighs or computed):
        _apart(tape, start)
    if not block.shared_first:
        _shared_experts(tape, block)


def _apart(tape: Tape, start: int) -> bool:
    """Return whether the operators from `start` on, a way of its own through the block, need gradients.

    Where the block's input needs none, what comes before their first adapter is cut off.
    """
    if tape.reached:
        return True
    tape.ops[start:] = cut_below(tape.ops[start:], dropout=tape.lowering.lora_dropout)
    return any(is_adapter(op) for op in tape.ops[start:])


def _router(tape: Tape, block: MixtureOfExperts) -> None:
    """Add the scores of all experts and the choice among them.

    A router in fp32 casts its input and its weight, and keeps the one if it trains, the
    other always.
    """
    low, part, h = tape.lowering, block.path, block.hidden_size
    scores = per_token(_routing_bytes(block, low.compute_bytes))
    if block.routing.wide_logits and low.compute_bytes < 4 and not low.autocast:
        trains = low.weights_train or low.folds(block.router, block.router.kind, part)
        kept = 4.0 * h if trains else low.kept_input(h, block.router, kind=block.router.kind, part=part)
        scores = scores.plus(Poly(const=4.0 * h * block.num_experts))
        tape.elementwise(
            (part, "to fp32"), 6.0 * h, launches=2, backward_launches=2, alive=Alive(backward=6.0 * h)
        )
    else:
        kept = tape.kept_entry(h, block.router, kind=block.router.kind, part=part)
    tape.linear(part, block.router, kind=block.router.kind, keeps=kept)
    width = 4.0 * block.num_experts
    tape.elementwise(
        (part, "top-k"),
        4 * width,
        launches=6,
        saved=scores,
        alive=Alive(2 * width, 3 * width, 2 * width),
        kind="softmax",
    )


def _routing_bytes(block: MixtureOfExperts, compute_bytes: int) -> float:
    """Return what the router's scores, choice and normalisation keep per token, in bytes."""
    routing, e, k = block.routing, float(block.num_experts), float(_top_k(block))
    wide = 4.0 if routing.wide_scores else float(compute_bytes)
    if routing.scores == "sparsemixer":  # per choice: a mask, the softmax, the chosen one and its score
        return k * (e + compute_bytes * e + INDEX_BYTES + compute_bytes)
    kept = INDEX_BYTES * k + wide * (k if routing.scores == "top_softmax" else e)
    if routing.masked:
        kept += e
    if routing.normalised:
        kept += wide * (k + 1)
    return kept


def _top_k(block: MixtureOfExperts) -> int:
    """Return how many experts each token chooses."""
    return min(block.top_k, block.num_experts)


def _chosen_experts(tape: Tape, block: MixtureOfExperts, entry: int, *, weighs: bool) -> bool:
    """Add the gather of each expert's rows, the experts and the weighted sum of what they return.

    Their operators begin at `entry`; `weighs`: the weights need gradients. Return whether the experts do.
    """
    low, part, k = tape.lowering, block.path, _top_k(block)
    looped = block.looped or low.experts == "eager"
    inner = _experts_tape(tape, block, looped=looped)
    c = inner.lowering.compute_bytes
    row = float(block.expert_width * c)
    pairs = k * row
    launches = LOOPED_EXPERT_LAUNCHES * block.num_experts if looped else GROUPED_LAUNCHES
    whose_bias = block.expert_bias and low.weights_train and not looped
    indices = INDEX_BYTES * (2 + whose_bias)  # rows, order
    offsets = 0.0 if looped else 4.0 * block.num_experts
    tape.ops.append(
        Op(
            (part, "gather tokens"),
            "gather",
            forward=Cost(bytes=per_token(2.0 * pairs + 16.0 * k), launches=0.4 * launches),
            backward=Cost(bytes=per_token(3.0 * pairs), launches=0.6 * launches),
            saved_bytes=Poly(const=offsets, token=indices * k),
            live_forward_bytes=per_token(pairs),
            live_backward_bytes=per_token(2 * row if looped else pairs + row),
            passing_bytes=per_token(pairs + row),
            dtype=low.compute_dtype,
            synchronises=looped,
        )
    )
    start = len(tape.ops)
    widened = looped and block.expert_bias and low.autocast and low.weight_bytes == 4
    _experts(inner, block, k, act_bytes=4 if widened else c)  # an fp32 bias added to 16-bit products
    if looped:  # one expert at a time
        tape.ops[start:] = [_share(op, block.num_experts) for op in tape.ops[start:]]
    computed = _apart(tape, entry)
    rows = pairs * 4 / c if widened else pairs
    asked = (weighs, computed)
    _weighted_sum(tape, block, rows, launches, asked, looped=looped, row_bytes=4 if widened else c)
    if not looped:
        held = per_token(_unkept(tape, inner, block, pairs))
        tape.ops[-1] = tape.ops[-1]._replace(live_forward_bytes=tape.ops[-1].live_forward_bytes.plus(held))
    tape.ops[start:] = _beside_copies(tape.ops[start:], inner, block)
    return computed


def _unkept(tape: Tape, inner: Tape, block: MixtureOfExperts, pairs: float) -> float:
    """Return the bytes per token of the experts' input and its chosen rows that no product keeps."""
    low, ups = inner.lowering, block.expert_projections(apart=not inner.lowering.fused_experts)[:-1]
    kept = low.kept_input(pairs, *ups, kind="experts", part=block.path)
    entry = 0.0 if tape.keeps_entry else float(block.hidden_size * tape.lowering.compute_bytes)
    return entry + (0.0 if kept else pairs)


def _experts_tape(tape: Tape, block: MixtureOfExperts, *, looped: bool) -> Tape:
    """Return a tape onto the same operators, lowered as the experts compute.

    A grouped product is not among the operators that autocast narrows: fp32 experts
    stay fp32, adapters added to them or not.
    """
    low = tape.lowering
    own = low._replace(experts="eager" if looped else low.experts)
    if low.autocast and low.weight_bytes == 4 and not (looped or low.quantizes("experts")):
        own = own._replace(compute_bytes=4, compute_dtype="fp32", autocast=False)
    inner = Tape(own)
    inner.ops = tape.ops
    return inner


def _beside_copies(ops: list[Op], inner: Tape, block: MixtureOfExperts) -> list[Op]:
    """Return the experts' operators with copies beside them: of the weights, their adapters added.

    Each is made when it is first read and stays until all experts are done.
    """
    low, copies, found = inner.lowering, 0.0, []
    sizes = {
        projection.name: float(
            block.num_experts * projection.in_features * projection.out_features * low.compute_bytes
        )
        for projection in block.expert_projections(apart=not low.fused_experts)
        if low.folds(projection, "experts", block.path)
    }
    for op in ops:
        copies += sizes.pop(op.path[-1], 0.0)
        beside = 0.0 if op.path[-1] == "adapter" else copies
        found.append(op._replace(passing_bytes=op.passing_bytes.plus(Poly(const=beside))))
    return found


def _share(op: Op, among: int) -> Op:
    """Return the operator with what is alive only while it runs divided among so many."""
    return op._replace(
        live_forward_bytes=op.live_forward_bytes._replace(token=op.live_forward_bytes.token / among),
        live_backward_bytes=op.live_backward_bytes._replace(token=op.live_backward_bytes.token / among),
        passing_bytes=op.passing_bytes._replace(token=op.passing_bytes.token / among),
    )


def _experts(tape: Tape, block: MixtureOfExperts, rows: int, act_bytes: int = 0) -> None:
    """Add the routed experts' projections over `rows` rows per token.

    The activation is in `act_bytes` per value if they are more than the products'.
    """
    low, part, e = tape.lowering, block.path, block.num_experts
    acting = Tape(low._replace(compute_bytes=max(act_bytes, low.compute_bytes)))
    acting.ops = tape.ops
    h, f = block.expert_width, block.intermediate_size
    *ups, down = block.expert_projections(apart=not low.fused_experts)
    kept = low.kept_input(rows * h, *ups, kind="experts", part=part)
    for i, projection in enumerate(ups):
        tape.linear(
            part, projection, rows=rows, groups=e, kind="experts", keeps=0.0 if i else kept, first_use=not i
        )
    # rows, and the gate beside `up`; the rows of its bias
    held = float(rows * (h + (f if block.gated else 0)) + block.hidden_size)
    held += rows * ups[0].out_features if block.expert_bias and low.experts != "eager" else 0.0
    activation(acting, part, float(rows * f), block.activation, gated=block.gated, held=held)
    kept = low.kept_input(rows * f, down, kind="experts", part=part)
    tape.linear(part, down, rows=rows, groups=e, kind="experts", keeps=kept)


def _weighted_sum(
    tape: Tape,
    block: MixtureOfExperts,
    pairs: float,
    launches: float,
    asked: tuple[bool, bool],
    *,
    looped: bool,
    row_bytes: int,
) -> None:
    """Add the product with the routing weights and the sum over each token's experts.

    It keeps what the experts returned and the weights, if what the other is multiplied by
    needs a gradient (`asked`: weights, experts); the loop also what it adds to the sum,
    the grouped form the way back to the tokens' order.
    """
    low, k = tape.lowering, _top_k(block)
    weight = 4.0 if block.routing.wide_weights else float(low.compute_bytes)
    wide = max(weight / row_bytes, 1.0) * pairs  # a product with fp32 weights is fp32
    if looped:
        summed = k * block.expert_width * float(low.activation_bytes)
        added = wide if block.routing.wide_sum else summed
        kept = pairs * asked[0] + (added + weight * k) * asked[1]
        live = (2 * wide / block.num_experts, 3 * wide / block.num_experts + 2 * pairs / k)
    else:
        kept = pairs * asked[0] + weight * k * asked[1] + INDEX_BYTES * k * any(asked)
        # the gradient of what the experts returned, beside that itself
        narrowed = pairs if wide > pairs and all(asked) and not low.rebuilds else 0.0
        live = (2 * wide, 3 * wide + narrowed)
    # what the functions around still hold: their input (and the shared experts' output), the chosen
    # experts and, sorted by expert, the pairs' rows, order, way back and what the experts returned
    held = float(block.hidden_size * low.compute_bytes * (2 if block.shared_first else 1))
    held += block.num_experts * low.compute_bytes + (INDEX_BYTES + weight) * k
    held += 0.0 if looped else 2 * pairs + (3 * INDEX_BYTES + 4.0 + weight) * k
    bias = block.num_experts * (block.expert_size - block.expert_matrices_size)
    tape.ops.append(
        Op(
            (block.path, "weighted sum"),
            "gather",
            forward=Cost(bytes=per_token(5.0 * pairs), launches=0.6 * launches),
            backward=Cost(bytes=per_token(6.0 * pairs), launches=0.8 * launches),
            saved_bytes=per_token(kept),
            live_forward_bytes=per_token(live[0]),
            live_backward_bytes=per_token(live[1]),
            passing_bytes=per_token(live[0] + held),
            gradient_bytes=float(bias * low.weight_bytes) if low.weights_train else 0.0,
            dtype=low.compute_dtype,
        )
    )


def _all_experts(tape: Tape, block: MixtureOfExperts) -> None:
    """Add every expert over every token: rows scaled by their scores before, summed after."""
    low, part, e = tape.lowering, block.path, block.num_experts
    c = float(low.compute_bytes)
    rows = e * block.expert_width * c
    tape.elementwise(
        (part, "scale tokens"),
        5.0 * rows,
        7.0 * rows,
        launches=3,
        saved=rows * low.activation_bytes / c + e * c,
        alive=Alive(rows, 3.0 * rows, 2.0 * rows),
    )
    _experts(tape, block, e)
    tape.elementwise(
        (part, "sum"),
        rows,
        2.0 * rows,
        launches=1,
        alive=Alive(rows / e, rows, 2.0 * rows),
    )


def _shared_experts(tape: Tape, block: MixtureOfExperts) -> None:
    """Add the experts that every token passes, and the gate that scales them."""
    if block.shared is None:
        return
    low, part = tape.lowering, block.path
    row = float(block.hidden_size * low.compute_bytes)
    start = len(tape.ops)
    feedforward(tape, block.shared)
    computed, start = _apart(tape, start), len(tape.ops)
    if block.shared_gate is not None:  # its product keeps the experts' output and the gate
        kept = tape.kept_entry(block.hidden_size, block.shared_gate, part=part)
        tape.linear(part, block.shared_gate, keeps=kept)
        gates = _apart(tape, start)
        tape.elementwise(
            (part, "shared gate"),
            2.0 * row,
            launches=2,
            saved=row * gates + low.compute_bytes * (gates or computed),
            alive=Alive(row, 3.0 * row, 3.0 * row),
        )
    tape.elementwise((part, "add shared"), 3.0 * row, launches=1, alive=Alive(row, row, 3 * row))
