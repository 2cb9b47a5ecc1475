"""Which sizes are timed: a grid over what small and middling models ask for, and what given runs ask for.

Readings in between are interpolated by who uses the profile, so the grid's steps are factors of 2 to 8;
products above `MAX_FLOPS` and tensors above `MAX_VALUES` are left out, since rates no longer change there.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import ceil
from typing import Any, NamedTuple

from finegauge.catalogue.device_profile import NF4_INFERENCE
from finegauge.data.batch_shape import shape
from finegauge.measurement.weights import repackable
from finegauge.model.blocks import Architecture, Attention, FeedForward, Linear, MixtureOfExperts, Norm
from finegauge.model.graph import Graph, build
from finegauge.model.ssm import Mamba1
from finegauge.run.phases import answer_tokens
from finegauge.run.rules import GENERATING, INFERENCE
from finegauge.run.run import Run

GOLDEN_RATIO = 0.618034
MAX_FLOPS = {"cpu": 6e8, "cuda": 4e12}  # of one forward
MAX_VALUES = {"cpu": 2**23, "cuda": 2**28}  # of one tensor
BYTES_SIZES = (2**16, 2**20, 2**24, 2**27)


class Point(NamedTuple):
    """One operator at one size."""

    operator: str
    sizes: Mapping[str, int]


def in_turns(points: Sequence[tuple[str, Point]]) -> list[tuple[str, Point]]:
    """Return `points` (dtype, point) in an order of which any beginning covers all operators, each widely.

    The operators take turns; the sizes of one come in steps of the golden ratio through its list. The
    largest copy comes first of all: every operator's least time rests on its rate.
    """
    listed: dict[tuple[str, str], list[tuple[str, Point]]] = {}
    for dtype, point in points:
        listed.setdefault((dtype, point.operator), []).append((dtype, point))
    turns: list[tuple[int, tuple[str, Point]]] = []
    for members in listed.values():
        order = sorted(range(len(members)), key=lambda number: number * GOLDEN_RATIO % 1)
        turns += [(turn, members[number]) for turn, number in enumerate(order)]
    entries = [entry for _, entry in sorted(turns, key=lambda turned: turned[0])]
    copies = [entry for entry in entries if entry[1].operator == "copy"]
    largest = sorted(copies, key=lambda entry: entry[1].sizes["bytes"])[-1:]
    return [*largest, *(entry for entry in entries if entry not in largest)]


def default_points(device: str) -> Iterator[Point]:
    """Yield the grid of a device, the operators in the order in which they matter."""
    scale = 1 if device == "cpu" else 8
    yield from _products(scale, device)
    yield from _attention(scale)
    if device == "cpu":  # its kernel takes other blocks from 768 queries on, a quarter faster a pair
        for head_dim in (16, 64):
            sizes = {"sequences": 1, "seq_len": 1024, "heads": 4, "kv_heads": 4, "head_dim": head_dim}
            yield Point("attention_sdpa", sizes)
    yield from _rowwise(scale, device)
    yield from _experts(scale)
    for rows, channels in ((64, 128), (256, 128), (64, 512)):
        sizes = {"sequences": 1, "seq_len": rows, "channels": channels}
        yield Point("scan", {**sizes, "state": 16})
        yield Point("convolution", {**sizes, "kernel": 4})
    yield from _updates(device)


def _products(scale: int, device: str) -> Iterator[Point]:
    for rows, n, k in product((1, 8, 32, 128, 512, 2048), (64, 256, 1024, 4096), (64, 256, 1024)):
        if 2.0 * rows * n * k * scale**3 <= MAX_FLOPS[device]:
            yield _product("linear", scale, rows, n, k)
    shapes = ((128, 64), (512, 128), (128, 256), (512, 512))
    for groups, rows, (n, k) in product((4, 8), (64, 512, 2048), shapes):
        yield _product("grouped_linear", scale, rows, n, k, groups=groups)
    shapes = ((64, 64), (256, 256), (1024, 256), (256, 1024))
    for rank, rows, (n, k) in product((4, 16), (32, 256, 1024), shapes):
        yield _product("lora_linear", scale, rows, n, k, rank=rank)
    for rows, width in product((32, 512), (64, 256, 1024)):
        yield _product("nf4_linear", scale, rows, width, width)
        yield _product(NF4_INFERENCE, scale, rows, width, width)
    for width in (64, 256, 1024):
        yield Point("nf4_dequantise", {"n": width * scale, "k": width * scale})


def _product(operator: str, scale: int, rows: int, n: int, k: int, **others: int) -> Point:
    return Point(operator, {"rows": rows * scale, "n": n * scale, "k": k * scale, **others})


def _attention(scale: int) -> Iterator[Point]:
    for seq_len, sequences, head_dim, kv_heads in product((32, 128, 512), (1, 8), (16, 64), (2, 4)):
        if seq_len * sequences * scale > 2048 * scale**2:
            continue
        sizes = {"sequences": sequences, "seq_len": seq_len * scale, "heads": 4 * scale}
        sizes |= {"kv_heads": kv_heads * scale, "head_dim": head_dim * min(scale, 2)}
        yield Point("attention_sdpa", sizes)
        yield Point("attention_eager", sizes)
        yield Point("rotary", sizes)
    for context, sequences, head_dim, kv_heads in product((32, 256, 1024), (1, 8), (16, 64), (2, 4)):
        sizes = {"sequences": sequences, "context": context * scale, "heads": 4 * scale}
        sizes |= {"kv_heads": kv_heads * scale, "head_dim": head_dim * min(scale, 2)}
        if sequences * context <= 1024:
            yield Point("attention_cached", sizes)


def _rowwise(scale: int, device: str) -> Iterator[Point]:
    for rows, width in product((32, 256, 2048), (64, 256, 1024)):
        sizes = {"rows": rows * scale, "width": width * scale}
        if sizes["rows"] * sizes["width"] <= MAX_VALUES[device]:
            for operator in (
                "rms_norm",
                "layer_norm",
                "add",
                "swiglu",
                "swiglu_fused",
                "gelu",
                "cast",
                "dropout",
            ):
                yield Point(operator, sizes)
    for rows, vocab, width in product((32, 512, 2048), (256, 2048, 16384), (64, 256)):
        yield Point("embedding", {"rows": rows * scale, "vocab": vocab, "width": width * scale})
    for rows, vocab in product((32, 256, 2048), (256, 2048, 16384)):
        if rows * vocab * scale <= MAX_VALUES[device]:
            yield Point("cross_entropy", {"rows": rows * scale, "vocab": vocab})


def _experts(scale: int) -> Iterator[Point]:
    for rows, experts, top_k in product((32, 256, 2048), (4, 8), (1, 2, 8)):
        if top_k <= experts:
            yield Point("router", {"rows": rows * scale, "experts": experts, "top_k": top_k})
    for rows, width, top_k in product((32, 256, 2048), (64, 256), (1, 2, 8)):
        sizes = {"rows": rows * scale, "width": width * scale, "top_k": top_k}
        yield Point("gather", {**sizes, "experts": 8})
        yield Point("weighted_sum", sizes)
    for rows, (experts, top_k) in product((32, 512), ((4, 2), (8, 2), (8, 8))):
        sizes = {"rows": rows * scale, "width": 64 * scale, "intermediate": 128 * scale}
        for implementation in ("experts_grouped", "experts_eager"):
            yield Point(implementation, {**sizes, "experts": experts, "top_k": top_k})


def _updates(device: str) -> Iterator[Point]:
    most = MAX_VALUES[device]
    for params, tensors in product((2**14, 2**18, most // 2), (10, 60)):
        for operator in ("adamw_fused", "adamw_foreach", "adamw_loop", "clip"):
            yield Point(operator, {"params": params, "tensors": tensors})
    operators = ("copy",) if device == "cpu" else ("copy", "to_device", "to_host")
    for operator, num_bytes in product(operators, BYTES_SIZES):
        yield Point(operator, {"bytes": num_bytes})


BATCHES = (0.5, 1.0, 2.0)


class Batch:
    """The rows of one micro-batch."""

    def __init__(self, sequences: int, seq_len: int) -> None:
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
    found = shape(run)
    for factor in BATCHES:
        sequences = max(1, ceil(found.sequences * factor))
        yield Batch(sequences, max(1, round(found.padded_len * found.sequences * factor / sequences)))


def _points(run: Run, graph: Graph, batch: Batch) -> Iterator[Point]:
    model, rows = graph.model, batch.rows
    yield Point("embedding", {"rows": rows, "vocab": model.vocab_size, "width": model.hidden_size})
    yield Point("cross_entropy", {"rows": rows, "vocab": model.vocab_size})
    yield from _shared_points(run, model, rows)
    for mixer in _mixers(model):
        if isinstance(mixer, Attention):
            yield from _attention_points(run, mixer, batch)
        elif isinstance(mixer, MixtureOfExperts):
            yield from _expert_points(run, mixer, rows)
        elif isinstance(mixer, Mamba1):
            yield from _mamba(mixer, batch)
    yield from _update_points(run, graph)


def _shared_points(run: Run, model: Architecture, rows: int) -> Iterator[Point]:
    """Yield what training and writing a token both ask for: norms, residuals, head, linears of blocks."""
    for width in {norm.size for norm in _norms(model)}:
        yield Point("rms_norm", {"rows": rows, "width": width})
    yield Point("add", {"rows": rows, "width": model.hidden_size})
    yield _linear(model.head or Linear("lm_head", model.hidden_size, model.vocab_size), rows)
    for mixer in _mixers(model):
        if isinstance(mixer, FeedForward):
            yield Point("swiglu", {"rows": rows, "width": mixer.intermediate_size})
        yield from _projections(run, getattr(mixer, "projections", ()), rows)


def _mixers(model: Architecture) -> set[Any]:
    return {branch.mixer for layer, _ in model.layers for branch in layer.branches}


def _norms(model: Architecture) -> Iterator[Norm]:
    for layer, _ in model.layers:
        for branch in layer.branches:
            yield from (norm for norm in (branch.norm_before, branch.norm_after) if norm is not None)
    if model.final_norm is not None:
        yield model.final_norm


def _linear(projection: Linear, rows: int) -> Point:
    return Point("linear", {"rows": rows, "n": projection.out_features, "k": projection.in_features})


def _projections(run: Run, projections: Sequence[Linear], rows: int) -> Iterator[Point]:
    for projection in projections:
        plain = _linear(projection, rows)
        yield plain
        if run.trains_adapters:
            yield Point("lora_linear", {**plain.sizes, "rank": run.lora_rank})
        if run.weights_dtype.startswith("nf4"):
            yield Point("nf4_linear", plain.sizes)
            if run.phase in INFERENCE and repackable(projection.out_features, projection.in_features):
                yield Point(NF4_INFERENCE, plain.sizes)


def _attention_points(run: Run, block: Attention, batch: Batch) -> Iterator[Point]:
    sizes = {"sequences": batch.sequences, "seq_len": batch.seq_len, "heads": block.num_heads}
    sizes |= {"kv_heads": block.num_key_value_heads, "head_dim": block.head_dim}
    yield Point("attention_eager" if run.attention == "eager" else "attention_sdpa", sizes)
    if block.rotary:
        yield Point("rotary", sizes)


def _tokens(run: Run, graph: Graph, batch: Batch) -> Iterator[Point]:
    """Yield what a phase that writes asks for at every token: products of a row per sequence, the cache."""
    if run.phase not in GENERATING:
        return
    rows, context = batch.sequences, max(1, batch.seq_len - answer_tokens(run) // 2)
    yield from _shared_points(run, graph.model, rows)
    for mixer in _mixers(graph.model):
        if isinstance(mixer, Attention):
            heads = {"heads": mixer.num_heads, "kv_heads": mixer.num_key_value_heads}
            sizes = {"sequences": rows, "context": context, **heads, "head_dim": mixer.head_dim}
            yield Point("attention_cached", sizes)


def _expert_points(run: Run, block: MixtureOfExperts, rows: int) -> Iterator[Point]:
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
    sizes = {"sequences": batch.sequences, "seq_len": batch.seq_len, "channels": block.inner_size}
    yield Point("convolution", {**sizes, "kernel": block.conv_kernel})
    yield Point("scan", {**sizes, "state": block.state_size})


def _update_points(run: Run, graph: Graph) -> Iterator[Point]:
    weights = graph.weights
    params = int(weights.trained_params + weights.adapter_params)
    sizes = {"params": params, "tensors": max(1, int(weights.num_trained_tensors))}
    name = f"{run.optimizer}_{run.optimizer_implementation}"
    if name in ("adamw_fused", "adamw_foreach", "adamw_loop"):
        yield Point(name, sizes)
    yield Point("clip", sizes)
