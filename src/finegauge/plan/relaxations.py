"""What a little more of each limit would buy: memory, time, dollars, or a little more risk.

Each is the best plan with one limit moved and every other kept, told only where it saves enough to
be worth asking for. Memory is moved on the winner's own kind of GPU, at its own count, up to a tenth
of what the card has: "1.4 GiB more would cut 22 %".
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from finegauge.plan.plan_choice import Choice

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from finegauge.plan.search import Candidate

LEAST_SAVING_FRACTION = 0.05
WORTH_RATIO = 0.3  # of what is saved over what is given for it, as shares
MORE_TIME = (1.1, 1.3, 2.0)
MORE_DOLLARS = (1.1, 1.3, 2.0)
MORE_RISK = (0.1, 0.2, 0.5)
MOST_MEMORY_FRACTION = 0.1  # more than this is another card

MEMORY, TIME, BUDGET, RISK = "memory", "time", "budget", "risk"


class Relaxation(NamedTuple):
    """One limit moved, and the best plan that then is allowed."""

    limit: str  # memory, time, budget or risk
    more_bytes: float  # of memory beyond the card's; 0 for other limits
    more_fraction: float  # beyond the limit, or beyond the winner's where none was set
    saves: str  # cost, time or energy
    saved_fraction: float  # of the winner's
    candidate: "Candidate"


def relaxations(choice: Choice, winner: int, *, margin_ratio: float) -> tuple[Relaxation, ...]:
    """Return what is worth telling, the smallest step of each limit first.

    Args:
        choice: The search and what is asked of it.
        winner: The plan that was taken.
        margin_ratio: The card's memory over the median that a plan may need at the allowed risk.
    """
    found = [
        *_time(choice, winner),
        *_budget(choice, winner),
        *_memory(choice, winner, margin_ratio),
        *_risk(choice, winner),
    ]
    return tuple(found)


def _time(choice: Choice, winner: int) -> list[Relaxation]:
    """Return what more time would save, where time is limited and not what is minimised."""
    within_s = choice.limits.within_s
    if choice.minimise == "time" or within_s is None:
        return []
    kept = choice.sensible & choice.fits() & choice.in_budget(choice.limits.budget_usd)
    masks = (kept & choice.in_time(ratio * within_s) for ratio in MORE_TIME)
    return _steps(choice, winner, TIME, "time", within_s, choice.minimise, masks)


def _budget(choice: Choice, winner: int) -> list[Relaxation]:
    """Return what more dollars than the winner takes (or than the budget) would save of time."""
    cost = float(choice.column("cost")[winner])
    limit, saves = choice.limits.budget_usd, choice.minimise
    if choice.minimise == "cost":
        limit, saves = cost, "time"
    if limit is None:
        return []
    kept = choice.sensible & choice.fits() & choice.in_time(choice.limits.within_s)
    masks = (kept & choice.in_budget(ratio * limit) for ratio in MORE_DOLLARS)
    return _steps(choice, winner, BUDGET, "cost", limit, saves, masks)


def _risk(choice: Choice, winner: int) -> list[Relaxation]:
    """Return what a higher probability of running out of memory would save."""
    limits = choice.limits
    kept = choice.sensible & choice.in_time(limits.within_s) & choice.in_budget(limits.budget_usd)
    allowed = limits.out_of_memory_fraction
    masks = (kept & choice.fits(risk) for risk in MORE_RISK if risk > allowed)
    return _steps(choice, winner, RISK, "out_of_memory_fraction", allowed, choice.minimise, masks)


def _steps(
    choice: Choice,
    winner: int,
    limit: str,
    figure: str,
    was: float,
    saves: str,
    masks: "Iterable[NDArray[np.bool_]]",
) -> list[Relaxation]:
    """Return those of ever looser `masks` that save more than the one before.

    Args:
        choice: The search and what is asked of it.
        winner: The plan that was taken.
        limit: What is moved.
        figure: The column that it limits.
        was: Where it stood.
        saves: The figure that gets smaller.
        masks: The plans that are allowed, one step after the other.
    """
    own = float(choice.column(saves)[winner])
    found: list[Relaxation] = []
    least = LEAST_SAVING_FRACTION
    for mask in masks:
        best = choice.best(mask, saves)
        if best is None:
            continue
        saved = 1.0 - float(choice.column(saves)[best]) / own
        more = float(choice.column(figure)[best]) / was - 1.0
        if saved < least or (saved < WORTH_RATIO * more and limit != RISK):
            continue
        found.append(Relaxation(limit, 0.0, more, saves, saved, choice.result.candidate(best)))
        least = saved + LEAST_SAVING_FRACTION
    return found


def _memory(choice: Choice, winner: int, margin_ratio: float) -> list[Relaxation]:
    """Return the smallest amounts of memory that would let a better plan fit on the same GPUs."""
    import numpy as np

    limits = choice.limits
    mask = (
        choice.sensible
        & ~choice.fits()
        & choice.in_time(limits.within_s)
        & choice.in_budget(limits.budget_usd)
    )
    for name in ("gpu", "num_gpus", "method", "provider"):
        if name in choice.result.labels:
            _, codes = choice.result.labels[name]
            mask &= codes == codes[winner]
    values, own = choice.column(choice.minimise), float(choice.column(choice.minimise)[winner])
    mask &= values <= own * (1.0 - LEAST_SAVING_FRACTION)
    capacity = choice.column("capacity_bytes")
    more = choice.column("memory_bytes") * margin_ratio - capacity
    mask &= (more > 0) & (more <= MOST_MEMORY_FRACTION * capacity)
    rows = np.flatnonzero(mask)
    found: list[Relaxation] = []
    least = 0.0
    for row in rows[np.lexsort((values[rows], more[rows]))]:
        saved = 1.0 - float(values[row]) / own
        if saved >= least + LEAST_SAVING_FRACTION:
            candidate = choice.result.candidate(int(row))
            ratio = float(more[row] / capacity[row])
            found.append(Relaxation(MEMORY, float(more[row]), ratio, choice.minimise, saved, candidate))
            least = saved
    return [found[0], found[-1]] if len(found) > 1 else found
