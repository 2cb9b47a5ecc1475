"""What data-parallel ranks send each other: gathers of weights, reductions of gradients.

Per micro-batch, FSDP gathers the weights twice and reduces the trained gradients once (once per step
where `parallelism.accumulates_whole`), one message per layer and one for embedding and head, which stay
gathered from forward to backward. ZeRO-3 gathers all of it twice, but for what it keeps until the
backward pass, 1e9 elements by default. ZeRO-2 reduces per micro-batch, DDP and ZeRO-1 once per step, in
buckets; ZeRO-1 and 2 gather updated weights [1]. DeepSpeed all-reduces in ZeRO-2 as it does in ZeRO-1,
and keeps its own part (0.19.8, `use_multi_rank_bucket_allreduce`, counted on ranks of its own code).

[1] Rajbhandari et al. 2020, arXiv:1910.02054, section 7
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from finegauge.arithmetic import ceil, every, largest, smallest
from finegauge.graph.op import Op
from finegauge.predict.divided import WHOLE_ON_EACH_RANK, by_megatron
from finegauge.predict.sharding import (
    GATHERING,
    ZERO3_KEPT,
    Share,
    expert_copies,
    gradient_width,
    shard_degree,
)
from finegauge.predict.stages import stage_layers
from finegauge.workload.parallelism import accumulates_whole
from finegauge.workload.run import Run

DDP_FIRST_BUCKET_BYTES = 2**20  # torch: the first bucket is small, so that reducing starts early
DDP_BUCKET_BYTES = 25 * 2**20  # torch: bucket_cap_mb
OUTER = "embedding and head"  # what is gathered apart from the layers, in passes that only go forward
ZERO_BUCKET = 5e8  # elements: DeepSpeed's default reduce_bucket_size and allgather_bucket_size


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
    gradients = layers * share.layer_gradient_bytes + share.outer_gradient_bytes
    if by_megatron(run) and run.sharding in ("none", "zero1"):
        yield from _megatron_data(run, gradients, layers * share.layer_bytes + share.outer_bytes, ranks)
    elif run.sharding == "none":
        *earlier, last = _buckets(run, share)
        reduced = "all_reduce", "data", "gradients"
        for size, number in Counter(earlier).items():
            yield Collective(*reduced, size, ranks, span, number, once=True, beside="backward")
        yield Collective(*reduced, last, ranks, span, 1, once=True)
    elif run.sharding in ("zero1", "zero2"):
        yield from _in_zero_buckets(run, share, "all_reduce", gradients, ranks)
        group = shard_degree(run)
        updated = gradients if run.trains_adapters else layers * share.layer_bytes + share.outer_bytes
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
    yield Collective("all_gather", "data", OUTER, share.outer_bytes, group, span, 1)
    yield Collective(*gathered, share.layer_bytes, group, span, 1)
    yield Collective(*gathered, share.layer_bytes, group, span, layers - 1, beside="forward")
    copies = expert_copies(run)
    if run.expert_parallel > 1 and not every(copies == 1):
        span = copies * run.expert_parallel * run.tensor_parallel
        experts = "all_gather", "expert", "experts", share.expert_layer_bytes
        yield Collective(*experts, copies, span, layers, beside="forward")


def _value_width(run: Run, share: Share) -> int:
    """Return the bytes of a trained value's gradient."""
    low = share.graph.lowering
    return low.adapter_bytes if run.trains_adapters else low.weight_bytes


def _in_zero_buckets(run: Run, share: Share, kind: str, gradients: Any, ranks: int) -> Iterator[Collective]:
    """Yield DeepSpeed's reductions, of one full bucket after the other; nothing runs beside the last one."""
    number = ceil(gradients / (ZERO_BUCKET * _value_width(run, share)))
    once, span = run.sharding == "zero1", ranks * run.tensor_parallel
    reduced = kind, "data", "gradients", gradients / largest(1, number), ranks, span
    yield Collective(*reduced, largest(0, number - 1), once=once, beside="backward")
    yield Collective(*reduced, 1, once=once)


def _zero3(run: Run, share: Share, gradients: Any) -> Iterator[Collective]:
    """Yield what ZeRO-3 exchanges: weights layer by layer, again unless it has kept them, and gradients.

    What to let go of it remembers by module and step from the first passes that it knew the order of, and
    asks no more: of a model that is scored before it trains, of forward passes alone (__params_to_release of
    deepspeed/runtime/zero/partitioned_param_coordinator.py, 0.19.8; counted on two ranks).
    """
    group, layers, layer = shard_degree(run), stage_layers(run, share.graph.model), share.layer_bytes
    gathered, span = ("all_gather", "data", "weights"), group * run.tensor_parallel
    whole = layers * layer + share.outer_bytes
    kept = smallest(whole, 0.0 if share.scored_first else ZERO3_KEPT * share.graph.lowering.compute_bytes)
    yield Collective(*gathered, share.outer_bytes, group, span, 1)
    yield Collective(*gathered, layer, group, span, 1)
    yield Collective(*gathered, layer, group, span, layers - 1, beside="forward")
    yield Collective(*gathered, layer, group, span, (whole - kept) / layer, beside="backward")
    yield from _in_zero_buckets(run, share, "reduce_scatter", gradients, group)


def _fsdp(run: Run, share: Share, ranks: int) -> Iterator[Collective]:
    """Yield what FSDP exchanges: layer by layer, embedding and head as one."""
    group, layers = shard_degree(run), stage_layers(run, share.graph.model)
    span, once = group * run.tensor_parallel, accumulates_whole(run)
    gather, reduce = ("all_gather", "data", "weights"), ("reduce_scatter", "data", "gradients")
    layer, outer = share.layer_bytes, share.outer_bytes
    yield Collective(*gather, outer, group, span, 1)
    again = run.sharding != "fsdp_shard_grad_op"
    for beside in ("forward", "backward") if again else ("forward",):
        yield Collective(*gather, layer, group, span, 1)
        yield Collective(*gather, layer, group, span, layers - 1, beside=beside)
    layer, outer = share.layer_gradient_bytes, share.outer_gradient_bytes
    yield Collective(*reduce, layer, group, span, layers - 1, once=once, beside="backward")
    yield Collective(*reduce, layer, group, span, 1, once=once)
    yield Collective(*reduce, outer, group, span, 1, once=once)
    copies = ranks // group
    if not every(copies == 1):  # every shard, once it is reduced within its copy
        between = "all_reduce", "data", "shards of gradients"
        for shard, number in ((layer / group, layers), (outer / group, 1)):
            whole = ranks * run.tensor_parallel
            yield Collective(*between, shard, copies, whole, number, once=once, beside="backward")


def _megatron_data(run: Run, gradients: float, weights: float, ranks: int) -> Iterator[Collective]:
    """Yield Megatron-LM's reduction of all gradients, as wide as it adds them up.

    Nothing runs beside it unless overlap_grad_reduce is asked for, as NeMo does.
    """
    beside = "backward" if "nemo" in run.framework.lower() else ""
    size, span = gradients * gradient_width(run), ranks * run.tensor_parallel
    kind = "all_reduce" if run.sharding == "none" else "reduce_scatter"
    yield Collective(kind, "data", "gradients", size, ranks, span, 1, once=True, beside=beside)
    if run.sharding == "zero1":
        yield Collective("all_gather", "data", "updated weights", weights, ranks, span, 1, once=True)


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
    buckets, filled, limit = [], 0.0, DDP_FIRST_BUCKET_BYTES
    for size in filter(None, sizes):
        filled += size
        if filled >= limit:
            buckets.append(filled)
            filled, limit = 0.0, DDP_BUCKET_BYTES
    return [*buckets, filled] if filled or not buckets else buckets


def _reduced_bytes(run: Run, op: Op) -> float:
    """Return the bytes of the gradients of one rank's part of an operator's weights."""
    if op.kind == "grouped_gemm" and run.expert_parallel > 1:
        return 0.0  # those who hold the same experts reduce them
    return op.gradient_bytes / (1 if op.kind in WHOLE_ON_EACH_RANK else run.tensor_parallel)


def _experts_data(run: Run, share: Share) -> Iterator[Collective]:
    """Yield what the ranks that hold the same experts exchange, where experts are divided."""
    copies = expert_copies(run)
    if run.expert_parallel == 1 or every(copies == 1):
        return
    layers = stage_layers(run, share.graph.model)
    stride = run.expert_parallel * run.tensor_parallel
    weights, gradients = share.expert_layer_bytes, share.expert_layer_gradient_bytes
    span, once = copies * stride, accumulates_whole(run)
    if run.sharding in GATHERING:
        for beside in ("forward", "backward"):
            yield Collective("all_gather", "expert", "experts", weights, copies, span, layers, beside=beside)
        kind = "reduce_scatter"
    else:
        kind, once = ("reduce_scatter", False) if run.sharding == "zero2" else ("all_reduce", True)
    times = layers if gradients else 0
    what = "gradients of experts"
    yield Collective(kind, "expert", what, gradients, copies, span, times, once=once, beside="backward")
