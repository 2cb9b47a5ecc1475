"""Write docs/accuracy.md from the tables that ship with the package: `python -m tests.golden.accuracy`."""

from pathlib import Path

from finegauge.answers.calibration import CalibrationAnswer
from finegauge.answers.validation import validation_answer
from finegauge.catalogue.tables import measurement_tables
from finegauge.documents import read_document
from finegauge.prediction.calibration import SHIPPED
from finegauge.render.json import decoded
from finegauge.render.validation import accuracy_page
from finegauge.validation.summary import validate

PAGE = Path(__file__).parents[2] / "docs" / "accuracy.md"


def main() -> None:
    """Validate every shipped table and write the page."""
    tables = measurement_tables()
    answer = validation_answer(validate(tables, against=["all"]))
    fitted = decoded(CalibrationAnswer, read_document(SHIPPED), None)
    PAGE.write_text(accuracy_page(answer, tables, fitted), "utf-8")
    print(f"docs/accuracy.md: {answer.summary.answered} of {answer.summary.rows} rows")


if __name__ == "__main__":
    main()
