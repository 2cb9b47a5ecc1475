"""What is read in a step: the data set, its cut-off, how sequences share a batch.

`shape` turns a run's data fields into the numbers that memory and time need: how many
tokens a micro-batch holds on average, how many at worst, and how many steps there are.
"""

from collections.abc import Collection
from math import ceil, gcd, log, sqrt
from typing import TYPE_CHECKING, Any, NamedTuple

from finegauge.catalogue.frameworks import framework_of
from finegauge.data.length_histogram import LengthHistogram
from finegauge.data.recipe import NO_LIMIT
from finegauge.errors import FieldError
from finegauge.run.field import Check, choice, flag, number, text, whole
from finegauge.run.rules import num_held_out

if TYPE_CHECKING:
    from finegauge.catalogue.datasets import Dataset
    from finegauge.data.token_lengths import Lengths
    from finegauge.run.run import Run

PADDING = ("longest", "max", "free")
OVER_LENGTH = ("truncate", "drop", "split")
PACKING_STRATEGIES = ("best_fit_decreasing", "first_fit", "wrapped")
_STRATEGY_NAMES = {"bfd": "best_fit_decreasing", "best_fit": "best_fit_decreasing", "ffd": "first_fit"}
MAX_SEQ_LEN = 16_777_216
GENERATING_PHASES = ("ppo", "grpo", "decode")

DATA_CHECKS: dict[str, Check] = {
    "dataset": text,
    "num_samples": whole(1, 10**10, "samples"),
    "validation_fraction": number(0.0, 0.999),
    "seq_len": whole(1, MAX_SEQ_LEN, "tokens"),
    "over_length": choice(OVER_LENGTH),
    "packing": flag,
    "packing_strategy": choice(PACKING_STRATEGIES, _STRATEGY_NAMES),
    "padding": choice(PADDING, {"max_length": "max", "true": "longest"}),
    "pad_to_multiple_of": whole(1, 65_536, "tokens"),
    "group_by_length": flag,
    "tokenizer": text,
    "max_new_tokens": whole(1, MAX_SEQ_LEN, "tokens"),
    "num_generations": whole(2, 4096, "answers"),
    "micro_batch_size": whole(1, 1_000_000, "sequences"),
    "gradient_accumulation_steps": whole(1, 1_000_000),
    "epochs": number(1e-6, 1e6),
    "max_steps": whole(1, 10**10, "steps"),
}


def settle_data(values: dict[str, Any], stated: Collection[str]) -> None:
    """Fill in padding and packing, and refuse what packing rules out."""
    if values["packing"] and values["group_by_length"]:
        raise FieldError("packing=true fills every sequence, so group_by_length cannot hold; remove one.")
    if values["packing_strategy"] is None:
        values["packing_strategy"] = framework_of(values["framework"]).batching.packing_strategy
    if values["packing"] and values["padding"] == "longest" and "padding" in stated:
        raise FieldError(
            "packing=true fills every sequence to seq_len, so padding=longest cannot hold; remove one."
        )
    new_tokens = values["max_new_tokens"]
    if new_tokens is not None and values["phase"] not in GENERATING_PHASES:
        raise FieldError(
            f"max_new_tokens is stated, but phase={values['phase']} generates nothing; remove it or use "
            f"{', '.join(GENERATING_PHASES)}."
        )
    if new_tokens is not None and new_tokens >= values["seq_len"]:
        raise FieldError(
            f"max_new_tokens={new_tokens} leaves no room for a prompt in seq_len={values['seq_len']}; "
            f"use less than {values['seq_len']}."
        )
    if new_tokens is None and values["phase"] in GENERATING_PHASES:
        values["max_new_tokens"] = values["seq_len"] // 2 or 1
    if values["padding"] is None or (values["packing"] and values["padding"] == "longest"):
        values["padding"] = "longest" if values["dataset"] and not values["packing"] else "max"


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


def dataset_of(run: "Run") -> "Dataset":
    """Return the data set that `run` names: of the catalogue, a file of lengths, or one of texts.

    Raises: FieldError where a tokenizer is stated and there are no texts, or the other way round.
    """
    from finegauge.data.records import holds_texts
    from finegauge.data.sample_shapes import text_dataset

    name = run.dataset or ""
    are_texts = holds_texts(name, has_tokenizer=run.tokenizer is not None)
    if run.tokenizer is not None and are_texts:
        return text_dataset(name, run.tokenizer)
    if run.tokenizer is not None:
        raise FieldError(
            f"tokenizer is stated, but dataset={name} is no file of texts; remove it or name a JSONL file."
        )
    if are_texts:
        raise FieldError(
            f"dataset={name} holds texts, whose length depends on the tokenizer; add 'tokenizer: FOLDER'."
        )
    from finegauge.catalogue.datasets import dataset

    return dataset(name)


def lengths(run: "Run", *, padded: bool) -> LengthHistogram | None:
    """Return the run's length histogram, cut at seq_len; None where no data set is stated."""
    if run.dataset is None:
        return None
    multiple = run.pad_to_multiple_of if padded else 1
    wrapped = run.packing and run.packing_strategy == "wrapped"
    return LengthHistogram.of(
        _pairs(run),
        cut_off=NO_LIMIT if wrapped else run.seq_len,
        multiple=multiple,
        over_length=run.over_length,
    )


def _pairs(run: "Run") -> tuple[tuple[int, int], ...]:
    """Return (length, samples) of the run's data set.

    Raises: FieldError where all of them are longer than the cut-off and dropped.
    """
    found = dataset_of(run)
    if run.over_length == "drop" and found.lengths[0][0] > run.seq_len:
        raise FieldError(
            f"over_length=drop leaves nothing of {run.dataset}: its shortest sample has "
            f"{found.lengths[0][0]:,} tokens, seq_len={run.seq_len:,}; raise seq_len or truncate."
        )
    return found.lengths


def sample_lengths(run: "Run") -> "Lengths | None":
    """Return the tokens of every sample, where the data set is a file of texts; else None."""
    from finegauge.data.records import holds_texts

    if run.dataset is None or run.tokenizer is None or not holds_texts(run.dataset, has_tokenizer=True):
        return None
    from finegauge.data.token_lengths import token_lengths

    return token_lengths(run.dataset, run.tokenizer)


def shape(run: "Run") -> BatchShape:
    """Return what one micro-batch of `run` holds: its sequences, as its phase uses them."""
    return in_phase(run)


def sequences(run: "Run") -> BatchShape:
    """Return what a micro-batch of the data set's own sequences holds, from their lengths where known."""
    if (known := sample_lengths(run)) is not None:
        from finegauge.data.sample_shapes import shape_of_samples

        return shape_of_samples(run, known)
    true_lengths = lengths(run, padded=False)
    if true_lengths is None or run.packing:
        return _constant(run, true_lengths)
    if run.padding == "free":
        return _padding_free(run, true_lengths)
    if run.padding == "max":
        return _constant(run, true_lengths)
    padded, batch = lengths(run, padded=True) or true_lengths, run.micro_batch_size
    if run.group_by_length:
        mean_longest, square = (
            padded.mean_grouped_max(batch, run.gradient_accumulation_steps, power) for power in (1, 2)
        )
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
        source=f"{run.dataset}: lengths cut at {run.seq_len:,}, padded to the longest of {batch} "
        f"and a multiple of {run.pad_to_multiple_of}{', grouped by length' if run.group_by_length else ''}",
        **_steps(run, true_lengths, samples_per_row=1.0),
    )


def _constant(run: "Run", known: LengthHistogram | None) -> BatchShape:
    """Return the shape when every row is seq_len long: no data set, padding to it, or packing."""
    batch, row = run.micro_batch_size, run.seq_len
    per_row, mean_len, square, computed = 1.0, float(row), float(row) ** 2, float(row)
    how = "no data set stated: every sequence is taken as seq_len long"
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
            computed = row if framework_of(run.framework).batching.fills_packs else per_row * mean_len
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


def _padding_free(run: "Run", known: LengthHistogram) -> BatchShape:
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


def _steps(run: "Run", known: LengthHistogram | None, *, samples_per_row: float) -> dict[str, int | None]:
    """Return the number of samples trained in an epoch and of optimizer steps, None where unknown."""
    num_samples, per_epoch = _trained_samples(run, known), None
    if num_samples is not None:
        rows = ceil(num_samples / samples_per_row)
        micro_batches = ceil(rows / (run.micro_batch_size * run.data_parallel))
        per_epoch = max(1, ceil(micro_batches / run.gradient_accumulation_steps))
    return {
        "num_samples": num_samples,
        "steps_per_epoch": per_epoch,
        "steps_total": total_steps(run, per_epoch),
    }


def _trained_samples(run: "Run", known: LengthHistogram | None) -> int | None:
    """Return the samples of an epoch: those used, less the validation set and what is dropped."""
    if known is None:
        used, kept = run.num_samples, 1.0
    else:
        in_set = sum(count for _, count in _pairs(run))
        used, kept = run.num_samples or in_set, known.num_samples / in_set
    return used and max(1, round(kept * (used - num_held_out(used, run.validation_fraction))))


def total_steps(run: "Run", per_epoch: int | None) -> int | None:
    """Return the optimizer steps of the whole run; None where they are not known."""
    if run.max_steps is not None or per_epoch is None:
        return run.max_steps
    return ceil(run.epochs * per_epoch)


PPO_EPOCHS = 4  # updates on every rollout: the default of TRL's last PPO trainer
BATCHES_PER_STEP = 3  # of requests to continuous batching: places come free and are taken again
WRITING = ("ppo", "grpo", "decode")
SERVING = ("prefill", "decode")
PAIRED = ("reward", "dpo")
COMPARING = ("reward", "dpo", "ppo", "grpo")


def settle_phase(values: dict[str, Any], stated: Collection[str]) -> None:
    """Refuse joined sequences where whole ones are compared, and accumulation where nothing trains."""
    del stated  # whoever stated it
    phase = values["phase"]
    for field, joined in (("packing=true", values["packing"]), ("padding=free", values["padding"] == "free")):
        if joined and phase in COMPARING:
            raise FieldError(f"phase={phase} compares whole sequences, so {field} cannot hold; remove it.")
    if phase in SERVING and values["gradient_accumulation_steps"] > 1:
        raise FieldError(
            f"gradient_accumulation_steps={values['gradient_accumulation_steps']}, but phase={phase} trains "
            f"nothing; remove it."
        )


def prompts_of(run: "Run") -> "Run":
    """Return the run whose sequences are the prompts of `run`: as many tokens as its answers leave.

    Raises: FieldError where some prompt would not get all its answers.
    """
    _check_groups(run)
    rows = run.micro_batch_size * run.gradient_accumulation_steps // group_size(run)
    return run.replace(
        phase="evaluate",
        max_new_tokens=None,
        seq_len=run.seq_len - answer_tokens(run),
        micro_batch_size=rows,
        gradient_accumulation_steps=1,
        packing=False,
        padding=None if is_continuous(run) else run.padding,
    )


def group_size(run: "Run") -> int:
    """Return how many answers there are to each prompt."""
    return run.num_generations if run.phase == "grpo" else 1


def batch_unit(run: "Run") -> int:
    """Return of what `micro_batch_size` must be a multiple, so that every prompt has all its answers."""
    group = group_size(run)
    return group // gcd(group, run.gradient_accumulation_steps)


def _check_groups(run: "Run") -> None:
    """Refuse a batch that would leave some prompt without all its answers."""
    if run.micro_batch_size % batch_unit(run):
        answers, group = run.micro_batch_size * run.gradient_accumulation_steps, group_size(run)
        raise FieldError(
            f"phase={run.phase} compares num_generations={group} answers to each prompt, which does not "
            f"divide the {answers} of micro_batch_size x gradient_accumulation_steps; make these a multiple "
            f"of {group}."
        )


def is_continuous(run: "Run") -> bool:
    """Return whether requests enter and leave the batch one by one, so that nothing is padded."""
    return run.phase in SERVING and run.padding == "free"


def micro_steps(run: "Run") -> int:
    """Return how many micro-batches one step has."""
    return BATCHES_PER_STEP if is_continuous(run) else run.gradient_accumulation_steps


def in_phase(run: "Run") -> BatchShape:
    """Return what one micro-batch of `run` holds as its phase uses the data set's sequences."""
    if run.phase in PAIRED:
        own, pairs = sequences(run), sequences(run.replace(micro_batch_size=2 * run.micro_batch_size))
        return pairs._replace(
            samples=own.samples,
            steps_per_epoch=own.steps_per_epoch,
            steps_total=own.steps_total,
            source=f"{own.source}; two sequences for each sample",
        )
    if run.phase in WRITING or is_continuous(run):
        return _with_answers(run)
    return sequences(run)


def _with_answers(run: "Run") -> BatchShape:
    """Return the shape of prompts with their answers, all of one length, behind them."""
    prompts, rows, new = sequences(prompts_of(run)), run.micro_batch_size, answer_tokens(run)
    real = prompts.real_tokens / prompts.sequences
    padded = real if is_continuous(run) else prompts.padded_len
    square = prompts.tokens_square / prompts.sequences
    longest = prompts.longest_len + new
    per_epoch = None
    if prompts.num_samples is not None:
        answered = rows * run.gradient_accumulation_steps * run.data_parallel / group_size(run)
        per_epoch = max(1, ceil(prompts.num_samples / answered))
    return BatchShape(
        sequences=rows,
        tokens=rows * (padded + new),
        tokens_square=rows * (square + 2.0 * padded * new + new**2),
        real_tokens=rows * (real + new),
        samples=rows,
        longest_len=longest,
        longest_tokens=rows * longest,
        num_samples=prompts.num_samples,
        steps_per_epoch=per_epoch,
        steps_total=total_steps(run, per_epoch),
        source=f"{prompts.source}, as prompts; answers of {new:,} tokens",
    )


def answer_tokens(run: "Run") -> int:
    """Return the tokens that the model writes to each prompt."""
    return run.max_new_tokens if run.phase in WRITING else 0
