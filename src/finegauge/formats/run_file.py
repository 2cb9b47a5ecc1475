"""FineGauge's own run file: every field that somebody stated, so that it reads back as the same run."""

from finegauge.formats.sheet import Sheet
from finegauge.run.run import Run

FILE = "run.yaml"


def sheet(run: Run) -> Sheet:
    """Return the run file."""
    stated = {name: list(v) if isinstance(v, tuple) else v for name, v in run.stated_fields().items()}
    return Sheet(FILE, stated, f"finegauge estimate {FILE}", "finegauge")
