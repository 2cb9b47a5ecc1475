"""A run as it is and with single changes, and the changes that make it fit."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from finegauge.answers import Rules
from finegauge.planning.quote import Outcome
from finegauge.prediction.uncertainty import WILL_NOT_FIT
from finegauge.records import NamedTuple, same
from finegauge.run.run import Run

if TYPE_CHECKING:
    from finegauge.planning.advice import Advice
    from finegauge.planning.whatif import Standing, Variant, WhatIf


@Rules(flat=("outcome",))
class Current(NamedTuple):
    """What the run takes as it is."""

    gpu: str
    samples_per_step: float
    outcome: Outcome


@Rules(signed=("cost", "time", "energy", "memory"))
class Objectives(NamedTuple):
    """By what share a change moves each figure: -0.2 is a fifth less."""

    cost: float | None
    time: float | None
    energy: float | None
    memory: float | None


@Rules(hidden=("gains", "helps"), flat=("outcome",))
class ChangedRun(NamedTuple):
    """The run with one change: its fields, what it needs in return, and what it then takes."""

    switch: str
    changes: Mapping[str, Any]
    breaks: tuple[str, ...]
    samples_per_step: float
    outcome: Outcome
    change_fraction: Objectives
    gains: bool = False  # saves anything that is worth a line
    helps: bool = False  # leaves a run that works, or one that is nearer to it


class AdviceAnswer(NamedTuple):
    """What makes a run safe that is not: changes that alone do, the one that costs least first."""

    ways: tuple[ChangedRun, ...]
    together: ChangedRun | None  # several changes on the same GPUs, where no single one does
    smallest: ChangedRun | None  # hardware, where nothing on the same GPUs or no other kind of them does


@Rules(absent=("framework",))
class Exported(NamedTuple):
    """The files that were written, how to start them, and what the framework cannot say."""

    paths: tuple[str, ...]  # the training file first
    command: str  # starts the training
    warnings: tuple[str, ...]
    framework: str | None = None  # where it was asked for


class Fixed(NamedTuple):
    """A run written with the change that makes it fit, in the files of a framework."""

    change: ChangedRun
    framework: str
    paths: tuple[str, ...]  # the training file first
    command: str  # starts the training
    warnings: tuple[str, ...]  # what the framework cannot say


def advice_answer(advice: "Advice") -> AdviceAnswer:
    """Return what makes a run safe, as the planner found it."""

    def maybe(one: "Variant | None") -> ChangedRun | None:
        return None if one is None else changed_run(advice.found, one)

    ways = tuple(changed_run(advice.found, one) for one in advice.found.variants)
    return AdviceAnswer(ways, maybe(advice.together), maybe(advice.smallest))


def fixed_run(run: Run, advice: "Advice", folder: str, *, recipe: str, overwrite: bool) -> Fixed | None:
    """Write `run`, read from `recipe`, with the cheapest change that makes it fit; None where none does.

    Raises: InputError where files are there already.
    """
    from finegauge.planning.advice import fix

    done = fix(run, advice, folder, recipe=recipe, overwrite=overwrite)
    if done is None:
        return None
    files, change = done.written, changed_run(advice.found, done.variant)
    return Fixed(change, done.framework, files.paths, files.command, files.warnings)


def changed_run(found: "WhatIf", one: "Variant") -> ChangedRun:
    """Return a run with one change, beside the run as it is."""
    took = one.standing.outcome
    chance = took.out_of_memory_fraction
    return ChangedRun(
        **same(ChangedRun, one),
        samples_per_step=one.standing.samples_per_step,
        outcome=took,
        change_fraction=Objectives(*(found.change_fraction(one, name) for name in Objectives._fields)),
        gains=found.gains(one),
        helps=took.verdict != WILL_NOT_FIT or chance < found.base.outcome.out_of_memory_fraction,
    )


def current(gpu: str, one: "Standing") -> Current:
    """Return what a run takes as it is."""
    return Current(gpu, one.samples_per_step, one.outcome)
