"""A device profile, as `finegauge micro` writes it, predicted for a GPU that is not in this machine.

Products, attention, experts and collectives come from `timed_operators`; norms, additions and copies from
the bandwidth; the backward pass of a product is its two products, that of attention the work of its five
at the share of the forward's rate that the calibration holds. Host costs are not predicted: the
calibration's stand for them.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from finegauge.catalogue.device_profile import DeviceProfile, Reading
from finegauge.catalogue.gpus import GpuSpec
from finegauge.data.batch_shape import shape
from finegauge.errors import UnsupportedError
from finegauge.model.blocks import Attention, Linear, MixtureOfExperts
from finegauge.model.graph import build
from finegauge.prediction.calibration import Calibration, current
from finegauge.prediction.timed_operators import PEAKS, Source, seconds_of, source_for
from finegauge.run.run import Run

ROWS = (256, 1024, 4096, 16384)
PRODUCTS = (  # n, k
    (1024, 1024), (4096, 4096), (14336, 4096), (4096, 14336), (8192, 8192), (28672, 8192), (8192, 28672),
    (128256, 4096),
)  # fmt: skip
SEQUENCES, LENGTHS = (1, 8), (512, 2048, 8192, 32768)
HEADS = {"num_heads": 32, "num_kv_heads": 8, "head_dim": 128}
EXPERTS = ((4096, 14336, 2, 8), (2048, 768, 8, 128), (7168, 2048, 8, 256))  # width, inner, top k, experts
WIDTHS = (1024, 4096, 8192)
RANKS = (2, 4, 8)
PAYLOADS = tuple(2**power for power in range(12, 31, 3))
COPIES = (2**20, 2**24, 2**28, 2**30)
COLLECTIVES = {
    "all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter",
    "all_to_all": "alltoall",
}  # fmt: skip
BACKWARD_PRODUCTS = 2.5  # of attention: five products in place of two
# read or written per value, as transformers' code does
NORM_VALUES, ADDED_VALUES, GATED_VALUES = 6.0, 3.0, 5.0
NORM_LAUNCHES = 6.0
KERNEL_S = 3e-6  # of a kernel with little to do, on the device

Sizes = Mapping[str, float]


def predicted_profile(spec: GpuSpec, runs: Sequence[Run] = ()) -> DeviceProfile:
    """Return the device profile that `finegauge micro` may be expected to measure on `spec`.

    Raises: UnsupportedError if nothing that was timed may speak for the GPU.
    """
    calibration = current()
    rate = spec.memory_bytes_per_s * calibration.bandwidth_fraction
    formats = [dtype for dtype in ("bf16", "fp8", "fp8_block", "nvfp4") if PEAKS[dtype] in spec.flops_per_s]
    if "bf16" not in formats:
        formats.insert(0, "fp16")
    readings: list[Reading] = []
    notes = ["Nothing here was measured on this machine: predicted, by 'finegauge micro --predict'."]
    for dtype in formats:
        found = list(_computed(spec, dtype, runs, calibration))
        readings += [reading for reading, _ in found]
        notes += dict.fromkeys(f"{reading.operator} in {dtype}: {source.note}" for reading, source in found)
    readings += [*_moved(formats[0], rate, runs), *_sent(spec, notes)]
    best = {
        dtype: max(
            one.flops / one.seconds for one in readings if one.operator == "linear" and one.dtype == dtype
        )
        for dtype in formats
    }
    return DeviceProfile(
        name=spec.name, device="cuda", memory_bytes=spec.memory_bytes, usable_bytes=spec.usable_bytes,
        memory_bytes_per_s=rate, flops_per_s=best, threads=1, readings=tuple(readings), host={},
        fingerprint={"gpu": spec.name, "predicted": "from timed operators and the datasheet"},
        notes=tuple(dict.fromkeys(notes)),
    )  # fmt: skip


def _computed(
    spec: GpuSpec, dtype: str, runs: Sequence[Run], calibration: Calibration
) -> Iterator[tuple[Reading, Source]]:
    source = source_for(spec, "gemm", dtype)
    shapes = [*product(ROWS, PRODUCTS), *_asked_products(runs)]
    for rows, (n, k) in dict.fromkeys(shapes):
        yield from ((one, source) for one in _linear(source, dtype, rows, n, k))
    for kind, shaped in (("attention", _attention), ("experts", _experts)):
        try:
            source = source_for(spec, kind, dtype)
        except UnsupportedError:
            continue
        yield from ((one, source) for one in shaped(source, dtype, runs, calibration))


def _linear(source: Source, dtype: str, rows: float, n: float, k: float) -> Iterator[Reading]:
    sizes = {"rows": float(rows), "n": float(n), "k": float(k)}
    width = source.parts[0][1].value_bytes
    flops, moved = 2.0 * rows * n * k, width * (rows * k + n * k) + 2.0 * rows * n
    forward = seconds_of(source, {"m": float(rows), "n": float(n), "k": float(k)})
    inputs = seconds_of(source, {"m": float(rows), "n": float(k), "k": float(n)})
    weights = seconds_of(source, {"m": float(n), "n": float(k), "k": float(rows)})
    times = {
        "forward": (forward, 1.0), "backward": (inputs + weights, 2.0), "backward_frozen": (inputs, 1.0),
        "backward_first": (weights, 1.0),
    }  # fmt: skip
    for direction, (seconds, passes) in times.items():
        yield Reading("linear", dtype, direction, sizes, seconds, 0.0, flops * passes, moved * passes, 1.0)


def _attention(
    source: Source, dtype: str, runs: Sequence[Run], calibration: Calibration
) -> Iterator[Reading]:
    shapes: list[dict[str, float]] = [
        {"batch_size": float(batch), "seq_len": float(length), **HEADS}
        for batch, length in product(SEQUENCES, LENGTHS)
    ]
    for s in [*shapes, *_asked_attention(runs)]:
        sizes = {
            "sequences": s["batch_size"], "seq_len": s["seq_len"], "heads": s["num_heads"],
            "kv_heads": s["num_kv_heads"], "head_dim": s["head_dim"],
        }  # fmt: skip
        flops = 2.0 * s["batch_size"] * s["num_heads"] * s["seq_len"] ** 2 * s["head_dim"]
        moved = 4.0 * s["batch_size"] * s["seq_len"] * (s["num_heads"] + s["num_kv_heads"]) * s["head_dim"]
        forward = seconds_of(source, {name: float(value) for name, value in s.items()})
        backward = forward * BACKWARD_PRODUCTS / calibration.flash_backward_fraction
        yield Reading("attention_sdpa", dtype, "forward", sizes, forward, 0.0, flops, moved, 1.0)
        more = flops * BACKWARD_PRODUCTS, moved * 2.0
        yield Reading("attention_sdpa", dtype, "backward", sizes, backward, 0.0, *more, 1.0)


def _experts(source: Source, dtype: str, runs: Sequence[Run], _: Calibration) -> Iterator[Reading]:
    shapes = [(rows, *block) for rows, block in product(ROWS, EXPERTS)]
    for rows, width, inner, top_k, experts in dict.fromkeys([*shapes, *_asked_experts(runs)]):
        sizes = {
            "rows": float(rows), "width": float(width), "intermediate": float(inner),
            "experts": float(experts), "top_k": float(top_k),
        }  # fmt: skip
        asked = {
            "num_tokens": float(rows), "hidden_size": float(width), "intermediate_size": float(inner),
            "num_experts_per_tok": float(top_k), "num_experts": float(experts), "expert_parallel": 1.0,
            "skew": 0.0,
        }  # fmt: skip
        flops = 6.0 * rows * top_k * width * inner
        moved = 3.0 * experts * width * inner * source.parts[0][1].value_bytes
        yield Reading(
            "experts_grouped", dtype, "forward", sizes, seconds_of(source, asked), 0.0, flops, moved, 2.0
        )


def _moved(dtype: str, bytes_per_s: float, runs: Sequence[Run]) -> Iterator[Reading]:
    """Yield norms, additions, gates and copies, which the bandwidth decides."""
    asked = [(_rows(run), build(run).model.hidden_size) for run in runs]
    kinds = (
        ("rms_norm", NORM_VALUES, NORM_LAUNCHES), ("layer_norm", 2.0, 1.0), ("add", ADDED_VALUES, 1.0),
        ("swiglu", GATED_VALUES, 2.0),
    )  # fmt: skip
    for (operator, values, launches), (rows, width) in product(kinds, [*product(ROWS, WIDTHS), *asked]):
        for direction, passes in (("forward", 1.0), ("backward", 2.0)):
            moved = values * rows * width * 2.0 * passes
            seconds = moved / bytes_per_s + KERNEL_S * launches
            sizes = {"rows": float(rows), "width": float(width)}
            yield Reading(operator, dtype, direction, sizes, seconds, 0.0, 0.0, moved, launches)
    for size in COPIES:
        moved = 2.0 * size
        seconds = moved / bytes_per_s + KERNEL_S
        yield Reading("copy", dtype, "transfer", {"bytes": float(size)}, seconds, bytes=moved)


def _sent(spec: GpuSpec, notes: list[str]) -> Iterator[Reading]:
    for name, timed_as in COLLECTIVES.items():
        source = source_for(spec, "collective", "half", timed_as)
        notes.append(f"{name}: {source.note}")
        for ranks, size in product(RANKS, PAYLOADS):
            seconds = seconds_of(source, {"num_gpus": float(ranks), "bytes": float(size)})
            sizes = {"bytes": float(size), "ranks": float(ranks)}
            yield Reading(name, "bf16", "transfer", sizes, seconds, bytes=float(size))


def _rows(run: Run) -> int:
    batch = shape(run)
    return max(1, round(batch.sequences * batch.padded_len))


def _mixers(run: Run) -> list[Any]:
    layers = build(run).model.layers
    return list(dict.fromkeys(branch.mixer for layer, _ in layers for branch in layer.branches))


def _asked_products(runs: Sequence[Run]) -> Iterator[tuple[int, tuple[int, int]]]:
    for run in runs:
        model, rows = build(run).model, _rows(run)
        head = model.head or Linear("lm_head", model.hidden_size, model.vocab_size)
        linears = [one for mixer in _mixers(run) for one in getattr(mixer, "projections", ())]
        for one in (head, *linears):
            yield rows, (one.out_features, one.in_features)


def _asked_attention(runs: Sequence[Run]) -> Iterator[dict[str, float]]:
    for run in runs:
        batch = shape(run)
        for mixer in _mixers(run):
            if isinstance(mixer, Attention):
                yield {
                    "batch_size": float(batch.sequences), "seq_len": float(round(batch.padded_len)),
                    "num_heads": mixer.num_heads, "num_kv_heads": mixer.num_key_value_heads,
                    "head_dim": mixer.head_dim,
                }  # fmt: skip


def _asked_experts(runs: Sequence[Run]) -> Iterator[tuple[int, int, int, int, int]]:
    for run in runs:
        for mixer in _mixers(run):
            if isinstance(mixer, MixtureOfExperts):
                top_k = min(mixer.top_k, mixer.num_experts)
                yield _rows(run), mixer.hidden_size, mixer.intermediate_size, top_k, mixer.num_experts
