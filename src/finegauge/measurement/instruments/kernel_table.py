"""Which kernels a step spends its time in, by stage, role in the model and kind of work.

torch.profiler watches whole steps. On a GPU the time is that of kernels on the device, on a CPU the time
that an operator spends in itself; the rest of the step is the host's, `host_bound_fraction`. The profiler
takes time on the host itself, so the share is also given against a step that nothing watched, where one is
known.

FLOPs follow from the shapes of the inputs (products, attention, convolution; a multiply-add is 2), bytes
are the least that an operator can move. Achieved over peak, weighted by time, is the utilisation of a step:

    u = sum(t_i u_i) / sum(t_i)

Neglects: elementwise arithmetic, what caches save, what a kernel reads twice.
"""

import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from finegauge.measurement.instruments.kernel_trace import (
    GENERAL,
    HOST,
    OTHER,
    STEP,
    Operator,
    RangeClock,
    Role,
    Trace,
    finer_role,
    kind_in_context,
    kind_of_kernel,
    module_ranges,
    place,
    read_trace,
)
from finegauge.measurement.subject import Phase

DTYPES = {
    "float": "fp32",
    "double": "fp64",
    "c10::BFloat16": "bf16",
    "c10::Half": "fp16",
    "c10::Float8_e4m3fn": "fp8",
    "c10::Float8_e5m2": "fp8",
    "signed char": "int8",
}
_BYTES = {
    **{"double": 8, "long int": 8, "long": 8, "float": 4, "int": 4, "TensorList": 4, "GenericList": 4},
    **{"c10::BFloat16": 2, "c10::Half": 2, "short": 2, "unsigned char": 1, "signed char": 1, "bool": 1},
    **{"c10::Float8_e4m3fn": 1, "c10::Float8_e5m2": 1},
}
_ATTENTION_BACKWARD_RATIO = 2.5  # five products instead of two
_ATTENTION = re.compile(r"_(?:scaled_dot_product_)?(?:flash|efficient|cudnn|fused)\w*attention\w*\Z")
_LOOKS_UP = re.compile(
    r"(?:embedding|index_select|index|gather)\Z"
)  # reads the rows asked for, not the table

Shape = tuple[int, ...]


class Peaks(NamedTuple):
    """What the device can do at most."""

    flops_per_s: Mapping[str, float]  # by dtype: bf16, fp32, ...
    memory_bytes_per_s: float


class Work(NamedTuple):
    """What an operator computes and moves."""

    flops: float
    num_bytes: float
    dtype: str  # in which it multiplies; "" where it does not


def work_of(operator: Operator) -> Work:
    """Return the FLOPs and bytes of one call, from the shapes that the profiler noted."""
    name = operator.name.rpartition("::")[2]
    flops, output = _product(name, operator)
    inputs = [
        prod(shape) * _BYTES.get(kind, 0)
        for shape, kind in zip(operator.shapes, operator.types, strict=False)
        if shape and kind in _BYTES
    ]
    kind = next((k for k in operator.types if k in DTYPES), "")
    if _LOOKS_UP.match(name):
        moved = 2.0 * _looked_up(operator) * _BYTES.get(kind, 4)
    elif flops:
        moved = sum(inputs) + output * _BYTES.get(kind, 4)
    else:
        moved = sum(inputs) + max(inputs, default=0) * _growth(operator)
    return Work(flops, float(moved), DTYPES.get(kind, "") if flops else "")


def weighted(items: Iterable[tuple[float, float]]) -> float:
    """Return the mean of `items`, pairs of (seconds, value), weighted by the seconds; 0 without any."""
    pairs = list(items)
    total = sum(seconds for seconds, _ in pairs)
    return sum(seconds * value for seconds, value in pairs) / total if total > 0 else 0.0


def _product(name: str, operator: Operator) -> tuple[float, float]:
    """Return the FLOPs of an operator that multiplies, and the elements of its output; else zeros."""
    shapes = [shape for shape in operator.shapes if shape]
    if _ATTENTION.match(name):
        return _attention(operator, backward="backward" in name)
    if name in ("convolution", "convolution_backward", "mkldnn_convolution"):
        return _convolution(operator, backward="backward" in name)
    if name in ("gemm_4bit", "gemv_4bit"):
        number = re.search(r"-?\d+", operator.values[2]) if len(operator.values) > 2 else None
        n = int(number[0]) if number else 0
        return 2.0 * prod(shapes[0]) * n, prod(shapes[0][:-1]) * n
    factors = _FACTORS.get(name)
    if factors is None:
        return 0.0, 0.0
    first = factors[0]
    return factors[1](*shapes[first : first + 2]) if len(shapes) >= first + 2 else (0.0, 0.0)


def _matrices(a: Shape, b: Shape) -> tuple[float, float]:
    """Return the FLOPs and output elements of [m, k] x [k, n], batches in front."""
    output = prod(a[:-1]) * b[-1]
    return 2.0 * output * a[-1], output


def _grouped(a: Shape, b: Shape) -> tuple[float, float]:
    """Return those of a product per group: rows x stack, or stack from two sets of rows.

    [T, k] x [E, k, n]: each row meets one of the stack. [m, T] x [T, n]: each of the T meets
    its group's sum; how many groups there are, hence how much is written, the shapes do not say.
    """
    if len(a) == len(b) == 3:
        return _matrices(a, b)
    if len(a) == 3:  # [E, m, k] x [k, T]
        return 2.0 * a[1] * a[2] * b[1], a[1] * b[1]
    output = a[0] * b[-1]
    return 2.0 * output * a[1], output


def _linear(a: Shape, b: Shape) -> tuple[float, float]:
    """Return those of [.., k] x [n, k] transposed."""
    return 2.0 * prod(a) * b[0], prod(a[:-1]) * b[0]


def _vector(a: Shape, b: Shape) -> tuple[float, float]:
    """Return those of [m, k] x [k]."""
    return 2.0 * prod(a), prod(a) / b[-1]


_FACTORS: Mapping[str, tuple[int, Callable[[Shape, Shape], tuple[float, float]]]] = {
    **dict.fromkeys(("mm", "bmm", "_scaled_mm", "_int_mm"), (0, _matrices)),
    **dict.fromkeys(("addmm", "baddbmm", "_addmm_activation"), (1, _matrices)),
    **dict.fromkeys(("_grouped_mm", "_scaled_grouped_mm"), (0, _grouped)),
    **dict.fromkeys(("mkldnn_linear", "_linear_pointwise", "_mkl_linear"), (0, _linear)),
    "mv": (0, _vector),
    "addmv": (1, _vector),
}


def _attention(operator: Operator, *, backward: bool) -> tuple[float, float]:
    """Return the FLOPs of fused attention over q, k, v of [batch, heads, length, width]."""
    shapes = operator.shapes[1:4] if backward else operator.shapes[:3]
    if len(shapes) < 3 or any(len(shape) != 4 for shape in shapes):
        return 0.0, 0.0
    query, key, value = shapes
    pairs = float(query[2] * key[2])
    if "True" in operator.values and query[2] == key[2]:
        pairs /= 2
    flops = 2.0 * prod(query[:2]) * pairs * (query[3] + value[3])
    if backward:
        return _ATTENTION_BACKWARD_RATIO * flops, prod(query) + prod(key) + prod(value)
    return flops, prod(query[:3]) * value[3]


def _convolution(operator: Operator, *, backward: bool) -> tuple[float, float]:
    """Return the FLOPs of a convolution that keeps the length: [batch, in, ..], [out, in / groups, ..]."""
    shapes = operator.shapes[1:3] if backward else operator.shapes[:2]
    if len(shapes) < 2 or len(shapes[0]) < 3:
        return 0.0, 0.0
    inputs, weight = shapes
    output = inputs[0] * weight[0] * prod(inputs[2:])
    return 2.0 * output * prod(weight[1:]) * (2 if backward else 1), output


def _looked_up(operator: Operator) -> float:
    """Return the elements that a look-up copies: the rows asked for, each of the table's width."""
    shapes = [shape for shape in operator.shapes if shape]
    return 0.0 if len(shapes) < 2 else float(prod(shapes[-1]) * prod(shapes[0][1:]))


def _growth(operator: Operator) -> float:
    name = operator.name.rpartition("::")[2]
    if name == "dequantize_4bit" and len(operator.values) > 4:
        return 2.0 * _BYTES.get(operator.types[1], 4)  # two values in a byte
    return 0.0 if name in ("sum", "mean", "copy_", "max", "min", "amax") else 1.0


_NONE = Work(0.0, 0.0, "")


class Row(NamedTuple):
    """What all calls of one operator in one place of the step did, per step."""

    stage: str
    role: Role
    kind: str
    operator: str
    calls_per_step: float
    time_s: float
    flops: float
    num_bytes: float
    dtype: str


def watch_kernels(
    phase: Phase,
    *,
    role_of: Callable[[str], Role],
    device: torch.device,
    steps: int,
    trace_path: str = "",
    peaks: Peaks | None = None,
    unwatched_step_s: float = 0.0,
) -> dict[str, Any]:
    """Return the kernel table of `steps` steps as a JSON document, every figure per step; warm up before.

    `role_of` gives the (part, operator) of a module by its path. Rates are also given as fractions of `peaks`
    where these are known, and the host's share against `unwatched_step_s`, the seconds of a step that no
    instrument disturbs (0: not known). The Chrome trace goes to `trace_path`, if that is not "".
    """
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device.type == "cuda" else [])
    with tempfile.TemporaryDirectory(prefix="finegauge-") as folder:
        path = Path(trace_path or f"{folder}/trace.json")
        with module_ranges(phase.models), profile(activities=activities, record_shapes=True) as profiler:
            for _ in range(steps):
                with record_function(STEP):
                    phase.step(RangeClock())
                    if device.type == "cuda":
                        torch.cuda.synchronize(device)
        profiler.export_chrome_trace(str(path))
        trace = read_trace(path)
    return document(trace, role_of, steps=steps, peaks=peaks, unwatched_step_s=unwatched_step_s)


def document(
    trace: Trace,
    role_of: Callable[[str], Role],
    *,
    steps: int,
    peaks: Peaks | None = None,
    unwatched_step_s: float = 0.0,
) -> dict[str, Any]:
    """Return what a trace of `steps` steps shows, as a JSON document."""
    table = rows(trace, role_of, steps=steps)
    watched = [op.end_s - op.start_s for op in trace.operators if op.is_range and op.name == STEP]
    step_s = sum(watched) / max(1, len(watched))
    busy_s = trace.busy_s / steps if trace.kernels else sum(r.time_s for r in table if r.kind != HOST)
    by_kind: dict[str, float] = {}
    for row in table:
        by_kind[row.kind] = by_kind.get(row.kind, 0.0) + row.time_s
    found = {
        "timed_on": "device" if trace.kernels else "cpu",
        "steps": steps,
        "step_time_s": step_s,
        "busy_s": busy_s,
        "host_bound_fraction": max(0.0, 1 - busy_s / step_s) if step_s else 0.0,
        "by_kind_s": dict(sorted(by_kind.items(), key=lambda item: -item[1])),
        "rows": [{**row._asdict(), "role": list(row.role)} for row in table],
        "utilisation": _utilisation(table, peaks),
    }
    if unwatched_step_s and trace.kernels:
        found["host_bound_fraction"] = max(0.0, 1 - busy_s / unwatched_step_s)
    return found


def rows(trace: Trace, role_of: Callable[[str], Role], *, steps: int) -> list[Row]:
    """Return the table of a trace, the most seconds first."""
    work = _works(trace)
    sums: dict[tuple[str, Role, str, str], list[float]] = {}
    dtypes: dict[tuple[str, Role, str, str], str] = {}
    products: dict[tuple[int, ...], str] = {}
    for seconds, kind, name, operator, done in _timed(trace, work):
        stage, role, forward = place(operator, role_of)
        role = finer_role(role, kind, forward, products)
        made_of_them = role and role[-1] in ("norm", "scan") and kind in GENERAL
        key = (stage, role, role[-1] if made_of_them else kind, name)
        entry = sums.setdefault(key, [0.0] * 4)
        for index, amount in enumerate((1.0, seconds, done.flops, done.num_bytes)):
            entry[index] += amount
        dtypes[key] = dtypes.get(key) or done.dtype
    table = []
    for key, entry in sums.items():
        calls, seconds, flops, moved = (amount / steps for amount in entry)
        table.append(Row(*key, calls, seconds, flops, moved, dtypes[key]))
    return sorted(table, key=lambda row: -row.time_s)


def _works(trace: Trace) -> dict[Operator, Work]:
    """Return the work of every operator; where one calls another that multiplies, the inner one counts."""
    found: dict[Operator, Work] = {}
    for operator in trace.operators:
        if operator.is_range or not operator.shapes:
            continue
        work = work_of(operator)
        if work.flops:
            for outer in operator.enclosing():
                if outer is not operator and outer in found and found[outer].flops:
                    found[outer] = _NONE
        found[operator] = work
    return found


def _timed(
    trace: Trace, work: Mapping[Operator, Work]
) -> Iterator[tuple[float, str, str, Operator | None, Work]]:
    """Yield (seconds, kind, name, operator, work) of what took time: kernels, else operators themselves."""
    if not trace.kernels:
        for called in trace.operators:
            if not called.is_range:
                kind = kind_in_context(called)
                done = _NONE if kind == HOST else work.get(called, _NONE)
                yield called.own_s, kind, called.name, called, done
        return
    counted: set[Operator] = set()
    for kernel in trace.kernels:
        operator, done = kernel.operator, _NONE  # the work of a call counts with its first kernel
        kind = kind_in_context(operator) if operator is not None and not operator.is_range else OTHER
        if kind in (OTHER, HOST):
            kind = kind_of_kernel(kernel.name)
        if operator is not None and operator not in counted:
            counted.add(operator)
            done = _up(operator, work, counted)
        if kernel.moved_bytes:  # a copy within the device reads and writes
            done = done._replace(num_bytes=kernel.moved_bytes * (2 if "DtoD" in kernel.name else 1))
        name = operator.name if operator is not None and not operator.is_range else kernel.name
        yield kernel.end_s - kernel.start_s, kind, name, operator, done


def _up(operator: Operator, work: Mapping[Operator, Work], counted: set[Operator]) -> Work:
    """Return the work that an operator's kernels do: its own, or its caller's where that one multiplies."""
    own = work.get(operator, _NONE)
    if own.flops:
        return own
    for outer in operator.enclosing():
        if outer not in counted and (done := work.get(outer, _NONE)).flops:
            counted.add(outer)
            return done
    return own


def _utilisation(table: list[Row], peaks: Peaks | None) -> dict[str, Any]:
    """Return achieved rates by kind and over all, and their fractions of the peaks."""
    found: dict[str, Any] = {}
    for kind in ("all", *dict.fromkeys(row.kind for row in table)):
        chosen = [row for row in table if row.kind == kind or (kind == "all" and row.kind != HOST)]
        seconds = sum(row.time_s for row in chosen)
        if not seconds or kind == HOST:
            continue
        entry: dict[str, float] = {
            "time_s": seconds,
            "flops_per_s": sum(row.flops for row in chosen) / seconds,
            "memory_bytes_per_s": sum(row.num_bytes for row in chosen) / seconds,
        }
        if peaks is not None:
            known = all(peaks.flops_per_s.get(row.dtype) for row in chosen if row.flops)
            if known and any(row.flops for row in chosen):
                entry["compute_fraction"] = weighted((r.time_s, _compute_fraction(r, peaks)) for r in chosen)
            if peaks.memory_bytes_per_s:
                entry["memory_fraction"] = entry["memory_bytes_per_s"] / peaks.memory_bytes_per_s
        found[kind] = entry
    return found


def _compute_fraction(row: Row, peaks: Peaks) -> float:
    peak = peaks.flops_per_s.get(row.dtype, 0.0)
    return row.flops / row.time_s / peak if peak and row.time_s else 0.0
