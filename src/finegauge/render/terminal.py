"""A report as text: for a terminal, with colour, columns and bars, as wide as it is; and as Markdown.

It is readable without colour. Where a table is wider, its texts are folded, and then columns left out whole,
which is said; no number is cut. In a pipe a line has 100 characters, and a listing one line for each of its
rows.

Written by hand, not with rich: importing rich takes as long as a whole estimate does
(docs/decisions/0002).

Markdown is as GitHub shows it: for pull requests and for a workflow's summary.
"""

import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from os import environ

from finegauge.render.number_format import percent
from finegauge.render.report import (
    Bar,
    BarPart,
    Block,
    Note,
    Plot,
    Report,
    Section,
    Table,
    Text,
    Toned,
    plain,
)

WIDTH = 100  # where no terminal says its own
NARROWEST, WIDEST = 40, 160
UNLIMITED = 100_000
MIN_TEXT = 12  # characters of a column that is folded
BAR_WIDTH = 24
LEAST_NAME_WIDTH = 13
_COLOURS = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36"}
TONE_COLOURS = {"good": "green", "risky": "yellow", "bad": "red", "strong": "bold", "soft": "dim"}
_PAINT = r"\x1b\[[0-9;]*m"
_EIGHTHS = " ▏▎▍▌▋▊▉"


def report_lines(report: Report) -> list[str]:
    """Return what a terminal shows of a report: headline, subject, its sections, a blank line between."""
    lines = wrapped(painted(report.headline), indent="  ") if report.headline else []
    for text in report.subject:
        lines += wrapped(_paint(text, "dim"), indent="")
    for part in report.sections:
        lines += [*([""] if lines else []), *section_lines(part)]
    return lines


def section_lines(part: Section) -> list[str]:
    """Return the lines of one section; figures are left to files."""
    said = f"  {part.said}" if part.said else ""
    lines = [f"{_paint(part.title, 'bold')}{said}"] if part.title else []
    for block in part.blocks:
        if isinstance(block, Table):
            lines += table_lines(block)
        elif isinstance(block, Bar):
            lines += bar_lines(block)
        elif isinstance(block, Note):
            label = f"{_paint(block.label, 'bold')}  " if block.label else ""
            lines += wrapped(label + painted(block.text, block.tone), indent="  ")
    return lines


def table_lines(table: Table, most: int = 0) -> list[str]:
    """Return the lines of a table, of at most `most` characters: none above the rows without headings.

    A heading may have two lines. Numbers are set flush right; a last column of text is wrapped.
    """
    most = most or line_width()
    table, left_out = _narrowed(table, most) if has_width() else (table, [])
    note = wrapped(f"Too narrow to show: {', '.join(left_out)}.", indent="  ") if left_out else []
    last = len(table.headings) - 1
    heads = [heading.rpartition("\n")[::2] for heading in table.headings]
    above = [line for line in zip(*heads, strict=True) if any(line)]
    rows = [list(map(painted, row)) for row in table.rows]

    def width(n: int) -> int:
        return max((visible_width(row[n]) for row in (*above, *rows)), default=0)

    if table.ends_in_text:
        room = most - table.indent - sum(width(n) + 2 for n in range(last))
        rows = [line for row in rows for line in _wrapped_row(row, room)]
    for n in sorted(range(1, table.num_text_columns), key=width, reverse=True):
        too_wide = table.indent + sum(width(n) + 2 for n in range(last + 1)) - 2 - most
        if too_wide > 0:
            rows = [line for row in rows for line in _folded_row(row, n, max(MIN_TEXT, width(n) - too_wide))]
    widths = list(map(width, range(last + 1)))
    flush_left = {*range(table.num_text_columns), *([last] if table.ends_in_text else [])}

    def line(row: Sequence[str]) -> str:
        cells = (pad(cell, widths[n], right=n not in flush_left) for n, cell in enumerate(row))
        return " " * table.indent + "  ".join(cells).rstrip()

    return [
        *(_paint(line(row), "dim") for row in above), *map(line, rows), *(_paint(one, "dim") for one in note)
    ]  # fmt: skip


def _narrowed(table: Table, most: int) -> tuple[Table, list[str]]:
    """Return a table whose columns have room, and the headings of those that have none.

    Those that `table.first_to_go` names go first, then the last; the first column and a last text stay.
    """
    num = len(table.headings)
    last_text = num - 1 if table.ends_in_text else num
    columns = [
        [*heading.split("\n"), *(painted(row[n]) for row in table.rows)]
        for n, heading in enumerate(table.headings)
    ]
    widths = [max(map(visible_width, column)) for column in columns]
    for n in range(1, num):
        if n < table.num_text_columns or n == last_text:
            widths[n] = min(widths[n], MIN_TEXT)
    kept = list(range(num))
    going = [*table.first_to_go, *(n for n in reversed(range(1, last_text)) if n not in table.first_to_go)]
    while going and table.indent + sum(widths[n] + 2 for n in kept) - 2 > most:
        kept.remove(going.pop(0))
    left_out = [" ".join(table.headings[n].split("\n")).strip() for n in range(num) if n not in kept]
    left_out = [heading for heading in left_out if heading]
    rows = tuple(tuple(row[n] for n in kept) for row in table.rows)
    texts = sum(n < table.num_text_columns for n in kept)
    headings = tuple(table.headings[n] for n in kept)
    return table._replace(headings=headings, rows=rows, num_text_columns=texts, first_to_go=()), left_out


def _wrapped_row(row: list[str], room: int) -> Iterator[list[str]]:
    first, *rest = wrapped(row[-1], indent="  ", width=room)
    yield [*row[:-1], first]
    for line in rest:
        yield [*[""] * (len(row) - 1), line]


def _folded_row(row: list[str], column: int, room: int) -> Iterator[list[str]]:
    """Yield a row whose text in one column goes on in further lines, broken after hyphens and blanks."""
    from textwrap import wrap

    if visible_width(row[column]) <= room:
        yield row
        return
    paint, parts = re.match(_PAINT, row[column]), wrap(re.sub(_PAINT, "", row[column]), room)
    lines = [f"{paint[0]}{part}\x1b[0m" if paint else part for part in parts]  # paint is no text to fold
    yield [*row[:column], lines[0], *row[column + 1 :]]
    for line in lines[1:]:
        yield [line if n == column else "" for n in range(len(row))]


def bar_lines(bar: Bar) -> Iterator[str]:
    """Yield a line per part, "weights    22.9 GiB  52 %  ██████  experts 22.1 · attention 0.6"."""
    yield from wrapped(f"{_paint(bar.title, 'bold')}  {bar.said}", indent="  ")
    parts = [
        part for part in bar.parts if part.width_fraction >= bar.least_fraction and part.width_fraction > 0
    ]
    shown = [*parts, *([bar.spare] if bar.spare else [])]
    name_width = max([LEAST_NAME_WIDTH, *(len(part.name) + 2 for part in shown)])
    for part in shown:
        colour = "dim" if part is bar.spare else "cyan" if bar.limit_fraction else "blue"
        yield _bar_line(part, colour, name_width)


def _bar_line(part: BarPart, colour: str, name_width: int) -> str:
    fraction = part.width_fraction
    share = pad(percent(fraction), 5, right=True)
    drawn = pad(_paint(filled_bar(fraction, BAR_WIDTH), colour), BAR_WIDTH)
    line = f"  {pad(part.name, name_width)}{pad(part.amount, 9, right=True)} {share}  {drawn}"
    detail, room = "", line_width() - visible_width(line) - 2
    for text in part.detail:
        longer = f"{detail} · {text}" if detail else text
        if len(longer) > room:
            break
        detail = longer
    return f"{line}  {_paint(detail, 'dim')}".rstrip()


def painted(text: Text, *tones: str) -> str:
    """Return a text in the colours of its tones and of `tones`."""
    if isinstance(text, tuple):
        return "".join(painted(piece, *tones) for piece in text)
    if isinstance(text, Toned):
        tones = (*tones, *text.tones)
    return _paint(text, *(TONE_COLOURS[tone] for tone in tones if tone in TONE_COLOURS))


# --- lines


def has_colour() -> bool:
    """Return whether to paint: a terminal that is not dumb, and NO_COLOR not set; FORCE_COLOR decides."""
    if environ.get("NO_COLOR"):
        return False
    return bool(environ.get("FORCE_COLOR")) or (sys.stdout.isatty() and environ.get("TERM") != "dumb")


def _paint(text: str, *colours: str) -> str:
    """Return `text` in `colours`, or as it is where the terminal shows none."""
    if not text or not any(colours) or not has_colour():
        return text
    return f"\x1b[{';'.join(_COLOURS[colour] for colour in colours if colour)}m{text}\x1b[0m"


def visible_width(text: str) -> int:
    """Return how many columns `text` takes, paint not counted."""
    return len(re.sub(_PAINT, "", text) if "\x1b" in text else text)


def pad(text: str, width: int, *, right: bool = False) -> str:
    """Return `text` filled with spaces to `width`, on its right, or on its left if it is to end there."""
    space = " " * max(0, width - visible_width(text))
    return space + text if right else text + space


def filled_bar(fraction: float, width: int) -> str:
    """Return a bar that fills `fraction` of `width` columns, to an eighth of one."""
    eighths = round(max(0.0, min(1.0, fraction)) * width * 8)
    whole, rest = divmod(eighths, 8)
    return "█" * whole + (_EIGHTHS[rest] if rest else "")


def has_width() -> bool:
    """Return whether the width of a line is known, from the terminal or COLUMNS."""
    return environ.get("COLUMNS", "").isdecimal() or sys.stdout.isatty()


def line_width() -> int:
    """Return how many characters a line has."""
    columns = environ.get("COLUMNS", "")
    found = int(columns[:4]) if columns.isdecimal() else 0
    if not found and sys.stdout.isatty():
        with suppress(OSError):
            found = os.get_terminal_size(sys.stdout.fileno()).columns
    return min(WIDEST, max(NARROWEST, found or WIDTH))


def wrapped(text: str, *, indent: str, width: int = 0) -> list[str]:
    """Return `text` in lines of at most `width`, all but the first indented; spaces before it stay."""
    width = width or min(WIDTH, line_width())
    words = text.lstrip(" ")
    lines, line = list[str](), " " * (len(text) - len(words))
    for word in words.split(" "):
        if line.strip() and visible_width(line) + 1 + visible_width(word) > width:
            lines.append(line)
            line = indent + word
        else:
            line = f"{line} {word}" if line.strip() else line + word
    return [*lines, line]


LONG_TABLE = 14  # rows from which a table is folded
MOST_ROWS = 200
_SPECIAL = r"([\\`*_\[\]|~#@$])"


def markdown_page(report: Report, *, level: int = 2, folded: bool = True) -> str:
    """Return `report` as Markdown: its numbers as tables, no picture; its title is a heading of `level`."""
    return "\n".join(_lines(report, "#" * level, folded=folded)).rstrip() + "\n"


def _lines(report: Report, heading: str, *, folded: bool) -> Iterator[str]:
    yield f"{heading} {escaped(report.title)}"
    yield f"\n**{escaped(report.headline)}**\n" if report.headline else ""
    for line in report.subject:
        yield f"{escaped(line)}\n"
    if report.tiles:
        yield "| | | |\n|---|---:|---|"
        for tile in report.tiles:
            yield f"| {escaped(tile.name)} | **{escaped(tile.value)}** | {escaped(tile.note)} |"
    for part in report.sections:
        said = f": {escaped(part.said)}" if part.said else ""
        yield f"\n{heading}# {escaped(part.title)}{said}\n"
        for block in part.blocks:
            yield from _block(block, folded=folded)


def _block(block: Block, *, folded: bool) -> Iterator[str]:
    if isinstance(block, Bar):
        yield f"{escaped(block.says)}\n"
    elif isinstance(block, Note):
        label = f"**{escaped(block.label)}** " if block.label else ""
        yield f"{label}{escaped(block.text)}\n"
    elif isinstance(block, Plot):
        yield f"**{escaped(block.title)}.** {escaped(block.caption)}\n"
        yield from _table(block.table, folded=folded)
    else:
        yield from _table(block, folded=folded)


def _table(table: Table, *, folded: bool) -> Iterator[str]:
    long = folded and len(table.rows) >= LONG_TABLE
    if long:
        yield f"<details><summary>{escaped(table.caption)} ({len(table.rows):,} rows)</summary>\n"
    last = len(table.headings) - 1
    text = [n < table.num_text_columns or (table.ends_in_text and n == last) for n in range(last + 1)]
    yield _row(table.headings)
    yield "|" + "|".join("---" if flush else "---:" for flush in text) + "|"
    for row in table.rows[:MOST_ROWS]:
        yield _row(row)
    if len(table.rows) > MOST_ROWS:
        yield f"\n{len(table.rows) - MOST_ROWS:,} rows more are in the HTML report."
    yield "\n</details>\n" if long else ""


def _row(cells: tuple[Text, ...]) -> str:
    return "| " + " | ".join(map(escaped, cells)) + " |"


def escaped(text: Text) -> str:
    """Return `text` so that Markdown and HTML show it as it is, on one line."""
    one_line = " ".join(plain(text).split())
    safe = one_line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(_SPECIAL, r"\\\1", safe)
