"""The tables of fields in docs/run-file.md and the JSON schema beside it, written from the fields themselves.

`python -m tests.house.run_file` (make readme) rewrites both.
"""

import json

from finegauge.run.description import json_schema, markdown_tables
from tests.house.sources import ROOT

PAGE = ROOT / "docs" / "run-file.md"
SCHEMA = ROOT / "docs" / "run-file.schema.json"
MARKS = "<!-- fields: make readme -->", "<!-- end of fields -->"


def block() -> str:
    """Return the tables between their marks."""
    return "\n\n".join((MARKS[0], markdown_tables(), MARKS[1]))


def schema() -> str:
    """Return the schema as the file holds it."""
    return json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    """Rewrite the tables and the schema."""
    SCHEMA.write_text(schema(), "utf-8")
    text = PAGE.read_text("utf-8")
    before, _, rest = text.partition(MARKS[0])
    PAGE.write_text(before + block() + rest.partition(MARKS[1])[2], "utf-8")


if __name__ == "__main__":
    main()
