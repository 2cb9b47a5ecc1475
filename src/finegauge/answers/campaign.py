"""What campaigns found: `finegauge campaign` and `results`, a report about many, and `compare`."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from finegauge.answers import Rules
from finegauge.answers.profile import ProfileFigures, figures_of
from finegauge.answers.study import Throughput, Way, throughput, way_of
from finegauge.campaign.axes import MEASURED, PREDICTED, SWITCH, Folder, Result
from finegauge.campaign.gains import (
    DIMENSIONS,
    ClaimHeld,
    Claims,
    Comparison,
    Gain,
    Weights,
    comparison_at,
    hold,
    points_of,
)
from finegauge.catalogue.gpus import gpu, known_gpu
from finegauge.errors import FineGaugeError
from finegauge.planning.quote import quote
from finegauge.store.document import Facts
from finegauge.store.table import FACTS, rows_of

if TYPE_CHECKING:
    import pyarrow as pa

    from finegauge.campaign.driver import Summary
    from finegauge.campaign.sweep import Sweep

Range = tuple[float, float]
Ratio = float | None  # times the baseline; None where one side is not known


@Rules(hidden=("improves",), absent=("SpeedUp_interval", "MemoryUp_interval", "EnergyUp_interval"))
class GainFigures(NamedTuple):
    """What one optimisation gains, as multiples of the baseline: above 1 is better."""

    name: str
    outcome: str
    of_baseline: bool  # whether the outcome is that of the run without the optimisation
    reason: str  # why a ratio is missing
    energy_by: str  # what EnergyUp is the ratio of: joules, or processor seconds where no meter read any
    SpeedUp: Ratio
    MemoryUp: Ratio
    EnergyUp: Ratio
    SpeedUp_interval: Range | None  # 95 % of a measured ratio
    MemoryUp_interval: Range | None
    EnergyUp_interval: Range | None
    improves: tuple[str, ...]  # dimensions that it betters, beyond the interval where there is one

    @property
    def ratios(self) -> Mapping[str, Ratio]:
        """Return the ratios by dimension."""
        return {name: getattr(self, name) for name in DIMENSIONS}

    @property
    def intervals(self) -> Mapping[str, Range]:
        """Return the intervals that are known, by dimension."""
        named = {name: getattr(self, f"{name}_interval") for name in DIMENSIONS}
        return {name: found for name, found in named.items() if found is not None}


@Rules(absent=("weighed",))
class GainsAt(NamedTuple):
    """Optimisations of one run by one estimator, held against the run without them."""

    labels: Mapping[str, str]  # of the other axes
    estimator: str
    gains: tuple[GainFigures, ...]
    ranking: Mapping[str, tuple[str, ...]]  # by dimension, the best first
    pareto_front: tuple[str, ...]  # those that no other, nor the baseline, beats in all dimensions
    improves_all: tuple[str, ...]
    weighed: Mapping[str, float] | None = None  # by a user's weights, the best first; the baseline has 1


class ClaimsHeld(NamedTuple):
    """What one paper claims, held against the comparisons."""

    name: str
    source: str
    remark: str  # what is ours in it
    held: tuple[ClaimHeld, ...]


@Rules(absent=("weights",))
class CompareAnswer(NamedTuple):
    """SpeedUp = T_base/T_opt, MemoryUp = M_base/M_opt, EnergyUp = E_base/E_opt, T and E of one sequence."""

    baseline: str  # the switch, or the file, that the others are compared with
    comparisons: tuple[GainsAt, ...]
    claims: ClaimsHeld | None  # of the paper that the campaign's sweep names
    weights: Mapping[str, float] | None = None  # of the dimensions, where a user states them


def compare_answer(
    comparisons: Sequence[Comparison],
    baseline: str,
    claims: Claims | None = None,
    weights: Weights | None = None,
) -> CompareAnswer:
    """Return what is gained at every point, by `weights` too, and whether a paper's claims hold there."""
    held = claims and ClaimsHeld(*claims[:3], tuple(hold(claims, comparisons)))
    points = tuple(gains_at(one, weights) for one in comparisons)
    return CompareAnswer(baseline, points, held, weights)


def gains_at(one: Comparison, weights: Weights | None = None) -> GainsAt:
    """Return what is gained at one point."""
    return GainsAt(
        labels=one.labels,
        estimator=one.estimator,
        gains=tuple(map(_figures, one.gains)),
        ranking={name: tuple(gain.name for gain in one.ranking(name)) for name in DIMENSIONS},
        pareto_front=tuple(gain.name for gain in one.front()),
        improves_all=tuple(gain.name for gain in one.gains if gain.improves_all),
        weighed=one.weighed(weights) if weights else None,
    )


def _figures(gain: Gain) -> GainFigures:
    known: dict[str, Any] = dict(gain.ratios)
    for name, ratio in gain.ratios.items():
        factors = gain.intervals.get(name)
        known[f"{name}_interval"] = None if ratio is None or factors is None else factors.of(ratio)
    improves = tuple(name for name in DIMENSIONS if gain.improves(name))
    said = gain.name, gain.outcome, gain.of_baseline, gain.reason, gain.energy_by
    return GainFigures(*said, **known, improves=improves)


BATCH = "micro_batch_size"
MOST_COMPARISONS, MOST_SWEEPS, MOST_WAYS = 12, 8, 20


@Rules(flat=("figures",))
class ProfileOfCell(NamedTuple):
    """A profile with the reason where it has no answer; null is what is not known."""

    figures: ProfileFigures
    peak_memory_bytes: float | None
    device_memory_bytes: float | None
    step_time_s: float | None
    step_energy_j: float | None
    tokens_per_s: float | None
    samples_per_s: float | None
    reason: str


class CellResult(NamedTuple):
    """How one cell ended."""

    cell: str  # a hash of its content
    labels: Mapping[str, str]  # the value of each axis
    estimator: str  # predicted or measured
    repetition: int
    profile: ProfileOfCell


class RefusedCell(NamedTuple):
    """A cell whose values make no run, and why."""

    labels: Mapping[str, str]
    reason: str


@Rules(hidden=("about", "has_switches", "ended", "reasons"))
class CampaignAnswer(NamedTuple):
    """What one call asked of a sweep, and all that the folder holds."""

    name: str
    folder: str
    num_cells: int  # of the sweep
    done_before: int  # of these, known before this call
    outcomes: Mapping[str, int]  # how many cells of this call ended how
    refused: tuple[RefusedCell, ...]
    results: tuple[CellResult, ...]
    about: str
    has_switches: bool  # whether 'finegauge compare' has something to say
    ended: Mapping[str, Mapping[str, int]]  # by estimator: how many cells of the sweep ended how by now
    reasons: Mapping[str, int]  # why cells have no answer, and how many


def campaign_answer(
    sweep: "Sweep", folder: Folder, summary: "Summary", *, whole: bool = True
) -> CampaignAnswer:
    """Return what one call did, and what the folder holds now: every result, if `whole`."""
    done = folder.done()
    ended = {
        word: Counter(done.get(cell.key, "to do") for cell in sweep.cells if cell.estimator == word)
        for word in (PREDICTED, MEASURED)
    }
    results, refusals = folder.results(), folder.refusals()
    reasons = Counter(one.reason for one in refusals)
    reasons.update(one.facts.reason for one in results if one.facts.outcome in ("failed", "unsupported"))
    return CampaignAnswer(
        name=sweep.name,
        folder=folder.path,
        num_cells=len(sweep.cells),
        done_before=summary.before,
        outcomes=summary.outcomes,
        refused=tuple(RefusedCell(one.labels, one.reason) for one in refusals),
        results=tuple(map(_cell_result, results if whole else ())),
        about=sweep.about,
        has_switches=SWITCH in sweep.axes,
        ended={word: counts for word, counts in ended.items() if counts},
        reasons=reasons,
    )


def _cell_result(one: Result) -> CellResult:
    stored = one.profile
    figures = figures_of(stored)
    known = {name: getattr(figures, name) or None for name in ProfileOfCell._fields if hasattr(figures, name)}
    profile = ProfileOfCell(figures, reason=stored.reason, **known)
    return CellResult(one.key, one.labels, one.estimator, one.repetition, profile)


@Rules(hidden=("columns", "num_rows"))
class ResultsAnswer(NamedTuple):
    """Rows of the table of results: a column per field of the run and per fact of its step."""

    num_quarantined: int  # lines of the journals that did not read back
    results: tuple[Mapping[str, Any], ...]
    columns: tuple[str, ...]  # those worth a look
    num_rows: int  # of which `results` may be the first


USUAL = ("outcome", "step_time_s", "tokens_per_s", "peak_memory_bytes", "step_energy_j")
MOST_COLUMNS = 14
_SELDOM = ("cell", "reason", *FACTS)  # of little help in telling rows apart


def results_answer(table: "pa.Table", quarantined: int, *, whole: bool, most: int) -> ResultsAnswer:
    """Return the first `most` rows of a table; of a `whole` one, the columns that differ and usual facts."""
    columns = _telling(table) if whole else tuple(table.column_names)
    return ResultsAnswer(quarantined, tuple(rows_of(table.slice(0, most))), columns, len(table))


def _telling(table: "pa.Table") -> tuple[str, ...]:
    """Return the columns in which rows differ, and the usual facts that are known."""
    varied = [
        name
        for name in table.column_names
        if name not in USUAL and name not in _SELDOM and "time_" not in name and len(table[name].unique()) > 1
    ]
    usual = [name for name in USUAL if table[name].null_count < len(table)]
    return tuple([*varied, *usual][-MOST_COLUMNS:])


class CellBeside(NamedTuple):
    """Medians of the predictions and of the measurements of one cell."""

    labels: Mapping[str, str]
    predicted_step_s: float | None
    measured_step_s: float | None
    predicted_peak_bytes: float | None
    measured_peak_bytes: float | None


class CampaignStudy(NamedTuple):
    """Many results, seen from all sides."""

    title: str
    baseline: str
    results: tuple[Result, ...]
    beside: tuple[CellBeside, ...]  # cells that both answer
    num_elsewhere: int  # cells that were predicted for another device than the one that measured them
    measured_on: str
    comparisons: tuple[GainsAt, ...]  # the first of `num_comparisons`
    num_comparisons: int
    throughputs: Mapping[str, Throughput]  # by the values of the other axes; the first of `num_sweeps`
    num_sweeps: int
    ways: tuple[Way, ...]  # of the cells that are predicted to fit and do the same work
    num_priced_from: int  # cells, of which each machine's fastest is a way


def campaign_study(
    title: str,
    results: Sequence[Result],
    baseline: str = "baseline",
    axes: Mapping[str, Sequence[str]] | None = None,
) -> CampaignStudy:
    """Return what `results` say together; `axes` orders points and switches, else they come as they are."""
    both = {labels: cell for labels, cell in _by_labels(results).items() if len(cell) > 1}
    apart = {labels: cell for labels, cell in both.items() if not _same_device(cell)}
    devices = (one.device for cell in apart.values() for one in cell[MEASURED])
    sweeps = _sweeps(results)
    lines = (
        (where, throughput([one.profile for one in sweep]))
        for where, sweep in list(sweeps.items())[:MOST_SWEEPS]
    )
    ways, num_priced_from = _ways(results)
    points = points_of(results, baseline, axes)
    return CampaignStudy(
        title=title,
        baseline=baseline,
        results=tuple(results),
        beside=tuple(_beside(dict(labels), cell) for labels, cell in both.items() if labels not in apart),
        num_elsewhere=len(apart),
        measured_on=next(devices, None) or "another device",
        comparisons=tuple(gains_at(comparison_at(one, baseline)) for one in points[:MOST_COMPARISONS]),
        num_comparisons=len(points),
        throughputs={where: line for where, line in lines if line is not None},
        num_sweeps=len(sweeps),
        ways=ways,
        num_priced_from=num_priced_from,
    )


Cell = dict[str, list[Facts]]  # by estimator


def _by_labels(results: Sequence[Result]) -> dict[tuple[tuple[str, str], ...], Cell]:
    found: dict[tuple[tuple[str, str], ...], Cell] = {}
    for result in results:
        if result.facts.outcome == "completed":
            cell = found.setdefault(tuple(result.labels.items()), {})
            cell.setdefault(result.estimator, []).append(result.facts)
    return found


def _same_device(cell: Cell) -> bool:
    names = {_device(one.device, str(one.machine[0])) for found in cell.values() for one in found}
    return len(names) == 1 and None not in names


@lru_cache(1024)
def _device(seen: str | None, asked: str) -> str | None:
    """Return what a device is called; None where it was predicted from a file that is no longer there."""
    known = known_gpu(seen) if seen else None
    try:
        return known.name if known else seen or gpu(asked).name
    except FineGaugeError:
        return None


def _beside(labels: Mapping[str, str], cell: Cell) -> CellBeside:
    def middle(estimator: str, quantity: str) -> float | None:
        known = [total for one in cell.get(estimator, ()) if (total := getattr(one, quantity))]
        return median(known) if known else None

    both = PREDICTED, MEASURED
    times = (middle(estimator, "step_s") for estimator in both)
    return CellBeside(labels, *times, *(middle(estimator, "peak_memory_bytes") for estimator in both))


def _sweeps(results: Sequence[Result]) -> dict[str, list[Result]]:
    """Return, for every point of the other axes that has several batches, its results by batch."""
    sweeps: dict[str, dict[int, Result]] = {}
    for result in results:
        if BATCH in result.labels and result.facts.step_s:
            others = [f"{name} {value}" for name, value in result.labels.items() if name != BATCH]
            sweep = sweeps.setdefault(f"{', '.join(others) or 'the run'} ({result.estimator})", {})
            sweep[result.facts.micro_batch_size] = result
    return {
        where: [sweep[size] for size in sorted(sweep)] for where, sweep in sweeps.items() if len(sweep) > 1
    }


def _ways(results: Sequence[Result]) -> tuple[tuple[Way, ...], int]:
    """Return the fastest predicted cell of each machine, priced, the cheapest first, and of how many it is.

    On one machine the fastest cell is the cheapest too. There are none where cells do different work.
    """
    fitting = [
        one
        for one in results
        if one.estimator == PREDICTED and one.facts.outcome == "completed" and one.facts.samples_per_s
    ]
    if len({tuple(one.facts.work) for one in fitting}) != 1:
        return (), len(fitting)
    fastest: dict[tuple[object, ...], Result] = {}
    for one in fitting:
        machine = tuple(one.facts.machine)
        other = fastest.get(machine)
        if other is None or one.facts.samples_per_s > other.facts.samples_per_s:
            fastest[machine] = one
    ways = [way for one in fastest.values() if (way := _way(one)) is not None]
    return tuple(sorted(ways, key=lambda way: way.usd)[:MOST_WAYS]), len(fitting)


def _way(result: Result) -> Way | None:
    try:
        bill = quote((profile := result.profile).run, profile)
    except FineGaugeError:
        return None
    name = ", ".join(f"{axis} {value}" for axis, value in result.labels.items())
    return way_of(name, str(result.facts.machine[0]), bill)
