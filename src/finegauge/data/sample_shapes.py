"""A data set's samples as one average and one longest micro-batch, counted over the very batches of a run.

The averages are those of the first epoch; a step that the end of the epoch leaves incomplete counts
in full, so that steps times tokens of a step are the epoch's tokens exactly. The longest is that of
all epochs, or of the first where an epoch alone holds `SAMPLES_DRAWN` samples.
"""

from functools import lru_cache
from math import ceil
from typing import TYPE_CHECKING, Any

from finegauge.data.batch_shape import BatchShape, total_steps
from finegauge.data.recipe import TRAINER_SEED, Recipe
from finegauge.errors import FieldError, UnsupportedError

if TYPE_CHECKING:
    from finegauge.catalogue.datasets import Dataset
    from finegauge.data.batches import Batches
    from finegauge.data.token_lengths import Lengths
    from finegauge.run.run import Run

SAMPLES_DRAWN = 1_000_000


class _Known:
    """The lengths of a data set, told from others by what its content hashes to."""

    def __init__(self, lengths: "Lengths") -> None:
        self.lengths = lengths

    def __hash__(self) -> int:
        return hash(self.lengths.content)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Known) and other.lengths.content == self.lengths.content


def epoch_of(run: "Run", lengths: "Lengths", epoch: int) -> "Batches":
    """Return the batches of one epoch of `run`, kept for who asks again.

    Raises: FieldError where nothing is left to train on, UnsupportedError without NumPy.
    """
    return _epoch(_Known(lengths), Recipe.of(run), epoch)


def epochs_drawn(run: "Run", lengths: "Lengths") -> int:
    """Return how many epochs of `run` are looked at, one after the other."""
    asked = _num_epochs(run, epoch_of(run, lengths, 0).steps)
    return max(1, min(asked, SAMPLES_DRAWN // max(1, lengths.num_samples)))


def shape_of_samples(run: "Run", lengths: "Lengths") -> BatchShape:
    """Return what a micro-batch of `run` holds, from the batches that its samples make."""
    known, recipe = _Known(lengths), Recipe.of(run)
    drawn = epochs_drawn(run, lengths)
    found = _shape(known, recipe, run.micro_batch_size, drawn)
    assert found.steps_per_epoch is not None
    return found._replace(
        steps_total=total_steps(run, found.steps_per_epoch), source=f"{run.dataset}: {found.source}"
    )


def _num_epochs(run: "Run", steps: int) -> int:
    """Return how many epochs are begun."""
    return ceil((total_steps(run, steps) or steps) / steps)


@lru_cache(maxsize=256)
def _shape(known: _Known, recipe: Recipe, sequences: int, drawn: int) -> BatchShape:
    """Return the shape of one recipe's batches; who runs them, for how long, is not asked."""
    first = _epoch(known, recipe, 0)
    longest_tokens, longest_len = 0, 0
    for epoch in range(drawn):
        batches = first if epoch == 0 else _epoch(known, recipe, epoch)
        longest_tokens = max(longest_tokens, int(batches.tokens.max()))
        longest_len = max(longest_len, int(batches.longest.max()))
    slots = first.steps * first.per_step
    return BatchShape(
        sequences=sequences,
        tokens=int(first.tokens.sum()) / slots,
        tokens_square=float(first.pairs.sum()) / slots,
        real_tokens=int(first.real_tokens.sum()) / slots,
        samples=first.cut.num_samples / slots,
        longest_len=longest_len,
        longest_tokens=longest_tokens,
        num_samples=first.cut.num_samples,
        steps_per_epoch=first.steps,
        steps_total=None,
        source=_in_words(first),
    )


def _in_words(batches: "Batches") -> str:
    """Return how the samples were batched."""
    recipe, cut = batches.recipe, batches.cut
    if recipe.packing_strategy:
        each = cut.num_samples / max(1, batches.rows.number)
        how = f"{each:.2f} samples packed into each sequence ({recipe.packing_strategy})"
    elif recipe.padding == "longest":
        how = f"padded to the longest of {recipe.micro_batch_size}"
        how += f" and a multiple of {recipe.multiple}" if recipe.multiple > 1 else ""
        how += ", grouped by length" if recipe.group_by_length else ""
    else:
        how = "joined without padding" if recipe.padding == "free" else f"padded to {recipe.seq_len:,}"
    fates = (
        (cut.num_held_out, "held out"),
        (cut.num_dropped, "dropped"),
        (cut.num_cut, "cut"),
        (cut.num_split, "split"),
    )
    told = "".join(f", {number:,} {fate}" for number, fate in fates if number)
    plural = "" if cut.num_samples == 1 else "s"
    return f"{cut.num_samples:,} sample{plural} in their batches, {how}{told}"


@lru_cache(maxsize=8)
def _epoch(known: _Known, recipe: Recipe, epoch: int) -> "Batches":
    """Return the batches of one epoch."""
    simulation = _simulation()
    shared = 0 if not recipe.custom.packs_after_shuffling else epoch
    rows, cut = _rows(known, recipe._replace(micro_batch_size=1, accumulation=1, ranks=1), shared)
    batches: Batches = simulation.batches_of(rows, cut, recipe, seed=TRAINER_SEED, epoch=epoch)
    if not batches.number:
        raise FieldError(
            f"{known.lengths.path}: {cut.num_samples:,} samples ({cut.num_dropped:,} longer than "
            f"seq_len={recipe.seq_len:,} dropped, {cut.num_held_out:,} held out) make no full batch; use "
            "a smaller batch or a longer seq_len."
        )
    return batches


@lru_cache(maxsize=4)
def _rows(known: _Known, recipe: Recipe, epoch: int) -> Any:
    """Return the rows before they are shuffled, which do not depend on the batch."""
    import numpy as np

    tokens = np.frombuffer(known.lengths.tokens, dtype=np.dtype(f"u{known.lengths.tokens.itemsize}"))
    return _simulation().rows_of(tokens, recipe, seed=TRAINER_SEED, epoch=epoch)


def _simulation() -> Any:
    """Return the module that simulates."""
    try:
        from finegauge.data import batches as simulate
    except ImportError:
        raise UnsupportedError(
            "Counting the batches of a file of texts needs NumPy: pip install 'finegauge[data]'. Without "
            "it, give a CSV file of 'length,count' as the data set."
        ) from None
    return simulate


Tokens = list[int]


def tokenised(path: str, tokenizer: str) -> list[Tokens]:
    """Return the tokens of every sample of the data set at `path`, in the order of its lengths.

    Args:
        path: A file of texts, or a folder of `datasets`.
        tokenizer: A `tokenizer.json`, or the folder that holds it.
    Raises: InputError for what cannot be read as texts, UnsupportedError where a library is not installed.
    """
    from finegauge.data.token_lengths import token_ids

    return token_ids(path, tokenizer)


def text_dataset(path: str, tokenizer: str) -> "Dataset":
    """Return the lengths of the texts at `path`, under `tokenizer`. Raises: as `tokenised` does."""
    from finegauge.data.token_lengths import token_lengths

    return _dataset(path, tokenizer, token_lengths(path, tokenizer).content)


@lru_cache(maxsize=4)
def _dataset(path: str, tokenizer: str, content: str) -> "Dataset":
    """Return lengths as a data set of the catalogue has them; `content` tells one data set from another."""
    del content
    from finegauge.catalogue.datasets import Dataset
    from finegauge.data.token_lengths import quantiles, token_lengths

    lengths = token_lengths(path, tokenizer)
    pairs = lengths.pairs()
    found, missed = lengths.findings, lengths.findings.num_unreadable + lengths.findings.num_empty
    left_out = f" ({missed:,} of {found.num_rows:,} {found.row_name}s empty or unreadable)" if missed else ""
    return Dataset(
        name=lengths.path,
        aliases=(),
        num_samples=lengths.num_samples,
        lengths=pairs,
        median_tokens=quantiles(pairs, (0.5,))[0],
        tokenizer=tokenizer,
        source=lengths.path + left_out,
        checked="",
    )
