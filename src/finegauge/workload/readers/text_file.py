"""A file's text, or one sentence why it cannot be a run file."""

import os
from stat import S_ISREG

from finegauge.errors import FileFormatError, did_you_mean, shown

MAX_BYTES = 2_000_000


def read_text(path: str) -> str:
    """Return the UTF-8 text of a small regular file.

    Raises: FileFormatError if it is missing, unreadable, too large, or not text.
    """
    name = os.path.basename(path)
    try:
        status = os.stat(path)
        if not S_ISREG(status.st_mode):
            raise FileFormatError(f"{shown(path)} is not a file.")
        if status.st_size > MAX_BYTES:
            size = f"{status.st_size / 1e6:,.1f} MB"
            raise FileFormatError(
                f"{name} is {size}; a run file has a few kB, at most {MAX_BYTES / 1e6:.0f} MB."
            )
        with open(path, "rb") as file:
            content = file.read(MAX_BYTES)
    except FileNotFoundError:
        raise FileFormatError(f"No file {shown(path)}.{_neighbours(path)}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "the name is not a path"
        raise FileFormatError(f"{shown(path)} cannot be read: {reason}.") from None
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileFormatError(
            f"{name} is not UTF-8 text (byte {error.start:,}); save it as UTF-8 YAML or JSON."
        ) from None
    odd = next((c for c in text if c < " " and c not in "\t\n\r"), None)
    if odd is not None:
        raise FileFormatError(
            f"{name} is binary, not YAML or JSON: it holds the control character {ord(odd):#04x}."
        )
    return text


def _neighbours(path: str) -> str:
    """Return " Did you mean …" for files of the same folder."""
    try:
        return did_you_mean(os.path.basename(path), os.listdir(os.path.dirname(path) or ".")[:1000])
    except (OSError, ValueError):
        return ""
