"""Where the time of a step goes by stage: data, forward, recompute, backward, optimizer.

The phase says which stage its work belongs to. What checkpointed layers run again inside
the backward pass is the stage "recompute": the function that they checkpoint by tells. Work between
stages is "other". The stages of a step add up to the step, exactly.

    with StageClock(subject.device, subject.model) as clock:
        with clock.step():
            phase.step(clock)
    clock.steps  # a Breakdown in seconds for every step
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Self

import torch

from finegauge.measure.instruments.timeline import Instants, Timeline, instants_of
from finegauge.profile import Breakdown

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
