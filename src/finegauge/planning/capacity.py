"""The largest micro-batch, or the longest sequence, that still fits, and the largest that is safe.

Out of memory is an outcome, not an error, so the answer is where the outcome flips. The
search brackets that point and, where the Estimator says how much memory a step takes,
aims along the lines through known steps: about four probes where memory is affine.
It never knows whether its Estimator predicts or measures.

Neglects: an Estimator whose outcome flips more than once.
"""

from bisect import bisect_left
from collections.abc import Callable
from functools import cache, partial
from math import ceil, floor
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from finegauge.errors import FieldError
from finegauge.profile import Estimator, Profile
from finegauge.records import NamedTuple

if TYPE_CHECKING:
    from finegauge.run.run import Run

MAX_MICRO_BATCH_SIZE = 4096
MAX_SEQ_LEN = 1_048_576
Room = Callable[[Profile], float]
MANY = 1e12  # a line that meets the limit beyond this never does


class Capacity(NamedTuple):
    """The largest value of one field that fits, with the steps on both sides of the border."""

    field: str  # the field of Run that was varied
    value: int  # the largest that fits by the median; 0 where even the smallest does not
    safe_value: int  # the largest that is not even risky; 0 where none is
    limit: int  # the search went no further
    profile: Profile | None  # the step at `value`
    safe_profile: Profile | None  # the step at `safe_value`
    first_that_fails: Profile | None  # the step just above; None where `limit` still fits
    num_probes: int

    @property
    def at_limit(self) -> bool:
        """Return whether the search stopped at its limit, not at the memory's."""
        return self.first_that_fails is None


def max_micro_batch_size(
    run: "Run", estimator: Estimator | None = None, *, limit: int = MAX_MICRO_BATCH_SIZE
) -> Capacity:
    """Return the largest `micro_batch_size` whose longest batch fits, up to `limit` sequences.

    GRPO's come in steps that give every prompt all its answers.

    Args:
        run: The question; its own micro_batch_size does not matter.
        estimator: Says whether a step fits; FineGauge's prediction by default.
        limit: The largest size to consider.

    Raises: FieldError where `limit` is less than one such step.
    """
    return _search(run, "micro_batch_size", estimator, limit, unit_within(run, limit))


def max_seq_len(run: "Run", estimator: Estimator | None = None, *, limit: int = MAX_SEQ_LEN) -> Capacity:
    """Return the longest `seq_len`, a multiple of `pad_to_multiple_of`, at which the batch fits.

    The run's data set is set aside: every sequence counts as long as the cut-off, for that
    is the batch that has to fit.
    """
    from finegauge.model.families.decoder import learned_positions
    from finegauge.model.graph import build

    limit = min(limit, learned_positions(run, build(run).model) or limit)
    unit = min(run.pad_to_multiple_of, limit)
    return _search(run.replace(dataset=None), "seq_len", estimator, limit, unit)


def safe_memory_utilization(run: "Run", estimator: Estimator) -> float | None:
    """Return the largest `gpu_memory_utilization` of a rollout engine, in hundredths, that is not even risky.

    None where none is, or the engine has GPUs of its own.
    """
    from finegauge.prediction.rollout import engine_of
    from finegauge.prediction.uncertainty import is_safe
    from finegauge.run.phases import has_engine

    if not has_engine(run) or run.rollout_gpus:
        return None
    low = ceil(100 * engine_of(run).needed_fraction)

    def is_risky(hundredths: int) -> bool:
        return not is_safe(estimator(run.replace(gpu_memory_utilization=hundredths / 100)))

    found = bisect_left(range(low, 100), True, key=is_risky) + low - 1
    return found / 100 if found >= low else None


def unit_within(run: "Run", limit: int) -> int:
    """Return in what steps `micro_batch_size` may grow.

    Raises: FieldError where not even one is within `limit`.
    """
    from finegauge.run.phases import batch_unit

    unit = batch_unit(run)
    if unit > limit:
        raise FieldError(
            f"The search goes no further than {limit} sequences, but phase={run.phase} with "
            f"num_generations={run.num_generations} takes multiples of {unit}; raise the limit."
        )
    return unit


def _search(run: "Run", field: str, estimator: Estimator | None, limit: int, unit: int) -> Capacity:
    """Return the borders of what may fit and of what is safe, in multiples of `unit` up to `limit`."""
    if estimator is None:
        from finegauge.prediction.predictor import predict

        estimator = predict
    known: dict[int, Profile] = {}
    most = limit // unit

    def ask(units: int) -> Profile:
        changes: dict[str, Any] = {field: units * unit}
        return estimator(run.replace(**changes))

    low, high = _border(ask, known, attrgetter("fits"), most)
    safe = low
    if low and known[low].source.memory_interval is not None:  # else what may fit is known to
        from finegauge.prediction.uncertainty import is_safe, safe_bytes

        safe, _ = _border(ask, known, is_safe, low, safe_bytes)
    return Capacity(
        field=field,
        value=low * unit,
        safe_value=safe * unit,
        limit=most * unit,
        profile=known.get(low),
        safe_profile=known.get(safe),
        first_that_fails=None if high is None else known[high],
        num_probes=len(known),
    )


def _border(
    ask: Callable[[int], Profile],
    known: dict[int, Profile],
    fits: Callable[[Profile], bool],
    most: int,
    room: Room = attrgetter("capacity_bytes"),
) -> tuple[int, int | None]:
    """Return the largest number up to `most` whose step fits, 0 for none, and the smallest that does not.

    `known` holds the steps of numbers that were asked about before, and those that are; `room` says what a
    step may need.
    """
    below, low, high, before = 0, 0, None, len(known)
    for number in sorted(known):
        if not fits(known[number]):
            high = number
            break
        below, low = low, number
    while low < most and (high is None or high - low > 1):
        is_fourth = (len(known) - before) % 4 == 3
        guess = _aim(known, room, below, low, high, most, halves=is_fourth)
        known[guess] = ask(guess)
        if fits(known[guess]):
            below, low = low, guess
        else:
            high = guess
    return low, high


def _aim(
    known: dict[int, Profile], room: Room, below: int, low: int, high: int | None, most: int, *, halves: bool
) -> int:
    """Return the next multiple to probe, between `low` and `high`; `below` fitted before `low` did.

    Memory that rises ever faster meets the limit between where the chord of the bracket
    meets it and where the line through the two steps below does: the middle of both is
    probed. Every fourth probe halves the bracket, so that no other curve can make the
    search crawl; while nothing is known of memory, the guess doubles and halves.
    """
    risen = _crossing(known, room, below, low)
    if high is None:
        return min(most, max(low + 1, risen if risen is not None else 2 * low))
    chord = _crossing(known, room, low, high)
    if chord is None or halves:
        guess = (low + high) // 2 if high < 16 * low else round((max(1, low) * high) ** 0.5)
    else:
        guess = chord if risen is None else (chord + min(risen, high)) // 2
    return min(max(guess, low + 1), high - 1)


def _crossing(known: dict[int, Profile], room: Room, one: int, other: int) -> int | None:
    """Return the multiple at which the line through two known steps reaches what a step may need.

    None where a step is not known, or memory does not rise.
    """
    if one not in known or other not in known:
        return None
    first, second = known[one].device_memory_bytes.total, known[other].device_memory_bytes.total
    slope = (second - first) / (other - one)
    capacity = room(known[other])
    if slope <= 0 or not capacity:
        return None
    return other + floor(max(-MANY, min(MANY, (capacity - second) / slope)))


# The largest micro-batch that really fits, found in a few trials between predicted bounds.
#
#     low  <  what fits  <  high
#
# `low` fits even at the prediction's 90th percentile, `high` does not even at its 10th: from
# there on a trial would certainly run out of memory, and none is launched. Between them each
# trial corrects the prediction by what it measured, and the next one is where the corrected
# line meets what the device has; a trial that runs out of memory halves the rest.

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

    `measure` runs a trial, which may allocate `capacity_bytes`; `predict` says how much it should need.
    """
    unit = unit_within(run, limit)

    @cache
    def predicted(units: int) -> Profile:
        return predict(run.replace(micro_batch_size=units * unit))

    def fits(ratio: float, units: int) -> bool:
        return predicted(units).device_memory_bytes.total * ratio <= capacity_bytes

    most = limit // unit
    low_ratio, high_ratio = predicted(1).source.memory_interval or UNSURE_RATIOS
    bounds = Bounds(*(_largest(partial(fits, ratio), 0, most + 1) for ratio in (high_ratio, 1.0, low_ratio)))
    bounds = bounds._replace(high=bounds.high + 1)
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
            measured = trial.peak_memory_bytes.total
            expected = predicted(guess).peak_memory_bytes.total
            correction = measured / expected if measured and expected else correction
            refuted = high in trials and fits(correction, high)
            likely = _largest(partial(fits, correction), low, high)
            guess = (low + high) // 2 if refuted else max(low + 1, likely)
        else:
            high = guess
            known = bounds.low if bounds.low < high else 0  # a bound that a trial has refuted is none
            last = len(trials) == most_trials - 1 and not low  # better a size that fits than none
            guess = known if last and known else (max(low, known) + high) // 2
    capacity = Capacity(
        field="micro_batch_size",
        value=low * unit,
        safe_value=low * unit,
        limit=most * unit,
        profile=trials.get(low),
        safe_profile=trials.get(low),
        first_that_fails=trials.get(high) or (predicted(high) if high <= most else None),
        num_probes=len(trials),
    )
    sizes = Bounds(*(units * unit for units in bounds))
    return MeasuredCapacity(capacity, sizes, tuple(trials.values()), high - low - 1)


def _largest(fits: Callable[[int], bool], low: int, high: int) -> int:
    step = 1
    while low + step < high and fits(low + step):  # doubling first: most limits are far from the answer
        low += step
        step *= 2
    high = min(high, low + step)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
