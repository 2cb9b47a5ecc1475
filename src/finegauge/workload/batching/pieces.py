"""What is trained of a data set's samples: held out, dropped, cut off or split, before any is batched."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from finegauge.workload.batching.recipe import TRAINER_SEED, Recipe, num_held_out

Ints = NDArray[np.int64]


class Pieces(NamedTuple):
    """Stretches of samples, in the order in which they are trained or packed."""

    sample: Ints  # place in the data set, from 0
    start: Ints  # the first token of the stretch
    length: Ints

    def at(self, chosen: "Ints | NDArray[np.bool_]") -> "Pieces":
        """Return the pieces at the chosen places."""
        return Pieces(self.sample[chosen], self.start[chosen], self.length[chosen])

    @property
    def number(self) -> int:
        """Return how many there are."""
        return len(self.length)


class Cut(NamedTuple):
    """What became of the samples that are longer than the cut-off, and of the validation set."""

    num_samples: int  # that are trained, whole or in part
    num_held_out: int
    num_dropped: int
    num_cut: int
    num_split: int
    lost_tokens: int  # of dropped and cut samples


def of_samples(lengths: Sequence[int], recipe: Recipe) -> tuple[Pieces, Cut]:
    """Return what is trained of samples that are `lengths` tokens long."""
    tokens = np.asarray(lengths, dtype=np.int64)
    used = tokens[: recipe.num_samples]
    chosen = training_samples(len(used), recipe.validation_fraction)
    chosen = chosen[used[chosen] > 0]
    whole, limit = used[chosen], recipe.sample_limit
    over = whole > limit
    held_out = num_held_out(len(used), recipe.validation_fraction)
    if recipe.over_length == "drop":
        kept = chosen[~over]
        pieces = Pieces(kept, np.zeros_like(kept), used[kept])
        cut = Cut(len(kept), held_out, int(over.sum()), 0, 0, int(whole[over].sum()))
    elif recipe.over_length == "split":
        times = -(-whole // limit)
        first = np.repeat(np.cumsum(times) - times, times)
        start = (np.arange(len(first)) - first) * limit
        pieces = Pieces(np.repeat(chosen, times), start, np.minimum(limit, np.repeat(whole, times) - start))
        cut = Cut(len(chosen), held_out, 0, 0, int(over.sum()), 0)
    else:
        pieces = Pieces(chosen, np.zeros_like(chosen), np.minimum(whole, limit))
        cut = Cut(len(chosen), held_out, 0, int(over.sum()), 0, int((whole - pieces.length).sum()))
    return pieces, cut


def training_samples(num_samples: int, validation_fraction: float) -> Ints:
    """Return the samples that are left to train on, in order.

    A validation set is drawn as `datasets.Dataset.train_test_split` draws it with the trainer's
    seed, which shuffles what is left.
    """
    held_out = num_held_out(num_samples, validation_fraction)
    if not held_out:
        return np.arange(num_samples)
    shuffled = np.random.default_rng(TRAINER_SEED).permutation(num_samples)
    return shuffled[held_out:].astype(np.int64)
