"""Predictions against published one-GPU runs of full sequences.

The budgets are the issue's bars or what is reached, whichever is lower; they may only shrink.
"""

from collections import defaultdict
from statistics import median

import pytest

from finegauge.validation.summary import answer
from tests.golden.tables import packed_rows
from tests.shared import needs_shared

SPEED_MEDIAN, SPEED_P90 = 0.06, 0.20
MEMORY_MEDIAN, MEMORY_P90 = 0.005, 0.05

Errors = dict[str, list[tuple[str, float, float]]]


@pytest.fixture(scope="module")
def errors() -> Errors:
    """Return (row, speed error, memory error) by method; errors are signed and relative."""
    found: Errors = defaultdict(list)
    for row in packed_rows():
        ours = answer(row)
        assert ours.profile is not None, ours.reason
        assert ours.step_time_error is not None
        assert ours.peak_memory_error is not None
        speed = 1 / (1 + ours.step_time_error) - 1
        found[ours.profile.run.method].append((row.id, speed, ours.peak_memory_error))
    return found


def percentile(values: list[float], share: float) -> float:
    ranked = sorted(map(abs, values))
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))]


@needs_shared
def test_speed_and_memory_of_packed_rows_stay_within_budget(errors: Errors) -> None:
    everything = [entry for entries in errors.values() for entry in entries]
    print(f"\n{'method':<10} rows   tokens/s |e| median  bias    p90     memory |e| median  bias    p90")
    for method, entries in [*errors.items(), ("all", everything)]:
        speed, memory = [e[1] for e in entries], [e[2] for e in entries]
        print(
            f"{method:<10} {len(entries):>4}   {median(map(abs, speed)):>19.1%} {median(speed):>+6.1%} "
            f"{percentile(speed, 0.9):>6.1%}   {median(map(abs, memory)):>19.2%} {median(memory):>+6.2%} "
            f"{percentile(memory, 0.9):>6.1%}"
        )
    worst = sorted(everything, key=lambda e: -max(abs(e[1]), abs(e[2])))[:4]
    print(
        "worst:",
        ", ".join(f"{name} speed {speed:+.0%} memory {memory:+.0%}" for name, speed, memory in worst),
    )
    assert len(everything) >= 60
    speed, memory = [e[1] for e in everything], [e[2] for e in everything]
    assert median(map(abs, speed)) <= SPEED_MEDIAN
    assert percentile(speed, 0.9) <= SPEED_P90
    assert median(map(abs, memory)) <= MEMORY_MEDIAN
    assert percentile(memory, 0.9) <= MEMORY_P90
