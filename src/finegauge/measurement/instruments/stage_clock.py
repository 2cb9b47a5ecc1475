"""Where the time of a step goes by stage: data, forward, recompute, backward, optimizer.

The phase says which stage its work belongs to. What checkpointed layers run again inside the backward
pass is the stage "recompute": the function that they checkpoint by tells. Work between stages is "other".
Every mark says what runs from its instant to the next mark's, so the stages of a step add up to the step.

    with StageClock(subject.device, subject.model) as clock:
        with clock.step():
            phase.step(clock)
    clock.steps  # a Breakdown in seconds for every step
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from time import perf_counter_ns
from typing import Any, Self
from unittest import mock

import torch

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
