"""In which order rows are trained, and by which rank: the samplers of torch, transformers, accelerate.

Shuffling is torch's own: the words of a Mersenne Twister seeded as `torch.Generator.manual_seed`
does, drawn by `torch.randperm`'s exchange of each place with a later one. So the batches that a
trainer with the seed would make are known without it.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from finegauge.workload.batching.pieces import Ints

MEGABATCHES = 4  # at least so many groups, where lengths are grouped
MEGABATCH_MULTIPLE = 50  # batches of one group, at most


class Dealt(NamedTuple):
    """Rows in the order of training: micro-batch by micro-batch, in each the ranks one after the other."""

    rows: Ints
    offsets: Ints  # where each rank's micro-batch begins in `rows`, and where the last ends


@lru_cache(maxsize=8)
def shuffled(number: int, seed: int) -> Ints:
    """Return `torch.randperm(number)` of a generator with this seed."""
    words = np.random.RandomState(seed & 0xFFFFFFFF).randint(0, 2**32, size=number, dtype=np.uint32)
    steps = (words[: number - 1] % np.arange(number, 1, -1, dtype=np.uint32)).tolist() if number else []
    places = list(range(number))
    for here, step in enumerate(steps):
        there = here + step
        places[here], places[there] = places[there], places[here]
    order = np.array(places, dtype=np.int64)
    order.setflags(write=False)
    return order


def grouped_by_length(lengths: Ints, batch: int, seed: int) -> Ints:
    """Return the order of transformers' LengthGroupedSampler: longest first within groups of batches.

    The group's longest sample comes first of all, so that what does not fit fails at once.
    """
    number = len(lengths)
    multiple = max(1, min(number // (batch * MEGABATCHES), MEGABATCH_MULTIPLE))
    group = multiple * batch
    order = shuffled(number, seed)
    order = order[np.lexsort((-lengths[order], np.arange(number) // group))]
    leaders = np.arange(0, number, group)
    longest = leaders[np.argmax(lengths[order[leaders]])] if number else 0
    if longest:
        order[[0, longest]] = order[[longest, 0]]
    return order


def dealt_by_batches(order: Ints, batch: int, ranks: int, *, drops_last: bool) -> Dealt:
    """Return the batches that accelerate deals to the ranks in turn.

    Several ranks all get full batches, made up from the beginning of the epoch; a single one ends
    with a short batch. What is incomplete may be dropped instead.
    """
    together = batch * ranks
    if drops_last:
        order = order[: len(order) // together * together]
    elif ranks > 1 and len(order):
        order = np.resize(order, -(-len(order) // together) * together)
    return Dealt(order, _offsets(len(order), batch))


def dealt_by_samples(order: Ints, batch: int, ranks: int, *, drops_last: bool) -> Dealt:
    """Return the batches of torch's DistributedSampler, which deals sample by sample."""
    if not len(order):
        return Dealt(order, np.zeros(1, dtype=np.int64))
    each = -(-len(order) // ranks)
    own = np.resize(order, each * ranks).reshape(each, ranks).T  # [rank, place]
    kept = each // batch * batch if drops_last else each
    full = kept // batch * batch
    body = own[:, :full].reshape(ranks, -1, batch).swapaxes(0, 1).reshape(-1)
    offsets = _offsets(len(body), batch)
    rest = own[:, full:kept]
    if rest.size:
        ends = len(body) + rest.shape[1] * np.arange(1, ranks + 1)
        return Dealt(np.concatenate([body, rest.reshape(-1)]), np.concatenate([offsets, ends]))
    return Dealt(body, offsets)


def _offsets(number: int, batch: int) -> Ints:
    """Return where batches of `batch` rows begin, and where the last ends."""
    return np.append(np.arange(0, number, batch, dtype=np.int64), number)
