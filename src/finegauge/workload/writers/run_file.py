"""FineGauge's own run file: every field that somebody stated, so that it reads back as the same run."""

from typing import TYPE_CHECKING

from finegauge.workload.writers.sheet import Sheet

if TYPE_CHECKING:
    from finegauge.workload.run import Run

NAME = "FineGauge"
FILE = "run.yaml"


def sheet(run: "Run") -> Sheet:
    """Return the run file."""
    stated = {name: list(v) if isinstance(v, tuple) else v for name, v in run.stated_fields().items()}
    return Sheet(FILE, stated, f"finegauge estimate {FILE}", "finegauge")
