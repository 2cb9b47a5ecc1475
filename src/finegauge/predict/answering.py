r"""What a model takes to write: one pass over the prompts, then one over every further token.

Writing is bound by memory: each token reads all weights (of experts, those that some row
is sent to) and the keys and values of all tokens before it,

$$ M_{cache} = B\,S \sum_{layers} 2\,h_{kv}\,d_{head} \times bytes $$

which transformers' cache also copies whole to append a token: it is read twice and
written once per token. State-space layers keep a state of constant size instead.

Neglected: the choice of the token, the Python around it, GPTQ's and NF4's own kernels for
few rows.
"""

from typing import NamedTuple

from finegauge.graph.blocks import Attention, LatentAttention, LinearAttention, Mamba1, Mamba2, Mixer
from finegauge.graph.build import Graph
from finegauge.graph.op import Cost, Extents, Op
from finegauge.predict.measured import MeasuredDevice
from finegauge.predict.time import StepClock
from finegauge.predict.walk import forward_moment
from finegauge.profile import Path

CACHE_PASSES = 3.0  # read and written to append a token, read by attention
SAMPLED_BYTES = 12.0  # fp32 logits, probabilities and a copy, per word

Parts = dict[Path, float]


class Writing(NamedTuple):
    """Rows of prompts and the answers to them."""

    rows: float
    prompt_tokens: float
    new_tokens: int

    @property
    def prompts(self) -> Extents:
        """Return the extents of the prompts."""
        return Extents.of(self.rows, self.prompt_tokens)

    @property
    def token(self) -> Extents:
        """Return the extents of one further token of every row, in the middle of the answers.

        A query sees all keys before it, none of which causality hides, so pairs count twice.
        """
        context = self.prompt_tokens + self.new_tokens / 2.0
        return Extents(self.rows, self.rows, 2.0 * self.rows * context, context)


def add_writing(clock: StepClock, graph: Graph, writing: Writing, first: str, then: str) -> None:
    """Add the seconds of the prompts to the stage `first`, those of the tokens after the first to `then`."""
    prompts, token, steps = writing.prompts, writing.token, writing.new_tokens - 1
    once = token._replace(pairs=2.0 * token.sequences)
    head = graph.head[:-1]  # without the loss
    for count, ops in graph.stretches:
        clock.extents = once if ops is graph.head else prompts
        clock.stage(first, count, head if ops is graph.head else ops, backward=False)
    add_python(clock, first, 1, graph)
    if steps < 1:
        return
    clock.extents = token
    for count, ops in graph.stretches:
        own = head if ops is graph.head else tuple(_for_few_rows(op, writing.rows) for op in ops)
        clock.stage(then, count * steps, own, backward=False)
    add_python(clock, then, steps, graph)
    cached = cache_bytes(graph, writing.rows, token.longest_tokens)
    seconds = steps * clock.device.moving_seconds(CACHE_PASSES * cached)
    if seconds:
        clock.parts.append(((then, "attention", "KV cache"), seconds))
        clock.device_s += seconds


def add_python(clock: StepClock, stage: str, passes: float, graph: Graph) -> None:
    """Add the Python around the operators of forward passes, where the device has readings of it."""
    if not isinstance(clock.device, MeasuredDevice):
        return
    layer, model = (clock.device.rest_seconds(of, backward=False) for of in ("layer", "model"))
    seconds = passes * (graph.model.num_layers * layer + model)
    if seconds:
        clock.parts.append(((stage, "other", "Python"), seconds))
        clock.host_bound_s += seconds


def writing_memory(graph: Graph, writing: Writing) -> tuple[Parts, Parts]:
    """Return what is alive beside the weights while the prompts are read, and at the last token."""
    rows, whole = writing.rows, writing.prompt_tokens + writing.new_tokens
    last = Extents(rows, rows, rows * whole, whole)
    logits = rows * graph.model.vocab_size * (graph.lowering.compute_bytes + SAMPLED_BYTES)
    reading: Parts = {
        ("KV cache",): cache_bytes(graph, rows, writing.prompt_tokens),
        ("activations", "passing"): passing_bytes(graph, writing.prompts),
    }
    appended = max((_cached(mixer, whole, graph) for mixer, _ in _mixers(graph)), default=0.0)
    answering: Parts = {
        ("KV cache",): cache_bytes(graph, rows, whole) + rows * appended / 2.0,
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


def cache_bytes(graph: Graph, rows: float, tokens: float) -> float:
    """Return the bytes of keys, values and states of `rows` sequences of `tokens` tokens each."""
    return rows * sum(count * _cached(mixer, tokens, graph) for mixer, count in _mixers(graph))


def _mixers(graph: Graph) -> list[tuple[Mixer, int]]:
    """Return every mixer of the model and how many of it there are."""
    return [(branch.mixer, count) for layer, count in graph.model.layers for branch in layer.branches]


def _cached(mixer: Mixer, tokens: float, graph: Graph) -> float:
    """Return the bytes that a mixer remembers of one sequence."""
    width = float(graph.lowering.compute_bytes)
    match mixer:
        case Attention():
            seen = tokens if mixer.window is None else min(tokens, mixer.window)
            value = mixer.value_head_dim or mixer.head_dim
            return seen * width * mixer.num_key_value_heads * (mixer.head_dim + value)
        case LatentAttention():  # transformers keeps keys and values as wide as attention reads them
            key = mixer.qk_nope_head_dim + mixer.qk_rope_head_dim
            return tokens * width * mixer.num_heads * (key + mixer.value_head_dim)
        case Mamba1():
            return width * mixer.inner_size * (mixer.state_size + mixer.conv_kernel)
        case Mamba2():
            channels = mixer.inner_size + 2 * mixer.num_groups * mixer.state_size
            return width * (mixer.inner_size * mixer.state_size + channels * mixer.conv_kernel)
        case LinearAttention():
            state = mixer.num_heads * mixer.key_head_dim * mixer.value_head_dim
            return 4.0 * state + width * mixer.conv_size * mixer.conv_kernel
        case _:
            return 0.0


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
