"""The shipped tables of measured runs are what the conversion makes of the reference figures."""

import csv
from pathlib import Path

import pytest

from finegauge.calibration import CONSTANTS, evidence_of, fit
from finegauge.catalogue.tables import held_out_tables, measurement_tables
from finegauge.formats.measurement_tables import read_table
from finegauge.prediction.calibration import DATASHEET, SHIPPED, read
from tests.golden.measurement_figures import tables
from tests.shared import needs_shared

TOLERANCE = 0.03


@needs_shared
def test_shipped_tables_equal_the_conversion() -> None:
    converted = dict(tables())
    assert sorted(str(path) for path in converted if path.suffix == ".csv") == sorted(
        [*measurement_tables(), *held_out_tables()]
    )
    for path, text in converted.items():
        assert path.read_text("utf-8") == text, (
            f"run 'python -m tests.golden.measurement_figures': {path.name}"
        )


@pytest.mark.parametrize(
    "path", [*measurement_tables(), *held_out_tables()], ids=lambda path: Path(path).stem
)
def test_every_shipped_row_says_where_it_is_published(path: str) -> None:
    with Path(path).open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows
    assert all(row["published"] and row["date"] and row["source"] for row in rows)
    assert len({row["id"] for row in rows}) == len(rows)


def test_most_shipped_rows_describe_a_run_without_the_reference_figures() -> None:
    rows = [row for path in measurement_tables() for row in read_table(path)]
    assert sum(row.run is not None for row in rows) / len(rows) > 0.9


def test_no_a100_or_h100_row_of_the_seed_paper_is_shipped_to_be_fitted() -> None:
    rows = [row for path in measurement_tables() for row in read_table(path) if row.source == "xia2024"]
    assert rows
    assert {str(row.run.gpu) for row in rows if row.run} == {"A40"}


@pytest.mark.slow
def test_the_shipped_calibration_is_the_fit_to_the_shipped_tables() -> None:
    """`make calibrate` writes what is shipped, but for what the last edit of the physics moved a little."""
    shipped = read(SHIPPED)
    evidence = evidence_of(row for path in measurement_tables() for row in read_table(path))
    again = fit(evidence, DATASHEET)
    for constant in CONSTANTS:
        was, now = getattr(shipped, constant.name), getattr(again, constant.name)
        assert now == pytest.approx(was, rel=TOLERANCE), f"run 'make calibrate': {constant.name}"
