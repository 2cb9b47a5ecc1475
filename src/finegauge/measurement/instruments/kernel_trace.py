"""What a profiler's Chrome trace holds: operators in their nesting, and the kernels that they launched.

torch.profiler writes one JSON of events. Operators ("cpu_op") and ranges
("user_annotation") nest by time on their thread; a kernel ran on the device later and is
tied to the operator that launched it by the external id, or by the correlation id of the
launching call. A flow ("fwdbwd") ties every operator of the backward pass to the one of the
forward pass whose gradient it computes.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from torch.profiler import record_function

from finegauge.catalogue.tables import read_shipped
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
    caller = operator.parent
    while caller is not None and caller.is_range:
        caller = caller.parent
    if caller is not None:
        caller.children_s += min(operator.end_s, caller.end_s) - operator.start_s


def _operator(event: Mapping[str, Any]) -> Operator:
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
    return (sum(map(prod, dims)),) if dims and isinstance(dims[0], list) else tuple(dims)


def _kernel(
    event: Mapping[str, Any], by_id: Mapping[int, Operator], launched_in: Mapping[int, Operator | None]
) -> Kernel:
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


HOST = "host"  # views, allocation and the engine: no work on data
OTHER = "other"
OPTIMIZER_RANGE = "Optimizer."  # torch wraps every optimizer's step in such a range

GENERAL = ("elementwise", "copy", "reduction", "gather", "random", OTHER)
_WORDS: dict[str, list[tuple[str, str]]] = json.loads(read_shipped("kernel_words.json"))
_OPERATOR_PATTERNS = tuple((kind, re.compile(rf"(?:{words})_?\Z")) for kind, words in _WORDS["operators"])
_KERNEL_PATTERNS = tuple((kind, re.compile(words, re.IGNORECASE)) for kind, words in _WORDS["kernels"])
_BACKWARD = re.compile(r"(?:Backward\d*|_backward(?:_data|_reduce)?)\Z")


def kind_of_operator(name: str) -> str:
    """Return the kind of the operator called `name`, as the profiler writes it."""
    if name.startswith("autograd::engine"):
        return HOST
    bare = name.rpartition("::")[2]
    for pattern_name in (bare, _BACKWARD.sub("", bare)):
        for kind, pattern in _OPERATOR_PATTERNS:
            if pattern.match(pattern_name):
                return kind
    return (
        OTHER if "::" in name and not _BACKWARD.search(bare) else HOST
    )  # Python's or the engine's, around others


def kind_of_kernel(name: str) -> str:
    """Return the kind of a kernel whose operator says nothing."""
    return next((kind for kind, pattern in _KERNEL_PATTERNS if pattern.search(name)), OTHER)


def kind_in_context(operator: Operator) -> str:
    """Return the kind of an operator, seen with those that called it."""
    own = kind_of_operator(operator.name)
    if own == HOST:
        return HOST
    for outer in operator.enclosing():
        if outer.is_range:
            if outer.name.startswith(OPTIMIZER_RANGE):
                return "optimizer"
        elif own in GENERAL and (telling := kind_of_operator(outer.name)) not in (*GENERAL, HOST):
            own = telling
    return own


STAGE = "finegauge.stage:"
MODULE = "finegauge.module:"
STEP = "finegauge.step"
EXPERT_PRODUCTS = ("gate_up_proj", "down_proj")
Role = tuple[str, ...]  # of an operator in the model: (part, operator)


class RangeClock:
    """A clock that writes the stages of a step into the profiler's trace."""

    def stage(self, name: str) -> AbstractContextManager[None]:
        """Mark what runs inside as stage `name`."""
        marked: AbstractContextManager[None] = record_function(STAGE + name)
        return marked


@contextmanager
def module_ranges(models: Mapping[str, Any]) -> Iterator[None]:
    """Write every module's forward pass into the trace, by its path in the model."""
    open_ranges: list[Any] = []

    def enter(path: str) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            open_ranges.append(record_function(MODULE + path))
            open_ranges[-1].__enter__()

        return hook

    def leave(*_: Any) -> None:
        open_ranges.pop().__exit__(None, None, None)

    handles = []
    for module, path in {m: path for model in models.values() for path, m in model.named_modules()}.items():
        handles.append(module.register_forward_pre_hook(enter(path)))
        handles.append(module.register_forward_hook(leave, always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def place(operator: Operator | None, role_of: Callable[[str], Role]) -> tuple[str, Role, Operator | None]:
    """Return the stage of an operator, the role of the module that it belongs to, and the forward operator.

    Inside the backward stage, what runs in a module's forward pass is recomputation.
    """
    if operator is None:
        return "other", (), None
    stage, path, origin = "other", "", None
    in_module = in_engine = in_recompute = False
    for outer in operator.enclosing():
        if outer.name.startswith(MODULE) and outer.is_range:
            path, in_module = path or outer.name.removeprefix(MODULE), True
        elif outer.name.startswith(STAGE) and outer.is_range:
            stage = outer.name.removeprefix(STAGE)
            break
        elif outer.name.startswith(ENGINE):
            in_recompute = in_recompute or (in_module and not in_engine)
            in_engine = True
        if origin is None and not in_module:
            origin = outer.origin
    if in_engine:
        stage = "recompute" if in_recompute else "backward"
    if origin is not None and not path:
        path = _range_around(origin, MODULE)
    return stage, role_of(path) if path else (), origin or operator


def finer_role(role: Role, kind: str, forward: Operator | None, products: dict[tuple[int, ...], str]) -> Role:
    """Return the role of work that several operators of one module share, told apart by its kind.

    Fused experts have no modules for their products: of the two shapes of weights, the first met is
    that of the way up; `products` remembers them.
    """
    if kind in ("loss", "optimizer"):
        return ("loss", "cross entropy") if kind == "loss" else ("parameters", _optimizer_of(forward))
    if not role:
        return ()
    part, operator = role[0], role[-1]
    if operator == "rotary" and kind in ("attention", "matmul", "softmax"):
        return (part, "attention kernel")
    if operator == "gather tokens" and kind == "matmul":
        return (part, _product_of_experts(forward, products))
    if operator == "gather tokens" and kind == "elementwise":
        return (part, "activation")
    return role


def _product_of_experts(forward: Operator | None, products: dict[tuple[int, ...], str]) -> str:
    """Return which of the experts' products it is; PEFT adds that of its factors to the weights first."""
    calls = [one for one in forward.enclosing() if not one.is_range] if forward is not None else []
    if any(call.name == "aten::baddbmm" for call in calls):
        return "adapter"
    shapes = (call.shapes[1][-2:] for call in calls if len(call.shapes) > 1 and len(call.shapes[1]) > 1)
    return products.setdefault(next(shapes, ()), EXPERT_PRODUCTS[min(len(products), 1)])


def _optimizer_of(operator: Operator | None) -> str:
    """Return the optimizer in whose step an operator ran: of "Optimizer.step#AdamW.step", adamw."""
    name = _range_around(operator, OPTIMIZER_RANGE) or "#update"
    return name.partition("#")[2].partition(".")[0].lower()


def _range_around(operator: Operator | None, prefix: str) -> str:
    """Return the rest of the name of the innermost range around an operator that begins with `prefix`."""
    ranges = (outer.name for outer in operator.enclosing() if outer.is_range) if operator is not None else ()
    return next((name.removeprefix(prefix) for name in ranges if name.startswith(prefix)), "")
