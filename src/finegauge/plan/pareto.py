"""Which plans nothing else beats: the Pareto front, and a few of it that stand for all.

A plan is on the front where no other is at most as large in every figure and smaller in one.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

BLOCK = 512  # rows that are compared at a time, so that memory stays small


def front(figures: Sequence["NDArray[np.float64]"]) -> "NDArray[np.intp]":
    """Return the indices of the rows that no other row beats, the smallest first figure first.

    Args:
        figures: Columns of equal length, each to be small. Rows with a figure that is not finite are no plan.

    Of equal rows the first stands for all.
    """
    import numpy as np

    rows = np.column_stack(figures)
    known = np.flatnonzero(np.isfinite(rows).all(axis=1))
    order = known[np.lexsort(tuple(reversed([rows[known, n] for n in range(rows.shape[1])])))]
    kept = np.empty((0, rows.shape[1]))
    chosen: list[NDArray[np.intp]] = []
    for start in range(0, len(order), BLOCK):
        block = order[start : start + BLOCK]
        if len(kept):
            block = block[~_beaten(rows[block], kept)]
        block = _front_of_sorted(rows, block)
        chosen.append(block)
        kept = np.concatenate([kept, rows[block]])
    return np.concatenate(chosen) if chosen else np.empty(0, dtype=np.intp)


def _beaten(rows: "NDArray[np.float64]", others: "NDArray[np.float64]") -> "NDArray[np.bool_]":
    """Return which of `rows` some row of `others`, that stands before it, equals or beats."""
    import numpy as np

    below = np.all(others[None, :, :] <= rows[:, None, :], axis=2)
    found: NDArray[np.bool_] = np.any(below, axis=1)
    return found


def _front_of_sorted(rows: "NDArray[np.float64]", block: "NDArray[np.intp]") -> "NDArray[np.intp]":
    """Return those of a sorted block that no earlier one of it equals or beats."""
    import numpy as np

    left, kept = block, []
    while len(left):
        kept.append(left[0])
        left = left[1:][~_beaten(rows[left[1:]], rows[left[:1]])]
    return np.array(kept, dtype=np.intp)


def representatives(figures: Sequence["NDArray[np.float64]"], most: int) -> "NDArray[np.intp]":
    """Return at most `most` row numbers for all: those of the least of each figure, then the farthest apart.

    Apart is meant in ratios: twice the cost is as far as twice the time.
    """
    import numpy as np

    rows = np.log(np.maximum(np.column_stack(figures), 1e-12))
    if len(rows) <= most:
        return np.arange(len(rows))
    chosen = list(dict.fromkeys(int(np.argmin(rows[:, n])) for n in range(rows.shape[1])))[:most]
    distance = np.min([((rows - rows[n]) ** 2).sum(axis=1) for n in chosen], axis=0)
    while len(chosen) < most and distance.max() > 0:
        chosen.append(int(np.argmax(distance)))
        distance = np.minimum(distance, ((rows - rows[chosen[-1]]) ** 2).sum(axis=1))
    return np.array(sorted(chosen), dtype=np.intp)
