"""The whole answer about one run on one GPU: one step, the room that is left, and the bill.

This is what `finegauge estimate` shows and what `finegauge check` judges.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from finegauge.errors import UnsupportedError
from finegauge.planning.capacity import Capacity, Estimator, max_micro_batch_size
from finegauge.planning.quote import Quote, quote
from finegauge.prediction.uncertainty import FITS, verdict
from finegauge.profile import Profile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from finegauge.run.run import Run


class Estimate(NamedTuple):
    """One run on one GPU: its step, its largest micro-batch, its bill."""

    profile: Profile
    out_of_memory_fraction: float  # the probability that the run runs out of memory
    capacity: Capacity
    safe_micro_batch_size: int | None  # the largest that is not even risky; None where the run's own is safe
    quote: Quote

    @property
    def run(self) -> "Run":
        """Return the run that is estimated."""
        return self.profile.run

    @property
    def verdict(self) -> str:
        """Return fits, risky or will_not_fit."""
        return verdict(self.out_of_memory_fraction)


def estimate(run: "Run", estimator: Estimator | None = None, *, at_max_batch: bool = False) -> Estimate:
    """Return the whole answer about `run`, which states its GPU.

    Args:
        run: The question.
        estimator: Who says what a step takes; FineGauge's prediction by default.
        at_max_batch: Ask about the largest micro-batch that fits, not about the run's own.
    """
    from finegauge.prediction.uncertainty import probability_out_of_memory

    ask = _remembering(estimator)
    own = ask(run)  # before the search, so that it keeps the run's own origins
    capacity = max_micro_batch_size(run, ask)
    profile = capacity.profile or own if at_max_batch else own
    chance = probability_out_of_memory(profile)
    return Estimate(
        profile=profile,
        out_of_memory_fraction=chance,
        capacity=capacity,
        safe_micro_batch_size=None if verdict(chance) == FITS else _safe_micro_batch_size(run, ask),
        quote=quote(profile.run, profile),
    )


def estimates(
    runs: "Sequence[Run]", estimator: Estimator | None = None, *, at_max_batch: bool = False
) -> tuple[list[Estimate], dict[str, str]]:
    """Return the whole answer about each of `runs`, and by GPU why there is none.

    Raises: UnsupportedError where none has an answer.
    """
    found, unsupported = [], {}
    for run in runs:
        try:
            found.append(estimate(run, estimator, at_max_batch=at_max_batch))
        except UnsupportedError as error:
            unsupported[str(run.gpu)] = str(error)
    if not found:
        raise UnsupportedError(next(iter(unsupported.values())))
    return found, unsupported


def _remembering(estimator: Estimator | None) -> Estimator:
    """Return an Estimator that is not asked twice about the same run."""
    from finegauge.prediction.predictor import predict

    asked, known = estimator or predict, {}

    def ask(run: "Run") -> Profile:
        if run not in known:
            known[run] = asked(run)
        return known[run]

    return ask


def _safe_micro_batch_size(run: "Run", estimator: Estimator) -> int:
    """Return the largest micro-batch that is not even risky; 0 if there is none."""
    from finegauge.prediction.uncertainty import probability_out_of_memory

    def cautious(asked: "Run") -> Profile:
        profile = estimator(asked)
        safe = verdict(probability_out_of_memory(profile)) == FITS
        return profile if safe else replace(profile, outcome="out_of_memory")

    return max_micro_batch_size(run, cautious).value
