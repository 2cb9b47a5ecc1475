"""Write docs/accuracy.md from the tables that ship with the package: `python -m tests.golden.accuracy`."""

from pathlib import Path

import numpy as np

from benchmarks.intervals import by_source, of_memory, of_time
from finegauge.answers.calibration import CalibrationAnswer
from finegauge.answers.validation import validation_answer
from finegauge.calibration import CONSTANTS, Evidence, _slopes, evidence_of
from finegauge.catalogue.tables import held_out_tables, measurement_tables
from finegauge.documents import read_document
from finegauge.formats.measurement_tables import read_table
from finegauge.prediction.calibration import SHIPPED, Calibration, current
from finegauge.render.json import decoded
from finegauge.validation.summary import reliability, validate
from tests.golden.accuracy_page import accuracy_page
from tests.golden.offload import slowdowns

PAGE = Path(__file__).parents[2] / "docs" / "accuracy.md"
RESTING_SHARE = 0.05  # of a constant's move, by which a row that rests on it moves at least


def main() -> None:
    """Validate every shipped table and write the page."""
    tables = measurement_tables()
    answer = validation_answer(validate(tables, against=["all"]))
    fitted = decoded(CalibrationAnswer, read_document(SHIPPED), None)
    held_out = {Path(path).stem: validation_answer(validate([path])).summary for path in held_out_tables()}
    evidence = evidence_of(row for path in tables for row in read_table(path))
    resting = rows_behind(evidence, current())
    answers = validate([*tables, *held_out_tables()]).answers
    left_out = [
        *(("step time", one) for one in of_time(answers, by_source)),
        *(("peak memory", one) for one in of_memory(answers, by_source)),
    ]
    reliable = reliability(answers)
    page = accuracy_page(answer, tables, fitted, held_out, resting, slowdowns(), reliable, left_out)
    PAGE.write_text(page, "utf-8")
    print(f"docs/accuracy.md: {answer.summary.answered} of {answer.summary.rows} rows")


def rows_behind(evidence: Evidence, calibration: Calibration) -> dict[str, int]:
    """Return by constant how many rows rest on it: whose time moves with it, a twentieth as far or more."""
    theta = np.zeros(len(CONSTANTS))
    every = np.ones((len(evidence.points), len(CONSTANTS)), dtype=bool)
    slopes = _slopes(evidence, calibration, theta, evidence.log_ratios(calibration), every)
    moved_rows = (np.abs(slopes) >= RESTING_SHARE).sum(axis=0)
    return {constant.name: int(rows) for constant, rows in zip(CONSTANTS, moved_rows, strict=True)}


if __name__ == "__main__":
    main()
