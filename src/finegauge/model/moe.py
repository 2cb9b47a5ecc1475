"""Operators of feed-forwards: dense ones, and mixtures of experts with router, experts and weighted sum.

The experts keep what a dense feed-forward keeps for every token-expert pair, k·T rows in
all; beside it stand the router's scores, the indices of the pairs and what comes back from
the experts, which the weights multiply. Dense fine-tuning of a mixture is k = E (Xia et
al. 2024, section III).

Bytes follow transformers 5: "grouped_mm" sorts the pairs by expert and multiplies them in
one call, in the experts' own dtype whatever autocast says; "eager" loops over the experts,
of which one at a time is at work. Where experts differ in load, the bytes of their sum do not. With a
capacity each computes that many rows, whatever tokens choose: what is over is dropped, what is missing padded
(Megatron core, transformer/moe/moe_utils.py: get_capacity; DeepSpeed, moe/sharded_moe.py).
"""

from typing import Any

from finegauge.arithmetic import largest, log, smallest, where
from finegauge.model.blocks import FeedForward, MixtureOfExperts
from finegauge.model.lowering import Lowering
from finegauge.model.op import ZERO, Cost, Op, Poly, per_token
from finegauge.model.op_builder import OpBuilder, cut_below, is_adapter

# Values per channel that an activation keeps, beside the product it feeds to the next projection.
# One kernel keeps its input, and a gated one also its result and `up` (all others: 1 and 3); an
# activation written out in PyTorch keeps what each of its steps needs.
ACTIVATION_KEEPS = {"gelu_new": 4.0, "quick_gelu": 2.0, "clamped_swiglu": 6.0, "xielu": 4.5}
# Values per channel alive where nothing is kept, and beside what is kept backward: one kernel's input and
# result; written out, the steps between them too. So beside what is kept forward: one result.
FORWARD = {"xielu": 4.0, "bloom_gelu": 4.0}
PASSING = {"gelu_new": 4.0, "quick_gelu": 3.0, "xielu": 5.5, "bloom_gelu": 5.0}
BACKWARD = {"gelu_new": 3.0, "quick_gelu": 4.0, "xielu": 4.0, "bloom_gelu": 6.0}
AUTOCAST_ALIVE = {"gelu_new": (6.0, 6.0)}  # the same two
AUTOCAST_KEEPS = {"gelu_new": 7.0, "relu2": 3.0, "xielu": 7.5}  # powers are in fp32, of a copy that is kept
GATED_KEEPS, PLAIN_KEEPS = 3.0, 1.0
INDEX_BYTES = 8.0  # int64
GROUPED_LAUNCHES = 12.0
LOOPED_EXPERT_LAUNCHES = 14.0  # where, gather, weight, index_add and their index tensors, per expert


def feedforward(builder: OpBuilder, block: FeedForward) -> None:
    """Add a dense feed-forward, its input already normalised.

    A gated one keeps its input, gate, activation, up and (if down trains or is adapted) their product:
    2(H + 4F) bytes per token in 16 bit.
    """
    low, part, width = builder.lowering, block.path, float(block.intermediate_size)
    *ups, down = block.projections
    kept = builder.kept_entry(block.hidden_size, *ups, part=part)
    for i, projection in enumerate(ups):
        builder.linear(part, projection, keeps=0.0 if i else kept, first_use=not i, beside=i * width)
    held = block.hidden_size + (width if block.gated and len(ups) == 1 else 0.0)  # the gate beside `up`
    activation(builder, part, width, block.activation, gated=block.gated, held=held)
    for norm in block.norms:
        wide = low.autocast and block.activation in AUTOCAST_KEEPS  # what powers in fp32 return stays so
        value = low.activation_bytes if wide else low.compute_bytes
        builder.norm(norm, part, inside=not wide, beside=width * value + held * low.returned_bytes)
    kept = low.kept_input(width, down, part=part)
    start, by_relu = len(builder.ops), block.activation == "relu" and not block.gated
    builder.linear(part, down, keeps=0.0 if by_relu else kept)
    for index in range(start, len(builder.ops) if by_relu else start):  # its input, which ReLU keeps itself
        op = builder.ops[index]
        if op.kind == "gemm" and (not is_adapter(op) or low.adapter_bytes != low.compute_bytes):
            live = op.live_forward_bytes.plus(per_token(-width * low.compute_bytes))
            builder.ops[index] = op._replace(live_forward_bytes=live)


def activation(builder: OpBuilder, part: str, width: float, name: str, *, gated: bool, held: float) -> None:
    """Add the activation and, if gated, the product with `up`, over `width` channels per token.

    `held` channels of the module's input are alive until it returns.
    """
    low = builder.lowering
    w, entry = width * low.returned_bytes, held * low.returned_bytes
    name = "gelu" if low.megatron and name.startswith("gelu") else name  # one kernel, whichever form of it
    kept = ACTIVATION_KEEPS.get(name, GATED_KEEPS if gated else PLAIN_KEEPS)
    kept += 2.0 if gated and name == "gelu_new" else 0.0  # both factors of the product
    if low.autocast:  # gated, what is wide multiplies `up`
        kept = AUTOCAST_KEEPS.get(name, kept) + (3.0 if gated and name in AUTOCAST_KEEPS else 0.0)
    if name == "xielu" and not low.weights_train:  # one value less, in fp32 under autocast: no factor trains
        kept -= low.activation_bytes / low.compute_bytes
    steps = kept / (GATED_KEEPS if gated else PLAIN_KEEPS)
    if low.fused_activation and gated:
        kept, moved, launches, passing, back = 2.0, (3.0, 5.0), (1.0, 2.0), 3.0, 3.0
    elif gated:
        moved, launches = (5 * steps, 9 * steps), (2 * steps, 3 * steps)
        # backward is worst at the product: its gradient, and those of both factors
        passing, back = PASSING[name] + 1.0 if name == "gelu_new" else 3 * steps, 3.0
    else:
        moved, launches = (2 * steps, 3 * steps), (steps, steps)
        passing, back = PASSING.get(name, 2.0), BACKWARD.get(name, 2.0)
        if low.autocast:
            passing, back = AUTOCAST_ALIVE.get(name, (passing, back))
    builder.elementwise(
        (part, "activation"),
        moved[0] * w,
        moved[1] * w,
        launches=launches[0],
        backward_launches=launches[1],
        saved=kept * w,
        alive=((1.0 if gated else FORWARD.get(name, 1.0)) * w, back * w, passing * w + entry),
    )


def mixture_of_experts(builder: OpBuilder, block: MixtureOfExperts) -> None:
    """Add router, experts and shared experts, their input already normalised."""
    low, part = builder.lowering, block.path
    if block.shared_first:
        _shared_experts(builder, block)
    start = len(builder.ops)
    _router(builder, block)
    weighs, start = _differentiates(builder, start), len(builder.ops)
    for projection in block.latent[:1]:
        kept = builder.kept_entry(block.hidden_size, projection, part=part)
        builder.linear(part, projection, keeps=kept)
    dense = block.visits_all and not low.own_models
    if dense:
        _all_experts(builder, block)
        computed = _differentiates(builder, start)
    else:
        computed = _chosen_experts(builder, block, start, weighs=weighs)
    start = len(builder.ops)
    for projection in block.latent[1:]:
        builder.linear(part, projection, keeps=low.kept_input(block.expert_width, projection, part=part))
    if not (weighs or computed):
        _differentiates(builder, start)
    if not (block.shared_first or dense):
        _shared_experts(builder, block)


def _differentiates(builder: OpBuilder, start: int) -> bool:
    """Return whether the operators from `start` on, a way of its own through the block, need gradients.

    Where the block's input needs none, what comes before their first adapter is cut off.
    """
    if builder.reached:
        return True
    builder.ops[start:] = cut_below(builder.ops[start:], dropout=builder.lowering.lora_dropout)
    return any(is_adapter(op) for op in builder.ops[start:])


def _router(builder: OpBuilder, block: MixtureOfExperts) -> None:
    """Add the scores of all experts and the choice among them, and what both keep.

    A router in fp32 casts its input and its weight, and keeps the one if it trains, the other always.
    """
    low, part, h, router = builder.lowering, block.path, block.hidden_size, block.router
    routing = block.routing
    e, k = float(block.num_experts), float(min(block.top_k, block.num_experts))
    wide = 4.0 if routing.wide_scores else float(low.compute_bytes)
    kept = INDEX_BYTES * k + wide * (k if routing.scores == "top_softmax" else e)
    kept += (e if routing.masked else 0.0) + (wide * (k + 1) if routing.normalised else 0.0)
    if routing.scores == "sparsemixer":  # per choice: a mask, the softmax, the chosen one and its score
        kept = k * (e + low.compute_bytes * e + INDEX_BYTES + low.compute_bytes)
    scores = per_token(kept)
    if routing.wide_logits and low.compute_bytes < 4 and not low.autocast:
        trains = low.weights_train or low.folds(router, router.kind, part)
        entry = 4.0 * h if trains else low.kept_input(h, router, kind=router.kind, part=part)
        scores = scores._replace(const=4.0 * h * e)
        alive = (0.0, 6.0 * h, 0.0)
        builder.elementwise((part, "to fp32"), 6.0 * h, launches=2, backward_launches=2, alive=alive)
    else:
        entry = builder.kept_entry(h, router, kind=router.kind, part=part)
    builder.linear(part, router, kind=router.kind, keeps=entry)
    width = 4.0 * e
    builder.elementwise(
        (part, "top-k"),
        4 * width,
        launches=6,
        saved=scores,
        alive=(2 * width, 3 * width, 2 * width),
        kind="softmax",
    )


def _rows(builder: OpBuilder, block: MixtureOfExperts) -> float:
    """Return the rows per token that the routed experts compute: of the chosen, or up to their capacity."""
    return min(block.top_k, block.num_experts) * builder.lowering.expert_capacity_ratio


def _chosen_experts(builder: OpBuilder, block: MixtureOfExperts, entry: int, *, weighs: bool) -> bool:
    """Add the gather of each expert's rows, the experts and the weighted sum of what they return.

    Their operators begin at `entry`; `weighs`: the weights need gradients. Return whether the experts do.
    A grouped product is not among the operators that autocast narrows: fp32 experts stay fp32, adapters
    added to them or not. The loop has one expert at a time at work. Copies of weights with their adapters
    added are made when they are first read and stay until all experts are done.
    """
    low, part, e, k = builder.lowering, block.path, block.num_experts, _rows(builder, block)
    looped = block.looped or low.experts == "eager"
    own = low._replace(experts="eager" if looped else low.experts)
    wide = low.autocast and low.weight_bytes == 4
    if wide and not (looped or low.quantizes("experts")):
        own = own._replace(compute_bytes=4, compute_dtype="fp32", autocast=False)
    inner, c = OpBuilder(own, ops=builder.ops), own.compute_bytes
    row = float(block.expert_width * c)
    pairs, launches = k * row, LOOPED_EXPERT_LAUNCHES * e if looped else GROUPED_LAUNCHES
    indices = INDEX_BYTES * (2 + (block.expert_bias and low.weights_train and not looped))  # rows, order
    builder.ops.append(
        Op(
            (part, "gather tokens"),
            "gather",
            forward=Cost(bytes=per_token(2.0 * pairs + 16.0 * k), launches=0.4 * launches),
            backward=Cost(bytes=per_token(3.0 * pairs), launches=0.6 * launches),
            saved_bytes=Poly(const=0.0 if looped else 4.0 * e, token=indices * k),
            live_forward_bytes=per_token(pairs),
            live_backward_bytes=per_token(2 * row if looped else pairs + row),
            passing_bytes=per_token(pairs + row),
            dtype=low.compute_dtype,
            synchronises=looped,
        )
    )
    start = len(builder.ops)
    row_bytes = 4 if looped and block.expert_bias and wide else c  # an fp32 bias added to 16-bit products
    _experts(inner, block, k, act_bytes=row_bytes)
    for index in range(start, len(builder.ops) if looped else start):  # one expert at a time
        op = builder.ops[index]
        builder.ops[index] = op._replace(
            live_forward_bytes=op.live_forward_bytes._replace(token=op.live_forward_bytes.token / e),
            live_backward_bytes=op.live_backward_bytes._replace(token=op.live_backward_bytes.token / e),
            passing_bytes=op.passing_bytes._replace(token=op.passing_bytes.token / e),
        )
    computed = _differentiates(builder, entry)
    total = _weighted_sum(builder, block, pairs * row_bytes / c, (weighs, computed), looped=looped)
    projections = block.expert_projections(apart=not own.fused_experts)
    if not looped:  # the experts' input and its chosen rows that no product keeps
        held = 0.0 if builder.entry_kept > 0 else float(block.hidden_size * low.compute_bytes)
        held += 0.0 if own.kept_input(pairs, *projections[:-1], kind="experts", part=part) else pairs
        total = total._replace(live_forward_bytes=total.live_forward_bytes.plus(per_token(held)))
    builder.ops.append(total)
    if looped and own.fused_experts:
        _take_turns(builder.ops, start, block, float(low.compute_bytes))
    _hold_copies(builder.ops, start, own, block)
    return computed


def _take_turns(ops: list[Op], start: int, block: MixtureOfExperts, width: float) -> None:
    """Let experts that share a tensor, from `start` on, go backward one after the other.

    The gradient of each is as large as that of all. When that of the second expert is added to the first's,
    all others still keep what they need, and what the rows get back, `width` bytes a value, adds up beside.
    """
    first = next(index for index, op in enumerate(ops) if index >= start and op.kind == "grouped_gemm")
    op, e = ops[first], block.num_experts
    if op.gradient_bytes:
        waiting = op.saved_bytes.times(-2 / e).plus(per_token(block.expert_width * width))
        for later in ops[first + 1 :]:
            waiting = waiting.plus(later.saved_bytes.times(max(0, e - 2) / e))
        ops[first] = op._replace(live_backward_bytes=op.live_backward_bytes.plus(waiting))


def _hold_copies(ops: list[Op], start: int, low: Lowering, block: MixtureOfExperts) -> None:
    """Hold copies of weights with their adapters added from their first use until all experts are done.

    Where autocast narrows them, autograd keeps the narrow ones alone.
    """
    projections = block.expert_projections(apart=not low.fused_experts)
    size = float(block.num_experts * low.weight_bytes)
    sizes = {
        each.name: size * each.in_features * each.out_features
        for each in projections
        if low.folds(each, "experts", block.path)
    }
    copies = 0.0
    for index in range(start, len(ops) if sizes else start):
        op = ops[index]
        copies += sizes.pop(op.path[-1], 0.0)
        if not is_adapter(op):
            held = Poly(const=copies)
            wide = held if low.weight_bytes > low.compute_bytes else ZERO
            ops[index] = op._replace(
                passing_bytes=op.passing_bytes.plus(held), live_forward_bytes=op.live_forward_bytes.plus(wide)
            )


def _experts(builder: OpBuilder, block: MixtureOfExperts, rows: float, act_bytes: int = 0) -> None:
    """Add the routed experts' projections over `rows` rows per token.

    The activation is in `act_bytes` per value if they are more than the products'.
    """
    low, part, e = builder.lowering, block.path, block.num_experts
    h, f = block.expert_width, block.intermediate_size
    *ups, down = block.expert_projections(apart=not low.fused_experts)
    kept = low.kept_input(rows * h, *ups, kind="experts", part=part)
    for i, each in enumerate(ups):
        keeps = 0.0 if i else kept
        builder.linear(part, each, rows=rows, groups=e, kind="experts", keeps=keeps, first_use=not i)
    # rows, and the gate beside `up`; the rows of its bias
    held = float(rows * (h + (f if block.gated else 0)) + block.hidden_size)
    held += rows * ups[0].out_features if block.expert_bias and low.experts != "eager" else 0.0
    widened = low._replace(compute_bytes=max(act_bytes, low.compute_bytes))
    acting = OpBuilder(widened, ops=builder.ops)
    activation(acting, part, float(rows * f), block.activation, gated=block.gated, held=held)
    kept = low.kept_input(rows * f, down, kind="experts", part=part)
    builder.linear(part, down, rows=rows, groups=e, kind="experts", keeps=kept)


def _weighted_sum(
    builder: OpBuilder, block: MixtureOfExperts, pairs: float, needed: tuple[bool, bool], *, looped: bool
) -> Op:
    """Return the product of `pairs` bytes of rows with the routing weights, and their sum per token.

    It keeps what the experts returned and the weights, if what the other is multiplied by
    needs a gradient (`needed`: weights, experts); the loop also what it adds to the sum,
    the grouped form the way back to the tokens' order.
    """
    low, e, k = builder.lowering, block.num_experts, _rows(builder, block)
    launches = LOOPED_EXPERT_LAUNCHES * e if looped else GROUPED_LAUNCHES
    weight = 4.0 if block.routing.wide_weights else float(low.compute_bytes)
    wide = max(weight * k * block.expert_width, pairs)  # a product with fp32 weights is fp32
    if looped:
        added = wide if block.routing.wide_sum else k * block.expert_width * float(low.activation_bytes)
        kept = pairs * needed[0] + (added + weight * k) * needed[1]
        live = (2 * wide / e, 3 * wide / e + 2 * pairs / k)
    else:
        kept = pairs * needed[0] + weight * k * needed[1] + INDEX_BYTES * k * any(needed)
        # the gradient of what the experts returned, beside that itself
        narrowed = pairs if wide > pairs and all(needed) and not low.rebuilds else 0.0
        live = (2 * wide, 3 * wide + narrowed)
    # what the functions around still hold: their input (and the shared experts' output), the chosen
    # experts and, sorted by expert, the pairs' rows, order, way back and what the experts returned
    held = float(block.hidden_size * low.compute_bytes * (2 if block.shared_first else 1))
    held += e * low.compute_bytes + (INDEX_BYTES + weight) * k
    held += 0.0 if looped else 2 * pairs + (3 * INDEX_BYTES + 4.0 + weight) * k
    return Op(
        (block.path, "weighted sum"),
        "gather",
        forward=Cost(bytes=per_token(5.0 * pairs), launches=0.6 * launches),
        backward=Cost(bytes=per_token(6.0 * pairs), launches=0.8 * launches),
        saved_bytes=per_token(kept),
        live_forward_bytes=per_token(live[0]),
        live_backward_bytes=per_token(live[1]),
        passing_bytes=per_token(live[0] + held),
        gradient_bytes=float(e * block.expert_bias_size * low.weight_bytes) if low.weights_train else 0.0,
        dtype=low.compute_dtype,
    )


def _all_experts(builder: OpBuilder, block: MixtureOfExperts) -> None:
    """Add every expert over every token: rows scaled by their scores before, summed after the shared ones.

    The block's code holds both to its end, and the sum's gradient is as large from the start.
    """
    low, part, e = builder.lowering, block.path, block.num_experts
    c = float(low.compute_bytes)
    rows = e * block.expert_width * c
    scaled = rows * low.activation_bytes / c
    kept, alive = scaled + e * c, (rows, 3.0 * rows, 2.0 * rows)
    builder.elementwise((part, "scale tokens"), 5.0 * rows, 7.0 * rows, launches=3, saved=kept, alive=alive)
    start, (*ups, down) = len(builder.ops), block.expert_projections()
    _experts(builder, block, e)
    _hold_copies(builder.ops, start, low, block)
    reads = low.activation_bytes == c and low.kept_input(rows, *ups, kind="experts", part=part)
    loose, shared = 0.0 if reads else scaled, len(builder.ops)
    passing = scaled + sum(up.out_features for up in ups) * e * c  # beside what the last product reads
    _shared_experts(builder, block)
    for index, op in enumerate(builder.ops[start:], start):
        within = index < shared
        forward, backward = (loose, 0.0) if within else (loose + rows, rows)
        held = (passing if op.path[-1] == down.name else 0.0) if within else loose + rows
        builder.ops[index] = op._replace(
            live_forward_bytes=op.live_forward_bytes.plus(per_token(forward)),
            live_backward_bytes=op.live_backward_bytes.plus(per_token(backward)),
            passing_bytes=op.passing_bytes.plus(per_token(held)),
        )
    alive = (rows / e + rows + loose, rows, 2.0 * rows)
    builder.elementwise((part, "sum"), rows, 2.0 * rows, alive=alive)


def _shared_experts(builder: OpBuilder, block: MixtureOfExperts) -> None:
    if block.shared is None:
        return
    low, part, start = builder.lowering, block.path, len(builder.ops)
    row = float(block.hidden_size * low.compute_bytes)
    feedforward(builder, block.shared)
    computed, start = _differentiates(builder, start), len(builder.ops)
    if block.shared_gate is not None:  # its product keeps the experts' output and the gate
        kept = builder.kept_entry(block.hidden_size, block.shared_gate, part=part)
        builder.linear(part, block.shared_gate, keeps=kept)
        gates = _differentiates(builder, start)
        kept = row * gates + low.compute_bytes * (gates or computed)
        alive = (row, 3.0 * row, 3.0 * row)
        builder.elementwise((part, "shared gate"), 2.0 * row, launches=2, saved=kept, alive=alive)
    alive = (row, row, 3 * row)
    if block.routing.wide_shared and low.compute_bytes < 4:  # fp32 copies of both, their sum; one gradient
        wide = row * 4.0 / low.compute_bytes
        alive = (3 * wide, wide + row, 3 * wide + 2 * row)
    builder.elementwise((part, "add shared"), 3.0 * row, alive=alive)


def most_loaded(tokens: Any, chosen: Any, experts: Any, ranks: Any, skew: Any) -> tuple[Any, Any]:
    """Return the rows of the rank with most of them, and how many of its experts have any.

    Shares of experts are drawn from x^-skew between 1 and 0.8 of the tokens (0.01 and 2 with fewer rows than
    experts), as aiconfigurator's collector/helper.py does (read 2026-11-28); 0 is an even load. The most of
    `ranks` sums: exact for an expert each, nearing a normal law's with many ([1] A. and Stegun, 26.2.23).
    """
    pairs = tokens * chosen
    own = largest(experts / ranks, 1.0)
    crowded = pairs > experts
    least = where(crowded, 1.0, 0.01)
    most = largest(where(crowded, 0.8 * tokens, 2.0), 1.001 * least)
    power = 1.0 - skew + 1e-7  # never 0, of which there is no antiderivative
    below, above = least**power, most**power
    mean, square = (
        (most ** (power + n) - least ** (power + n)) / (power + n) * power / (above - below) for n in (1, 2)
    )
    t = (2.0 * largest(log((ranks + 0.25) / 0.625), 0.0)) ** 0.5  # of the most of `ranks` normal draws [1]
    under = 1.0 + 1.432788 * t + 0.189269 * t**2 + 0.001308 * t**3
    normal = (t - (2.515517 + 0.802853 * t + 0.010328 * t**2) / under) * largest(square - mean**2, 0.0) ** 0.5
    highest = (below + (above - below) * ranks / (ranks + 1.0)) ** (1.0 / power) - mean  # of one expert
    top = largest(own * mean, own * mean + (own**0.5 - 1.0) * normal + highest)
    share = where(ranks <= 1.0, 1.0, smallest(1.0, top / (experts * mean)))
    half_a_row = smallest(most, largest(least, experts * mean / (2.0 * pairs)))
    any_row = 1.0 - (half_a_row**power - below) / (above - below)
    rows = where(skew == 0, pairs / ranks, smallest(share * pairs, own * tokens))
    some = where(skew == 0, own, largest(own * any_row, smallest(1.0, rows)))
    return rows, smallest(some, rows)
