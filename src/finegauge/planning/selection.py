"""Selection of a plan: the best one, its alternatives, and what a higher limit would buy.

The best is the smallest in the figure to be minimised. Of those within three percent of it the fastest
count (the cheapest, where time or energy is minimised), and of these the one is taken that changes least
of the run as it is: a config is not rewritten for half a percent.

Not sensible are several nodes for runs that are over within an hour (clusters are booked by the hour
and by the day), steps of far more or fewer samples than the run's (rows of packed samples cannot be
cut finer than one), and offload to a host that cannot hold what it is given. Nor does a run with
adapters become a full fine-tune, which is another training; it is shown as an alternative. The method stays
what it is unless another saves over a quarter, for it decides what is learnt.

Assumption: a host has twice the memory of its GPUs (8 x A100-80GB of AWS: 1.8 times, 8 x H100: 3.2).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, Literal

from finegauge.model.graph import architecture_of
from finegauge.planning.quote import OBJECTIVES, figure_of
from finegauge.planning.whatif import Standing, samples_per_step
from finegauge.prediction.uncertainty import RISKY_FROM_FRACTION
from finegauge.records import NamedTuple
from finegauge.run.rules import ADAPTER_METHODS
from finegauge.run.run import Run

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Mask = NDArray[np.bool_]

EQUAL_FRACTION = 0.03  # plans closer than this are as good as each other: no prediction is so exact
ALIKE_FRACTION = 0.1  # and of those, in hours (of the fastest, in dollars), these
FREE_TO_CHANGE = ("gpu", "provider", "num_gpus", "num_nodes", "micro_batch_size")  # no edit of the recipe
SHORTEST_ON_NODES_S = 3600.0
MOST_OTHER_SAMPLES_FRACTION = 0.25
HOST_MEMORY_RATIO = 2.0  # over the memory of its GPUs
# On the host, of each parameter: the 16-bit weight; its fp32 copy, two moments and 16-bit gradient.
HELD_WEIGHT_BYTES, HELD_STATE_BYTES = 2.0, 14.0
BLOCK = 512  # rows of figures that are compared at a time, so that memory stays small

BEATEN, MEMORY, TIME, BUDGET, RISK, UNKNOWN = "beaten", "memory", "time", "budget", "risk", "unknown"
ASPECTS = ("method", "gpu", "num_gpus", "sharding", "activation_checkpointing", "provider")
LEAST_SAVING_FRACTION = 0.05
WORTH_ANOTHER_METHOD = 0.25  # of the figure to be minimised: for less, the method stays
WORTH_RATIO = 0.3  # of what is saved over what is given for it, as shares
MORE = (1.1, 1.3, 2.0)  # times the limit of time, or of dollars
MORE_RISK = (0.1, 0.2, 0.5)
MOST_MEMORY_FRACTION = 0.1  # more than this is another card


class Wanted(NamedTuple):
    """The limits and the goal of a plan; None where there is no limit."""

    within_s: float | None = None
    budget_usd: float | None = None
    risk_fraction: float = RISKY_FROM_FRACTION
    minimise: Literal["cost", "time", "energy"] = "cost"
    spot: bool = False
    keep_method: bool = False
    gpus: tuple[str, ...] = ()  # only these; all of the catalogue where empty
    providers: tuple[str, ...] = ()
    max_gpus: int = 64
    num_gpus: int | None = None  # exactly
    framework: str = ""  # whose files are to say it; "" where it is not written down


class SearchResult(NamedTuple):
    """All plans that were evaluated, as columns and labels, and how many there are."""

    columns: Mapping[str, Any]  # by figure an array, one number per plan; nan where it is not known
    labels: Mapping[str, tuple[tuple[Any, ...], Any]]  # by field its values, and which of them each plan has
    candidate: Callable[[int], Standing]  # one plan, its run complete and checked
    num_candidates: int
    num_evaluated: int  # memory by phase, time, energy and cost of each

    @property
    def num_pruned(self) -> int:
        """Return how many are hopeless by their memory, which alone was evaluated."""
        return self.num_candidates - self.num_evaluated


def joined(found: Sequence[SearchResult]) -> SearchResult:
    """Return what several searches found as what one did."""
    import numpy as np

    found = [one for one in found if len(one.columns["wall_s"])] or found[:1]
    starts = np.cumsum([0, *(len(one.columns["wall_s"]) for one in found)]).tolist()
    labels: dict[str, tuple[tuple[Any, ...], Any]] = {}
    for name in found[0].labels:
        values = list(dict.fromkeys(value for one in found for value in one.labels[name][0]))
        places = [np.asarray([values.index(value) for value in one.labels[name][0]]) for one in found]
        which = [place[one.labels[name][1]] for place, one in zip(places, found, strict=True)]
        labels[name] = tuple(values), np.concatenate(which)

    def candidate(row: int) -> Standing:
        of = max(number for number in range(len(found)) if starts[number] <= row)
        return found[of].candidate(row - starts[of])

    columns = {name: np.concatenate([one.columns[name] for one in found]) for name in found[0].columns}
    evaluated = sum(one.num_evaluated for one in found)
    return SearchResult(columns, labels, candidate, sum(one.num_candidates for one in found), evaluated)


class Choice(NamedTuple):
    """What a search found, the limits and the goal, and the run that it started from."""

    run: Run
    result: SearchResult
    wanted: Wanted
    workable: "Mask"  # which plans an engineer would carry out
    sensible: "Mask"  # and of these, which train what was asked for, or less

    @classmethod
    def of(cls, run: Run, result: SearchResult, wanted: Wanted) -> "Choice":
        """Return the choice among all that was found."""
        columns, labels = result.columns, result.labels
        works = (columns["num_nodes"] <= 1) | (columns["wall_s"] >= SHORTEST_ON_NODES_S)
        if wanted.num_gpus is not None:
            counts, count = labels["num_gpus"]
            works &= _looked_up(count, [one == wanted.num_gpus for one in counts])
        ratio = columns["samples_per_step"] / samples_per_step(run)
        works &= abs(ratio - 1.0) <= MOST_OTHER_SAMPLES_FRACTION
        if len(works) and "cpu_offload" in labels:
            works &= _host_holds(run, result)
        sensible = works
        methods, method = labels["method"]
        if run.trains_adapters and len(method):
            sensible = works & _looked_up(method, [one in ADAPTER_METHODS for one in methods])
        return cls(run, result, wanted, works, sensible)

    def column(self, name: str) -> "NDArray[np.float64]":
        """Return one figure of every plan; of cost the market that is wanted."""
        if name in OBJECTIVES:
            name = figure_of(name, spot=self.wanted.spot)
        values: NDArray[np.float64] = self.result.columns[name]
        return values

    def fits(self) -> "Mask":
        """Return which plans run out of memory with less than the allowed probability."""
        mask: Mask = self.column("out_of_memory_fraction") < self.wanted.risk_fraction
        return mask

    def keeps_limits(self, **moved: float) -> "Mask":
        """Return which plans keep every limit of `wanted`, of which those in `moved` stand elsewhere.

        A plan whose price is not known keeps none.
        """
        limits = {**self.wanted._asdict(), **moved}
        within_s, budget_usd = limits["within_s"], limits["budget_usd"]
        mask: Mask = self.column("out_of_memory_fraction") < limits["risk_fraction"]
        mask &= self.column("time") <= (inf if within_s is None else within_s)
        return mask & (self.column("cost") <= (inf if budget_usd is None else budget_usd))

    def allowed(self) -> "Mask":
        """Return which plans may be taken."""
        return self.sensible & self.keeps_limits()

    def best(self, mask: "Mask", figure: str = "") -> int | None:
        """Return the plan of `mask` with the smallest `figure`, unstated the one to minimise, or None."""
        import numpy as np

        figure = figure or self.wanted.minimise
        values = self.column(figure)
        rows = np.flatnonzero(mask & np.isfinite(values))
        if not len(rows):
            return None
        near = rows[values[rows] <= values[rows].min() * (1.0 + EQUAL_FRACTION)]
        beside = self.column("time" if figure == "cost" else "cost")[near]
        beside = np.where(np.isnan(beside), np.inf, beside)
        near = near[beside <= beside.min() * (1.0 + ALIKE_FRACTION)]
        edits = np.zeros(len(near), dtype=np.intp)  # how many settings of the run as it is are changed
        for name, (known, codes) in self.result.labels.items():
            if name not in FREE_TO_CHANGE:
                own = getattr(self.run, name, None)
                edits += _looked_up(codes[near], [value != own for value in known])
        return int(near[np.lexsort((values[near], edits))[0]])


class Taken(NamedTuple):
    """The plan to take, and what is said of its method."""

    row: int | None  # of the search
    choice: Choice  # among what trains as it does, where its method was kept
    note: str = ""


def taken(choice: Choice) -> Taken:
    """Return the best plan, with the method of the run unless another saves more than a quarter."""
    allowed, own = choice.allowed(), choice.run.method
    best = choice.best(allowed)
    methods, codes = choice.result.labels["method"]
    if best is None or methods[codes[best]] == own:
        return Taken(best, choice)
    other, figure = methods[codes[best]], choice.wanted.minimise
    same = _looked_up(codes, [one == own for one in methods])
    kept = choice.best(allowed & same)
    if kept is None:
        return Taken(
            best, choice, f"The method changes from {own} to {other}: no plan with {own} is allowed."
        )
    values = choice.column(figure)
    saved = 1.0 - float(values[best] / values[kept])
    said = f"{100 * saved:.0f} % of the {figure}"
    if saved > WORTH_ANOTHER_METHOD:
        return Taken(best, choice, f"The method changes from {own} to {other}: it saves {said}.")
    note = f"The method stays {own}: {other} would save {said}, less than a quarter."
    alike = choice._replace(sensible=choice.sensible & same)
    return Taken(kept, alike, note if saved > EQUAL_FRACTION else "")


def _looked_up(codes: Any, values: Sequence[Any]) -> Any:
    import numpy as np

    return np.array(values)[codes] if len(codes) else np.zeros(0, dtype=bool)


def _host_holds(run: Run, result: SearchResult) -> "Mask":
    import numpy as np

    parameters = float(architecture_of(run.model, run.num_experts_per_tok).num_parameters)
    (offloads, offload), (methods, method) = result.labels["cpu_offload"], result.labels["method"]
    held = np.zeros((len(offloads), len(methods)))  # bytes of each parameter
    for row, kind in enumerate(offloads):
        for column, name in enumerate(methods):
            held[row, column] = HELD_WEIGHT_BYTES if kind in ("params", "all") else 0.0
            if kind in ("optimizer", "all") and name not in ADAPTER_METHODS:
                held[row, column] += HELD_STATE_BYTES
    counts, count = result.labels["num_gpus"]
    room = (
        HOST_MEMORY_RATIO * result.columns["capacity_bytes"] * _looked_up(count, [float(n) for n in counts])
    )
    mask: Mask = parameters * held[offload, method] <= room
    return mask


# Why the obvious alternatives lose: the best plan of each method, GPU, count, layout, and what beats it.
# One that keeps every limit loses by the figure that is minimised. One that does not is told with the limit
# that it comes closest to keeping: memory, time or budget, in this order.


class Alternative(NamedTuple):
    """The best plan with one choice made otherwise, and what stands against it."""

    aspect: str  # the field of the run, or "provider"
    value: object
    candidate: Standing | None  # None where none was worth evaluating
    reason: str  # beaten, memory, time or budget; unknown where a price or a power is
    over_fraction: float | None  # beyond the winner (beaten) or beyond the limit; None where nothing is known


def alternatives(choice: Choice, winner: int) -> dict[str, tuple[Alternative, ...]]:
    """Return by aspect every value that the winner does not have, the closest first."""
    least, keeps = choice.column(choice.wanted.minimise)[winner], choice.keeps_limits()
    order = (BEATEN, BUDGET, TIME, UNKNOWN, MEMORY)
    found: dict[str, tuple[Alternative, ...]] = {}
    for aspect in ASPECTS:
        if aspect not in choice.result.labels:
            continue
        values, codes = choice.result.labels[aspect]
        among, others = choice.workable if aspect == "method" else choice.sensible, []
        for code, value in enumerate(values):
            if code == codes[winner]:
                continue
            mask = (codes == code) & among
            best, reason = choice.best(mask & keeps), BEATEN
            if best is None:
                best, reason, over = nearest_miss(choice, mask)
            else:
                over = float(choice.column(choice.wanted.minimise)[best] / least - 1.0)
            candidate = None if best is None else choice.result.candidate(best)
            others.append(Alternative(aspect, value, candidate, reason, over))
        others.sort(key=lambda one: (order.index(one.reason), one.over_fraction or 0.0))
        if others:
            found[aspect] = tuple(others)
    return found


def nearest_miss(choice: Choice, mask: "Mask") -> tuple[int | None, str, float | None]:
    """Return the plan of `mask` that is closest to the limits, the limit it breaks most, and by what share.

    Of plans that fit the one whose time and cost are the least over; where nothing fits, the one that is
    shortest of memory.
    """
    import numpy as np

    fits = mask & choice.fits()
    if not fits.any():
        rows = np.flatnonzero(mask)
        if not len(rows):
            return None, MEMORY, None
        missing = choice.column("device_memory_bytes")[rows] / choice.column("capacity_bytes")[rows] - 1.0
        least = int(np.argmin(missing))
        return int(rows[least]), MEMORY, float(missing[least])
    rows = np.flatnonzero(fits & ~np.isnan(choice.column("cost")))
    if not len(rows):
        return choice.best(fits, "time"), UNKNOWN, None
    over = {TIME: np.full(len(rows), -np.inf), BUDGET: np.full(len(rows), -np.inf)}
    for name, figure, limit in (
        (TIME, "time", choice.wanted.within_s),
        (BUDGET, "cost", choice.wanted.budget_usd),
    ):
        if limit is not None:
            over[name] = choice.column(figure)[rows] / limit - 1.0
    nearest = int(np.argmin(np.maximum(*over.values())))
    name = TIME if over[TIME][nearest] >= over[BUDGET][nearest] else BUDGET
    if over[name][nearest] <= 0:  # every limit is kept, but the figure to be minimised is not known
        return int(rows[nearest]), UNKNOWN, None
    return int(rows[nearest]), name, float(over[name][nearest])


# What a little more of each limit would buy: the best plan with one limit moved and every other kept, told
# only where it saves enough to be worth asking for. Memory is moved on the winner's own kind of GPU, at its
# own count, up to a tenth of what the card has: "1.4 GiB more would cut 22 %".


class Relaxation(NamedTuple):
    """One limit moved, and the best plan that then is allowed."""

    limit: str  # memory, time, budget or risk
    more_bytes: float  # of memory beyond the card's; 0 for other limits
    more_fraction: float  # beyond the limit, or beyond the winner's where none was set
    saves: str  # cost, time or energy
    saved_fraction: float  # of the winner's
    candidate: Standing


def relaxations(choice: Choice, winner: int, *, margin_ratio: float) -> tuple[Relaxation, ...]:
    """Return what is worth telling, the smallest step of each limit first.

    `margin_ratio` is the card's memory over the median that a plan may need at the allowed risk.
    """
    wanted = choice.wanted
    found: list[Relaxation] = []
    if wanted.minimise != "time" and wanted.within_s is not None:
        masks = [choice.keeps_limits(within_s=ratio * wanted.within_s) for ratio in MORE]
        found += _steps(choice, winner, TIME, "time", wanted.within_s, wanted.minimise, masks)
    budget, saves = wanted.budget_usd, wanted.minimise
    if saves == "cost":  # then what more dollars than the winner takes would save of time
        budget, saves = float(choice.column("cost")[winner]), "time"
    if budget is not None:
        masks = [choice.keeps_limits(budget_usd=ratio * budget) for ratio in MORE]
        found += _steps(choice, winner, BUDGET, "cost", budget, saves, masks)
    found += _more_memory(choice, winner, margin_ratio)
    allowed = wanted.risk_fraction
    masks = [choice.keeps_limits(risk_fraction=risk) for risk in MORE_RISK if risk > allowed]
    found += _steps(choice, winner, RISK, "out_of_memory_fraction", allowed, wanted.minimise, masks)
    return tuple(found)


def _steps(
    choice: Choice, winner: int, limit: str, figure: str, was: float, saves: str, masks: Iterable["Mask"]
) -> list[Relaxation]:
    """Return those of ever looser `masks` that save more than the one before.

    `limit` is moved from `was`, in the column `figure`; `saves` names the figure that gets smaller.
    """
    own = float(choice.column(saves)[winner])
    found: list[Relaxation] = []
    least = LEAST_SAVING_FRACTION
    for mask in masks:
        best = choice.best(mask & choice.sensible, saves)
        if best is None:
            continue
        saved = 1.0 - float(choice.column(saves)[best]) / own
        more = float(choice.column(figure)[best]) / was - 1.0
        if saved < least or (saved < WORTH_RATIO * more and limit != RISK):
            continue
        found.append(Relaxation(limit, 0.0, more, saves, saved, choice.result.candidate(best)))
        least = saved + LEAST_SAVING_FRACTION
    return found


def _more_memory(choice: Choice, winner: int, margin_ratio: float) -> list[Relaxation]:
    """Return the smallest amounts of memory that would let a better plan fit on the same GPUs."""
    import numpy as np

    mask = choice.sensible & ~choice.fits() & choice.keeps_limits(risk_fraction=inf)
    for name in ("gpu", "num_gpus", "method", "provider"):
        if name in choice.result.labels:
            _, codes = choice.result.labels[name]
            mask &= codes == codes[winner]
    minimise = choice.wanted.minimise
    values, own = choice.column(minimise), float(choice.column(minimise)[winner])
    mask &= values <= own * (1.0 - LEAST_SAVING_FRACTION)
    capacity = choice.column("capacity_bytes")
    more = choice.column("device_memory_bytes") * margin_ratio - capacity
    mask &= (more > 0) & (more <= MOST_MEMORY_FRACTION * capacity)
    rows = np.flatnonzero(mask)
    found: list[Relaxation] = []
    least = 0.0
    for row in rows[np.lexsort((values[rows], more[rows]))]:
        saved = 1.0 - float(values[row]) / own
        if saved >= least + LEAST_SAVING_FRACTION:
            candidate = choice.result.candidate(int(row))
            ratio = float(more[row] / capacity[row])
            found.append(Relaxation(MEMORY, float(more[row]), ratio, minimise, saved, candidate))
            least = saved
    return [found[0], found[-1]] if len(found) > 1 else found


# The Pareto front, and a few of it that stand for all. A plan is on the front where no other is at most as
# large in every figure and smaller in one.


def front(figures: Sequence["NDArray[np.float64]"]) -> "NDArray[np.intp]":
    """Return the indices of the rows that no other row beats, the smallest first figure first.

    Every figure is to be small; rows with one that is not finite are no plan. Of equal rows the first stands
    for all.
    """
    import numpy as np

    rows = np.column_stack(figures)
    known = np.flatnonzero(np.isfinite(rows).all(axis=1))
    order = known[np.lexsort(rows[known].T[::-1])]
    kept: list[Any] = []  # of all, in this order
    for start in range(0, len(order), BLOCK):
        block = order[start : start + BLOCK]
        if kept:
            block = block[~_beaten(rows[block], rows[kept])]
        while len(block):
            kept.append(block[0])
            block = block[1:][~_beaten(rows[block[1:]], rows[block[:1]])]
    return np.array(kept, dtype=np.intp)


def _beaten(rows: "NDArray[np.float64]", others: "NDArray[np.float64]") -> "Mask":
    """Return which of `rows` some row of `others`, that stands before it, equals or beats."""
    import numpy as np

    found: Mask = np.any(np.all(others[None, :, :] <= rows[:, None, :], axis=2), axis=1)
    return found


def representatives(figures: Sequence["NDArray[np.float64]"], most: int) -> "NDArray[np.intp]":
    """Return at most `most` row numbers for all: those of the least of each figure, then the farthest apart.

    Apart is meant in ratios: twice the cost is as far as twice the time.
    """
    import numpy as np

    rows = np.log(np.maximum(np.column_stack(figures), 1e-12))
    if len(rows) <= most:
        return np.arange(len(rows))
    chosen = list(dict.fromkeys(rows.argmin(axis=0).tolist()))[:most]
    distance = np.min([((rows - rows[n]) ** 2).sum(axis=1) for n in chosen], axis=0)
    while len(chosen) < most and distance.max() > 0:
        chosen.append(int(np.argmax(distance)))
        distance = np.minimum(distance, ((rows - rows[chosen[-1]]) ** 2).sum(axis=1))
    return np.array(sorted(chosen), dtype=np.intp)
