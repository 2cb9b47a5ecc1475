"""Where the time of a step goes by stage, part and operator: norm, attention, router, experts, head, loss."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any, Self

import torch
from torch import nn

from finegauge.measurement.instruments.module_roles import (
    ADAPTER,
    CHOSEN,
    CONVOLUTION,
    HEAD,
    KERNEL,
    MIDDLE,
    ROOT,
    Place,
    Roles,
    Watched,
    tensors_in,
)
from finegauge.measurement.instruments.stage_clock import (
    BACKWARD,
    OTHER,
    RECOMPUTE,
    Instants,
    Timeline,
    instants_of,
    recomputation_told,
)
from finegauge.measurement.subject import Subject
from finegauge.profile import Breakdown

PRODUCTS = ((torch.nn.functional, "linear"), (torch.nn.functional, "grouped_mm"), (torch, "_grouped_mm"),
            (torch, "bmm"))  # fmt: skip
FUSED = ("gate_up_proj", "up_proj", "w1", "v1", "w3", "down_proj", "w2")  # in the order of use


@contextmanager
def told_functions(clock: "LayerClock") -> Iterator[None]:
    """Let torch's functions tell `clock` when they run inside a module that it watches."""
    with ExitStack() as stack:
        for owner, name in PRODUCTS:
            if hasattr(owner, name):
                stack.enter_context(replaced(owner, name, _product(clock, getattr(owner, name))))
        for owner, name in ((torch.nn.functional, "scaled_dot_product_attention"), (torch, "matmul")):
            stack.enter_context(replaced(owner, name, _kernel(clock, getattr(owner, name))))
        convolve = torch.nn.functional.conv1d
        stack.enter_context(replaced(torch.nn.functional, "conv1d", _convolution(clock, convolve)))
        stack.enter_context(replaced(torch, "baddbmm", _addition(clock, torch.baddbmm)))
        stack.enter_context(replaced(torch.Tensor, CHOSEN, _written(clock, torch.Tensor.index_add_)))
        for overload in _dequantisation():
            stack.enter_context(replaced(overload, "default", _beside(clock, overload.default)))
        yield


@contextmanager
def replaced(owner: Any, name: str, new: Any) -> Iterator[None]:
    """Let `owner.name` be `new` for as long as the block runs."""
    own = name in vars(owner)
    old = getattr(owner, name)
    setattr(owner, name, new)
    try:
        yield
    finally:
        if own:
            setattr(owner, name, old)
        else:
            delattr(owner, name)


def _product(clock: "LayerClock", original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a product that tells the clock whose it is."""

    @wraps(original)
    def product(*args: Any, **kwargs: Any) -> Any:
        item = clock.frame.module
        if item is None or item.kind not in ("experts", "router"):
            return original(*args, **kwargs)
        path, last = clock.frame.place
        if last.startswith("("):  # inside another product
            return original(*args, **kwargs)
        if item.kind == "router":
            return _told(clock, original, args, kwargs, (path, "(linear)"), (path, "linear"), states=1)
        name = _projection(item.module, last)
        return _told(clock, original, args, kwargs, (path, f"({name})"), (path, name), states=1)

    return product


def _kernel(clock: "LayerClock", original: Callable[..., Any]) -> Callable[..., Any]:
    """Return an attention kernel, or a product that begins one, that tells the clock."""

    @wraps(original)
    def attend(*args: Any, **kwargs: Any) -> Any:
        item = clock.frame.module
        if item is None or item.kind != "attention" or clock.frame.place[1] == KERNEL:
            return original(*args, **kwargs)
        place = (item.path, KERNEL)
        return _told(clock, original, args, kwargs, place, place, states=len(args))

    return attend


def _convolution(clock: "LayerClock", original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a convolution that tells the clock when a state-space mixer calls it past its module."""

    @wraps(original)
    def convolve(*args: Any, **kwargs: Any) -> Any:
        item = clock.frame.module
        if item is None or item.kind not in ("mamba", "linear_attention"):
            return original(*args, **kwargs)
        path, last = clock.frame.place
        return _told(clock, original, args, kwargs, (path, CONVOLUTION), (path, last), states=1)

    return convolve


def _addition(clock: "LayerClock", original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the sum of fused experts' weights and their adapters, which tells the clock."""

    @wraps(original)
    def add(*args: Any, **kwargs: Any) -> Any:
        item = clock.frame.module
        if item is None or item.kind != "experts":
            return original(*args, **kwargs)
        return _told(clock, original, args, kwargs, (item.path, ADAPTER), clock.frame.place, states=0)

    return add


def _written(clock: "LayerClock", original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the addition of one expert's answers, after which the next expert's turn comes."""

    @wraps(original)
    def index_add_(*args: Any, **kwargs: Any) -> Any:
        out = original(*args, **kwargs)
        item = clock.frame.module
        if item is not None and item.kind == "experts":
            if torch.is_grad_enabled():
                clock.leaving(out, clock.frame.place)
            clock.go_on((item.path, CHOSEN))
        return out

    return index_add_


def _beside(clock: "LayerClock", original: Any) -> Callable[..., Any]:
    """Return a dequantisation that tells the clock."""

    @wraps(original)
    def dequantise(*args: Any, **kwargs: Any) -> Any:
        with clock.beside("dequantise"):
            return original(*args, **kwargs)

    return dequantise


def _told(
    clock: "LayerClock",
    original: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    inside: Place,
    after: Place,
    *,
    states: int,
) -> Any:
    """Run a function as the place `inside` and go on at `after`; backward goes the same way back.

    The first `states` arguments were made here; what made the others (a slice of the
    experts' weights, an adapter) belongs to the function.
    """
    graph = torch.is_grad_enabled()
    if graph:
        clock.leaving(args[states:], inside)
        args = (*map(clock.entering, args[:states]), *args[states:])
    clock.go_on(inside)
    out = original(*args, **kwargs)
    if graph:
        clock.leaving(out, inside)
    clock.go_on(after)
    return out


def _projection(experts: nn.Module, last: str) -> str:
    """Return which projection of fused experts comes after `last`."""
    adapted = getattr(experts, "parametrizations", {})  # asking for such a weight would compute it
    names = [name for name in FUSED if name in experts._parameters or name in adapted]
    return names[(names.index(last) + 1) % len(names)] if last in names else names[0]


def _dequantisation() -> list[Any]:
    """Return bitsandbytes' operator that widens 4-bit weights, if bitsandbytes is loaded."""
    if "bitsandbytes" not in sys.modules:
        return []
    return [torch.ops.bitsandbytes.dequantize_4bit]


WITHOUT_LAYERS = ("data", OTHER)
OPTIMIZER = "optimizer"
TRAINING = ("forward", RECOMPUTE, BACKWARD)  # where work outside all modules is positions or the loss
SCORING = "scoring"  # where what follows a language model's head is its loss too
OUTSIDE = "outside the model"  # sampling, caches, advantages
MARK = "finegauge"  # the key under which an autograd node says that it is marked


class Frame:
    """A module at work: where in it we are."""

    __slots__ = ("module", "place")

    def __init__(self, module: Watched | None, place: Place) -> None:
        """Begin at `place` of a watched module; of none outside all."""
        self.module, self.place = module, place


class LayerClock:
    """Times the roles of every module of a phase's models; has the interface of `StageClock`."""

    def __init__(self, subject: Subject, *models: torch.nn.Module, instants: Instants | None = None) -> None:
        """Time the layers of `models`; of the subject's alone where none are named."""
        self.steps: list[Breakdown] = []
        self._models, self._optimizer = models or (subject.model,), subject.run.optimizer
        self._timeline = Timeline(instants or instants_of(subject.device))
        self._roles = Roles(*self._models)
        self._calls: dict[str, list[str]] = {}
        self._tellers: dict[Place, Callable[[Any], None]] = {}
        self._stage, self._in_step = OTHER, False
        self._frames = [Frame(None, ROOT)]
        self._backward: Place = ROOT  # where the backward pass is
        self._open = ExitStack()

    def __enter__(self) -> Self:
        """Begin to watch all modules and functions."""
        for item in self._roles.watched:
            self._open.enter_context(replaced(item.module, "forward", self._told(item)))
        paths = {id(item.module): item for item in self._roles.watched}
        self._open.enter_context(
            recomputation_told(self._models, lambda module: self._recompute(paths.get(id(module))))
        )
        self._open.enter_context(told_functions(self))
        return self

    def __exit__(self, *failure: object) -> None:
        """Leave the model and torch as they were."""
        self._open.close()

    # ---- stages ----------------------------------------------------------------------------
    @contextmanager
    def step(self) -> Iterator[None]:
        """Time one step; a step that fails leaves no record."""
        self._timeline.discard()
        self._timeline.instants.settle()
        self._in_step, self._stage, self._frames = True, OTHER, [Frame(None, ROOT)]
        self._mark(ROOT)
        try:
            yield
        finally:
            self._in_step = False
        self.steps.append(self._by_role(self._timeline.close()))

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count what runs inside as stage `name`; stages do not nest."""
        if self._stage != OTHER:
            raise RuntimeError(f"Stage '{name}' begins inside stage '{self._stage}'; end that first.")
        if name != BACKWARD:  # which begins where the forward pass ended
            self._frames = [Frame(None, ROOT)]
        self._stage, self._backward = name, self._frames[-1].place
        self._mark(self._backward)
        try:
            yield
        finally:
            self._stage = OTHER
            self._mark(ROOT)

    def _mark(self, place: Place) -> None:
        """Say that work goes on at `place`, in the stage of now."""
        if self._in_step:
            self._timeline.mark((self._stage, place))

    @contextmanager
    def _recompute(self, item: Watched | None) -> Iterator[None]:
        """Count what runs inside as recomputation of a layer, if it is the backward pass that runs it."""
        if self._stage != BACKWARD:
            yield
            return
        frames, interrupted = self._frames, self._backward
        self._stage, self._frames = RECOMPUTE, [Frame(item, (item.path, "") if item else ROOT)]
        self._mark(self._frames[-1].place)
        try:
            yield
        finally:
            self._stage, self._frames = BACKWARD, frames
            self._backward = interrupted
            self._mark(interrupted)

    # ---- modules ---------------------------------------------------------------------------
    def _told(self, item: Watched) -> Callable[..., Any]:
        """Return the forward of a module that tells when it begins and ends."""
        inside: Place = (item.path, ADAPTER if item.kind == ADAPTER else "")
        name = item.name if item.parent else item.path
        forward = item.module.forward

        @wraps(forward)
        def told(*args: Any, **kwargs: Any) -> Any:
            if not self._in_step:
                return forward(*args, **kwargs)
            if torch.is_grad_enabled():
                args = tuple(map(self.entering, args))
                kwargs = {key: self.entering(value) for key, value in kwargs.items()}
            self._frames.append(Frame(item, inside))
            self._mark(inside)
            output = None
            try:
                output = forward(*args, **kwargs)
            finally:  # a checkpoint may end its recomputation early
                self._left(name, output)
            return output

        return told

    def _left(self, name: str, output: Any) -> None:
        """Go on in the module around the one that ends, called `name` there."""
        place = self._frames.pop().place
        if torch.is_grad_enabled():
            self.leaving(output, place)
        around = self._frames[-1]
        if around.place[1] != ADAPTER:
            around.place = (around.place[0], name)
        self._mark(around.place)

    @property
    def frame(self) -> Frame:
        """Return the innermost module at work."""
        return self._frames[-1]

    def go_on(self, place: Place) -> None:
        """Go on at another place of the innermost module."""
        self._frames[-1].place = place
        self._mark(place)

    @contextmanager
    def beside(self, what: str) -> Iterator[None]:
        """Count what runs inside as `what`, wherever we are, in forward or in backward."""
        if not self._in_step:
            yield
            return
        place = self._backward if self._stage == BACKWARD else self._frames[-1].place
        self._mark((place[0], what))
        try:
            yield
        finally:
            self._mark(place)

    # ---- marks in the autograd graph -------------------------------------------------------
    def entering(self, value: Any) -> Any:
        """Return an argument whose node tells when backward comes back to where we are."""
        if not isinstance(value, torch.Tensor) or value.grad_fn is None:
            return value
        node, place = value.grad_fn, self._frames[-1].place
        if node._sequence_nr() + 1 != torch._C._autograd._get_sequence_nr():  # others were made after it
            value = value.view_as(value)
            self._tell(value.grad_fn, place)
        elif MARK not in node.metadata:
            self._tell(node, place)
        return value

    def leaving(self, output: Any, place: Place) -> None:
        """Let the nodes of a result tell when backward enters `place`, unless what is inside told already."""
        for tensor in tensors_in(output):
            node = tensor.grad_fn
            if node is not None and MARK not in node.metadata:
                self._tell(node, place)

    def _tell(self, node: Any, place: Place) -> None:
        """Let an autograd node mark `place` when its turn comes."""
        node.metadata[MARK] = place
        if place not in self._tellers:
            self._tellers[place] = self._teller(place)
        node.register_prehook(self._tellers[place])

    def _teller(self, place: Place) -> Callable[[Any], None]:
        def told(gradients: Any) -> None:
            del gradients
            self._backward = place
            self._mark(place)

        return told

    # ---- results ---------------------------------------------------------------------------
    def _by_role(self, spent: dict[tuple[str, Place], float]) -> Breakdown:
        """Return the seconds by (stage, part, operator)."""
        for stage, (path, last) in spent:
            names = self._calls.setdefault(path, [])
            if last and stage != BACKWARD and last not in names:
                names.append(last)
        return Breakdown.add_up(
            (self._path(stage, place), seconds) for (stage, place), seconds in spent.items()
        )

    def _path(self, stage: str, place: Place) -> tuple[str, ...]:
        """Return the path of a place in predictions' words."""
        if stage in WITHOUT_LAYERS:
            return (stage,)
        if stage == OPTIMIZER:
            return stage, "parameters", self._optimizer
        if not place[0] and stage not in TRAINING and not self._in_model(stage, place[1]):
            return stage, OUTSIDE
        return stage, *self._roles.of(place, self._calls)

    def _in_model(self, stage: str, last: str) -> bool:
        """Return whether work outside all modules, after `last`, is a model's or its loss."""
        after = self._roles.outside(last)
        return after == MIDDLE or (after == HEAD and stage == SCORING)
