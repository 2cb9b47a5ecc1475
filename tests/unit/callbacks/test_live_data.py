"""Lengths of the data in memory: counted in Arrow, chosen rows as chosen, streams left alone."""

from types import SimpleNamespace
from typing import Any

from datasets import Dataset

from finegauge.callbacks.run import UNKNOWN, data_of
from tests.unit.callbacks.tiny import tokens


def loader(dataset: Any, **collator: Any) -> Any:
    return SimpleNamespace(dataset=dataset, collate_fn=SimpleNamespace(**collator))


def test_lengths_are_counted() -> None:
    found = data_of(loader(tokens([3, 5, 3, 0])), "sft")
    assert found.pairs == ((3, 2), (5, 1))
    assert found.longest == 5
    assert found.num_samples == 4
    assert found.notes == ()


def test_chosen_rows_count_as_chosen() -> None:
    chosen = tokens([3, 5, 7]).shuffle(seed=0).select([0, 1])
    counted = dict(data_of(loader(chosen), "sft").pairs)
    assert counted == {len(row["input_ids"]): 1 for row in chosen}


def test_packed_rows_tell_the_samples_inside() -> None:
    packed = Dataset.from_list([{"input_ids": [5] * 8, "seq_lengths": [3, 5]}])
    found = data_of(loader(packed), "sft")
    assert found.pairs == ((3, 1), (5, 1))
    assert found.num_samples is None  # rows are packs, and the lengths say how many samples there are


def test_a_pair_is_two_sequences_with_the_prompt() -> None:
    pairs = Dataset.from_list([{"prompt_ids": [1, 2], "chosen_ids": [3], "rejected_ids": [4, 5, 6]}])
    found = data_of(loader(pairs), "dpo")
    assert found.pairs == ((3, 1), (5, 1))
    assert found.num_samples == 1
    judged = Dataset.from_list([{"chosen_ids": [3], "rejected_ids": [4, 5, 6]}])
    assert data_of(loader(judged), "reward").pairs == ((1, 1), (3, 1))


def test_a_plain_list_is_looked_at_row_by_row() -> None:
    rows = [{"input_ids": [1] * 4}, {"input_ids": [1] * 6}]
    assert data_of(loader(rows), "sft").pairs == ((4, 1), (6, 1))
    assert data_of(loader([1, 2, 3]), "sft").pairs == ()


def test_other_columns_and_streams_tell_nothing() -> None:
    others: tuple[Any, ...] = (
        Dataset.from_list([{"text": "a"}]),
        Dataset.from_list([{"input_ids": "a"}]),
        iter([]),
    )
    for dataset in others:
        found = data_of(loader(dataset), "sft")
        assert found.pairs == ()
        assert found.notes == (UNKNOWN,)
    assert data_of(None, "sft").pairs == ()


def test_the_collator_says_the_multiple() -> None:
    assert data_of(loader(tokens([3]), pad_to_multiple_of=8), "sft").pad_to_multiple_of == 8
    inside = SimpleNamespace(pad_to_multiple_of=16)
    assert data_of(loader(tokens([3]), data_collator=inside), "sft").pad_to_multiple_of == 16
