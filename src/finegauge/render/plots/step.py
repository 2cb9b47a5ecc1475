"""Figures of one step: memory, time, roofline."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from finegauge.profile import Breakdown, Path, Profile, Work
from finegauge.render import number_format as fmt
from finegauge.render.plots.drawing import (
    INK,
    MARKERS,
    PAPER,
    ROOM,
    SOFT,
    VERMILION,
    WIDTH_INCHES,
    luminance,
    new_axes,
    plain_numbers,
    shades,
    tint,
    told,
)
from finegauge.render.report import Plot, Table
from finegauge.render.run_parts import formula_of
from finegauge.units import GIB, MIB, gib

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from finegauge.answers.study import Roof

MEMORY_KEY = "memory"
LEAST_FRACTION = 0.002  # of what has to fit: smaller parts stand together
REST = " and small parts"
ROW_INCHES = 0.36
FAR_RATIO = 8.0  # beyond so many times what is needed, the capacity stands off the axis


class Step(NamedTuple):
    """One part of the waterfall."""

    kind: str
    name: str
    start_bytes: float
    num_bytes: float


def memory_plot(profile: Profile, formulas: Mapping[Path, str]) -> Plot:
    """Return the waterfall of `profile`, its table with the formula of each part."""
    interval, total = profile.source.memory_interval, profile.device_memory_bytes.total
    on = profile.fingerprint.get("device") or str(profile.run.gpu or "this machine")
    room = f" of {gib(profile.capacity_bytes)} usable on {on}" if profile.capacity_bytes else ""
    phase = f", fullest in {profile.peak_phase}" if profile.peak_phase else ""
    needs = "held" if profile.source.kind == "measured" else "needs"
    said = fmt.gib_interval(total, interval) if total >= GIB else fmt.size(total)
    caption = f"The fullest rank {needs} {said}{room}{phase}; each bar starts where the one above it ends."
    caption += " The whisker spans the 10th to the 90th percentile." if interval else ""
    return Plot(
        MEMORY_KEY,
        "Memory, kind by kind",
        caption,
        _memory_table(profile, formulas),
        lambda: draw_memory(profile, on),
    )


def draw_memory(profile: Profile, on: str) -> "Figure":
    """Return the waterfall: a row per part, its name above its bar, the capacity of the GPU `on` dashed."""
    steps, room_bytes, interval = _steps(profile), profile.capacity_bytes, profile.source.memory_interval
    total = sum(step.num_bytes for step in steps)
    unit, per_unit = ("GiB", GIB) if total >= GIB else ("MiB", MIB)
    low, high = interval.of(total) if interval else (total, total)
    shown = _shown(steps, total)
    rows = len(shown) + 1
    figure, axes = new_axes(ROW_INCHES * rows + 0.55)
    colours = shades(dict.fromkeys(step.kind for step in shown))
    needed = max(high, total)
    near = 0 < room_bytes <= FAR_RATIO * needed  # else the bars would be too small to be seen
    whole = 1.02 * max(needed, room_bytes if near else 0.0) / per_unit
    for row, step in enumerate(shown):
        start, width = step.start_bytes / per_unit, step.num_bytes / per_unit
        axes.barh(row, whole, 0.34, color=ROOM, zorder=1)
        (bar,) = axes.barh(row, width, 0.34, left=start, color=colours[step.kind], zorder=2)
        share = fmt.percent(step.num_bytes / total)
        told(bar, f"{step.name}: {fmt.size(step.num_bytes)}, {share} of all that has to fit")
        _memory_caption(axes, row, step.name, fmt.size(step.num_bytes))
    axes.barh(rows - 1, total / per_unit, 0.34, color=SOFT, zorder=2)
    _memory_caption(axes, rows - 1, "all that has to fit", fmt.size(total), bold=True)
    if interval is not None:
        middle, half = (low + high) / 2 / per_unit, (high - low) / 2 / per_unit
        axes.errorbar(middle, rows - 1, xerr=half, color=INK, capsize=3, lw=1.4, zorder=4)
    axes.set(xlim=(0, whole), ylim=(rows - 0.6, -0.75), xlabel=unit)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    if near:
        axes.axvline(room_bytes / per_unit, color=VERMILION, ls="--", lw=1.6, zorder=3)
    if room_bytes:
        where = "dashed" if near else "beyond this axis"
        axes.set_xlabel(f"{unit} ({where}: {gib(room_bytes)} usable on {on})")
    return figure


def _memory_caption(axes: "Axes", row: int, name: str, amount: str, *, bold: bool = False) -> None:
    weight = "bold" if bold else "normal"
    axes.text(0, row - 0.24, f"{name}   {amount}", va="bottom", fontsize=8, fontweight=weight)


def _steps(profile: Profile) -> tuple[Step, ...]:
    """Return the parts, equal kinds together, each starting where the last ends."""
    breakdown, steps, start = profile.device_memory_bytes, list[Step](), 0.0
    for kind in breakdown.at(1).parts:
        for path, amount in breakdown.parts.items():
            if path[:1] == kind and amount > 0:
                steps.append(Step(path[0], " · ".join(path), start, amount))
                start += amount
    return tuple(steps)


def _shown(steps: Sequence[Step], total: float) -> Sequence[Step]:
    """Return the parts that are drawn: of a kind, those too small to be seen stand together."""
    shown: list[Step] = []
    for step in steps:
        small = step.num_bytes < LEAST_FRACTION * total
        last = shown[-1] if shown else None
        if small and last is not None:
            name = f"{last.name.removesuffix(REST)}{REST}"
            shown[-1] = last._replace(num_bytes=last.num_bytes + step.num_bytes, name=name)
        else:
            shown.append(step)
    return shown


def _memory_table(profile: Profile, formulas: Mapping[Path, str]) -> Table:
    total = profile.device_memory_bytes.total
    rows = [
        (step.name, f"{step.num_bytes / GIB:.3f}", f"{(step.start_bytes + step.num_bytes) / GIB:.3f}",
         fmt.percent(step.num_bytes / total), formula_of(tuple(step.name.split(" · ")), formulas))
        for step in _steps(profile)
    ]  # fmt: skip
    rows.append(("all that has to fit", f"{total / GIB:.3f}", f"{total / GIB:.3f}", "100 %", ""))
    if profile.source.memory_interval is not None:
        low, high = profile.source.memory_interval.of(total)
        rows.append(("10th to 90th percentile", f"{low / GIB:.3f} to {high / GIB:.3f}", "", "", ""))
    if profile.capacity_bytes:
        rows.append(("usable", f"{profile.capacity_bytes / GIB:.3f}", "", "", str(profile.run.gpu or "")))
    return Table(
        "Memory by kind and part",
        ("part", "GiB", "so far", "share", "how it comes about"),
        tuple(rows),
        ends_in_text=True,
    )


STEP_TIME_KEY = "time"
DEPTHS = ("stage", "layer", "kernel")
STRENGTHS = (1.0, 0.6, 0.35)  # of a stage's colour, depth by depth
HEIGHT_INCHES = 5.2
LABEL_FRACTION = 0.021  # of the height that a line of text takes
MOST_LETTERS = 25


class Box(NamedTuple):
    """One part of the step, beside the part that it belongs to."""

    path: Path
    start_s: float
    seconds: float


def step_time_plot(profile: Profile) -> Plot:
    """Return the icicle of `profile`."""
    step, interval = profile.step_time_s, profile.source.time_interval
    boxes, depth = layout(step), min(step.depth, len(DEPTHS))
    columns = f", by {', '.join(DEPTHS[:depth])} from left to right" if depth > 1 else ""
    brackets = " (in brackets the 10th and 90th percentile)" if interval else ""
    took = fmt.duration_interval(step.total, interval)
    caption = f"One optimizer step takes {took}{brackets}; the height of a box is its time{columns}."
    return Plot(
        STEP_TIME_KEY,
        "Time of one step",
        caption,
        _step_time_table(step),
        lambda: draw_step_time(boxes, step.total, depth),
    )


def layout(step: Breakdown) -> list[Box]:
    """Return a box for every part at every depth, children beside their parent, the largest first."""
    boxes: list[Box] = []

    def place(prefix: Path, start_s: float) -> None:
        depth = len(prefix)
        if depth >= min(step.depth, len(DEPTHS)):
            return
        inner = step.under(*prefix).at(1)
        parts = inner.parts.items() if depth == 0 else iter(inner)
        for name, seconds in parts:
            if name and seconds > 0:
                boxes.append(Box((*prefix, *name), start_s, seconds))
                place((*prefix, *name), start_s)
                start_s += seconds

    place((), 0.0)
    return boxes


def draw_step_time(boxes: list[Box], total_s: float, depth: int) -> "Figure":
    """Return the icicle; a box too low for a line of text stays without."""
    figure, axes = new_axes(HEIGHT_INCHES)
    colours = shades(dict.fromkeys(box.path[0] for box in boxes))
    for box in boxes:
        column = len(box.path) - 1
        colour = tint(colours[box.path[0]], STRENGTHS[column])
        (drawn,) = axes.bar(
            column + 0.5,
            box.seconds,
            0.985,
            bottom=box.start_s,
            color=colour,
            edgecolor=PAPER,
            linewidth=min(0.5, 60 * box.seconds / total_s),
        )
        share = fmt.percent(box.seconds / total_s)
        told(drawn, f"{' · '.join(box.path)}: {fmt.duration(box.seconds)}, {share} of the step")
        _step_time_caption(axes, box, total_s, colour)
    axes.set(xlim=(0, depth), ylim=(total_s, 0), ylabel="seconds, summed from the top")
    axes.set_xticks([n + 0.5 for n in range(depth)], list(DEPTHS[:depth]))
    axes.xaxis.tick_top()
    axes.tick_params(axis="x", length=0)
    axes.grid(visible=False)
    for side in ("bottom", "left"):
        axes.spines[side].set_visible(False)
    return figure


def _step_time_caption(axes: "Axes", box: Box, total_s: float, colour: str) -> None:
    """Write a part's name and time into its box, where there is room."""
    lines = box.seconds / total_s / LABEL_FRACTION
    if lines < 1.0:
        return
    name = box.path[-1] if len(box.path[-1]) <= MOST_LETTERS else f"{box.path[-1][: MOST_LETTERS - 1]}…"
    time = fmt.duration(box.seconds)
    joint = "\n" if lines >= 2.4 else "  "
    text = f"{name}{joint}{time}" if joint == "\n" or len(name) + len(time) < MOST_LETTERS else name
    dark = luminance(colour) < 0.42  # in both themes alike: the box keeps its colour
    axes.text(
        len(box.path) - 0.5, box.start_s + box.seconds / 2, text, ha="center", va="center", fontsize=7.2,
        color="#fefefe" if dark else "#111111", clip_on=True, linespacing=1.1,
    )  # fmt: skip


def _step_time_table(step: Breakdown) -> Table:
    """Return every part with its share, stage by stage, the largest of a stage first."""
    rows = [
        (" · ".join((stage, *path)), fmt.duration(seconds), fmt.percent(seconds / step.total))
        for (stage, *_), _ in step.at(1).parts.items()
        for path, seconds in step.under(stage)
        if seconds > 0
    ]
    rows.append(("the whole step", fmt.duration(step.total), "100 %"))
    return Table("Seconds of one step by stage, layer and kernel", ("part", "time", "share"), tuple(rows))


ROOFLINE_KEY = "roofline"
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


def roofline_plot(profile: Profile, work: Mapping[Path, Work], roof: "Roof") -> Plot | None:
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
        f"{fmt.si(roof.flops_per_s)}FLOP/s in {roof.dtype} and {fmt.si(roof.memory_bytes_per_s)}B/s. "
        f"{len(computing)} compute; the {len(moving)} in the lane below only move bytes. "
        "A time includes waiting for the host, which is why small operators lie low; above the line lies "
        "what the cache serves."
    )
    return Plot(
        ROOFLINE_KEY,
        "Roofline",
        caption,
        _roofline_table(dots, roof),
        lambda: draw_roofline(computing, moving, roof),
    )


def draw_roofline(computing: Sequence[Dot], moving: Sequence[Dot], roof: "Roof") -> "Figure":
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
    _dots(axes, computing, [(dot.intensity, dot.tflops_per_s) for dot in computing], stages, longest)
    axes.set(xlabel="FLOP per byte", ylabel="TFLOP/s")
    axes.legend(loc="lower right", markerscale=0.8, handletextpad=0.2)
    _name_largest(axes, computing, roof.flops_per_s / roof.memory_bytes_per_s)
    plain_numbers(axes.xaxis, axes.yaxis)
    if lane is not None:
        _draw_lane(lane, moving, roof, stages, longest)
    return figure


def _draw_roof(axes: "Axes", dots: Sequence[Dot], roof: "Roof") -> None:
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
        high, 1.15 * ys[-1], f"{fmt.si(roof.flops_per_s)}FLOP/s {roof.dtype} ", ha="right", fontsize=7.5
    )


def _dots(
    axes: "Axes",
    dots: Sequence[Dot],
    places: Sequence[tuple[float, float]],
    stages: list[str],
    longest: float,
) -> None:
    colours = shades(stages)
    for number, stage in enumerate(stages):
        those = [(dot, place) for dot, place in zip(dots, places, strict=True) if dot.path[0] == stage]
        for n, (dot, place) in enumerate(sorted(those, key=lambda one: -one[0].seconds)):
            drawn = axes.scatter(
                *place, s=_area(dot, longest), color=colours[stage], marker=MARKERS[number % len(MARKERS)],
                alpha=0.75, linewidths=0.4, edgecolors=INK, label="" if n else stage, zorder=3,
            )  # fmt: skip
            rate = f"{fmt.si(dot.flops / dot.seconds)}FLOP/s, " if dot.flops else ""
            moved = f"{fmt.size(dot.num_bytes / dot.seconds)}/s"
            told(drawn, f"{' · '.join(dot.path)}: {fmt.duration(dot.seconds)}, {rate}{moved}")


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
    across, up = one.intensity / other.intensity, one.tflops_per_s / other.tflops_per_s
    return max(across, 1.0 / across), max(up, 1.0 / up)


def _area(dot: Dot, longest: float) -> float:
    return LEAST_AREA + MOST_AREA * dot.seconds / longest


def _draw_lane(axes: "Axes", dots: Sequence[Dot], roof: "Roof", stages: list[str], longest: float) -> None:
    places = [(dot.num_bytes / dot.seconds / 1e9, -float(stages.index(dot.path[0]))) for dot in dots]
    _dots(axes, dots, places, stages, longest)
    present = [n for n, stage in enumerate(stages) if any(dot.path[0] == stage for dot in dots)]
    axes.set_xscale("log")
    axes.axvline(roof.memory_bytes_per_s / 1e9, color=VERMILION, ls="--", lw=1.4)
    axes.set_yticks([-n for n in present], [stages[n] for n in present], fontsize=7.5)
    axes.set_ylim(-max(present) - 0.7, 0.7 - min(present))
    axes.set_xlabel("only moving: GB/s (dashed: the memory's bandwidth)", color=SOFT)
    plain_numbers(axes.xaxis)


def _roofline_table(dots: Sequence[Dot], roof: "Roof") -> Table:
    """Return every operator with its work and its rates, the longest first."""
    rows = []
    for dot in sorted(dots, key=lambda dot: -dot.seconds):
        reached = min(roof.flops_per_s, dot.flops / dot.num_bytes * roof.memory_bytes_per_s)
        rows.append((
            " · ".join(dot.path), fmt.duration(dot.seconds),
            f"{fmt.si(dot.flops)}FLOP" if dot.flops else fmt.UNKNOWN, fmt.size(dot.num_bytes),
            fmt.digits(dot.flops / dot.num_bytes) if dot.flops else fmt.UNKNOWN,
            f"{fmt.si(dot.flops / dot.seconds)}FLOP/s" if dot.flops else fmt.UNKNOWN,
            f"{fmt.size(dot.num_bytes / dot.seconds)}/s",
            fmt.percent(dot.flops / dot.seconds / reached) if dot.flops else fmt.UNKNOWN,
        ))  # fmt: skip
    headings = ("operator", "time", "work", "moved", "FLOP/byte", "computes", "moves", "of the roof")
    return Table("Every operator of a step with its work", headings, tuple(rows))
