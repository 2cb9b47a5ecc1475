"""Where all of the page's charts stands, as fractions of width and height, with what each mark says.

The figures are those of the answers; nothing is worked out here but places. A chart's text keeps its size
whatever the width, for places across are percentages.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import ceil, floor, inf, log2, log10
from typing import NamedTuple

from finegauge.answers.estimate import EstimateAnswer, GpuEstimate
from finegauge.answers.plan import Candidate, PlanAnswer, ScalingAnswer, ScalingPoint
from finegauge.planning.estimate import FitCell, FitGrid
from finegauge.prediction.uncertainty import FITS, WILL_NOT_FIT
from finegauge.profile import Breakdown, Profile
from finegauge.render import number_format as fmt
from finegauge.render.plan import plan_name, planned_fields
from finegauge.render.plots.drawing import OWN_SHADES
from finegauge.render.run_parts import TONES, WORDS, shown_name
from finegauge.units import GIB, HOUR_S, KWH_J, count, gib

SIGNS = {"fits": "✓", "risky": "~", "will_not_fit": "✕"}
INSET = 0.05  # of a chart on each side, for whole marks at its edges
NUM_SHADES = 8
ROOM_RATIO = 1.01  # of a bar, for the line at its end
ORDER = ("data", "generation", "prefill", "decode", "scoring", "forward", "recompute", "backward",
         "communication", "optimizer")  # of the stages of a step  # fmt: skip


class Square(NamedTuple):
    """One pair of micro-batch and sequence length."""

    micro_batch_size: int
    seq_len: int
    kind: str  # fits, risky, will_not_fit; none: the run cannot have it
    sign: str
    amount: str  # GiB, short
    says: tuple[str, ...]  # verdict, memory, P(OOM), step, tokens/s
    is_own: bool


class Heat(NamedTuple):
    """Every pair, the largest micro-batch first."""

    gpu: str
    seq_lens: tuple[int, ...]
    rows: tuple[tuple[Square, ...], ...]
    row: int  # where the run is
    column: int
    same_from: int | None


def heat_of(grid: FitGrid) -> Heat:
    """Return what is drawn of a grid."""
    run = grid.run
    pairs = zip(reversed(grid.micro_batch_sizes), reversed(grid.rows), strict=True)
    rows = tuple(
        tuple(_square(cell, grid, size, length) for cell, length in zip(cells, grid.seq_lens, strict=True))
        for size, cells in pairs
    )
    row = grid.micro_batch_sizes[::-1].index(run.micro_batch_size)
    return Heat(str(run.gpu), grid.seq_lens, rows, row, grid.seq_lens.index(run.seq_len), grid.same_from)


def _square(cell: FitCell | None, grid: FitGrid, size: int, length: int) -> Square:
    own = (size, length) == (grid.run.micro_batch_size, grid.run.seq_len)
    if cell is None:
        return Square(size, length, "none", "", "", ("The run cannot have it", "-", "-", "-", "-"), own)
    return Square(
        size, length, cell.verdict, SIGNS[cell.verdict], fmt.digits(cell.device_memory_bytes / GIB, 2),
        (
            WORDS[cell.verdict], f"{fmt.gib_of(cell.device_memory_bytes, grid.capacity_bytes)} GiB",
            fmt.probability(cell.out_of_memory_fraction), fmt.duration(cell.step_time_s),
            count(cell.tokens_per_s),
        ),
        own,
    )  # fmt: skip


class Amount(NamedTuple):
    """One figure, and how long its bar is beside the others."""

    text: str
    fraction: float | None


class Beside(NamedTuple):
    """One GPU beside others; its memory on the scale of the largest."""

    gpu: str
    tone: str
    verdict: str
    memory: str
    needed_fraction: float
    room_fraction: float
    interval_fractions: tuple[float, float] | None
    amounts: tuple[Amount, ...]  # step, hours, dollars, kWh
    note: str


def beside_of(answer: EstimateAnswer) -> tuple[Beside, ...]:
    """Return the GPUs of an answer in their order, those without a figure last."""
    found = answer.found
    widest = ROOM_RATIO * max(max(one.capacity_bytes, one.device_memory_bytes) for one in found)
    columns = [[_amounts(one)[n] for one in found] for n in range(4)]
    tops = [max((value for value, _ in column if value), default=0.0) for column in columns]
    rows = [_beside(one, widest, [column[n] for column in columns], tops) for n, one in enumerate(found)]
    missing = (Beside(one.gpu, "soft", "no answer", "", 0.0, 0.0, None, (), one.reason)
               for one in answer.unsupported)  # fmt: skip
    return (*rows, *missing)


def _amounts(one: GpuEstimate) -> list[tuple[float | None, str]]:
    bill = one.quote
    step = one.profile.step_time_s.total
    if bill is None:
        return [(step, fmt.duration(step)), *[(None, fmt.UNKNOWN)] * 3]
    return [
        (step, fmt.duration(step)), (bill.wall_s, fmt.hours(bill.wall_s)),
        (bill.on_demand_usd, fmt.dollars(bill.on_demand_usd)),
        (bill.wall_energy_j, fmt.kwh(bill.wall_energy_j)),
    ]  # fmt: skip


def _beside(
    one: GpuEstimate, widest: float, amounts: Sequence[tuple[float | None, str]], tops: Sequence[float]
) -> Beside:
    interval, needed = one.profile.source.memory_interval, one.device_memory_bytes
    ends = None if interval is None else interval.of(needed)
    return Beside(
        one.gpu, TONES[one.verdict], f"{SIGNS[one.verdict]} {WORDS[one.verdict]}",
        f"{fmt.gib_of(needed, one.capacity_bytes)} GiB", needed / widest, one.capacity_bytes / widest,
        ends and (min(1.0, ends[0] / widest), min(1.0, ends[1] / widest)),
        tuple(Amount(text, value / top if value is not None and top else None)
              for (value, text), top in zip(amounts, tops, strict=True)),
        "" if one.quote else "will not fit, so nothing is rented",
    )  # fmt: skip


class Stretch(NamedTuple):
    """One piece of the time line."""

    name: str
    start_fraction: float
    width_fraction: float
    says: str
    shade: int


class TimeLine(NamedTuple):
    """One step as three rows: stages, layers, operators."""

    said: str
    rows: tuple[tuple[str, tuple[Stretch, ...]], ...]


def time_line_of(profile: Profile) -> TimeLine:
    """Return the time line of a step, its stages in their order."""
    step = profile.step_time_s
    parts = sorted(step.parts.items(), key=lambda part: _place(part[0][0]))
    ordered: list[tuple[tuple[str, ...], float]] = []
    for stage in dict.fromkeys(path[0] for path, _ in parts):
        own = [part for part in parts if part[0][0] == stage]
        layers = list(dict.fromkeys(path[:2] for path, _ in own))
        for layer in reversed(layers) if stage == "backward" else layers:
            ordered += [part for part in own if part[0][:2] == layer]
    names = ("Stages", "Layers", "Operators")
    rows = tuple((names[depth - 1], _stretches(ordered, depth, step)) for depth in (1, 2, 3))
    return TimeLine(fmt.duration(step.total), rows)


def _place(stage: str) -> int:
    return ORDER.index(stage) if stage in ORDER else len(ORDER)


def _stretches(
    parts: Iterable[tuple[tuple[str, ...], float]], depth: int, step: Breakdown
) -> tuple[Stretch, ...]:
    total, found = step.total or 1.0, Breakdown.add_up((path[:depth], value) for path, value in parts)
    stretches, start = [], 0.0
    for path, value in found.parts.items():
        if len(path) == depth:
            share = value / total
            says = f"{', '.join(map(shown_name, path))}: {fmt.duration(value)}, {fmt.percent(share)}"
            shade = OWN_SHADES.get(path[0], _place(path[0]) % NUM_SHADES + 1)
            stretches.append(Stretch(shown_name(path[-1]), start, share, says, shade))
        start += value / total
    return tuple(stretches)


class Mark(NamedTuple):
    """One point of a chart."""

    x_fraction: float
    y_fraction: float  # from the top
    kind: str  # its class: taken, front, other, own, fits, risky, will_not_fit
    says: str
    sign: str = ""


class Line(NamedTuple):
    """A straight line between two points."""

    from_fractions: tuple[float, float]
    to_fractions: tuple[float, float]
    kind: str = ""


class Tick(NamedTuple):
    """One number at an axis."""

    at_fraction: float
    text: str


class Chart(NamedTuple):
    """Marks over two axes."""

    key: str
    title: str
    says: str  # the whole in a sentence, for screen readers
    y_label: str
    x_label: str
    marks: tuple[Mark, ...]
    lines: tuple[Line, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]


class Axis:
    """One axis, logarithmic where it does not begin at 0."""

    def __init__(self, low: float, high: float, ticks: Sequence[float] = ()) -> None:
        """Take its ends and the numbers that stand beside it."""
        self.low, self.high, self.ticks = low, high, ticks

    @classmethod
    def from_zero(cls, values: Iterable[float]) -> "Axis":
        """Return an axis from 0 over all values."""
        most = max(values, default=0.0) or 1.0
        size = 10.0 ** floor(log10(most))
        step = next(size * n for n in (0.2, 0.5, 1.0, 2.0, 5.0) if most / (size * n) <= 5)
        num = ceil(most / step - 1e-9)
        return cls(0.0, num * step, [n * step for n in range(num + 1)])

    @classmethod
    def of_decades(cls, values: Iterable[float]) -> "Axis":
        """Return a logarithmic axis over all values, its ticks at 1, 2 and 5; at 1 and 3; at 1 alone."""
        known = [value for value in values if value > 0] or [1.0]
        low, high = min(known) / 1.25, max(known) * 1.25
        decades = range(floor(log10(low)), ceil(log10(high)) + 1)
        span = log10(high / low)
        dense = (1.0, 2.0, 5.0) if span < 2 else (1.0, 3.0) if span < 4 else (1.0,)
        return cls(low, high, [n * 10.0**d for d in decades for n in dense if low <= n * 10.0**d <= high])

    def at(self, value: float) -> float:
        """Return where a value stands."""
        if self.low == 0:
            return INSET + (1 - 2 * INSET) * value / self.high
        share = log2(value / self.low) / log2(self.high / self.low)
        return INSET + (1 - 2 * INSET) * share


def scatter_of(answer: PlanAnswer) -> Chart | None:
    """Return cost against time of a plan, its front, what else was looked at, and the run as it is."""
    spot = answer.wanted.spot
    winner = answer.winner.candidate if answer.winner else None
    beaten = [one.plan for several in answer.alternatives.values() for one in several if one.plan]
    known: dict[tuple[float, float], tuple[Candidate | None, str]] = {}
    ways = [*([(winner, "taken")] if winner else []), *((one, "") for one in (*answer.front, *beaten))]
    for one, kind in ways:
        usd = one.outcome.usd(spot=spot)
        if usd is not None:
            known.setdefault((one.outcome.wall_s, usd), (one, kind))
    base = answer.base.outcome if answer.base else None
    own_usd = base.usd(spot=spot) if base and base.verdict != WILL_NOT_FIT else None
    if base and own_usd is not None:
        known.setdefault((base.wall_s, own_usd), (None, "own"))
    if len(known) < 2:
        return None
    least, best = inf, set()
    for wall_s, usd in sorted(known):
        if usd < least and known[wall_s, usd][1] != "own":
            best.add((wall_s, usd))
            least = usd
    within_s, budget_usd = answer.wanted.within_s, answer.wanted.budget_usd
    hours = Axis.of_decades(at_s / HOUR_S for at_s in (*(wall_s for wall_s, _ in known), within_s) if at_s)
    dollars = Axis.of_decades(usd for usd in (*(usd for _, usd in known), budget_usd) if usd)

    def place(wall_s: float, usd: float) -> tuple[float, float]:
        return hours.at(wall_s / HOUR_S), 1 - dollars.at(usd)

    kinds = {
        at: kind if kind in ("own", "taken") else "front" if at in best else "other"
        for at, (_, kind) in sorted(known.items())
    }
    marks = tuple(
        Mark(
            *place(*at), kind,
            f"{_named(answer, known[at][0], kind)}: {fmt.hours(at[0])}, {fmt.dollars(at[1])}",
        )
        for at, kind in kinds.items()
    )  # fmt: skip
    front = sorted(best)
    lines = tuple(Line(place(*one), place(*other), "front") for one, other in pairwise(front))
    if within_s:
        lines += (Line((hours.at(within_s / HOUR_S), 0.0), (hours.at(within_s / HOUR_S), 1.0), "limit"),)
    if budget_usd:
        lines += (Line((0.0, 1 - dollars.at(budget_usd)), (1.0, 1 - dollars.at(budget_usd)), "limit"),)
    return Chart(
        "scatter", "Cost against time",
        f"{len(marks)} ways to do the run, {len(front)} of them on the front, where none is both faster and "
        "cheaper. The table below holds the front.",
        f"${', spot' if spot else ''}", "hours", marks, lines,
        tuple(Tick(hours.at(one), f"{one:,g}") for one in hours.ticks),
        tuple(Tick(1 - dollars.at(one), f"{one:,g}") for one in dollars.ticks),
    )  # fmt: skip


def _named(answer: PlanAnswer, one: Candidate | None, kind: str) -> str:
    if one is None:
        return "The run as it is"
    said = {"taken": "The plan", "front": "On the front", "other": "Beaten in time and cost"}[kind]
    return f"{said}: {plan_name(planned_fields(answer.run, one), answer.run.fields())}"


def scaling_of(answer: ScalingAnswer) -> tuple[Chart, ...]:
    """Return step time, throughput, cost and efficiency over the number of GPUs."""
    points = answer.points
    first = points[0]
    each = first.samples_per_s / first.num_gpus
    ideal = [point.num_gpus * each for point in points]
    return (
        _panel("step", "Step time", "s", points, [point.outcome.step_time_s for point in points]),
        _panel("rate", "Throughput", "samples/s", points, [point.samples_per_s for point in points], ideal),
        _panel("cost", "Cost of the run", "$", points, [point.outcome.on_demand_usd for point in points]),
        _panel(
            "efficiency", "Efficiency", "%", points, [100 * point.efficiency_fraction for point in points],
            [100.0] * len(points),
        ),
    )  # fmt: skip


def _panel(
    key: str, title: str, unit: str, points: Sequence[ScalingPoint], values: Sequence[float | None],
    ideal: Sequence[float] = (),
) -> Chart:  # fmt: skip
    known = [value for value in values if value is not None]
    axis = (Axis.of_decades if key == "rate" else Axis.from_zero)([*known, *ideal])
    across = Axis(1 / 1.001, max(point.num_gpus for point in points) * 1.001 + 1e-3)

    def line(figures: Sequence[float | None], kind: str) -> list[Line]:
        at = [
            (across.at(point.num_gpus), 1 - axis.at(value))
            for point, value in zip(points, figures, strict=False)
            if value is not None
        ]
        return [Line(one, other, kind) for one, other in pairwise(at)]

    marks = tuple(
        Mark(across.at(point.num_gpus), 1 - axis.at(value), point.outcome.verdict,
             f"{point.num_gpus} GPUs: {fmt.digits(value)} {unit}, {WORDS[point.outcome.verdict].lower()}",
             "" if point.outcome.verdict == FITS else SIGNS[point.outcome.verdict])
        for point, value in zip(points, values, strict=True)
        if value is not None
    )  # fmt: skip
    return Chart(
        key, title, f"{title} in {unit} on {points[0].num_gpus} to {points[-1].num_gpus} GPUs. The table "
        "below holds the numbers.", unit, "GPUs", marks, (*line(ideal, "ideal"), *line(values, "found")),
        tuple(Tick(across.at(point.num_gpus), str(point.num_gpus)) for point in points),
        tuple(Tick(1 - axis.at(one), f"{one:,g}") for one in axis.ticks),
    )  # fmt: skip


def scaling_rows(answer: ScalingAnswer) -> tuple[tuple[str, ...], ...]:
    """Return the numbers of the charts, a row for each number of GPUs."""
    return tuple(
        (
            str(one.num_gpus), WORDS[one.outcome.verdict], gib(one.outcome.device_memory_bytes),
            fmt.duration(one.outcome.step_time_s), fmt.digits(one.samples_per_s),
            fmt.hours(one.outcome.wall_s), fmt.dollars(one.outcome.on_demand_usd),
            fmt.digits(one.outcome.wall_energy_j and one.outcome.wall_energy_j / KWH_J),
            fmt.percent(one.efficiency_fraction),
        )
        for one in answer.points
    )  # fmt: skip
