"""The batches of a run: sequences as long as its data set's, padded, joined or packed as it says.

Where the data set is a histogram of lengths, tokens are random and lengths drawn from it;
where it is a file of texts, they are its own. Batches never end: texts start over in a
new order.
"""

import random
from collections.abc import Iterator
from typing import NamedTuple

import torch

from finegauge.errors import FieldError
from finegauge.workload.data import lengths
from finegauge.workload.run import Run

IGNORED = -100  # the label of a token that the loss leaves out
PACKED_AT_A_TIME = 16  # rows' worth of samples among which a pack looks for one that fits

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


def batches(run: Run, vocab_size: int, device: torch.device | str, seed: int = 0) -> Iterator[Batch]:
    """Yield micro-batches of `run` without end.

    Args:
        run: The question; the fields of its data say what a batch is.
        vocab_size: Of the model: tokens are below it.
        device: Where the tensors go.
        seed: Of lengths, tokens and order.
    Raises: FieldError where a tokenizer makes tokens that the model does not know.
    """
    samples = _samples(run, vocab_size, random.Random(seed))
    place = torch.device(device)
    if run.packing:
        yield from _packed(run, samples, place)
    while True:
        drawn = [next(samples) for _ in range(run.micro_batch_size)]
        if run.padding == "free":
            yield _joined([drawn], None, place, isolated=True)
        else:
            yield _padded(drawn, _row_length(run, drawn), place)


def _samples(run: Run, vocab_size: int, dice: random.Random) -> Iterator[Tokens]:
    """Yield samples as lists of tokens, no longer than seq_len, without end."""
    texts = _texts(run, vocab_size)
    while texts:
        dice.shuffle(texts)
        yield from texts
    histogram = lengths(run, padded=False)
    while True:
        length = run.seq_len
        if histogram is not None:
            length = dice.choices(histogram.lengths, histogram.counts)[0]
        yield dice.choices(range(vocab_size), k=length)


def _texts(run: Run, vocab_size: int) -> list[Tokens]:
    """Return the samples of a data set of texts, cut at seq_len; none where there are only lengths."""
    if run.dataset is None or run.tokenizer is None:
        return []
    from finegauge.workload.tokenised import tokenised

    texts = [tokens[: run.seq_len] for tokens in tokenised(run.dataset, run.tokenizer)]
    largest = max(max(tokens) for tokens in texts)
    if largest >= vocab_size:
        raise FieldError(
            f"tokenizer={run.tokenizer} makes token {largest}, but {run.model} knows {vocab_size} tokens; "
            f"use the model's own tokenizer."
        )
    return texts[: run.num_samples]


def _row_length(run: Run, drawn: list[Tokens]) -> int:
    """Return the padded length of a micro-batch's rows."""
    if run.padding == "max" or run.dataset is None:
        return run.seq_len
    return -(-max(map(len, drawn)) // run.pad_to_multiple_of) * run.pad_to_multiple_of


def _padded(drawn: list[Tokens], length: int, place: torch.device) -> Batch:
    """Return one sample per row, padded on the right to `length`."""
    ids = torch.zeros((len(drawn), length), dtype=torch.long)
    labels = torch.full_like(ids, IGNORED)
    for row, tokens in enumerate(drawn):
        ids[row, : len(tokens)] = labels[row, : len(tokens)] = torch.tensor(tokens)
    real = sum(map(len, drawn))
    mask = (labels != IGNORED).long().to(place) if real < ids.numel() else None
    return Batch(ids.to(place), mask, labels.to(place), None, float(len(drawn)), float(real))


def _joined(rows: list[list[Tokens]], length: int | None, place: torch.device, *, isolated: bool) -> Batch:
    """Return rows of several samples end to end, filled up to `length`.

    Isolated samples count their positions from 0, by which transformers tells them apart;
    the first token of each is nobody's label.
    """
    length = length or max(sum(map(len, row)) for row in rows)
    ids = torch.zeros((len(rows), length), dtype=torch.long)
    labels = torch.full_like(ids, IGNORED)
    positions = torch.zeros_like(ids)
    real = 0
    for row, samples in enumerate(rows):
        at = 0
        for tokens in [*samples, [0] * (length - sum(map(len, samples)))]:
            positions[row, at : at + len(tokens)] = torch.arange(len(tokens))
            ids[row, at : at + len(tokens)] = torch.tensor(tokens, dtype=torch.long)
            at += len(tokens)
        filled = sum(map(len, samples))
        labels[row, :filled] = ids[row, :filled]
        real += filled
    if isolated:
        labels[positions == 0] = IGNORED
    return Batch(
        ids.to(place), None, labels.to(place), positions.to(place) if isolated else None,
        float(sum(map(len, rows))), float(real),
    )  # fmt: skip


def _packed(run: Run, samples: Iterator[Tokens], place: torch.device) -> Iterator[Batch]:
    """Yield batches of rows of seq_len, each packed with the longest samples that fit, without end."""
    rows: list[list[Tokens]] = []
    while True:
        while len(rows) < run.micro_batch_size:
            rows += _packs(samples, run.seq_len)
        now, rows = rows[: run.micro_batch_size], rows[run.micro_batch_size :]
        yield _joined(now, run.seq_len, place, isolated=run.padding == "free")


def _packs(samples: Iterator[Tokens], capacity: int) -> list[list[Tokens]]:
    """Return rows of at most `capacity` tokens, packed best-fit decreasing from the next samples."""
    drawn: list[Tokens] = []
    while sum(map(len, drawn)) < PACKED_AT_A_TIME * capacity:
        drawn.append(next(samples))
    rows: list[list[Tokens]] = []
    rooms: list[int] = []
    for tokens in sorted(drawn, key=len, reverse=True):
        fitting = [(room, row) for row, room in enumerate(rooms) if room >= len(tokens)]
        if fitting:
            _, row = min(fitting)
        else:
            row = len(rows)
            rows.append([])
            rooms.append(capacity)
        rows[row].append(tokens)
        rooms[row] -= len(tokens)
    return rows
