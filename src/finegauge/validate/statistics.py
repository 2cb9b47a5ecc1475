"""Errors of many rows as a few numbers: median, mean, 90th percentile, bias, coverage, confusion."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from statistics import fmean, median
from typing import Any, NamedTuple

from finegauge.validate.answer import Answer

NUM_WORST = 10
Group = Callable[[Answer], str]


class Errors(NamedTuple):
    """Relative errors of one quantity; the first three of their magnitude, the bias signed."""

    rows: int
    median: float
    mean: float
    p90: float
    bias: float  # median of the signed errors: negative where ours is too small

    @classmethod
    def of(cls, errors: Iterable[float]) -> "Errors | None":
        """Return the statistics of signed `errors`; None where there are none."""
        signed = list(errors)
        if not signed:
            return None
        sizes = sorted(map(abs, signed))
        return cls(len(signed), median(sizes), fmean(sizes), percentile(sizes, 0.9), median(signed))


class Coverage(NamedTuple):
    """How often the truth lies within the 10-90 % interval, below it, above it."""

    rows: int
    inside: float
    below: float
    above: float

    @classmethod
    def of(cls, places: Iterable[int]) -> "Coverage | None":
        """Return the shares of `places`: -1 below the interval, 0 inside, 1 above."""
        found = list(places)
        if not found:
            return None
        n = len(found)
        return cls(n, found.count(0) / n, found.count(-1) / n, found.count(1) / n)


class Confusion(NamedTuple):
    """Fits or not: predicted against measured."""

    ok_as_ok: int
    ok_as_oom: int  # it ran, and we said that it would not fit
    oom_as_ok: int  # it ran out of memory, and we said that it would fit
    oom_as_oom: int

    @property
    def accuracy(self) -> float | None:
        """Return the share of right answers; None without rows."""
        return (self.ok_as_ok + self.oom_as_oom) / sum(self) if sum(self) else None


def percentile(ranked: list[float], share: float) -> float:
    """Return the smallest of `ranked`, in rising order, that `share` of them do not exceed."""
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))]


def time_errors(answers: Iterable[Answer]) -> Errors | None:
    """Return the errors of the step time."""
    return Errors.of(e for e in (answer.step_time_error for answer in answers) if e is not None)


def memory_errors(answers: Iterable[Answer]) -> Errors | None:
    """Return the errors of the peak memory, whatever its metric: pass rows of one metric."""
    return Errors.of(e for e in (answer.peak_memory_error for answer in answers) if e is not None)


def time_coverage(answers: Iterable[Answer]) -> Coverage | None:
    """Return how often the measured step time lies within the predicted interval."""
    places = []
    for one in answers:
        error, ours = one.step_time_error, one.prediction
        if error is not None and ours is not None:
            places.append(_place(ours.step_time_s / (1 + error), ours.step_time_s_p10, ours.step_time_s_p90))
    return Coverage.of(places)


def memory_coverage(answers: Iterable[Answer]) -> Coverage | None:
    """Return how often the measured peak memory lies within the predicted interval."""
    places = []
    for one in answers:
        theirs, ours = one.row.measured.peak_memory_gib, one.prediction
        if theirs and ours is not None:
            places.append(_place(theirs, ours.peak_memory_gib_p10, ours.peak_memory_gib_p90))
    return Coverage.of(places)


def confusion(answers: Iterable[Answer]) -> Confusion:
    """Return fits-or-not over the rows that state an outcome."""
    pairs = [
        (one.row.measured.outcome, one.prediction.outcome)
        for one in answers
        if one.prediction is not None and one.row.measured.outcome in ("ok", "oom")
    ]
    return Confusion(
        *(pairs.count(pair) for pair in (("ok", "ok"), ("ok", "oom"), ("oom", "ok"), ("oom", "oom")))
    )


def worst(answers: Iterable[Answer], count: int = NUM_WORST) -> list[Answer]:
    """Return the answers with the largest error in time or memory, worst first."""
    scored = [(max(map(abs, errors)), one) for one in answers if (errors := _errors(one))]
    return [one for _, one in sorted(scored, key=lambda item: -item[0])[:count]]


def by(answers: Iterable[Answer], group: Group) -> dict[str, list[Answer]]:
    """Return the answers by the name of their group, largest group first."""
    groups: dict[str, list[Answer]] = defaultdict(list)
    for one in answers:
        groups[group(one)].append(one)
    return dict(sorted(groups.items(), key=lambda item: (-len(item[1]), item[0])))


def family(one: Answer) -> str:
    """Return the model family of a row: the model_type of its configuration."""
    return str(one.row.run.config.get("model_type", "unknown")) if one.row.run else "unknown"


def gpu(one: Answer) -> str:
    """Return how many of which GPU a row ran on."""
    run = one.row.run
    return "unknown" if run is None else f"{run.gpu} x{run.num_gpus}" if run.num_gpus > 1 else str(run.gpu)


def method(one: Answer) -> str:
    """Return the method of a row."""
    return one.row.run.method if one.row.run else "unknown"


GROUPS: dict[str, Group] = {
    "source": lambda one: one.row.source,
    "gpu": gpu,
    "method": method,
    "family": family,
}


def to_json(figures: Any) -> Any:
    """Return a NamedTuple of figures as a mapping; None stays None."""
    return None if figures is None else figures._asdict()


def _errors(one: Answer) -> list[float]:
    return [error for error in (one.step_time_error, one.peak_memory_error) if error is not None]


def _place(truth: float, low: float, high: float) -> int:
    return -1 if truth < low else int(truth > high)
