"""Predicted beside measured: parts of one step as pairs of bars, or many runs as dots about the diagonal."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from finegauge.report import figures
from finegauge.report.bars import Table
from finegauge.report.drawing import BLUE, CYCLE, GREY, INK, MARKERS, Drawing, new_axes, plain_numbers

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
        if not self.predicted or not self.measured:
            return figures.UNKNOWN
        error = round(100 * (self.predicted / self.measured - 1))
        return f"{error:+d} %" if error else "0 %"


def bars_drawing(
    key: str, title: str, about: str, pairs: Sequence[Pair], *, unit: str, said: Callable[[float], str]
) -> Drawing | None:
    """Return pairs of bars, the first the whole; None where nothing is known from both sides.

    Args:
        key: The drawing's name.
        title: What is drawn.
        about: The start of the caption.
        pairs: The whole, then its parts.
        unit: Of the axis.
        said: How an amount is written in the table.
    """
    if not any(pair.predicted and pair.measured for pair in pairs):
        return None
    whole = pairs[0].error
    caption = f"{about}." + (
        f" For {pairs[0].name} the prediction is off by {whole}." if whole != figures.UNKNOWN else ""
    )
    shown = list(pairs[:MOST_DRAWN])
    return Drawing(key, title, caption, _table(title, pairs, said), lambda: draw_bars(shown, unit))


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


def dots_drawing(
    key: str, title: str, about: str, pairs: Sequence[Pair], *, unit: str, said: Callable[[float], str]
) -> Drawing | None:
    """Return a dot per run, predicted over measured; None where no run is known from both sides."""
    known = [pair for pair in pairs if pair.predicted and pair.measured]
    if not known:
        return None
    within = sum(abs((p.predicted or 0.0) / (p.measured or 1.0) - 1) <= WITHIN_FRACTION for p in known)
    caption = (
        f"{about}: {len(known)} predicted and measured, {within} of them within "
        f"{100 * WITHIN_FRACTION:.0f} % (the band about the diagonal, on which both agree)."
    )
    every = -(-len(known) // MOST_DOTS)
    caption += f" Of every {every} one is drawn." if every > 1 else ""
    return Drawing(key, title, caption, _table(title, known, said), lambda: draw_dots(known[::every], unit))


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


def _table(title: str, pairs: Sequence[Pair], said: Callable[[float], str]) -> Table:
    """Return a row per pair."""
    rows = tuple(
        (pair.name, said(pair.measured) if pair.measured else figures.UNKNOWN,
         said(pair.predicted) if pair.predicted else figures.UNKNOWN, pair.error)
        for pair in pairs[:MOST_ROWS]
    )  # fmt: skip
    more = f", the first {MOST_ROWS:,} of {len(pairs):,}" if len(pairs) > MOST_ROWS else ""
    return Table(f"{title}{more}", ("", "measured", "predicted", "error"), rows)
