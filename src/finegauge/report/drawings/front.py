"""Cost against time: one numbered dot per way to do a run, those that no other beats joined by a line."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from finegauge.report import figures
from finegauge.report.bars import Table
from finegauge.report.drawing import CYCLE, GREY, INK, MARKERS, WIDTH_INCHES, Drawing, plain_numbers
from finegauge.units import HOUR_S, KWH_J

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KEY = "cost"
PLOT_INCHES, LINE_INCHES = 3.4, 0.17
LEAST_AREA, MOST_AREA = 30.0, 260.0  # of a dot, in points²
MOST_LETTERS = 62


class Way(NamedTuple):
    """One way to do a run."""

    name: str
    group: str  # its kind of GPU, which decides colour and shape
    wall_s: float
    usd: float
    energy_j: float | None  # at the wall
    taken: bool = False


def front_drawing(ways: Sequence[Way], *, about: str, spot: bool = False) -> Drawing | None:
    """Return cost against time of `ways`; None where there are none.

    Args:
        ways: In the order of their numbers.
        about: What the dots are, as the start of a sentence.
        spot: Whether the dollars are of spot instances.
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
    caption += f" The largest dot takes {figures.digits(most / KWH_J)} kWh at the wall." if most else ""
    return Drawing(KEY, "Cost against time", caption, _table(ways, best), lambda: draw(ways, spot=spot))


def unbeaten(ways: Sequence[Way]) -> list[Way]:
    """Return the ways that no other beats in time and cost, the fastest first."""
    found: list[Way] = []
    for way in sorted(ways, key=lambda way: (way.wall_s, way.usd)):
        if not found or way.usd < found[-1].usd:
            found.append(way)
    return found


def draw(ways: Sequence[Way], *, spot: bool) -> "Figure":
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


def _marks(ways: Sequence[Way]) -> dict[str, tuple[str, str]]:
    """Return the colour and the shape of each group; beyond eight groups the pairs differ, not both."""
    groups, num = dict.fromkeys(way.group for way in ways), len(CYCLE)
    return {group: (CYCLE[n % num], MARKERS[(n + n // num) % num]) for n, group in enumerate(groups)}


def _dots(axes: "Axes", ways: Sequence[Way]) -> None:
    """Draw the dots, the numbers beside them and the line through those that nothing beats."""
    marks = _marks(ways)
    most = max((way.energy_j or 0.0 for way in ways), default=0.0) or 1.0
    axes.set(xscale="log", yscale="log")
    best = unbeaten(ways)
    axes.plot([w.wall_s / HOUR_S for w in best], [w.usd for w in best], "-", color=GREY, lw=1.2, zorder=1)
    for number, way in enumerate(ways, start=1):
        (colour, marker), place = marks[way.group], (way.wall_s / HOUR_S, way.usd)
        axes.scatter(
            *place, s=LEAST_AREA + MOST_AREA * (way.energy_j or 0.0) / most, color=colour, marker=marker,
            alpha=0.8, edgecolors=INK, linewidths=1.6 if way.taken else 0.4, zorder=2,
        )  # fmt: skip
        weight = "bold" if way.taken else "normal"
        axes.annotate(str(number), place, (6, 5), textcoords="offset points", fontweight=weight, fontsize=8)
    axes.margins(0.14)
    plain_numbers(axes.xaxis, axes.yaxis)


def _table(ways: Sequence[Way], best: Sequence[Way]) -> Table:
    """Return a row per way."""
    rows = tuple(
        (
            str(number), way.name, figures.hours(way.wall_s), figures.dollars(way.usd),
            figures.kwh(way.energy_j), "yes" if way in best else "no", "yes" if way.taken else "",
        )
        for number, way in enumerate(ways, start=1)
    )  # fmt: skip
    headings = ("", "way", "time", "cost", "kWh", "on the front", "taken")
    return Table("Ways to do the run by cost and time", headings, rows, num_text_columns=2)
