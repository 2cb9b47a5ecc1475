"""Which calibration is in force: the user's own, or the one that ships with FineGauge.

A calibration is JSON as `finegauge calibrate` writes it: constants by name, what they were fitted
to, and the intervals. `FINEGAUGE_CALIBRATION` names a file that replaces the shipped one.
"""

import os
from collections.abc import Mapping
from functools import cache
from math import isfinite
from typing import Any

from finegauge.errors import FileFormatError, shown
from finegauge.predict.calibration import DATASHEET, Calibration
from finegauge.profile import Interval

SCHEMA_VERSION = 1
VARIABLE = "FINEGAUGE_CALIBRATION"
SHIPPED = os.path.join(os.path.dirname(__file__), "data", "calibration.json")
INTERVALS = ("time_interval", "memory_interval")


@cache
def current() -> Calibration:
    """Return the calibration that predictions use unless they are handed another.

    Raises: FileFormatError if the user's file is missing or is no calibration.
    """
    return read(os.environ.get(VARIABLE) or SHIPPED)


def read(path: str) -> Calibration:
    """Return the calibration that a file holds.

    Raises: FileFormatError if it is missing, or not what `finegauge calibrate` writes.
    """
    from finegauge.catalogue.documents import read_document

    if not os.path.isfile(path):
        raise FileFormatError(
            f"No calibration {shown(path)}; 'finegauge calibrate TABLE -o FILE' writes one."
        )
    content = read_document(path)
    try:
        return _calibration(content)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise FileFormatError(
            f"{path} is not a calibration as 'finegauge calibrate' writes it: {reason}."
        ) from None


def _calibration(content: Mapping[str, Any]) -> Calibration:
    """Return the calibration of a document."""
    if content["schema_version"] != SCHEMA_VERSION:
        raise ValueError(f"schema version {content['schema_version']}, not {SCHEMA_VERSION}")
    constants = {name: float(entry["value"]) for name, entry in content["constants"].items()}
    for name, value in constants.items():
        if name not in Calibration._fields or isinstance(getattr(DATASHEET, name), (str, Interval)):
            raise ValueError(f"'{name}' is no constant")
        if not (isfinite(value) and value > 0):
            raise ValueError(f"{name}={value} is not positive")
    intervals = {name: Interval(*map(float, content[name])) for name in INTERVALS}
    for name, interval in intervals.items():
        if not 0 < interval.low_ratio <= interval.high_ratio < float("inf"):
            raise ValueError(f"{name}={list(interval)} is not a pair of growing positive ratios")
    fields: dict[str, Any] = {"name": str(content["name"])[:80], **constants, **intervals}
    return DATASHEET._replace(**fields)
