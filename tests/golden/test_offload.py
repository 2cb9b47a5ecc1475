"""What offloading costs, against 8 x A800."""

from statistics import median

from tests.golden.offload import slowdowns

MEDIAN_ERROR = 0.10
WORST_ERROR = 0.20


def test_offloaded_runs_are_as_much_slower_as_measured() -> None:
    found = slowdowns()
    assert [one.run for one in found] == ["zero2, optimizer", "zero3, optimizer", "zero3, all"]
    assert median(abs(one.error) for one in found) < MEDIAN_ERROR
    assert max(abs(one.error) for one in found) < WORST_ERROR
