"""The batches of one epoch: every step's tokens, padding and samples, as the framework would make them.

What is not known beforehand is only the seed; the frameworks' own default is taken. Where a sampler
draws from torch's global generator (grouping by length, Axolotl's packing), the order is one of those
possible: number and size of the batches hold, their order need not.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from finegauge.data import packing as orders
from finegauge.data.packing import Cut, Ints, Rows, of_samples, one_piece_rows, packed
from finegauge.data.recipe import TRAINER_SEED, Recipe

if TYPE_CHECKING:
    from finegauge.run.run import Run


class Stretch(NamedTuple):
    """A stretch of one sample in a batch."""

    sample: int  # place in the data set, from 0
    start: int
    length: int


@dataclass(frozen=True)
class Batches:
    """The micro-batches of one epoch, all ranks': those of a step one after the other, rank by rank."""

    recipe: Recipe
    cut: Cut
    rows: Rows
    dealt: orders.Dealt
    tokens: Ints  # computed in each micro-batch, padding included
    real_tokens: Ints
    pairs: Ints  # sum over the attended sequences of length²
    longest: Ints  # the longest sequence, its padding included

    @property
    def number(self) -> int:
        """Return how many micro-batches there are, of all ranks."""
        return len(self.tokens)

    @property
    def per_step(self) -> int:
        """Return the micro-batches of a full step, all ranks together."""
        return self.recipe.accumulation * self.recipe.ranks

    @property
    def steps(self) -> int:
        """Return the optimizer steps of the epoch; what is left for an incomplete one makes one too."""
        return -(-self.number // self.per_step)

    @cached_property
    def step_tokens(self) -> Ints:
        """Return the tokens that each step computes, padding included, all ranks together."""
        return sums(self.tokens, np.append(np.arange(0, self.number, self.per_step), self.number))

    @cached_property
    def step_real_tokens(self) -> Ints:
        """Return the tokens of each step that are not padding."""
        return sums(self.real_tokens, np.append(np.arange(0, self.number, self.per_step), self.number))

    @property
    def padding_fraction(self) -> float:
        """Return the share of all computed tokens that is padding."""
        computed = int(self.tokens.sum())
        return 1.0 - int(self.real_tokens.sum()) / computed if computed else 0.0

    def step_of(self, batch: int) -> int:
        """Return the step, from 0, that micro-batch number `batch` belongs to."""
        return batch // self.per_step

    def stretches(self, batch: int) -> list[list[Stretch]]:
        """Return what stands in each row of micro-batch number `batch`."""
        chosen = self.dealt.rows[self.dealt.offsets[batch] : self.dealt.offsets[batch + 1]].tolist()
        return [self._row(row) for row in chosen]

    def _row(self, row: int) -> list[Stretch]:
        places = np.arange(self.rows.offsets[row], self.rows.offsets[row + 1])
        columns = (column.tolist() for column in self.rows.pieces.at(places))
        return [Stretch(*each) for each in zip(*columns, strict=True)]


def simulate(
    lengths: Sequence[int],
    run: "Run",
    *,
    seed: int = TRAINER_SEED,
    epoch: int = 0,
    drop_last: bool | None = None,
) -> Batches:
    """Return the batches that `run` makes in one epoch of samples that are `lengths` tokens long.

    Args:
        lengths: Tokens of every sample, in the order of the data set, before any cut-off.
        run: Whose framework, cut-off, packing, padding and ranks decide.
        seed: Of the trainer, which shuffles.
        epoch: From 0; every epoch is shuffled anew.
        drop_last: Whether an incomplete batch at the end is left out; None: as the framework does unasked.
    """
    recipe = Recipe.of(run)
    if drop_last is not None:
        recipe = recipe._replace(batching=recipe.batching._replace(drops_batches=drop_last))
    rows, cut = rows_of(lengths, recipe, seed=seed, epoch=epoch)
    return batches_of(rows, cut, recipe, seed=seed, epoch=epoch)


def rows_of(lengths: Sequence[int], recipe: Recipe, *, seed: int, epoch: int) -> tuple[Rows, Cut]:
    """Return the rows, packed or not, that samples of these lengths make, before any is shuffled.

    Only Axolotl packs anew in every epoch.
    """
    pieces, cut = of_samples(lengths, recipe)
    if not recipe.packing_strategy:
        return one_piece_rows(pieces), cut
    if recipe.batching.packs_after_shuffling:
        pieces = pieces.at(orders.shuffled(pieces.number, seed + epoch))
    return packed(pieces, recipe), cut


def batches_of(rows: Rows, cut: Cut, recipe: Recipe, *, seed: int, epoch: int) -> Batches:
    """Return the batches of rows, shuffled for one epoch and dealt to the ranks."""
    lengths = sums(rows.pieces.length, rows.offsets)
    custom, batch = recipe.batching, recipe.micro_batch_size
    if recipe.packing_strategy and custom.packs_after_shuffling:
        order = np.arange(rows.number)
    elif recipe.group_by_length:
        order = orders.grouped_by_length(lengths, batch * recipe.accumulation, seed + epoch)
    else:
        order = orders.shuffled(rows.number, seed + epoch)
    deal = orders.dealt_by_samples if custom.deals_samples else orders.dealt_by_batches
    dealt = deal(order, batch, recipe.ranks, drops_last=custom.drops_batches)
    if custom.drops_steps:
        whole = (len(dealt.offsets) - 1) // (recipe.accumulation * recipe.ranks)
        offsets = dealt.offsets[: whole * recipe.accumulation * recipe.ranks + 1]
        dealt = orders.Dealt(dealt.rows[: offsets[-1]], offsets)
    return _measured(rows, lengths, cut, dealt, recipe)


def _measured(rows: Rows, lengths: Ints, cut: Cut, dealt: orders.Dealt, recipe: Recipe) -> Batches:
    own = lengths[dealt.rows]
    real, per_batch = sums(own, dealt.offsets), np.diff(dealt.offsets)
    if recipe.joins_rows:
        multiple = recipe.multiple if recipe.batching.joined_multiple else 1
        tokens = -(-real // multiple) * multiple
        row = maxima(own, dealt.offsets)
    else:
        row = _row_lengths(maxima(own, dealt.offsets), recipe)
        tokens = row * per_batch
    if recipe.padding == "free":
        squares = sums(rows.pieces.length**2, rows.offsets)
        pairs = sums(squares[dealt.rows], dealt.offsets)
    else:
        pairs = tokens * row
    return Batches(recipe, cut, rows, dealt, tokens, real, pairs, row)


def _row_lengths(longest: Ints, recipe: Recipe) -> Ints:
    filled = recipe.batching.fills_packs if recipe.packing_strategy else recipe.padding == "max"
    if filled:
        longest = np.full_like(longest, recipe.row_len)
        multiple = recipe.multiple if recipe.batching.full_multiple else 1
    else:
        multiple = recipe.multiple
    return -(-longest // multiple) * multiple


def sums(values: Ints, offsets: Ints) -> Ints:
    """Return the sum of `values` between each offset and the next."""
    running = np.concatenate([[0], np.cumsum(values)])
    return np.asarray(running[offsets[1:]] - running[offsets[:-1]], dtype=np.int64)


def maxima(values: Ints, offsets: Ints) -> Ints:
    """Return the largest of `values` between each offset and the next."""
    return np.maximum.reduceat(values, offsets[:-1]) if len(offsets) > 1 else np.zeros(0, dtype=np.int64)
