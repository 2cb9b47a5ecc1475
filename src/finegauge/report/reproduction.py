"""What `finegauge reproduce` prints: the result first, then every item, then every finding."""

import json
from collections.abc import Sequence
from math import floor, log10
from typing import Any

from finegauge.report.figures import UNKNOWN
from finegauge.report.terminal import WIDTH, columns, paint, wrapped
from finegauge.reproduce.item import Cell, Finding, Item, Reproduction

SCHEMA_VERSION = 1
MOST_DECIMALS = 3


def reproduction_lines(whole: Reproduction, files: Sequence[str] = ()) -> list[str]:
    """Return everything for a terminal of 100 columns.

    Args:
        whole: The reproduction.
        files: What was written, named at the end.
    """
    sources = wrapped("; ".join(whole.sources), indent="  ")
    lines = [paint(whole.title, "bold"), *(paint(line, "dim") for line in sources), ""]
    for note in whole.summary:
        lines += wrapped(f"- {note}", indent="  ")
    for item in whole.items:
        lines += ["", *_item_lines(item)]
    for finding in whole.findings:
        lines += ["", *_finding_lines(finding)]
    if files:
        lines += ["", *wrapped(f"Written: {', '.join(files)}", indent="  ")]
    return lines


def _item_lines(item: Item) -> list[str]:
    """Return one item: title, table, notes."""
    lines = [paint(item.title, "bold")]
    lines += columns(item.headings, texts(item.rows), left=item.num_text_columns, indent="  ")
    for note in item.notes:
        lines += [paint(f"  {line}", "dim") for line in wrapped(note, indent="", width=WIDTH - 2)]
    return lines


def _finding_lines(finding: Finding) -> list[str]:
    """Return one inconsistency with its proof."""
    lines = [paint(f"Inconsistency {finding.number}: {finding.title}", "bold", "yellow")]
    lines += [f"  {line}" for line in wrapped(finding.statement, indent="", width=WIDTH - 2)]
    return lines + columns(finding.headings, texts(finding.rows), indent="  ")


def texts(rows: Sequence[Sequence[Cell]]) -> list[list[str]]:
    """Return the cells as text, the numbers of a column with the same decimals."""
    places = [_decimals(column) for column in zip(*rows, strict=True)]
    return [[_cell(cell, decimals) for cell, decimals in zip(row, places, strict=True)] for row in rows]


def _decimals(column: Sequence[Cell]) -> int:
    """Return the decimals that give the middle number of a column three digits that matter."""
    sizes = sorted(abs(cell) for cell in column if isinstance(cell, float) and cell)
    if not sizes or all(size == int(size) for size in sizes):
        return 0
    middle = sizes[len(sizes) // 2]
    return min(MOST_DECIMALS, max(int(middle < 1000), 2 - floor(log10(middle))))


def _cell(cell: Cell, decimals: int) -> str:
    """Return one cell; "-" where nothing is known."""
    if isinstance(cell, str):
        return cell
    return UNKNOWN if cell is None else f"{cell:,.{0 if isinstance(cell, int) else decimals}f}"


def reproduction_json(whole: Reproduction) -> str:
    """Return the reproduction as one JSON document: tables and findings, numbers unrounded."""
    document: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "command": "reproduce",
        "title": whole.title,
        "sources": whole.sources,
        "summary": whole.summary,
        "items": [
            {"key": i.key, "title": i.title, "columns": _plain(i.headings), "rows": i.rows, "notes": i.notes}
            for i in whole.items
        ],
        "findings": [{**f._asdict(), "columns": _plain(f.headings)} for f in whole.findings],
    }
    for finding in document["findings"]:
        del finding["headings"]
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)


def _plain(headings: Sequence[str]) -> list[str]:
    """Return headings of two lines in one."""
    return [" ".join(heading.split()) for heading in headings]
