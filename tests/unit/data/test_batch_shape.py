"""What a micro-batch holds, for each way of padding and packing."""

from typing import Any

import pytest

from finegauge.data.batch_shape import shape
from finegauge.run.run import Run


def run(**fields: Any) -> Run:
    return Run(
        **{"model": "mixtral-8x7b", "method": "qlora", "dataset": "math_14k", "seq_len": 1024, **fields}
    )


def test_without_a_data_set_every_sequence_is_seq_len_long() -> None:
    batch = shape(run(dataset=None, micro_batch_size=3))
    assert (batch.tokens, batch.tokens_square, batch.longest_tokens) == (3072, 3 * 1024**2, 3072)
    assert (batch.steps_per_epoch, batch.steps_total) == (None, None)
    assert "no lengths at hand" in batch.source
    assert shape(run(dataset=None, max_steps=7)).steps_total == 7


def test_padded_to_the_longest() -> None:
    batch = shape(run(micro_batch_size=2, epochs=10))
    assert batch.padded_len == pytest.approx(226.13, abs=0.01)
    assert batch.tokens == pytest.approx(452.3, abs=0.1)
    assert batch.tokens_square > 2 * batch.padded_len**2  # E[max²] exceeds E[max]²
    assert batch.real_tokens == pytest.approx(2 * 187.23, abs=0.01)
    assert (batch.longest_len, batch.longest_tokens) == (1024, 2048)
    assert (batch.num_samples, batch.steps_per_epoch, batch.steps_total) == (13_921, 6_961, 69_610)


def test_padded_to_the_cut_off() -> None:
    batch = shape(run(padding="max", micro_batch_size=2))
    assert (batch.tokens, batch.samples, batch.longest_len) == (2048, 2, 1024)
    assert batch.real_tokens == pytest.approx(2 * 187.23, abs=0.01)


def test_joined_without_padding() -> None:
    batch = shape(run(padding="free", micro_batch_size=8))
    assert batch.tokens == batch.real_tokens == pytest.approx(8 * 187.23, abs=0.02)
    assert batch.longest_len == 1024
    assert batch.tokens < batch.longest_tokens < 8 * 1024
    assert shape(run(padding="free")).longest_tokens == 1024


def test_packed_isolated_and_not() -> None:
    mixed, isolated = (
        shape(run(packing=True, seq_len=2048)),
        shape(run(packing=True, padding="free", seq_len=2048)),
    )
    assert mixed.tokens == isolated.tokens == 2048
    assert mixed.samples == pytest.approx(13_921 / 1284)
    assert mixed.tokens_square == 2048**2 > isolated.tokens_square
    assert mixed.steps_per_epoch == 1284
    assert 0.9 * mixed.tokens < mixed.real_tokens <= mixed.tokens


def test_steps_count_ranks_and_accumulation() -> None:
    batch = shape(
        run(num_samples=1000, micro_batch_size=4, gradient_accumulation_steps=8, num_gpus=4, epochs=2.5)
    )
    assert batch.steps_per_epoch == 8  # 63 micro-batches a rank
    assert batch.steps_total == 20


def test_a_longer_cut_off_never_shortens() -> None:
    tokens = [shape(run(seq_len=cut, micro_batch_size=4)).tokens for cut in (64, 256, 1024, 4096)]
    assert tokens == sorted(tokens)


def test_packing_again_keeps_how_rows_are_attended() -> None:
    packed = Run(model="llama-2-7b", method="lora", packing=True, padding="free", dataset="math_14k")
    assert packed.replace(packing=True).padding == "free"
    padded = Run(model="llama-2-7b", method="lora", padding="longest", dataset="math_14k")
    assert padded.replace(packing=True).padding == "max"
