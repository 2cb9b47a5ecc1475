"""Which of the plans found to take, what its alternatives are, and what a higher limit would buy."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from finegauge.run.rules import ADAPTER_METHODS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from finegauge.planning.search import Candidate, Limits
    from finegauge.run.run import Run

EQUAL_FRACTION = 0.03  # plans closer than this are as good as each other: no prediction is so exact
ALIKE_FRACTION = 0.1  # and of those, in hours (of the fastest, in dollars), these
FREE_TO_CHANGE = ("gpu", "provider", "num_gpus", "num_nodes", "micro_batch_size")  # no edit of the recipe


class Found(Protocol):
    """What a search hands over: figures and labels of every plan, and each plan when asked."""

    @property
    def columns(self) -> Mapping[str, Any]:
        """Return arrays by figure, one number per plan; nan where it is not known."""

    @property
    def labels(self) -> Mapping[str, tuple[tuple[Any, ...], Any]]:
        """Return by field of the run its values, and for each plan which of them it has."""

    @property
    def num_candidates(self) -> int:
        """Return how many plans there are."""

    @property
    def num_evaluated(self) -> int:
        """Return how many of them were evaluated in full."""

    def candidate(self, index: int) -> "Candidate":
        """Return one plan."""


class Choice(NamedTuple):
    """What a search found, what is asked of it, and the run that it started from."""

    run: "Run"
    result: Found
    limits: "Limits"
    minimise: str
    spot: bool
    workable: "NDArray[np.bool_]"  # which plans somebody would carry out: see `plan_sense`
    sensible: "NDArray[np.bool_]"  # and of these, which train what was asked for, or less

    @classmethod
    def of(cls, run: "Run", result: Found, limits: "Limits", minimise: str, *, spot: bool) -> "Choice":
        """Return the choice among all that was found."""
        works = workable(run, result)
        return cls(run, result, limits, minimise, spot, works, works & same_training(run, result))

    def column(self, name: str) -> "NDArray[np.float64]":
        """Return one figure of every plan; of cost the market that is asked for."""
        if name == "cost":
            name = "spot_usd" if self.spot else "usd"
        names = {"time": "wall_s", "energy": "energy_j"}
        values: NDArray[np.float64] = self.result.columns[names.get(name, name)]
        return values

    def fits(self, threshold: float | None = None) -> "NDArray[np.bool_]":
        """Return which plans run out of memory with less than the allowed probability."""
        allowed = self.limits.out_of_memory_fraction if threshold is None else threshold
        mask: NDArray[np.bool_] = self.column("out_of_memory_fraction") < allowed
        return mask

    def in_time(self, within_s: float | None) -> "NDArray[np.bool_]":
        """Return which plans end within so many seconds."""
        import numpy as np

        return self.column("time") <= (np.inf if within_s is None else within_s)

    def in_budget(self, budget_usd: float | None) -> "NDArray[np.bool_]":
        """Return which plans have a known price, within so many dollars."""
        import numpy as np

        return self.column("cost") <= (np.inf if budget_usd is None else budget_usd)  # False where it is nan

    def keeps_limits(self) -> "NDArray[np.bool_]":
        """Return which plans keep every limit."""
        limits = self.limits
        return self.fits() & self.in_time(limits.within_s) & self.in_budget(limits.budget_usd)

    def allowed(self) -> "NDArray[np.bool_]":
        """Return which plans may be taken."""
        return self.sensible & self.keeps_limits()

    def best(self, mask: "NDArray[np.bool_]", figure: str = "") -> int | None:
        """Return the plan of `mask` that is smallest in `figure`; None where it is empty.

        Args:
            mask: Which plans to look at.
            figure: cost, time or energy; the one to be minimised by default.
        """
        import numpy as np

        values = self.column(figure or self.minimise)
        rows = np.flatnonzero(mask & np.isfinite(values))
        if not len(rows):
            return None
        near = rows[values[rows] <= values[rows].min() * (1.0 + EQUAL_FRACTION)]
        beside = self.column("time" if (figure or self.minimise) == "cost" else "cost")
        beside = np.where(np.isnan(beside), np.inf, beside)
        near = near[beside[near] <= beside[near].min() * (1.0 + ALIKE_FRACTION)]
        ranked = np.lexsort((values[near], self._edits(near)))
        return int(near[ranked[0]])

    def _edits(self, rows: "NDArray[np.intp]") -> "NDArray[np.intp]":
        """Return how many settings each of `rows` changes of the run as it is."""
        import numpy as np

        edits = np.zeros(len(rows), dtype=np.intp)
        for name, (values, codes) in self.result.labels.items():
            if name in FREE_TO_CHANGE:
                continue
            own = getattr(self.run, name, None)
            changed = np.array([value != own for value in values], dtype=bool)
            edits += changed[codes[rows]]
        return edits


SHORTEST_ON_NODES_S = 3600.0
MOST_OTHER_SAMPLES_FRACTION = 0.25
HOST_MEMORY_RATIO = 2.0  # over the memory of its GPUs
# On the host, of each parameter: the 16-bit weight; its fp32 copy, two moments and 16-bit gradient.
HELD_WEIGHT_BYTES, HELD_STATE_BYTES = 2.0, 14.0


def workable(run: "Run", result: "Found") -> "NDArray[np.bool_]":
    """Return which of the plans found for `run` somebody would carry out."""
    columns = result.columns
    mask: NDArray[np.bool_] = (columns["num_nodes"] <= 1) | (columns["wall_s"] >= SHORTEST_ON_NODES_S)
    ratio = columns["samples_per_step"] / samples_per_step(run)
    mask &= abs(ratio - 1.0) <= MOST_OTHER_SAMPLES_FRACTION
    if len(mask) and "cpu_offload" in result.labels:
        mask &= _host_holds(run, result)
    return mask


def same_training(run: "Run", result: "Found") -> "NDArray[np.bool_]":
    """Return which plans train what was asked for, or less: all but full ones for a run with adapters."""
    import numpy as np

    methods, method = result.labels["method"]
    if not run.trains_adapters or not len(method):
        return np.ones(len(method), dtype=bool)
    mask: NDArray[np.bool_] = np.array([one in ADAPTER_METHODS for one in methods])[method]
    return mask


def samples_per_step(run: "Run") -> float:
    """Return the samples of the data set in one optimizer step of `run`, all GPUs together."""
    from finegauge.data.batch_shape import shape

    return shape(run).samples * run.gradient_accumulation_steps * run.data_parallel


def _host_holds(run: "Run", result: "Found") -> "NDArray[np.bool_]":
    """Return for which plans the hosts' memory holds what is offloaded to it."""
    import numpy as np

    from finegauge.model.graph import architecture_of

    parameters = float(architecture_of(run.model, run.num_experts_per_tok).num_parameters)
    offloads, offload = result.labels["cpu_offload"]
    methods, method = result.labels["method"]
    counts, count = result.labels["num_gpus"]
    per_parameter = np.array([[_held_bytes(str(o), str(m)) for m in methods] for o in offloads])
    room = HOST_MEMORY_RATIO * result.columns["capacity_bytes"] * np.array(counts, dtype=float)[count]
    mask: NDArray[np.bool_] = parameters * per_parameter[offload, method] <= room
    return mask


def _held_bytes(offload: str, method: str) -> float:
    """Return the bytes of each parameter that lie in the memory of the host."""
    weights = HELD_WEIGHT_BYTES if offload in ("params", "all") else 0.0
    states = HELD_STATE_BYTES if offload in ("optimizer", "all") and method not in ADAPTER_METHODS else 0.0
    return weights + states


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


LEAST_SAVING_FRACTION = 0.05
WORTH_RATIO = 0.3  # of what is saved over what is given for it, as shares
MORE_TIME = (1.1, 1.3, 2.0)
MORE_DOLLARS = (1.1, 1.3, 2.0)
MORE_RISK = (0.1, 0.2, 0.5)
MOST_MEMORY_FRACTION = 0.1  # more than this is another card

LIMIT_MEMORY, LIMIT_TIME, LIMIT_BUDGET, RISK = "memory", "time", "budget", "risk"


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
    return _steps(choice, winner, LIMIT_TIME, "time", within_s, choice.minimise, masks)


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
    return _steps(choice, winner, LIMIT_BUDGET, "cost", limit, saves, masks)


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
            found.append(Relaxation(LIMIT_MEMORY, float(more[row]), ratio, choice.minimise, saved, candidate))
            least = saved
    return [found[0], found[-1]] if len(found) > 1 else found
