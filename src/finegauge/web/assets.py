"""The files a page loads from this server, each under a URL that names its content.

They are read once. A URL with the right hash may be kept for a year; without one the browser asks again,
and gets 304 while nothing has changed.
"""

import mimetypes
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from importlib.resources import files
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

PREFIX = "/static/"
_HASH_LENGTH = 16
_TYPES = {".js": "text/javascript", ".woff2": "font/woff2", ".svg": "image/svg+xml", ".css": "text/css"}


class Asset(NamedTuple):
    """One file, as it is sent."""

    content: bytes
    media_type: str
    hash: str  # of its content


@cache
def assets() -> Mapping[str, Asset]:
    """Return every file of the page, by its path below /static/."""
    found = dict(_below(files("finegauge.web").joinpath("static"), ""))
    found |= {"figures.css": _asset("figures.css", _figures_css())}
    return MappingProxyType(found)


def url(name: str) -> str:
    """Return the URL of a file, such as "app.css"; it changes whenever its content does.

    Raises: KeyError where there is no such file.
    """
    return f"{PREFIX}{name}?v={assets()[name].hash}"


def _below(folder: "Traversable", prefix: str) -> "list[tuple[str, Asset]]":
    """Return the files of a folder and of those in it."""
    found: list[tuple[str, Asset]] = []
    for entry in folder.iterdir() if folder.is_dir() else ():
        if entry.is_dir():
            found += _below(entry, f"{prefix}{entry.name}/")
        else:
            found.append((prefix + entry.name, _asset(entry.name, entry.read_bytes())))
    return found


def _asset(name: str, content: bytes) -> Asset:
    """Return a file with its type and its hash."""
    suffix = name[name.rfind(".") :] if "." in name else ""
    media_type = _TYPES.get(suffix) or mimetypes.guess_type(name)[0] or "application/octet-stream"
    return Asset(content, media_type, sha256(content).hexdigest()[:_HASH_LENGTH])


def _figures_css() -> bytes:
    """Return the style of the figures that page and report share."""
    from finegauge.report.templates import stylesheet

    return stylesheet("figures.css").encode()
