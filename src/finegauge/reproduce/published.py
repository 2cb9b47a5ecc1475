"""The figures of Xia et al. 2024 and of its artifact, one number a row, each with source and date.

`data/xia2024.csv` is our own table: numbers are the authors', format and selection ours.
"""

import os
from functools import cache
from typing import NamedTuple

from finegauge.catalogue.tables import parse

_TABLE = os.path.join(os.path.dirname(__file__), "data", "xia2024.csv")

SPARSITY = {"dense": 1.0, "sparse": 0.25}  # 8 or 2 of 8 experts


class Figure(NamedTuple):
    """One published number and the condition under which it was measured."""

    item: str
    model: str
    mode: str
    dataset: str
    gpu: str
    seq_len: str
    batch: int
    part: str  # the stage, layer, kernel, expert or epoch
    value: float
    unit: str
    source: str
    date: str

    @property
    def series(self) -> tuple[str, str, str]:
        """Return (model, data set, GPU): what the paper draws one panel for."""
        return self.model, self.dataset, self.gpu


@cache
def _all() -> tuple[Figure, ...]:
    with open(_TABLE, encoding="utf-8") as file:
        rows = parse(file.read())
    return tuple(
        Figure(**{**row, "batch": int(row["batch"] or 0), "value": float(row["value"])})  # type: ignore[arg-type]
        for row in rows
    )


def figures(*items: str, **condition: object) -> tuple[Figure, ...]:
    """Return the figures of some items ("fig4", "table3"), narrowed by any of their columns."""
    return tuple(
        figure
        for figure in _all()
        if figure.item in items and all(getattr(figure, name) == want for name, want in condition.items())
    )


def value(item: str, **condition: object) -> float | None:
    """Return the one number that fits, None where nothing is published."""
    found = figures(item, **condition)
    return found[0].value if found else None


def claim(part: str, model: str = "") -> float:
    """Return a number that the paper states in its text."""
    found = [figure for figure in figures("claim", part=part) if model in ("", figure.model)]
    return found[0].value
