r"""What one rank of several computes and holds: its share of operators, weights, gradients, states.

With $\Psi$ trained parameters and N ranks, mixed-precision Adam holds per rank, in bytes [1]:

$$ 16\Psi,\quad 4\Psi + 12\Psi/N,\quad 2\Psi + 14\Psi/N,\quad 16\Psi/N $$

for ZeRO stages 0 to 3; DeepSpeed's stage 1 gives back others' gradients before the update, as stage 2.
FSDP shards as stage 3 [2]; under mixed precision its shards are fp32 and what it gathers is 16-bit, so a
rank computes as in pure 16 bit. `model_parallel` says what tensor, sequence and expert parallelism leave of
the operators, and a pipeline of the layers.

[1] Rajbhandari et al. 2020, arXiv:1910.02054, section 5   [2] Zhao et al. 2023, arXiv:2304.11277
"""

from collections.abc import Mapping
from math import inf
from typing import Any

from finegauge.arithmetic import every, largest, present, smallest
from finegauge.catalogue.frameworks import framework_of
from finegauge.data.batch_shape import BatchShape
from finegauge.model.graph import Graph, build
from finegauge.model.op import Extents
from finegauge.model.weights import Weights, fullest, optimizer_scratch
from finegauge.prediction.memory import (
    APART,
    EMBEDDING_BACKWARD,
    FIRST_BACKWARD,
    HEAD_BACKWARD,
    LOSS_BACKWARD,
    LiveSet,
    Update,
    backward_moment,
    gradient_bytes,
    largest_parts,
    live_set,
    worst,
)
from finegauge.prediction.model_parallel import (
    MASTER_BYTES,
    by_fully_shard,
    by_tensors,
    divided,
    expert_fraction,
    expert_tensor,
    gradient_width,
    has_megatron_optimizer,
    keeps_fp32_shards,
    master_bytes,
    megatron_bytes,
    on_a_stage,
    outer_params,
    stage_graphs,
    stage_shares,
    zero_bytes,
)
from finegauge.prediction.prefetch import (
    NO_MESSAGES,
    ON_THEIR_WAY,
    ZERO3_KEPT,
    Messages,
    beside_layers,
    messages_of,
    released_bytes,
    worst_of_forward,
)
from finegauge.profile import Breakdown, Path
from finegauge.records import NamedTuple
from finegauge.run.field import version_numbers
from finegauge.run.phases import accumulates_whole
from finegauge.run.rules import FSDP
from finegauge.run.run import Run

GATHERING = (*FSDP, "zero3")
GRADIENT_SHARDING = (*GATHERING, "zero2")
GATHERED_LAYERS = 2  # the one at work and the next, already on its way
ZERO3_SUB_GROUP = 1e9  # elements: DeepSpeed's default sub_group_size, the gradients that are fp32 at a time
AFTER_BACKWARD = "reduction"  # a phase with no activations, of gradients in one bucket
GATHERED_WEIGHTS: Path = ("workspace", "gathered weights")
SECOND_COPY: Path = ("workspace", "second copy of weights")
GRADIENTS: Path = ("gradients",)


class Share(NamedTuple):
    """One rank: the run as it computes it, its operators and tensors, and what it gathers from others."""

    run: Run  # in the precision of the weights that are gathered
    graph: Graph
    whole: Graph  # before it is divided
    layer_bytes: float = 0.0  # of one layer's weights, whole, as gathered; this tensor-parallel share of it
    outer_bytes: float = 0.0  # of embedding, final norm and head; of a pipeline, of the stage with more of it
    layer_gradient_bytes: float = 0.0  # of one layer's gradients before they are reduced
    outer_gradient_bytes: float = 0.0
    expert_layer_bytes: float = 0.0  # of one layer's experts on this expert-parallel rank, whole
    expert_layer_gradient_bytes: float = 0.0
    value_bytes: float = 0.0  # of one trained value as the optimizer sees it
    larger_end_bytes: float = 0.0  # of what is before the layers, or after them, whole, as gathered
    expert_fraction: float = 0.0  # of all parameters
    ends: tuple[float, float] = (0.0, 0.0)  # parameters before the layers and after them
    scored_first: bool = False  # it went only forward first: ZeRO-3 then frees what backward needs
    stages: tuple[Weights, ...] = ()  # what a rank of each pipeline stage holds at rest

    @property
    def distributed(self) -> bool:
        """Return whether the rank has others beside it."""
        return self.run.num_gpus > 1

    def whole_gradient_bytes(self, layers: float) -> float:
        """Return the gradients of so many layers and of what is around them, before they are reduced."""
        return layers * self.layer_gradient_bytes + self.outer_gradient_bytes

    @property
    def communicates(self) -> bool:
        """Return whether anything is exchanged with other ranks or with the host."""
        paged = present(self.graph.weights.paged_bytes)
        return _divided(self.run) or self.run.cpu_offload != "none" or paged


def share_of(run: Run) -> Share:
    """Return the share of the fullest rank of `run`, which may have one GPU only."""
    share = held_by(run)
    if share.graph is share.whole:
        return share
    return share._replace(graph=rank_graph(run, share.whole, share.graph.weights))


def held_by(run: Run) -> Share:
    """Return `share_of(run)` with its tensors alone: its operators are those of the whole model."""
    computed = _as_computed(run)
    whole = build(computed)
    plain = Share(run=run, graph=whole, whole=whole, value_bytes=_value_bytes(run, whole))
    simple = run.cpu_offload == "none" and run.optimizer_implementation != "in_backward"
    if simple and not _divided(run):
        return plain
    params, width = outer_params(whole), float(whole.lowering.weight_bytes)
    of_all = expert_fraction(whole) if run.expert_parallel > 1 else 0.0
    per_layer = max(1, whole.model.num_layers) * run.tensor_parallel
    of_experts = max(1, whole.model.num_layers) * expert_tensor(run) * run.expert_parallel
    inner = max(0.0, whole.weights.base_bytes - sum(params) * width)
    gradients = gradient_bytes(whole.embedding), gradient_bytes(whole.head)
    inner_gradient = max(0.0, whole.weights.gradient_bytes - sum(gradients))
    experts = of_all / (1.0 - sum(params) / max(1, whole.model.num_parameters))  # of the layers alone
    stages = _on_stages(run, whole, of_all, params)
    return Share(
        run=computed,
        graph=whole._replace(weights=fullest(stages)),
        whole=whole,
        stages=stages,
        expert_fraction=of_all,
        ends=params,
        larger_end_bytes=max(params) * width,
        layer_bytes=(inner * (1.0 - experts) + whole.weights.adapter_bytes) / per_layer,
        outer_bytes=on_a_stage(run, params) * width / run.tensor_parallel,
        layer_gradient_bytes=inner_gradient * (1.0 - experts) / per_layer,
        outer_gradient_bytes=on_a_stage(run, gradients) / run.tensor_parallel,
        expert_layer_bytes=inner * experts / of_experts,
        expert_layer_gradient_bytes=inner_gradient * experts / of_experts,
        value_bytes=plain.value_bytes,
    )


def held_likewise(run: Run, share: Share) -> Share:
    """Return `held_by(run)`, of a run that differs from that of `share` in the number of its ranks alone."""
    stages = _on_stages(run, share.whole, share.expert_fraction, share.ends)
    return share._replace(graph=share.graph._replace(weights=fullest(stages)), stages=stages)


def expert_copies(run: Run) -> int:
    """Return how many ranks share the same experts: hold copies that are kept alike, or shards of them.

    Megatron's experts have a degree of tensor parallelism of their own: where it is 1, the tensor-parallel
    ranks of attention hold whole experts, and are copies of each other there.
    """
    if framework_of(run.framework).experts_outside_fsdp and run.sharding in FSDP:
        return 1
    ranks = run.data_parallel * run.context_parallel * run.tensor_parallel
    return largest(1, ranks // (run.expert_parallel * expert_tensor(run)))


def expert_shard_degree(run: Run) -> int:
    """Return over how many ranks the experts that a rank computes, or their states, are divided."""
    if run.sharding == "none" or every(expert_copies(run) == 1):
        return 1
    ranks = shard_degree(run) * run.tensor_parallel
    return largest(1, ranks // (run.expert_parallel * expert_tensor(run)))


def shard_degree(run: Run) -> int:
    """Return over how many ranks weights, gradients or states are divided; 1 where nothing is."""
    if run.sharding == "none":
        return 1
    if run.sharding == "hybrid" and every(run.data_parallel_replicate == 1):  # by default, within a node
        return max(1, min(run.data_parallel_shard, run.num_gpus // run.num_nodes))
    return run.data_parallel_shard * run.context_parallel


def mean_extents(batch: BatchShape) -> Extents:
    """Return the extents of the average micro-batch: what time depends on."""
    return Extents(batch.sequences, batch.tokens, batch.tokens_square, batch.longest_len)


def kept_while_idle(run: Run, share: Share) -> dict[Path, float]:
    """Return what a model that a step trains keeps on its rank while others are at work."""
    if run.sharding not in ("none", "zero3"):
        return {}
    found = gathered_memory(run, share).get("backward" if run.sharding == "none" else "loss", {})
    return {path: part for path, part in found.items() if path not in (GATHERED_WEIGHTS, SECOND_COPY)}


def second_copy_bytes(run: Run, share: Share) -> Any:
    """Return a rank's part of ZeRO++'s second copy of the weights, from their first use to the update.

    In the weights' own format (_partition_param_sec of deepspeed/runtime/zero/partition_parameters.py,
    0.19.8; Wang et al. 2023, arXiv:2306.10209, section 3.2).
    """
    if run.sharding != "zero3" or run.zero_hpz_partition_size == 1:
        return 0.0
    layers = share.graph.model.num_layers / run.pipeline_parallel
    whole = layers * (share.layer_bytes + share.expert_layer_bytes) + share.outer_bytes
    return whole / smallest(run.zero_hpz_partition_size, shard_degree(run))


def _second_copy(run: Run, share: Share) -> dict[Path, float]:
    kept = run.sharding == "zero3" and run.zero_hpz_partition_size > 1 and not weights_on_host(run)
    return {SECOND_COPY: second_copy_bytes(run, share)} if kept else {}


def longest_extents(batch: BatchShape) -> Extents:
    """Return the extents of the longest micro-batch: what memory must hold."""
    longest_len, tokens = batch.longest_len, batch.longest_tokens
    return Extents(batch.sequences, tokens, float(tokens * longest_len), longest_len)


def rank_extents(run: Run, extents: Extents) -> Extents:
    """Return the extents that one rank sees: context parallelism divides each sequence."""
    degree = run.context_parallel
    if degree == 1:
        return extents
    return extents._replace(tokens=extents.tokens / degree, pairs=extents.pairs / degree)


def gathered_memory(run: Run, share: Share) -> dict[str, dict[Path, float]]:
    """Return by phase what a rank holds beside its share: gathered weights, gradients to be reduced, buckets.

    FSDP keeps its root unit (embedding, norm, head) gathered from the forward pass to the end of the
    backward pass, and its gradients whole until then: the head's beside every layer, the embedding's only
    when no activation is left. All of them are then joined in one tensor: by FSDP1 with the weights still
    there, by FSDP2 without (post_backward of torch 2.13's _fsdp_param_group.py). Where both are units of
    their own, one of them is gathered beside one layer. ZeRO-3 frees nothing that it uses again within
    its next elements, a copy even of what a lone rank holds. Megatron-LM reduces gradients where they lie.
    """
    degree = run.data_parallel * run.context_parallel
    if degree == 1 and run.sharding != "zero3":
        return {}
    if run.sharding in ("zero1", "zero2") and not has_megatron_optimizer(run):
        return _zero_buffers(run, share)
    weights, gradients = GATHERED_WEIGHTS, ("workspace", "gradients being reduced")
    stage_layers = share.graph.model.num_layers / run.pipeline_parallel
    if run.sharding in ("none", "zero1", "zero2"):
        held = 0.0 if has_megatron_optimizer(run) else share.graph.weights.gradient_bytes
        return {phase: {gradients: held} for phase in ("backward", "optimizer")}
    layers = stage_layers if keeps_gathered(run) else min(GATHERED_LAYERS, stage_layers)
    layer_bytes = share.layer_bytes + (share.expert_layer_bytes if expert_copies(run) > 1 else 0.0)
    gathered = share.outer_bytes + layers * layer_bytes
    if run.sharding == "zero3":
        most = 0.0 if share.scored_first else ZERO3_KEPT * share.whole.lowering.weight_bytes
        released = zero3_messages(share).released_bytes
        kept = min(share.outer_bytes + stage_layers * layer_bytes - released, most)
        gathered = max(kept, share.larger_end_bytes + layer_bytes)
    at_head = gathered - (layer_bytes if 1 < layers <= GATHERED_LAYERS else 0.0)
    if framework_of(run.framework).outer_units_apart:
        end = share.larger_end_bytes / run.tensor_parallel
        at_head = gathered = layers * layer_bytes + max(0.0, end - layer_bytes)
    reduced, head = share.layer_gradient_bytes, 0.0
    if not share.graph.lowering.chunks_kept:  # else it is counted with the loss
        head = _waiting_head(run, share)
        reduced += share.outer_gradient_bytes if run.sharding == "zero3" else head
    second = _second_copy(run, share)
    beside: dict[Path, float] = {weights: gathered, **second}
    if accumulates_whole(run):
        whole = share.whole_gradient_bytes(stage_layers)
        if by_fully_shard(run) and keeps_fp32_shards(run):
            whole = 2.0 * whole  # added up in the dtype that they are reduced in
        beside[gradients] = max(0.0, whole - share.graph.weights.gradient_bytes)
        reduced += beside[gradients]  # a unit's new ones beside the sum of all before
    found = {"forward": beside, "loss": beside, "backward": {**beside, gradients: reduced}}
    if run.sharding != "zero3":
        loss = {**beside, weights: at_head}  # whose own backward pass comes before the head's
        of_head = {**loss, gradients: reduced - share.layer_gradient_bytes}
        apart = framework_of(run.framework).outer_units_apart  # rows of reserved memory have both
        found |= {"loss": loss, LOSS_BACKWARD: of_head if apart else loss, HEAD_BACKWARD: of_head}
        none_yet = share.layer_gradient_bytes if present(whole_gradients(run, share)) else 0.0
        found[FIRST_BACKWARD] = {**beside, gradients: reduced - none_yet}
        return {**found, **_fsdp_outer_unit(run, share, beside, reduced - head)}
    found["optimizer"] = second
    buffers = _zero_buffers(run, share)
    return {name: {**found.get(name, {}), **parts} for name, parts in buffers.items()}


def _fsdp_outer_unit(
    run: Run, share: Share, beside: Mapping[Path, float], reduced: float
) -> dict[str, dict[Path, float]]:
    """Return what is gathered and `reduced` while the gradients of FSDP's root unit wait, and after them."""
    weights, gradients, own = GATHERED_WEIGHTS, ("workspace", "gradients being reduced"), GRADIENTS
    outer, all_own = share.outer_gradient_bytes, share.graph.weights.gradient_bytes
    waiting = beside.get(gradients, 0.0)
    if not by_tensors(run) or framework_of(run.framework).outer_units_apart:
        copies = 2.0 if run.framework and not by_fully_shard(run) else 1.0
        return {AFTER_BACKWARD: {**beside, gradients: copies * outer + waiting, own: all_own}}
    part = all_own / share.whole.weights.gradient_bytes if all_own else 0.0  # of them, not reduced yet
    return {
        EMBEDDING_BACKWARD: {**beside, gradients: reduced + (1.0 - part) * outer, weights: share.outer_bytes},
        AFTER_BACKWARD: {gradients: 2.0 * outer + waiting, own: all_own},
    }


def _waiting_head(run: Run, share: Share) -> float:
    """Return what the head's whole gradient takes beyond the rank's part of it until its unit is reduced."""
    of_head, everything = gradient_bytes(share.whole.head), share.whole.weights.gradient_bytes
    counted = of_head * share.graph.weights.gradient_bytes / everything if of_head else 0.0
    if framework_of(run.framework).outer_units_apart or run.gradient_accumulation_steps > 1:
        counted = 0.0  # its message waits beside its part; or the sum of those before
    return max(0.0, of_head / run.tensor_parallel - counted)


def whole_gradients(run: Run, share: Share) -> float:
    """Return how many times what it keeps of a gradient a rank holds until FSDP has reduced a unit.

    0 where gradients are not reduced in units. A unit's gradients are reduced when all are there, and wait
    in the message until the next unit's are (post_backward and ReduceScatterState, the same). Not where
    embedding and head are units of their own: rows of those are nearer without (decision 0034).
    """
    kept, apart = share.graph.weights.gradient_bytes, framework_of(run.framework).outer_units_apart
    if run.sharding not in FSDP or states_on_host(run) or accumulates_whole(run):
        return 0.0
    if apart or run.expert_parallel > 1:
        return 0.0
    return share.whole.weights.gradient_bytes / (kept * run.tensor_parallel) if present(kept) else 0.0


def keeps_gathered(run: Run) -> bool:
    """Return whether FSDP lets layers stay gathered from forward to backward.

    In a pipeline they stay for all of a step: frameworks do not reshard after forward there, and PyTorch's
    stages not after backward (torch/distributed/pipelining/stage.py).
    """
    return run.sharding == "fsdp_shard_grad_op" or (run.sharding in FSDP and run.pipeline_parallel > 1)


def _zero_buffers(run: Run, share: Share) -> dict[str, dict[Path, float]]:
    """Return by phase what DeepSpeed holds beside weights, gradients and states, however it gathers weights.

    Gradients are copied into a bucket, which stages 1 and 2 give back after the backward pass and stage 3
    keeps for good, as it does its part of the gradients. Stages 1 and 2 take it when the first weight has its
    gradient, behind the loss, and took it before in the days of transformers 4. Stage 2 reduces a copy, and
    stage 3 unpacks what it gathers from one message that stays meanwhile. The update takes its part of the
    gradients flattened, then in fp32
    (deepspeed/runtime/zero/stage_1_and_2.py, stage3.py of 0.19.8; measured block by block on two ranks).
    """
    bucket_path, update = ("workspace", "bucket of gradients"), ("workspace", "gradients of the update")
    weights, value = share.graph.weights, share.graph.lowering.weight_bytes
    own, stage = weights.gradient_bytes, run.sharding
    whole = share.whole_gradient_bytes(share.graph.model.num_layers / run.pipeline_parallel)
    bucket = min(whole, run.reduce_bucket_size * value)
    updated = min(
        weights.trained_params + weights.adapter_params, ZERO3_SUB_GROUP if stage == "zero3" else inf
    )
    flat = own / shard_degree(run) if stage == "zero1" else min(own, ZERO3_SUB_GROUP * value)
    updating: dict[Path, float] = {update: 0.0 if states_on_host(run) else flat + 4.0 * updated}
    if stage != "zero3":
        later = version_numbers(run.transformers_version) >= (5, 0)
        found: dict[str, dict[Path, float]] = {"backward": {bucket_path: bucket}, "optimizer": updating}
        copied: dict[Path, float] = {bucket_path: 2.0 * bucket}
        if stage == "zero2" and bucket < whole:  # some are full, and reduced, while activations wait
            found["backward"] = copied
        elif stage == "zero2":
            copied["gradients",] = 0.0 if run.gradient_accumulation_steps == 1 else own
            found[AFTER_BACKWARD] = copied
        return {**found, LOSS_BACKWARD: {}} if later else found
    passing: dict[Path, float] = {bucket_path: bucket}
    if run.gradient_accumulation_steps == 1:  # else it counts as accumulated
        passing["gradients",] = own
    return {
        "forward": {**passing, ON_THEIR_WAY: zero3_messages(share).largest_bytes},
        "loss": passing,
        "backward": {bucket_path: bucket},
        "optimizer": {bucket_path: bucket, **updating},
    }


def zero3_messages(share: Share) -> Messages:
    """Return the messages in which ZeRO-3 sends for the weights of a forward pass."""
    width, layers = share.whole.lowering.weight_bytes, share.layer_bytes * share.graph.model.num_layers
    first = min(share.ends[0] * width, share.outer_bytes)
    released = released_bytes(share.whole, share.layer_bytes, first)
    return messages_of(layers, (first, share.outer_bytes - first), width, released)


def gradients_left(run: Run) -> float:
    """Return which part of the gradients of the backward pass a rank keeps for the update: ZeRO-1 its own."""
    return 1.0 / shard_degree(run) if run.sharding == "zero1" and not has_megatron_optimizer(run) else 1.0


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
    moments = [backward_moment(group.ops, extents, accumulating=False) for group in share.graph.layers]
    most = worst(moments)
    return {
        ("activations", "checkpoints"): rows,
        ("activations", "held by FSDP's hooks"): rows,
        ("activations", "rebuilt block"): most.kept_bytes,
        ("activations", "gradients in flight"): most.beside_bytes + stream,
    }


def _divided(run: Run) -> bool:
    """Return whether a rank differs from a lone GPU: DeepSpeed keeps its own states even there."""
    return run.num_gpus > 1 or run.sharding.startswith("zero") or has_megatron_optimizer(run)


def _as_computed(run: Run) -> Run:
    if not _divided(run):
        return run
    if run.sharding.startswith("zero") and run.method != "gptq_lora":
        half = "fp16" if "fp16" in (run.weights_dtype, run.autocast) else "bf16"  # DeepSpeed's mode
        changes = {"adapter_dtype": half} if run.trains_adapters else {"weights_dtype": half}
        return run.replace(autocast="none", **changes)
    if keeps_fp32_shards(run):
        return run.replace(weights_dtype=run.autocast, autocast="none")
    if run.upcast_unquantized and run.sharding in FSDP:  # a unit's tensors have one format
        return run.replace(upcast_unquantized=False)
    return run


def _value_bytes(run: Run, graph: Graph) -> float:
    if keeps_fp32_shards(run):
        return 4.0
    if run.sharding.startswith("zero") or has_megatron_optimizer(run):
        return 4.0 * master_bytes(run) / MASTER_BYTES
    return float(graph.lowering.adapter_bytes if run.trains_adapters else graph.lowering.weight_bytes)


def _on_stages(run: Run, whole: Graph, experts: float, ends: tuple[float, float]) -> tuple[Weights, ...]:
    """Return what a rank of each pipeline stage holds at rest.

    Of all parameters `experts` is the share of the routed experts; `ends` are those before and after layers.
    """
    each = [stage_shares(run, whole, ends, experts, stage) for stage in range(run.pipeline_parallel)]
    found = {shares: _weights_at_rest(run, whole, experts, shares) for shares in dict.fromkeys(each)}
    return tuple(map(found.__getitem__, each))


def _weights_at_rest(run: Run, whole: Graph, experts: float, shares: tuple[float, float, float]) -> Weights:
    """Return the weights, gradients and states of one rank at rest, by the shares of its stage."""
    held, degree = whole.weights, float(shard_degree(run))
    wide = 2.0 if keeps_fp32_shards(run) else 1.0
    trained = held.trained_params + held.adapter_params
    states, scratch = held.optimizer_bytes * wide, held.foreach_bytes * wide
    if run.sharding.startswith("zero"):
        states, scratch = zero_bytes(run) * trained, 4.0 * trained
        if run.sharding == "zero3":
            scratch = 4.0 * min(trained, ZERO3_SUB_GROUP * degree)
    if has_megatron_optimizer(run):
        states, scratch = megatron_bytes(run, held, trained), 0.0
    dense, routed = (1.0 - experts) / run.tensor_parallel, 0.0
    apart = float(expert_shard_degree(run))
    if experts:
        routed = experts / (run.expert_parallel * expert_tensor(run))
    of_weights, of_trained, of_experts = shares

    def part(of: float, shared: bool) -> Any:
        """Return a rank's part of what a stage has `of`: whole, or divided over those who share it."""
        return of * dense / (degree if shared else 1.0) + of_experts * routed / (apart if shared else 1.0)

    weights_part = part(of_weights, run.sharding in GATHERING)
    adapters_part = part(of_trained, run.sharding in GATHERING)
    states_part, gradients_part = part(of_trained, True), part(of_trained, run.sharding in GRADIENT_SHARDING)
    offloads_states = states_on_host(run)
    on_gpu = 0.0 if weights_on_host(run) else 1.0
    if offloads_states:  # DeepSpeed's and FSDP's gradients lie beside them
        gradients_part = 0.0 * gradients_part
    return held._replace(
        base_bytes=held.base_bytes * wide * weights_part * on_gpu,
        adapter_bytes=held.adapter_bytes * adapters_part * on_gpu,
        trained_params=held.trained_params * states_part,
        adapter_params=held.adapter_params * states_part,
        gradient_bytes=held.gradient_bytes * gradient_width(run) * gradients_part,
        optimizer_bytes=0.0 if offloads_states else states * states_part,
        paged_bytes=0.0 if offloads_states else held.paged_bytes * states_part,
        foreach_bytes=0.0 if offloads_states else scratch * states_part,
        loop_bytes=held.loop_bytes / degree,
        update_flops=held.update_flops * states_part,
    )


def rank_graph(run: Run, whole: Graph, rest: Weights) -> Graph:
    """Return the operators of one rank over the tensors that it holds at rest."""
    before = whole.weights.gradient_bytes
    gradient_share = rest.gradient_bytes / before if before else 1.0
    layers = [group._replace(ops=divided(run, group.ops, gradient_share)) for group in whole.layers]
    embedding, head = (divided(run, ops, gradient_share) for ops in (whole.embedding, whole.head))
    return whole._replace(layers=tuple(layers), embedding=embedding, head=head, weights=rest)


def states_on_host(run: Run) -> bool:
    """Return whether the optimizer's states, and the update, are the host's; FSDP offloads all or nothing."""
    return run.cpu_offload in ("optimizer", "all", "nvme") or (
        run.cpu_offload == "params" and run.sharding in FSDP
    )


def weights_on_host(run: Run) -> bool:
    """Return whether weights lie on the host, or its drives, until they are gathered."""
    return run.cpu_offload in ("params", "all", "nvme") or (
        run.cpu_offload == "optimizer" and run.sharding in FSDP
    )


class Beside(NamedTuple):
    """What a rank holds beside its weights and activations, whatever the micro-batch."""

    gathered: Mapping[str, Mapping[Path, float]]  # by phase
    update: Update
    messages: Messages = NO_MESSAGES  # of ZeRO-3's forward pass
    unit_bytes: float = 0.0  # one layer's weights where FSDP2 gathers one after another


def beside_of(run: Run, share: Share) -> Beside:
    """Return what the rank of `share` gathers, and what its update takes."""
    update = Update(optimizer_scratch(share.run, share.graph.weights), kept_fraction=gradients_left(run))
    if run.optimizer_implementation == "in_backward":  # each gradient is applied and freed at once
        most = max(share.layer_gradient_bytes, share.outer_gradient_bytes)
        update = update._replace(most_gradients_bytes=most)
    gathered = gathered_memory(run, share)
    if gathered:
        gathered = dict.fromkeys(APART, gathered["backward"]) | gathered
        update = update._replace(unreduced_ratio=whole_gradients(run, share))
    forward = gathered.get("forward", {})
    layers = share.graph.model.num_layers / run.pipeline_parallel
    one_by_one = by_tensors(run) and GATHERED_WEIGHTS in forward and not keeps_gathered(run) and layers > 1
    messages = zero3_messages(share) if ON_THEIR_WAY in forward else NO_MESSAGES
    return Beside(gathered, update, messages, share.layer_bytes if one_by_one else 0.0)


def rank_live_set(
    run: Run, share: Share, extents: Extents, cublas: float, beside: Beside | None = None
) -> LiveSet:
    """Return the live memory of each phase on the fullest rank, gathered weights and buckets included."""
    beside = beside or beside_of(run, share)
    gathered, update = beside.gathered, beside.update
    num_layers, low = share.graph.model.num_layers / run.pipeline_parallel, share.graph.lowering
    stream = low.stream_bytes * share.graph.model.hidden_size * extents.tokens
    phases: dict[str, Breakdown] = {}
    keeping = run.activation_checkpointing == "none"
    passing = beside_layers(beside.messages, share.graph, extents, stream, keeping=keeping)
    for stage, (place, one) in stage_graphs(run, share.graph).items():
        graph = one._replace(weights=share.stages[place]) if run.pipeline_parallel > 1 else one
        live = live_set(share.run, graph, extents, cublas, update, ends_apart=bool(gathered))
        for name, held in live.phases.items():
            phases[name + stage] = held + Breakdown(gathered[name]) if name in gathered else held
            if name == "forward" and name in gathered:
                worst = num_layers, GATHERED_WEIGHTS, beside.unit_bytes, stream, passing
                phases[name + stage] = worst_of_forward(phases[name + stage], beside.messages, *worst)
        if AFTER_BACKWARD in gathered:
            at_update = live.phases["optimizer"].parts
            own = {path: v for path, v in at_update.items() if path[0] in ("weights", "optimizer")}
            phases[AFTER_BACKWARD + stage] = Breakdown(own) + Breakdown(gathered[AFTER_BACKWARD])
    frozen = frozen_layers_moment(run, share, extents)
    if frozen:
        at_backward = phases["backward"].parts
        own = {path: v for path, v in at_backward.items() if path[0] not in ("activations", "logits")}
        phases["backward of frozen layers"] = Breakdown({**own, **frozen})
    for name in list(phases):
        for part in APART:
            if name.startswith(part):  # of one stage or another
                layers = name.replace(part, "backward")
                phases[layers] = Breakdown(largest_parts([phases.pop(name).parts, phases[layers].parts]))
    if run.optimizer_implementation == "in_backward":
        most = update.most_gradients_bytes
        phases = {name: _capped(held, most) for name, held in phases.items() if name != "optimizer"}
    return LiveSet(phases)


def _capped(parts: Breakdown, most: float) -> Breakdown:
    share = most / largest(parts["gradients"], most, 1.0)
    return Breakdown({p: share * v if p[0] == "gradients" else v for p, v in parts.parts.items()})
