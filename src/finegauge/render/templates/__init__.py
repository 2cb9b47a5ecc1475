"""The HTML templates that the report and the local page share, and the one way to load them.

Everything a template prints is escaped, and a name that nobody passed is an error. No template has
a script or a `style` attribute, so that the page can forbid both; colours are classes of `figures.css`.
"""

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from finegauge.errors import UnsupportedError

if TYPE_CHECKING:
    from jinja2 import Environment

HOME = "finegauge.render"
INSTALL = "The report needs jinja2 and matplotlib: pip install 'finegauge[report]'."


def environment(*more: str) -> "Environment":
    """Return a new environment over these templates, and before them over `more` packages' "templates".

    Raises: UnsupportedError where jinja2 is missing.
    """
    try:
        from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
    except ImportError:
        raise UnsupportedError(INSTALL) from None
    return Environment(
        loader=ChoiceLoader([PackageLoader(package, "templates") for package in (*more, HOME)]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


@cache
def stylesheet(name: str = "figures.css") -> str:
    """Return the text of a style sheet: figures.css colours bars and tables, report.css lays out the file."""
    return files(HOME).joinpath("templates", name).read_text("utf-8")
