"""A report as Markdown, as GitHub shows it: for pull requests and for a workflow's summary."""

import re
from collections.abc import Iterator

from finegauge.render.report import Bar, Block, Note, Plot, Report, Table, Text, plain

LONG_TABLE = 14  # rows from which a table is folded
MOST_ROWS = 200
_SPECIAL = re.compile(r"([\\`*_\[\]|~#@$])")


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
    return _SPECIAL.sub(r"\\\1", safe)
