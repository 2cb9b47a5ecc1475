"""Cells that need not be asked: larger than one that ran out of memory.

What takes a larger micro-batch or longer sequences, and is else the same, runs out of memory too.
"""

from collections.abc import Hashable, Sequence

from finegauge.campaign.cell import Cell
from finegauge.workload.run import Run


class Pruning:
    """Remembers what ran out of memory."""

    def __init__(self, fields: Sequence[str]) -> None:
        """Compare runs by `fields`, of which a larger value needs at least as much memory."""
        self.fields = tuple(fields)
        self.failed: dict[Hashable, list[tuple[float, ...]]] = {}

    def remember(self, cell: Cell, outcome: str) -> None:
        """Note how a cell ended."""
        if outcome == "out_of_memory" and cell.run is not None and self.fields:
            self.failed.setdefault(self._rest(cell), []).append(self.sizes(cell.run))

    def reason(self, cell: Cell) -> str:
        """Return why `cell` need not be asked; "" where it has to be."""
        if cell.run is None or not self.failed:
            return ""
        own = self.sizes(cell.run)
        for sizes in self.failed.get(self._rest(cell), ()):
            if own != sizes and all(mine >= theirs for mine, theirs in zip(own, sizes, strict=True)):
                smaller = ", ".join(f"{n}={v:g}" for n, v in zip(self.fields, sizes, strict=True))
                return f"not asked: {smaller} is out of memory already"
        return ""

    def sizes(self, run: Run) -> tuple[float, ...]:
        """Return the fields in which runs may differ."""
        return tuple(float(getattr(run, name) or 0) for name in self.fields)

    def _rest(self, cell: Cell) -> Hashable:
        """Return all else, which has to be equal."""
        assert cell.run is not None
        fields = cell.run.fields()
        rest = tuple((name, fields[name]) for name in fields if name not in self.fields)
        return cell.estimator, cell.options, rest
