"""One rank's share of operators under tensor, sequence and expert parallelism, a pipeline, an optimizer.

Between the two products of a branch a tensor-parallel rank has channels of its own only [1]; what comes
before the first and after the last is whole on every rank: streams, norms, masks of dropout, and the
inputs that the first products keep. Sequence parallelism divides all of that by tokens; Megatron's keeps
those inputs divided too, and gathers them again in backward [2]. An expert-parallel rank has a share of
the experts, each with the rows of all ranks.

The first stage of a pipeline has the embedding, the last the head and the loss.

Neglected: the partial sums that the last product of a branch leaves, whole, until they are added up.

With F, B and W the seconds of one micro-batch forward, backward to the inputs (recomputation included) and
backward to the weights on one of p stages, each of v chunks of layers:

    schedule     bubble                            micro-batches kept by stage i
    gpipe        (p - 1)(F + B + W) / v            all of the step
    1f1b         (p - 1)(F + B + W) / v            p - i [3]; (2 (p - i - 1) + (v - 1) p + 1) / v [2]
    zb_h1        (p - 1)(F + B - W) / v            p [4]; interleaved likewise
    zb_v         (p - 1) max(B / 2, B - W)         p [5]: two chunks, down the stages and up again
    dualpipe_v   (p - 1)(B - W / 2)                p + 1/2 [6]
    dualpipe     (p/2 - 1)(2 B - W)                (p + 1) of single stages; weights twice [6]

The last three are those of PyTorch's schedules run action by action (a test does): ZB-V is without a bubble
only where B is short of W, and of [6]'s (p/2 - 1)(F&B + B - 3W) one F is filled by the warm-up. W is taken
by FLOPs: of products with weights that train.

Layers are divided as torchtitan does, the embedding and the loss counted as layers where asked, what does
not divide evenly to the first stages [7]; Megatron refuses what does not [8]. Where `first_stage_layers` or
`last_stage_layers` say so, the other stages share the rest.

[1] Shoeybi et al. 2019, arXiv:1909.08053   [2] Korthikanti et al. 2022, arXiv:2205.05198, section 4.2, 4.2.3
[3] Narayanan et al. 2021, arXiv:2104.04473, section 2.2
[4] Qi et al. 2023, arXiv:2401.10241, table 1   [5] Qi et al. 2024, arXiv:2405.15362, section 3
[6] DeepSeek-AI 2024, arXiv:2412.19437, table 2; github.com/deepseek-ai/DualPipe, README
[7] pytorch/torchtitan, torchtitan/distributed/pipeline_parallel.py (generate_llm_fqn_per_model_part), 02ef790
[8] NVIDIA/Megatron-LM, megatron/core/transformer/transformer_block.py (get_num_layers_to_build), core 0.15;
    [7] and [8] read 2026-11-22
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from finegauge.arithmetic import every, largest
from finegauge.catalogue.frameworks import engine, framework_of
from finegauge.model.blocks import Architecture, Layer, MixtureOfExperts
from finegauge.model.graph import Graph, LayerGraph
from finegauge.model.op import NOTHING, Cost, Extents, Op
from finegauge.model.op_builder import CASTS, EXPERTS_CASTS, is_adapter
from finegauge.model.weights import LEAST_PAGED, SQUARED, Trained, Weights, state_bytes
from finegauge.prediction.recomputation import PRODUCTS, rerun, rerun_share
from finegauge.run.rules import BOTH_ENDS, FSDP, SERVING, V_SHAPED, counted
from finegauge.run.run import Run

WHOLE_ON_EACH_RANK = frozenset({"norm", "gather"})  # kinds that tensor parallelism leaves alone
ON_STREAMS = frozenset({"residual", "dropout"})  # names of what works on the residual stream, whole too
ENTERING = frozenset({"gemm", "grouped_gemm"})  # kinds that read a whole stream, if first in their branch
CONVERSIONS = frozenset({CASTS, EXPERTS_CASTS, "cast weights", "dequantise"})  # names of what is before them


def divided(run: Run, ops: Iterable[Op], gradient_share: float = 1.0) -> tuple[Op, ...]:
    """Return one rank's part of the operators of a layer, of the embedding or of the head.

    Of the gradients of their weights it has `gradient_share`.
    """
    tensor, experts, entering, branch = run.tensor_parallel, run.expert_parallel, True, ""
    regathered, found = regathers(run), []
    for op in ops:
        part = op
        if tensor > 1:
            entering = entering or op.path[0] != branch  # a new branch, or the end of the last one
            branch = op.path[0]
            between = op.kind not in (*WHOLE_ON_EACH_RANK, *ENTERING, "softmax")
            part = _tensor_share(run, op, whole_input=entering, regathered=regathered)
            if op.path[-1] == CASTS and not gathers_narrow(run):  # each casts what is whole on every rank
                token = op.forward.bytes.token if entering else part.forward.bytes.token
                read = part.forward.bytes._replace(token=token)
                back = part.backward if entering else op.backward
                part = part._replace(forward=part.forward._replace(bytes=read), backward=back)
            between = between and op.path[-1] not in CONVERSIONS
            entering = op.path[-1] == "residual" or (entering and not between)  # softmax: the router's
        if experts > 1 and of_experts(op):  # a share of the experts, each with the rows of all
            part = part._replace(
                forward=_fewer_experts(part.forward, experts), backward=_fewer_experts(part.backward, experts)
            )
        found.append(part._replace(gradient_bytes=part.gradient_bytes * gradient_share))
    return tuple(found)


def of_experts(op: Op) -> bool:
    """Return whether an operator works on the weights of routed experts, which differ from rank to rank."""
    return op.kind == "grouped_gemm" or op.path[-1] == EXPERTS_CASTS


def _tensor_share(run: Run, op: Op, *, whole_input: bool, regathered: bool) -> Op:
    """Return one tensor-parallel rank's part of an operator, its weights whole."""
    if op.kind == "loss" and by_transformers(run):
        return op
    on_streams = op.kind in WHOLE_ON_EACH_RANK or op.path[-1] in ON_STREAMS
    if on_streams and not run.sequence_parallel:
        return op
    share = 1.0 / run.tensor_parallel
    columns = 1.0 / expert_tensor(run) if of_experts(op) else share  # fewer tokens of wider experts
    part = op._replace(
        forward=_narrower(op.forward, share, columns),
        backward=_narrower(op.backward, share, columns),
        saved_bytes=op.saved_bytes.times(share),
        stash_bytes=op.stash_bytes.times(share),
        live_forward_bytes=op.live_forward_bytes.times(share),
        live_backward_bytes=op.live_backward_bytes.times(share),
        passing_bytes=op.passing_bytes.times(share),
    )
    if on_streams or not whole_input or op.kind not in ENTERING:
        return part
    if not regathered:
        return part._replace(saved_bytes=op.saved_bytes, stash_bytes=op.stash_bytes)
    return part._replace(
        live_forward_bytes=part.live_forward_bytes.plus(op.saved_bytes),
        live_backward_bytes=part.live_backward_bytes.plus(op.saved_bytes),
    )


def _narrower(cost: Cost, share: float, columns: float) -> Cost:
    """Return a cost over `share` of tokens and columns together, `columns` of it of the columns."""
    gemms = [
        gemm._replace(
            rows_per_token=gemm.rows_per_token * (share / columns), n=max(1, round(gemm.n * columns))
        )
        for gemm in cost.gemms
    ]
    num_bytes = cost.bytes.times(share)._replace(const=cost.bytes.const * columns)
    return cost._replace(flops=cost.flops.times(share), bytes=num_bytes, gemms=tuple(gemms))


def _fewer_experts(cost: Cost, degree: int) -> Cost:
    gemms = tuple([gemm._replace(groups=max(1, gemm.groups // degree)) for gemm in cost.gemms])
    return cost._replace(gemms=gemms, bytes=cost.bytes._replace(const=cost.bytes.const / degree))


def expert_tensor(run: Run) -> int:
    """Return over how many ranks each routed expert is divided: as attention is, unless stated.

    An engine's expert-parallel ranks are those of its tensor parallelism, each with whole experts; so are a
    trainer's that has not ranks enough for both.
    """
    whole = run.phase in SERVING and run.expert_parallel > 1 and engine(run.inference_engine).paged
    needed = run.tensor_parallel * run.expert_parallel * run.pipeline_parallel
    enough = every(needed <= run.num_gpus)  # a planner's counts of GPUs are
    return run.expert_tensor_parallel or (run.tensor_parallel if enough and not whole else 1)


def stream_degree(run: Run) -> int:
    """Return over how many ranks the tokens of norms and residual streams are divided."""
    return run.tensor_parallel if run.sequence_parallel else 1


def regathers(run: Run) -> bool:
    """Return whether inputs of column-parallel products are kept divided, and gathered again in backward."""
    return run.sequence_parallel and run.tensor_parallel > 1 and run.method == "full" and by_megatron(run)


def gathers_narrow(run: Run) -> bool:
    """Return whether sequence parallelism gathers in 8 bits what 8-bit products read, forward and backward.

    TransformerEngine casts before it gathers, and torchao where one scale serves a tensor (torchao/float8/
    float8_tensor_parallel.py), not rows.
    """
    casts = run.fp8 and run.fp8_products != "experts" and run.sequence_parallel
    return casts and (by_megatron(run) or run.fp8_recipe == "tensorwise")


def by_megatron(run: Run) -> bool:
    """Return whether Megatron's own layers run, rather than PyTorch's DTensor."""
    return "megatron" in run.kernels or framework_of(run.framework).megatron_layers


def by_transformers(run: Run) -> bool:
    """Return whether transformers divides the model: product by product, embedding and loss whole."""
    return framework_of(run.framework).transformers_plan and "megatron" not in run.kernels


def by_fully_shard(run: Run) -> bool:
    """Return whether a framework is known to shard by FSDP2's fully_shard, tensor by tensor.

    FSDP1 makes one flat tensor of a unit's. Memory of the former is freed in the order of streams, without
    the host.
    """
    return framework_of(run.framework).fully_shard


def by_tensors(run: Run) -> bool:
    """Return whether FSDP2 divides the model, or no framework says otherwise."""
    return run.sharding in FSDP and (not run.framework or by_fully_shard(run))


def adapter_units(run: Run, graph: Graph) -> float:
    """Return how many units of FSDP the adapters of a layer are, beside the layer's own.

    PEFT's policy, which transformers and accelerate shard by, makes one of every module without children
    that trains: two of each adapter (peft/utils/other.py, fsdp_auto_wrap_policy, read 2026-11-21).
    fms-acceleration's fused kernels take adapters out of FSDP.
    """
    if not run.trains_adapters or not by_transformers(run) or "foak" in run.kernels:
        return 0.0
    adapters = sum(group.count * sum(map(is_adapter, group.ops)) for group in graph.layers)
    return 2.0 * adapters / max(1, graph.model.num_layers)


LAST_STAGE, SECOND_STAGE = " (last stage)", " (second stage)"  # beside the names of the phases of its memory


def stage_layers(run: Run, model: Architecture) -> float:
    """Return the layers of one pipeline stage; a fraction where they do not divide evenly."""
    return copies_of_layers(run) * model.num_layers / run.pipeline_parallel


def copies_of_layers(run: Run) -> int:
    """Return how often a pipeline holds each layer: DualPipe's stages are those from both ends."""
    return 2 if run.pipeline_schedule == "dualpipe" and run.pipeline_parallel > 1 else 1


def slowest_share(run: Run, model: Architecture) -> float:
    """Return the share of all layers that the stage with most of them computes, one working at a time: 1."""
    if run.pipeline_parallel == 1 or run.pipeline_schedule == "naive":
        return 1.0
    sizes = layers_of_stages(run, model.num_layers)
    return max(sizes) / (copies_of_layers(run) * model.num_layers)


def behind_head(run: Run, model: Architecture) -> float:
    """Return how many layers fewer than the slowest stage that of the head has, over those of the slowest."""
    if run.pipeline_parallel == 1 or run.pipeline_schedule == "naive":
        return 0.0
    sizes = layers_of_stages(run, model.num_layers)
    return 1.0 - sizes[head_stage(run)] / max(sizes)


def outer_params(whole: Graph) -> tuple[float, float]:
    """Return the parameters before the layers, and those after them; a tied head is both."""
    before = outer = 0.0
    for tensor in whole.model.embeddings:
        before += tensor.size
    for tensor in whole.model.outer_tensors():
        outer += tensor.size
    return before, outer - before


def on_a_stage(run: Run, ends: Sequence[float]) -> float:
    """Return what the stage with more of it has of the two ends of the model: all, without a pipeline."""
    return max(ends) if run.pipeline_parallel > 1 else sum(ends)


def expert_fraction(graph: Graph) -> float:
    """Return the share of the parameters that lies in routed experts."""
    routed = sum(count * _routed(layer) for layer, count in graph.model.layers)
    return routed / max(1, graph.model.num_parameters)


def _routed(layer: Layer) -> int:
    mixers = [branch.mixer for branch in layer.branches]
    return sum([m.num_experts * m.expert_size for m in mixers if isinstance(m, MixtureOfExperts)])


def stage_shares(
    run: Run, whole: Graph, ends: tuple[float, float], experts: float, stage: int
) -> tuple[float, float, float]:
    """Return the shares of weights, of trained values and of routed experts that lie on a stage.

    The first stage has the embedding, the last the head (a tied one too): `ends`, in parameters. Routed
    `experts`, that part of all parameters, are told apart where they are divided otherwise than the rest.
    """
    stages, weights = run.pipeline_parallel, whole.weights
    if stages == 1:
        return 1.0, 1.0, 1.0
    last = max(ends) if whole.model.tied else ends[1]
    of_ends = (ends[0] if stage == 0 else 0.0) + (last if stage == head_stage(run) else 0.0)
    if copies_of_layers(run) > 1 and stage == stages - 1:
        of_ends = ends[0] + last
    width, (share, routed) = whole.lowering.weight_bytes, _params_on_stage(run, whole, experts > 0, stage)

    def part(held: float, of_end: float) -> float:
        inner = held * (1.0 - experts)
        return ((inner - sum(ends) * of_end) * share + of_ends * of_end) / inner

    base, trained = part(weights.base_bytes, width), weights.trained_params
    return base, share if run.trains_adapters else part(trained, 1.0), routed


def _params_on_stage(run: Run, whole: Graph, apart: bool, stage: int) -> tuple[float, float]:
    """Return the shares of the layers' parameters, and of their routed experts if `apart`, on a stage."""
    layers, total = whole.model.layers, whole.model.num_layers
    sizes = layers_of_stages(run, total)
    if len({layer for layer, _ in layers}) < len(layers):  # they take turns
        return sizes[stage] / total, sizes[stage] / total
    first, held, every_one = 0, [0.0, 0.0], [0.0, 0.0]
    for layer, count in layers:
        routed = _routed(layer) if apart else 0
        params = float(sum(tensor.size for tensor in layer.tensors()) - routed), float(routed)
        here = _held_by_stage(run, total, stage, first, count)
        for kind, size in enumerate(params):
            held[kind], every_one[kind] = held[kind] + here * size, every_one[kind] + count * size
        first += count
    return held[0] / max(1.0, every_one[0]), held[1] / max(1.0, every_one[1])


def stage_graphs(run: Run, graph: Graph) -> dict[str, tuple[int, Graph]]:
    """Return the stages of a pipeline that may be the fullest, by what is added to the names of their phases.

    The first keeps the most micro-batches, the last has the loss; where the first has fewer layers, the
    second may be fuller.
    """
    if run.pipeline_parallel == 1:
        return {"": (0, graph)}
    sizes = layers_of_stages(run, graph.model.num_layers)
    last = run.pipeline_parallel - 1
    found = {"": 0} if head_stage(run) == 0 else {"": 0, LAST_STAGE: last}
    if sizes[1] > sizes[0] and last > 1:
        found[SECOND_STAGE] = 1
    elsewhere = [
        Op(op.path, op.kind, NOTHING, keeps_input=op.keeps_input, dtype=op.dtype) for op in graph.head
    ]
    graphs: dict[str, tuple[int, Graph]] = {}
    for name, stage in found.items():
        one = stage_graph(run, graph, stage)
        if stage != head_stage(run):
            one = one._replace(head=tuple(elsewhere))
        graphs[name] = stage, one
    return graphs


def stage_graph(run: Run, graph: Graph, stage: int) -> Graph:
    """Return a stage's layers, each counted for every micro-batch in flight.

    Where kinds of layers take turns, a stage has its share of each kind.
    """
    total, kept = graph.model.num_layers, in_flight(run, stage)
    sizes = layers_of_stages(run, total)
    share = kept * sizes[stage] / sum(sizes) * copies_of_layers(run)

    def part(count: int) -> int:
        return max(1, round(count * share)) if count else 0

    def here(first: int, count: int) -> int:
        return round(kept * _held_by_stage(run, total, stage, first, count))

    in_order = all(sum(group.until) == sum(group.before) + group.count for group in graph.layers)
    whole: Counter[Layer] = Counter()  # equal layers of several groups are rounded together
    for layer, count in graph.model.layers:
        whole[layer] += count
    if in_order and len(whole) == len(graph.model.layers) and sizes[stage]:
        groups = [(group, here(sum(group.before), group.count)) for group in graph.layers]
        there = [index for index, (_, count) in enumerate(groups) if count]
        layers, before = list[LayerGraph](), (0,) * len(there)
        for place, index in enumerate(there):
            group, count = groups[index]
            until = (*before[:place], count, *before[place + 1 :])
            layers.append(group._replace(count=count, before=before, until=until))
            before = until
        first, fewer = 0, list[tuple[Layer, int]]()
        for layer, count in whole.items():
            fewer += [(layer, here(first, count))] if here(first, count) else []
            first += count
        if layers and fewer:
            return graph._replace(layers=tuple(layers), model=graph.model._replace(layers=tuple(fewer)))
    layers = []
    for group in graph.layers:
        earlier, until = tuple(map(part, group.before)), tuple(map(part, group.until))
        layers.append(group._replace(count=part(group.count), before=earlier, until=until))
    shares = tuple([(layer, part(count)) for layer, count in whole.items()])
    return graph._replace(layers=tuple(layers), model=graph.model._replace(layers=shares))


def _held_by_stage(run: Run, layers: int, stage: int, first: int, count: int) -> float:
    held = 0.0
    for place, start, size in _stretches(run, layers):
        if place == stage:
            held += max(0.0, min(first + count, start + size) - max(first, start))
    return held


def chunks_of(run: Run) -> int:
    """Return how many stretches of neighbouring layers a stage holds."""
    return 2 if run.pipeline_schedule in V_SHAPED else run.virtual_pipeline_stages


def layers_of_stages(run: Run, layers: int) -> tuple[float, ...]:
    """Return how many layers each stage of the pipeline has, all of its chunks together."""
    sizes = [0.0] * run.pipeline_parallel
    for stage, _, size in _stretches(run, layers):
        sizes[stage] += size
    return tuple(sizes)


def _stretches(run: Run, layers: int) -> list[tuple[int, float, float]]:
    """Return the neighbouring layers that a stage has, one chunk after the other: stage, first, how many."""
    stages, ends = run.pipeline_parallel, (run.first_stage_layers, run.last_stage_layers)
    embedding, loss = counted(run.counted_as_layers)
    if stages == 1 or run.pipeline_schedule == "naive":
        sizes = [layers / stages] * stages
    elif ends != (None, None):
        between = stages - sum(end is not None for end in ends)
        whole, extra = divmod(layers - sum(end or 0 for end in ends), max(1, between))
        middle = [whole + (place < extra) for place in range(between)]
        sizes = [*map(float, (*filter(None, ends[:1]), *middle, *filter(None, ends[1:])))]
    else:
        places = stages * chunks_of(run)
        whole, extra = divmod(layers + embedding + loss, places)
        sizes = [float(whole + (place < extra)) for place in range(places)]
        sizes[0], sizes[-1] = sizes[0] - embedding, sizes[-1] - loss
    found, first = list[tuple[int, float, float]](), 0.0
    for place, size in enumerate(sizes):
        returns = run.pipeline_schedule in V_SHAPED and place >= stages
        found.append((2 * stages - 1 - place if returns else place % stages, first, size))
        if run.pipeline_schedule == "dualpipe" and len(sizes) > 1:
            found.append((stages - 1 - place % stages, first, size))
        first += size
    return found


def head_stage(run: Run) -> int:
    """Return which stage has the head: the last, or the first where it has both ends of the model."""
    return 0 if run.pipeline_schedule in BOTH_ENDS else run.pipeline_parallel - 1


def in_flight(run: Run, stage: int) -> float:
    """Return of how many micro-batches a stage keeps its layers' activations."""
    stages, chunks, steps = run.pipeline_parallel, chunks_of(run), float(run.gradient_accumulation_steps)
    one_to_one = float(stages - stage)
    interleaved = (2 * one_to_one - 1 + (chunks - 1) * stages) / chunks
    kept = {
        "naive": 1.0,
        "gpipe": steps,
        "zb_h1": float(stages),
        "zb_v": float(stages),
        "dualpipe_v": stages + 0.5,
        "dualpipe": (stages + 1) / 2,  # of its two stages together
    }
    return min(kept.get(run.pipeline_schedule, one_to_one if chunks == 1 else interleaved), steps)


def splits_backward(run: Run) -> bool:
    """Return whether gradients of weights are worked out apart from those of inputs."""
    return run.pipeline_parallel > 1 and run.pipeline_schedule in ("zb_h1", *BOTH_ENDS)


def weights_fraction(run: Run, graph: Graph, extents: Extents) -> Any:
    """Return the share of a backward pass, recomputation included, that works out gradients of weights."""
    weights: Any = 0.0
    total: Any = 0.0
    for group in graph.layers:
        for op in group.ops:
            seen = extents.windowed(op.window)
            forward, backward = op.forward.flops.at(seen), op.backward.flops.at(seen)
            total = total + group.count * backward
            if op.kind in PRODUCTS:
                weights = weights + group.count * largest(0.0, backward - forward)
        again = sum(op.forward.flops.at(extents.windowed(op.window)) for op in rerun(run, graph, group.ops))
        total = total + group.count * rerun_share(run, graph, group.ops) * again
    return weights / largest(total, 1.0)


def bubble_s(run: Run, forward_s: Any, backward_s: Any, others: Any, weights: Any) -> Any:
    """Return the seconds that the slowest stage waits in a step for the others.

    Its layers take `forward_s` and `backward_s` (recomputation included) for one micro-batch; `others` is
    the layers of the other stages together, over its own; `weights` the share of backward that works out
    gradients of weights.
    """
    of_weights = weights * backward_s
    inputs = backward_s - of_weights
    stages = run.pipeline_parallel
    match run.pipeline_schedule:
        case "zb_h1":
            waits = (forward_s + inputs - of_weights) / chunks_of(run)
        case "zb_v":
            waits = largest(inputs / 2, inputs - of_weights)
        case "dualpipe_v":
            waits = inputs - of_weights / 2
        case "dualpipe":
            waits = (stages / 2 - 1) / max(1, stages - 1) * (2 * inputs - of_weights)
        case _:
            waits = (forward_s + backward_s) / chunks_of(run)
    return others * largest(0.0, waits)


STATE_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "remainder": 2.0, "fp8": 1.0}
MASTER_BYTES = 12.0  # fp32 copy, first and second moment, per trained parameter under DeepSpeed


def keeps_fp32_shards(run: Run) -> bool:
    """Return whether FSDP's mixed precision holds fp32 shards of what it gathers in 16 bit."""
    return (
        run.sharding in FSDP and run.num_gpus > 1 and run.weights_dtype == "fp32" and run.autocast != "none"
    )


def has_megatron_optimizer(run: Run) -> bool:
    """Return whether 16-bit weights that train have Megatron-LM's fp32 copy and moments beside them.

    Its fused Adam has no temporaries (megatron/core/optimizer/optimizer.py, read 2026-11-21).
    """
    trains_16_bit = run.method == "full" and run.weights_dtype != "fp32" and run.autocast == "none"
    return trains_16_bit and by_megatron(run)


def gradient_width(run: Run) -> float:
    """Return how many times as wide as they are computed gradients are held, and exchanged, by a rank.

    Megatron-LM adds those of bf16 weights up in fp32, in the buffer that it reduces: 18 bytes for every
    trained parameter in all, 6 + 12/N where the optimizer is divided (Korthikanti et al. 2022, section 6).
    With grad_reduce_in_bf16, or main_grads_dtype, it does so as `gradient_dtype` says.
    """
    megatron = has_megatron_optimizer(run) and run.weights_dtype == "bf16"
    megatron = megatron and run.gradient_dtype in (None, "fp32")
    return 2.0 if megatron or keeps_fp32_shards(run) else 1.0


def master_bytes(run: Run) -> float:
    """Return the bytes of a trained parameter's copy and moments, beside its 16-bit value.

    Megatron's precision-aware optimizer keeps each as asked; of an fp32 copy TransformerEngine stores what
    bf16 weights lack of it (store_param_remainders, megatron/core/optimizer/optimizer_config.py, 0075637).
    """
    return STATE_BYTES[run.master_dtype] + 2.0 * STATE_BYTES[run.moments_dtype]


def megatron_bytes(run: Run, held: Weights, trained: float) -> float:
    """Return the bytes of copies and states of `trained` parameters under Megatron's optimizer.

    Muon, Shampoo and SOAP see whole tensors, whose states `held` counts in 16 bit; here they are fp32.
    """
    if run.optimizer in SQUARED:
        return STATE_BYTES[run.master_dtype] * trained + 2.0 * held.optimizer_bytes
    return master_bytes(run) * trained


def zero_bytes(run: Run) -> float:
    """Return the bytes of a trained parameter's copy and states under ZeRO, which sees one long vector."""
    if run.optimizer in ("adamw", "paged_adamw"):
        return master_bytes(run)
    alone = Trained((LEAST_PAGED,), 4)
    return STATE_BYTES["fp32"] + state_bytes(run.optimizer, alone) / LEAST_PAGED
