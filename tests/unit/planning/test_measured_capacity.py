"""The largest batch is found in at most four trials, none of them certain to run out of memory."""

from collections.abc import Callable

import pytest

from finegauge.planning.capacity import measured_max_micro_batch_size
from finegauge.profile import Breakdown, Estimator, Interval, Profile, Source
from finegauge.run.run import Run

RUN = Run(model="llama-2-7b", method="lora")
CAPACITY = 1000.0


def predicting(per_sequence: float, base: float = 100.0) -> Estimator:
    def predict(run: Run) -> Profile:
        memory = Breakdown.of(all=base + per_sequence * run.micro_batch_size)
        source = Source("predicted", "test", memory_interval=Interval(0.8, 1.2))
        return Profile(run=run, source=source, peak_memory_bytes=memory, device_memory_bytes=memory)

    return predict


def measuring(most: int, used: Callable[[int], float], tried: list[int]) -> Estimator:
    def measure(run: Run) -> Profile:
        tried.append(run.micro_batch_size)
        fits = run.micro_batch_size <= most
        return Profile(
            run=run,
            source=Source("measured", "test"),
            outcome="completed" if fits else "out_of_memory",
            peak_memory_bytes=Breakdown.of(all=used(run.micro_batch_size)) if fits else Breakdown({}),
        )

    return measure


@pytest.mark.parametrize("per_sequence", [9.0, 10.0, 11.0, 30.0, 290.0])
@pytest.mark.parametrize("true_ratio", [0.85, 0.95, 1.0, 1.05, 1.15])
def test_the_border_is_found_in_four_trials(per_sequence: float, true_ratio: float) -> None:
    def used(size: int) -> float:
        return true_ratio * (100.0 + per_sequence * size)

    most = max(size for size in range(200) if used(size) <= CAPACITY)
    tried: list[int] = []
    found = measured_max_micro_batch_size(
        RUN, measuring(most, used, tried), predicting(per_sequence), capacity_bytes=CAPACITY
    )
    assert len(tried) == found.capacity.num_probes <= 4
    assert max(tried) < found.bounds.high
    assert found.bounds.low <= most < found.bounds.high
    assert found.capacity.value <= most
    assert most - found.capacity.value <= found.untried
    if true_ratio <= 1.0:
        assert (found.capacity.value, found.untried) == (most, 0)


def test_the_last_trial_is_of_what_surely_fits() -> None:
    tried: list[int] = []
    found = measured_max_micro_batch_size(
        RUN, measuring(73, lambda n: 0.0, tried), predicting(10.0), capacity_bytes=CAPACITY
    )
    assert (len(tried), tried[-1], found.capacity.value) == (4, found.bounds.low, 73)
    assert found.untried > 0


def test_what_surely_does_not_fit_is_not_launched() -> None:
    tried: list[int] = []
    found = measured_max_micro_batch_size(
        RUN, measuring(9, lambda n: 0.0, tried), predicting(100.0, base=5000.0), capacity_bytes=CAPACITY
    )
    assert tried == []
    assert found.capacity.value == 0
    assert found.capacity.first_that_fails is not None


def test_a_trial_without_an_answer_ends_the_search() -> None:
    def broken(run: Run) -> Profile:
        return Profile(run=run, source=Source("measured", "test"), outcome="failed", reason="broken")

    found = measured_max_micro_batch_size(RUN, broken, predicting(10.0), capacity_bytes=CAPACITY)
    assert [trial.outcome for trial in found.trials] == ["failed"]
    assert found.capacity.value == 0


def test_the_limit_may_be_the_answer() -> None:
    tried: list[int] = []
    found = measured_max_micro_batch_size(
        RUN, measuring(99, lambda n: 10.0 * n, tried), predicting(10.0), capacity_bytes=CAPACITY, limit=8
    )
    assert (found.capacity.value, found.capacity.at_limit, found.untried) == (8, True, 0)
    assert tried == [8]


def test_trials_keep_the_answers_to_a_prompt_together() -> None:
    tried: list[int] = []
    grouped = RUN.replace(phase="grpo", max_new_tokens=16)
    found = measured_max_micro_batch_size(
        grouped, measuring(75, lambda n: 100.0 + 10.0 * n, tried), predicting(10.0), capacity_bytes=CAPACITY
    )
    assert (found.capacity.value, found.untried) == (72, 0)
    assert all(size % 8 == 0 for size in (*tried, *found.bounds))


@pytest.mark.parametrize("most", [0, 1, 60, 71])
def test_trials_that_measure_no_memory_still_close_in(most: int) -> None:
    tried: list[int] = []
    found = measured_max_micro_batch_size(
        RUN, measuring(most, lambda n: 0.0, tried), predicting(10.0), capacity_bytes=CAPACITY, most_trials=16
    )
    assert (found.capacity.value, found.untried) == (most, 0)
