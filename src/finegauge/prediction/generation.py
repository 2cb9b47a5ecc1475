r"""What a model takes to generate: one pass over the prompts, then one over every further token.

Generation is bound by memory: each token reads all weights (of experts, those that some row
is sent to) and the keys and values of all tokens before it,

$$ M_{cache} = B\,S \sum_{layers} 2\,h_{kv}\,d_{head} \times bytes $$

which transformers' cache also copies whole to append a token: it is read twice and
written once per token. State-space layers keep a state of constant size instead.

Of transformers, a layer's Python and that of `generate` around all layers stand beside the launches of
every token; engines made for serving launch a token as one graph and read the cache in pages, once.

Neglected: the arithmetic of choosing a token, GPTQ's and NF4's own kernels for few rows.
"""

from finegauge.catalogue.frameworks import engine
from finegauge.model.blocks import Attention, LatentAttention, Mixer
from finegauge.model.graph import Graph
from finegauge.model.op import Cost, Extents, Op
from finegauge.prediction.forward_passes import Generation
from finegauge.prediction.memory import forward_moment
from finegauge.prediction.time import Beside, StepClock
from finegauge.profile import Path
from finegauge.records import NamedTuple
from finegauge.run.run import Run

CACHE_PASSES = 3.0  # read and written to append a token, read by attention
SAMPLED_BYTES = 12.0  # fp32 logits, probabilities and a copy, per word

CACHE_WIDTHS = {"bf16": 2.0, "fp16": 2.0, "fp8": 1.0}  # bytes of a number; "auto" is as it is computed

Parts = dict[Path, float]


class OnePass(NamedTuple):
    """The seconds of one forward pass, nothing exchanged."""

    compute_s: float
    host_bound_s: float  # of them, how long the device waits for its host

    @classmethod
    def of(cls, clock: StepClock) -> "OnePass":
        """Return all that `clock` has, as one."""
        return cls(clock.time.parts.total, clock.host_bound_s)


def add_generation(
    clock: StepClock, graph: Graph, batch: Generation, first: str, then: str
) -> tuple[OnePass, OnePass]:
    """Add the seconds of the prompts to the stage `first`, those of the tokens after the first to `then`.

    Returns: The pass over the prompts, and that of each further token.
    """
    prompts, token, steps = batch.prompts, batch.token, batch.new_tokens - 1
    once = token._replace(pairs=2.0 * token.sequences)
    head = graph.head[:-1]  # without the loss
    for count, ops in graph.stretches:
        ends = ops is graph.head
        clock.extents = once if ends else prompts
        own, python = head if ends else ops, _python(clock, graph, ops, engine=False)
        clock.stage(first, count, own, backward=False, beside=python)
    add_python(clock, first, 1, graph, sampled=True)
    reading = OnePass.of(clock)
    if steps < 1:
        return reading, OnePass(0.0, 0.0)
    paged = by_engine(clock.run)
    clock.extents, clock.launch_s = token, 0.0 if paged else clock.launch_s
    cached = cache_bytes(graph, batch.rows, token.longest_tokens, clock.run)
    moved = cached * (1.0 if paged else CACHE_PASSES) / graph.model.num_layers
    append = Beside(("attention", "KV cache"), clock.device.cache_seconds(moved), 0.0)
    for count, ops in graph.stretches:
        layers = ops is not graph.head and ops is not graph.embedding
        own = head if ops is graph.head else tuple(_for_few_rows(op, batch.rows) for op in ops)
        beside = [*([append] if layers else []), *_python(clock, graph, ops, engine=paged)]
        clock.stage(then, count * steps, own, backward=False, beside=beside)
    add_python(clock, then, steps, graph, sampled=True)
    both = OnePass.of(clock)
    return reading, OnePass(*((all_s - read_s) / steps for all_s, read_s in zip(both, reading, strict=True)))


def by_engine(run: Run) -> bool:
    """Return whether an engine made for serving generates: graphs of a whole token, and a cache in pages."""
    return engine(run.inference_engine).graphs


def _python(clock: StepClock, graph: Graph, ops: tuple[Op, ...], *, engine: bool) -> list[Beside]:
    """Return the Python of `generate` around the operators of a layer, or around all layers."""
    calibration = clock.device.calibration
    if clock.device.host_in_readings or engine or ops is graph.embedding:
        return []
    fraction = calibration.compiled_launch_fraction if clock.run.compile else 1.0
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
    return reading, answering


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

    Each of the tensor-parallel ranks has those of its own heads.
    """
    return rows * sum(count * _cached(mixer, tokens, graph, run) for mixer, count in _mixers(graph))


def _mixers(graph: Graph) -> list[tuple[Mixer, int]]:
    return [(branch.mixer, count) for layer, count in graph.model.layers for branch in layer.branches]


def _cached(mixer: Mixer, tokens: float, graph: Graph, run: Run) -> float:
    """Return the bytes that one tensor-parallel rank remembers of one sequence because of a mixer."""
    degree, computed = run.tensor_parallel, float(graph.lowering.compute_bytes)
    width = CACHE_WIDTHS.get(run.kv_cache_dtype, computed)
    match mixer:
        case Attention():
            seen = tokens if mixer.window is None else min(tokens, mixer.window)
            value = mixer.value_head_dim or mixer.head_dim
            return seen * width * max(1.0, mixer.num_key_value_heads / degree) * (mixer.head_dim + value)
        case LatentAttention():  # transformers keeps keys and values as wide as attention reads them
            key = mixer.qk_nope_head_dim + mixer.qk_rope_head_dim
            return tokens * width * mixer.num_heads / degree * (key + mixer.value_head_dim)
        case _:
            return float(mixer.state_bytes(computed)) / degree if hasattr(mixer, "state_bytes") else 0.0


def _for_few_rows(op: Op, rows: float) -> Op:
    """Return an operator of the experts as few rows need it: experts that no row is sent to rest."""
    if op.kind != "grouped_gemm" or not op.forward.gemms:
        return op
    experts = op.forward.gemms[0].groups
    sent = rows * op.forward.gemms[0].rows_per_token
    share = 1.0 - (1.0 - 1.0 / experts) ** sent
    cost = op.forward
    fewer = Cost(
        flops=cost.flops,
        bytes=cost.bytes._replace(const=cost.bytes.const * share),
        launches=cost.launches,
        calls=cost.calls,
        gemms=tuple(gemm._replace(groups=max(1, round(gemm.groups * share))) for gemm in cost.gemms),
    )
    return op._replace(forward=fewer)
