"""Text for a terminal: colour, columns and bars, 100 characters wide, readable without colour.

Written by hand, not with rich: importing rich takes as long as a whole estimate does
(docs/decisions/0002).
"""

import re
import sys
from collections.abc import Iterable, Sequence
from os import environ

WIDTH = 100
_COLOURS = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36"}
_PAINT = re.compile(r"\x1b\[[0-9;]*m")
_EIGHTHS = " ▏▎▍▌▋▊▉"


def has_colour() -> bool:
    """Return whether to paint: a terminal that is not dumb, and NO_COLOR not set; FORCE_COLOR decides."""
    if environ.get("NO_COLOR"):
        return False
    return bool(environ.get("FORCE_COLOR")) or (sys.stdout.isatty() and environ.get("TERM") != "dumb")


def paint(text: str, *colours: str) -> str:
    """Return `text` in `colours`, or as it is where the terminal shows none."""
    if not text or not has_colour():
        return text
    return f"\x1b[{';'.join(_COLOURS[colour] for colour in colours)}m{text}\x1b[0m"


def unpainted(text: str) -> str:
    """Return `text` without its colours."""
    return _PAINT.sub("", text)


def visible_width(text: str) -> int:
    """Return how many columns `text` takes, paint not counted."""
    return len(unpainted(text))


def pad(text: str, width: int, *, right: bool = False) -> str:
    """Return `text` filled with spaces to `width`, on its right, or on its left if it is to end there."""
    space = " " * max(0, width - visible_width(text))
    return space + text if right else text + space


def columns(
    headings: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1, indent: str = ""
) -> list[str]:
    """Return the lines of a table; a heading may have two lines, and a column may be empty.

    Args:
        headings: One per column, above all rows.
        rows: Cells, painted or not.
        left: How many columns, from the first, are set flush left; numbers are set flush right.
        indent: Before every line.
    """
    body = [list(row) for row in rows]
    heads = [heading.rpartition("\n") for heading in headings]
    top, bottom = [head[0] for head in heads], [head[2] for head in heads]
    cells = [top, bottom, *body]
    widths = [max(visible_width(line[n]) for line in cells) for n in range(len(headings))]

    def line(row: Sequence[str]) -> str:
        return (
            indent + "  ".join(pad(cell, widths[n], right=n >= left) for n, cell in enumerate(row)).rstrip()
        )

    above = [paint(line(top), "dim")] if any(top) else []
    return [*above, paint(line(bottom), "dim"), *map(line, body)]


def bar(fraction: float, width: int) -> str:
    """Return a bar that fills `fraction` of `width` columns, to an eighth of one."""
    eighths = round(max(0.0, min(1.0, fraction)) * width * 8)
    whole, rest = divmod(eighths, 8)
    return "█" * whole + (_EIGHTHS[rest] if rest else "")


def wrapped(text: str, *, indent: str, width: int = WIDTH) -> list[str]:
    """Return `text` in lines of at most `width`, all but the first indented."""
    lines, line = [], ""
    for word in text.split(" "):
        if line and visible_width(line) + 1 + visible_width(word) > width:
            lines.append(line)
            line = indent + word
        else:
            line = f"{line} {word}" if line else word
    return [*lines, line]


def item(text: str, *, width: int = WIDTH) -> list[str]:
    """Return `text` as one entry of a list: two columns in, what is too long for a line four more."""
    first, *rest = wrapped(text, indent="    ", width=width - 2)
    return [f"  {first}", *(f"  {line}" for line in rest)]
