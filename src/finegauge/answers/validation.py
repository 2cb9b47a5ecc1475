"""Predictions beside published or own figures: how wrong they are (`validate`), a paper (`reproduce`)."""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple

from finegauge.answers import Rules
from finegauge.answers.measurement import check_libraries
from finegauge.catalogue.device_profile import device_profile, own_profile_path, write
from finegauge.formats.measurement_tables import METRICS, PARTS, SERVED
from finegauge.measurement.options import Options
from finegauge.measurement.trial import measure
from finegauge.progress import Heard
from finegauge.records import same
from finegauge.reproduction.published import Finding, Item, Reproduction, Rows
from finegauge.validation.local_validation import HereValidation, validate_here
from finegauge.validation.operators import Group, validate_operators
from finegauge.validation.summary import (
    GROUPS,
    NUM_WORST,
    Answer,
    Confusion,
    CountCoverage,
    CountErrors,
    Coverage,
    Errors,
    Prediction,
    Reliability,
    Validation,
    by,
    confusion,
    explanation,
    matches,
    memory_coverage,
    memory_errors,
    part_errors,
    reliability,
    time_coverage,
    time_errors,
    worst,
)

NUM_WORST_IN_FILES = 20


@Rules(absent=(*PARTS, *SERVED))
class RowFigures(NamedTuple):
    """One row of a table and what is predicted for it, if anything; errors are ours / theirs - 1."""

    id: str
    source: str
    answered: bool
    reason: str | None  # why there is no answer
    step_time_s: float | None
    step_time_s_p10: float | None
    step_time_s_p90: float | None
    tokens_per_s_per_gpu: float | None
    peak_memory_gib: float | None  # by the row's metric
    peak_memory_gib_p10: float | None
    peak_memory_gib_p90: float | None
    p_oom: float | None
    outcome: Literal["ok", "oom"] | None  # predicted
    generation_s: float | None  # predicted, of a step that generates and learns
    training_s: float | None
    scoring_s: float | None
    sync_s: float | None
    ttft_s: float | None  # predicted, of a service
    time_per_output_token_s: float | None
    output_tokens_per_s: float | None
    joules_per_token: float | None
    step_time_error: float | None
    peak_memory_error: float | None
    memory_metric: Literal["torch_allocated", "torch_reserved", "nvidia_smi", "unknown"] | None
    measured_outcome: str | None
    times_complete: bool  # nothing that time depends on was guessed
    memory_complete: bool
    lengths: Literal["full", "cut-off", "mean"]
    defaults: tuple[str, ...]
    assumptions: tuple[str, ...]


class Unanswered(NamedTuple):
    """Rows without an answer, for one reason."""

    reason: str
    count: int  # type: ignore[assignment]  # which tuples have as a method
    ids: tuple[str, ...]


class QuantityErrors(NamedTuple):
    """The errors of one quantity: over all rows, by whether their configuration was guessed, by group."""

    all: Errors | None
    complete: Errors | None
    incomplete: Errors | None
    coverage: Coverage | None  # of the interval from the 10th to the 90th percentile
    by: Mapping[str, Mapping[str, Errors | None]]


@Rules(flat=("counts",))
class FitsOrNot(NamedTuple):
    """Whether rows fit: predicted against measured."""

    counts: Confusion
    accuracy: float | None


class WorstRow(NamedTuple):
    """A row with a large error, and what its prediction rests on."""

    id: str
    step_time_error: float | None
    peak_memory_error: float | None
    explanation: str


class Versus(NamedTuple):
    """A rival's errors and ours, on the rows that both answer."""

    theirs: Errors
    ours: Errors


@Rules(most={"worst": NUM_WORST}, hidden=("calibrations",), absent=("parts",))
class ValidationSummary(NamedTuple):
    """The errors of all rows; memory by metric, never over the mixture."""

    rows: int
    answered: int
    unanswered: tuple[Unanswered, ...]
    step_time: QuantityErrors
    parts: (
        Mapping[str, Errors] | None
    )  # of steps that generate and learn, of services, where tables state them
    peak_memory: Mapping[str, QuantityErrors]
    fits: FitsOrNot
    reliability: Reliability | None  # of P(OOM), each source by the interval of the others
    worst: tuple[WorstRow, ...]
    rivals: Mapping[str, Mapping[str, Versus | str]]  # by quantity; or why it is "absent"
    calibrations: tuple[str, ...]


class ValidationAnswer(NamedTuple):
    """Every row of the tables, and what they say together."""

    rows: tuple[RowFigures, ...]
    summary: ValidationSummary


def validation_answer(validation: Validation) -> ValidationAnswer:
    """Return the figures of a validation."""
    answered = validation.answered
    counts = confusion(answered)
    rivals: dict[str, dict[str, Versus | str]] = {
        name: {one.quantity: Versus(one.theirs, one.ours) for one in matches(validation, name)}
        for name in validation.rivals
    }
    rivals |= {name: {"absent": reason} for name, reason in validation.absent.items()}
    summary = ValidationSummary(
        rows=len(validation.answers),
        answered=len(answered),
        unanswered=tuple(
            Unanswered(reason, len(ids), tuple(ids)) for reason, ids in validation.unanswered.items()
        ),
        step_time=_quantity(answered, time_errors, time_coverage, lambda one: one.row.times_complete),
        parts=part_errors(answered) or None,
        peak_memory={
            metric: _quantity(rows, memory_errors, memory_coverage, lambda one: one.row.memory_complete)
            for metric in METRICS
            if (rows := validation.of_metric(metric))
        },
        fits=FitsOrNot(counts, counts.accuracy),
        reliability=reliability(answered),
        worst=tuple(
            WorstRow(one.row.id, one.step_time_error, one.peak_memory_error, explanation(one))
            for one in worst(answered, NUM_WORST_IN_FILES)
        ),
        rivals=rivals,
        calibrations=tuple(sorted({one.profile.source.name for one in answered if one.profile})),
    )
    return ValidationAnswer(tuple(map(_row, validation.answers)), summary)


def _row(one: Answer) -> RowFigures:
    row, ours = one.row, one.prediction
    values: dict[str, Any] = dict.fromkeys(Prediction._fields) if ours is None else ours._asdict()
    values |= {
        "id": row.id,
        "source": row.source,
        "answered": ours is not None,
        "reason": one.reason or None,
        "step_time_error": one.step_time_error,
        "peak_memory_error": one.peak_memory_error,
        "memory_metric": row.measured.memory_metric if row.measured.peak_memory_gib else None,
        "measured_outcome": row.measured.outcome or None,
    }
    return RowFigures(**same(RowFigures, row) | values)


def _quantity(
    rows: Sequence[Answer], errors: CountErrors, coverage: CountCoverage, complete: Callable[[Answer], bool]
) -> QuantityErrors:
    return QuantityErrors(
        all=errors(rows),
        complete=errors(one for one in rows if complete(one)),
        incomplete=errors(one for one in rows if not complete(one)),
        coverage=coverage(rows),
        by={
            name: {key: errors(part) for key, part in by(rows, group).items()}
            for name, group in GROUPS.items()
        },
    )


def here_answer(
    device: str, *, num: int, seed: int, steps: int, threads: int, heard: Heard, said: Callable[[str], None]
) -> HereValidation:
    """Return how predictions and measurements of `num` unseen configurations compare on this machine.

    `said` is called before each long step; `threads` of 0 takes those of this machine's device profile.

    Raises: UnsupportedError without PyTorch or the device.
    """
    check_libraries()
    from finegauge.measurement.bench.microbenchmarks import micro

    path = own_profile_path(device)
    if not os.path.isfile(path) or (threads and device_profile(path).threads != threads):
        said("Timing this machine's operators once: about two minutes.")
        write(micro(device=device, threads=threads), path)
    options = Options(device=device, steps=steps, threads=device_profile(path).threads)
    with TemporaryDirectory(prefix="finegauge-") as folder:
        return validate_here(path, partial(measure, options=options), folder, num=num, seed=seed, heard=heard)


class OperatorRow(NamedTuple):
    """One row of a table and the seconds predicted for it, or why there are none."""

    table: str
    row: int  # from 0
    gpu: str
    kind: str  # gemm | attention | experts | collective
    dtype: str
    seconds: float | None
    answered: bool
    reason: str | None
    low_s: float | None  # 10th and 90th percentile
    high_s: float | None
    evidence: str | None  # timed | architecture | other


class OperatorSummary(NamedTuple):
    """All rows together."""

    rows: int
    answered: int
    unanswered: Mapping[str, int]  # by the reason
    groups: tuple[Group, ...]  # by GPU, kind and number format


class OperatorsAnswer(NamedTuple):
    """Every row of the tables, and how wrong predictions are by GPU, kind and number format."""

    rows: tuple[OperatorRow, ...]
    summary: OperatorSummary


def operators_answer(tables: Sequence[str]) -> OperatorsAnswer:
    """Return every row of `tables`, predicted.

    Raises: FileFormatError for a table whose columns tell no kind of operator.
    """
    found = validate_operators(tables)
    rows = tuple(
        OperatorRow(
            *one.row[:5], one.seconds, one.seconds is not None, one.reason or None, one.low_s, one.high_s,
            one.evidence or None,
        )
        for one in found.answers
    )  # fmt: skip
    answered = sum(row.answered for row in rows)
    return OperatorsAnswer(rows, OperatorSummary(len(rows), answered, found.unanswered, tuple(found.groups)))


@Rules(hidden=("item",))
class ItemRows(NamedTuple):
    """One table or figure of the paper, theirs beside ours, numbers unrounded."""

    key: str
    title: str
    columns: tuple[str, ...]
    rows: Rows
    notes: tuple[str, ...]
    item: Item


@Rules(hidden=("finding",))
class FindingRows(NamedTuple):
    """One inconsistency of paper and artifact, with the numbers that prove it."""

    number: int
    title: str
    statement: str
    columns: tuple[str, ...]
    rows: Rows
    finding: Finding


class ReproduceAnswer(NamedTuple):
    """A whole paper, or some of its items."""

    title: str
    sources: tuple[str, ...]
    summary: tuple[str, ...]
    items: tuple[ItemRows, ...]
    findings: tuple[FindingRows, ...]


def reproduce_answer(whole: Reproduction) -> ReproduceAnswer:
    """Return a reproduction, its headings in one line each."""
    items = (
        ItemRows(one.key, one.title, _one_line(one.columns), one.rows, one.notes, one) for one in whole.items
    )
    findings = (
        FindingRows(one.number, one.title, one.statement, _one_line(one.headings), one.rows, one)
        for one in whole.findings
    )
    return ReproduceAnswer(whole.title, whole.sources, whole.summary, tuple(items), tuple(findings))


def _one_line(headings: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(" ".join(heading.split()) for heading in headings)
