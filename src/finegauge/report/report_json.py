"""What `finegauge report` prints under `--json`: the report's facts and every figure's numbers."""

import json
from collections.abc import Sequence
from typing import Any

from finegauge.report.bars import Table
from finegauge.report.page import Report


def report_json(report: Report, written: Sequence[str]) -> str:
    """Return the whole JSON text.

    Args:
        report: What is shown.
        written: The files that were written.
    """
    whole = {
        "schema_version": 1,
        "command": "report",
        "title": report.title,
        "verdict": report.verdict,
        "tone": report.tone,
        "facts": [fact._asdict() for fact in report.facts],
        "figures": [
            {"name": one.key, "title": one.title, "caption": one.caption, **_table(one.table)}
            for one in report.drawings
        ],
        "tables": [_table(table) for part in report.sections for table in part.tables],
        "written": list(written),
    }
    return json.dumps(whole, indent=2, ensure_ascii=False, allow_nan=False)


def _table(table: Table) -> dict[str, Any]:
    """Return a table's texts."""
    return {
        "table": table.caption,
        "columns": list(table.headings),
        "rows": [list(row) for row in table.rows],
    }
