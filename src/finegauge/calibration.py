r"""The physical constants of predictions, fitted to measured steps, with their intervals.

A point holds everything about a run that no constant changes, so that its time under other
constants is cheap to predict.

A user's own finished runs teach three constants for each GPU and framework: the pace of kernels (seconds over
those predicted), and the trainer's own seconds around each micro-batch and each optimizer step. With measured
and predicted seconds $t_i$ and $p_i$ of run $i$, they make least

$$ \sum_i \rho\!\left(\frac{\ln (p_i / t_i)}{\sigma}\right) + \left(\frac{\ln pace}{\sigma_0}\right)^2
   + \left(\frac{batch}{\tau}\right)^2 + \left(\frac{step}{\tau'}\right)^2, \qquad
   \sigma^2 = \frac{\sigma_0^2 + \sum_i w_i r_i^2}{n} $$

$\rho$ is a square that grows like an absolute value from one $\sigma$ on, so that a disturbed run bends
little. $\sigma_0$ is the spread of machines; that of the n runs is estimated from what the constants leave
unexplained ($r_i$, by $\rho$'s weights $w_i$), with $\sigma_0$ as one run more and a degree of freedom for
the pace: one run moves the pace half of the way, three that agree move it nine tenths. What is learned is
used where it predicts the runs left out a quarter better, where the mean error of the runs exceeds two
standard errors of the noise between them, and where the shipped rows of that GPU and framework are not
predicted worse.

Neglects: memory, of which nothing is fitted (decision 0008); exchange between GPUs keeps its own constants.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import compress
from math import exp, inf, log, sqrt
from statistics import fmean, stdev
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from finegauge.catalogue.gpus import gpu
from finegauge.data.batch_shape import shape
from finegauge.documents import MAX_NUMBER
from finegauge.errors import FineGaugeError, InputError
from finegauge.formats.measurement_tables import MeasuredRow
from finegauge.model.op import Extents
from finegauge.prediction.calibration import DATASHEET, LEARNED_PHASES, Calibration, Learned
from finegauge.prediction.links import Network
from finegauge.prediction.predictor import device_of, predict
from finegauge.prediction.sharding import Share, mean_extents, rank_extents, share_of
from finegauge.prediction.time import slowest_extents, step_time
from finegauge.profile import Interval
from finegauge.progress import Heard, Progress
from finegauge.run.run import Run
from finegauge.units import GIB

Vector = NDArray[Any]
GUESSED_WEIGHT = 0.5
SOURCE_WEIGHT = 8.0  # of a source as a whole, in standard deviations, against what is known before
ROW_WEIGHT = 1.5  # of a row at most: no single run is known much better


class Point(NamedTuple):
    """One measured step."""

    id: str
    source: str
    complete: bool  # nothing that time depends on was guessed
    measured_s: float
    run: Run
    share: Share
    extents: Extents
    slowest: Extents  # of the rank that the others wait for
    free_bytes: float = inf  # of a GPU for paged states

    def predicted_s(self, calibration: Calibration) -> float:
        """Return the seconds of the step under `calibration`."""
        name = str(self.run.gpu)
        learned = calibration.learned_of(gpu(name).name, self.run)
        dtype = self.share.graph.lowering.compute_dtype
        device = device_of(name, calibration, dtype, learned=learned)
        network = Network.of(self.run, gpu(name), calibration) if self.share.communicates else None
        step = step_time(self.share, self.extents, device, network, self.slowest, self.free_bytes)
        return step.parts.total


class Evidence(NamedTuple):
    """Measured steps of one or several sources."""

    points: tuple[Point, ...]

    @property
    def sources(self) -> list[str]:
        """Return the sources, sorted."""
        return sorted({point.source for point in self.points})

    def without(self, source: str) -> "Evidence":
        """Return the evidence of all other sources."""
        return Evidence(tuple(point for point in self.points if point.source != source))

    def only(self, source: str) -> "Evidence":
        """Return the evidence of one source."""
        return Evidence(tuple(point for point in self.points if point.source == source))

    def weights(self) -> Vector:
        """Return the weight of each point: sources weigh alike, a guessed configuration half."""
        share = {s: SOURCE_WEIGHT / len(self.only(s).points) ** 0.5 for s in self.sources}
        return np.array(
            [
                min(ROW_WEIGHT, share[point.source]) * (1.0 if point.complete else GUESSED_WEIGHT)
                for point in self.points
            ]
        )

    def log_ratios(self, calibration: Calibration) -> Vector:
        """Return ln(predicted / measured) of every point."""
        return np.array([log(p.predicted_s(calibration) / p.measured_s) for p in self.points])


def evidence_of(rows: Iterable[MeasuredRow]) -> Evidence:
    """Return the measured steps of `rows`; rows without a time or a prediction are left out.

    Raises: InputError if none is left.
    """
    points = tuple(filter(None, map(_point, rows)))
    if not points:
        raise InputError(
            "No row has both a run that can be predicted and a step time or throughput; "
            "'finegauge validate TABLE' says why for each row."
        )
    return Evidence(points)


def _point(row: MeasuredRow) -> Point | None:
    run = row.run
    if run is None or row.measured.outcome == "oom":
        return None
    try:
        seconds = _measured_s(row, run)
        if seconds is None or not 1 / MAX_NUMBER <= seconds <= MAX_NUMBER:
            return None
        batch = shape(run)
        mean, slowest = (rank_extents(run, one) for one in (mean_extents(batch), slowest_extents(run, batch)))
        share, free = share_of(run), inf
        if share.graph.weights.paged_bytes:
            profile = predict(run, DATASHEET, timed=False)
            free = profile.capacity_bytes - profile.device_memory_bytes.total
        return Point(row.id, row.source, row.times_complete, seconds, run, share, mean, slowest, free)
    except FineGaugeError:
        return None


def _measured_s(row: MeasuredRow, run: Run) -> float | None:
    measured = row.measured
    if measured.step_time_s:
        return measured.step_time_s * (run.gradient_accumulation_steps if measured.step_is_micro_batch else 1)
    profile = predict(run, DATASHEET)  # for the tokens and samples of its step
    if measured.tokens_per_s_per_gpu:
        return profile.step_tokens / (measured.tokens_per_s_per_gpu * run.num_gpus)
    if measured.samples_per_s:
        return profile.step_sequences / measured.samples_per_s
    return None


class Constant(NamedTuple):
    """A field of `Calibration` that measurements may move."""

    name: str
    meaning: str
    spread: float  # standard deviation of its logarithm, known before any fit


CONSTANTS = (
    Constant("sustained_fraction", "large matrix products in training over the best benchmark", 0.08),
    Constant("bandwidth_fraction", "bandwidth of large elementwise kernels over the datasheet's", 0.05),
    Constant("grouped_fraction", "one kernel for the products of all experts over a single product", 0.30),
    Constant("flash_fraction", "FlashAttention forward over the dense peak, Ampere and Ada", 0.25),
    Constant("hopper_flash_fraction", "FlashAttention forward over the dense peak, Hopper and later", 0.25),
    Constant("flash_backward_fraction", "rate of FlashAttention's backward over its forward's", 0.15),
    Constant("dequantise_fraction", "bandwidth of dequantisation kernels over the datasheet's", 0.20),
    Constant("launch_s", "host seconds per kernel of eager PyTorch", 0.30),
    Constant("call_s", "host seconds of Python per adapter or 4-bit module call", 0.70),
    Constant("wait_s", "host seconds such a call waits for the device in instrumented code", 1.00),
    Constant("network_fraction", "collectives between nodes over the network cards' rate", 0.30),
    Constant("unit_wait_s", "host seconds before a sharded layer may gather the next", 0.50),
    Constant("module_wait_s", "the same where every module is gathered on its own (ZeRO-3)", 0.50),
    Constant("contention_fraction", "of a collective's time, lost by the computation beside it", 0.50),
)

SOFT_SCALE = 0.10  # relative error below which a residual counts squared
STEP = 0.02  # of a constant's logarithm, for the derivative
ROUNDS = 3
BOUND = 1.5  # a constant moves by at most this factor's logarithm (4.5 times)


def moved(start: Calibration, theta: Iterable[float]) -> Calibration:
    """Return `start` with its fitted constants times exp(theta)."""
    values = {c.name: getattr(start, c.name) * exp(t) for c, t in zip(CONSTANTS, theta, strict=True)}
    return start._replace(**values)


def fit(evidence: Evidence, start: Calibration, rounds: int = ROUNDS) -> Calibration:
    """Return `start` with the constants that explain `evidence` best."""
    theta = np.zeros(len(CONSTANTS))
    moving = np.ones((len(evidence.points), len(CONSTANTS)), dtype=bool)
    for _ in range(rounds):
        ratios = evidence.log_ratios(moved(start, theta))
        slopes = _slopes(evidence, start, theta, ratios, moving)
        theta, moving = _solve(evidence, theta, ratios, slopes), slopes != 0
    return moved(start, theta)


def _slopes(evidence: Evidence, start: Calibration, theta: Vector, ratios: Vector, moving: Vector) -> Vector:
    """Return how each point's ratio moves with each constant; 0 where it is not `moving` with it."""
    slopes = np.zeros(moving.shape)
    for index in range(len(CONSTANTS)):
        beside, rows = theta.copy(), moving[:, index]
        beside[index] += STEP
        some = Evidence(tuple(compress(evidence.points, rows)))
        slopes[rows, index] = (some.log_ratios(moved(start, beside)) - ratios[rows]) / STEP
    return slopes


def _solve(evidence: Evidence, theta: Vector, ratios: Vector, slopes: Vector) -> Vector:
    from scipy.optimize import least_squares

    weights = evidence.weights()
    spreads = np.array([constant.spread for constant in CONSTANTS])

    def objective(x: Vector) -> Vector:
        r = ratios + slopes @ (x - theta)
        soft = np.sign(r) * np.sqrt(2.0 * (np.sqrt(1.0 + (r / SOFT_SCALE) ** 2) - 1.0))
        return np.concatenate([weights * soft, x / spreads])

    solution: Vector = least_squares(objective, theta, bounds=(-BOUND, BOUND)).x
    return solution


LOW, HIGH = 0.10, 0.90
FOLD_ROUNDS = 2


class Residual(NamedTuple):
    """The error of a row, predicted by constants fitted without its source."""

    source: str
    id: str
    complete: bool
    log_ratio: float  # ln(predicted / measured)


def leave_one_source_out(
    evidence: Evidence, start: Calibration, heard: Heard | None = None
) -> list[Residual]:
    """Return the time residual of every point under constants fitted to the other sources.

    `evidence` has two sources or more; every fit begins at `start` and shrinks to it. `heard` hears
    after every source how many fits are done; the first was that to all of them.
    """
    found = []
    for number, source in enumerate(evidence.sources, start=2):
        own = evidence.only(source)
        calibration = fit(evidence.without(source), start, FOLD_ROUNDS)
        found += [
            Residual(source, point.id, point.complete, float(ratio))
            for point, ratio in zip(own.points, own.log_ratios(calibration), strict=True)
        ]
        if heard is not None:
            heard(Progress("", number, len(evidence.sources) + 1))
    return found


def memory_residuals(rows: Iterable[MeasuredRow], calibration: Calibration) -> list[Residual]:
    """Return the memory residual of every row, each by its own metric; nothing of it is fitted."""
    found = []
    for row in rows:
        measured = row.measured.peak_memory_gib
        if row.run is None or not measured:
            continue
        try:
            profile = predict(row.run, calibration)
        except FineGaugeError:
            continue
        ratio = profile.memory_bytes(row.measured.memory_metric) / (measured * GIB)
        found.append(Residual(row.source, row.id, row.memory_complete, log(ratio)))
    return found


def conformal_interval(residuals: Iterable[Residual]) -> Interval:
    """Return the 10th and 90th percentile of truth over prediction, all sources weighing alike.

    Rows whose configuration had to be guessed are left out: the guess is not the physics' error.
    """
    rows = [residual for residual in residuals if residual.complete]
    counts = Counter(row.source for row in rows)
    weighted = sorted((exp(-row.log_ratio), 1.0 / counts[row.source]) for row in rows)
    return Interval(min(1.0, weighted_quantile(weighted, LOW)), max(1.0, weighted_quantile(weighted, HIGH)))


def weighted_quantile(weighted: list[tuple[float, float]], share: float) -> float:
    """Return the value below which `share` of the weight lies."""
    whole, below = sum(weight for _, weight in weighted), 0.0
    for value, weight in weighted:
        below += weight
        if below >= share * whole:
            return value
    return weighted[-1][0] if weighted else 1.0


MIN_SOURCES = 3  # with fewer, what is left out says too little about an unseen table


class Calibrated(NamedTuple):
    """A fitted calibration and what it rests on."""

    calibration: Calibration
    start: Calibration
    evidence: Evidence
    residuals: tuple[Residual, ...]  # of time, each row under constants that have not seen its source


def calibrate(
    rows: Sequence[MeasuredRow], start: Calibration, name: str, heard: Heard | None = None
) -> Calibrated:
    """Return constants fitted to `rows`, shrinking to `start` where the rows say little.

    The intervals are those of sources left out, where there are enough sources; else `start`'s.
    `heard` hears of each fit; there is one more than there are sources.

    Raises: InputError if no row states a time that can be compared with a prediction.
    """
    evidence = evidence_of(rows)
    calibration = fit(evidence, start)._replace(name=name)
    if heard is not None:
        heard(Progress("", 1, len(evidence.sources) + 1))
    if len(evidence.sources) < MIN_SOURCES:
        return Calibrated(calibration, start, evidence, ())
    residuals = leave_one_source_out(evidence, start, heard)
    memory = memory_residuals(rows, calibration)
    calibration = calibration._replace(
        time_interval=conformal_interval(residuals), memory_interval=conformal_interval(memory)
    )
    return Calibrated(calibration, start, evidence, tuple(residuals))


# What a user's own finished runs teach

SPREAD = 0.20  # of a logarithm: 10th to 90th percentile of sources, 0.84 to 1.43 (`prediction.uncertainty`)
# Python of a trainer around a micro-batch (collating) and around a step (logging, callbacks), of this order;
# a step of TRL with W&B took 43 to 62 ms here, one of torchtune 5
TRAINER_S, TRAINER_STEP_S = 0.010, 0.030
MOST_TRAINER_S = 1.0
MOST = 1.5  # of the pace's logarithm (4.5 times)
LESSON_ROUNDS = 8
PACES = tuple(n * MOST / 3 for n in range(-3, 4))  # logarithms, between which times are interpolated
MIN_RUNS, FEW = 2, 10
HELPING_RATIO = (
    0.75  # of the errors of runs left out over those of now, at most; else chance may be all of it
)
NOISE = 0.05  # of a logarithm, at least: what repeats of one run differ by (1 to 8 %, see docs/learn.md)
CHANCE = 2.0  # standard deviations of the mean of as many runs
Use = Literal["used", "one_run", "no_better", "noise", "shipped_worse"]


class Lesson(NamedTuple):
    """What runs of one GPU and framework teach, and whether it is used."""

    learned: Learned
    evidence: Evidence
    before: tuple[float, ...]  # ln(predicted / measured) of each run as it is predicted now
    left_out: tuple[float, ...]  # the same, learned from the others; () with one run
    use: Use
    shipped_before: tuple[float, ...] = ()  # of shipped rows of that GPU and framework
    shipped_after: tuple[float, ...] = ()


def learn(
    rows: Iterable[MeasuredRow], start: Calibration, shipped: Sequence[MeasuredRow] = ()
) -> list[Lesson]:
    """Return what the rows teach beyond `start`, by GPU and framework, most runs first.

    `shipped` are rows that must not be predicted worse.

    Raises: InputError where no row has both a run that is predicted and its time.
    """
    groups: dict[tuple[str, str], list[Point]] = {}
    for point in evidence_of(row for row in rows if row.run and row.run.phase in LEARNED_PHASES).points:
        groups.setdefault(_key(point.run), []).append(point)
    ordered = sorted(groups.items(), key=lambda one: (-len(one[1]), one[0]))
    return [_lesson(key, Evidence(tuple(points)), start, shipped) for key, points in ordered]


def taught(start: Calibration, lessons: Iterable[Lesson]) -> Calibration:
    """Return `start` with the lessons that are used, in place of older ones of the same GPU and framework."""
    new = {(one.learned.gpu, one.learned.framework): one.learned for one in lessons if one.use == "used"}
    kept = [one for one in start.learned if (one.gpu, one.framework) not in new]
    return start._replace(learned=(*kept, *new.values()))


def _key(run: Run) -> tuple[str, str]:
    return gpu(str(run.gpu)).name, run.framework.casefold()


class _Tabled(NamedTuple):
    """Predicted seconds of runs at several paces, so that a fit predicts nothing again."""

    seconds: Vector  # logarithms, [run, pace]
    measured: Vector  # logarithms
    micro_batches: Vector  # of a step

    @classmethod
    def of(cls, evidence: Evidence, start: Calibration, usual: Learned) -> "_Tabled":
        """Predict every run at every pace."""
        paces = [_with(start, usual._replace(pace_ratio=exp(one))) for one in PACES]
        seconds = [[log(point.predicted_s(one)) for one in paces] for point in evidence.points]
        measured = [log(point.measured_s) for point in evidence.points]
        counts = [float(point.run.gradient_accumulation_steps) for point in evidence.points]
        return cls(np.array(seconds), np.array(measured), np.array(counts))

    def without(self, place: int) -> "_Tabled":
        """Return the table of all runs but one."""
        return _Tabled(*(np.delete(one, place, axis=0) for one in self))

    def log_ratios(self, learned: Learned) -> Vector:
        """Return ln(predicted / measured) of every run under what was learned."""
        seconds = [np.exp(np.interp(log(learned.pace_ratio), PACES, row)) for row in self.seconds]
        trainer = self.micro_batches * learned.trainer_s + learned.trainer_step_s
        found: Vector = np.log(np.array(seconds) + trainer) - self.measured
        return found


def _lesson(
    key: tuple[str, str], evidence: Evidence, start: Calibration, shipped: Sequence[MeasuredRow]
) -> Lesson:
    name, framework = key
    others = tuple(one for one in start.learned if (one.gpu, one.framework) != key)
    plain = start._replace(learned=others)  # what was learned before is not learned from again
    num_runs = len(evidence.points)
    usual = Learned(name, framework, 1.0, 0.0, num_runs, Interval(1.0, 1.0))
    table = _Tabled.of(evidence, plain, usual)
    before = tuple(map(float, evidence.log_ratios(start)))
    left_out = tuple(
        float(table.log_ratios(_fitted(table.without(place), usual))[place])
        for place in range(num_runs if num_runs >= MIN_RUNS else 0)
    )
    learned = _fitted(table, usual)._replace(time_interval=_interval(left_out))
    lesson = Lesson(learned, evidence, before, left_out, "used" if left_out else "one_run")
    if left_out and (_error(left_out) > HELPING_RATIO * _error(before) or _is_chance(before, left_out)):
        lesson = lesson._replace(use="noise" if _error(before) <= 2.0 * NOISE else "no_better")
    theirs = [row for row in shipped if row.run and row.run.gpu and _key(row.run) == key]
    if not theirs:
        return lesson
    try:
        rows = evidence_of(theirs)
    except InputError:  # none of them states a time
        return lesson
    sooner, later = (tuple(map(float, rows.log_ratios(one))) for one in (start, _with(plain, lesson.learned)))
    worse = lesson.use == "used" and _error(later) > _error(sooner)
    return lesson._replace(
        shipped_before=sooner, shipped_after=later, use="shipped_worse" if worse else lesson.use
    )


def _is_chance(before: Sequence[float], left_out: Sequence[float]) -> bool:
    """Return whether runs err by no more in common than runs that differ by chance do."""
    apart = min(stdev(before), sqrt(fmean(one * one for one in left_out)))
    return abs(fmean(before)) <= CHANCE * max(NOISE, apart) / sqrt(len(before))


def _error(ratios: Iterable[float]) -> float:
    return fmean(map(abs, ratios))


def _with(calibration: Calibration, learned: Learned) -> Calibration:
    return calibration._replace(learned=(*calibration.learned, learned))


def _fitted(table: _Tabled, usual: Learned) -> Learned:
    """Return the constants that explain the runs best, held to a pace of 1 and a trainer without time."""
    scales = np.array([SPREAD, TRAINER_S, TRAINER_STEP_S])
    most = np.array([MOST, MOST_TRAINER_S, MOST_TRAINER_S]) / scales

    def at(theta: Vector) -> Learned:
        pace, trainer_s, step_s = map(float, theta * scales)
        return usual._replace(pace_ratio=exp(pace), trainer_s=trainer_s, trainer_step_s=step_s)

    theta, spread = np.zeros(3), SPREAD
    for _ in range(LESSON_ROUNDS):
        r = table.log_ratios(at(theta))
        slopes = np.stack(
            [(table.log_ratios(at(theta + one)) - r) / STEP for one in np.eye(3) * STEP], axis=1
        )
        squares = r**2 / np.sqrt(1.0 + (r / spread) ** 2)  # of the soft absolute value
        spread = float(np.sqrt((SPREAD**2 + squares.sum()) / len(r)))
        weights = (1.0 + (r / spread) ** 2) ** -0.25 / spread
        matrix = np.vstack([weights[:, None] * slopes, np.eye(3)])
        wanted = np.concatenate([weights * (slopes @ theta - r), np.zeros(3)])
        free = np.array([True, True, True])
        while True:
            found = np.zeros(3)
            found[free] = np.linalg.lstsq(matrix[:, free], wanted, rcond=None)[0]
            if (found[1:] >= 0.0).all():
                break
            free[1 + np.argmin(found[1:])] = False  # a trainer takes no time away
        theta = np.clip(found, [-most[0], 0.0, 0.0], most)
    return at(theta)


def _interval(left_out: Sequence[float]) -> Interval:
    """Return the interval of times under what was learned: that of the runs left out.

    With fewer than ten, each end is as far as the run that errs most on its side, or the spread of a run.
    """
    if len(left_out) >= FEW:
        return conformal_interval(Residual(str(n), "", True, ratio) for n, ratio in enumerate(left_out))
    return Interval(exp(-max((SPREAD, *left_out))), exp(max((SPREAD, *(-one for one in left_out)))))
