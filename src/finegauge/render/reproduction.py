"""A reproduction as text, JSON and one HTML page."""

import json
from collections.abc import Mapping, Sequence
from html import escape
from math import floor, log10
from typing import Any

from finegauge.render.html import stylesheet
from finegauge.render.number_format import UNKNOWN
from finegauge.render.plots.drawing import for_page
from finegauge.render.terminal import WIDTH, columns, paint, wrapped
from finegauge.reproduction.published import Cell, Finding, Item, Reproduction

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


STYLE = """
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 72rem; padding: 2rem 1.25rem 4rem; color: var(--fg-ink);
       background: var(--fg-paper); font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .25rem; }
h2 { font-size: 1.3rem; margin: 3rem 0 1rem; border-bottom: 2px solid var(--fg-link); }
h3 { font-size: 1.05rem; margin: 2.25rem 0 .5rem; }
p, li { max-width: 52rem; }
.soft { color: var(--fg-soft); font-size: .9rem; }
nav { columns: 14rem; font-size: .9rem; }
nav a { display: block; break-inside: avoid; color: var(--fg-link); text-decoration: none; }
nav a:hover, nav a:focus { text-decoration: underline; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; margin: .5rem 0; }
th, td { padding: .2rem .75rem .2rem 0; text-align: right; border-bottom: 1px solid var(--fg-grid);
         white-space: nowrap; }
th { vertical-align: bottom; color: var(--fg-soft); font-weight: 600; white-space: pre-line; }
.text { text-align: left; }
figure { margin: 1rem 0; }
details > summary { cursor: pointer; color: var(--fg-link); font-size: .9rem; }
"""
LONG_TABLE = 24  # rows from which a table is folded


def page(whole: Reproduction, charts: Mapping[str, str]) -> str:
    """Return the whole page.

    Args:
        whole: The reproduction.
        charts: The SVG text of the items that have charts, by their key.
    """
    links = [f'<a href="#{item.key}">{escape(item.title)}</a>' for item in whole.items]
    links += [f'<a href="#finding-{f.number}">{f.number}. {escape(f.title)}</a>' for f in whole.findings]
    summary = "".join(f"<li>{escape(note)}</li>" for note in whole.summary)
    items = "".join(_item(item, charts.get(item.key, "")) for item in whole.items)
    findings = f"<h2>Inconsistencies</h2>{''.join(map(_finding, whole.findings))}" if whole.findings else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(whole.title)}</title><style>{stylesheet()}{STYLE}</style></head><body>"
        f'<h1>{escape(whole.title)}</h1><p class="soft">Regenerated by FineGauge: ours beside theirs. '
        f"{escape('; '.join(whole.sources))}.</p><ul>{summary}</ul><nav>{''.join(links)}</nav><h2>Tables "
        f"and figures</h2>{items}{findings}</body></html>\n"
    )


def _item(item: Item, svg: str) -> str:
    """Return one item: charts, table, notes."""
    charts = ""
    if svg:
        charts = f"<figure>{for_page(svg, item.key, item.title)}</figure>"
    notes = "".join(f'<p class="soft">{escape(note)}</p>' for note in item.notes)
    table = _table(item.headings, item.rows, item.num_text_columns)
    if len(item.rows) >= LONG_TABLE:
        table = f"<details><summary>{len(item.rows)} rows</summary>{table}</details>"
    return f'<section id="{item.key}"><h3>{escape(item.title)}</h3>{charts}{table}{notes}</section>'


def _finding(finding: Finding) -> str:
    """Return one inconsistency with its proof."""
    return (
        f'<section id="finding-{finding.number}"><h3>{finding.number}. {escape(finding.title)}</h3>'
        f"<p>{escape(finding.statement)}</p>{_table(finding.headings, finding.rows, 1)}</section>"
    )


def _table(headings: tuple[str, ...], rows: tuple[tuple[Cell, ...], ...], num_text: int) -> str:
    """Return a table whose first columns are text."""

    def line(cells: tuple[str, ...], tag: str) -> str:
        kinds = [' class="text"' if n < num_text else "" for n in range(len(cells))]
        inner = "".join(
            f"<{tag}{kind}>{escape(cell)}</{tag}>" for kind, cell in zip(kinds, cells, strict=True)
        )
        return f"<tr>{inner}</tr>"

    head = line(tuple(heading.strip() for heading in headings), "th")
    body = "".join(line(tuple(row), "td") for row in texts(rows))
    return f'<div class="wide"><table><thead>{head}</thead><tbody>{body}</tbody></table></div>'
