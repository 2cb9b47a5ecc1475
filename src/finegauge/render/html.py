"""A report as one HTML file that needs nothing beside itself: no script, no request, no font.

Everything a template prints is escaped, and an undefined name is an error. No template has
a script or a `style` attribute, so that the page can forbid both; colours are classes of `figures.css`.
"""

from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, NamedTuple

from finegauge import __version__
from finegauge.errors import UnsupportedError
from finegauge.render.plots.drawing import INSTALL, OWN_SHADES, check_matplotlib, page_svg
from finegauge.render.report import Bar, Note, Plot, Report, Table, Text, Toned, plain

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

HOME = "finegauge.render"
NUM_SHADES = 8
LONG_TABLE = 14  # rows beyond which a table is folded


def html_page(report: Report) -> str:
    """Return `report` as the text of one HTML file.

    Raises: UnsupportedError where jinja2 or matplotlib is missing.
    """
    template = environment().get_template("report.html")
    check_matplotlib()
    return template.render(
        report=report,
        styles=stylesheet("figures.css") + stylesheet("report.css"),
        svgs={plot.key: page_svg(plot) for plot in report.plots},
        version=__version__,
    )


def environment(*more: str) -> "Environment":
    """Return a new environment over these templates, and before them over `more` packages' "templates".

    Raises: UnsupportedError where jinja2 is missing.
    """
    try:
        from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
    except ImportError:
        raise UnsupportedError(INSTALL) from None
    found = Environment(
        loader=ChoiceLoader([PackageLoader(package, "templates") for package in (*more, HOME)]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.globals |= {"geometry": geometry, "LONG_TABLE": LONG_TABLE}
    found.filters |= {"toned": toned, "plain": plain}
    found.tests |= {kind.__name__.lower(): _test_of(kind) for kind in (Bar, Note, Plot, Table)}
    return found


def _test_of(kind: type) -> Callable[[object], bool]:
    return lambda block: isinstance(block, kind)


@cache
def stylesheet(name: str = "figures.css") -> str:
    """Return the text of a style sheet: figures.css colours bars and tables, report.css lays out the file."""
    return files(HOME).joinpath("templates", name).read_text("utf-8")


def toned(text: Text) -> "Markup":
    """Return a text as HTML, its tones as classes."""
    from markupsafe import Markup, escape

    if isinstance(text, tuple):
        return Markup("").join(map(toned, text))
    if not isinstance(text, Toned):
        return escape(text)
    return Markup('<span class="{}">{}</span>').format(" ".join(text.tones), str(text))


class Piece(NamedTuple):
    """One piece of a bar as it is drawn."""

    name: str
    amount: str
    start_fraction: float  # of the bar's whole width
    width_fraction: float
    shade: int  # 1 to 8, the class "fg-N" of figures.css


class Geometry(NamedTuple):
    """Where everything of a bar stands, as fractions of its width."""

    pieces: tuple[Piece, ...]
    limit_fraction: float | None
    interval_fractions: tuple[float, float] | None


def geometry(bar: Bar) -> Geometry:
    """Return where the parts of a bar, its limit and its interval stand."""
    total = sum(part.width_fraction for part in bar.parts)
    whole = 1.02 * max(bar.limit_fraction, total, *(bar.interval_fractions or (0.0,))) or 1.0
    pieces, start = [], 0.0
    for number, part in enumerate(part for part in bar.parts if part.width_fraction > 0):
        shade = OWN_SHADES.get(part.name, number % NUM_SHADES + 1)
        pieces.append(Piece(part.name, part.amount, start / whole, part.width_fraction / whole, shade))
        start += part.width_fraction
    ends = bar.interval_fractions
    return Geometry(
        tuple(pieces),
        bar.limit_fraction / whole if bar.limit_fraction else None,
        (ends[0] / whole, ends[1] / whole) if ends else None,
    )
