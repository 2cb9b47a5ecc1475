r"""Every operator of a step under the roof of its GPU.

$$ F \le \min(peak,\ bandwidth \cdot intensity) $$

Across: FLOPs per byte that an operator reads and writes; up: the FLOP/s it reaches. An operator
whose work is moving (norms, gathers, dequantising) has no FLOPs in the graph and no place under the
roof: it stands in the lane below, by the bytes it moves a second.

[1] Williams, Waterman and Patterson 2009, "Roofline", Communications of the ACM 52(4)
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from finegauge.profile import Path, Profile
from finegauge.report import figures
from finegauge.report.bars import Table
from finegauge.report.drawing import (
    INK,
    MARKERS,
    SOFT,
    VERMILION,
    WIDTH_INCHES,
    Drawing,
    plain_numbers,
    shades,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from finegauge.predict.work import Work

KEY = "roofline"
MOST_NAMED = 5
SAME_RATIO = 1.25  # dots closer than that share a name's place
LEAST_AREA, MOST_AREA = 10.0, 220.0  # of a dot, in points²


class Dot(NamedTuple):
    """One operator in one stage."""

    path: Path
    flops: float
    num_bytes: float
    seconds: float

    @property
    def intensity(self) -> float:
        """Return its FLOPs per byte."""
        return self.flops / self.num_bytes

    @property
    def tflops_per_s(self) -> float:
        """Return the TFLOP/s that it reaches."""
        return self.flops / self.seconds / 1e12


class Roof(NamedTuple):
    """What the GPU's datasheet promises."""

    gpu: str
    dtype: str
    flops_per_s: float
    memory_bytes_per_s: float


def roofline_drawing(profile: Profile, work: "Mapping[Path, Work]", roof: Roof) -> Drawing | None:
    """Return the roofline of `profile`; None where no operator's work is known."""
    seconds = profile.step_time_s.parts
    dots = [
        Dot(path, one.flops, one.num_bytes, seconds[path])
        for path, one in work.items()
        if seconds.get(path, 0.0) > 0 and one.num_bytes > 0
    ]
    if not dots:
        return None
    computing, moving = [dot for dot in dots if dot.flops], [dot for dot in dots if not dot.flops]
    caption = (
        f"{len(dots)} operators by stage, the area of a dot its time. Solid: what {roof.gpu} is sold with, "
        f"{figures.si(roof.flops_per_s)}FLOP/s in {roof.dtype} and {figures.si(roof.memory_bytes_per_s)}B/s. "
        f"{len(computing)} compute; the {len(moving)} in the lane below only move bytes. "
        "A time includes waiting for the host, which is why small operators lie low; above the line lies "
        "what the cache serves."
    )
    return Drawing(KEY, "Roofline", caption, _table(dots, roof), lambda: draw(computing, moving, roof))


def draw(computing: Sequence[Dot], moving: Sequence[Dot], roof: Roof) -> "Figure":
    """Return the roof with the operators that compute, and the lane of those that move."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH_INCHES, 5.2 if moving else 3.9), layout="constrained")
    if moving:
        axes, lane = figure.subplots(2, 1, height_ratios=(3.2, 1.0))
    else:
        axes, lane = figure.add_subplot(), None
    stages = list(dict.fromkeys(dot.path[0] for dot in (*computing, *moving)))
    longest = max(dot.seconds for dot in (*computing, *moving))
    _draw_roof(axes, computing, roof)
    _dots(
        axes,
        computing,
        [(dot.intensity, dot.tflops_per_s) for dot in computing],
        stages,
        longest,
    )
    axes.set(xlabel="FLOP per byte", ylabel="TFLOP/s")
    axes.legend(loc="lower right", markerscale=0.8, handletextpad=0.2)
    _name_largest(axes, computing, roof.flops_per_s / roof.memory_bytes_per_s)
    plain_numbers(axes.xaxis, axes.yaxis)
    if lane is not None:
        _draw_lane(lane, moving, roof, stages, longest)
    return figure


def _draw_roof(axes: "Axes", dots: Sequence[Dot], roof: Roof) -> None:
    """Draw the slope and the ceiling, as wide as the dots need."""
    axes.set(xscale="log", yscale="log")
    ridge = roof.flops_per_s / roof.memory_bytes_per_s
    low = min([ridge / 20, *(0.35 * dot.intensity for dot in dots)])
    high = max([8 * ridge, *(1.8 * dot.intensity for dot in dots)])
    xs = [low, ridge, high]
    ys = [min(roof.flops_per_s, x * roof.memory_bytes_per_s) / 1e12 for x in xs]
    axes.plot(xs, ys, color=INK, lw=1.4, zorder=2)
    axes.set_xlim(low, high)
    floor = min([ys[0], *(dot.tflops_per_s for dot in dots)])
    axes.set_ylim(0.3 * floor, 3.0 * ys[-1])
    axes.text(
        high, 1.15 * ys[-1], f"{figures.si(roof.flops_per_s)}FLOP/s {roof.dtype} ", ha="right", fontsize=7.5
    )


def _dots(
    axes: "Axes",
    dots: Sequence[Dot],
    places: Sequence[tuple[float, float]],
    stages: list[str],
    longest: float,
) -> None:
    """Draw one dot per operator, each stage with its colour and shape."""
    colours = shades(stages)
    for number, stage in enumerate(stages):
        those = [(dot, place) for dot, place in zip(dots, places, strict=True) if dot.path[0] == stage]
        axes.scatter(
            [place[0] for _, place in those], [place[1] for _, place in those],
            s=[_area(dot, longest) for dot, _ in those],
            color=colours[stage], marker=MARKERS[number % len(MARKERS)], alpha=0.75, linewidths=0.4,
            edgecolors=INK, label=stage, zorder=3,
        )  # fmt: skip


def _name_largest(axes: "Axes", dots: Sequence[Dot], ridge: float) -> None:
    """Write the names of the operators that take longest below their dots, where no roof is.

    Those at one place stand together, each name once.
    """
    places: list[tuple[list[str], Dot]] = []
    longest = max((dot.seconds for dot in dots), default=0.0)
    for dot in sorted(dots, key=lambda dot: -dot.seconds):
        if any(dot.path[-1] in names for names, _ in places):
            continue
        near = [(names, *_apart(dot, other)) for names, other in places]
        same = [names for names, across, up in near if across < SAME_RATIO and up < SAME_RATIO]
        if same:
            same[0].append(dot.path[-1])
        elif len(places) < MOST_NAMED and not any(across < 8.0 and up < 2.0 for _, across, up in near):
            places.append(([dot.path[-1]], dot))
    for names, dot in places:
        said = ", ".join(names[:2]) + (", …" if len(names) > 2 else "")
        below = -(0.5 * _area(dot, longest) ** 0.5 + 9.0)
        flush = "right" if dot.intensity > 3.0 * ridge else "center"
        axes.annotate(
            said, (dot.intensity, dot.tflops_per_s), (0, below), textcoords="offset points", fontsize=7.5,
            ha=flush, zorder=4,
        )  # fmt: skip


def _apart(one: Dot, other: Dot) -> tuple[float, float]:
    """Return how many times one dot lies from another, across and up."""
    across, up = one.intensity / other.intensity, one.tflops_per_s / other.tflops_per_s
    return max(across, 1.0 / across), max(up, 1.0 / up)


def _area(dot: Dot, longest: float) -> float:
    """Return the area of a dot, in points², by its time."""
    return LEAST_AREA + MOST_AREA * dot.seconds / longest


def _draw_lane(axes: "Axes", dots: Sequence[Dot], roof: Roof, stages: list[str], longest: float) -> None:
    """Draw the operators that only move bytes: across how fast, stage by stage."""
    places = [(dot.num_bytes / dot.seconds / 1e9, -float(stages.index(dot.path[0]))) for dot in dots]
    _dots(axes, dots, places, stages, longest)
    present = [n for n, stage in enumerate(stages) if any(dot.path[0] == stage for dot in dots)]
    axes.set_xscale("log")
    axes.axvline(roof.memory_bytes_per_s / 1e9, color=VERMILION, ls="--", lw=1.4)
    axes.set_yticks([-n for n in present], [stages[n] for n in present], fontsize=7.5)
    axes.set_ylim(-max(present) - 0.7, 0.7 - min(present))
    axes.set_xlabel("only moving: GB/s (dashed: the memory's bandwidth)", color=SOFT)
    plain_numbers(axes.xaxis)


def _table(dots: Sequence[Dot], roof: Roof) -> Table:
    """Return every operator with its work and its rates, the longest first."""
    rows = []
    for dot in sorted(dots, key=lambda dot: -dot.seconds):
        reached = min(roof.flops_per_s, dot.flops / dot.num_bytes * roof.memory_bytes_per_s)
        rows.append((
            " · ".join(dot.path), figures.duration(dot.seconds),
            f"{figures.si(dot.flops)}FLOP" if dot.flops else figures.UNKNOWN, figures.size(dot.num_bytes),
            figures.digits(dot.flops / dot.num_bytes) if dot.flops else figures.UNKNOWN,
            f"{figures.si(dot.flops / dot.seconds)}FLOP/s" if dot.flops else figures.UNKNOWN,
            f"{figures.size(dot.num_bytes / dot.seconds)}/s",
            figures.percent(dot.flops / dot.seconds / reached) if dot.flops else figures.UNKNOWN,
        ))  # fmt: skip
    headings = ("operator", "time", "work", "moved", "FLOP/byte", "computes", "moves", "of the roof")
    return Table("Every operator of a step with its work", headings, tuple(rows))
