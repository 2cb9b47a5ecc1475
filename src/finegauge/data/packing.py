"""Samples into rows and the batches of an epoch, as each framework does it: truncation, packing, order.

Every way is the framework's own, down to ties, so that a row holds the very samples that it would:
best fit decreasing as in Ding et al. 2024 [1] and TRL; the greedy knapsack of LLaMA-Factory, which
fills one row with the longest samples that still fit; first fit as in Axolotl; torchtune's, which
only looks at the last row; wrapped, which cuts one long text into rows.

Shuffling is torch's own: the words of a Mersenne Twister seeded as `torch.Generator.manual_seed`
does, drawn by `torch.randperm`'s exchange of each place with a later one. So the batches that a
trainer with the seed would make are known without it.

[1] Fewer Truncations Improve Language Modeling, arXiv:2404.10830

Of one epoch, every step's tokens, padding and samples are known so. What is not known beforehand is only the
seed; the frameworks' own default is taken. Where a sampler draws from torch's global generator (grouping by
length, Axolotl's packing), the order is one of those possible: number and size of the batches hold, their
order need not.
"""

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from finegauge.run.phases import TRAINER_SEED, Recipe
from finegauge.run.rules import num_held_out
from finegauge.run.run import Run

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


Packs = list[list[int]]


class Rows(NamedTuple):
    """Rows of pieces: the pieces of one after those of the other."""

    pieces: Pieces
    offsets: Ints  # where each row begins in `pieces`, and where the last ends

    @property
    def number(self) -> int:
        """Return how many there are."""
        return len(self.offsets) - 1


def packed(pieces: Pieces, recipe: Recipe) -> Rows:
    """Return `pieces` packed group by group as the recipe says."""
    group = recipe.batching.group_size or max(1, pieces.number)
    if recipe.packing_strategy == "wrapped":
        return _wrapped(pieces, recipe.row_len, group, keeps_rest=recipe.batching.keeps_rest)
    pack = _packer(recipe)
    members: list[Ints] = []
    sizes: list[int] = []
    for first in range(0, pieces.number, group):
        packs = pack(pieces.length[first : first + group], recipe.room)
        members.append(np.fromiter(chain.from_iterable(packs), dtype=np.int64) + first)
        sizes += map(len, packs)
    order = np.concatenate(members) if members else np.zeros(0, dtype=np.int64)
    return Rows(pieces.at(order), _ends(sizes))


def _packer(recipe: Recipe) -> Callable[[Ints, int], Packs]:
    one = recipe.batching.one_pack_at_a_time
    if recipe.packing_strategy == "best_fit_decreasing":
        return knapsack if one else best_fit_decreasing
    most = recipe.batching.samples_per_pack
    return next_fit if one else lambda lengths, room: first_fit(lengths, room, most or len(lengths))


def best_fit_decreasing(lengths: Ints, room: int) -> Packs:
    """Return packs of at most `room` tokens: the longest first, each where the least room is left."""
    order = np.argsort(-lengths, kind="stable")
    rooms: list[int] = []  # free room of some pack, ascending, each value once
    waiting: dict[int, deque[list[int]]] = {}  # the packs that have it, first come first served
    packs: Packs = []
    for index, length in zip(order.tolist(), lengths[order].tolist(), strict=True):
        place = bisect_left(rooms, length)
        if place < len(rooms):
            left = rooms[place]
            having = waiting[left]
            pack = having.popleft()
            if not having:
                del rooms[place]
            pack.append(index)
            left -= length
        else:
            left, pack = room - length, [index]
            packs.append(pack)
        if left:
            having = waiting.setdefault(left, deque())
            if not having:
                insort(rooms, left)
            having.append(pack)
    return packs


def knapsack(lengths: Ints, room: int) -> Packs:
    """Return packs filled one after the other, each with the longest samples that still fit."""
    order = np.argsort(lengths, kind="stable")
    samples, sizes = order.tolist(), lengths[order].tolist()
    packs: Packs = []
    while sizes:
        left, pack = room, []
        while place := bisect_right(sizes, left):
            left -= sizes.pop(place - 1)
            pack.append(samples.pop(place - 1))
        packs.append(pack)
    return packs


def next_fit(lengths: Ints, room: int) -> Packs:
    """Return packs filled in the samples' order; what does not fit the last one opens the next."""
    packs: Packs = []
    left = 0
    for index, length in enumerate(lengths.tolist()):
        if length > left or not packs:
            packs.append([])
            left = room
        packs[-1].append(index)
        left -= length
    return packs


def first_fit(lengths: Ints, room: int, most: int) -> Packs:
    """Return packs of at most `most` samples, each sample in the first pack that has room for it.

    A tree over the packs holds the most room below each branch: the first pack with enough is found
    on the way down. Packs without room for the shortest sample leave it when it is built anew.
    """
    shortest = int(lengths.min()) if len(lengths) else 0
    packs: Packs = []
    window: Packs = [[]]  # one, that is closed
    tree = [0, -1]
    leaves = 1
    for index, length in enumerate(lengths.tolist()):
        if tree[1] < length:
            kept = [
                (pack, left) for pack, left in zip(window, tree[leaves:], strict=True) if left >= shortest
            ]
            leaves = 1 << (2 * len(kept) + 63).bit_length()
            new: Packs = [[] for _ in range(leaves - len(kept))]
            packs += new
            window = [pack for pack, _ in kept] + new
            tree = _tree([left for _, left in kept] + [room] * len(new))
        node = 1
        while node < leaves:
            node <<= 1
            if tree[node] < length:
                node += 1
        pack = window[node - leaves]
        pack.append(index)
        left = tree[node] - length if len(pack) < most else -1
        tree[node] = left
        while node > 1:
            beside = tree[node ^ 1]
            left = beside if beside > left else left  # a call of max would take a quarter of the time
            node >>= 1
            if tree[node] == left:
                break
            tree[node] = left
    return [pack for pack in packs if pack]


def _tree(rooms: list[int]) -> list[int]:
    """Return the tree whose leaves are `rooms`, a power of two of them: the largest below each branch."""
    levels = [rooms]
    while len(levels[-1]) > 1:
        below = levels[-1]
        levels.append(list(map(max, below[::2], below[1::2])))
    return [0, *chain.from_iterable(reversed(levels))]


def _wrapped(pieces: Pieces, row_len: int, group: int, *, keeps_rest: bool) -> Rows:
    """Return rows cut from the pieces laid end to end, group by group."""
    ends = np.cumsum(pieces.length)
    starts = ends - pieces.length
    groups = np.arange(pieces.number) // group
    origin = starts[groups * group]  # where a piece's group begins
    starts, ends = starts - origin, ends - origin
    per_group = (
        -(-np.maximum.reduceat(ends, np.arange(0, pieces.number, group)) // row_len) if len(ends) else ends
    )
    base = (np.cumsum(per_group) - per_group)[groups] if len(ends) else ends
    first, times = starts // row_len, (ends - 1) // row_len - starts // row_len + 1
    whole = np.repeat(np.arange(pieces.number), times)
    row = first[whole] + np.arange(len(whole)) - np.repeat(np.cumsum(times) - times, times)
    begin, end = np.maximum(starts[whole], row * row_len), np.minimum(ends[whole], (row + 1) * row_len)
    cut = Pieces(pieces.sample[whole], pieces.start[whole] + begin - starts[whole], end - begin)
    sizes = np.bincount(base[whole] + row)
    rows = Rows(cut, _ends(sizes.tolist()))
    return rows if keeps_rest or not len(sizes) else _full_rows(rows, row_len)


def _full_rows(rows: Rows, row_len: int) -> Rows:
    full = np.add.reduceat(rows.pieces.length, rows.offsets[:-1]) == row_len
    sizes = np.diff(rows.offsets)
    return Rows(rows.pieces.at(np.repeat(full, sizes)), _ends(sizes[full].tolist()))


def _ends(sizes: list[int]) -> Ints:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


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
    return np.append(np.arange(0, number, batch, dtype=np.int64), number)


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
    dealt: Dealt
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
    run: Run,
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
        return Rows(pieces, np.arange(pieces.number + 1)), cut  # each a row of its own
    if recipe.batching.packs_after_shuffling:
        pieces = pieces.at(shuffled(pieces.number, seed + epoch))
    return packed(pieces, recipe), cut


def batches_of(rows: Rows, cut: Cut, recipe: Recipe, *, seed: int, epoch: int) -> Batches:
    """Return the batches of rows, shuffled for one epoch and dealt to the ranks."""
    lengths = sums(rows.pieces.length, rows.offsets)
    custom, batch = recipe.batching, recipe.micro_batch_size
    if recipe.packing_strategy and custom.packs_after_shuffling:
        order = np.arange(rows.number)
    elif recipe.group_by_length:
        order = grouped_by_length(lengths, batch * recipe.accumulation, seed + epoch)
    else:
        order = shuffled(rows.number, seed + epoch)
    deal = dealt_by_samples if custom.deals_samples else dealt_by_batches
    dealt = deal(order, batch, recipe.ranks, drops_last=custom.drops_batches)
    if custom.drops_steps:
        whole = (len(dealt.offsets) - 1) // (recipe.accumulation * recipe.ranks)
        offsets = dealt.offsets[: whole * recipe.accumulation * recipe.ranks + 1]
        dealt = Dealt(dealt.rows[: offsets[-1]], offsets)
    return _measured(rows, lengths, cut, dealt, recipe)


def _measured(rows: Rows, lengths: Ints, cut: Cut, dealt: Dealt, recipe: Recipe) -> Batches:
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
