"""The tables of fields in docs/run-file.md, written from the fields themselves.

`python -m tests.house.run_file` (make readme) rewrites them between their marks.
"""

from finegauge.run.description import markdown_tables
from tests.house.sources import ROOT

PAGE = ROOT / "docs" / "run-file.md"
MARKS = "<!-- fields: make readme -->", "<!-- end of fields -->"


def block() -> str:
    """Return the tables between their marks."""
    return "\n\n".join((MARKS[0], markdown_tables(), MARKS[1]))


def main() -> None:
    """Rewrite the tables."""
    text = PAGE.read_text("utf-8")
    before, _, rest = text.partition(MARKS[0])
    PAGE.write_text(before + block() + rest.partition(MARKS[1])[2], "utf-8")


if __name__ == "__main__":
    main()
