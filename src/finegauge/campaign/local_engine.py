"""The default engine: this machine, one trial after the other, each in a process of its own."""

from collections.abc import Iterator

from finegauge.campaign.campaign import Start
from finegauge.campaign.cell import Cell
from finegauge.measure.measure import measure, without_result
from finegauge.measure.options import Options
from finegauge.profile import Profile


class LocalEngine:
    """Measures here."""

    def measure(self, cells: Iterator[Cell], start: Start) -> Iterator[tuple[str, Cell, Profile]]:
        """Yield (trial, cell, profile) as each ends; an interruption is passed on, and is an outcome."""
        for cell in cells:
            assert cell.run is not None
            trial = start(cell)
            try:
                profile = measure(cell.run, cell.options or Options())
            except KeyboardInterrupt:
                yield trial, cell, without_result(cell.run, "interrupted", "Ctrl-C")
                raise
            yield trial, cell, profile
