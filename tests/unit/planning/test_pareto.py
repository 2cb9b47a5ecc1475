"""The Pareto front: against the definition, and the few plans that stand for all."""

from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from finegauge.planning import selection
from finegauge.planning.selection import front, representatives

ROWS = st.lists(st.tuples(*[st.integers(0, 6).map(float)] * 3), min_size=0, max_size=40)


def columns(rows: Sequence[tuple[float, ...]]) -> list[NDArray[np.float64]]:
    """Return three columns."""
    table = np.array(rows, dtype=float).reshape(len(rows), 3)
    return [table[:, n] for n in range(3)]


def beats(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    """Return whether `one` is nowhere larger and somewhere smaller."""
    return one != other and all(a <= b for a, b in zip(one, other, strict=True))


@settings(max_examples=60, deadline=None)
@given(rows=ROWS, block=st.sampled_from([1, 2, 512]))
def test_the_front_is_what_nothing_beats(rows: list[tuple[float, ...]], block: int) -> None:
    whole, selection.BLOCK = selection.BLOCK, block
    try:
        found = front(columns(rows))
    finally:
        selection.BLOCK = whole
    unbeaten = {row for row in rows if not any(beats(other, row) for other in rows)}
    assert {rows[n] for n in found} == unbeaten
    assert len(found) == len(unbeaten)
    assert [rows[n] for n in found] == sorted(unbeaten)


def test_what_is_not_known_is_on_no_front() -> None:
    figures = columns([(1.0, 1.0, 1.0), (np.nan, 0.0, 0.0), (0.0, np.inf, 0.0)])
    assert front(figures).tolist() == [0]


def test_representatives_keep_the_extremes() -> None:
    rows = [(float(2**n), float(2 ** (30 - n)), 1.0) for n in range(30)]
    chosen = representatives(columns(rows), 6).tolist()
    assert len(chosen) == 6
    assert {0, 29} <= set(chosen)
    gaps = np.diff(chosen)
    assert gaps.max() <= 2 * gaps.min() + 1  # spread out, not huddled
    assert representatives(columns(rows[:3]), 6).tolist() == [0, 1, 2]
