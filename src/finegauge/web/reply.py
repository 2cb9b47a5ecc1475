"""What a page's handler answers, before anything of HTTP is added."""

from collections.abc import Mapping
from typing import NamedTuple


class Reply(NamedTuple):
    """One answer: a page, a fragment of one, or a file to keep."""

    body: str | bytes
    status: int = 200
    media_type: str = "text/html"
    filename: str = ""  # where not empty, the browser saves the body under this name
    headers: Mapping[str, str] = {}
