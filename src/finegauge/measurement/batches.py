"""The batches of a run, as its framework makes them: of a file's texts, or of a histogram's lengths.

Which samples stand together, padded, joined or packed, is what `data.batches` says of the same
samples: a measurement runs the very batches that an estimate counts. Tokens are the texts' own, or random
where there are only lengths. Batches never end: epoch follows epoch, each in its own order. The short
batch that an epoch may end with is left out, for its time tells nothing.
"""

import random
from collections.abc import Iterator, Sequence
from itertools import chain, count
from typing import TYPE_CHECKING, NamedTuple

import torch

from finegauge.data.batch_shape import dataset_of
from finegauge.data.token_lengths import token_ids
from finegauge.errors import FieldError
from finegauge.run.phases import TRAINER_SEED
from finegauge.run.run import Run

if TYPE_CHECKING:
    from finegauge.data.packing import Batches

IGNORED = -100  # the label of a token that the loss leaves out
SAMPLES_DRAWN = 20_000  # of a histogram, at most

Tokens = list[int]


class Batch(NamedTuple):
    """One micro-batch on the device."""

    input_ids: torch.Tensor  # [rows, length]
    attention_mask: torch.Tensor | None  # None where nothing is padded
    labels: torch.Tensor  # the tokens themselves; IGNORED on padding
    position_ids: torch.Tensor | None  # where samples in one row do not attend to each other
    samples: float
    real_tokens: float  # without padding

    @property
    def tokens(self) -> float:
        """Return the tokens computed, padding included."""
        return float(self.input_ids.numel())


def batches(
    run: Run, vocab_size: int, device: torch.device | str, seed: int = 0, *, rank: int = 0
) -> Iterator[Batch]:
    """Yield micro-batches of `run` without end, tensors on `device`, tokens below `vocab_size`.

    `seed` is that of tokens and order, 0 the order of the framework's own seed; `rank` is the data-parallel
    rank whose batches these are.

    Raises: FieldError where a tokenizer makes tokens that the model does not know, or the samples make no
        full batch.
    """
    dice, place = random.Random(seed), torch.device(device)
    words = random.Random(f"{seed} {rank}") if rank else dice  # every rank draws the same lengths
    if run.dataset is None:
        while True:
            rows = [_random(run.seq_len, vocab_size, words) for _ in range(run.micro_batch_size)]
            yield _batch([[row] for row in rows], run.seq_len, place, masked=True)
    from finegauge.data.packing import simulate

    texts = _texts(run, vocab_size)
    lengths = list(map(len, texts)) or _drawn(run, dice)
    lengths *= -(-run.micro_batch_size // len(lengths))
    for epoch in count():
        made = simulate(lengths, run, seed=TRAINER_SEED + seed, epoch=epoch)
        full = _full_batches(made, run, rank)
        if not full:
            raise FieldError(
                f"The {len(lengths):,} samples of {run.dataset} make not one full micro-batch of "
                f"{run.micro_batch_size}; use a smaller one."
            )
        for number in full:
            yield _made(made, number, texts, vocab_size, words, place)


def _full_batches(made: "Batches", run: Run, rank: int) -> list[int]:
    rows = made.recipe.micro_batch_size
    sizes = (made.dealt.offsets[1:] - made.dealt.offsets[:-1]).tolist()
    return [number for number in range(rank, made.number, run.data_parallel) if sizes[number] == rows]


def _made(
    made: "Batches",
    number: int,
    texts: Sequence[Tokens],
    vocab_size: int,
    dice: random.Random,
    place: torch.device,
) -> Batch:
    rows = [
        [
            texts[one.sample % len(texts)][one.start : one.start + one.length]
            if texts
            else _random(one.length, vocab_size, dice)
            for one in row
        ]
        for row in made.stretches(number)
    ]
    tokens, isolated = int(made.tokens[number]), made.recipe.padding == "free"
    if made.recipe.joins_rows:
        return _batch([list(chain.from_iterable(rows))], tokens, place, isolated=isolated)
    packs = bool(made.recipe.packing_strategy)
    rows = rows if packs else [row[:1] for row in rows]
    return _batch(rows, tokens // len(rows), place, isolated=packs and isolated, masked=not packs)


def _random(length: int, vocab_size: int, dice: random.Random) -> Tokens:
    return dice.choices(range(vocab_size), k=length)


def _drawn(run: Run, dice: random.Random) -> list[int]:
    known = dataset_of(run)
    lengths, counts = zip(*known.lengths, strict=True)
    if known.num_samples > SAMPLES_DRAWN:
        return dice.choices(lengths, counts, k=SAMPLES_DRAWN)
    every = [length for length, number in known.lengths for _ in range(number)]
    dice.shuffle(every)
    return every


def _texts(run: Run, vocab_size: int) -> list[Tokens]:
    """Return the samples of a data set of texts; none where there are only lengths."""
    if run.dataset is None or run.tokenizer is None:
        return []
    texts = token_ids(run.dataset, run.tokenizer)
    largest = max(map(max, texts))
    if largest >= vocab_size:
        raise FieldError(
            f"tokenizer={run.tokenizer} makes token {largest}, but {run.model} knows {vocab_size} tokens; "
            f"use the model's own tokenizer."
        )
    return texts


def answered(rows: Sequence[tuple[Sequence[int], Sequence[int]]], device: torch.device | str) -> Batch:
    """Return prompts with their answers, padded on the right; only answers are labels."""
    whole = [[[*prompt, *answer]] for prompt, answer in rows]
    batch = _batch(whole, max(len(row[0]) for row in whole), torch.device(device), masked=True)
    for n, (prompt, _) in enumerate(rows):
        batch.labels[n, : len(prompt)] = IGNORED
    return batch


def _batch(
    rows: list[list[Tokens]],
    length: int,
    place: torch.device,
    *,
    isolated: bool = False,
    masked: bool = False,
) -> Batch:
    """Return rows of samples end to end, filled up on the right to `length`.

    Isolated samples count their positions from 0, by which transformers tells them apart;
    the first token of each is no label. Masked rows hide their padding from attention.
    """
    ids = torch.zeros((len(rows), length), dtype=torch.long)
    labels, positions = torch.full_like(ids, IGNORED), torch.zeros_like(ids)
    real = 0
    for row, samples in enumerate(rows):
        filled = sum(map(len, samples))
        real += filled
        ids[row, :filled] = labels[row, :filled] = torch.tensor(list(chain.from_iterable(samples)))
        at = 0
        for size in (*map(len, samples), length - filled):
            positions[row, at : at + size] = torch.arange(size)
            at += size
    if isolated:
        labels[positions == 0] = IGNORED
    mask = (labels != IGNORED).long().to(place) if masked and real < ids.numel() else None
    return Batch(
        ids.to(place), mask, labels.to(place), positions.to(place) if isolated else None,
        float(sum(map(len, rows))), float(real),
    )  # fmt: skip
