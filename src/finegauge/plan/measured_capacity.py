"""The largest micro-batch that really fits, found in a few trials between predicted bounds.

    low  <  what fits  <  high

`low` fits even at the prediction's 90th percentile, `high` does not even at its 10th: from
there on a trial would certainly run out of memory, and none is launched. Between them each
trial corrects the prediction by what it measured, and the next one is where the corrected
line meets what the device has; a trial that runs out of memory halves the rest.
"""

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from finegauge.plan.capacity import MAX_MICRO_BATCH_SIZE, Capacity, Estimator, unit_within
from finegauge.profile import Profile

if TYPE_CHECKING:
    from finegauge.workload.run import Run

MOST_TRIALS = 4
UNSURE_RATIOS = 0.85, 1.15  # where a prediction states no interval of its own
ANSWERS = ("completed", "out_of_memory")


class Bounds(NamedTuple):
    """Between which batches the border lies, by prediction."""

    low: int  # surely fits; 0: none does
    likely: int  # the largest that fits by the median
    high: int  # surely does not fit; beyond the limit where everything up to it may


class MeasuredCapacity(NamedTuple):
    """What the trials found."""

    capacity: Capacity
    bounds: Bounds
    trials: tuple[Profile, ...]  # in the order in which they were run
    untried: int  # batches between the largest that fitted and the first known not to


def measured_max_micro_batch_size(
    run: "Run",
    measure: Estimator,
    predict: Estimator,
    *,
    capacity_bytes: float,
    limit: int = MAX_MICRO_BATCH_SIZE,
    most_trials: int = MOST_TRIALS,
) -> MeasuredCapacity:
    """Return the largest `micro_batch_size` that was measured to fit.

    Args:
        run: The question; its own micro_batch_size does not matter.
        measure: Runs a trial and says how it ended.
        predict: Says how much memory a trial should need.
        capacity_bytes: What a trial may allocate.
        limit: The largest size to consider.
        most_trials: How many trials to run at most.
    """
    unit = unit_within(run, limit)

    @cache
    def predicted(units: int) -> Profile:
        return predict(run.replace(micro_batch_size=units * unit))

    def corrected_fits(units: int) -> bool:
        return _needed(predicted(units)) * correction <= capacity_bytes

    most = limit // unit
    bounds = _bounds(predicted, capacity_bytes, most)
    trials: dict[int, Profile] = {}
    low, high, guess = 0, bounds.high, max(1, bounds.likely)
    correction = 1.0
    while low < guess < high and len(trials) < most_trials:
        trial = measure(run.replace(micro_batch_size=guess * unit))
        trials[guess] = trial
        if trial.outcome not in ANSWERS:
            break
        if trial.fits:
            low = guess
            correction = _correction(trial, predicted(guess), correction)
            refuted = high in trials and corrected_fits(high)
            guess = (low + high) // 2 if refuted else max(low + 1, _largest(corrected_fits, low, high))
        else:
            high = guess
            known = bounds.low if bounds.low < high else 0  # a bound that a trial has refuted is none
            last = len(trials) == most_trials - 1 and not low  # better a size that fits than none
            guess = known if last and known else (max(low, known) + high) // 2
    capacity = Capacity(
        field="micro_batch_size",
        value=low * unit,
        limit=most * unit,
        profile=trials.get(low),
        first_that_fails=trials.get(high) or (predicted(high) if high <= most else None),
        num_probes=len(trials),
    )
    sizes = Bounds(*(units * unit for units in bounds))
    return MeasuredCapacity(capacity, sizes, tuple(trials.values()), high - low - 1)


def _bounds(predicted: Callable[[int], Profile], capacity_bytes: float, limit: int) -> Bounds:
    """Return the batches that surely fit, probably fit and surely do not."""
    low_ratio, high_ratio = predicted(1).source.memory_interval or UNSURE_RATIOS

    def largest(ratio: float) -> int:
        return _largest(lambda size: _needed(predicted(size)) * ratio <= capacity_bytes, 0, limit + 1)

    return Bounds(low=largest(high_ratio), likely=largest(1.0), high=largest(low_ratio) + 1)


def _largest(fits: Callable[[int], bool], low: int, high: int) -> int:
    """Return the largest number from `low` (known to fit) to below `high` (known not to) that fits."""
    step = 1
    while low + step < high and fits(low + step):  # doubling first: most limits are far from the answer
        low += step
        step *= 2
    high = min(high, low + step)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _needed(profile: Profile) -> float:
    """Return the bytes that have to fit."""
    return profile.device_memory_bytes.total


def _correction(trial: Profile, predicted: Profile, before: float) -> float:
    """Return measured over predicted memory; what was known before where the trial did not measure it."""
    measured, expected = trial.peak_memory_bytes.total, predicted.peak_memory_bytes.total
    return measured / expected if measured and expected else before
