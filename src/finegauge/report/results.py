"""How results are printed: a table of what differs between them, in SI units."""

import json
from typing import TYPE_CHECKING, Any

from finegauge.report.figures import UNKNOWN, digits
from finegauge.report.terminal import columns, paint
from finegauge.store.table import FACTS, answer_of

if TYPE_CHECKING:
    import pyarrow as pa

USUAL = ("outcome", "step_time_s", "tokens_per_s", "peak_memory_bytes", "step_energy_j")
LONGEST_CELL = 28
NOT_TOLD = ("cell", "reason", *FACTS)  # in the table, and no help in telling rows apart
MOST_COLUMNS = 14


def telling(table: "pa.Table") -> "pa.Table":
    """Return the columns in which rows differ, and the usual facts that are known."""
    names = [
        name
        for name in table.column_names
        if name in USUAL or (len(table[name].unique()) > 1 and name not in NOT_TOLD and "time_" not in name)
    ]
    names = [n for n in names if n not in USUAL] + [n for n in USUAL if table[n].null_count < len(table)]
    return table.select(list(dict.fromkeys(names))[-MOST_COLUMNS:])


def results_lines(table: "pa.Table", limit: int, quarantined: int, output: str | None) -> list[str]:
    """Return the first rows of a table as text, with what was left out below."""
    answer = answer_of(table.slice(0, limit))
    numeric = [not isinstance(column.to_pylist()[0] if len(column) else "", str) for column in table.columns]
    left = next((n for n, number in enumerate(numeric) if number), len(numeric))
    lines = columns(answer.columns, [list(map(_cell, row)) for row in answer.rows], left=left)
    shown = f"{len(answer.rows):,} of " if len(table) > limit else ""
    shown += "1 row" if len(table) == 1 else f"{len(table):,} rows"
    lines.append(paint(shown, "dim"))
    if quarantined:
        said = "1 line" if quarantined == 1 else f"{quarantined:,} lines"
        lines.append(paint(f"{said} did not read back: torn or changed, and passed by", "yellow"))
    if output:
        lines.append(f"Written: {output}")
    return lines


def results_json(table: "pa.Table", quarantined: int) -> str:
    """Return a whole table as JSON: a mapping per row."""
    answer = answer_of(table)
    rows = [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]
    whole = {"schema_version": 1, "command": "results", "num_quarantined": quarantined, "results": rows}
    return json.dumps(whole, indent=2, ensure_ascii=False, allow_nan=False, default=str)


def _cell(value: Any) -> str:
    """Return a value as a cell."""
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return digits(value)
    text = str(value)
    return text if len(text) <= LONGEST_CELL else f"{text[: LONGEST_CELL - 1]}…"
