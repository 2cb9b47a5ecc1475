"""The average and the longest micro-batch of a file's samples, against their batches counted one by one."""

from typing import Any

import pytest

from finegauge.data import batch_shape
from finegauge.data.batch_shape import epochs_drawn, shape_of_samples
from finegauge.data.packing import simulate
from finegauge.errors import FieldError
from finegauge.run.run import Run
from tests.unit.data.samples import lengths_of

TOKENS = [5 + (7 * n * n) % 90 for n in range(203)]


def run_of(**fields: Any) -> Run:
    common = {"model": "llama-2-7b", "method": "lora", "dataset": "mine.jsonl", "seq_len": 64}
    return Run(**{**common, "micro_batch_size": 4, "gradient_accumulation_steps": 3, **fields})


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"num_gpus": 2},
        {"num_gpus": 3, "group_by_length": True},
        {"padding": "free"},
        {"padding": "max", "validation_fraction": 0.1},
        {"packing": True},
        {"packing": True, "padding": "free", "framework": "TRL", "over_length": "split"},
        {"packing": True, "padding": "free", "framework": "torchtune", "num_gpus": 2},
    ],
)
def test_steps_times_a_step_is_the_epoch(fields: dict[str, Any]) -> None:
    run = run_of(**fields)
    found, batches = shape_of_samples(run, lengths_of(TOKENS)), simulate(TOKENS, run)
    micro_batches = batches.steps * run.gradient_accumulation_steps * run.data_parallel
    assert found.steps_per_epoch == batches.steps
    assert found.tokens * micro_batches == pytest.approx(int(batches.tokens.sum()))
    assert found.real_tokens * micro_batches == pytest.approx(int(batches.real_tokens.sum()))
    assert found.tokens_square * micro_batches == pytest.approx(int(batches.pairs.sum()))
    assert found.samples * micro_batches == pytest.approx(batches.cut.num_samples)
    assert found.longest_tokens == int(batches.tokens.max())
    assert int(batches.step_tokens.sum()) == int(batches.tokens.sum())
    assert int(batches.step_real_tokens.sum()) == int(batches.real_tokens.sum())
    assert 0.0 <= batches.padding_fraction < 1.0


def test_no_padding_means_no_padding() -> None:
    batches = simulate(TOKENS, run_of(padding="free"))
    assert batches.padding_fraction == 0.0
    assert int(batches.real_tokens.sum()) == sum(min(64, tokens) for tokens in TOKENS)


def test_later_epochs_meet_longer_batches() -> None:
    run = run_of(padding="free", epochs=5)
    longest = [int(simulate(TOKENS, run, epoch=epoch).tokens.max()) for epoch in range(5)]
    assert len(set(longest)) > 1
    found = shape_of_samples(run, lengths_of(TOKENS))
    assert (found.longest_tokens, found.steps_total) == (max(longest), 5 * 17)
    assert shape_of_samples(run.replace(epochs=1), lengths_of(TOKENS)).longest_tokens == longest[0]


def test_only_epochs_that_are_begun_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    known = lengths_of(TOKENS)
    assert epochs_drawn(run_of(epochs=2.5), known) == 3
    assert epochs_drawn(run_of(max_steps=18), known) == 2
    monkeypatch.setattr(batch_shape, "SAMPLES_DRAWN", 300)
    assert epochs_drawn(run_of(epochs=2.5), known) == 1


def test_what_became_of_the_samples_is_told() -> None:
    source = shape_of_samples(run_of(over_length="drop", validation_fraction=0.1), lengths_of(TOKENS)).source
    assert source.startswith("mine.jsonl: ")
    assert "21 held out" in source
    assert "dropped" in source
    assert "padded to the longest of a micro-batch of 4 and to a multiple of 8" in source


def test_too_few_samples_for_a_batch_are_refused() -> None:
    run = run_of(framework="torchtune", micro_batch_size=8)
    with pytest.raises(FieldError, match=r"mine.jsonl: 3 samples .* make no full batch"):
        shape_of_samples(run, lengths_of([5, 6, 7]))


def test_gradually_more_ranks_never_train_fewer_tokens() -> None:
    for ranks in (1, 2, 3, 5):
        batches = simulate(TOKENS, run_of(num_gpus=ranks))
        trained = {one.sample for n in range(batches.number) for row in batches.stretches(n) for one in row}
        assert trained == set(range(len(TOKENS)))
