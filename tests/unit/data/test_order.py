"""Orders and deals, held against torch's, transformers' and accelerate's own samplers."""

from typing import Any

import numpy as np
import pytest
import torch
from accelerate.data_loader import BatchSamplerShard, SeedableRandomSampler
from torch.utils.data import BatchSampler, DistributedSampler, SequentialSampler
from transformers.trainer_pt_utils import get_length_grouped_indices

from finegauge.data.packing import Dealt, dealt_by_batches, dealt_by_samples, grouped_by_length, shuffled


def of_rank(dealt: Dealt, rank: int, ranks: int) -> list[list[int]]:
    """Return the batches of one rank."""
    spans = list(zip(dealt.offsets[:-1], dealt.offsets[1:], strict=True))
    return [dealt.rows[start:end].tolist() for start, end in spans[rank::ranks]]


@pytest.mark.parametrize(
    ("number", "seed"), [(0, 1), (1, 42), (2, 42), (17, 0), (1000, 43), (5000, 2**31 + 5)]
)
def test_the_shuffle_is_torchs(number: int, seed: int) -> None:
    drawn = torch.randperm(number, generator=torch.Generator().manual_seed(seed)).tolist()
    assert shuffled(number, seed).tolist() == drawn


def test_every_epoch_is_shuffled_as_accelerate_does() -> None:
    sampler = SeedableRandomSampler(range(100), data_seed=42)
    assert [list(sampler) for _ in range(3)] == [shuffled(100, 42 + epoch).tolist() for epoch in range(3)]


@pytest.mark.parametrize(("number", "batch"), [(1, 4), (7, 4), (100, 4), (1000, 3), (1013, 8)])
def test_grouping_is_that_of_transformers(number: int, batch: int) -> None:
    lengths = [5 + (31 * n * n) % 97 for n in range(number)]
    theirs = get_length_grouped_indices(lengths, batch, generator=torch.Generator().manual_seed(7))
    assert grouped_by_length(np.array(lengths), batch, 7).tolist() == theirs


@pytest.mark.parametrize("number", [1, 5, 12, 13, 23, 24, 25, 100])
@pytest.mark.parametrize(("batch", "ranks"), [(1, 1), (4, 1), (4, 3), (3, 2), (5, 4)])
@pytest.mark.parametrize("drop_last", [False, True])
def test_batches_are_dealt_as_accelerate_deals(
    number: int, batch: int, ranks: int, *, drop_last: bool
) -> None:
    dealt = dealt_by_batches(np.arange(number), batch, ranks, drops_last=drop_last)
    for rank in range(ranks):
        whole = BatchSampler(SequentialSampler(range(number)), batch, drop_last)
        theirs: Any = BatchSamplerShard(whole, ranks, rank) if ranks > 1 else whole
        assert of_rank(dealt, rank, ranks) == list(theirs)


@pytest.mark.parametrize("number", [1, 5, 12, 13, 25, 100])
@pytest.mark.parametrize(("batch", "ranks"), [(1, 1), (4, 1), (4, 3), (5, 4)])
@pytest.mark.parametrize("drop_last", [False, True])
def test_samples_are_dealt_as_torch_deals(number: int, batch: int, ranks: int, *, drop_last: bool) -> None:
    dealt = dealt_by_samples(np.arange(number), batch, ranks, drops_last=drop_last)
    for rank in range(ranks):
        own = DistributedSampler(range(number), ranks, rank, shuffle=False)
        assert of_rank(dealt, rank, ranks) == list(BatchSampler(own, batch, drop_last))
