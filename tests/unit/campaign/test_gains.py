"""SpeedUp, MemoryUp and EnergyUp."""

from typing import Any

import pytest

from finegauge.campaign.axes import Result
from finegauge.campaign.gains import DIMENSIONS, JOULES, PROCESSOR_S, compare_results, gains_over
from finegauge.profile import Breakdown, Profile, Source
from finegauge.run.run import Run
from finegauge.store.document import Facts, facts_in, profile_document

RUN = Run(model="llama-2-7b", method="lora", gpu="A40")


def facts(**known: Any) -> Facts:
    return facts_in(profile_document(Profile(run=RUN, source=Source("measured", "a test"), **known)))


def result(key: str, labels: dict[str, str], found: Facts) -> Result:
    def unread() -> Profile:
        raise AssertionError("a comparison reads no profile")

    return Result(key, labels, "measured", 0, found, unread)


def profile(
    step_s: float, memory: float = 8.0, joules: float | None = 6.0, *, steps: int = 0, sequences: float = 1.0
) -> Facts:
    return facts(
        step_time_s=Breakdown.of(forward=step_s),
        step_times_s=tuple(step_s * (1 + 0.01 * (n % 3)) for n in range(steps)),
        step_sequences=sequences,
        peak_memory_bytes=Breakdown.of(weights=memory),
        step_energy_j=Breakdown({} if joules is None else {("device",): joules}),
    )


def test_ratios_are_of_the_baseline_over_the_other() -> None:
    (gain,) = gains_over([profile(4.0)], {"other": [profile(2.0, 16.0, 3.0)]})
    assert gain.ratios == {"SpeedUp": 2.0, "MemoryUp": 0.5, "EnergyUp": 2.0}
    assert [gain.improves(name) for name in DIMENSIONS] == [True, False, True]


def test_a_larger_batch_gains_nothing_by_itself() -> None:
    (gain,) = gains_over([profile(1.0)], {"twice": [profile(2.0, joules=12.0, sequences=2.0)]})
    assert gain.ratios == {"SpeedUp": 1.0, "MemoryUp": 1.0, "EnergyUp": 1.0}
    assert not gain.improves_all


def test_what_is_not_known_is_no_gain() -> None:
    (gain,) = gains_over([profile(2.0, joules=None)], {"other": [profile(1.0, 4.0, None)]})
    assert gain.ratios["EnergyUp"] is None
    assert gain.improves_all  # of those that are known


def busy(found: Facts, processor_s: float, *, on_gpu: bool = False) -> Facts:
    return found._replace(processor_s=processor_s, is_processor=not on_gpu)


def test_processor_time_stands_for_joules_that_no_meter_read() -> None:
    base, other = busy(profile(2.0, joules=None), 6.0), busy(profile(1.0, joules=None, sequences=2.0), 4.0)
    (gain,) = gains_over([base], {"other": [other]})
    assert (gain.ratios["EnergyUp"], gain.energy_by) == (3.0, PROCESSOR_S)


def test_processor_time_stands_neither_beside_joules_nor_for_a_gpu() -> None:
    counted, not_counted = busy(profile(2.0), 6.0), busy(profile(1.0, joules=None), 4.0)
    on_gpu = busy(profile(1.0, joules=None), 4.0, on_gpu=True)
    found = gains_over([counted], {"one": [counted], "other": [not_counted]})
    assert [(gain.ratios["EnergyUp"], gain.energy_by) for gain in found] == [(1.0, JOULES), (None, JOULES)]
    (gain,) = gains_over([on_gpu], {"other": [not_counted]})
    assert gain.ratios["EnergyUp"] is None


def test_measured_ratios_carry_an_interval_that_decides() -> None:
    base = [profile(1.0, steps=9), profile(1.3, steps=9)]
    (close, far) = gains_over(
        base, {"close": [profile(1.05, steps=9)] * 2, "far": [profile(0.5, steps=9)] * 2}
    )
    assert close.ratios["SpeedUp"] is not None
    low, high = close.intervals["SpeedUp"].of(close.ratios["SpeedUp"])
    assert low < 1.0 < close.ratios["SpeedUp"] < high
    assert not close.improves("SpeedUp")
    assert far.improves("SpeedUp")


def test_a_run_without_an_end_has_no_ratio() -> None:
    failed = facts(outcome="out_of_memory", reason="full")
    (gain,) = gains_over([profile(1.0)], {"other": [failed]})
    assert set(gain.ratios.values()) == {None}
    assert (gain.outcome, gain.reason) == ("out_of_memory", "full")


def test_a_campaign_is_compared_at_every_point_of_its_other_axes() -> None:
    speeds = (("baseline", 2.0, 8.0), ("fast", 1.0, 16.0), ("small", 4.0, 4.0), ("bad", 4.0, 9.0))
    results = [
        result(f"{switch}{phase}", {"switch": switch, "phase": phase}, profile(step_s, memory))
        for phase in ("sft", "dpo")
        for switch, step_s, memory in speeds
    ]
    found = compare_results(results)
    assert [one.labels for one in found] == [{"phase": "sft"}, {"phase": "dpo"}]
    assert [gain.name for gain in found[0].ranking("SpeedUp")] == ["fast", "small", "bad"]
    assert found[0].ranking("MemoryUp")[0].name == "small"
    assert {gain.name for gain in found[0].front()} == {"fast", "small"}


def test_without_a_baseline_there_is_nothing_to_compare() -> None:
    assert compare_results([result("a", {"switch": "lora"}, profile(1.0))]) == []


@pytest.mark.parametrize("dimension", DIMENSIONS)
def test_the_baseline_against_itself_is_one(dimension: str) -> None:
    (gain,) = gains_over([profile(1.5)], {"same": [profile(1.5)]})
    assert gain.ratios[dimension] == 1.0
