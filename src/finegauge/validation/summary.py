"""Measured rows held against predictions: errors, coverage of the intervals, fits or not, P(OOM), rivals.

Reliability of P(OOM): predicted probabilities against how often runs really ran out of memory. Every measured
peak says, of any room, whether the step would have run out of it: the rooms asked about are shares of the
predicted peak. A row that only ran, or ran out of memory, says so of its own GPU. The interval behind the
probability is made as a prediction's is, wider for a new framework and for what an allocator keeps, of all
other sources, so no row speaks for itself; with too few others it is the one in force. All sources weigh
alike.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import exp, inf, log
from statistics import fmean, median
from typing import NamedTuple

from finegauge.calibration import MIN_SOURCES, Residual, conformal_interval
from finegauge.errors import FineGaugeError
from finegauge.formats.measurement_tables import METRICS, MeasuredRow, read_table
from finegauge.prediction.moments import moments_of
from finegauge.prediction.predictor import predict
from finegauge.prediction.serving import served_outcomes
from finegauge.prediction.uncertainty import (
    RESERVED,
    UNMEASURED,
    counted_interval,
    exceeded_ratio,
    exceeding_fraction,
    is_unweighed,
    memory_interval,
    probability_out_of_memory,
)
from finegauge.profile import Interval, Profile
from finegauge.run.rules import RL
from finegauge.run.run import Run
from finegauge.units import GIB
from finegauge.validation.rivals import rivals

Estimator = Callable[["Run"], Profile]
EXACT = Interval(1.0, 1.0)  # of an Estimator that gives no interval


class Prediction(NamedTuple):
    """An Estimator's prediction for one row, in the row's own quantities."""

    step_time_s: float
    step_time_s_p10: float
    step_time_s_p90: float
    tokens_per_s_per_gpu: float
    peak_memory_gib: float  # by the row's metric
    peak_memory_gib_p10: float
    peak_memory_gib_p90: float
    p_oom: float
    outcome: str  # ok or oom
    generation_s: float | None = None  # of a step that generates and learns
    training_s: float | None = None
    scoring_s: float | None = None  # likelihoods, and the judges of the answers
    sync_s: float | None = None  # new weights to the engine, and what moves to the host and back
    ttft_s: float | None = None  # of a service
    time_per_output_token_s: float | None = None
    output_tokens_per_s: float | None = None
    joules_per_token: float | None = None


class Answer(NamedTuple):
    """One row, answered or not."""

    row: MeasuredRow
    prediction: Prediction | None
    reason: str  # why there is no prediction; "" where there is one
    profile: Profile | None = None

    @property
    def step_time_error(self) -> float | None:
        """Return the signed relative error of the step's seconds."""
        ours, theirs = self.prediction, self.row.measured
        if ours is None or ours.step_time_s <= 0:
            return None
        if theirs.step_time_s:
            micro_steps = self.row.run.gradient_accumulation_steps if self.row.run else 1
            steps = micro_steps if theirs.step_is_micro_batch else 1
            return ours.step_time_s / (theirs.step_time_s * steps) - 1
        if theirs.tokens_per_s_per_gpu and ours.tokens_per_s_per_gpu > 0:
            return theirs.tokens_per_s_per_gpu / ours.tokens_per_s_per_gpu - 1
        if theirs.samples_per_s and self.profile is not None and self.profile.samples_per_s > 0:
            return theirs.samples_per_s / self.profile.samples_per_s - 1
        return None

    @property
    def peak_memory_error(self) -> float | None:
        """Return the signed relative error of the peak memory, by the row's metric."""
        if self.prediction is None or not self.row.measured.peak_memory_gib:
            return None
        if self.prediction.peak_memory_gib <= 0:  # a rival that says nothing about memory
            return None
        return self.prediction.peak_memory_gib / self.row.measured.peak_memory_gib - 1


def answer(row: MeasuredRow, estimator: Estimator | None = None) -> Answer:
    """Return `row` with what `estimator` (FineGauge's prediction by default) says about its run.

    Only the run is handed on: the measured columns never reach the Estimator.
    """
    if row.run is None:
        return Answer(row, None, row.reason)
    if estimator is None:
        estimator = predict
    try:
        profile = estimator(row.run)
        return Answer(row, prediction_of(profile, row.measured.memory_metric), "", profile)
    except FineGaugeError as error:
        return Answer(row, None, str(error))
    except Exception as error:
        # a table may describe a model that no code foresaw; one row must not end the whole validation
        return Answer(row, None, f"internal error ({type(error).__name__}: {error})")


def prediction_of(profile: Profile, metric: str) -> Prediction:
    """Return `profile` in the quantities of a row whose memory is counted by `metric`."""
    seconds, peak = profile.step_time_s.total, profile.memory_bytes(metric) / GIB
    fast, slow = (profile.source.time_interval or EXACT).of(seconds)
    allocated = profile.source.memory_interval
    low, high = (counted_interval(allocated, metric) if allocated else EXACT).of(peak)
    return Prediction(
        step_time_s=seconds,
        step_time_s_p10=fast,
        step_time_s_p90=slow,
        tokens_per_s_per_gpu=profile.tokens_per_s / profile.run.all_gpus,
        peak_memory_gib=peak,
        peak_memory_gib_p10=low,
        peak_memory_gib_p90=high,
        p_oom=probability_out_of_memory(profile),
        outcome="ok" if _fits(profile) else "oom",
        **parts_of(profile),
    )


def _fits(profile: Profile) -> bool:
    """Return whether the GPU holds every moment; of a predictor that has but the step, the step."""
    if not profile.fits or profile.source.memory_interval is None:
        return profile.fits
    return all(one.device_bytes <= profile.capacity_bytes for one in moments_of(profile))


def parts_of(profile: Profile) -> dict[str, float]:
    """Return the parts of a step that generates and learns, or what a service gives, by columns of tables."""
    if profile.run.phase not in RL:
        return served_outcomes(profile)
    step = profile.step_time_s
    generation_s, scoring_s, sync_s = step["generation"], step["scoring"] + step["reward"], step["sync"]
    return {
        "generation_s": generation_s,
        "training_s": step.total - generation_s - scoring_s - sync_s,
        "scoring_s": scoring_s,
        "sync_s": sync_s,
    }


NUM_WORST = 10
Group = Callable[[Answer], str]
CountErrors = Callable[[Iterable[Answer]], "Errors | None"]
CountCoverage = Callable[[Iterable[Answer]], "Coverage | None"]


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


def part_errors(answers: Iterable[Answer]) -> dict[str, Errors]:
    """Return the errors of the parts of steps, and of what services give, where tables state them."""
    found: dict[str, list[float]] = {}
    for one in answers:
        ours = {} if one.profile is None else parts_of(one.profile)
        for name, seconds in one.row.measured.parts.items():
            if name in ours:
                found.setdefault(name, []).append(ours[name] / seconds - 1)
    return {name: errors for name, values in found.items() if (errors := Errors.of(values))}


def time_coverage(answers: Iterable[Answer]) -> Coverage | None:
    """Return how often the measured step time lies within the predicted interval."""
    places = []
    for one in answers:
        error, ours = one.step_time_error, one.prediction
        if error is not None and ours is not None:
            theirs = ours.step_time_s / (1 + error) if error > -1 else inf  # beyond what a float tells apart
            places.append(_place(theirs, ours.step_time_s_p10, ours.step_time_s_p90))
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

    def size(one: Answer) -> float:
        return max(abs(error or 0.0) for error in (one.step_time_error, one.peak_memory_error))

    known = [one for one in answers if (one.step_time_error, one.peak_memory_error) != (None, None)]
    return sorted(known, key=lambda one: -size(one))[:count]


def by(answers: Iterable[Answer], group: Group) -> dict[str, list[Answer]]:
    """Return the answers by the name of their group, largest group first."""
    groups: dict[str, list[Answer]] = defaultdict(list)
    for one in answers:
        groups[group(one)].append(one)
    return dict(sorted(groups.items(), key=lambda item: (-len(item[1]), item[0])))


def _gpu(one: Answer) -> str:
    run = one.row.run
    return "unknown" if run is None else f"{run.gpu} x{run.num_gpus}" if run.num_gpus > 1 else str(run.gpu)


GROUPS: dict[str, Group] = {
    "source": lambda one: one.row.source,
    "gpu": _gpu,
    "method": lambda one: one.row.run.method if one.row.run else "unknown",
    "family": lambda one: str(one.row.run.config.get("model_type", "unknown")) if one.row.run else "unknown",
}


def _place(truth: float, low: float, high: float) -> int:
    return -1 if truth < low else int(truth > high)


def explanation(one: Answer) -> str:
    """Return what dominates the prediction of a row, and what was guessed."""
    profile, row = one.profile, one.row
    if profile is None or one.prediction is None:
        return one.reason
    parts = []
    time_error, memory_error = one.step_time_error, one.peak_memory_error
    if time_error is not None and abs(time_error) >= abs(memory_error or 0.0):
        parts.append(f"Most of the step by our account: {profile.bottleneck}")
    elif memory_error is not None:
        path, size = next(iter(profile.peak_memory_bytes))
        most = f"most of it {' '.join(path)} ({size / GIB:.1f} GiB)"
        parts.append(f"Our peak is in phase '{profile.peak_phase}', {most}.")
        if row.measured.memory_metric == "unknown":
            parts.append("The table does not say how it counts memory.")
    if row.lengths != "full":
        known = "their mean is known" if row.lengths == "mean" else "only the cut-off is known"
        parts.append(f"Lengths vary and {known}.")
    if row.assumptions:
        parts.append(f"Guessed: {'; '.join(row.assumptions)}.")
    return " ".join(parts)


class Validation(NamedTuple):
    """Every row of the tables with its answer, and the rivals' answers by their names."""

    answers: tuple[Answer, ...]
    rivals: Mapping[str, Sequence[Answer]]
    absent: Mapping[str, str]  # rivals that were asked for and cannot answer here, with the reason

    @property
    def answered(self) -> list[Answer]:
        """Return the rows that have a prediction."""
        return [one for one in self.answers if one.prediction is not None]

    @property
    def unanswered(self) -> dict[str, list[str]]:
        """Return the ids of the rows without a prediction, by reason, the most frequent first."""
        found: dict[str, list[str]] = defaultdict(list)
        for one in self.answers:
            if one.prediction is None:
                found[one.reason].append(one.row.id)
        return dict(sorted(found.items(), key=lambda item: -len(item[1])))

    def of_metric(self, metric: str) -> list[Answer]:
        """Return the answered rows whose memory is counted by `metric`."""
        measured = ((one, one.row.measured) for one in self.answered)
        return [one for one, its in measured if its.memory_metric == metric and its.peak_memory_gib]


def validate(
    tables: Iterable[str], estimator: Estimator | None = None, against: Iterable[str] = ()
) -> Validation:
    """Return every row of the measurement `tables`, answered by `estimator` and by each rival.

    `estimator` is FineGauge's prediction by default; `against` names rivals, or "all".

    Raises: FileFormatError for a file that is no measurement table; InputError for an unknown rival.
    """
    rows: list[MeasuredRow] = [row for path in tables for row in read_table(path)]
    found, absent = rivals(against, rows)
    return Validation(
        answers=tuple(answer(row, estimator) for row in rows),
        rivals={name: tuple(answer(row, rival) for row in rows) for name, rival in found.items()},
        absent=absent,
    )


class Match(NamedTuple):
    """A rival's errors and ours in one quantity, on the rows that both answer."""

    quantity: str  # "step_time" or a memory metric
    theirs: Errors
    ours: Errors


def matches(validation: Validation, name: str) -> list[Match]:
    """Return how the rival called `name` compares with us: step time, then memory by metric."""
    ours = {id(one.row): one for one in validation.answered}
    pairs = [(one, ours[id(one.row)]) for one in validation.rivals[name] if id(one.row) in ours]
    timed = [pair for pair in pairs if all(one.step_time_error is not None for one in pair)]
    sized = [pair for pair in pairs if all(one.peak_memory_error is not None for one in pair)]
    found = [_match("step_time", timed, time_errors)]
    for metric in METRICS:
        rows = [pair for pair in sized if pair[0].row.measured.memory_metric == metric]
        found.append(_match(metric, rows, memory_errors))
    return [match for match in found if match]


def _match(quantity: str, pairs: list[tuple[Answer, Answer]], count: CountErrors) -> Match | None:
    theirs, ours = count(pair[0] for pair in pairs), count(pair[1] for pair in pairs)
    return Match(quantity, theirs, ours) if theirs and ours else None


ROOMS = tuple(exp(0.05 * step) for step in range(-6, 8))  # 0.74 to 1.42 of the predicted peak
CHANCES = tuple((step + 0.5) / 20 for step in range(20))  # that a room is claimed to be too small by
ENDS = (0.0, 0.05, 0.2, 0.5, 0.8, 0.95, 1.0)
FEW_CLAIMS = 10  # which say little about a source
SURE_FROM_FRACTION = 0.5  # the more likely of fits or not


class Bin(NamedTuple):
    """What was said with a probability from one end to the next, all sources weighing alike.

    One that says less than `FEW_CLAIMS` there weighs by what it says.
    """

    low_fraction: float
    high_fraction: float
    claims: int
    sources: int
    predicted_fraction: float
    observed_fraction: float


class Reliability(NamedTuple):
    """P(OOM) against what happened, each source by the interval of the others."""

    bins: tuple[Bin, ...]
    rows: int  # that state an outcome
    accuracy_fraction: float | None  # of fits or not, by the more likely, on these


class _Claim(NamedTuple):
    source: str
    probability: float
    happened: bool


def reliability(answers: Iterable[Answer]) -> Reliability | None:
    """Return how often P(OOM) came true; None where no row states memory or an outcome."""
    of_source: dict[str, list[Answer]] = defaultdict(list)
    for one in answers:
        of_source[one.row.source].append(one)
    known = [one for answered in of_source.values() for one in answered if _residual(one)]
    kinds = (
        [one for one in known if _metric(one) == "torch_allocated" and not _is_new(one)],
        [one for one in known if _is_new(one)],
        [one for one in known if _metric(one) != "torch_allocated"],
    )
    claims: list[_Claim] = []
    right: list[bool] = []
    for source, answered in of_source.items():
        allocated, new, beyond = (_of_others(kind, source) for kind in kinds)
        for one in answered:
            if one.profile is None:
                continue
            in_force = one.profile.source.memory_interval or EXACT
            interval = memory_interval(one.profile.run, allocated or in_force, new or UNMEASURED)
            counted = counted_interval(interval, _metric(one), beyond or RESERVED)
            claims += _margins(one, counted)
            claims += (own := _outcome(one, interval))
            right += [(claim.probability >= SURE_FROM_FRACTION) == claim.happened for claim in own]
    if not claims:
        return None
    return Reliability(tuple(_bins(claims)), len(right), sum(right) / len(right) if right else None)


def _of_others(rows: Iterable[Answer], source: str) -> Interval | None:
    """Return the interval of `rows` without those of `source`; None where too few sources are left."""
    found = [residual for one in rows if one.row.source != source and (residual := _residual(one))]
    return conformal_interval(found) if len({one.source for one in found}) >= MIN_SOURCES - 1 else None


def _is_new(one: Answer) -> bool:
    return one.profile is not None and is_unweighed(one.profile.run.framework)


def _metric(one: Answer) -> str:
    return one.row.measured.memory_metric if one.row.measured.peak_memory_gib else "torch_allocated"


def _residual(one: Answer) -> Residual | None:
    error = one.peak_memory_error
    if one.row.measured.memory_metric == "nvidia_smi":  # what an allocator keeps, whatever was needed
        return None
    if error is None or error <= -1.0:  # nothing, or as good as nothing, of what was measured
        return None
    return Residual(one.row.source, one.row.id, one.row.memory_complete, log(1.0 + error))


def _outcome(one: Answer, interval: Interval) -> list[_Claim]:
    if one.profile is None or one.row.measured.outcome not in ("ok", "oom"):
        return []
    chance = _chance(one.profile.device_memory_bytes.total, one.profile.capacity_bytes, interval)
    return [_Claim(one.row.source, chance, one.row.measured.outcome == "oom")]


def _margins(one: Answer, interval: Interval) -> list[_Claim]:
    error = one.peak_memory_error
    if error is None:
        return []
    if interval.low_ratio == interval.high_ratio:
        return [_Claim(one.row.source, float(room < 1.0), room * (1.0 + error) < 1.0) for room in ROOMS]
    rooms = ((chance, exceeded_ratio(chance, interval)) for chance in CHANCES)
    return [_Claim(one.row.source, chance, room * (1.0 + error) < 1.0) for chance, room in rooms]


def _chance(needed: float, room: float, interval: Interval) -> float:
    if interval.low_ratio == interval.high_ratio or not room or not needed:
        return float(needed > room)
    return exceeding_fraction(needed, room, interval)


def _bins(claims: Sequence[_Claim]) -> Iterator[Bin]:
    for low, high in pairwise(ENDS):
        found: dict[str, list[_Claim]] = defaultdict(list)
        for claim in claims:
            if low <= claim.probability < high or claim.probability == high == ENDS[-1]:
                found[claim.source].append(claim)
        if found:
            weights = [min(1.0, len(each) / FEW_CLAIMS) for each in found.values()]
            said = [fmean(c.probability for c in each) for each in found.values()]
            seen = [fmean(c.happened for c in each) for each in found.values()]
            number = sum(map(len, found.values()))
            yield Bin(low, high, number, len(found), fmean(said, weights), fmean(seen, weights))
