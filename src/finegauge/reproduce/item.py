"""What a reproduction is made of: items with a table, charts and notes, and findings with their proof.

Nothing here knows how it will be shown: `report` prints it, draws it or writes the page.
"""

from typing import NamedTuple

Cell = str | float | int | None

# Whose a series is decides its colour; any other word is a group of its own.
MEASURED, THEIRS, OURS, OTHER, COUNTED = "measured", "theirs", "ours", "other", "counted"


class Series(NamedTuple):
    """One line, one set of points or one group of bars."""

    label: str
    whose: str
    x: tuple[float, ...]  # of lines and points; bars stand over the panel's categories
    y: tuple[float | None, ...]
    mark: str = ""  # "points" or "line" where `whose` does not decide it
    intervals: tuple[tuple[float, float] | None, ...] = ()  # of bars, low and high


class Panel(NamedTuple):
    """One chart."""

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    categories: tuple[str, ...] = ()  # under bars; empty for lines and points
    stacked: bool = False
    signed: bool = False  # values on both sides of 0; if not, the axis starts there
    one: bool = False  # a dashed line across bars at 1: no change
    radar: bool = False  # a polygon per series over the categories, around a ring at 1


class Item(NamedTuple):
    """One table or figure of the paper, ours beside theirs."""

    key: str  # "table-4", "fig-14"
    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
    panels: tuple[Panel, ...] = ()
    num_text_columns: int = 1  # the first columns, set flush left


class Finding(NamedTuple):
    """One inconsistency of paper and artifact, with the numbers that prove it."""

    number: int
    title: str
    statement: str
    headings: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]  # each begins with a text


class Reproduction(NamedTuple):
    """A whole paper."""

    title: str
    sources: tuple[str, ...]
    items: tuple[Item, ...]
    findings: tuple[Finding, ...]
    summary: tuple[str, ...]


def error_text(ours: float | None, theirs: float | None) -> str:
    """Return "+12 %", how far ours is from theirs; "-" where one is not known."""
    if ours is None or not theirs:
        return "-"
    return f"{100 * (ours / theirs - 1):+.0f} %"
