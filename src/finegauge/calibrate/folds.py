"""How wrong a calibration is on a source it has not seen, and the interval that follows.

Every source is left out in turn, the constants fitted to the others, and its rows predicted
(leave-one-source-out). The residuals of all sources, each source weighing the same, give the 10th
and 90th percentile of truth over prediction: a conformal interval whose unit is the source [1],
for a table that nobody has seen differs from the known ones as they differ from each other.

[1] Vovk et al. 2005, Algorithmic Learning in a Random World; Dunn et al. 2023, JASA 118 (groups)
"""

from collections import Counter
from collections.abc import Callable, Iterable
from math import exp, log
from typing import NamedTuple

from finegauge.calibrate.evidence import Evidence
from finegauge.calibrate.fit import fit
from finegauge.errors import FineGaugeError
from finegauge.predict.calibration import Calibration
from finegauge.predict.predictor import predict
from finegauge.profile import Interval
from finegauge.units import GIB
from finegauge.workload.readers.measurement_table import MeasuredRow

LOW, HIGH = 0.10, 0.90
FOLD_ROUNDS = 2


class Residual(NamedTuple):
    """What a prediction that has not seen a row's source makes of the row."""

    source: str
    id: str
    complete: bool
    log_ratio: float  # ln(predicted / measured)


def leave_one_source_out(
    evidence: Evidence, start: Calibration, tick: Callable[[], None] = lambda: None
) -> list[Residual]:
    """Return the time residual of every point under constants fitted to the other sources.

    Args:
        evidence: Points of two sources or more.
        start: Where every fit begins; also what the constants shrink to.
        tick: Called after every source.
    """
    found = []
    for source in evidence.sources:
        own = evidence.only(source)
        calibration = fit(evidence.without(source), start, FOLD_ROUNDS)
        found += [
            Residual(source, point.id, point.complete, float(ratio))
            for point, ratio in zip(own.points, own.log_ratios(calibration), strict=True)
        ]
        tick()
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
    return Interval(min(1.0, _quantile(weighted, LOW)), max(1.0, _quantile(weighted, HIGH)))


def _quantile(weighted: list[tuple[float, float]], share: float) -> float:
    """Return the value below which `share` of the weight lies."""
    whole, below = sum(weight for _, weight in weighted), 0.0
    for value, weight in weighted:
        below += weight
        if below >= share * whole:
            return value
    return weighted[-1][0] if weighted else 1.0
