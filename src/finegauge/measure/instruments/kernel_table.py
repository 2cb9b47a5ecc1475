"""Which kernels a step spends its time in, by stage, role in the model and kind of work.

torch.profiler watches whole steps. Ranges around the stages of the step and around every
module say where an operator belongs; an operator of the backward pass belongs where its
forward operator ran. On a GPU the time is that of kernels on the device, on a CPU the
time that an operator spends in itself. What is neither on the device, nor work on data on
the CPU, is the host's: its share of the step is `host_bound_fraction`.

The profiler itself takes time on the host; a GPU's kernels do not notice, so the share is
then also given against a step that nothing watched, where the caller knows one.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from finegauge.measure.instruments.chrome_trace import Operator, Trace, read_trace
from finegauge.measure.instruments.op_kinds import GENERAL, HOST, OTHER, kind_in_context, kind_of_kernel
from finegauge.measure.instruments.trace_places import (
    STEP,
    RangeClock,
    Role,
    finer_role,
    module_ranges,
    place,
)
from finegauge.measure.instruments.utilisation import Peaks, Work, weighted, work_of
from finegauge.measure.subject import Phase

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
    """Return the kernel table of `steps` steps as a JSON document; warm up before.

    Args:
        phase: What takes the steps.
        role_of: (part, operator) of a module by its path: `roles.roles_of(model)`.
        device: Where the model is.
        steps: How many steps to watch; every figure is per step.
        trace_path: Where the Chrome trace goes; "": nowhere.
        peaks: The device's peaks, for rates as fractions; None: rates alone.
        unwatched_step_s: Seconds of a step that no instrument disturbs; 0: not known.
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
        "rows": [_row_document(row) for row in table],
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
        key = (stage, role, _kind_in_role(kind, role), name)
        entry = sums.setdefault(key, [0.0] * 4)
        for index, amount in enumerate((1.0, seconds, done.flops, done.num_bytes)):
            entry[index] += amount
        dtypes[key] = dtypes.get(key) or done.dtype
    table = []
    for key, entry in sums.items():
        calls, seconds, flops, moved = (amount / steps for amount in entry)
        table.append(Row(*key, calls, seconds, flops, moved, dtypes[key]))
    return sorted(table, key=lambda row: -row.time_s)


def _kind_in_role(kind: str, role: Role) -> str:
    """Return the kind of work, where general operators are what a norm or a scan is made of."""
    made_of_them = role and role[-1] in ("norm", "scan") and kind in GENERAL
    return role[-1] if made_of_them else kind


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
    """Return a row's FLOP/s over the peak of its dtype; 0 where it does not multiply or no peak is known."""
    peak = peaks.flops_per_s.get(row.dtype, 0.0)
    return row.flops / row.time_s / peak if peak and row.time_s else 0.0


def _row_document(row: Row) -> dict[str, Any]:
    """Return a row with its fields' names."""
    return {**row._asdict(), "role": list(row.role)}
