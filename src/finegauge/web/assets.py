"""The files a page loads from this server, each under a URL that names its content.

They are read once. A URL with the right hash may be kept for a year; without one the browser asks again,
and gets 304 while nothing has changed.
"""

import mimetypes
from base64 import b64encode
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from importlib.resources import files
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from finegauge.render.html import stylesheet

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

PREFIX = "/static/"
_HASH_LENGTH = 16
_TYPES = {".js": "text/javascript", ".woff2": "font/woff2", ".svg": "image/svg+xml"}


class Asset(NamedTuple):
    """One file, as it is sent."""

    content: bytes
    media_type: str
    hash: str  # of its content


@cache
def assets() -> Mapping[str, Asset]:
    """Return every file of the page, by its path below /static/."""
    return MappingProxyType(dict(_below(files("finegauge.web").joinpath("static"), "")))


@cache
def style() -> str:
    """Return the style of the page, which stands in it: one round trip less before the first frame."""
    own = (files("finegauge.web").joinpath("templates", name) for name in ("page.css", "charts.css"))
    return stylesheet("figures.css") + "".join(one.read_text("utf-8") for one in own)


def icon() -> str:
    """Return the drawing for the page's heading; as a file it would be a document of its own to lay out."""
    drawing = assets()["icon.svg"].content.decode()
    return drawing.replace("<svg ", '<svg class="icon" aria-hidden="true" ', 1)


@cache
def first_script() -> str:
    """Return the script that stands in the page; it loads the others after the first frame."""
    return files("finegauge.web").joinpath("templates", "first.js").read_text("utf-8")


def source(text: str) -> str:
    """Return how a Content-Security-Policy names a text: by its hash [W3C CSP 3, section 2.3.1]."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def url(name: str) -> str:
    """Return the URL of a file, such as "page.js"; it changes whenever its content does.

    Raises: KeyError where there is no such file.
    """
    return f"{PREFIX}{name}?v={assets()[name].hash}"


def later_scripts() -> tuple[str, ...]:
    """Return the scripts that come after the first frame: htmx, page.js, then what builds on both."""
    first = ("htmx.min.js", "page.js")
    return (*first, *sorted(name for name in assets() if name.endswith(".js") and name not in first))


def _below(folder: "Traversable", prefix: str) -> list[tuple[str, Asset]]:
    found: list[tuple[str, Asset]] = []
    for entry in folder.iterdir() if folder.is_dir() else ():
        if entry.is_dir():
            found += _below(entry, f"{prefix}{entry.name}/")
        else:
            found.append((prefix + entry.name, _asset(entry.name, entry.read_bytes())))
    return found


def _asset(name: str, content: bytes) -> Asset:
    suffix = name[name.rfind(".") :] if "." in name else ""
    media_type = _TYPES.get(suffix) or mimetypes.guess_type(name)[0] or "application/octet-stream"
    return Asset(content, media_type, sha256(content).hexdigest()[:_HASH_LENGTH])
