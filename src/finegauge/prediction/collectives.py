r"""The messages that the ranks of a run send each other in one optimizer step; not their cost.

One row per kind of message: its payload, between whom, how often, and the computation that runs beside it.
`communication` prices the rows; `finegauge explain` adds up their bytes.

Per micro-batch, FSDP gathers the weights twice and reduces the trained gradients once (once per step
where `accumulates_whole`), one message per layer and one for embedding and head, which stay gathered from
forward to backward. ZeRO-3 gathers all of it twice, but for what it keeps until the backward pass, 1e9
elements by default. ZeRO-2 reduces per micro-batch, DDP and ZeRO-1 once per step, in buckets; ZeRO-1 and 2
gather updated weights [1]. DeepSpeed all-reduces in ZeRO-2 as it does in ZeRO-1, and keeps its own part
(0.19.8, `use_multi_rank_bucket_allreduce`, counted on ranks of its own code).

Tensor parallelism all-reduces once per branch and pass [2] (transformers' own, in backward, once per product
that begins one, and it gathers the logits); with sequence parallelism each of these is an all-gather and a
reduce-scatter [3], and Megatron gathers once more in backward what it kept divided. Interleaving v chunks per
stage sends v times as often over the pipeline [4]. Experts are reached by two all-to-alls per layer and pass;
context parallelism passes keys and values round a ring, and on the way back their gradients, home again:
in fp32 by PyTorch (`_cp_options.convert_to_f32`), as they are by TransformerEngine (AttnFuncWithCPAndKVP2P).

Neglected: scalars (losses, norms of gradients), buffers that DDP broadcasts.

[1] Rajbhandari et al. 2020, arXiv:1910.02054, section 7   [2] Shoeybi et al. 2019, arXiv:1909.08053, section
3   [3] Korthikanti et al. 2022, arXiv:2205.05198, section 4.2   [4] Narayanan et al. 2021, arXiv:2104.04473,
section 2.2
"""

from collections import Counter
from collections.abc import Iterator
from operator import attrgetter
from typing import Any

from finegauge.arithmetic import ceil, every, largest, smallest
from finegauge.catalogue.frameworks import engine, framework_of
from finegauge.data.batch_shape import shape
from finegauge.model.blocks import Attention, FeedForward, LatentAttention, Mixer, MixtureOfExperts
from finegauge.model.graph import Graph, value_run
from finegauge.model.op import Extents, Op
from finegauge.prediction.forward_passes import (
    Generation,
    batches_of_answers,
    gathers_to_generate,
    generation_of,
    generator,
    policy_and_value,
    scorers,
)
from finegauge.prediction.model_parallel import (
    WHOLE_ON_EACH_RANK,
    by_fully_shard,
    by_megatron,
    by_transformers,
    chunks_of,
    expert_tensor,
    gathers_narrow,
    gradient_width,
    regathers,
    stage_layers,
    stream_degree,
)
from finegauge.prediction.prefetch import ZERO3_KEPT
from finegauge.prediction.recomputation import passes_of_a_layer
from finegauge.prediction.sharding import (
    GATHERING,
    Share,
    expert_copies,
    keeps_gathered,
    mean_extents,
    rank_extents,
    shard_degree,
    share_of,
)
from finegauge.profile import Exchange
from finegauge.records import NamedTuple
from finegauge.run.phases import accumulates_whole, engine_of, micro_steps, num_updates
from finegauge.run.rules import FSDP, GENERATING, RL, SERVING
from finegauge.run.run import Run

DDP_FIRST_BUCKET_BYTES = 2**20  # torch: the first bucket is small, so that reducing starts early
DDP_BUCKET_BYTES = 25 * 2**20  # torch: bucket_cap_mb
OUTER = "embedding and head"  # what is gathered apart from the layers, in passes that only go forward
FOUR_BITS_BYTES = 0.5
ZERO_BUCKET = 5e8  # elements: DeepSpeed's default allgather_bucket_size


class Collective(NamedTuple):
    """One kind of message of one rank, and how often it is sent."""

    kind: str  # all_reduce | all_gather | reduce_scatter | all_to_all | send
    group: str  # data | tensor | context | expert | pipeline
    what: str  # what is in it
    payload_bytes: (
        float  # the whole tensor: gathered, or before it is reduced; what one rank hands in or sends
    )
    ranks: int  # that take part
    span: int  # the first and the last of them are this many ranks apart
    num_sent: float  # per micro-batch, or per step
    once: bool = False  # per step: after its last micro-batch
    beside: str = ""  # forward | backward | attention: the computation it runs beside; none waits for it
    at_once: bool = False  # by a kernel of an engine's own, in which each rank reads what all others have

    @property
    def name(self) -> str:
        """Return what its time is called."""
        kind = self.kind.replace("all_to_all", "all-to-all").replace("_", "-")
        if self.kind == "send":
            return {"pipeline": "point to point"}.get(self.group, f"ring ({self.group} parallel)")
        return kind if self.group == "data" else f"{kind} ({self.group} parallel)"

    def num_per_step(self, micro_steps: float) -> float:
        """Return how often it is sent in a step of `micro_steps` micro-batches."""
        return self.num_sent * (1 if self.once else micro_steps)


def among_data_ranks(run: Run, share: Share) -> Iterator[Collective]:
    """Yield gathers of weights and reductions of gradients among data-parallel ranks."""
    ranks = run.data_parallel * run.context_parallel
    yield from _experts_data(run, share)
    if every(ranks == 1) and not run.sharding.startswith("zero"):
        return
    layers, span = stage_layers(run, share.graph.model), ranks * run.tensor_parallel
    gradients = share.whole_gradient_bytes(layers)
    updated = gradients if run.trains_adapters else layers * share.layer_bytes + share.outer_bytes
    if by_megatron(run) and run.sharding in ("none", "zero1"):
        what = "gradients", "updated weights"
        yield from _by_megatron(run, "data", what, (gradients, updated), ranks, span)
    elif run.sharding == "none":
        *earlier, last = _buckets(run, share)
        reduced = "all_reduce", "data", "gradients"
        for size, number in Counter(earlier).items():
            yield Collective(*reduced, size, ranks, span, number, once=True, beside="backward")
        yield Collective(*reduced, last, ranks, span, 1, once=True)
    elif run.sharding in ("zero1", "zero2"):
        yield from _in_zero_buckets(run, share, "all_reduce", gradients, ranks)
        group = shard_degree(run)
        number = ceil(updated / (ZERO_BUCKET * _value_width(run, share)))
        gathered = "all_gather", "data", "updated weights"
        yield Collective(*gathered, updated / number, group, group * run.tensor_parallel, number, once=True)
    elif run.sharding == "zero3":
        yield from _zero3(run, share, gradients)
    else:
        yield from _fsdp(run, share, ranks)


def forward_gathers(run: Run, share: Share) -> Iterator[Collective]:
    """Yield the weights that one pass gathers which only goes forward."""
    if run.sharding not in GATHERING:
        return
    group, layers = shard_degree(run), stage_layers(run, share.graph.model)
    gathered, span = ("all_gather", "data", "weights"), group * run.tensor_parallel
    layer, outer = (_sent_fraction(run) * size for size in (share.layer_bytes, share.outer_bytes))
    yield Collective("all_gather", "data", OUTER, outer, group, span, 1)
    yield Collective(*gathered, layer, group, span, 1)
    yield Collective(*gathered, layer, group, span, layers - 1, beside="forward")
    copies = expert_copies(run)
    if run.expert_parallel > 1 and not every(copies == 1):
        span = copies * run.expert_parallel * expert_tensor(run)
        experts = "all_gather", "expert", "experts", share.expert_layer_bytes
        yield Collective(*experts, copies, span, layers, beside="forward")


def _value_width(run: Run, share: Share) -> int:
    low = share.graph.lowering
    return low.adapter_bytes if run.trains_adapters else low.weight_bytes


def _in_zero_buckets(run: Run, share: Share, kind: str, gradients: Any, ranks: int) -> Iterator[Collective]:
    """Yield DeepSpeed's reductions, of one full bucket after the other; nothing runs beside the last one."""
    number = ceil(gradients / (run.reduce_bucket_size * _value_width(run, share)))
    once, span = run.sharding == "zero1", ranks * run.tensor_parallel
    reduced = kind, "data", "gradients", gradients / largest(1, number), ranks, span
    yield Collective(*reduced, largest(0, number - 1), once=once, beside="backward")
    yield Collective(*reduced, 1, once=once)


def _zero3(run: Run, share: Share, gradients: Any) -> Iterator[Collective]:
    """Yield what ZeRO-3 exchanges: weights layer by layer, again unless it has kept them, and gradients.

    What to free it remembers by module and step from the first passes that it knew the order of, and
    asks no more: of a model that is scored before it trains, of forward passes alone (__params_to_release of
    deepspeed/runtime/zero/partitioned_param_coordinator.py, 0.19.8; counted on two ranks).

    With a second copy within a node, ZeRO++'s, only the first micro-batch of a step gathers from all, and
    none where weights are frozen: their copy never goes stale.
    """
    group, layers, layer = shard_degree(run), stage_layers(run, share.graph.model), share.layer_bytes
    gathered, span = ("all_gather", "data", "weights"), group * run.tensor_parallel
    whole = layers * layer + share.outer_bytes
    kept = smallest(whole, 0.0 if share.scored_first else ZERO3_KEPT * share.graph.lowering.compute_bytes)
    times = (whole - kept) / layer
    layer, outer = _sent_fraction(run) * layer, _sent_fraction(run) * share.outer_bytes
    all_ranks = near = group, span
    rounds: tuple[tuple[tuple[Any, Any], float, bool], ...] = ((all_ranks, 1, False),)
    if run.zero_hpz_partition_size > 1:
        node = smallest(run.zero_hpz_partition_size, group)
        near = node, node * run.tensor_parallel
        rounds = ((all_ranks, 1, True), (near, run.gradient_accumulation_steps - 1, True))
        rounds = ((near, 1, False),) if run.trains_adapters else rounds
    for among, each, once in rounds:
        yield Collective(*gathered, outer, *among, each, once=once)
        yield Collective(*gathered, layer, *among, each, once=once)
        yield Collective(*gathered, layer, *among, each * (layers - 1), once=once, beside="forward")
    yield Collective(*gathered, layer, *near, times, beside="backward")
    if run.zero_quantized_gradients:
        yield from _in_four_bits(run, share, gradients, layers)
    else:
        yield from _in_zero_buckets(run, share, "reduce_scatter", gradients, group)


def _sent_fraction(run: Run) -> float:
    """Return what part of the weights' bytes is sent: ZeRO++ gathers 16-bit values in 8 bits."""
    return 0.5 if run.sharding == "zero3" and run.zero_quantized_weights else 1.0


def _in_four_bits(run: Run, share: Share, gradients: Any, layers: Any) -> Iterator[Collective]:
    """Yield ZeRO++'s reductions: every tensor to the ranks of the node, and their sums to the other nodes.

    (all_to_all_quant_reduce of deepspeed/runtime/comm/coalesced_collectives.py, 0.19.8; arXiv:2306.10209,
    section 3.3.) Neglected: scales, and the seconds of quantising.
    """
    ranks, nodes = shard_degree(run), run.num_nodes
    local = largest(1, ranks // nodes)
    size, what = FOUR_BITS_BYTES * gradients / (_value_width(run, share) * layers), "gradients in 4 bits"
    hops = [(size, local, local * run.tensor_parallel)]
    if nodes > 1:
        hops += [(size / local, nodes, ranks * run.tensor_parallel)]
    for each, among, span in hops:
        sent = "all_to_all", "data", what, each, among, span
        yield Collective(*sent, layers - 1, beside="backward")
        yield Collective(*sent, 1)


def _fsdp(run: Run, share: Share, ranks: int) -> Iterator[Collective]:
    """Yield what FSDP exchanges: layer by layer, embedding and head as one."""
    group, layers = shard_degree(run), stage_layers(run, share.graph.model)
    span, once = group * run.tensor_parallel, accumulates_whole(run)
    gather, reduce = ("all_gather", "data", "weights"), ("reduce_scatter", "data", "gradients")
    layer, outer = share.layer_bytes, share.outer_bytes
    if run.fp8 and run.fp8_all_gather:
        layer = layer / share.graph.lowering.weight_bytes
    stay = run.pipeline_parallel > 1  # for all of the step
    yield Collective(*gather, outer, group, span, 1, once=stay)
    for beside in ("forward",) if keeps_gathered(run) else ("forward", "backward"):
        yield Collective(*gather, layer, group, span, 1, once=stay)
        yield Collective(*gather, layer, group, span, layers - 1, once=stay, beside=beside)
    wide = 2.0 if _reduces_wide(run, share) else 1.0
    layer, outer = wide * share.layer_gradient_bytes, wide * share.outer_gradient_bytes
    yield Collective(*reduce, layer, group, span, layers - 1, once=once, beside="backward")
    yield Collective(*reduce, layer, group, span, 1, once=once)
    yield Collective(*reduce, outer, group, span, 1, once=once)
    copies = ranks // group
    if not every(copies == 1):  # every shard, once it is reduced within its copy
        between = "all_reduce", "data", "shards of gradients"
        for shard, number in ((layer / group, layers), (outer / group, 1)):
            whole = ranks * run.tensor_parallel
            yield Collective(*between, shard, copies, whole, number, once=once, beside="backward")


def _reduces_wide(run: Run, share: Share) -> bool:
    """Return whether 16-bit gradients of fp32 shards are reduced in fp32.

    So torchtitan's and NeMo Automodel's MixedPrecisionPolicy have it (torchtitan/config/job_config.py,
    mixed_precision_reduce); accelerate reduces in the dtype that it computes in.
    """
    return by_fully_shard(run) and not run.trains_adapters and share.value_bytes > _value_width(run, share)


def _by_megatron(
    run: Run, group: str, what: tuple[str, str], sizes: tuple[float, float], ranks: int, span: int
) -> Iterator[Collective]:
    """Yield Megatron-LM's reduction of all gradients, as wide as it adds them up, and what is gathered then.

    `what` and `sizes` are of gradients, and of what is updated. Nothing runs beside it unless
    overlap_grad_reduce is set, as NeMo does.
    """
    beside = "backward" if framework_of(run.framework).reduces_beside_backward else ""
    kind = "all_reduce" if run.sharding == "none" else "reduce_scatter"
    reduced = sizes[0] * gradient_width(run)
    yield Collective(kind, group, what[0], reduced, ranks, span, 1, once=True, beside=beside)
    if run.sharding == "zero1":
        yield Collective("all_gather", group, what[1], sizes[1], ranks, span, 1, once=True)


def _buckets(run: Run, share: Share) -> list[float]:
    """Return the sizes of DDP's buckets, in the order of the backward pass, in bytes.

    A bucket is closed by the tensor that fills it [torch.nn.parallel.DistributedDataParallel]; from the
    second step on they follow the order in which gradients come.
    """
    graph, stages = share.whole, run.pipeline_parallel
    sizes = [_reduced_bytes(run, op) for op in reversed(graph.head)]
    for group in reversed(graph.layers):
        own = [_reduced_bytes(run, op) for op in reversed(group.ops)]
        sizes += own * max(1, ceil(group.count / stages))
    sizes += [_reduced_bytes(run, op) for op in graph.embedding]
    buckets: list[float] = []
    filled, limit = 0.0, DDP_FIRST_BUCKET_BYTES
    for size in filter(None, sizes):
        filled += size
        if filled >= limit:
            buckets.append(filled)
            filled, limit = 0.0, DDP_BUCKET_BYTES
    return [*buckets, filled] if filled or not buckets else buckets


def _reduced_bytes(run: Run, op: Op) -> float:
    if op.kind == "grouped_gemm" and run.expert_parallel > 1:
        return 0.0  # those who hold the same experts reduce them
    return op.gradient_bytes / (1 if op.kind in WHOLE_ON_EACH_RANK else run.tensor_parallel)


def _experts_data(run: Run, share: Share) -> Iterator[Collective]:
    copies = expert_copies(run)
    if run.expert_parallel == 1 or every(copies == 1):
        return
    layers = stage_layers(run, share.graph.model)
    stride = run.expert_parallel * expert_tensor(run)
    weights, gradients = share.expert_layer_bytes, share.expert_layer_gradient_bytes
    span, once = copies * stride, accumulates_whole(run)
    if run.sharding in GATHERING:
        for beside in ("forward", "backward"):
            yield Collective("all_gather", "expert", "experts", weights, copies, span, layers, beside=beside)
        kind = "reduce_scatter"
    else:
        kind, once = ("reduce_scatter", False) if run.sharding == "zero2" else ("all_reduce", True)
    times, what = layers if gradients else 0, "gradients of experts"
    if by_megatron(run) and run.sharding in ("none", "zero1"):  # as it does the others
        sizes = times * gradients, times * (gradients if run.trains_adapters else weights)
        yield from _by_megatron(run, "expert", (what, "updated experts"), sizes, copies, span)
        return
    yield Collective(kind, "expert", what, gradients, copies, span, times, once=once, beside="backward")


SUM_BYTES = 4  # of the gradients of keys and values while ranks add to them
TRAINED = ("sft", "pretrain", "reward", "dpo", "grpo")


def collectives(run: Run) -> tuple[Collective, ...]:
    """Return every message that one rank of `run` takes part in during one step of its phase.

    Of a pipeline it is the rank that sends most, a middle stage; of PPO all updates of policy and value.
    """
    share = share_of(run)
    if not share.communicates:
        return ()
    extents = rank_extents(run, mean_extents(shape(run)))
    found: list[Collective] = []
    if run.phase == "ppo":
        for held, trained in zip(policy_and_value(run, share), (run, value_run(run)), strict=True):
            again = passes_of_a_layer(trained, held.graph)
            found += [_repeated(run, one) for one in exchanged(trained, held, extents, again)]
    elif run.phase in TRAINED:
        again = passes_of_a_layer(run, share.graph)
        found += [_repeated(run, one) for one in exchanged(run, share, extents, again)]
    for _, held in scorers(run, share):
        found += forward_messages(run, held, extents)
    beside = run.phase in RL and engine(run.inference_engine).paged  # its messages are its own
    if run.phase in (*SERVING, *GENERATING) and not beside:
        batch = generation_of(run, extents)
        before, reading, further = generation_messages(run, share, batch)
        rounds = batches_of_answers(run, batch)
        rest = [one._replace(num_sent=batch.steps * one.num_sent) for one in further]
        for one in (*before, *reading, *rest):
            found.append(one._replace(num_sent=rounds * one.num_sent, once=run.phase not in SERVING))
    return tuple([one for one in found if one.ranks > 1 and one.num_sent > 0 and one.payload_bytes > 0])


def _repeated(run: Run, one: Collective) -> Collective:
    updates, passes = num_updates(run), run.ppo_epochs if run.phase in RL else 1
    return one._replace(num_sent=(updates if one.once else passes) * one.num_sent)


def exchanges(run: Run) -> list[Exchange]:
    """Return how often and how many bytes of each kind one rank exchanges in a step, the largest first."""
    steps = micro_steps(run)
    totals: dict[tuple[str, str], tuple[float, float]] = {}
    for one in collectives(run):
        times = one.num_per_step(steps)
        number, num_bytes = totals.get((one.kind, one.group), (0.0, 0.0))
        totals[one.kind, one.group] = number + times, num_bytes + times * one.payload_bytes
    found = [Exchange(*kind, *amounts) for kind, amounts in totals.items()]
    return sorted(found, key=attrgetter("bytes_per_step"), reverse=True)


def exchanged(run: Run, share: Share, extents: Extents, runs: float) -> list[Collective]:
    """Return the messages of one rank that holds `share`.

    A layer `runs` forward, backward, and once more where it is recomputed.
    """
    return [
        *among_data_ranks(run, share),
        *_tensor(run, share, extents, max(runs, 2.0 + _of_branches(share.graph, run))),
        *_context(run, share, extents, max(runs, passes_of_a_layer(run, share.graph, "core_attn"))),
        *_experts(run, share, extents, max(runs, passes_of_a_layer(run, share.graph, "moe"))),
        *_pipeline(run, share, extents),
    ]


def _of_branches(graph: Graph, run: Run) -> float:
    """Return the share of branches whose sums run again because their module is checkpointed alone."""
    if run.activation_checkpointing != "selective":
        return 0.0
    number = again = 0
    for layer, count in graph.model.layers:
        for branch in layer.branches:
            number += count
            again += count if branch.mixer.path in run.recompute_modules else 0
    return again / max(1, number)


def forward_messages(run: Run, share: Share, extents: Extents, *, sampled: float = 0.0) -> list[Collective]:
    """Return the messages of one rank in a pass that only goes forward.

    The pass gives the logits of `sampled` tokens; 0 where it takes the loss of all.
    """
    return [
        *forward_gathers(run, share),
        *_tensor(run, share, extents, 1, sampled),
        *_context(run, share, extents, 1),
        *_experts(run, share, extents, 1),
    ]


class GenerationMessages(NamedTuple):
    """The messages of one rank while answers are generated."""

    before: list[Collective]  # once: weights that stay gathered
    reading: list[Collective]  # in the pass over the prompts
    further: list[Collective]  # in that of each token after the first


def generation_messages(run: Run, share: Share, batch: Generation) -> GenerationMessages:
    """Return the messages of one rank while the answers of `batch` are generated."""
    generating, held = generator(run, share)
    whole = generating.replace(sequence_parallel=False) if run.sequence_parallel else generating
    reading = forward_messages(generating, held, batch.prompts, sampled=batch.rows)
    further = forward_messages(whole, held, batch.token, sampled=batch.rows)
    once = gathered_to_generate(run)
    before = [one._replace(beside="") for one in forward_gathers(run, share) if one.what in once]
    own = engine_of(run).paged  # vLLM's custom_all_reduce, SGLang's and TensorRT-LLM's like it
    passes = (
        [one._replace(at_once=own and one.kind == "all_reduce") for one in found if one.what not in once]
        for found in (reading, further)
    )
    return GenerationMessages(before, *passes)


def gathered_to_generate(run: Run) -> tuple[str, ...]:
    """Return what of the weights is gathered once for a batch of answers, not for every token."""
    if run.sharding == "fsdp_shard_grad_op" or gathers_to_generate(run):
        return OUTER, "weights", "experts"
    return (OUTER,) if run.sharding in FSDP else ()


def _tensor(
    run: Run, share: Share, extents: Extents, runs: float, sampled: float = 0.0
) -> Iterator[Collective]:
    """Yield what tensor-parallel ranks add up: the output of every branch, the gradient of its input.

    So are the streams at embedding and head, and three numbers per token of a loss over divided words;
    of `sampled` tokens, each the last of its sequence, all ranks get the logits.
    """
    degree, model, low = run.tensor_parallel, share.graph.model, share.graph.lowering
    if degree == 1:
        return
    stages, group, backward = run.pipeline_parallel, (degree, degree), runs > 1
    back = backward / stages * _branches(share.graph, apart=by_transformers(run))
    sums = max(1, runs - 1) * _branches(share.graph) / stages + back
    ends = 2 if stages == 1 and backward else 1  # embedding and head, each on its stage
    stream = extents.tokens * model.hidden_size * low.compute_bytes
    if sampled or by_transformers(run):
        words = (sampled or extents.tokens) * model.vocab_size * low.compute_bytes
        yield Collective("all_gather", "tensor", "logits", words, *group, 1)
    if by_transformers(run):
        yield Collective("all_reduce", "tensor", "streams", stream, *group, sums + ends)
        return
    if not sampled:
        yield Collective("all_reduce", "tensor", "losses", 4.0 * extents.tokens, *group, 3)
    if not run.sequence_parallel:
        yield Collective("all_reduce", "tensor", "streams", stream, *group, sums + ends)
        return
    gathered = stream / low.compute_bytes if gathers_narrow(run) else stream
    yield from _halves(run, stream, gathered, (sums - back, back, ends))
    if not backward:
        return
    # torchtitan's checkpointing per operator keeps what was reduced, not what was gathered
    per_operator = run.activation_checkpointing == "selective" and not run.recompute_modules
    if regathers(run) or (per_operator and framework_of(run.framework).reruns_alternate_products):
        again = "all_gather", "tensor", "inputs kept divided"
        hides = by_megatron(run) or run.tensor_parallel_overlap
        yield Collective(*again, gathered, *group, back, beside="backward" if hides else "")
    normed = [op for g in share.whole.layers for op in g.ops * g.count] + list(share.whole.head)
    norms = [op for op in normed if op.kind == "norm" and op.gradient_bytes]
    if norms:
        width = sum(op.gradient_bytes for op in norms) / len(norms)
        what = "gradients of norms"
        yield Collective("all_reduce", "tensor", what, width, *group, len(norms) / stages, once=True)


def _halves(
    run: Run, stream: Any, gathered: Any, numbers: tuple[float, float, float]
) -> Iterator[Collective]:
    """Yield sums of sequence parallelism in two halves: `numbers` of forward, backward and the ends.

    A layer's products ask for `gathered` bytes, the ends for the whole `stream`.
    """
    forward, backward, ends = numbers
    overlaps, group = run.tensor_parallel_overlap, (run.tensor_parallel, run.tensor_parallel)
    of_products = (forward, "forward"), (backward, "backward")
    shown = [(number, beside if overlaps else "", gathered) for number, beside in of_products]
    for number, beside, size in [*shown, (ends, "", stream)]:
        yield Collective("all_gather", "tensor", "streams", size, *group, number, beside=beside)
        yield Collective("reduce_scatter", "tensor", "streams", stream, *group, number, beside=beside)


def _branches(graph: Graph, *, apart: bool = False) -> int:
    """Return the branches of all layers; `apart`: the products that each of them begins with."""
    total = 0
    for layer, count in graph.model.layers:
        for branch in layer.branches:
            products = 1
            if apart and isinstance(branch.mixer, Attention | FeedForward):
                products = len(branch.mixer.projections) - 1
            total += count * products
        if layer.parallel and not apart:
            total -= count * (layer.parallel - 1)
    return total


def _context(run: Run, share: Share, extents: Extents, runs: float) -> Iterator[Collective]:
    """Yield the ring of keys and values: a block to the next rank, until everyone has seen it."""
    degree, model = run.context_parallel, share.graph.model
    if degree == 1:
        return
    width = blocks = 0
    for layer, count in model.layers:
        for branch in layer.branches:
            own = _key_value_width(branch.mixer)
            width, blocks = width + count * own, blocks + (count if own else 0)
    if not blocks:
        return
    tensor = run.tensor_parallel
    channels = extents.tokens * width / blocks / tensor
    rounds, ring = blocks / run.pipeline_parallel, (degree, degree * tensor)
    block = channels * share.graph.lowering.compute_bytes
    # TransformerEngine adds in the values' own dtype
    sums = block if by_megatron(run) else channels * SUM_BYTES
    homes = rounds * degree if runs > 1 else 0.0  # a block's gradients come home last
    times = rounds * runs * (degree - 1), homes
    sent = ("keys and values", block, *ring, times[0]), ("gradients of them", sums, *ring, times[1])
    yield from (Collective("send", "context", *one, beside="attention") for one in sent)


def _key_value_width(mixer: Mixer) -> int:
    match mixer:
        case Attention():
            return mixer.num_key_value_heads * (mixer.head_dim + (mixer.value_head_dim or mixer.head_dim))
        case LatentAttention():
            key = mixer.qk_nope_head_dim + mixer.qk_rope_head_dim
            return mixer.num_heads * (key + mixer.value_head_dim)
        case _:
            return 0


def _experts(run: Run, share: Share, extents: Extents, runs: float) -> Iterator[Collective]:
    degree = run.expert_parallel
    if degree == 1 or (
        run.phase in SERVING and run.data_parallel == 1 and engine(run.inference_engine).paged
    ):
        return  # ranks of tensor parallelism have all tokens and add up what their experts made of them
    span = degree * expert_tensor(run)
    tokens = extents.tokens / stream_degree(run)
    for layer, count in share.graph.model.layers:
        for branch in layer.branches:
            mixer = branch.mixer
            if isinstance(mixer, MixtureOfExperts):
                sent = tokens * min(mixer.top_k, mixer.num_experts) * mixer.expert_width
                payload = (
                    sent * share.graph.lowering.expert_capacity_ratio * share.graph.lowering.compute_bytes
                )
                way = "all_to_all", "expert", "tokens", payload, degree, span
                times = 2 * count / run.pipeline_parallel
                if runs < 2 or not (run.expert_parallel_overlap or "dualpipe" in run.pipeline_schedule):
                    yield Collective(*way, runs * times)
                    continue
                yield Collective(*way, times, beside="backward")  # of an earlier micro-batch
                yield Collective(*way, (runs - 1) * times, beside="forward")


def _pipeline(run: Run, share: Share, extents: Extents) -> Iterator[Collective]:
    stages, chunks = run.pipeline_parallel, chunks_of(run)
    if stages == 1:
        return
    boundary = extents.tokens * share.graph.model.hidden_size * share.graph.lowering.activation_bytes
    if run.tensor_parallel > 1 and (run.sequence_parallel or by_megatron(run)):
        boundary = boundary / run.tensor_parallel  # each rank of a stage sends its part of the stream alone
    times = 2 * chunks if stages > 2 else 2 * chunks - 1
    span = stages * run.tensor_parallel * run.context_parallel * run.data_parallel
    yield Collective("send", "pipeline", "activations, gradients", boundary, stages, span, times)
