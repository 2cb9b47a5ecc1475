"""Sources left out one by one, and the interval that their residuals earn."""

import random
from math import log

import pytest

from finegauge.calibration import (
    MIN_SOURCES,
    Residual,
    calibrate,
    conformal_interval,
    evidence_of,
    leave_one_source_out,
    memory_residuals,
)
from finegauge.prediction.calibration import DATASHEET
from finegauge.progress import Progress
from tests.unit.calibration.measured import sweep


@pytest.mark.extras
def test_a_source_is_judged_by_constants_that_have_not_seen_it() -> None:
    honest = sweep(DATASHEET, "honest")
    rows = [*honest, *sweep(DATASHEET, "slow", times=2.0)]
    residuals = leave_one_source_out(evidence_of(rows), DATASHEET)
    assert [residual.id for residual in residuals] == [row.id for row in rows]
    slow = [r.log_ratio for r in residuals if r.source == "slow"]
    assert slow == pytest.approx([log(0.5)] * len(slow), abs=0.01)
    assert all(r.log_ratio > 0.1 for r in residuals if r.source == "honest")  # they saw only the slow one


def drawn(source: str, spread: float, count: int, seed: int) -> list[Residual]:
    generator = random.Random(seed)
    return [Residual(source, str(n), True, generator.gauss(0.0, spread)) for n in range(count)]


def test_the_interval_holds_eight_of_ten() -> None:
    seen = [residual for n in range(8) for residual in drawn(f"s{n}", 0.2, 200, n)]
    low, high = conformal_interval(seen)
    fresh = [2.718281828**-r.log_ratio for r in drawn("new", 0.2, 4000, 99)]
    assert sum(low <= truth <= high for truth in fresh) / len(fresh) == pytest.approx(0.8, abs=0.03)


def test_a_long_table_decides_no_more_than_a_short_one() -> None:
    wide = drawn("wide", 0.4, 1000, 1)
    few, many = drawn("narrow", 0.01, 50, 2), drawn("narrow", 0.01, 5000, 3)
    assert conformal_interval([*wide, *many]).high_ratio == pytest.approx(
        conformal_interval([*wide, *few]).high_ratio, rel=0.05
    )


def test_guessed_rows_widen_no_interval_and_no_rows_give_none() -> None:
    rows = drawn("a", 0.1, 100, 4)
    guessed = [Residual("b", str(n), False, 3.0) for n in range(100)]
    assert conformal_interval([*rows, *guessed]) == conformal_interval(rows)
    assert conformal_interval([]) == (1.0, 1.0)


def test_the_prediction_stays_inside_its_interval() -> None:
    low, high = conformal_interval([Residual("a", str(n), True, -0.5) for n in range(10)])
    assert low == 1.0
    assert high == pytest.approx(2.718281828**0.5)


def test_memory_is_compared_by_the_rows_metric() -> None:
    (residual, *_) = memory_residuals(sweep(DATASHEET), DATASHEET)
    assert residual.log_ratio == pytest.approx(0.0, abs=1e-9)


@pytest.mark.extras
def test_few_sources_keep_the_intervals_they_began_with() -> None:
    tables = [sweep(DATASHEET, f"s{n}", times=1 + n / 4)[:4] for n in range(MIN_SOURCES)]
    heard: list[Progress] = []
    few = calibrate([row for table in tables[:-1] for row in table], DATASHEET, "few")
    most = calibrate([row for table in tables for row in table], DATASHEET, "most", heard.append)
    assert few.residuals == ()
    assert few.calibration.time_interval == DATASHEET.time_interval
    assert len(most.residuals) == 4 * MIN_SOURCES
    assert most.calibration.time_interval != DATASHEET.time_interval
    assert [one.done for one in heard] == list(range(1, MIN_SOURCES + 2))
    assert {one.total for one in heard} == {MIN_SOURCES + 1}
