"""One finding held against a measurement: what the paper says, what is measured here, whether it holds."""

from typing import NamedTuple

from finegauge.reproduce.item import Item


class Held(NamedTuple):
    """One finding of the paper and its proof."""

    finding: str
    paper: str  # the paper's figure
    here: str  # the figure of this machine
    holds: bool
    item: Item

    @property
    def row(self) -> tuple[str, str, str, str]:
        """Return the line of the summary."""
        return self.finding, self.paper, self.here, "yes" if self.holds else "no"


def percent(fraction: float) -> str:
    """Return a fraction as text in percent."""
    return f"{100 * fraction:.0f} %"


def between(values: list[float], unit: str = "", decimals: int = 1) -> str:
    """Return "1.2 to 3.4 s", the smallest and the largest of some values."""
    low, high = (f"{value:.{decimals}f}" for value in (min(values), max(values)))
    return f"{low if low == high else f'{low} to {high}'}{unit}"
