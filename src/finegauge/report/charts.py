"""Charts of panels as PNG and SVG, drawn by matplotlib, which only this module needs.

A series' colour says whose it is: black measured, orange the authors' equation, blue ours. Dense and
sparse differ by fill and dash, so that the charts read without colour too. The same panels give the
same bytes: SVG ids are salted and no date is written.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from finegauge.errors import UnsupportedError
from finegauge.report.bars import Table
from finegauge.report.drawing import BLUE, CYCLE, GREEN, INK, NO_METADATA, SETTINGS, VERMILION, Drawing
from finegauge.report.figures import digits
from finegauge.reproduce.item import COUNTED, MEASURED, OTHER, OURS, THEIRS, Panel, Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {MEASURED: INK, THEIRS: VERMILION, OURS: BLUE, OTHER: GREEN, COUNTED: BLUE}
MARKS = {MEASURED: "points", THEIRS: "line", OURS: "line", OTHER: "dotted"}
PANEL_INCHES = (5.4, 3.7)
MOST_COLUMNS = 2
TITLE_INCHES = 0.1  # of one character of the title
WIDE_FROM = 45  # characters under its bars from which a panel takes the whole width
HEADROOM = 1.2  # above the bars, for the legend
DPI = 120


def save_charts(panels: Sequence[Panel], stem: str, title: str) -> tuple[str, str]:
    """Draw `panels` under one `title` and return the paths of the PNG and the SVG, `stem` and suffix."""
    with _settings():
        figure = _figure(panels, title)
        figure.savefig(f"{stem}.png", dpi=DPI, metadata={"Software": None})
        figure.set_layout_engine("none")  # it is laid out already
        figure.savefig(f"{stem}.svg", metadata=NO_METADATA)
    return f"{stem}.png", f"{stem}.svg"


def panel_drawing(key: str, panel: Panel, caption: str) -> Drawing:
    """Return one chart as a figure of a report, with its numbers as a table."""
    places = panel.categories or tuple(dict.fromkeys(f"{x:g}" for series in panel.series for x in series.x))
    columns = [
        dict(zip(panel.categories or (f"{x:g}" for x in series.x), series.y, strict=True))
        for series in panel.series
    ]
    rows = tuple((place, *(digits(column.get(place)) for column in columns)) for place in places)
    table = Table(panel.title, (panel.x_label, *(series.label for series in panel.series)), rows)
    return Drawing(key, panel.title, caption, table, lambda: _figure([panel._replace(title="")], ""))


def check_matplotlib() -> None:
    """Raise UnsupportedError with the way out where matplotlib is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise UnsupportedError(
            "Drawing needs matplotlib: pip install 'finegauge[calibrate]'. Leave it out for the text alone."
        ) from None


def _settings() -> Any:
    from matplotlib import rc_context

    return rc_context(SETTINGS)


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
    """Return whether the names under the bars need the whole width."""
    return not panel.radar and sum(max(map(len, name.split("\n"))) for name in panel.categories) >= WIDE_FROM


def _draw(axes: "Axes", panel: Panel) -> None:
    """Draw one panel."""
    from matplotlib.ticker import MaxNLocator

    axes.set_title(panel.title)
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
        axes.legend(loc="upper left", ncols=len(panel.series))
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
    """Draw bars side by side over each category."""
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
    from finegauge.report.drawings.radar import Reach, draw_on

    reaches = [Reach(one.label, dict(zip(panel.categories, one.y, strict=True))) for one in panel.series]
    draw_on(axes, reaches, panel.categories)
    axes.tick_params(axis="x", pad=6)
    axes.legend(loc="center left", bbox_to_anchor=(1.1, 0.5))


def _stacked_bars(axes: "Axes", panel: Panel) -> None:
    """Draw each series on top of those before it."""
    below = [0.0] * len(panel.categories)
    for n, series in enumerate(panel.series):
        heights = [y if y is not None else 0.0 for y in series.y]
        axes.bar(
            range(len(below)), heights, 0.75, bottom=below, color=CYCLE[n % len(CYCLE)], label=series.label
        )
        below = [one + other for one, other in zip(below, heights, strict=True)]
    _name_categories(axes, panel)


def _name_categories(axes: "Axes", panel: Panel) -> None:
    axes.set_xticks(range(len(panel.categories)), list(panel.categories), fontsize=7)
    axes.grid(visible=False, axis="x")
    axes.set_xlim(-0.6, len(panel.categories) - 0.4)
