"""Where in a step an operator belongs: ranges in the profiler's trace, and what they say.

Ranges around the stages of a step and around every module are written while the profiler
watches. Later an operator belongs to the ranges around it, and one of the backward pass to
those around the forward operator whose gradient it computes.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from torch.profiler import record_function

from finegauge.measure.instruments.chrome_trace import ENGINE, Operator
from finegauge.measure.instruments.op_kinds import OPTIMIZER_RANGE

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
        path = _path_of(origin)
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
    calls = list(_calls(forward))
    if any(call.name == "aten::baddbmm" for call in calls):
        return "adapter"
    shapes = (call.shapes[1][-2:] for call in calls if len(call.shapes) > 1 and len(call.shapes[1]) > 1)
    return products.setdefault(next(shapes, ()), EXPERT_PRODUCTS[min(len(products), 1)])


def _calls(operator: Operator | None) -> Iterator[Operator]:
    """Yield an operator and those that called it, without ranges."""
    return (o for o in operator.enclosing() if not o.is_range) if operator is not None else iter(())


def _optimizer_of(operator: Operator | None) -> str:
    """Return the optimizer in whose step an operator ran: of "Optimizer.step#AdamW.step", adamw."""
    ranges = (outer.name for outer in operator.enclosing() if outer.is_range) if operator is not None else ()
    name = next((name for name in ranges if name.startswith(OPTIMIZER_RANGE)), "#update")
    return name.partition("#")[2].partition(".")[0].lower()


def _path_of(operator: Operator) -> str:
    """Return the path of the module in whose forward pass an operator ran."""
    ranges = (outer.name for outer in operator.enclosing() if outer.is_range)
    return next((name.removeprefix(MODULE) for name in ranges if name.startswith(MODULE)), "")
