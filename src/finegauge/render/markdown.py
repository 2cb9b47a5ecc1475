"""A report as Markdown, as GitHub shows it: for pull requests and for a workflow's summary."""

import re
from collections.abc import Iterator

from finegauge.render.bars import Table
from finegauge.render.report import Report

LONG_TABLE = 14  # rows from which a table is folded
MOST_ROWS = 200
_SPECIAL = re.compile(r"([\\`*_\[\]|~#@$])")


def markdown_page(report: Report) -> str:
    """Return `report` as Markdown: its numbers as tables, no picture."""
    return "\n".join(_lines(report)).rstrip() + "\n"


def _lines(report: Report) -> Iterator[str]:
    """Yield every line."""
    yield f"## {plain(report.title)}"
    yield f"\n**{plain(report.verdict)}**\n"
    for line in report.about:
        yield f"{plain(line)}\n"
    if report.facts:
        yield "| | | |\n|---|---:|---|"
        for fact in report.facts:
            yield f"| {plain(fact.name)} | **{plain(fact.value)}** | {plain(fact.note)} |"
    for part in report.sections:
        yield f"\n### {plain(part.title)}\n"
        for text in part.texts:
            yield f"{plain(text)}\n"
        for drawing in part.drawings:
            yield f"**{plain(drawing.title)}.** {plain(drawing.caption)}\n"
            yield from _table(drawing.table)
        for table in part.tables:
            yield from _table(table)


def _table(table: Table) -> Iterator[str]:
    """Yield a table, folded where it is long."""
    long = len(table.rows) >= LONG_TABLE
    if long:
        yield f"<details><summary>{plain(table.caption)} ({len(table.rows):,} rows)</summary>\n"
    last = len(table.headings) - 1
    text = [n < table.num_text_columns or (table.ends_in_text and n == last) for n in range(last + 1)]
    yield _row(table.headings)
    yield "|" + "|".join("---" if flush else "---:" for flush in text) + "|"
    for row in table.rows[:MOST_ROWS]:
        yield _row(row)
    if len(table.rows) > MOST_ROWS:
        yield f"\n{len(table.rows) - MOST_ROWS:,} rows more are in the HTML report."
    yield "\n</details>\n" if long else ""


def _row(cells: tuple[str, ...]) -> str:
    """Return one row."""
    return "| " + " | ".join(map(plain, cells)) + " |"


def plain(text: str) -> str:
    """Return `text` so that Markdown and HTML show it as it is, on one line."""
    one_line = " ".join(text.split())
    escaped = one_line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _SPECIAL.sub(r"\\\1", escaped)
