"""What files mean: training files (`finegauge read`), a data set's lengths and batches (`finegauge data`)."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from finegauge.answers import Rules
from finegauge.answers.changes import Exported
from finegauge.catalogue.datasets import quantiles
from finegauge.data.batch_shape import epoch_of, shape_of_samples
from finegauge.data.token_lengths import Findings, Lengths
from finegauge.errors import FineGaugeError
from finegauge.planning.estimate import WholeRun, whole_run
from finegauge.records import same
from finegauge.run.run import Run
from finegauge.units import counted

if TYPE_CHECKING:
    from finegauge.data.packing import Batches
    from finegauge.formats.writing import Written

Value = str | float | bool | tuple[str, ...] | None  # of a field of a run


class RunOfFile(NamedTuple):
    """The run that a training file states, and who states each field."""

    file: str
    run: Mapping[str, Value]
    origins: Mapping[str, str]
    warnings: tuple[str, ...]


class LauncherFile(NamedTuple):
    """What a launcher's file states: accelerate's or DeepSpeed's."""

    file: str
    fields: Mapping[str, Value]


@Rules(absent=("exported",))
class ReadAnswer(NamedTuple):
    """One result for each file; with --export the run as the written files read back."""

    results: tuple[RunOfFile | LauncherFile, ...]
    exported: Exported | None = None


def run_of_file(file: str, run: Run) -> RunOfFile:
    """Return one run; a name that the catalogue lacks is a warning here."""
    warnings = list(run.warnings)
    try:
        run.check_names()
    except FineGaugeError as error:
        warnings.append(str(error))
    fields = run.fields()
    return RunOfFile(file, fields, {name: run.origins.get(name, "") for name in fields}, tuple(warnings))


def export_answer(framework: str, written: "Written") -> ReadAnswer:
    """Return what was written for another framework."""
    exported = Exported(written.paths, written.command, written.warnings, framework)
    return ReadAnswer((run_of_file(written.paths[0], written.run),), exported)


FRACTIONS = {"p10": 0.1, "p50": 0.5, "p90": 0.9, "p99": 0.99, "p99_9": 0.999}
Tokens = float  # of an average
ROWS_NAMED = 5  # of those that were left out, in a warning


class UnreadableRow(NamedTuple):
    """A row that no sample could be made of."""

    row: int  # line or record of the file, from 1
    why: str


@Rules(hidden=("asked", "kept_tokens", "pack_fill_fraction", "longest"))
class BatchingFigures(NamedTuple):
    """The batches that a run makes of the samples in its first epoch, and whether all of the run fit."""

    framework: str | None
    gpu: str | None
    how: str  # samples become sequences
    steps_per_epoch: int
    steps_total: int | None
    tokens_per_step: Mapping[str, Tokens]  # mean, min, max
    real_tokens_per_step_mean: Tokens  # without padding
    padding_fraction: float
    longest_micro_batch_tokens: int
    num_packs: int | None
    num_samples: int
    num_held_out: int
    num_dropped: int
    num_cut: int
    num_split: int
    num_left_out: int  # by batches, at the end of an epoch
    lost_tokens: int  # beyond the cut-off
    whole_run: WholeRun | None
    asked: Run
    kept_tokens: int
    pack_fill_fraction: float | None
    longest: tuple[int, int]  # micro-batch of the first epoch: its tokens, and its step from 1


@Rules(hidden=("longest_at",))
class DataAnswer(NamedTuple):
    """Lengths are tokens, special tokens included."""

    file: str
    tokenizer: str
    content_sha256: str  # of data, tokenizer, format and template: equal where the lengths are
    num_samples: int
    num_tokens: int
    num_loss_tokens: int  # learnt where questions are masked: those of the answers
    mean_tokens: float
    quantiles_tokens: Mapping[str, int]
    lengths: tuple[tuple[int, int], ...]  # (length, how many samples), the shortest first
    formats: Mapping[str, int]
    row_name: str  # line or record: what rows count, from 1
    num_rows: int
    num_bytes: int
    num_empty: int
    empty_rows: tuple[int, ...]
    num_unreadable: int
    unreadable: tuple[UnreadableRow, ...]
    num_without_answer: int
    unused_keys: Mapping[str, int]  # of records, that no format reads, with how often each occurs
    notes: tuple[str, ...]  # what was chosen: template, split
    warnings: tuple[str, ...]
    batching: tuple[BatchingFigures, ...]  # once per run asked about
    longest_at: str  # where the longest sample stands


def data_answer(lengths: Lengths, tokenizer: str, runs: Sequence[Run] = ()) -> DataAnswer:
    """Return what was counted of a data set, and the batches that `runs` make of it."""
    found, pairs = lengths.findings, lengths.pairs()
    reached = quantiles(pairs, tuple(FRACTIONS.values()))
    counted = {
        "formats": dict(found.formats),
        "unreadable": tuple(UnreadableRow(*row) for row in found.unreadable),
        "unused_keys": dict(found.unused_keys),
        "warnings": tuple(_warnings(found)),
    }
    return DataAnswer(
        file=lengths.path,
        tokenizer=tokenizer,
        content_sha256=lengths.content,
        num_samples=lengths.num_samples,
        num_tokens=lengths.num_tokens,
        num_loss_tokens=sum(lengths.loss_tokens),
        mean_tokens=lengths.num_tokens / lengths.num_samples,
        quantiles_tokens={"min": pairs[0][0]}
        | dict(zip(FRACTIONS, reached, strict=True))
        | {"max": pairs[-1][0]},
        lengths=pairs,
        batching=tuple(batching_figures(lengths, run) for run in runs),
        longest_at=lengths.place(lengths.tokens.index(pairs[-1][0])),
        **same(DataAnswer, found) | counted,
    )


def _warnings(found: Findings) -> list[str]:
    """Return what a user should know of the records that are no samples, or odd ones."""
    lines = []
    name = found.row_name
    if found.num_unreadable:
        number = found.num_unreadable
        first = "; ".join(f"{name} {row}: {why}" for row, why in found.unreadable[:ROWS_NAMED])
        lines.append(f"{counted(number, name)} left out, unreadable: {_more(first, number)}.")
    if found.num_empty:
        first = ", ".join(f"{row}" for row in found.empty_rows[:ROWS_NAMED])
        lines.append(
            f"{counted(found.num_empty, name)} left out, empty: {name} {_more(first, found.num_empty)}."
        )
    if found.num_without_answer:
        lines.append(
            f"{counted(found.num_without_answer, 'sample')} without an answer: nothing is learnt from "
            f"{'it' if found.num_without_answer == 1 else 'them'} where questions are masked."
        )
    if len(found.formats) > 1:
        mixed = ", ".join(f"{count:,} {kind}" for kind, count in found.formats)
        lines.append(f"Formats are mixed: {mixed}; --format keeps one.")
    if found.unused_keys:
        keys = ", ".join(f"{key} {count:,}" for key, count in found.unused_keys[:8])
        lines.append(f"Keys that are not read: {keys}.")
    return lines


def _more(first: str, number: int) -> str:
    return first if number <= ROWS_NAMED else f"{first}, ... ({number - ROWS_NAMED:,} more)"


def batching_figures(lengths: Lengths, run: Run) -> BatchingFigures:
    """Return the batches of the first epoch, what they are on average, and the risk of the whole run."""
    batches, shape = epoch_of(run, lengths, 0), shape_of_samples(run, lengths)
    cut, steps, rows = batches.cut, batches.step_tokens, batches.rows
    kept, longest = int(rows.pieces.length.sum()), int(batches.tokens.argmax())
    return BatchingFigures(
        framework=run.framework or None,
        gpu=run.gpu,
        how=shape.source.partition(": ")[2],
        steps_per_epoch=batches.steps,
        steps_total=shape.steps_total,
        tokens_per_step={"mean": float(steps.mean()), "min": int(steps.min()), "max": int(steps.max())},
        real_tokens_per_step_mean=float(batches.step_real_tokens.mean()),
        padding_fraction=batches.padding_fraction,
        longest_micro_batch_tokens=shape.longest_tokens,
        num_packs=rows.number if run.packing else None,
        num_left_out=_left_out(batches),
        whole_run=whole_run(run, lengths),
        asked=run,
        kept_tokens=kept,
        pack_fill_fraction=kept / (rows.number * batches.recipe.row_len) if run.packing else None,
        longest=(int(batches.tokens[longest]), batches.step_of(longest) + 1),
        **same(BatchingFigures, cut),
    )


def _left_out(batches: "Batches") -> int:
    """Return how many rows, and the samples in them, no batch of the epoch holds."""
    import numpy as np

    missing = np.ones(batches.rows.number, dtype=bool)
    missing[batches.dealt.rows] = False
    return int(np.diff(batches.rows.offsets)[missing].sum())
