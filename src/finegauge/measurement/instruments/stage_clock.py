"""Where the time of a step goes by stage: data, forward, recompute, backward, optimizer."""

from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from time import perf_counter_ns
from typing import Any, Protocol, Self

import torch

from finegauge.profile import Breakdown


class Instants(Protocol):
    """How instants are taken on one kind of device."""

    def now(self) -> Any:
        """Return this instant, in the order of the work that was asked for so far."""
        ...

    def seconds(self, begin: Any, end: Any) -> float:
        """Return the seconds from one instant to another, both settled."""
        ...

    def settle(self) -> None:
        """Wait until every instant taken has come."""
        ...

    def forget(self) -> None:
        """Drop all instants taken so far: they are not asked about again."""
        ...


class HostInstants:
    """Instants of the host's clock, for work that is done when its call returns."""

    now = staticmethod(perf_counter_ns)

    def seconds(self, begin: int, end: int) -> float:
        """Return the seconds between two readings of the clock."""
        return (end - begin) / 1e9

    def settle(self) -> None:
        """Return at once: the work is done."""

    def forget(self) -> None:
        """Return at once: nothing is held."""


class CudaInstants:
    """Events in the current CUDA stream; they are used again from step to step."""

    def __init__(self) -> None:
        """Begin with no events."""
        self._events: list[Any] = []
        self._used = 0

    def now(self) -> Any:
        """Record an event behind the work that was launched so far."""
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


def instants_of(device: torch.device) -> Instants:
    """Return how instants are taken on `device`."""
    return CudaInstants() if device.type == "cuda" else HostInstants()


class Timeline:
    """Marks of one step: what runs from each instant on."""

    def __init__(self, instants: Instants) -> None:
        """Take instants by `instants`."""
        self.instants = instants
        self._marks: list[tuple[Any, Hashable]] = []
        self._now = instants.now

    def mark(self, what: Hashable) -> None:
        """Say that `what` runs from now on."""
        self._marks.append((self._now(), what))

    def close(self) -> dict[Any, float]:
        """End the step; return the seconds of each thing that ran, in the order of first appearance."""
        self.mark(None)
        self.instants.settle()
        spent: dict[Any, float] = {}
        seconds = self.instants.seconds
        for (begin, what), (end, _) in zip(self._marks, self._marks[1:], strict=False):
            spent[what] = spent.get(what, 0.0) + seconds(begin, end)
        self.discard()
        return spent

    def discard(self) -> None:
        """Forget the marks of a step that is over or did not end."""
        self._marks.clear()
        self.instants.forget()


BACKWARD, RECOMPUTE, OTHER = "backward", "recompute", "other"
CHECKPOINTING = "_gradient_checkpointing_func"  # where transformers' modules keep how they checkpoint


class NoClock:
    """A clock that nobody reads."""

    def stage(self, name: str) -> AbstractContextManager[None]:
        """Run what is inside."""
        del name
        return nullcontext()


class StageClock:
    """Times the stages of steps; outside `step` it records nothing."""

    def __init__(self, device: torch.device, *models: torch.nn.Module, instants: Instants | None = None):
        """Time work on `device`; what `models` run again inside it is recomputation."""
        self.steps: list[Breakdown] = []
        self._timeline = Timeline(instants or instants_of(device))
        self._models = models
        self._stage = OTHER
        self._in_step = False

    def __enter__(self) -> Self:
        """Begin to watch for recomputation."""
        self._watching = recomputation_told(self._models, lambda module: self._recompute())
        self._watching.__enter__()
        return self

    def __exit__(self, *failure: object) -> None:
        """Leave the models as they were."""
        self._watching.__exit__(None, None, None)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Time one step; a step that fails leaves no record."""
        self._timeline.discard()
        self._timeline.instants.settle()
        self._in_step, self._stage = True, OTHER
        self._timeline.mark(OTHER)
        try:
            yield
        finally:
            self._in_step = False
        spent = self._timeline.close()
        self.steps.append(Breakdown({(stage,): seconds for stage, seconds in spent.items()}))

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count what runs inside as stage `name`; stages do not nest."""
        if self._stage != OTHER:
            raise RuntimeError(f"Stage '{name}' begins inside stage '{self._stage}'; end that first.")
        self._begin(name)
        try:
            yield
        finally:
            self._begin(OTHER)

    def _begin(self, stage: str) -> None:
        self._stage = stage
        if self._in_step:
            self._timeline.mark(stage)

    @contextmanager
    def _recompute(self) -> Iterator[None]:
        """Count what runs inside as recomputation, if it is the backward pass that runs it."""
        if not (self._in_step and self._stage == BACKWARD):
            yield
            return
        self._timeline.mark(RECOMPUTE)
        try:
            yield
        finally:  # if only because nothing more is needed
            self._timeline.mark(BACKWARD)


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

    modules = [module for model in models for module in model.modules() if CHECKPOINTING in vars(module)]
    found = {id(module): (module, vars(module)[CHECKPOINTING]) for module in modules}
    for module, checkpoint in found.values():
        setattr(module, CHECKPOINTING, told(module, checkpoint))
    try:
        yield
    finally:
        for module, checkpoint in found.values():
            setattr(module, CHECKPOINTING, checkpoint)
