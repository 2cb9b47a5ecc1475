"""Figures of reports, and charts of panels, drawn with matplotlib: SVG for a page, SVG and PNG for a paper.

A `Plot` is plain data and a function that draws them; only that function needs matplotlib. The same plot
gives the same bytes: ids are salted and no date is written. In a page its ink, grid and paper are
variables of `figures.css`, so that it is legible in the light and in the dark.

A chart's series has a colour that says whose it is: black measured, orange the authors' equation, blue ours.
Dense and sparse differ by fill and dash, so that the charts read without colour too.
"""

import os
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from io import BytesIO, StringIO
from math import log2, pi
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

from finegauge.errors import InputError, UnsupportedError, shown
from finegauge.render import number_format as fmt
from finegauge.render.report import Plot, Table
from finegauge.reproduction import COUNTED, MEASURED, OTHER, OURS, THEIRS, Panel, Series

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INSTALL = "Drawing needs matplotlib, and a page jinja2: pip install 'finegauge[report]'."
INK, GRID, PAPER, ROOM = "#1a1a1a", "#e6e6e6", "#ffffff", "#eeeeee"
SOFT = "#666666"
# Okabe and Ito 2008, "Color universal design"; grey and black stand for what is nobody's
BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION, GREY, YELLOW = CYCLE = (
    "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#999999", "#f0e442",
)  # fmt: skip
OWN_SHADES = {  # numbers in CYCLE, so that a kind has one colour wherever it is drawn
    "weights": 1, "gradients": 3, "optimizer": 2, "activations": 4, "logits": 5, "workspace": 8,
    "slack": 7, "allocator overhead": 7, "context": 6, "CUDA context": 6, "NCCL": 6, "KV cache": 3,
    "forward": 1, "recompute": 5, "backward": 3, "communication": 6, "generation": 4, "scoring": 7,
    "prefill": 1, "decode": 4, "data": 7, "other": 8,
}  # fmt: skip
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")  # of groups, so that they read without colour too
WIDTH_INCHES = 4.8  # as wide as a telephone shows it, or one column of a paper
DPI = 160
SETTINGS: Any = {
    "font.size": 8.5,
    "axes.titlesize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.facecolor": "none",
    "text.color": INK,
    "text.parse_math": False,  # a name may hold dollars
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": GRID,
    "legend.frameon": False,
    "legend.fontsize": 7.5,
    "svg.hashsalt": "finegauge",
    "svg.fonttype": "none",
}
NO_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))
PAGE_COLOURS = {
    INK: "var(--fg-ink)", GRID: "var(--fg-grid)", PAPER: "var(--fg-paper)", ROOM: "var(--fg-room)",
    SOFT: "var(--fg-soft)",
}  # fmt: skip
_NOT_FOR_PAGES = re.compile(r"<metadata>.*?</metadata>|<style.*?</style>|<defs>\s*</defs>", re.DOTALL)
_COLOUR = re.compile("|".join(PAGE_COLOURS))
_ID = re.compile(r'(?<= id=")|(?<=url\(#)|(?<=xlink:href="#)')
_TOLD = "told-"
_TOLD_ID = re.compile(f'<g id="{_TOLD}([^"]*)">')
_LOCK = Lock()  # matplotlib's settings are the process's


def check_matplotlib(extra: str = "report") -> None:
    """Raise UnsupportedError naming the `extra` to install where matplotlib is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise UnsupportedError(INSTALL.replace("report]", f"{extra}]")) from None


def told(artist: "Artist", text: str) -> None:
    """Let `text` be shown where a reader's pointer rests on `artist`, in a page and in an SVG file."""
    from urllib.parse import quote

    artist.set_gid(_TOLD + quote(text))


def _with_titles(text: str) -> str:
    """Return an SVG file's text with what is told as titles, which need no script."""
    from html import escape
    from urllib.parse import unquote

    return _TOLD_ID.sub(lambda found: f'<g class="fg-told"><title>{escape(unquote(found[1]))}</title>', text)


def svg(plot: Plot) -> str:
    """Return the drawing as an SVG file that needs nothing beside itself; its text stays text."""
    text = StringIO()
    with _LOCK, settings():
        plot.draw().savefig(text, format="svg", transparent=False, metadata=NO_METADATA)
    return _with_titles(text.getvalue())


def png(plot: Plot) -> bytes:
    """Return the drawing as PNG on white."""
    content = BytesIO()
    with _LOCK, settings():
        figure = plot.draw()
        figure.savefig(content, format="png", dpi=DPI, facecolor=PAPER, metadata={"Software": None})
    return content.getvalue()


def page_svg(plot: Plot) -> str:
    """Return the drawing as an element of an HTML page, its colours those of the page's theme."""
    text = StringIO()
    with _LOCK, settings():
        plot.draw().savefig(text, format="svg", transparent=True, metadata=NO_METADATA)
    return for_page(text.getvalue(), plot.key, plot.caption)


def for_page(text: str, key: str, says: str) -> str:
    """Return an SVG file's text as an element of a page that holds others.

    `key` goes before every id, so that no two drawings share one; `says` is the drawing in words, for screen
    readers.
    """
    from html import escape

    whole = _with_titles(_NOT_FOR_PAGES.sub("", text[text.index("<svg") :]))
    whole = _COLOUR.sub(lambda found: PAGE_COLOURS[found[0]], whole)
    whole = _ID.sub(f"{key}-", whole).replace("xlink:href=", "href=")
    head, _, inner = whole.partition(">")
    size = " ".join(re.findall(r'(?:width|height|viewBox)="[^"]*"', head))
    label = escape(" ".join(says.split()), quote=True)
    return f'<svg class="fg-drawing" role="img" aria-label="{label}" {size}>{inner.strip()}'


def new_axes(height_inches: float) -> "tuple[Figure, Axes]":
    """Return a figure with one pair of axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH_INCHES, height_inches), layout="constrained")
    return figure, figure.add_subplot()


def plain_numbers(*axes: Any) -> None:
    """Write the ticks of logarithmic axes as plain numbers: 0.5, 20, 1,000."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    for axis in axes:
        low, high = sorted(axis.get_view_interval())
        wide = high > 300 * max(low, 1e-30)
        axis.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0)))
        axis.set_major_formatter(
            FuncFormatter(lambda value, _: f"{value:,g}" if value < 1e6 else f"{value:g}")
        )
        axis.set_minor_formatter(NullFormatter())


def luminance(colour: str) -> float:
    """Return how light a colour is, 0 to 1, as the eye weighs red, green and blue (Rec. 709, no gamma)."""
    red, green, blue = (int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def tint(colour: str, strength_fraction: float) -> str:
    """Return `colour` mixed with white."""
    parts = (int(colour[n : n + 2], 16) for n in (1, 3, 5))
    return "#" + "".join(f"{round(255 - strength_fraction * (255 - part)):02x}" for part in parts)


def shades(names: Iterable[str]) -> dict[str, str]:
    """Return a colour for each name, that of the page's bars where a kind has its own."""
    return {
        name: CYCLE[OWN_SHADES.get(name, number % len(CYCLE) + 1) - 1] for number, name in enumerate(names)
    }


def settings() -> Any:
    """Return the scope in which matplotlib draws as all figures are drawn."""
    from matplotlib import rc_context

    return rc_context(SETTINGS)


COLOURS = {MEASURED: INK, THEIRS: VERMILION, OURS: BLUE, OTHER: GREEN, COUNTED: BLUE}
MARKS = {MEASURED: "points", THEIRS: "line", OURS: "line", OTHER: "dotted"}
PANEL_INCHES = (5.4, 3.7)
MOST_COLUMNS = 2
TITLE_INCHES = 0.1  # of one character of the title
WIDE_FROM = 45  # characters under its bars from which a panel takes the whole width
HEADROOM = 1.2  # above the bars, for the legend
NAME_LETTERS_PER_INCH = 15.0  # at 7 points, with some room
TITLE_LETTERS_PER_INCH = 12.0
AXIS_INCHES = 0.9  # of a panel's width that its bars do not have
MOST_LETTERS = 36  # of a name in a chart; its middle is left out
MOST_LETTERS_BESIDE = 24  # a radar
MOST_LINES = 3
MOST_COLUMNS_OF_LEGEND = 4
CHART_DPI = 120


def save_charts(panels: Sequence[Panel], stem: str, title: str) -> tuple[str, str]:
    """Draw `panels` under one `title` and return the paths of the PNG and the SVG, `stem` and suffix.

    Raises: InputError where they cannot be written.
    """
    folder = os.path.dirname(stem) or "."
    try:
        os.makedirs(folder, exist_ok=True)
        with settings():
            figure = _figure(panels, title)
            figure.savefig(f"{stem}.png", dpi=CHART_DPI, metadata={"Software": None})
            figure.set_layout_engine("none")  # it is laid out already
            figure.savefig(f"{stem}.svg", metadata=NO_METADATA)
    except OSError as error:
        raise InputError(f"Cannot write to {shown(folder)}: {error.strerror or error}.") from None
    return f"{stem}.png", f"{stem}.svg"


def panel_plot(key: str, panel: Panel, caption: str) -> Plot:
    """Return one chart as a figure of a report, with its numbers as a table."""
    places = panel.categories or tuple(dict.fromkeys(f"{x:g}" for series in panel.series for x in series.x))
    columns = [
        dict(zip(panel.categories or (f"{x:g}" for x in series.x), series.y, strict=True))
        for series in panel.series
    ]
    rows = tuple((place, *(fmt.digits(column.get(place)) for column in columns)) for place in places)
    table = Table(panel.title, (panel.x_label, *(series.label for series in panel.series)), rows)
    return Plot(key, panel.title, caption, table, lambda: _figure([panel._replace(title="")], ""))


def panels_plot(key: str, title: str, panels: Sequence[Panel], table: Table) -> Plot:
    """Return charts that stand together as one figure of a report."""
    return Plot(key, "Charts", title, table, lambda: _figure(panels, title))


def _figure(panels: Sequence[Panel], title: str) -> "Figure":
    """Return the figure: one panel to a cell, wide ones alone in their row."""
    from matplotlib.figure import Figure

    rows: list[list[Panel]] = []
    for panel in panels:
        if not rows or _is_wide(panel) or len(rows[-1]) == MOST_COLUMNS or _is_wide(rows[-1][0]):
            rows.append([])
        rows[-1].append(panel)
    columns = max(MOST_COLUMNS if _is_wide(row[0]) else len(row) for row in rows)
    width, height = PANEL_INCHES
    wide_enough = max(width * columns, TITLE_INCHES * len(title))
    figure = Figure(figsize=(wide_enough, height * len(rows) + 0.4), layout="constrained")
    if title:
        figure.suptitle(title, fontsize=11, fontweight="bold")
    grid = figure.add_gridspec(len(rows), columns)
    for n, row in enumerate(rows):
        for m, panel in enumerate(row):
            place = grid[n, :] if _is_wide(panel) else grid[n, m]
            if panel.radar:
                _radar(figure.add_subplot(place, projection="polar"), panel)
            else:
                _draw(figure.add_subplot(place), panel)
    return figure


def _is_wide(panel: Panel) -> bool:
    return not panel.radar and sum(map(_longest_line, panel.categories)) >= WIDE_FROM


def shortened(name: str, most: int = MOST_LETTERS) -> str:
    """Return a name as a chart has room for it: both ends, for those of files differ there."""
    first = most // 3
    return "\n".join(
        line if len(line) <= most else f"{line[:first]}…{line[first + 1 - most :]}"
        for line in name.split("\n")
    )


def _in_lines(name: str, room: int) -> str:
    return "\n".join(textwrap.fill(line, max(1, room), break_long_words=False) for line in name.split("\n"))


def _longest_line(text: str) -> int:
    return max(map(len, text.split("\n")))


def _inches(panel: Panel) -> float:
    return PANEL_INCHES[0] * (MOST_COLUMNS if _is_wide(panel) else 1)


def _draw(axes: "Axes", panel: Panel) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_title(textwrap.fill(panel.title, int(TITLE_LETTERS_PER_INCH * _inches(panel))))
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    colours = _colours(panel)
    if not panel.categories:
        for series in panel.series:
            _line(axes, series, colours[series.whose])
    elif panel.stacked:
        _stacked_bars(axes, panel)
    else:
        _grouped_bars(axes, panel)
    if panel.signed:
        axes.axhline(0, color=INK, lw=0.8)
    else:
        axes.set_ylim(bottom=0)
    if panel.categories:
        axes.set_ylim(top=axes.get_ylim()[1] * HEADROOM)
        axes.legend(loc="upper left", ncols=min(MOST_COLUMNS_OF_LEGEND, len(panel.series)))
        return
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if len(panel.series) > 1:
        axes.legend(ncols=2 if len(panel.series) > 4 else 1)


def _colours(panel: Panel) -> dict[str, str]:
    """Return the colour of each party of a panel, its own or the next of the cycle."""
    parties = dict.fromkeys(series.whose for series in panel.series)
    return {whose: COLOURS.get(whose, CYCLE[n % len(CYCLE)]) for n, whose in enumerate(parties)}


def _line(axes: "Axes", series: Series, colour: str) -> None:
    """Draw points where the series was measured, a line where it is an equation."""
    known = [(x, y) for x, y in zip(series.x, series.y, strict=True) if y is not None]
    x, y = [point[0] for point in known], [point[1] for point in known]
    dense = series.label.endswith("dense")
    mark = series.mark or MARKS.get(series.whose, "both")
    style: dict[str, Any] = {"color": colour, "mfc": "white" if dense else colour, "label": series.label}
    if series.whose == COUNTED:
        axes.fill_between(x, y, step="mid", color=colour, alpha=0.85, label=series.label)
    elif mark == "points":
        axes.plot(x, y, "o", ms=5, zorder=3, **style)
    elif mark == "dotted":
        axes.plot(x, y, ":x", ms=4, lw=1, alpha=0.6 if dense else 1.0, **style)
    elif mark == "line":
        axes.plot(x, y, "--" if dense else "-", marker="s" if len(x) == 1 else "", ms=3.5, **style)
    else:
        axes.plot(x, y, "-o", ms=4, **style)


def _grouped_bars(axes: "Axes", panel: Panel) -> None:
    width, colours = 0.8 / len(panel.series), _colours(panel)
    for n, series in enumerate(panel.series):
        shift = (n - (len(panel.series) - 1) / 2) * width
        places = [m + shift for m in range(len(panel.categories))]
        heights = [y if y is not None else 0.0 for y in series.y]
        axes.bar(places, heights, width, color=colours[series.whose], label=series.label)
        for place, height, interval in zip(places, heights, series.intervals, strict=False):
            if interval:
                beyond = [[height - interval[0]], [interval[1] - height]]
                axes.errorbar([place], [height], beyond, color=INK, lw=1, capsize=2)
    if panel.one:
        axes.axhline(1.0, color=INK, lw=1, ls="--")
    _name_categories(axes, panel)


def _radar(axes: "Axes", panel: Panel) -> None:
    """Draw a closed line per series, a spoke to each category, around the ring at 1 that is no change."""
    reaches = [
        Reach(shortened(one.label, MOST_LETTERS_BESIDE), dict(zip(panel.categories, one.y, strict=True)))
        for one in panel.series
    ]
    shown = furthest(reaches, panel.categories)
    draw_on(axes, shown, panel.categories)
    axes.tick_params(axis="x", pad=6)
    of_all = f"the {len(shown)} that gain most of {len(reaches)}" if len(shown) < len(reaches) else None
    axes.legend(loc="center left", bbox_to_anchor=(1.1, 0.5), fontsize=6.5, title=of_all, title_fontsize=6.5)


def _stacked_bars(axes: "Axes", panel: Panel) -> None:
    below = [0.0] * len(panel.categories)
    for n, series in enumerate(panel.series):
        heights = [y if y is not None else 0.0 for y in series.y]
        axes.bar(
            range(len(below)), heights, 0.75, bottom=below, color=CYCLE[n % len(CYCLE)], label=series.label
        )
        below = [one + other for one, other in zip(below, heights, strict=True)]
    _name_categories(axes, panel)


def _name_categories(axes: "Axes", panel: Panel) -> None:
    room = int(NAME_LETTERS_PER_INCH * (_inches(panel) - AXIS_INCHES) / len(panel.categories))
    names = [shortened(name) for name in panel.categories]
    lines = [_in_lines(name, room) for name in names]
    upright = any(one.count("\n") >= MOST_LINES or _longest_line(one) > room for one in lines)
    shown = names if upright else lines
    axes.set_xticks(range(len(names)), shown, fontsize=7, rotation="vertical" if upright else "horizontal")
    axes.grid(visible=False, axis="x")
    axes.set_xlim(-0.6, len(panel.categories) - 0.4)


KEY = "gains"
MOST_DRAWN = 8
RINGS = (0.125, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 16.0, 32.0, 64.0)
MARGIN = 0.25  # of log2, inside the smallest ratio and outside the largest
LEAST_APART = 0.16  # of the radius: names of rings


class Reach(NamedTuple):
    """What one optimisation gains."""

    name: str
    ratios: Mapping[str, float | None]  # by dimension; above 1 is better
    intervals: Mapping[str, tuple[float, float]] = {}


def radar_plot(
    reaches: Sequence[Reach], dimensions: Sequence[str], *, over: str, key: str = KEY
) -> Plot | None:
    """Return the radar of the optimisations that are known in three dimensions; None where there are none.

    `over` says what they are held against, and where; `key` names the drawing where a report has several.
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
    shown = furthest(known, dimensions)
    table = _table(reaches, dimensions)
    return Plot(key, "Gains", caption, table, lambda: draw(shown, dimensions))


def furthest(reaches: Sequence[Reach], dimensions: Sequence[str]) -> list[Reach]:
    """Return the MOST_DRAWN that gain most, in their own order, which gives the colours."""
    best = sorted(reaches, key=lambda one: -sum(log2(one.ratios[name] or 1.0) for name in dimensions))
    return [one for one in reaches if one in best[:MOST_DRAWN]]


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
    def cell(one: Reach, name: str) -> str:
        ratio, interval = one.ratios.get(name), one.intervals.get(name)
        if ratio is None:
            return fmt.UNKNOWN
        return f"{ratio:.2f}" + (f" [{interval[0]:.2f}–{interval[1]:.2f}]" if interval else "")

    rows = tuple((one.name, *(cell(one, name) for name in dimensions)) for one in reaches)
    return Table("Gains of every optimisation, as multiples of the baseline", ("", *dimensions), rows)
