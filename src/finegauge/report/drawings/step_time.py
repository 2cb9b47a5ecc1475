"""The seconds of one step as an icicle: stages, beside them their layers, beside those their kernels."""

from typing import TYPE_CHECKING, NamedTuple

from finegauge.profile import Breakdown, Path, Profile
from finegauge.report import figures
from finegauge.report.bars import Table
from finegauge.report.drawing import PAPER, Drawing, luminance, new_axes, shades, tint

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KEY = "time"
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


def step_time_drawing(profile: Profile) -> Drawing:
    """Return the icicle of `profile`."""
    step, interval = profile.step_time_s, profile.source.time_interval
    boxes, depth = layout(step), min(step.depth, len(DEPTHS))
    columns = f", by {', '.join(DEPTHS[:depth])} from left to right" if depth > 1 else ""
    brackets = " (in brackets the 10th and 90th percentile)" if interval else ""
    took = figures.duration_interval(step.total, interval)
    caption = f"One optimizer step takes {took}{brackets}; the height of a box is its time{columns}."
    return Drawing(KEY, "Time of one step", caption, _table(step), lambda: draw(boxes, step.total, depth))


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


def draw(boxes: list[Box], total_s: float, depth: int) -> "Figure":
    """Return the icicle; a box too low for a line of text stays without."""
    figure, axes = new_axes(HEIGHT_INCHES)
    colours = shades(dict.fromkeys(box.path[0] for box in boxes))
    for box in boxes:
        column = len(box.path) - 1
        colour = tint(colours[box.path[0]], STRENGTHS[column])
        axes.bar(
            column + 0.5,
            box.seconds,
            0.985,
            bottom=box.start_s,
            color=colour,
            edgecolor=PAPER,
            linewidth=min(0.5, 60 * box.seconds / total_s),
        )
        _say(axes, box, total_s, colour)
    axes.set(xlim=(0, depth), ylim=(total_s, 0), ylabel="seconds, summed from the top")
    axes.set_xticks([n + 0.5 for n in range(depth)], list(DEPTHS[:depth]))
    axes.xaxis.tick_top()
    axes.tick_params(axis="x", length=0)
    axes.grid(visible=False)
    for side in ("bottom", "left"):
        axes.spines[side].set_visible(False)
    return figure


def _say(axes: "Axes", box: Box, total_s: float, colour: str) -> None:
    """Write a part's name and time into its box, where there is room."""
    lines = box.seconds / total_s / LABEL_FRACTION
    if lines < 1.0:
        return
    name = box.path[-1] if len(box.path[-1]) <= MOST_LETTERS else f"{box.path[-1][: MOST_LETTERS - 1]}…"
    time = figures.duration(box.seconds)
    joint = "\n" if lines >= 2.4 else "  "
    text = f"{name}{joint}{time}" if joint == "\n" or len(name) + len(time) < MOST_LETTERS else name
    dark = luminance(colour) < 0.42  # in both themes alike: the box keeps its colour
    axes.text(
        len(box.path) - 0.5, box.start_s + box.seconds / 2, text, ha="center", va="center", fontsize=7.2,
        color="#fefefe" if dark else "#111111", clip_on=True, linespacing=1.1,
    )  # fmt: skip


def _table(step: Breakdown) -> Table:
    """Return every part with its share, stage by stage, the largest of a stage first."""
    rows = [
        (" · ".join((stage, *path)), figures.duration(seconds), figures.percent(seconds / step.total))
        for (stage, *_), _ in step.at(1).parts.items()
        for path, seconds in step.under(stage)
        if seconds > 0
    ]
    rows.append(("the whole step", figures.duration(step.total), "100 %"))
    return Table("Seconds of one step by stage, layer and kernel", ("part", "time", "share"), tuple(rows))
