"""Who waits for whom: order statistics by hand, and what they cost a step."""

from pathlib import Path
from typing import Any

import pytest

from finegauge.data.batch_shape import shape
from finegauge.prediction.predictor import predict
from finegauge.prediction.time import expected_largest, slowest_extents
from finegauge.profile import Profile
from finegauge.run.run import Run


@pytest.fixture
def two_lengths(tmp_path: Path) -> str:
    """Return a data set in which every other sample has 1,000 tokens, the rest 100."""
    path = tmp_path / "lengths.csv"
    path.write_text("length,count\n100,500\n1000,500\n", "utf-8")
    return str(path)


def run(dataset: str, **fields: Any) -> Run:
    base: dict[str, Any] = {
        "model": "llama-2-7b",
        "method": "lora",
        "gpu": "A100-SXM4-80GB",
        "dataset": dataset,
        "pad_to_multiple_of": 1,
    }
    return Run(**{**base, **fields})


def waiting(profile: Profile) -> float:
    return profile.step_time_s.parts.get(("communication", "waits for the slowest rank"), 0.0)


@pytest.mark.parametrize(("number", "mean"), [(1, 0.0), (2, 0.56419), (8, 1.42360), (100, 2.50759)])
def test_the_largest_of_normal_numbers(number: int, mean: float) -> None:
    assert expected_largest(number) == pytest.approx(mean, abs=2e-5)


def test_the_slowest_of_ranks_has_the_longest_of_all_their_samples(two_lengths: str) -> None:
    one = run(two_lengths, num_gpus=4, micro_batch_size=2)
    chance = 1 - 0.5**8  # that one of eight samples is long
    assert slowest_extents(one, shape(one)).tokens == pytest.approx(2 * (100 + 900 * chance))
    assert shape(one).tokens == pytest.approx(2 * (100 + 900 * 0.75))


def test_sums_of_many_micro_batches_are_more_alike(two_lengths: str) -> None:
    """With DDP ranks meet once per step; with FSDP in every micro-batch."""

    def beyond(steps: int, **fields: Any) -> float:
        one = run(two_lengths, num_gpus=8, gradient_accumulation_steps=steps, **fields)
        batch = shape(one)
        return slowest_extents(one, batch).tokens / batch.tokens - 1

    deviation = 450 / 550
    assert beyond(16) == pytest.approx(expected_largest(8) / 4 * deviation, rel=1e-6)
    assert beyond(64) == pytest.approx(beyond(16) / 2, rel=1e-6)
    assert beyond(64, sharding="fsdp") == beyond(1) > 0.8


def test_joined_samples_vary_as_their_sum(two_lengths: str) -> None:
    one = run(two_lengths, num_gpus=8, micro_batch_size=16, padding="free")
    assert slowest_extents(one, shape(one)).tokens == pytest.approx(
        16 * 550 + expected_largest(8) * 4 * 450, rel=1e-6
    )


@pytest.mark.parametrize("fields", [{"packing": True}, {"padding": "max"}, {"group_by_length": True}])
def test_nobody_waits_where_all_are_as_long(two_lengths: str, fields: dict[str, Any]) -> None:
    assert waiting(predict(run(two_lengths, num_gpus=8, **fields))) == 0.0


def test_waiting_shows_in_the_step(two_lengths: str) -> None:
    alone, eight = (predict(run(two_lengths, num_gpus=n, sharding="zero2")) for n in (1, 8))
    assert waiting(alone) == 0.0
    assert waiting(eight) > 0.3 * eight.step_time_s["backward"]
    constant = predict(run(two_lengths, num_gpus=8, padding="max", sharding="zero2"))
    assert eight.step_time_s.total < 1.05 * constant.step_time_s.total  # never slower than the longest


def test_experts_are_never_quite_even() -> None:
    def waits(**fields: Any) -> float:
        one = Run(model="mixtral-8x7b", method="full", gpu="H100", num_gpus=8, sharding="fsdp", **fields)
        return waiting(predict(one))

    assert waits() == 0.0
    few, many = waits(expert_parallel=8, seq_len=1024), waits(expert_parallel=8, seq_len=4096)
    assert 0 < few < many < 4 * few
