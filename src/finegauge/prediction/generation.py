r"""What a model takes to generate: one pass over the prompts, then one over every further token.

Generation is bound by memory: each token reads all weights (of experts, those that some row
is sent to) and the keys and values of all tokens before it,

$$ M_{cache} = B\,S \sum_{layers} 2\,h_{kv}\,d_{head} \times bytes $$

which transformers' cache also copies whole to append a token: it is read twice and
written once per token. State-space layers keep a state of constant size instead. Of latent attention
engines keep the latents alone, one set for all heads and so on every rank, and multiply queries and
outputs by what would expand them (DeepSeek-V2, arXiv:2405.04434, 2.1.2; vllm/v1/attention/backends/mla).

Of transformers, a layer's Python and that of `generate` around all layers stand beside the launches of
every token; engines made for serving launch a token as one graph and read the cache in pages, once.

Neglected: the arithmetic of choosing a token, GPTQ's and NF4's own kernels for few rows.
"""

from functools import lru_cache
from math import exp
from operator import attrgetter
from typing import TYPE_CHECKING

from finegauge.catalogue.gpus import gpu as find_gpu
from finegauge.model.blocks import Attention, LatentAttention, Mixer
from finegauge.model.graph import Graph
from finegauge.model.op import Cost, Extents, Op
from finegauge.prediction.device import DEFAULT_SMS, Device
from finegauge.prediction.forward_passes import Generation
from finegauge.prediction.memory import forward_moment
from finegauge.prediction.model_parallel import expert_tensor, slowest_share
from finegauge.prediction.time import Beside, StepClock, StepTime, expected_largest
from finegauge.profile import Breakdown, Path
from finegauge.records import NamedTuple
from finegauge.run.phases import by_engine, engine_of
from finegauge.run.run import Run

if TYPE_CHECKING:
    from finegauge.prediction.profiled_device import ProfiledDevice

CACHE_PASSES = 3.0  # read and written to append a token, read by attention
SAMPLED_BYTES = 12.0  # fp32 logits, probabilities and a copy, per word
# What a graph-launched engine reaches of the datasheet's bandwidth: weights in products of few rows, keys and
# values in pages (vLLM on H100: 63 steps of dense and hybrid models, ML.ENERGY's v3 table, together with
# `step_s` and `sequence_s` of the catalogue and SORTED_BYTES; the worst of them is 10 % off)
STREAMED_FRACTION, CACHE_FRACTION = 0.83, 0.93
STATE_PASSES = 2.0  # of a recurrent layer, read and written
# top-k and top-p sort all words (vllm/v1/sample/ops/topk_topp_sampler.py, apply_top_k_top_p). Of fewer than
# SEGMENTS sequences PyTorch sorts all together and then by sequence; from there on each is sorted by a block
# of its own, of which so many at least take as long as fill the GPU, and SEGMENT_BYTES are moved a word: 8,
# 168 of six passes of radix sort, 110 of masks, softmax, sum and scatter (launch_stable_sort_kernel of ATen's
# cuda/SortStable.cu and cub's DeviceSegmentedRadixSort, read 2026-11-23). SORTED_BYTES is of that table.
SEGMENTS, BLOCKS_OF_AN_SM = 128, 2.0
SORTED_BYTES, SEGMENT_BYTES = 600.0, 286.0
# spread of experts' popularity, in logarithms: Qwen3-30B-A3B reads 55, 71 and 88 % of its experts for 16, 32
# and 64 rows (the same table), where even draws would read 63, 87 and 98 %
POPULARITY = 0.8
LEAST_BLOCK = 64.0  # rows at which a product is as quick as a larger one
# of a layer's fused experts beside what they read and compute: rows sorted by expert, two products, a sum
# (54 us timed with two small experts on H100, 58 on L40S, 21 to 39 on B200: catalogue/data/operators)
EXPERTS_S = {"Blackwell": 2.5e-5, "Blackwell Ultra": 2.5e-5}
OTHER_EXPERTS_S = 5e-5
# of a product in blocks of fp8, whose input is quantised and padded first: 188 products of Qwen3-235B-A22B's
# token in FP8 beside those in bf16 (ML.ENERGY's table)
BLOCKS_S = 2.8e-5
FUSED = ("k_proj", "v_proj", "up_proj")  # with the product before them, in an engine
CHUNK = 2048.0  # tokens of prompts in one step, at least

STATE_WIDTH = 4.0  # bytes of a number of a state-space layer's state in an engine
CACHE_WIDTHS = {"bf16": 2.0, "fp16": 2.0, "fp8": 1.0}  # bytes of a number; "auto" is as it is computed

SCHEDULER = ("other", "scheduler")

Parts = dict[Path, float]


class OnePass(NamedTuple):
    """The seconds of one forward pass, nothing exchanged."""

    compute_s: float
    host_bound_s: float  # of them, how long the device waits for its host

    @classmethod
    def of(cls, clock: StepClock) -> "OnePass":
        """Return all that `clock` has, as one; while an engine's scheduler works, nothing is in a queue."""
        time = clock.time
        scheduler_s = sum(value for path, value in time.parts.parts.items() if path[1:] == SCHEDULER)
        return cls(time.parts.total, max(0.0, clock.host_bound_s - scheduler_s))


def add_generation(
    clock: StepClock, graph: Graph, batch: Generation, first: str, then: str
) -> tuple[OnePass, OnePass]:
    """Add the seconds of the prompts to the stage `first`, those of the tokens after the first to `then`.

    Returns: The pass over the prompts, and that of each further token.
    """
    prompts, token, steps, run = batch.prompts, batch.token, batch.steps, clock.run
    once = token._replace(pairs=2.0 * token.sequences)
    head = graph.head[:-1]  # without the loss
    engine, device = engine_of(run), clock.device
    if engine.paged and isinstance(device, Device):
        clock.device = device._replace(memory_bytes_per_s=_streamed(device, STREAMED_FRACTION))
    if engine.graphs:
        clock.launch_s = clock.call_s = 0.0
    for count, ops in graph.stretches:
        ends = ops is graph.head
        clock.extents = once if ends else prompts
        own, python = head if ends else ops, _python(clock, graph, ops, engine=engine.paged)
        clock.stage(first, count, own, backward=False, beside=python)
    add_python(clock, first, 1, graph, sampled=True)
    if engine.paged:
        _engine_step(clock, graph, first, max(1.0, prompts.tokens / CHUNK), batch.rows, batch.rows)
    reading = OnePass.of(clock)
    if steps <= 0:
        return reading, OnePass(0.0, 0.0)
    clock.extents, launch_s = token, clock.launch_s
    append = kept = Beside(("attention", "KV cache"), _cache_s(clock, graph, device, batch), 0.0)
    for count, ops in graph.stretches:
        layers = ops is not graph.head and ops is not graph.embedding
        own = head if ops is graph.head else tuple(_for_few_rows(op, token.tokens, run) for op in ops)
        launches = sum(op.forward.launches for op in own)
        fewer = min(1.0, engine.layer_launches / launches) if engine.layer_launches and layers else 1.0
        clock.launch_s = launch_s * fewer
        if engine.paged:
            own, append = _absorbed(clock, graph, own, kept)
        beside = [*([append] if layers else []), *_python(clock, graph, ops, engine=engine.paged)]
        beside += _kernels_beside(run, ops) if engine.paged else []
        clock.stage(then, count * steps, own, backward=False, beside=beside)
    add_python(clock, then, steps, graph, sampled=True)
    if engine.paged:
        _engine_step(clock, graph, then, steps, steps * batch.rows, steps * token.tokens)
        if run.speculative_tokens:  # drafted by one layer and the head
            clock.extents = token._replace(tokens=batch.rows)
            drafting = (*max(graph.layers, key=attrgetter("count")).ops, *graph.head[:-1])
            clock.stage(then, steps * run.speculative_tokens, drafting, backward=False)
    both = OnePass.of(clock)
    return reading, OnePass(*((all_s - read_s) / steps for all_s, read_s in zip(both, reading, strict=True)))


def _streamed(device: Device, fraction: float) -> float:
    return device.memory_bytes_per_s / device.calibration.bandwidth_fraction * fraction


def _cache_s(clock: StepClock, graph: Graph, device: "Device | ProfiledDevice", batch: Generation) -> float:
    cached = cache_bytes(graph, batch.rows, batch.token.longest_tokens, clock.run) / graph.model.num_layers
    if not by_engine(clock.run):
        return device.cache_seconds(cached * (1.0 if engine_of(clock.run).layer_launches else CACHE_PASSES))
    states = cache_bytes(graph, batch.rows, 0.0, clock.run) / graph.model.num_layers
    moved = cached - states + STATE_PASSES * states
    if isinstance(device, Device):
        return moved / _streamed(device, CACHE_FRACTION)
    return device.cache_seconds(moved)


def _absorbed(
    clock: StepClock, graph: Graph, ops: tuple[Op, ...], cache: Beside
) -> tuple[tuple[Op, ...], Beside]:
    """Return a layer's operators, latent attention as it reads latents, and its cache's seconds beside that.

    Its kernel computes while it reads: the longer of both shows (FlashMLA).
    """
    latent = next((mixer for mixer, _ in _mixers(graph) if isinstance(mixer, LatentAttention)), None)
    at = next(
        (n for n, op in enumerate(ops) if latent and op.path == (latent.path, "attention kernel")), None
    )
    if latent is None or at is None:
        return ops, cache
    op, wide = ops[at], 2.0 * latent.kv_lora_rank + latent.qk_rope_head_dim
    times = wide / (latent.qk_nope_head_dim + latent.qk_rope_head_dim + latent.value_head_dim)
    op = op._replace(forward=op.forward._replace(flops=op.forward.flops.times(times)))
    kernel_s = clock.device.seconds(op, op.forward, clock.extents, backward=False)
    rest_s = max(0.0, cache.device_s - kernel_s)
    return (*ops[:at], op, *ops[at + 1 :]), cache._replace(device_s=rest_s)


def _engine_step(
    clock: StepClock, graph: Graph, stage: str, steps: float, rows: float, tokens: float
) -> None:
    """Add to `stage` what an engine does in `steps`, of all `rows`, besides the model to choose `tokens`."""
    engine, device = engine_of(clock.run), clock.device
    waits_s = steps * engine.step_s + rows * engine.sequence_s
    if waits_s:
        clock.parts.append(((stage, *SCHEDULER), waits_s))
        clock.host_bound_s += waits_s
    at_once = tokens / steps
    if not clock.run.truncated_sampling:
        word_bytes = SAMPLED_BYTES
    elif at_once < SEGMENTS:
        word_bytes = SORTED_BYTES
    else:
        blocks = BLOCKS_OF_AN_SM * (device.num_sms if isinstance(device, Device) else DEFAULT_SMS)
        word_bytes = SEGMENT_BYTES * max(1.0, blocks / at_once)
    seconds = device.cache_seconds(tokens * graph.model.vocab_size * word_bytes)
    clock.parts.append(((stage, "head", "sampling"), seconds))
    clock.device_s += seconds


def judging(run: Run) -> StepTime:
    """Return the seconds in which rules or a sandbox judge the answers of a step."""
    parts: Parts = {("reward", "judging"): run.reward_s} if run.reward_s else {}
    return StepTime(Breakdown(parts), 0.0, 0.0, 0.0)


def _kernels_beside(run: Run, ops: tuple[Op, ...]) -> list[Beside]:
    found, gpu = [], find_gpu(str(run.gpu)) if run.gpu else None
    narrow = [op for op in ops if op.dtype == "fp8_block" and op.kind == "gemm"]
    if gpu and "fp8" in gpu.flops_per_s and (blocks := sum(op.path[-1] not in FUSED for op in narrow)):
        found.append(Beside(("other", "quantising inputs"), blocks * BLOCKS_S, 0.0))
    if any(op.kind == "grouped_gemm" for op in ops):
        architecture = gpu.architecture if gpu else ""
        found.append(Beside(("moe", "sorting rows"), EXPERTS_S.get(architecture, OTHER_EXPERTS_S), 0.0))
    return found


def _python(clock: StepClock, graph: Graph, ops: tuple[Op, ...], *, engine: bool) -> list[Beside]:
    calibration = clock.device.calibration
    if clock.device.host_in_readings or engine or ops is graph.embedding:
        return []
    fraction = clock.device.host_ratio * (calibration.compiled_launch_fraction if clock.run.compile else 1.0)
    host_s = calibration.token_s if ops is graph.head else calibration.layer_s
    return [Beside(("other", "Python"), 0.0, fraction * host_s)]


def add_python(clock: StepClock, stage: str, passes: float, graph: Graph, *, sampled: bool = False) -> None:
    """Add the Python around the operators of forward passes, where the device has readings of it.

    Where a token is `sampled` by each, its choice is among it.
    """
    if not clock.device.host_in_readings:
        return
    layer, model = (clock.device.host_seconds(of, backward=False) for of in ("layer", "model"))
    chosen = clock.device.host_seconds("token", backward=False) if sampled else 0.0
    clock.wait(stage, passes * (graph.model.num_layers * layer + model + chosen))


def generation_memory(graph: Graph, batch: Generation, run: Run) -> tuple[Parts, Parts]:
    """Return what is alive beside the weights while the prompts are read, and at the last token."""
    rows, whole = batch.rows, batch.prompt_tokens + batch.new_tokens
    last = Extents(rows, rows, rows * whole, whole)
    logits = rows * graph.model.vocab_size * (graph.lowering.compute_bytes + SAMPLED_BYTES)
    reading: Parts = {
        ("KV cache",): cache_bytes(graph, rows, batch.prompt_tokens, run),
        ("activations", "passing"): passing_bytes(graph, batch.prompts),
    }
    appended = max((_cached(mixer, whole, graph, run) for mixer, _ in _mixers(graph)), default=0.0)
    answering: Parts = {
        ("KV cache",): cache_bytes(graph, rows, whole, run) + rows * appended / 2.0,
        ("activations", "passing"): passing_bytes(graph, last),
        ("logits", "next token"): logits,
    }
    if engine_of(run).layer_launches:
        reading.pop(("KV cache",))
        answering = {**workspace(graph, batch, run), ("logits", "next token"): logits}
        reading = {**reading, **workspace(graph, batch, run)}
    return reading, answering


def workspace(graph: Graph, batch: Generation, run: Run) -> Parts:
    """Return what DeepSpeed's kernels take at once for all layers: the cache, ten streams and all scores.

    GenWorkSpace of csrc/transformer/inference/includes/inference_context.h (read 2026-11-23).
    """
    rows, whole = batch.rows, batch.prompt_tokens + batch.new_tokens
    heads = max((mixer.num_heads for mixer, _ in _mixers(graph) if isinstance(mixer, Attention)), default=0)
    passing = rows * whole * (10.0 * graph.model.hidden_size + heads / run.tensor_parallel * whole)
    return {
        ("KV cache",): cache_bytes(graph, rows, whole, run),
        ("workspace", "generation"): graph.lowering.compute_bytes * passing,
    }


def passing_bytes(graph: Graph, extents: Extents) -> float:
    """Return the activations alive at the worst operator of a pass that keeps nothing."""
    low = graph.lowering
    width = graph.model.hidden_size * extents.tokens
    stream = low.stream_bytes * width
    inputs = low.activation_bytes * width + stream  # the model's own, and the layer's
    moments = (forward_moment(group.ops, extents, stream, keeping=False) for group in graph.layers)
    mask = low.activation_bytes * extents.pairs if low.attention == "eager" else 0.0
    return inputs + mask + max(moment.beside_bytes for moment in moments)


def cache_bytes(graph: Graph, rows: float, tokens: float, run: Run) -> float:
    """Return the bytes of keys, values and states of `rows` sequences of `tokens` tokens each.

    Each of the tensor-parallel ranks has those of its own heads, each stage those of its layers.
    """
    layers = slowest_share(run, graph.model)
    return rows * layers * sum(count * _cached(mixer, tokens, graph, run) for mixer, count in _mixers(graph))


def _mixers(graph: Graph) -> list[tuple[Mixer, int]]:
    return [(branch.mixer, count) for layer, count in graph.model.layers for branch in layer.branches]


def _cached(mixer: Mixer, tokens: float, graph: Graph, run: Run) -> float:
    degree, computed = run.tensor_parallel, float(graph.lowering.compute_bytes)
    if by_engine(run) and hasattr(mixer, "state_bytes"):
        return float(mixer.state_bytes(STATE_WIDTH)) / degree
    width = CACHE_WIDTHS.get(run.kv_cache_dtype, computed)
    match mixer:
        case Attention():
            seen = tokens if mixer.window is None else min(tokens, mixer.window)
            value = mixer.value_head_dim or mixer.head_dim
            return seen * width * max(1.0, mixer.num_key_value_heads / degree) * (mixer.head_dim + value)
        case LatentAttention() if by_engine(run):
            return tokens * width * (mixer.kv_lora_rank + mixer.qk_rope_head_dim)
        case LatentAttention():  # transformers keeps keys and values as wide as attention reads them
            key = mixer.qk_nope_head_dim + mixer.qk_rope_head_dim
            return tokens * width * mixer.num_heads / degree * (key + mixer.value_head_dim)
        case _:
            return float(mixer.state_bytes(computed)) / degree if hasattr(mixer, "state_bytes") else 0.0


def _for_few_rows(op: Op, rows: float, run: Run) -> Op:
    """Return an operator of the experts as few rows need it: experts that no row is sent to rest.

    Of an engine's ranks with experts of their own all wait for the one of which the most are asked for, and
    its kernels cut the rows of an expert into blocks of 16, of which hardly any is empty.
    """
    if op.kind != "grouped_gemm" or not op.forward.gemms:
        return op
    cost, ranks, paged = op.forward, run.expert_parallel, by_engine(run)
    gemm = cost.gemms[0]
    held, sent = gemm.groups, rows * gemm.rows_per_token
    whole = sent * (run.tensor_parallel if expert_tensor(run) == 1 else 1)  # of all ranks
    share = _asked_share(held * ranks, whole) if paged else 1.0 - (1.0 - 1.0 / held) ** sent
    if paged and ranks > 1:
        share = min(1.0, share + expected_largest(ranks) * (share * (1.0 - share) / held) ** 0.5)
    if ranks > 1 and paged and op.dtype == "fp8_block":
        share = 1.0  # every expert is read, asked for or not: 27 rows of ML.ENERGY's table
    groups = max(1, round(held * share))
    if paged:
        groups = max(2, min(groups, round(sent / LEAST_BLOCK)))
    fewer = Cost(
        flops=cost.flops,
        bytes=cost.bytes._replace(const=cost.bytes.const * share),
        launches=cost.launches,
        calls=cost.calls,
        gemms=tuple(gemm._replace(groups=groups) for gemm in cost.gemms),
    )
    return op._replace(forward=fewer)


@lru_cache(maxsize=1024)
def _asked_share(experts: int, sent: float) -> float:
    """Return the share of the experts that `sent` rows go to, some more popular than others (log-normal)."""
    found = total = 0.0
    for step in range(-16, 17):
        z = step / 4.0
        weight = exp(-z * z / 2.0)
        popular = exp(POPULARITY * z - POPULARITY**2 / 2.0)
        found += weight * (1.0 - exp(-popular * sent / experts))
        total += weight
    return found / total
