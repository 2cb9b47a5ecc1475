"""What a profiler's Chrome trace holds: operators in their nesting, and the kernels that they launched.

torch.profiler writes one JSON of events. Operators ("cpu_op") and ranges
("user_annotation") nest by time on their thread; a kernel ran on the device later and is
tied to the operator that launched it by the external id, or by the correlation id of the
launching call. A flow ("fwdbwd") ties every operator of the backward pass to the one of the
forward pass whose gradient it computes.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from finegauge.errors import FileFormatError

HOST_CATEGORIES = ("cpu_op", "user_annotation")
LAUNCHES = ("cuda_runtime", "cuda_driver")
KERNELS = ("kernel", "gpu_memcpy", "gpu_memset")
ENGINE = "autograd::engine::evaluate_function"  # the call around each operator of the backward pass
_US = 1e-6


@dataclass(slots=True, eq=False)
class Operator:
    """One operator or range on the host, with what encloses it."""

    name: str
    is_range: bool
    start_s: float
    end_s: float
    thread: int
    parent: "Operator | None" = None
    children_s: float = 0.0  # inside operators (not ranges) that this one called
    origin: "Operator | None" = None  # the forward operator whose gradient this one computes
    shapes: tuple[tuple[int, ...], ...] = ()
    types: tuple[str, ...] = ()
    values: tuple[str, ...] = ()

    @property
    def own_s(self) -> float:
        """Return the seconds in this operator and in none that it called."""
        return max(0.0, self.end_s - self.start_s - self.children_s)

    def enclosing(self) -> Iterator["Operator"]:
        """Yield this operator, then what encloses it, innermost first."""
        here: Operator | None = self
        while here is not None:
            yield here
            here = here.parent


class Kernel(NamedTuple):
    """One kernel, copy or fill on the device, and the operator that launched it."""

    name: str
    start_s: float
    end_s: float
    stream: int
    operator: Operator | None
    moved_bytes: float  # of a copy or a fill; 0 for a kernel, whose trace does not say


class Trace(NamedTuple):
    """The operators, in order of their start, and the kernels of a trace."""

    operators: list[Operator]
    kernels: list[Kernel]

    @property
    def busy_s(self) -> float:
        """Return the seconds in which the device, or without one an operator on the host, was at work."""
        if self.kernels:
            return covered_s((kernel.start_s, kernel.end_s) for kernel in self.kernels)
        return covered_s((op.start_s, op.end_s) for op in self.operators if not op.is_range)


def read_trace(path: Path) -> Trace:
    """Return the trace in a file.

    Raises: FileFormatError if it is not a Chrome trace of torch.profiler.
    """
    try:
        document = json.loads(path.read_text("utf-8"))
        return parse_trace(document["traceEvents"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FileFormatError(f"{path}: not a Chrome trace of torch.profiler ({error}).") from error


def parse_trace(events: Iterable[Mapping[str, Any]]) -> Trace:
    """Return the operators and kernels of a list of trace events."""
    events = list(events)
    complete = [event for event in events if event.get("ph") == "X"]
    host = [event for event in complete if event.get("cat") in HOST_CATEGORIES]
    by_id: dict[int, Operator] = {}
    operators = _nested(host, by_id)
    _tie(operators, [event for event in events if event.get("cat") == "fwdbwd"])
    launched_in = {
        event["args"]["correlation"]: by_id.get(event["args"].get("External id", -1))
        for event in complete
        if event.get("cat") in LAUNCHES and "correlation" in event.get("args", {})
    }
    kernels = [_kernel(event, by_id, launched_in) for event in complete if event.get("cat") in KERNELS]
    return Trace(operators, sorted(kernels, key=lambda kernel: kernel.start_s))


def covered_s(spans: Iterable[tuple[float, float]]) -> float:
    """Return the seconds that at least one of the spans (start, end) covers."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def _nested(events: list[Mapping[str, Any]], by_id: dict[int, Operator]) -> list[Operator]:
    """Return the operators with their parents, and note them by external id in `by_id`."""
    open_on: dict[int, list[Operator]] = {}
    operators = []
    for event in sorted(events, key=lambda e: (e["ts"], -e["dur"])):
        operator = _operator(event)
        stack = open_on.setdefault(operator.thread, [])
        while stack and stack[-1].end_s <= operator.start_s:
            stack.pop()
        if stack:
            operator.parent = stack[-1]
            if not operator.is_range:
                _charge(operator)
        stack.append(operator)
        operators.append(operator)
        number = event.get("args", {}).get("External id")
        if number is not None:
            by_id[number] = operator
    return operators


def _tie(operators: list[Operator], flows: list[Mapping[str, Any]]) -> None:
    """Note the forward operator of every backward one, and of the engine's call around it."""
    starting = {(op.thread, op.start_s): op for op in operators}
    ends = {flow["id"]: starting.get((flow["tid"], flow["ts"] * _US)) for flow in flows if flow["ph"] == "f"}
    for flow in flows:
        backward = ends.get(flow["id"])
        if flow["ph"] != "s" or backward is None:
            continue
        backward.origin = starting.get((flow["tid"], flow["ts"] * _US))
        if backward.parent is not None and backward.parent.name.startswith(ENGINE):
            backward.parent.origin = backward.origin


def _charge(operator: Operator) -> None:
    """Take an operator's seconds from the own time of the operator that called it."""
    caller = operator.parent
    while caller is not None and caller.is_range:
        caller = caller.parent
    if caller is not None:
        caller.children_s += min(operator.end_s, caller.end_s) - operator.start_s


def _operator(event: Mapping[str, Any]) -> Operator:
    """Return the operator of a host event."""
    args = event.get("args", {})
    return Operator(
        name=str(event["name"]),
        is_range=event["cat"] == "user_annotation",
        start_s=event["ts"] * _US,
        end_s=(event["ts"] + event["dur"]) * _US,
        thread=event["tid"],
        shapes=tuple(_shape(dims) for dims in args.get("Input Dims", ())),
        types=tuple(args.get("Input type", ())),
        values=tuple(str(value) for value in args.get("Concrete Inputs", ())),
    )


def _shape(dims: Any) -> tuple[int, ...]:
    """Return the shape of one input; a list of tensors becomes the elements of all of them."""
    if dims and isinstance(dims[0], list):
        return (sum(_elements(inner) for inner in dims),)
    return tuple(dims)


def _elements(dims: Iterable[int]) -> int:
    """Return the number of elements of a shape."""
    product = 1
    for size in dims:
        product *= size
    return product


def _kernel(
    event: Mapping[str, Any], by_id: Mapping[int, Operator], launched_in: Mapping[int, Operator | None]
) -> Kernel:
    """Return the kernel of a device event."""
    args = event.get("args", {})
    operator = by_id.get(args.get("External id", -1)) or launched_in.get(args.get("correlation", -1))
    start = event["ts"] * _US
    return Kernel(
        name=str(event["name"]),
        start_s=start,
        end_s=start + event["dur"] * _US,
        stream=args.get("stream", 0),
        operator=operator,
        moved_bytes=float(args.get("bytes", 0)),
    )
