"""SpeedUp, MemoryUp and EnergyUp as a radar: how far each optimisation reaches beyond the run without it.

The radii are logarithms, so that twice as good and half as good lie equally far from the baseline,
which is the dashed ring at 1.
"""

from collections.abc import Mapping, Sequence
from math import log2, pi
from typing import TYPE_CHECKING, Any, NamedTuple

from finegauge.report import figures
from finegauge.report.bars import Table
from finegauge.report.drawing import CYCLE, GRID, INK, MARKERS, WIDTH_INCHES, Drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KEY = "gains"
MOST_DRAWN = 8
RINGS = (0.125, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 16.0, 32.0, 64.0)
MARGIN = 0.25  # of log2, inside the smallest ratio and outside the largest
LEAST_APART = 0.09  # of the radius: names of rings


class Reach(NamedTuple):
    """What one optimisation gains."""

    name: str
    ratios: Mapping[str, float | None]  # by dimension; above 1 is better
    intervals: Mapping[str, tuple[float, float]] = {}


def radar_drawing(
    reaches: Sequence[Reach], dimensions: Sequence[str], *, over: str, key: str = KEY
) -> Drawing | None:
    """Return the radar of the optimisations that are known in three dimensions; None where there are none.

    Args:
        reaches: One per optimisation.
        dimensions: Such as SpeedUp, MemoryUp, EnergyUp.
        over: What they are held against, and where.
        key: The drawing's name, where a report has several.
    """
    known = [one for one in reaches if all(one.ratios.get(name) for name in dimensions)]
    if not known or len(dimensions) < 3:
        return None
    left = len(known) - MOST_DRAWN
    caption = (
        f"{', '.join(dimensions[:-1])} and {dimensions[-1]} over {over}; outside the dashed ring is better."
    )
    caption += (
        f" The {MOST_DRAWN} that gain most are drawn, {left} more are in the table." if left > 0 else ""
    )
    best = sorted(known, key=lambda one: -sum(log2(one.ratios[name] or 1.0) for name in dimensions))
    shown = [one for one in known if one in best[:MOST_DRAWN]]  # in their own order, which gives the colours
    table = _table(reaches, dimensions)
    return Drawing(key, "Gains", caption, table, lambda: draw(shown, dimensions))


def draw(reaches: Sequence[Reach], dimensions: Sequence[str]) -> "Figure":
    """Return the radar: a spoke per dimension, a closed line per optimisation."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH_INCHES, 4.1 + 0.16 * len(reaches)), layout="constrained")
    draw_on(figure.add_subplot(projection="polar"), reaches, dimensions)
    figure.legend(loc="outside lower center", ncols=2)
    return figure


def draw_on(axes: Any, reaches: Sequence[Reach], dimensions: Sequence[str]) -> None:
    """Draw the radar on polar `axes`, without its legend."""
    axes.set_theta_zero_location("N")
    axes.set_theta_direction(-1)
    angles = [2 * pi * n / len(dimensions) for n in range(len(dimensions))]
    radii = [[log2(one.ratios[name] or 1.0) for name in dimensions] for one in reaches]
    low = min(0.0, *(min(each) for each in radii)) - MARGIN
    high = max(0.0, *(max(each) for each in radii)) + MARGIN
    rings = legible([ring for ring in RINGS if low < log2(ring) < high], (high - low) * LEAST_APART)
    axes.set_ylim(low, high)
    axes.set_yticks([log2(ring) for ring in rings], [f"{ring:g}x" for ring in rings], fontsize=7)
    axes.set_rlabel_position(180 / len(dimensions))
    axes.set_xticks(angles, list(dimensions), fontsize=9, fontweight="bold")
    axes.tick_params(axis="x", pad=14)
    axes.spines["polar"].set_color(GRID)
    around = [2 * pi * n / 180 for n in range(181)]
    axes.plot(around, [0.0] * len(around), "--", color=INK, lw=1.2, label="the baseline")
    for number, (one, each) in enumerate(zip(reaches, radii, strict=True)):
        colour, marker = CYCLE[number % len(CYCLE)], MARKERS[number % len(MARKERS)]
        axes.plot(
            [*angles, 0.0], [*each, each[0]], marker=marker, ms=4.5, lw=1.6, color=colour, label=one.name
        )
        axes.fill([*angles, 0.0], [*each, each[0]], color=colour, alpha=0.07)


def legible(rings: Sequence[float], apart: float) -> list[float]:
    """Return the rings whose names do not lie on each other, 1 and those farther out first."""
    kept: list[float] = []
    for ring in sorted(rings, key=lambda ring: (ring != 1.0, ring < 1.0, abs(log2(ring)))):
        if all(abs(log2(ring) - log2(other)) >= apart for other in kept):
            kept.append(ring)
    return sorted(kept)


def _table(reaches: Sequence[Reach], dimensions: Sequence[str]) -> Table:
    """Return a row per optimisation."""

    def cell(one: Reach, name: str) -> str:
        ratio, interval = one.ratios.get(name), one.intervals.get(name)
        if ratio is None:
            return figures.UNKNOWN
        return f"{ratio:.2f}" + (f" [{interval[0]:.2f}–{interval[1]:.2f}]" if interval else "")

    rows = tuple((one.name, *(cell(one, name) for name in dimensions)) for one in reaches)
    return Table("Gains of every optimisation, as multiples of the baseline", ("", *dimensions), rows)
