"""P(OOM) over every table that ships, each source judged by the interval of the others."""

import pytest

from benchmarks.intervals import by_source, of_memory, of_time
from finegauge.catalogue.tables import held_out_tables, measurement_tables
from finegauge.prediction.uncertainty import RESERVED, UNMEASURED, UNTIMED
from finegauge.validation.summary import reliability, validate

FITS_OR_NOT = 0.985  # right, by the more likely; may only rise
SAFE_MISSES = 0.05  # of claims that a room is safe: what a verdict promises
SURE_HITS = 0.9  # of claims from 95 % on; may only rise
RISKY_MISSES = 0.2  # of claims of 5 to 20 %


def test_it_came_as_often_as_was_said() -> None:
    found = reliability(validate([*measurement_tables(), *held_out_tables()]).answers)
    assert found is not None
    assert found.accuracy_fraction is not None
    assert found.accuracy_fraction >= FITS_OR_NOT
    safe, risky, *_, sure = found.bins
    assert safe.observed_fraction <= SAFE_MISSES
    assert risky.observed_fraction <= RISKY_MISSES
    assert sure.observed_fraction >= SURE_HITS
    assert safe.sources >= 10


def test_intervals_hold_four_of_five_rows_of_sources_that_they_have_not_seen() -> None:
    answers = validate([*measurement_tables(), *held_out_tables()]).answers
    times, memory = of_time(answers, by_source), of_memory(answers, by_source)
    for one, stated in zip([*times, *memory], [*UNTIMED, UNMEASURED, RESERVED], strict=True):
        assert stated == pytest.approx((one.low_ratio, one.high_ratio), abs=0.02), one.name
        assert one.rows >= 20
        assert 0.7 <= one.inside_fraction <= 0.9, one.name
        assert one.inside_by_source_fraction >= 0.7, one.name
