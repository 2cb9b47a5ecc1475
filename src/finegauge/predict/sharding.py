r"""What one rank of several computes and holds: its share of operators, weights, gradients, states.

With $\Psi$ trained parameters and N ranks, mixed-precision Adam holds per rank, in bytes [1]:

$$ 16\Psi,\quad 4\Psi + 12\Psi/N,\quad 2\Psi + 14\Psi/N,\quad 16\Psi/N $$

for ZeRO stages 0 to 3. FSDP shards as stage 3 [2]; under mixed precision its shards are fp32 and
what it gathers is 16-bit, so a rank computes as in pure 16 bit. Tensor parallelism divides every
matrix product and what lies between two of them, not norms and residual streams [3]; pipeline
parallelism divides layers, of which stage i of p keeps the activations of p - i micro-batches [4].

Neglected: the inputs of column-parallel products that every tensor-parallel rank keeps whole;
stages of unequal size.

[1] Rajbhandari et al. 2020, arXiv:1910.02054, section 5   [2] Zhao et al. 2023, arXiv:2304.11277
[3] Shoeybi et al. 2019, arXiv:1909.08053   [4] Narayanan et al. 2021, arXiv:2104.04473, section 2.2
"""

from collections import Counter
from dataclasses import replace
from typing import NamedTuple

from finegauge.graph.blocks import Layer, MixtureOfExperts
from finegauge.graph.build import Graph, LayerGraph, build
from finegauge.graph.op import Cost, Extents, Op
from finegauge.graph.weights import Weights
from finegauge.predict.walk import backward_moment
from finegauge.profile import Path
from finegauge.workload.run import Run

FSDP = ("fsdp", "fsdp_shard_grad_op", "hybrid")
GATHERING = (*FSDP, "zero3")
GRADIENT_SHARDING = (*GATHERING, "zero2")
WHOLE_ON_EACH_RANK = frozenset({"norm"})  # kinds that tensor parallelism leaves alone
REDUCES_EVERY_MICRO_BATCH = ("foundry", "composer", "torchtune", "torchtitan", "internevo", "megatron")
GATHERED_LAYERS = 2  # the one at work and the next, already on its way
ZERO2_BUCKET = 5e8  # elements: DeepSpeed's default reduce_bucket_size
ZERO3_SUB_GROUP = 1e9  # elements: DeepSpeed's default sub_group_size, the gradients that are fp32 at a time
MASTER_BYTES = 12.0  # fp32 copy, first and second moment, per trained parameter under DeepSpeed


class Share(NamedTuple):
    """One rank: the run as it computes it, its operators and tensors, and what it gathers from others."""

    run: Run  # in the precision of the weights that are gathered
    graph: Graph
    layer_bytes: float = 0.0  # of one layer's weights, whole, as gathered; this tensor-parallel share of it
    outer_bytes: float = 0.0  # of embedding, final norm and head
    layer_gradient_bytes: float = 0.0  # of one layer's gradients before they are reduced
    outer_gradient_bytes: float = 0.0
    value_bytes: float = 0.0  # of one trained value as the optimizer sees it

    @property
    def distributed(self) -> bool:
        """Return whether the rank has others beside it."""
        return self.run.num_gpus > 1

    @property
    def communicates(self) -> bool:
        """Return whether anything is exchanged with other ranks or with the host."""
        return _divided(self.run) or self.run.cpu_offload != "none"


def share_of(run: Run) -> Share:
    """Return the share of the fullest rank of `run`, which may have one GPU only."""
    computed = _as_computed(run)
    whole = build(computed)
    plain = Share(run=run, graph=whole, value_bytes=_value_bytes(run, whole))
    simple = run.cpu_offload == "none" and run.optimizer_implementation != "in_backward"
    if simple and not _divided(run):
        return plain
    experts = _expert_fraction(whole) if run.expert_parallel > 1 else 0.0
    model_share = 1.0 / (run.tensor_parallel * run.pipeline_parallel)
    rest = _weights_at_rest(run, whole, model_share, experts)
    low, layers = whole.lowering, max(1, whole.model.num_layers)
    outer = sum(tensor.size for tensor in whole.model.outer_tensors()) * float(low.weight_bytes)
    inner = max(0.0, whole.weights.base_bytes - outer) * (1.0 - experts) + whole.weights.adapter_bytes
    outer_gradient = sum(op.gradient_bytes for op in (*whole.embedding, *whole.head))
    inner_gradient = max(0.0, whole.weights.gradient_bytes - outer_gradient) * (1.0 - experts)
    return Share(
        run=computed,
        graph=_rank_graph(run, whole, rest),
        layer_bytes=inner / layers / run.tensor_parallel,
        outer_bytes=outer / run.tensor_parallel,
        layer_gradient_bytes=inner_gradient / layers / run.tensor_parallel,
        outer_gradient_bytes=outer_gradient / run.tensor_parallel,
        value_bytes=plain.value_bytes,
    )


def shard_degree(run: Run) -> int:
    """Return over how many ranks weights, gradients or states are divided; 1 where nothing is."""
    if run.sharding == "none":
        return 1
    if run.sharding == "hybrid" and run.data_parallel_replicate == 1:  # by default, within a node
        return max(1, min(run.data_parallel_shard, run.num_gpus // run.num_nodes))
    return run.data_parallel_shard * run.context_parallel


def rank_extents(run: Run, extents: Extents) -> Extents:
    """Return the extents that one rank sees: context parallelism divides each sequence."""
    degree = run.context_parallel
    if degree == 1:
        return extents
    return extents._replace(tokens=extents.tokens / degree, pairs=extents.pairs / degree)


def gathered_memory(run: Run, share: Share) -> dict[str, dict[Path, float]]:
    """Return by phase what a rank holds beside its share: gathered weights, gradients to be reduced, buckets.

    FSDP keeps its root unit (embedding, norm, head) gathered from the forward pass to the end of
    the backward pass, and its gradients whole until then.
    """
    degree = run.data_parallel * run.context_parallel
    if degree == 1:
        return {}
    weights, gradients = ("workspace", "gathered weights"), ("workspace", "gradients being reduced")
    stage_layers = share.graph.model.num_layers / run.pipeline_parallel
    if run.sharding in ("none", "zero1", "zero2"):
        held = share.graph.weights.gradient_bytes
        if run.sharding == "zero2":
            whole = share.layer_gradient_bytes * stage_layers + share.outer_gradient_bytes
            held = min(whole, ZERO2_BUCKET * share.graph.lowering.weight_bytes)
        return {phase: {gradients: held} for phase in ("backward", "optimizer")}
    layers = stage_layers if run.sharding == "fsdp_shard_grad_op" else min(GATHERED_LAYERS, stage_layers)
    gathered = share.outer_bytes + layers * share.layer_bytes
    reduced = share.layer_gradient_bytes
    if not share.graph.lowering.chunks_kept:  # else it is counted with the loss
        reduced += share.outer_gradient_bytes
    beside: dict[Path, float] = {weights: gathered}
    if accumulates_whole(run):
        whole = share.layer_gradient_bytes * stage_layers + share.outer_gradient_bytes
        beside[gradients] = max(0.0, whole - share.graph.weights.gradient_bytes)
        reduced += beside[gradients]  # a unit's new ones beside the sum of all before
    return {"forward": beside, "loss": beside, "backward": {**beside, gradients: reduced}}


def accumulates_whole(run: Run) -> bool:
    """Return whether FSDP's gradients stay whole on every rank until the last micro-batch of a step.

    So they do under `no_sync`, which accelerate enters unless told `sync_each_batch` (its guide to
    gradient synchronization says so) and litgpt by Fabric's `no_backward_sync`.
    """
    spares = not any(name in run.framework.lower() for name in REDUCES_EVERY_MICRO_BATCH)
    return run.sharding in FSDP and run.gradient_accumulation_steps > 1 and spares


def frozen_layers_moment(run: Run, share: Share, extents: Extents) -> dict[Path, float]:
    """Return what activations take at the end of the backward pass of frozen layers under FSDP.

    With reentrant checkpointing its hooks hold one more residual stream of every layer until then:
    with LoRA on Mistral-7B each further token takes 96 streams (32 layers twice, and the block that is
    rebuilt), where on one GPU the loss is the peak; full fine-tuning shows none of it (24 rows of
    fms-acceleration, on 2 and 4 GPUs).
    """
    hooks = run.sharding in FSDP and run.trains_adapters and run.num_gpus > 1
    if not hooks or run.activation_checkpointing != "full" or not run.checkpointing_reentrant:
        return {}
    low, model = share.graph.lowering, share.graph.model
    stream = low.activation_bytes * model.hidden_size * extents.tokens
    rows = model.num_layers / run.pipeline_parallel * stream
    moments = (backward_moment(group.ops, extents, accumulating=False) for group in share.graph.layers)
    worst = max(moments, key=lambda moment: moment.total)
    return {
        ("activations", "checkpoints"): rows,
        ("activations", "held by FSDP's hooks"): rows,
        ("activations", "rebuilt block"): worst.kept_bytes,
        ("activations", "gradients in flight"): worst.beside_bytes + stream,
    }


def _divided(run: Run) -> bool:
    """Return whether a rank differs from a lone GPU: DeepSpeed keeps its own states even there."""
    return run.num_gpus > 1 or run.sharding.startswith("zero")


def _as_computed(run: Run) -> Run:
    """Return `run` in the precision that its sharding computes in."""
    if not _divided(run):
        return run
    if run.sharding.startswith("zero") and run.method != "gptq_lora" and run.autocast != "fp16":
        changes = {"adapter_dtype": "bf16"} if run.trains_adapters else {"weights_dtype": "bf16"}
        return run.replace(autocast="none", **changes)
    if _keeps_fp32_shards(run):
        return run.replace(weights_dtype=run.autocast, autocast="none")
    if run.upcast_unquantized and run.sharding in FSDP:  # a unit's tensors have one format
        return run.replace(upcast_unquantized=False)
    return run


def _keeps_fp32_shards(run: Run) -> bool:
    """Return whether FSDP's mixed precision holds fp32 shards of what it gathers in 16 bit."""
    return (
        run.sharding in FSDP and run.num_gpus > 1 and run.weights_dtype == "fp32" and run.autocast != "none"
    )


def _value_bytes(run: Run, graph: Graph) -> float:
    """Return the bytes of one trained value in the optimizer."""
    if run.sharding.startswith("zero") or _keeps_fp32_shards(run):
        return 4.0
    return float(graph.lowering.adapter_bytes if run.trains_adapters else graph.lowering.weight_bytes)


def _weights_at_rest(run: Run, whole: Graph, model_share: float, experts: float) -> Weights:
    """Return what one rank holds of the weights and of all that training them takes."""
    held, degree = whole.weights, float(shard_degree(run))
    wide = 2.0 if _keeps_fp32_shards(run) else 1.0
    trained = held.trained_params + held.adapter_params
    states, scratch = held.optimizer_bytes * wide, held.foreach_bytes * wide
    if run.sharding.startswith("zero"):
        states, scratch = MASTER_BYTES * trained, 4.0 * trained
        if run.sharding == "zero3":
            scratch = 4.0 * min(trained, ZERO3_SUB_GROUP * degree)
    weights_by = degree if run.sharding in GATHERING else 1.0
    local = (1.0 - experts) + experts / max(1.0, run.expert_parallel / weights_by)
    local *= model_share
    gradients_by = degree if run.sharding in GRADIENT_SHARDING else 1.0
    offloads_states, offloads_weights = run.cpu_offload != "none", run.cpu_offload in ("params", "all")
    on_gpu = 0.0 if offloads_weights else 1.0
    return held._replace(
        base_bytes=held.base_bytes * wide * local / weights_by * on_gpu,
        adapter_bytes=held.adapter_bytes * local / weights_by * on_gpu,
        trained_params=held.trained_params * local / degree,
        adapter_params=held.adapter_params * local / degree,
        gradient_bytes=held.gradient_bytes * wide * local / gradients_by * on_gpu,
        optimizer_bytes=0.0 if offloads_states else states * local / degree,
        paged_bytes=0.0 if offloads_states else held.paged_bytes * local / degree,
        foreach_bytes=0.0 if offloads_states else scratch * local / degree,
        loop_bytes=held.loop_bytes / degree,
    )


def _rank_graph(run: Run, whole: Graph, rest: Weights) -> Graph:
    """Return the operators of one rank over the tensors that it holds at rest."""
    before = whole.weights.gradient_bytes
    gradient_share = rest.gradient_bytes / before if before else 1.0
    degree, experts = run.tensor_parallel, run.expert_parallel

    def mine(ops: tuple[Op, ...]) -> tuple[Op, ...]:
        return tuple(
            _expert_share(_tensor_share(op, degree), experts)._replace(
                gradient_bytes=op.gradient_bytes * gradient_share
            )
            for op in ops
        )

    return replace(
        whole,
        layers=tuple(LayerGraph(kind=g.kind, count=g.count, ops=mine(g.ops)) for g in whole.layers),
        embedding=mine(whole.embedding),
        head=mine(whole.head),
        weights=rest,
    )


def stage_graph(run: Run, graph: Graph) -> Graph:
    """Return the first pipeline stage's layers, counted once for every micro-batch that it keeps."""
    stages = run.pipeline_parallel
    if stages == 1:
        return graph
    waiting = {"1f1b": min(stages, run.gradient_accumulation_steps), "naive": 1}
    kept = waiting.get(run.pipeline_schedule, run.gradient_accumulation_steps) / stages
    layers = tuple(replace(group, count=max(1, round(group.count * kept))) for group in graph.layers)
    whole: Counter[Layer] = Counter()  # equal layers of several groups are rounded together
    for layer, count in graph.model.layers:
        whole[layer] += count
    fewer = tuple((layer, max(1, round(count * kept))) for layer, count in whole.items())
    return replace(graph, layers=layers, model=graph.model._replace(layers=fewer))


def _tensor_share(op: Op, degree: int) -> Op:
    """Return one tensor-parallel rank's part of an operator."""
    if degree == 1 or op.kind in WHOLE_ON_EACH_RANK or op.path[-1] == "residual":
        return op
    part = 1.0 / degree
    return op._replace(
        forward=_scaled(op.forward, part),
        backward=_scaled(op.backward, part),
        saved_bytes=op.saved_bytes.times(part),
        stash_bytes=op.stash_bytes.times(part),
        live_forward_bytes=op.live_forward_bytes.times(part),
        live_backward_bytes=op.live_backward_bytes.times(part),
        passing_bytes=op.passing_bytes.times(part),
    )


def _expert_share(op: Op, degree: int) -> Op:
    """Return one expert-parallel rank's part: a share of the experts, each with the rows of all ranks."""
    if degree == 1 or op.kind != "grouped_gemm":
        return op

    def fewer(cost: Cost) -> Cost:
        gemms = tuple(g._replace(groups=max(1, g.groups // degree)) for g in cost.gemms)
        moved = cost.bytes._replace(const=cost.bytes.const / degree)
        return cost._replace(gemms=gemms, bytes=moved)

    return op._replace(forward=fewer(op.forward), backward=fewer(op.backward))


def _scaled(cost: Cost, part: float) -> Cost:
    """Return `part` of a cost; a product loses columns."""
    gemms = tuple(gemm._replace(n=max(1, round(gemm.n * part))) for gemm in cost.gemms)
    return cost._replace(flops=cost.flops.times(part), bytes=cost.bytes.times(part), gemms=gemms)


def _expert_fraction(graph: Graph) -> float:
    """Return the share of the parameters that lies in routed experts."""
    routed = sum(
        count * branch.mixer.num_experts * branch.mixer.expert_size
        for layer, count in graph.model.layers
        for branch in layer.branches
        if isinstance(branch.mixer, MixtureOfExperts)
    )
    return routed / max(1, graph.model.num_parameters)
