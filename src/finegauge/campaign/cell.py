"""One cell of a campaign: a run, who answers about it, and which repetition.

A cell is known by its content, not by its place: two sweeps that ask the same thing share
the answer, and a cell that was answered is not asked again.
"""

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

from finegauge.store.document import plain

if TYPE_CHECKING:
    from finegauge.measure.options import Options
    from finegauge.workload.run import Run

PREDICTED, MEASURED = "predicted", "measured"
KEY_DIGITS = 20


class Cell(NamedTuple):
    """One question of a campaign."""

    labels: Mapping[str, str]  # axis: value, in the order of the sweep
    estimator: str  # predicted or measured
    run: "Run | None"  # None where the values of the axes make no run
    refusal: str = ""  # why they make none
    repetition: int = 0
    options: "Options | None" = None  # of a measurement
    calibration: str = ""  # that a prediction rests on

    @property
    def key(self) -> str:
        """Return the name of the cell's content."""
        content: dict[str, Any] = {"estimator": self.estimator, "repetition": self.repetition}
        if self.run is None:
            content |= {"labels": dict(self.labels), "refusal": self.refusal}
        else:
            content["run"] = plain(self.run.fields())
        if self.options is not None:
            content["options"] = plain(self.options._asdict())
        if self.calibration:
            content["calibration"] = self.calibration
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return sha256(text.encode()).hexdigest()[:KEY_DIGITS]

    @property
    def title(self) -> str:
        """Return the cell in a few words."""
        words = ", ".join(self.labels.values()) or "the run"
        again = f", repetition {self.repetition + 1}" if self.repetition else ""
        return f"{words} ({self.estimator}{again})"
