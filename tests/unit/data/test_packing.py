"""Packing, held against each framework's way written down again, plainly and slowly."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finegauge.data import packing
from finegauge.data.packing import Packs, Rows, of_samples, packed
from finegauge.run.phases import Recipe
from finegauge.run.run import Run

ROOM = 40
LENGTHS = st.lists(st.integers(1, ROOM), min_size=1, max_size=60)


def recipe(framework: str = "", **fields: Any) -> Recipe:
    common = {"model": "llama-2-7b", "method": "lora", "seq_len": ROOM, "packing": True}
    return Recipe.of(Run(**{**common, "framework": framework, **fields}))


def rows_of(lengths: list[int], recipe: Recipe) -> Rows:
    return packed(of_samples(lengths, recipe)[0], recipe)


def stretches(rows: Rows) -> list[list[tuple[int, int, int]]]:
    """Return (sample, first token, tokens) of what stands in each row."""
    pieces = list(zip(*(column.tolist() for column in rows.pieces), strict=True))
    spans = zip(rows.offsets[:-1], rows.offsets[1:], strict=True)
    return [[(sample, start, length) for sample, start, length in pieces[a:b]] for a, b in spans]


def tightest_pack(lengths: list[int], room: int) -> Packs:
    """Best fit decreasing: the longest first, into the pack in which the least is left over."""
    packs: Packs = []
    for sample in sorted(range(len(lengths)), key=lambda n: -lengths[n]):
        left = [room - sum(lengths[n] for n in pack) - lengths[sample] for pack in packs]
        fitting = [each for each in left if each >= 0]
        if fitting:
            packs[left.index(min(fitting))].append(sample)
        else:
            packs.append([sample])
    return packs


def fullest_knapsack(lengths: list[int], room: int) -> Packs:
    """LLaMA-Factory: one pack after the other, each time with the longest sample that still fits.

    Of samples of one length the last is taken, as its table of lengths gives back the latest entry.
    """
    waiting, packs = list(range(len(lengths))), []
    while waiting:
        pack: list[int] = []
        while fitting := [n for n in waiting if lengths[n] <= room - sum(lengths[m] for m in pack)]:
            pack.append(max(fitting, key=lambda n: (lengths[n], n)))
            waiting.remove(pack[-1])
        packs.append(pack)
    return packs


def first_pack(lengths: list[int], room: int, most: int) -> Packs:
    """Axolotl: in order, into the first pack that has the room and is not full of samples."""
    packs: Packs = []
    for sample, length in enumerate(lengths):
        for pack in packs:
            if len(pack) < most and sum(lengths[n] for n in pack) + length <= room:
                pack.append(sample)
                break
        else:
            packs.append([sample])
    return packs


def same_room(ours: Packs, theirs: Packs, lengths: list[int]) -> bool:
    """Return whether two packings hold the same lengths, pack by pack."""
    return [[lengths[n] for n in pack] for pack in ours] == [[lengths[n] for n in pack] for pack in theirs]


@given(LENGTHS)
@settings(max_examples=60, deadline=None)
def test_best_fit_decreasing(lengths: list[int]) -> None:
    ours, theirs = packing.best_fit_decreasing(np.array(lengths), ROOM), tightest_pack(lengths, ROOM)
    # Where two packs leave as little, TRL takes the one that has left it longer, not the older one.
    assert sorted(sum(lengths[n] for n in pack) for pack in ours) == sorted(
        sum(lengths[n] for n in pack) for pack in theirs
    )
    assert sorted(n for pack in ours for n in pack) == list(range(len(lengths)))


@given(LENGTHS)
@settings(max_examples=60, deadline=None)
def test_knapsack(lengths: list[int]) -> None:
    assert packing.knapsack(np.array(lengths), ROOM) == fullest_knapsack(lengths, ROOM)


@given(LENGTHS, st.integers(1, 6))
@settings(max_examples=100, deadline=None)
def test_first_fit(lengths: list[int], most: int) -> None:
    assert packing.first_fit(np.array(lengths), ROOM, most) == first_pack(lengths, ROOM, most)


@given(LENGTHS)
@settings(max_examples=60, deadline=None)
def test_next_fit(lengths: list[int]) -> None:
    packs = packing.next_fit(np.array(lengths), ROOM)
    assert [n for pack in packs for n in pack] == list(range(len(lengths)))
    sums = [sum(lengths[n] for n in pack) for pack in packs]
    assert max(sums) <= ROOM
    assert all(total + lengths[after[0]] > ROOM for total, after in zip(sums, packs[1:], strict=False))


@given(st.lists(st.integers(1, 150), min_size=1, max_size=40))
@settings(max_examples=60, deadline=None)
def test_wrapped_rows_are_the_text_cut(lengths: list[int]) -> None:
    rows = stretches(rows_of(lengths, recipe(packing_strategy="wrapped")))
    text = [(sample, token) for sample, length in enumerate(lengths) for token in range(length)]
    ours = [[(s, a + k) for s, a, n in row for k in range(n)] for row in rows]
    assert ours == [text[start : start + ROOM] for start in range(0, len(text), ROOM)]


def test_llama_factory_packs_a_thousand_at_a_time_and_keeps_one_token_free() -> None:
    lengths = [3 + (17 * n) % 60 for n in range(2500)]
    asked = recipe("LLaMA-Factory", over_length="truncate")
    cut = [min(length, ROOM - 1) for length in lengths]
    expected = [
        [(first + n, 0, cut[first + n]) for n in pack]
        for first in (0, 1000, 2000)
        for pack in fullest_knapsack(cut[first : first + 1000], ROOM - 1)
    ]
    assert stretches(rows_of(lengths, asked)) == expected


def test_llama_factory_drops_the_rest_of_wrapped_text() -> None:
    lengths = [70, 30, 15]  # 115 tokens: two full rows of 40, and 35 that are left
    rows = stretches(rows_of(lengths, recipe("LLaMA-Factory", packing_strategy="wrapped")))
    assert rows == [[(0, 0, 40)], [(0, 40, 30), (1, 0, 10)]]


def test_torchtune_looks_at_the_last_pack_alone() -> None:
    rows = stretches(rows_of([30, 20, 10, 15], recipe("torchtune")))
    assert [[length for _, _, length in row] for row in rows] == [[30], [20, 10], [15]]


def test_axolotl_packs_a_whole_micro_batch_with_flash_attention() -> None:
    fields: dict[str, Any] = {"micro_batch_size": 3, "over_length": "drop"}
    one, three = recipe("Axolotl", **fields), recipe("Axolotl", attention="flash", **fields)
    assert (one.row_len, one.micro_batch_size, three.row_len, three.micro_batch_size) == (40, 3, 120, 1)
    assert [len(row) for row in stretches(rows_of([40, 40, 39, 41], three))] == [3]
    assert one.batching.samples_per_pack == 200


@pytest.mark.parametrize(
    ("fate", "kept", "counts"),
    [
        ("truncate", [(0, 0, 30), (1, 0, 40), (2, 0, 40)], (3, 0, 2, 0, 61)),
        ("drop", [(0, 0, 30)], (1, 2, 0, 0, 141)),
        (
            "split",
            [(0, 0, 30), (1, 0, 40), (1, 40, 1), (2, 0, 40), (2, 40, 40), (2, 80, 20)],
            (3, 0, 0, 2, 0),
        ),
    ],
)
def test_over_long_samples(fate: str, kept: list[tuple[int, int, int]], counts: tuple[int, ...]) -> None:
    pieces, cut = of_samples([30, 41, 100], recipe(packing=False, over_length=fate))
    assert list(zip(*(column.tolist() for column in pieces), strict=True)) == kept
    assert (cut.num_samples, cut.num_dropped, cut.num_cut, cut.num_split, cut.lost_tokens) == counts


def test_a_validation_set_is_drawn_as_datasets_draws_it() -> None:
    from datasets import Dataset

    samples = Dataset.from_dict({"n": list(range(101))})
    split = samples.train_test_split(test_size=0.1, seed=42)
    pieces, cut = of_samples([7] * 101, recipe(packing=False, validation_fraction=0.1))
    assert pieces.sample.tolist() == split["train"]["n"]
    assert (cut.num_held_out, cut.num_samples) == (len(split["test"]), len(split["train"])) == (11, 90)


def test_only_the_first_samples_are_used() -> None:
    pieces, cut = of_samples([5, 6, 7, 8], recipe(packing=False, num_samples=3))
    assert (pieces.sample.tolist(), cut.num_samples) == ([0, 1, 2], 3)
