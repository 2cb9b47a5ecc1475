"""Where the time of a step goes by stage, and within stages by part and operator of the model.

The phase says which stage its work belongs to. What checkpointed layers run again inside the backward
pass is the stage "recompute": the function that they checkpoint by tells. Work between stages is "other".
Every mark says what runs from its instant to the next mark's, so the stages of a step add up to the step.

    with StageClock(subject.device, subject.model) as clock:
        with clock.step():
            phase.step(clock)
    clock.steps  # a Breakdown in seconds for every step

`LayerClock` tells norm, attention, router, experts, head and loss apart. Modules tell where each begins and
ends. In forward that is all; in backward, module hooks fire at the wrong time, so marks hang on autograd
nodes: the node of what leaves a module tells when its backward begins, and the node of what enters tells when
it is over. Autograd runs nodes in the reverse of the order in which they were made, so that what ran before a
module in forward runs after it in backward. Where what enters is the last thing made, its own node is the
next to run after the module; else it passes through a view, made for that. Nodes are known by the numbers
that autograd gives them in that order.

Functions that are no modules (attention kernels, products of fused experts, bitsandbytes' dequantisation)
are marked the same way, by standing in for the functions of torch while the clock runs. Values, gradients
and what is saved are unchanged. Each instant belongs to the innermost role, so the parts add up to the step.
"""

import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import wraps
from time import perf_counter_ns
from typing import Any, Self
from unittest import mock

import torch
from torch import Tensor, nn
from torch.autograd.function import _HookMixin
from torch.nn import functional

from finegauge.measurement.instruments.module_roles import (
    ADAPTER,
    CHOSEN,
    CONVOLUTION,
    HEAD,
    KERNEL,
    MASK,
    MIDDLE,
    ROOT,
    ROTARY,
    Place,
    Roles,
    Watched,
    tensors_in,
)
from finegauge.measurement.subject import Subject
from finegauge.profile import Breakdown

BACKWARD, RECOMPUTE, OTHER = "backward", "recompute", "other"
CHECKPOINTING = "_gradient_checkpointing_func"  # where transformers' modules keep how they checkpoint


class HostInstants:
    """Instants of the host's clock, for work that is done when its call returns."""

    now: Callable[[], Any] = staticmethod(perf_counter_ns)

    def seconds(self, begin: Any, end: Any) -> float:
        """Return the seconds from one instant to another, both settled."""
        return float(end - begin) / 1e9

    def settle(self) -> None:
        """Wait until every instant taken has come."""

    def forget(self) -> None:
        """Drop all instants taken so far: they are not asked about again."""


class CudaInstants(HostInstants):
    """Events in the current CUDA stream, reused from step to step.

    One costs the host a microsecond and the device nothing: the device is waited for once, at the end.
    """

    def __init__(self) -> None:
        self._events: list[Any] = []
        self._used = 0
        self.now = self._record

    def _record(self) -> Any:
        if self._used == len(self._events):
            self._events.append(torch.cuda.Event(enable_timing=True))
        event = self._events[self._used]
        self._used += 1
        event.record()
        return event

    def seconds(self, begin: Any, end: Any) -> float:
        """Return the seconds between two events that have come."""
        return float(begin.elapsed_time(end)) / 1e3

    def settle(self) -> None:
        """Wait for the device."""
        torch.cuda.synchronize()

    def forget(self) -> None:
        """Make all events free for the next step."""
        self._used = 0


def instants_of(device: torch.device) -> HostInstants:
    """Return how instants are taken on `device`."""
    return CudaInstants() if device.type == "cuda" else HostInstants()


class Timeline:
    """Marks of one step: what runs from each instant on."""

    def __init__(self, instants: HostInstants) -> None:
        self.instants = instants
        self._now = instants.now
        self._times: list[Any] = []
        self._marks: list[Hashable] = []

    def mark(self, what: Hashable) -> None:
        """Say that `what` runs from now on."""
        self._times.append(self._now())
        self._marks.append(what)

    def close(self) -> dict[Any, float]:
        """End the step; return the seconds of each thing that ran, in the order of first appearance."""
        self._times.append(self._now())
        self.instants.settle()
        spent: dict[Any, float] = {}
        for what, seconds in zip(
            self._marks, map(self.instants.seconds, self._times, self._times[1:]), strict=True
        ):
            spent[what] = spent.get(what, 0.0) + seconds
        self.discard()
        return spent

    def discard(self) -> None:
        """Forget the marks of a step that is over or did not end."""
        self._times.clear()
        self._marks.clear()
        self.instants.forget()


class NoClock:
    """A clock that records nothing."""

    def stage(self, name: str) -> AbstractContextManager[None]:
        """Run what is inside."""
        del name
        return nullcontext()


class StageClock:
    """Times the stages of steps; outside `step` it records nothing."""

    def __init__(self, device: torch.device, *models: torch.nn.Module, instants: HostInstants | None = None):
        """Time work on `device`; what `models` run again inside it is recomputation."""
        self.steps: list[Breakdown] = []
        self._timeline = Timeline(instants or instants_of(device))
        self._models = models
        self._stage, self._in_step = OTHER, False
        self._open = ExitStack()

    def __enter__(self) -> Self:
        self._open.enter_context(recomputation_told(self._models, self._recompute))
        return self

    def __exit__(self, *failure: object) -> None:
        self._open.close()

    @contextmanager
    def step(self) -> Iterator[None]:
        """Time one step; a step that fails leaves no record."""
        self._timeline.discard()
        self._timeline.instants.settle()
        self._in_step = True
        self._go_to(OTHER)
        try:
            yield
        finally:
            self._in_step = False
        self.steps.append(self._breakdown(self._timeline.close()))

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count what runs inside as stage `name`; stages do not nest."""
        if self._stage != OTHER:
            raise RuntimeError(f"Stage '{name}' begins inside stage '{self._stage}'; end that first.")
        self._go_to(name)
        try:
            yield
        finally:
            self._go_to(OTHER)

    def _go_to(self, stage: str) -> None:
        self._stage = stage
        if self._in_step:
            self._timeline.mark(stage)

    @contextmanager
    def _recompute(self, module: torch.nn.Module) -> Iterator[None]:
        """Count what runs inside as recomputation of `module`, if it is the backward pass that runs it."""
        del module
        again = self._stage == BACKWARD
        if again:
            self._go_to(RECOMPUTE)
        try:
            yield
        finally:  # if only because nothing more is needed
            if again:
                self._go_to(BACKWARD)

    def _breakdown(self, spent: Mapping[Any, float]) -> Breakdown:
        return Breakdown({(stage,): seconds for stage, seconds in spent.items()})


@contextmanager
def recomputation_told(
    models: Iterable[torch.nn.Module], around: Callable[[torch.nn.Module], AbstractContextManager[None]]
) -> Iterator[None]:
    """Run every checkpointed function of `models` inside `around(module)`, first and again in backward.

    Modules checkpoint by a function that transformers gives them; it gets another one here.
    """

    def told(module: torch.nn.Module, checkpoint: Callable[..., Any]) -> Callable[..., Any]:
        def run(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            def inside(*a: Any, **k: Any) -> Any:
                with around(module):
                    return function(*a, **k)

            return checkpoint(inside, *args, **kwargs)

        return run

    modules = dict.fromkeys(module for model in models for module in model.modules())
    with ExitStack() as stack:
        for module in modules:
            if checkpoint := vars(module).get(CHECKPOINTING):
                stack.enter_context(mock.patch.object(module, CHECKPOINTING, told(module, checkpoint)))
        yield


WITHOUT_LAYERS = ("data", OTHER)
OPTIMIZER = "optimizer"
TRAINING = ("forward", RECOMPUTE, BACKWARD)  # where work outside all modules is positions or the loss
SCORING = "scoring"  # where what follows a language model's head is its loss too
OUTSIDE = "outside the model"  # sampling, caches, advantages
FUSED = ("gate_up_proj", "up_proj", "w1", "v1", "w3", "down_proj", "w2")  # in the order of use
MOST_ARGUMENTS = 99

_register_hook = (
    _HookMixin._register_hook
)  # of every autograd node; a handle for each takes as long as all else
next_number = torch._C._autograd._get_sequence_nr  # of the autograd node that is made next


class Frame:
    """A module at work: where in it we are."""

    __slots__ = ("module", "place")

    def __init__(self, module: Watched | None, place: Place) -> None:
        self.module, self.place = module, place


class LayerClock(StageClock):
    """Times the roles of every module of a phase's models."""

    def __init__(self, subject: Subject, *models: nn.Module, instants: HostInstants | None = None) -> None:
        super().__init__(subject.device, *(models or (subject.model,)), instants=instants)
        self._optimizer = subject.run.optimizer
        self._roles = Roles(*self._models)
        self._items = {id(item.module): item for item in self._roles.watched}
        self._calls: dict[str, list[str]] = {}
        self._paths: dict[tuple[str, Place], tuple[str, ...]] = {}
        self._tellers: dict[Place, Callable[[Any], None]] = {}
        self._hooks: dict[Callable[[Any], None], dict[int, Any]] = {}  # each teller as autograd holds it
        self._marked: set[int] = set()  # the numbers of the nodes that tell
        self._frames = [Frame(None, ROOT)]
        self._backward: Place = ROOT  # where the backward pass is

    def __enter__(self) -> Self:
        for item in self._roles.watched:
            self._open.enter_context(mock.patch.object(item.module, "forward", self._told(item)))
        super().__enter__()
        self._open.enter_context(
            mock.patch.object(_HookMixin, "_register_hook", staticmethod(self._register))
        )
        self._open.enter_context(told_functions(self))
        return self

    # ---- stages ----------------------------------------------------------------------------
    @contextmanager
    def step(self) -> Iterator[None]:
        """Time one step; a step that fails leaves no record."""
        self._frames, self._marked = [Frame(None, ROOT)], set()
        with super().step():
            yield

    def _go_to(self, stage: str) -> None:
        self._stage = stage
        if stage == OTHER:
            self._mark(ROOT)
            return
        if stage != BACKWARD:  # which begins where the forward pass ended
            self._frames = [Frame(None, ROOT)]
        self._backward = self._frames[-1].place
        self._mark(self._backward)

    def _mark(self, place: Place) -> None:
        if self._in_step:
            self._timeline.mark((self._stage, place))

    @contextmanager
    def _recompute(self, module: nn.Module) -> Iterator[None]:
        """Count what runs inside as recomputation of a layer, if it is the backward pass that runs it."""
        if self._stage != BACKWARD:
            yield
            return
        item = self._items.get(id(module))
        before = self._frames, self._backward, self._marked
        self._stage, self._frames = RECOMPUTE, [Frame(item, (item.path, "") if item else ROOT)]
        self._marked = set()  # CUDA's thread for backward numbers its nodes itself
        self._mark(self._frames[-1].place)
        try:
            yield
        finally:
            self._stage = BACKWARD
            self._frames, self._backward, self._marked = before
            self._mark(self._backward)

    # ---- modules ---------------------------------------------------------------------------
    def _told(self, item: Watched) -> Callable[..., Any]:
        inside: Place = (item.path, ADAPTER if item.kind == ADAPTER else "")
        name = item.name if item.parent else item.path
        forward, entering, mark = item.module.forward, self.entering, self._mark

        @wraps(forward)
        def told(*args: Any, **kwargs: Any) -> Any:
            if not self._in_step:
                return forward(*args, **kwargs)
            graph, frames = torch.is_grad_enabled(), self._frames
            if graph:
                args = tuple(map(entering, args))
                if kwargs:
                    kwargs = {key: entering(value) for key, value in kwargs.items()}
            frames.append(Frame(item, inside))
            mark(inside)
            output = None
            try:
                output = forward(*args, **kwargs)
            finally:  # a checkpoint may end its recomputation early
                place, around = frames.pop().place, frames[-1]
                if graph:
                    self.leaving(output, place)
                if around.place[1] != ADAPTER:
                    around.place = (around.place[0], name)
                mark(around.place)
            return output

        return told

    def go_on(self, place: Place) -> None:
        """Go on at another place of the innermost module."""
        self._frames[-1].place = place
        self._mark(place)

    def beside(self, what: str, work: Callable[..., Any]) -> Callable[..., Any]:
        """Return `work`, which then counts as `what` wherever it is called, in forward or in backward."""

        @wraps(work)
        def told(*args: Any, **kwargs: Any) -> Any:
            place = self._backward if self._stage == BACKWARD else self._frames[-1].place
            self._mark((place[0], what))
            try:
                return work(*args, **kwargs)
            finally:
                self._mark(place)

        return told

    def between(self, what: str, work: Callable[..., Any]) -> Callable[..., Any]:
        """Return `work`, which counts as `what` where a model does it itself, between its modules."""
        told = self.beside(what, work)

        @wraps(work)
        def chosen(*args: Any, **kwargs: Any) -> Any:
            path, last = self._frames[-1].place
            own = not path and self._roles.outside(last) == MIDDLE
            return (told if own else work)(*args, **kwargs)

        return chosen

    # ---- marks in the autograd graph -------------------------------------------------------
    def entering(self, value: Any) -> Any:
        """Return an argument whose node tells when backward comes back to where we are."""
        if not isinstance(value, Tensor) or (node := value.grad_fn) is None:
            return value
        number = node._sequence_nr()
        if number + 1 != next_number():  # others were made after it
            value = value.view_as(value)
            node = value.grad_fn
            self._tell(node, node._sequence_nr(), self._frames[-1].place)
        elif number not in self._marked:
            self._tell(node, number, self._frames[-1].place)
        return value

    def leaving(self, output: Any, place: Place) -> None:
        """Let the nodes of a result tell when backward enters `place`, unless what is inside told already."""
        for tensor in (output,) if isinstance(output, Tensor) else tensors_in(output):
            node = tensor.grad_fn
            if node is not None and (number := node._sequence_nr()) not in self._marked:
                self._tell(node, number, place)

    def _tell(self, node: Any, number: int, place: Place) -> None:
        self._marked.add(number)
        teller = self._tellers.get(place)
        if teller is None:
            teller = self._tellers[place] = self._teller(place)
            self._hooks[teller] = {0: teller}
        node.register_prehook(teller)

    def _teller(self, place: Place) -> Callable[[Any], None]:
        def told(gradients: Any) -> None:
            del gradients
            self._backward = place
            if self._in_step:
                self._timeline.mark((self._stage, place))

        return told

    def _register(self, known: Any, hook: Any) -> tuple[Any, Any]:
        """Return a node's hooks with `hook`, and its handle: none for tellers, which are never removed."""
        if known is None and hook in self._hooks:
            return self._hooks[hook], None
        held, handle = _register_hook(known, hook)
        return held, handle

    # ---- results ---------------------------------------------------------------------------
    def _breakdown(self, spent: Mapping[Any, float]) -> Breakdown:
        new = [key for key in spent if key not in self._paths]  # experts that had no tokens before
        for stage, (path, last) in new:
            names = self._calls.setdefault(path, [])
            if last not in ("", MASK, ROTARY, *names) and stage != BACKWARD:
                names.append(last)
        self._paths |= {key: self._path(*key) for key in new}
        return Breakdown.add_up((self._paths[key], seconds) for key, seconds in spent.items())

    def _path(self, stage: str, place: Place) -> tuple[str, ...]:
        if stage in WITHOUT_LAYERS:
            return (stage,)
        if stage == OPTIMIZER:
            return stage, "parameters", self._optimizer
        if not place[0] and stage not in TRAINING and not self._in_model(stage, place[1]):
            return stage, OUTSIDE
        return stage, *self._roles.of(place, self._calls)

    def _in_model(self, stage: str, last: str) -> bool:
        after = self._roles.outside(last)
        return last in (MASK, ROTARY) or after == MIDDLE or (after == HEAD and stage == SCORING)


# Of a function called at `frame`: the place inside it, the place after it, and how many of its arguments were
# made here; what made the others (a slice of the experts' weights, an adapter) belongs to the function. None:
# it does not tell.
Rule = Callable[[Frame], tuple[Place, Place, int] | None]


@contextmanager
def told_functions(clock: LayerClock) -> Iterator[None]:
    """Let torch's functions tell `clock` when they run inside a module that it watches."""
    products = ((functional, "linear"), (functional, "grouped_mm"), (torch, "_grouped_mm"), (torch, "bmm"))
    kernels = ((functional, "scaled_dot_product_attention"), (torch, "matmul"))
    rules: tuple[tuple[Any, str, tuple[str, ...], Rule], ...] = (
        *((owner, name, ("experts", "router"), _product) for owner, name in products if hasattr(owner, name)),
        *((owner, name, ("attention",), _kernel) for owner, name in kernels),
        # a convolution that a state-space mixer calls past its module
        (functional, "conv1d", ("mamba", "linear_attention"), lambda at: _beside(at, CONVOLUTION, 1)),
        # the sum of fused experts' weights and their adapters
        (torch, "baddbmm", ("experts",), lambda at: _beside(at, ADAPTER, 0)),
    )
    with ExitStack() as stack:
        for owner, name, kinds, rule in rules:
            stack.enter_context(
                mock.patch.object(owner, name, _told(clock, getattr(owner, name), kinds, rule))
            )
        stack.enter_context(mock.patch.object(Tensor, CHOSEN, _written(clock, Tensor.index_add_)))
        for owner, name, what in _made_once(clock._models):
            between = clock.between(what, getattr(owner, name))
            stack.enter_context(mock.patch.object(owner, name, between))
        if "bitsandbytes" in sys.modules:
            widening = torch.ops.bitsandbytes.dequantize_4bit
            stack.enter_context(
                mock.patch.object(widening, "default", clock.beside("dequantise", widening.default))
            )
        yield


def _made_once(models: Iterable[nn.Module]) -> Iterator[tuple[Any, str, str]]:
    """Yield what makes the mask and the rotary angles of all layers: its owner, its name, what it makes."""
    makers = vars(sys.modules.get("transformers.masking_utils", object)).keys()
    modules = [module for model in models for module in model.modules()]
    files = {type(module).__module__ for module in modules} & sys.modules.keys()
    for file in map(sys.modules.__getitem__, sorted(files)):
        for name in vars(file).keys() & makers:
            if name.startswith("create_") and name.endswith("_mask"):
                yield file, name, MASK
    for module in dict.fromkeys(modules):
        if "Rotary" in type(module).__name__:
            yield module, "forward", ROTARY


def _told(
    clock: LayerClock, original: Callable[..., Any], kinds: tuple[str, ...], rule: Rule
) -> Callable[..., Any]:
    """Return a function of torch that tells the clock by `rule` where modules of these kinds call it."""

    @wraps(original)
    def told(*args: Any, **kwargs: Any) -> Any:
        frame = clock._frames[-1]
        if frame.module is None or frame.module.kind not in kinds or (places := rule(frame)) is None:
            return original(*args, **kwargs)
        inside, after, made_here = places
        graph = torch.is_grad_enabled()
        if graph:
            clock.leaving(args[made_here:], inside)
            args = (*map(clock.entering, args[:made_here]), *args[made_here:])
        clock.go_on(inside)
        out = original(*args, **kwargs)
        if graph:
            clock.leaving(out, inside)
        clock.go_on(after)
        return out

    return told


def _product(frame: Frame) -> tuple[Place, Place, int] | None:
    (path, last), item = frame.place, frame.module
    if item is None or last.startswith("("):  # inside another product
        return None
    name = "linear" if item.kind == "router" else _projection(item.module, last)
    return (path, f"({name})"), (path, name), 1


def _kernel(frame: Frame) -> tuple[Place, Place, int] | None:
    """An attention kernel, or a product that begins one."""
    if frame.place[1] == KERNEL:
        return None
    place = (frame.place[0], KERNEL)
    return place, place, MOST_ARGUMENTS


def _beside(frame: Frame, what: str, made_here: int) -> tuple[Place, Place, int]:
    return (frame.place[0], what), frame.place, made_here


def _written(clock: LayerClock, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the addition of one expert's answers, after which the next expert's turn comes."""

    @wraps(original)
    def index_add_(*args: Any, **kwargs: Any) -> Any:
        out = original(*args, **kwargs)
        frame = clock._frames[-1]
        if frame.module is not None and frame.module.kind == "experts":
            if torch.is_grad_enabled():
                clock.leaving(out, frame.place)
            clock.go_on((frame.module.path, CHOSEN))
        return out

    return index_add_


def _projection(experts: nn.Module, last: str) -> str:
    """Return which projection of fused experts comes after `last`."""
    adapted = getattr(experts, "parametrizations", {})  # asking for such a weight would compute it
    names = [name for name in FUSED if name in experts._parameters or name in adapted]
    return names[(names.index(last) + 1) % len(names)] if last in names else names[0]
