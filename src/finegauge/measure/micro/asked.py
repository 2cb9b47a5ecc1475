"""Which operators given runs ask for, and at which sizes: their own batch, half of it and twice.

Half and double are of the micro-batch, since that is what one varies; a prediction for a batch in between
then has a reading on either side.
"""

from collections.abc import Iterator, Sequence
from math import ceil

from finegauge.graph.blocks import (
    Architecture,
    Attention,
    FeedForward,
    Linear,
    Mamba1,
    MixtureOfExperts,
    Norm,
)
from finegauge.graph.build import Graph, build
from finegauge.measure.micro.grid import Point
from finegauge.workload.data import shape
from finegauge.workload.prompts import WRITING, answer_tokens
from finegauge.workload.run import Run

BATCHES = (0.5, 1.0, 2.0)


class Batch:
    """The rows of one micro-batch."""

    def __init__(self, sequences: int, seq_len: int) -> None:
        """Take `sequences` sequences of `seq_len` tokens."""
        self.sequences, self.seq_len, self.rows = sequences, seq_len, sequences * seq_len


def asked_points(runs: Sequence[Run], dtype: str) -> Iterator[Point]:
    """Yield every operator that those of `runs` that compute in `dtype` ask for, once."""
    seen = set()
    for run in runs:
        graph = build(run)
        if graph.lowering.compute_dtype != dtype:
            continue
        for batch in _batches(run):
            for point in (*_points(run, graph, batch), *_tokens(run, graph, batch)):
                key = (point.operator, *point.sizes.items())
                if key not in seen:
                    seen.add(key)
                    yield point


def compute_dtypes(runs: Sequence[Run]) -> list[str]:
    """Return the dtypes that `runs` compute in."""
    return list(dict.fromkeys(build(run).lowering.compute_dtype for run in runs))


def _batches(run: Run) -> Iterator[Batch]:
    """Yield the run's micro-batch, half of it and twice."""
    found = shape(run)
    for factor in BATCHES:
        sequences = max(1, ceil(found.sequences * factor))
        yield Batch(sequences, max(1, round(found.padded_len * found.sequences * factor / sequences)))


def _points(run: Run, graph: Graph, batch: Batch) -> Iterator[Point]:
    """Yield what one step on `batch` asks for."""
    model, rows = graph.model, batch.rows
    for width in {norm.size for norm in _norms(model)}:
        yield Point("rms_norm", {"rows": rows, "width": width})
    yield Point("add", {"rows": rows, "width": model.hidden_size})
    yield Point("embedding", {"rows": rows, "vocab": model.vocab_size, "width": model.hidden_size})
    yield Point("cross_entropy", {"rows": rows, "vocab": model.vocab_size})
    yield _linear(model.head or Linear("lm_head", model.hidden_size, model.vocab_size), rows)
    for mixer in {branch.mixer for layer, _ in model.layers for branch in layer.branches}:
        if isinstance(mixer, Attention):
            yield from _attention(run, mixer, batch)
        elif isinstance(mixer, FeedForward):
            yield Point("swiglu", {"rows": rows, "width": mixer.intermediate_size})
        elif isinstance(mixer, MixtureOfExperts):
            yield from _experts(run, mixer, rows)
        elif isinstance(mixer, Mamba1):
            yield from _mamba(mixer, batch)
        yield from _projections(run, getattr(mixer, "projections", ()), rows)
    yield from _updates(run, graph)


def _norms(model: Architecture) -> Iterator[Norm]:
    """Yield the norms over the residual stream."""
    for layer, _ in model.layers:
        for branch in layer.branches:
            yield from (norm for norm in (branch.norm_before, branch.norm_after) if norm is not None)
    if model.final_norm is not None:
        yield model.final_norm


def _linear(projection: Linear, rows: int) -> Point:
    """Return a projection of all rows."""
    return Point("linear", {"rows": rows, "n": projection.out_features, "k": projection.in_features})


def _projections(run: Run, projections: Sequence[Linear], rows: int) -> Iterator[Point]:
    """Yield the projections of a block, adapted and quantised where the run does so."""
    for projection in projections:
        plain = _linear(projection, rows)
        yield plain
        if run.trains_adapters:
            yield Point("lora_linear", {**plain.sizes, "rank": run.lora_rank})
        if run.weights_dtype.startswith("nf4"):
            yield Point("nf4_linear", plain.sizes)


def _attention(run: Run, block: Attention, batch: Batch) -> Iterator[Point]:
    """Yield the attention itself and the rotation before it."""
    sizes = {"sequences": batch.sequences, "seq_len": batch.seq_len, "heads": block.num_heads}
    sizes |= {"kv_heads": block.num_key_value_heads, "head_dim": block.head_dim}
    yield Point("attention_eager" if run.attention == "eager" else "attention_sdpa", sizes)
    if block.rotary:
        yield Point("rotary", sizes)


def _tokens(run: Run, graph: Graph, batch: Batch) -> Iterator[Point]:
    """Yield what a phase that writes asks for at every token: products of a row per sequence, the cache."""
    if run.phase not in WRITING:
        return
    rows, context = batch.sequences, max(1, batch.seq_len - answer_tokens(run) // 2)
    model = graph.model
    for width in {norm.size for norm in _norms(model)}:
        yield Point("rms_norm", {"rows": rows, "width": width})
    yield Point("add", {"rows": rows, "width": model.hidden_size})
    yield _linear(model.head or Linear("lm_head", model.hidden_size, model.vocab_size), rows)
    for mixer in {branch.mixer for layer, _ in model.layers for branch in layer.branches}:
        if isinstance(mixer, FeedForward):
            yield Point("swiglu", {"rows": rows, "width": mixer.intermediate_size})
        if isinstance(mixer, Attention):
            heads = {"heads": mixer.num_heads, "kv_heads": mixer.num_key_value_heads}
            sizes = {"sequences": rows, "context": context, **heads, "head_dim": mixer.head_dim}
            yield Point("attention_cached", sizes)
        yield from _projections(run, getattr(mixer, "projections", ()), rows)


def _experts(run: Run, block: MixtureOfExperts, rows: int) -> Iterator[Point]:
    """Yield the router, the way to the experts and back, and their products."""
    hidden, inner, experts = block.hidden_size, block.intermediate_size, block.num_experts
    top_k = min(block.top_k, experts)
    yield _linear(block.router, rows)
    yield Point("router", {"rows": rows, "experts": experts, "top_k": top_k})
    yield Point("gather", {"rows": rows, "width": hidden, "experts": experts, "top_k": top_k})
    yield Point("weighted_sum", {"rows": rows, "width": hidden, "top_k": top_k})
    yield Point("swiglu_fused", {"rows": rows * top_k, "width": inner})
    for n, k in ((2 * inner if block.gated else inner, hidden), (hidden, inner)):
        if run.experts_implementation == "eager":
            yield Point("linear", {"rows": max(1, rows * top_k // experts), "n": n, "k": k})
        else:
            yield Point("grouped_linear", {"rows": rows * top_k, "n": n, "k": k, "groups": experts})


def _mamba(block: Mamba1, batch: Batch) -> Iterator[Point]:
    """Yield the convolution and the scan of a Mamba-1 block."""
    sizes = {"sequences": batch.sequences, "seq_len": batch.seq_len, "channels": block.inner_size}
    yield Point("convolution", {**sizes, "kernel": block.conv_kernel})
    yield Point("scan", {**sizes, "state": block.state_size})


def _updates(run: Run, graph: Graph) -> Iterator[Point]:
    """Yield the update of all trained parameters, and their clipping."""
    weights = graph.weights
    params = int(weights.trained_params + weights.adapter_params)
    sizes = {"params": params, "tensors": max(1, int(weights.num_trained_tensors))}
    name = f"{run.optimizer}_{run.optimizer_implementation}"
    if name in ("adamw_fused", "adamw_foreach", "adamw_loop"):
        yield Point(name, sizes)
    yield Point("clip", sizes)
