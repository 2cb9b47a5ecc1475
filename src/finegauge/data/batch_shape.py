"""How many tokens one micro-batch of a run holds, on average and at most, and how many steps there are.

The lengths come from the samples of a file of texts (batched as the framework would do it, see `batches`),
from a histogram of lengths, or are `seq_len` where no data set is stated. Preference phases read two
sequences for every sample; generation phases have answers of one length behind each prompt.

Over the samples of a file, the averages are those of the first epoch; a step that the end of the epoch
leaves incomplete counts in full, so that steps times tokens of a step are the epoch's tokens exactly. The
longest is that of all epochs, or of the first where an epoch alone holds `SAMPLES_DRAWN` samples.
"""

from functools import lru_cache
from math import ceil, log, sqrt
from typing import TYPE_CHECKING, Any

from finegauge.catalogue.datasets import Dataset, LengthHistogram, dataset, holds_texts, is_of_texts
from finegauge.errors import FieldError, UnsupportedError
from finegauge.records import NamedTuple
from finegauge.run.phases import (
    NO_LIMIT,
    TRAINER_SEED,
    Recipe,
    answer_tokens,
    group_size,
    image_tokens,
    is_continuous,
    micro_steps,
    prompts_of,
)
from finegauge.run.rules import GENERATING, PAIRED, RL, num_held_out
from finegauge.run.run import Run

if TYPE_CHECKING:
    from finegauge.data.packing import Batches
    from finegauge.data.token_lengths import Lengths

SAMPLES_DRAWN = 1_000_000


class BatchShape(NamedTuple):
    """One micro-batch of one rank, on average and at its longest, and how many there are."""

    sequences: int  # rows of the micro-batch: samples, or packs of them
    tokens: float  # expected tokens computed, padding included
    tokens_square: float  # expected sum over attended sequences of length²
    real_tokens: float  # expected tokens without padding
    samples: float  # samples of the data set in it: more than `sequences` when packed
    longest_len: int  # the row length that memory must hold
    longest_tokens: int  # the tokens that memory must hold
    num_samples: int | None
    steps_per_epoch: int | None
    steps_total: int | None  # None where neither the data set nor max_steps is known
    source: str  # where the lengths come from

    @property
    def padded_len(self) -> float:
        """Return the expected tokens of a row, padding included."""
        return self.tokens / self.sequences


def epochs_of(run: Run, batch: BatchShape) -> float:
    """Return how often the run goes through its data; `epochs` unless `max_steps` ends it before."""
    if batch.steps_per_epoch and batch.steps_total:
        return batch.steps_total / batch.steps_per_epoch
    return run.epochs


def times_of(every: float | None, num_steps: int | None, unstated: float) -> float:
    """Return how often a run does what it does `every` so many steps, below 1 a share of all, and at its end.

    transformers' DefaultFlowCallback does it after the last step too; `unstated` where either is unknown.
    """
    if every is None or num_steps is None:
        return unstated
    return -(-num_steps // every) if every >= 1 else round(1 / every)


def shape(run: Run) -> BatchShape:
    """Return what one micro-batch of `run` holds: its sequences, as its phase uses them.

    Prompt tuning and P-tuning put `adapter_size` tokens before each, which are computed as its own.
    """
    if run.trains_adapters and run.adapter in ("prompt_tuning", "p_tuning"):
        found, more = shape(run.replace(adapter="lora")), run.adapter_size or 0
        return found._replace(
            tokens=found.tokens + found.sequences * more,
            tokens_square=found.tokens_square + 2.0 * more * found.tokens + found.sequences * more**2,
            longest_len=found.longest_len + more,
            longest_tokens=found.longest_tokens + found.sequences * more,
            source=f"{found.source}, each behind a prompt of {more:,} tokens",
        )
    if run.target_seq_len is not None:  # what the decoder reads; its encoder has every source at its cut-off
        own, target = _sequences(run), run.target_seq_len
        return own._replace(
            tokens=own.sequences * target,
            tokens_square=own.sequences * target**2,
            longest_len=target,
            longest_tokens=round(own.sequences) * target,
            source=f"every target of {target:,} tokens, its source at the cut-off",
        )
    if run.phase in PAIRED:
        own, pairs = _sequences(run), _sequences(run.replace(micro_batch_size=2 * run.micro_batch_size))
        return pairs._replace(
            samples=own.samples,
            steps_per_epoch=own.steps_per_epoch,
            steps_total=own.steps_total,
            source=f"{own.source}; two sequences for each sample",
        )
    if run.phase in GENERATING or is_continuous(run):
        return _with_answers(run)
    return _sequences(run)


def answer_lengths(run: Run) -> LengthHistogram | None:
    """Return how long the answers of a run are; None where all have `max_new_tokens`."""
    mean = run.mean_new_tokens
    if run.phase not in (*RL, "serve") or mean is None or mean >= run.max_new_tokens:
        return None
    return LengthHistogram.ending_by_chance(mean, run.max_new_tokens)


def _with_answers(run: Run) -> BatchShape:
    """Return the shape of prompts with their answers behind them.

    Answers that are padded are so to the longest that a rank has in its step, as TRL pads them. Packed ones
    fill the tokens of `micro_batch_size` sequences of `seq_len`, as many as there is room for on average.
    """
    prompts, rows = _sequences(prompts_of(run, on_one_rank=False)), run.micro_batch_size
    most = answer_tokens(run)
    known, accumulation = answer_lengths(run), micro_steps(run)
    new, square = (known.mean(), known.mean(2)) if known else (float(most), float(most) ** 2)
    real = prompts.real_tokens / prompts.sequences
    written, free = real + new, run.padding == "free" or run.phase == "serve"
    if known and run.padding == "longest":
        new, square = (known.expected_max(rows * accumulation, power) for power in (1, 2))
    elif not free:
        new, square = float(most), float(most) ** 2
    padded = real if free else prompts.padded_len
    prompt_square = prompts.tokens_square / prompts.sequences
    longest = prompts.longest_len + most
    longest_tokens, answers, share = rows * longest, rows * accumulation, float(rows)
    if run.packing and run.phase in RL:
        share = answers / ceil(answers / max(1.0, rows * run.seq_len // written))  # of a micro-batch
        rows = ceil(share)
        longest_tokens = max(longest, run.micro_batch_size * run.seq_len)
    per_epoch = None
    if prompts.num_samples is not None:
        per_epoch = max(1, ceil(prompts.num_samples / (answers * run.data_parallel / group_size(run))))
    return BatchShape(
        sequences=rows,
        tokens=share * (padded + new),
        tokens_square=share * (prompt_square + 2.0 * padded * new + square),
        real_tokens=share * written,
        samples=share,
        longest_len=longest,
        longest_tokens=longest_tokens,
        num_samples=prompts.num_samples,
        steps_per_epoch=per_epoch,
        steps_total=_total_steps(run, per_epoch),
        source=f"{prompts.source}, as prompts; answers of "
        + (
            f"{run.mean_new_tokens:,.0f} tokens on average, {most:,} at most" if known else f"{most:,} tokens"
        ),
    )


def in_micro_batches(run: Run, batch: BatchShape) -> Run:
    """Return `run` with the micro-batches that it computes: of packed answers fewer, of more of them each."""
    if not run.packing or run.phase not in RL:
        return run
    answers = run.micro_batch_size * run.gradient_accumulation_steps
    return run.replace(
        micro_batch_size=batch.sequences, gradient_accumulation_steps=round(answers / batch.samples)
    )


def dataset_of(run: Run) -> Dataset:
    """Return the data set that `run` names: of the catalogue, a file of lengths, or one of texts.

    Raises: FieldError where a tokenizer is stated and there are no texts, or the other way round.
    """
    name = run.dataset or ""
    if is_of_texts(name, run.tokenizer):
        from finegauge.data.token_lengths import text_dataset

        return text_dataset(name, str(run.tokenizer))
    return dataset(name)


def lengths(run: Run, *, padded: bool) -> LengthHistogram | None:
    """Return the run's length histogram, cut at seq_len; None where no data set is stated."""
    if run.dataset is None:
        return None
    wrapped = run.packing and run.packing_strategy == "wrapped"
    return _histogram(
        _pairs(run),
        cut_off=NO_LIMIT if wrapped else run.seq_len,
        multiple=run.pad_to_multiple_of if padded else 1,
        over_length=run.over_length,
    )


_histogram = lru_cache(maxsize=64)(LengthHistogram.of)


def _pairs(run: Run) -> tuple[tuple[int, int], ...]:
    """Return (length, samples) of the run's data set.

    Raises: FieldError where all of them are longer than the cut-off and dropped.
    """
    pairs = dataset_of(run).lengths
    if beside := image_tokens(run):
        pairs = tuple((length + beside, count) for length, count in pairs)
    if run.over_length == "drop" and pairs[0][0] > run.seq_len:
        raise FieldError(
            f"over_length=drop leaves nothing of {run.dataset}: its shortest sample has "
            f"{pairs[0][0]:,} tokens, seq_len={run.seq_len:,}; raise seq_len or truncate."
        )
    return pairs


def sample_lengths(run: Run) -> "Lengths | None":
    """Return the tokens of every sample, where the data set is a file of texts; else None."""
    if run.dataset is None or run.tokenizer is None:
        return None
    if not holds_texts(run.dataset, has_tokenizer=True):
        return None
    from finegauge.data.token_lengths import token_lengths

    return token_lengths(run.dataset, run.tokenizer)


def _sequences(run: Run) -> BatchShape:
    """Return what a micro-batch of the data set's own sequences holds, from their lengths where known."""
    if (known := sample_lengths(run)) is not None:
        return shape_of_samples(run, known)
    true_lengths, batch = lengths(run, padded=False), run.micro_batch_size
    if true_lengths is None or run.packing or run.padding == "max":
        return _constant(run, true_lengths)
    if run.padding == "free":
        return _padding_free(run, true_lengths)
    padded = lengths(run, padded=True) or true_lengths
    if run.group_by_length:
        steps = run.gradient_accumulation_steps
        mean_longest, square = (padded.mean_grouped_max(batch, steps, power) for power in (1, 2))
    else:
        mean_longest, square = padded.expected_max(batch), padded.expected_max(batch, power=2)
    return BatchShape(
        sequences=batch,
        tokens=batch * mean_longest,
        tokens_square=batch * square,
        real_tokens=batch * true_lengths.mean(),
        samples=batch,
        longest_len=padded.longest,
        longest_tokens=batch * padded.longest,
        source=f"{run.dataset}: lengths cut at {run.seq_len:,}, padded to the longest of a micro-batch of "
        f"{batch} and to a multiple of {run.pad_to_multiple_of}"
        + (", grouped by length" if run.group_by_length else ""),
        **_steps(run, true_lengths, samples_per_row=1.0),
    )


def _constant(run: Run, known: LengthHistogram | None) -> BatchShape:
    """Return the shape when every row is seq_len long: no data set, padding to it, or packing."""
    batch, row = run.micro_batch_size, run.seq_len
    per_row, mean_len, square, computed = 1.0, float(row), float(row) ** 2, float(row)
    how = "no lengths at hand: every sequence is taken as seq_len long"
    if known is not None:
        mean_len = known.mean()
        how = f"{run.dataset}: every sequence padded to {row:,}"
    if known is not None and run.packing:
        wrapped = run.packing_strategy == "wrapped"
        rows = ceil(known.num_samples * known.mean() / row) if wrapped else known.num_packs(row)
        per_row = known.num_samples / rows
        how = f"{run.dataset}: {per_row:.2f} samples packed into each sequence of {row:,}"
        if run.padding == "free":  # isolated: a sample attends to itself alone
            square = min(square, per_row * known.mean(power=2))
            computed = row if Recipe.of(run).batching.fills_packs else per_row * mean_len
    return BatchShape(
        sequences=batch,
        tokens=float(batch * computed),
        tokens_square=batch * square,
        real_tokens=batch * per_row * mean_len,
        samples=batch * per_row,
        longest_len=row,
        longest_tokens=batch * row,
        source=how,
        **_steps(run, known, samples_per_row=per_row),
    )


def _padding_free(run: Run, known: LengthHistogram) -> BatchShape:
    """Return the shape when samples are joined end to end without padding.

    The largest of N sums of B lengths is taken as mean + sqrt(2 ln N) standard deviations
    and is never more than B of the longest.
    """
    batch, mean_len, mean_square = run.micro_batch_size, known.mean(), known.mean(power=2)
    num_batches = max(2.0, known.num_samples / batch)
    spread = sqrt(max(0.0, mean_square - mean_len**2) * batch)
    at_worst = batch * mean_len + sqrt(2.0 * log(num_batches)) * spread
    return BatchShape(
        sequences=batch,
        tokens=batch * mean_len,
        tokens_square=batch * mean_square,
        real_tokens=batch * mean_len,
        samples=batch,
        longest_len=known.longest,
        longest_tokens=max(known.longest, min(batch * known.longest, ceil(at_worst))),
        source=f"{run.dataset}: lengths cut at {run.seq_len:,}, joined without padding",
        **_steps(run, known, samples_per_row=1.0),
    )


def _steps(run: Run, known: LengthHistogram | None, *, samples_per_row: float) -> dict[str, int | None]:
    """Return the samples of an epoch (without validation and what is dropped) and the optimizer steps."""
    used, kept, per_epoch = run.num_samples, 1.0, None
    if known is not None:
        in_set = sum([count for _, count in _pairs(run)])
        used, kept = used or in_set, known.num_samples / in_set
    num_samples = used and max(1, round(kept * (used - num_held_out(used, run.validation_fraction))))
    if num_samples is not None:
        rows = ceil(num_samples / samples_per_row)
        micro_batches = ceil(rows / (run.micro_batch_size * run.data_parallel))
        per_epoch = max(1, ceil(micro_batches / run.gradient_accumulation_steps))
    return {
        "num_samples": num_samples,
        "steps_per_epoch": per_epoch,
        "steps_total": _total_steps(run, per_epoch),
    }


def _total_steps(run: Run, per_epoch: int | None) -> int | None:
    if run.max_steps is not None or per_epoch is None:
        return run.max_steps
    return ceil(run.epochs * per_epoch)


# Over the samples of a file of texts


class _Known:
    """The lengths of a data set, told from others by what its content hashes to."""

    def __init__(self, lengths: "Lengths") -> None:
        self.lengths = lengths

    def __hash__(self) -> int:
        return hash(self.lengths.content)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Known) and other.lengths.content == self.lengths.content


def epoch_of(run: Run, lengths: "Lengths", epoch: int) -> "Batches":
    """Return the batches of one epoch of `run`, kept for the next call.

    Raises: FieldError where nothing is left to train on, UnsupportedError without NumPy.
    """
    return _epoch(_Known(lengths), Recipe.of(run), epoch)


def epochs_drawn(run: Run, lengths: "Lengths") -> int:
    """Return how many epochs of `run` are looked at, one after the other."""
    steps = epoch_of(run, lengths, 0).steps
    begun = ceil((_total_steps(run, steps) or steps) / steps)
    return max(1, min(begun, SAMPLES_DRAWN // max(1, lengths.num_samples)))


def shape_of_samples(run: Run, lengths: "Lengths") -> BatchShape:
    """Return what a micro-batch of `run` holds, from the batches that its samples make."""
    found = _shape(_Known(lengths), Recipe.of(run), run.micro_batch_size, epochs_drawn(run, lengths))
    return found._replace(
        steps_total=_total_steps(run, found.steps_per_epoch), source=f"{run.dataset}: {found.source}"
    )


@lru_cache(maxsize=256)
def _shape(known: _Known, recipe: Recipe, sequences: int, drawn: int) -> BatchShape:
    """Return the shape of one recipe's batches, without the steps of the whole run."""
    first = _epoch(known, recipe, 0)
    longest_len = longest_tokens = 0
    for epoch in range(drawn):
        batches = _epoch(known, recipe, epoch)
        longest_len = max(longest_len, int(batches.longest.max()))
        longest_tokens = max(longest_tokens, int(batches.tokens.max()))
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
    recipe, cut = batches.recipe, batches.cut
    if recipe.packing_strategy:
        each = cut.num_samples / max(1, batches.rows.number)
        how = f"{each:.2f} samples packed into each sequence ({recipe.packing_strategy})"
    elif recipe.padding == "longest":
        how = f"padded to the longest of a micro-batch of {recipe.micro_batch_size}"
        how += f" and to a multiple of {recipe.multiple}" if recipe.multiple > 1 else ""
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
    rows_epoch = epoch if recipe.batching.packs_after_shuffling else 0
    rows, cut = _rows(known, recipe._replace(micro_batch_size=1, accumulation=1, ranks=1), rows_epoch)
    batches: Batches = _simulation().batches_of(rows, cut, recipe, seed=TRAINER_SEED, epoch=epoch)
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
    simulation, tokens = _simulation(), known.lengths.tokens
    array = simulation.np.frombuffer(tokens, dtype=f"u{tokens.itemsize}")
    array = array + simulation.np.uint32(recipe.beside) if recipe.beside else array
    return simulation.rows_of(array, recipe, seed=TRAINER_SEED, epoch=epoch)


def _simulation() -> Any:
    try:
        from finegauge.data import packing
    except ImportError:
        raise UnsupportedError(
            "Counting the batches of a file of texts needs NumPy: pip install 'finegauge[data]'. Without "
            "it, give a CSV file of 'length,count' as the data set."
        ) from None
    return packing
