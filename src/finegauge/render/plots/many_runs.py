"""Figures of many runs: throughput, cost against time, predicted beside measured, stacks, experts."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from finegauge.render import number_format as fmt
from finegauge.render.plots.drawing import (
    BLUE,
    CYCLE,
    GREEN,
    GREY,
    INK,
    MARKERS,
    ORANGE,
    PAPER,
    SKY,
    SOFT,
    VERMILION,
    WIDTH_INCHES,
    new_axes,
    plain_numbers,
    shades,
    shortened,
    told,
)
from finegauge.render.report import Plot, Table
from finegauge.units import HOUR_S, KWH_J

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from finegauge.answers.study import Throughput, Way

THROUGHPUT_KEY = "throughput"
LAWS = {"affine": ("affine law", GREEN, "--"), "xia-eq2": ("equation 2 of Xia et al. 2024", VERMILION, ":")}
HEIGHT_INCHES = 3.5


def throughput_plot(found: "Throughput | None") -> Plot | None:
    """Return throughput over micro-batches with the laws through it; None where there is none."""
    if found is None:
        return None
    rates = found.rates
    fits = [rate.micro_batch_size for rate in rates if rate.fits]
    caption = f"{found.kind.capitalize()} throughput"
    over = len(fits) < len(rates)
    caption += f" up to {max(fits)}, the largest micro-batch that fits" if fits and over else ""
    caption += "" if fits else "; no micro-batch fits"
    caption += "; the band spans the 10th to the 90th percentile." if rates[0].low_samples_per_s else "."
    said = [f"{LAWS[law.name][0]} {fmt.percent(law.mape_fraction)}" for law in found.laws]
    caption += f" Laws fitted to these points, mean error: {', '.join(said)}." if said else ""
    steps = found.gradient_accumulation_steps
    caption += f" {steps} micro-batches a step." if steps > 1 else ""
    table = _throughput_table(found)
    return Plot(THROUGHPUT_KEY, "Throughput by batch", caption, table, lambda: draw_throughput(found))


def draw_throughput(found: "Throughput") -> "Figure":
    """Return the points with their band, and the laws through them."""
    from matplotlib.ticker import MaxNLocator

    figure, axes = new_axes(HEIGHT_INCHES)
    points, kind = found.rates, found.kind
    xs = [point.micro_batch_size for point in points]
    banded = [p for p in points if p.low_samples_per_s is not None and p.high_samples_per_s is not None]
    if banded:
        axes.fill_between(
            [p.micro_batch_size for p in banded],
            [p.low_samples_per_s or 0.0 for p in banded],
            [p.high_samples_per_s or 0.0 for p in banded],
            color=BLUE, alpha=0.18, lw=0, label="10th to 90th percentile",
        )  # fmt: skip
    for law in found.laws:
        label, colour, dashes = LAWS[law.name]
        axes.plot(*zip(*law.between_rates, strict=True), dashes, color=colour, lw=1.6, label=label)
    axes.plot(xs, [p.samples_per_s for p in points], "-o", color=BLUE, ms=4, lw=1, label=kind, zorder=3)
    for one in points:
        (dot,) = axes.plot([one.micro_batch_size], [one.samples_per_s], "o", color=BLUE, ms=4, zorder=3)
        told(dot, f"micro-batch {one.micro_batch_size:,}: {fmt.digits(one.samples_per_s)} sequences/s")
    over = [p for p in points if not p.fits]
    if over:
        axes.plot(
            [p.micro_batch_size for p in over], [p.samples_per_s for p in over], "x", color=INK, ms=6,
            label="does not fit", zorder=4,
        )  # fmt: skip
    axes.set(xlabel="micro-batch, sequences on each GPU", ylabel="sequences per second")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylim(bottom=0)
    axes.legend(loc="best", labelcolor=SOFT)
    return figure


def _throughput_table(found: "Throughput") -> Table:
    rows = []
    for number, point in enumerate(found.rates):
        low, high = point.low_samples_per_s, point.high_samples_per_s
        known = low is not None and high is not None
        span = f"{fmt.digits(low)} to {fmt.digits(high)}" if known else fmt.UNKNOWN
        rows.append((
            f"{point.micro_batch_size:,}", fmt.digits(point.samples_per_s), span,
            *(fmt.digits(law.samples_per_s[number]) for law in found.laws), "yes" if point.fits else "no",
        ))  # fmt: skip
    laws = (LAWS[law.name][0] for law in found.laws)
    headings = ("micro-batch", "sequences/s", "10th to 90th percentile", *laws, "fits")
    return Table("Throughput by micro-batch", headings, tuple(rows))


FRONT_KEY = "cost"
PLOT_INCHES, LINE_INCHES = 3.4, 0.17
LEAST_AREA, MOST_AREA = 30.0, 260.0  # of a dot, in points²
MOST_LETTERS = 62


def front_plot(ways: "Sequence[Way]", *, about: str, spot: bool = False) -> Plot | None:
    """Return cost against time of `ways`, numbered in their order; None where there are none.

    `about` says what the dots are, as the start of a sentence.
    """
    if not ways:
        return None
    best = unbeaten(ways)
    most = max((way.energy_j or 0.0 for way in ways), default=0.0)
    caption = f"{about}, by hours and dollars {'on spot instances' if spot else 'on demand'}"
    caption += (
        f"; the line joins the {len(best)} that none is both cheaper and faster than."
        if len(best) > 1
        else "."
    )
    caption += f" The largest dot takes {fmt.digits(most / KWH_J)} kWh at the wall." if most else ""
    return Plot(
        FRONT_KEY, "Cost against time", caption, _front_table(ways, best), lambda: draw_front(ways, spot=spot)
    )


def unbeaten(ways: "Sequence[Way]") -> "list[Way]":
    """Return the ways that no other beats in time and cost, the fastest first."""
    found: list[Way] = []
    for way in sorted(ways, key=lambda way: (way.wall_s, way.usd)):
        if not found or way.usd < found[-1].usd:
            found.append(way)
    return found


def draw_front(ways: "Sequence[Way]", *, spot: bool) -> "Figure":
    """Return the dots with their numbers, and below them what each number is."""
    from matplotlib.figure import Figure

    below = LINE_INCHES * len(ways) + 0.1
    figure = Figure(figsize=(WIDTH_INCHES, PLOT_INCHES + below), layout="constrained")
    axes, key = figure.subplots(2, 1, height_ratios=(PLOT_INCHES, below))
    _dots(axes, ways)
    axes.set(xlabel="hours, start to end", ylabel="dollars, spot" if spot else "dollars, on demand")
    key.axis("off")
    key.set(xlim=(0, 1), ylim=(len(ways) - 0.4, -0.6))
    marks = _marks(ways)
    for number, way in enumerate(ways):
        weight, name = "bold" if way.taken else "normal", way.name
        name = name if len(name) <= MOST_LETTERS else f"{name[: MOST_LETTERS - 1]}…"
        colour, marker = marks[way.group]
        key.scatter(0.012, number, s=32, color=colour, marker=marker, edgecolors=INK, linewidths=0.4)
        key.text(0.04, number, f"{number + 1}", fontsize=7.5, fontweight=weight, va="center")
        key.text(0.085, number, name, fontsize=7.5, fontweight=weight, va="center")
    return figure


def _marks(ways: "Sequence[Way]") -> dict[str, tuple[str, str]]:
    """Return the colour and the shape of each group; beyond eight groups the pairs differ, not both."""
    groups, num = dict.fromkeys(way.group for way in ways), len(CYCLE)
    return {group: (CYCLE[n % num], MARKERS[(n + n // num) % num]) for n, group in enumerate(groups)}


def _dots(axes: "Axes", ways: "Sequence[Way]") -> None:
    marks = _marks(ways)
    most = max((way.energy_j or 0.0 for way in ways), default=0.0) or 1.0
    axes.set(xscale="log", yscale="log")
    best = unbeaten(ways)
    axes.plot([w.wall_s / HOUR_S for w in best], [w.usd for w in best], "-", color=GREY, lw=1.2, zorder=1)
    for number, way in enumerate(ways, start=1):
        (colour, marker), place = marks[way.group], (way.wall_s / HOUR_S, way.usd)
        area = LEAST_AREA + MOST_AREA * (way.energy_j or 0.0) / most
        drawn = axes.scatter(
            *place, s=area, color=colour, marker=marker,
            alpha=0.8, edgecolors=INK, linewidths=1.6 if way.taken else 0.4, zorder=2,
        )  # fmt: skip
        power = f", {fmt.kwh(way.energy_j)} kWh" if way.energy_j else ""
        told(drawn, f"{number}  {way.name}: {fmt.hours(way.wall_s)}, {fmt.dollars(way.usd)}{power}")
        weight = "bold" if way.taken else "normal"
        beside = 0.5 * area**0.5 + 1.0  # beyond the dot
        axes.annotate(
            str(number), place, (beside, 3), textcoords="offset points", fontweight=weight, fontsize=8
        )
    axes.margins(0.14)
    plain_numbers(axes.xaxis, axes.yaxis)


def _front_table(ways: "Sequence[Way]", best: "Sequence[Way]") -> Table:
    rows = tuple(
        (
            str(number), way.name, fmt.hours(way.wall_s), fmt.dollars(way.usd),
            fmt.kwh(way.energy_j), "yes" if way in best else "no", "yes" if way.taken else "",
        )
        for number, way in enumerate(ways, start=1)
    )  # fmt: skip
    headings = ("", "way", "time", "cost", "kWh", "on the front", "taken")
    return Table("Ways to do the run by cost and time", headings, rows, num_text_columns=2)


WITHIN_FRACTION = 0.10  # the band about the diagonal
MOST_DRAWN = 16
MOST_DOTS, MOST_ROWS = 1500, 1000  # so that a campaign of ten thousand cells stays a small file
MOST_GROUPS = 6


class Pair(NamedTuple):
    """One quantity, as predicted and as measured, in the unit of the drawing."""

    name: str
    predicted: float | None
    measured: float | None
    group: str = ""

    @property
    def error(self) -> str:
        """Return how far the prediction is off: "+4 %"."""
        return fmt.error_percent(self.predicted, self.measured)


def bars_plot(
    key: str, title: str, about: str, pairs: Sequence[Pair], *, unit: str, said: Callable[[float], str]
) -> Plot | None:
    """Return pairs of bars, the whole and then its parts; None where nothing is known from both sides.

    `about` starts the caption; `said` writes an amount in the table.
    """
    if not any(pair.predicted and pair.measured for pair in pairs):
        return None
    whole = pairs[0].error
    apart = f"{whole} what was measured" if whole.endswith("x") else f"off by {whole}"
    caption = f"{about}." + (
        f" For {pairs[0].name} the prediction is {apart}." if whole != fmt.UNKNOWN else ""
    )
    shown = list(pairs[:MOST_DRAWN])
    return Plot(key, title, caption, _pairs_table(title, pairs, said), lambda: draw_bars(shown, unit))


def draw_bars(pairs: Sequence[Pair], unit: str) -> "Figure":
    """Return horizontal bars, a row per part, measured above predicted."""
    figure, axes = new_axes(0.42 * len(pairs) + 1.0)
    for shift, colour, label in ((-0.18, INK, "measured"), (0.18, BLUE, "predicted")):
        amounts = [(pair.measured if label == "measured" else pair.predicted) or 0.0 for pair in pairs]
        axes.barh([n + shift for n in range(len(pairs))], amounts, 0.34, color=colour, label=label)
    axes.set_yticks(range(len(pairs)), [pair.name for pair in pairs], fontsize=7.5)
    axes.set(xlabel=unit, ylim=(len(pairs) - 0.5, -0.5))
    axes.grid(visible=False, axis="y")
    figure.legend(loc="outside lower center", ncols=2)
    return figure


def dots_plot(
    key: str, title: str, pairs: Sequence[Pair], *, unit: str, said: Callable[[float], str]
) -> Plot | None:
    """Return a dot per run, predicted over measured; None where no run is known from both sides."""
    known = [pair for pair in pairs if pair.predicted and pair.measured]
    if not known:
        return None
    within = sum(abs((p.predicted or 0.0) / (p.measured or 1.0) - 1) <= WITHIN_FRACTION for p in known)
    caption = (
        f"Cells: {len(known)} predicted and measured, {within} of them within "
        f"{100 * WITHIN_FRACTION:.0f} % (the band about the diagonal, on which both agree)."
    )
    every = -(-len(known) // MOST_DOTS)
    caption += f" Of every {every} one is drawn." if every > 1 else ""
    return Plot(
        key, title, caption, _pairs_table(title, known, said), lambda: draw_dots(known[::every], unit)
    )


def draw_dots(pairs: Sequence[Pair], unit: str) -> "Figure":
    """Return the dots about the diagonal, on equal logarithmic axes."""
    figure, axes = new_axes(4.4)
    axes.set(xscale="log", yscale="log", xlabel=f"measured, {unit}", ylabel=f"predicted, {unit}")
    amounts = [amount for pair in pairs for amount in (pair.measured, pair.predicted) if amount]
    low, high = min(amounts) / 1.4, max(amounts) * 1.4
    ends = [low, high]
    below, above = ([factor * x for x in ends] for factor in (1 - WITHIN_FRACTION, 1 + WITHIN_FRACTION))
    axes.fill_between(ends, below, above, color=GREY, alpha=0.25, lw=0)
    axes.plot(ends, ends, color=INK, lw=1)
    groups = list(dict.fromkeys(pair.group for pair in pairs))
    coloured = groups if len(groups) <= MOST_GROUPS else [""]
    for number, group in enumerate(coloured):
        those = [pair for pair in pairs if len(coloured) == 1 or pair.group == group]
        axes.plot(
            [p.measured or 0.0 for p in those], [p.predicted or 0.0 for p in those], MARKERS[number], ms=5,
            color=CYCLE[number], alpha=0.85, label=group, ls="none",
        )  # fmt: skip
    axes.set(xlim=(low, high), ylim=(low, high))
    if len(coloured) > 1:
        axes.legend(loc="upper left")
    plain_numbers(axes.xaxis, axes.yaxis)
    axes.set_aspect("equal")
    return figure


def _pairs_table(title: str, pairs: Sequence[Pair], said: Callable[[float], str]) -> Table:
    rows = tuple(
        (pair.name, said(pair.measured) if pair.measured else fmt.UNKNOWN,
         said(pair.predicted) if pair.predicted else fmt.UNKNOWN, pair.error)
        for pair in pairs[:MOST_ROWS]
    )  # fmt: skip
    more = f", the first {MOST_ROWS:,} of {len(pairs):,}" if len(pairs) > MOST_ROWS else ""
    return Table(f"{title}{more}", ("", "measured", "predicted", "error"), rows)


ROW_INCHES = 0.46


class Stack(NamedTuple):
    """One run's parts, in SI units, and what there is for them."""

    name: str
    parts: Mapping[str, float]
    capacity_bytes: float = 0.0  # where the parts are bytes


def stacks_plot(
    key: str, title: str, caption: str, stacks: Sequence[Stack], said: Callable[[float], str], unit: str,
    per_unit: float,
) -> Plot:  # fmt: skip
    """Return the bars; `said` writes an amount, `per_unit` makes it one of the axis' `unit`."""
    kinds = _kinds(stacks)
    rows = [
        (kind, *(said(one.parts[kind]) if kind in one.parts else fmt.UNKNOWN for one in stacks))
        for kind in kinds
    ]
    rows.append(("total", *(said(sum(one.parts.values())) for one in stacks)))
    table = Table(title, ("part", *(one.name for one in stacks)), tuple(rows))
    return Plot(key, title, caption, table, lambda: draw_stacks(stacks, said, unit, per_unit))


def draw_stacks(
    stacks: Sequence[Stack], said: Callable[[float], str], unit: str, per_unit: float
) -> "Figure":
    """Return horizontal stacks, the first run on top."""
    kinds = _kinds(stacks)
    colours = shades(kinds)
    figure, axes = new_axes(ROW_INCHES * len(stacks) + 0.95 + 0.16 * (len(kinds) // 3))
    named: set[str] = set()
    for row, one in enumerate(stacks):
        start = 0.0
        for kind, amount in one.parts.items():
            label = "" if kind in named else kind
            named.add(kind)
            (piece,) = axes.barh(
                row, amount * per_unit, 0.55, left=start, color=colours[kind], edgecolor=PAPER, lw=0.5,
                label=label,
            )  # fmt: skip
            told(piece, f"{one.name}, {kind}: {said(amount)}")
            start += amount * per_unit
        axes.text(start, row, f" {said(sum(one.parts.values()))}", va="center", fontsize=7.5)
        if one.capacity_bytes:
            ends = [row - 0.36, row + 0.36]
            (mark,) = axes.plot([one.capacity_bytes * per_unit] * 2, ends, "--", color=VERMILION, lw=1.8)
            told(mark, f"{one.name}: {said(one.capacity_bytes)} usable")
    axes.set_yticks(range(len(stacks)), [shortened(one.name, 24) for one in stacks], fontsize=7.5, color=INK)
    axes.set(ylim=(len(stacks) - 0.5, -0.5), xlabel=unit)
    axes.margins(x=0.14)
    axes.set_xlim(left=0)
    axes.grid(visible=False, axis="y")
    figure.legend(loc="outside lower center", ncols=3)
    return figure


def _kinds(stacks: Sequence[Stack]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(kind for one in stacks for kind in one.parts))


WHEN_COLOURS = {"before tuning": ORANGE, "after tuning": BLUE}


class Load(NamedTuple):
    """The tokens that each expert was given, layer by layer."""

    when: str
    layers: Mapping[str, tuple[float, ...]]

    @property
    def shares(self) -> list[float]:
        """Return the percent of all tokens that each expert got, over all layers."""
        sums = [sum(each) for each in zip(*self.layers.values(), strict=True)]
        return [100.0 * one / (sum(sums) or 1.0) for one in sums]


def loads_of(observations: Mapping[str, Any]) -> list[Load]:
    """Return what a measurement saw of the experts: before and after tuning, or in its steps."""
    evaluation = observations.get("evaluation") or {}
    states = [
        ("before tuning", evaluation.get("experts_before")),
        ("after tuning", evaluation.get("experts_after")),
    ]
    found = [_load(when, seen) for when, seen in states if seen and seen.get("layers")]
    if not found and (observations.get("experts") or {}).get("layers"):
        found = [_load("measured steps", observations["experts"])]
    return [one for one in found if one.layers and len({len(each) for each in one.layers.values()}) == 1]


def experts_plot(loads: Sequence[Load]) -> Plot | None:
    """Return the load of the experts; None where none was seen."""
    if not loads:
        return None
    even = 100.0 / len(loads[0].shares)
    said = ", ".join(f"{_imbalance(load):.2f} {load.when}" for load in loads)
    caption = (
        f"Share of the tokens that each of {len(loads[0].shares)} experts gets, over all layers; the line "
        f"is an even load ({even:.3g} %). The fullest expert of a layer has, on average over layers, "
        f"{said} times the mean."
    )
    return Plot(
        "experts", "Load of the experts", caption, _experts_table(loads), lambda: draw_experts(loads, even)
    )


def draw_experts(loads: Sequence[Load], even: float) -> "Figure":
    """Return bars side by side, an expert's loads together."""
    from matplotlib.ticker import MaxNLocator

    figure, axes = new_axes(3.1)
    width = 0.8 / len(loads)
    for number, load in enumerate(loads):
        shift = (number - (len(loads) - 1) / 2) * width
        places = [n + shift for n in range(len(load.shares))]
        axes.bar(places, load.shares, width, color=WHEN_COLOURS.get(load.when, SKY), label=load.when)
    axes.axhline(even, color=INK, ls="--", lw=1)
    axes.set(xlabel="expert", ylabel="% of tokens", xlim=(-0.6, len(loads[0].shares) - 0.4))
    axes.set_ylim(top=axes.get_ylim()[1] * 1.15)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(visible=False, axis="x")
    if len(loads) > 1:
        axes.legend(loc="upper left", ncols=2)
    return figure


def _load(when: str, seen: Mapping[str, Any]) -> Load:
    layers = seen["layers"]
    named = layers.items() if isinstance(layers, Mapping) else ((str(n), one) for n, one in enumerate(layers))
    return Load(when, {name: tuple(one.get("tokens_per_expert", ())) for name, one in named})


def _imbalance(load: Load) -> float:
    ratios = [max(each) * len(each) / sum(each) for each in load.layers.values() if sum(each)]
    return sum(ratios) / len(ratios) if ratios else 0.0


def _experts_table(loads: Sequence[Load]) -> Table:
    rows = [
        (layer, load.when, *(f"{count:,.0f}" for count in counts))
        for layer in loads[0].layers
        for load in loads
        if (counts := load.layers.get(layer)) is not None
    ]
    headings = ("layer", "when", *(f"expert {n}" for n in range(len(loads[0].shares))))
    return Table("Tokens of each expert by layer", headings, tuple(rows), num_text_columns=2)
