"""Write docs/accuracy.md from the tables that ship with the package: `python -m tests.golden.accuracy`."""

from pathlib import Path

from finegauge.catalogue.tables import measurement_tables
from finegauge.documents import read_document
from finegauge.prediction.calibration import SHIPPED
from finegauge.render.validation import accuracy_page
from finegauge.validation.summary import validate

PAGE = Path(__file__).parents[2] / "docs" / "accuracy.md"


def main() -> None:
    """Validate every shipped table and write the page."""
    tables = measurement_tables()
    validation = validate(tables, against=["all"])
    PAGE.write_text(accuracy_page(validation, map(Path, tables), read_document(SHIPPED)), "utf-8")
    print(f"docs/accuracy.md: {len(validation.answered)} of {len(validation.answers)} rows")


if __name__ == "__main__":
    main()
