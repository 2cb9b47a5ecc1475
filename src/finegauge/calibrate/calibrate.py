"""From measurement tables to a calibration: fit, leave each source out, take the intervals."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from finegauge.calibrate.evidence import Evidence, evidence_of
from finegauge.calibrate.fit import fit
from finegauge.calibrate.folds import Residual, conformal_interval, leave_one_source_out, memory_residuals
from finegauge.predict.calibration import Calibration
from finegauge.workload.readers.measurement_table import MeasuredRow

MIN_SOURCES = 3  # with fewer, what is left out says too little about a table that nobody has seen


class Calibrated(NamedTuple):
    """A fitted calibration and what it rests on."""

    calibration: Calibration
    start: Calibration
    evidence: Evidence
    residuals: tuple[Residual, ...]  # of time, each row under constants that have not seen its source


def calibrate(
    rows: Sequence[MeasuredRow],
    start: Calibration,
    name: str,
    tick: Callable[[], None] = lambda: None,
) -> Calibrated:
    """Return constants fitted to `rows`, shrinking to `start` where the rows say little.

    The intervals are those of sources left out, where there are enough sources; else `start`'s.

    Args:
        rows: Of measurement tables.
        start: The calibration to refine.
        name: What to call the result.
        tick: Called after each of the fits, of which there is one more than there are sources.

    Raises: InputError if no row states a time that can be held against a prediction.
    """
    evidence = evidence_of(rows)
    calibration = fit(evidence, start)._replace(name=name)
    tick()
    if len(evidence.sources) < MIN_SOURCES:
        return Calibrated(calibration, start, evidence, ())
    residuals = leave_one_source_out(evidence, start, tick)
    memory = memory_residuals(rows, calibration)
    calibration = calibration._replace(
        time_interval=conformal_interval(residuals), memory_interval=conformal_interval(memory)
    )
    return Calibrated(calibration, start, evidence, tuple(residuals))
