"""Constants or a closed-form law, fitted to measured runs: `finegauge calibrate`."""

import os
from collections.abc import Iterable, Mapping, Sequence
from math import expm1
from statistics import median

from finegauge.answers import Rules
from finegauge.calibration import CONSTANTS, Calibrated, Lesson, Use, learn, taught
from finegauge.catalogue.gpus import gpu as find_gpu
from finegauge.catalogue.tables import held_out_tables, measurement_tables
from finegauge.errors import FileFormatError, InputError
from finegauge.formats.finished_config import finished_row
from finegauge.formats.finished_runs import finished_in
from finegauge.formats.measurement_tables import MeasuredRow, read_table
from finegauge.laws.fit import SweepTable
from finegauge.laws.law import MAX_BATCH, Condition, Law
from finegauge.prediction.calibration import Calibration, Learned
from finegauge.records import NamedTuple, same
from finegauge.units import GIB
from finegauge.validation.summary import answer


class FittedConstant(NamedTuple):
    """A constant of predictions, after the fit and before it."""

    value: float
    before: float
    meaning: str


class SourceLeftOut(NamedTuple):
    """How wrong times of one source are under constants fitted to the others; null with few sources."""

    source: str
    num_rows: int
    left_out_median_error: float | None
    left_out_bias: float | None


@Rules(absent=("learned",))
class CalibrationAnswer(NamedTuple):
    """Constants of predictions and the intervals that follow; with its schema version, the file of -o."""

    name: str
    fitted: str  # the day of the fit, or of its data
    constants: Mapping[str, FittedConstant]
    time_interval: tuple[float, float]  # 10th and 90th percentile of measured / predicted
    memory_interval: tuple[float, float]
    num_constants: int
    num_rows: int
    sources: tuple[SourceLeftOut, ...]
    learned: tuple[Learned, ...] | None = None  # by 'finegauge learn', of one's own machines


def calibration_answer(result: Calibrated, *, date: str) -> CalibrationAnswer:
    """Return what a fit brought; `date` is the fit's, ISO 8601."""
    calibration, start, evidence, residuals = result

    def left_out(source: str) -> SourceLeftOut:
        ratios = [one.log_ratio for one in residuals if one.source == source]
        errors = (expm1(median(map(abs, ratios))), expm1(median(ratios))) if ratios else (None, None)
        return SourceLeftOut(source, len(evidence.only(source).points), *errors)

    return CalibrationAnswer(
        name=calibration.name,
        fitted=date,
        constants={
            one.name: FittedConstant(getattr(calibration, one.name), getattr(start, one.name), one.meaning)
            for one in CONSTANTS
        },
        time_interval=(*calibration.time_interval,),
        memory_interval=(*calibration.memory_interval,),
        num_constants=len(CONSTANTS),
        num_rows=len(evidence.points),
        sources=tuple(map(left_out, evidence.sources)),
        learned=start.learned or None,
    )


@Rules(flat=("law",))
class StoredLaw(NamedTuple):
    """A law as its file holds it."""

    law: Law
    quantity: str
    equation: str


@Rules(flat=("condition",))
class LawPoint(NamedTuple):
    """One measured point and the law there, in the unit of the law's quantity."""

    condition: Condition
    measured: float
    law: float


class Curve(NamedTuple):
    """A law over the points that differ in nothing but what it is drawn against: batch or bytes of memory."""

    sparsity_fraction: float
    seq_len: int  # 0 where the law does not know it
    points: tuple[LawPoint, ...]
    line: tuple[tuple[float, float], ...]


@Rules(flat=("stored",), hidden=("curves",))
class LawAnswer(NamedTuple):
    """A closed-form law, the points it was fitted to, and what they mix."""

    stored: StoredLaw
    path: str  # where it is stored
    mixed: Mapping[str, tuple[str, ...]]  # columns of which the points have several values
    num_left_out: int  # rows that did not complete
    points: tuple[LawPoint, ...]
    curves: tuple[Curve, ...]


def law_answer(law: Law, table: SweepTable, path: str) -> LawAnswer:
    """Return a law that was fitted to a table and stored at `path`."""
    points = tuple(LawPoint(at, value, law.at(at)) for at, value in table.observations)
    capacity = law.form.quantity == MAX_BATCH
    groups: dict[tuple[float, int], list[LawPoint]] = {}
    for one in points:
        at = one.condition
        groups.setdefault((at.sparsity_fraction, at.seq_len if capacity else 0), []).append(one)
    return LawAnswer(
        stored=StoredLaw(law, law.form.quantity, law.form.equation),
        path=path,
        mixed=table.mixed,
        num_left_out=table.num_left_out,
        points=points,
        curves=tuple(_curve(law, *key, groups[key]) for key in sorted(groups, reverse=True)),
    )


def _curve(law: Law, sparsity_fraction: float, seq_len: int, points: Sequence[LawPoint]) -> Curve:
    ordered = sorted(points, key=lambda one: law.form.size(one.condition))
    drawn = [one.condition for one in ordered]
    if law.form.quantity != MAX_BATCH:
        drawn = [drawn[0]._replace(batch=batch) for batch in range(drawn[0].batch, drawn[-1].batch + 1)]
    line = tuple((law.form.size(at), law.form.evaluate(law.constants, at)) for at in drawn)
    return Curve(sparsity_fraction, seq_len, tuple(ordered), line)


@Rules(signed=("step_time_error", "left_out_error", "peak_memory_error"))
class FinishedRun(NamedTuple):
    """A finished training beside its prediction; null where its logs do not tell."""

    name: str
    read: tuple[str, ...]  # the logs
    reason: str | None  # why nothing is learned from it
    gpu: str | None
    framework: str
    step_time_s: float | None
    predicted_step_time_s: float | None
    step_time_error: float | None  # predicted / measured - 1
    left_out_error: float | None  # the same, as the other runs of its GPU and framework teach
    peak_memory_bytes: float | None
    memory_metric: str | None
    peak_memory_error: float | None
    assumptions: tuple[str, ...]


class ShippedRows(NamedTuple):
    """Rows of shipped tables of a GPU and framework: how wrong they are now, and with what was learned."""

    num_rows: int
    step_time_median_error: float
    left_out_median_error: float


class LearnedScope(NamedTuple):
    """What runs of one GPU and framework teach, how wrong times are without and with it, and its use."""

    gpu: str
    framework: str
    num_runs: int
    pace_ratio: float  # seconds of kernels over those predicted
    trainer_s: float  # host seconds of the trainer around each micro-batch
    trainer_step_s: float  # and around each optimizer step
    time_interval: tuple[float, float]
    step_time_median_error: float  # without signs: as it is predicted now
    left_out_median_error: float | None  # each run, learned from the others
    use: Use
    shipped: ShippedRows | None  # None: the shipped tables have none of that GPU and framework


class LearnAnswer(NamedTuple):
    """What was read, and what is learned."""

    runs: tuple[FinishedRun, ...]
    learned: tuple[LearnedScope, ...]
    stored: str  # the calibration that holds it; "": none


def read_finished(
    paths: Iterable[str], words: Sequence[str], gpu: str
) -> list[tuple[MeasuredRow, tuple[str, ...]]]:
    """Return every finished training in folders, or row of measurement tables, with the names of its logs.

    Raises: FileFormatError where one of them holds none.
    """
    found: list[tuple[MeasuredRow, tuple[str, ...]]] = []
    for path in paths:
        if path.endswith(".csv") and os.path.isfile(path):
            name = os.path.basename(path)
            found += [(row, (name,)) for row in read_table(path)]
            continue
        if not os.path.exists(path):
            raise FileFormatError(f"No folder {os.path.basename(path) or path}.")
        top = os.path.normpath(path)
        for one in finished_in(path):
            inner = os.path.relpath(one.folder, top)
            name = os.path.basename(top) if inner == os.curdir else os.path.join(os.path.basename(top), inner)
            found.append((finished_row(one, words, gpu)._replace(id=name), one.read))
    return found


def learned_from(
    found: Sequence[tuple[MeasuredRow, tuple[str, ...]]], start: Calibration
) -> tuple[LearnAnswer, Calibration]:
    """Return what finished runs teach beyond `start`, and the calibration with what is used of it.

    Raises: InputError where no run has both a prediction and a step time.
    """
    shipped = [row for table in (*measurement_tables(), *held_out_tables()) for row in read_table(table)]
    try:
        lessons = learn([row for row, _ in found], start, shipped)
    except InputError:
        reasons = dict.fromkeys(answer(row).reason or "it tells no step time" for row, _ in found)
        raise InputError(f"No run can be learned from: {'; '.join(reasons)[:400]}") from None
    left_out = {
        point.id: ratio
        for lesson in lessons
        for point, ratio in zip(lesson.evidence.points, lesson.left_out, strict=False)
    }
    runs = tuple(_run(row, read, left_out.get(row.id)) for row, read in found)
    return LearnAnswer(runs, tuple(map(_scope, lessons)), ""), taught(start, lessons)


def _run(row: MeasuredRow, read: tuple[str, ...], left_out: float | None) -> FinishedRun:
    one, run, measured = answer(row), row.run, row.measured
    known = one.prediction is not None and one.profile is not None
    error = one.step_time_error if known else None
    predicted = one.prediction.step_time_s if known and one.prediction else None
    seconds = predicted / (1 + error) if predicted is not None and error is not None else measured.step_time_s
    peak = measured.peak_memory_gib
    return FinishedRun(
        name=row.id,
        read=read,
        reason=one.reason or None,
        gpu=find_gpu(run.gpu).name if run is not None and run.gpu and known else None,
        framework=run.framework if run is not None else "",
        step_time_s=seconds,
        predicted_step_time_s=predicted,
        step_time_error=error,
        left_out_error=None if left_out is None else expm1(left_out),
        peak_memory_bytes=peak * GIB if peak else None,
        memory_metric=measured.memory_metric if peak else None,
        peak_memory_error=one.peak_memory_error if known else None,
        assumptions=row.assumptions,
    )


def _scope(lesson: Lesson) -> LearnedScope:
    before, after = lesson.shipped_before, lesson.shipped_after
    figures = {
        "time_interval": (*lesson.learned.time_interval,),
        "step_time_median_error": _median(lesson.before),
        "left_out_median_error": _median(lesson.left_out) if lesson.left_out else None,
        "use": lesson.use,
        "shipped": ShippedRows(len(before), _median(before), _median(after)) if before else None,
    }
    return LearnedScope(**same(LearnedScope, lesson.learned) | figures)


def _median(ratios: Sequence[float]) -> float:
    """Return the median error, without signs, of logarithms of predicted over measured."""
    return median(abs(expm1(one)) for one in ratios)
