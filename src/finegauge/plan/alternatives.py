"""Why the obvious alternatives lose: the best plan of each method, GPU, count, layout, and what beats it.

An alternative that keeps every limit loses by the figure that is minimised. One that does not is told
with the limit that it comes closest to keeping: memory, time or budget, in this order.
"""

from typing import TYPE_CHECKING, NamedTuple

from finegauge.plan.plan_choice import Choice

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from finegauge.plan.search import Candidate

ASPECTS = ("method", "gpu", "num_gpus", "sharding", "activation_checkpointing", "provider")

BEATEN, MEMORY, TIME, BUDGET, UNKNOWN = "beaten", "memory", "time", "budget", "unknown"


class Alternative(NamedTuple):
    """The best plan with one choice made otherwise, and what stands against it."""

    aspect: str  # the field of the run, or "provider"
    value: object
    candidate: "Candidate | None"  # None where none was worth evaluating
    reason: str  # beaten, memory, time or budget; unknown where a price or a power is
    over_fraction: float | None  # beyond the winner (beaten) or beyond the limit; None where nothing is known


def alternatives(choice: Choice, winner: int) -> dict[str, tuple[Alternative, ...]]:
    """Return by aspect every value that the winner does not have, the closest first."""
    return {aspect: found for aspect in ASPECTS if (found := _of_aspect(choice, winner, aspect))}


def _of_aspect(choice: Choice, winner: int, aspect: str) -> tuple[Alternative, ...]:
    """Return the best plan of each other value of one aspect."""
    if aspect not in choice.result.labels:
        return ()
    values, codes = choice.result.labels[aspect]
    among = choice.workable if aspect == "method" else choice.sensible
    found = [
        _best_with(choice, winner, aspect, value, (codes == code) & among)
        for code, value in enumerate(values)
        if code != codes[winner]
    ]
    order = (BEATEN, BUDGET, TIME, UNKNOWN, MEMORY)
    return tuple(sorted(found, key=lambda one: (order.index(one.reason), one.over_fraction or 0.0)))


def _best_with(
    choice: Choice, winner: int, aspect: str, value: object, mask: "NDArray[np.bool_]"
) -> Alternative:
    """Return the best plan of `mask`, or the one that comes closest to the limits."""
    best = choice.best(mask & choice.keeps_limits())
    if best is not None:
        own, least = choice.column(choice.minimise)[best], choice.column(choice.minimise)[winner]
        return Alternative(aspect, value, choice.result.candidate(best), BEATEN, float(own / least - 1.0))
    nearest, reason, over = nearest_miss(choice, mask)
    candidate = None if nearest is None else choice.result.candidate(nearest)
    return Alternative(aspect, value, candidate, reason, over)


def nearest_miss(choice: Choice, mask: "NDArray[np.bool_]") -> tuple[int | None, str, float | None]:
    """Return the plan of `mask` that is closest to the limits, the limit it breaks most, and by what share.

    Of plans that fit the one whose time and cost are the least over; where nothing fits, the one that is
    shortest of memory.
    """
    import numpy as np

    fits = mask & choice.fits()
    if not fits.any():
        return _shortest_of_memory(choice, mask)
    priced = fits & choice.in_budget(None)
    if not priced.any():
        return choice.best(fits, "time"), UNKNOWN, None
    rows = np.flatnonzero(priced)
    over = [_over(choice.column("time")[rows], choice.limits.within_s)]
    over.append(_over(choice.column("cost")[rows], choice.limits.budget_usd))
    nearest = int(np.argmin(np.maximum(*over)))
    time, budget = (float(column[nearest]) for column in over)
    if max(time, budget) <= 0:  # every limit is kept, but the figure to be minimised is not known
        return int(rows[nearest]), UNKNOWN, None
    return int(rows[nearest]), *((TIME, time) if time >= budget else (BUDGET, budget))


def _over(values: "NDArray[np.float64]", limit: float | None) -> "NDArray[np.float64]":
    """Return by what share `values` are beyond a limit; less than any where there is none."""
    import numpy as np

    return np.full(len(values), -np.inf) if limit is None else values / limit - 1.0


def _shortest_of_memory(choice: Choice, mask: "NDArray[np.bool_]") -> tuple[int | None, str, float | None]:
    """Return the plan that needs the least beyond what its GPU has, as a share of that."""
    import numpy as np

    rows = np.flatnonzero(mask)
    if not len(rows):
        return None, MEMORY, None
    over = choice.column("memory_bytes")[rows] / choice.column("capacity_bytes")[rows] - 1.0
    least = int(np.argmin(over))
    return int(rows[least]), MEMORY, float(over[least])
