"""A calibration as JSON: its constants, what they were fitted to, and what is left over."""

from math import expm1
from statistics import median
from typing import Any

from finegauge.calibrate.calibrate import Calibrated
from finegauge.calibrate.constants import CONSTANTS
from finegauge.predict.calibrated import SCHEMA_VERSION


def document(result: Calibrated, *, date: str) -> dict[str, Any]:
    """Return the JSON form of a fitted calibration.

    Args:
        result: What was fitted, to what.
        date: Of the fit, ISO 8601.
    """
    calibration, start, evidence, residuals = result
    return {
        "schema_version": SCHEMA_VERSION,
        "name": calibration.name,
        "fitted": date,
        "constants": {
            constant.name: {
                "value": getattr(calibration, constant.name),
                "before": getattr(start, constant.name),
                "meaning": constant.meaning,
            }
            for constant in CONSTANTS
        },
        "time_interval": list(calibration.time_interval),
        "memory_interval": list(calibration.memory_interval),
        "num_constants": len(CONSTANTS),
        "num_rows": len(evidence.points),
        "sources": [
            {
                "source": source,
                "num_rows": len(evidence.only(source).points),
                **_left_out([r.log_ratio for r in residuals if r.source == source]),
            }
            for source in evidence.sources
        ],
    }


def _left_out(log_ratios: list[float]) -> dict[str, float | None]:
    """Return median error and bias of a source under constants that have not seen it."""
    known = bool(log_ratios)
    return {
        "left_out_median_error": expm1(median(map(abs, log_ratios))) if known else None,
        "left_out_bias": expm1(median(log_ratios)) if known else None,
    }
