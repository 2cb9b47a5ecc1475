"""What `finegauge validate` prints: errors by group, memory by metric, coverage, the worst rows, rivals."""

from collections.abc import Callable, Iterable, Sequence

from finegauge.report.terminal import columns, paint, wrapped
from finegauge.validate.answer import Answer
from finegauge.validate.explanation import explanation
from finegauge.validate.statistics import (
    GROUPS,
    Confusion,
    Coverage,
    Errors,
    by,
    confusion,
    memory_coverage,
    memory_errors,
    time_coverage,
    time_errors,
    worst,
)
from finegauge.validate.summary import Validation, matches
from finegauge.workload.readers.measurement_table import METRICS

HEADINGS = ("rows", "median", "mean", "p90", "bias")
METRIC_NAMES = {
    "torch_allocated": "torch allocated",
    "torch_reserved": "torch reserved",
    "nvidia_smi": "nvidia-smi",
    "unknown": "metric not stated",
}
SHOWN_IDS = 4
Count = Callable[[Iterable[Answer]], Errors | None]


def validation_lines(validation: Validation) -> list[str]:
    """Return the whole report."""
    answered = validation.answered
    lines = [paint(f"{len(answered)} of {len(validation.answers)} rows answered", "bold")]
    lines += _unanswered(validation)
    lines += _quantity("Step time, relative error", answered, time_errors, _times_complete)
    lines += _covered(time_coverage(answered))
    for metric in METRICS:
        rows = validation.of_metric(metric)
        if rows:
            title = f"Peak memory, {METRIC_NAMES[metric]}, relative error"
            lines += _quantity(title, rows, memory_errors, _memory_complete)
            lines += _covered(memory_coverage(rows))
    lines += _fits(confusion(answered))
    lines += _worst(answered)
    if validation.rivals or validation.absent:
        lines += _rivals(validation)
    return lines


def _unanswered(validation: Validation) -> list[str]:
    """Return how many rows have no answer, and why."""
    lines = []
    for reason, ids in validation.unanswered.items():
        named = ", ".join(ids[:SHOWN_IDS]) + (
            f" and {len(ids) - SHOWN_IDS} more" if len(ids) > SHOWN_IDS else ""
        )
        lines += wrapped(f"  {len(ids)} without an answer ({named}): {reason}", indent="    ")
    return lines


def _quantity(
    title: str, rows: Sequence[Answer], count: Count, complete: Callable[[Answer], bool]
) -> list[str]:
    """Return one table: all rows, complete and incomplete configurations, then every group."""
    if count(rows) is None:
        return []
    cells = [
        ["all rows", *_figures(count(rows))],
        ["configuration complete", *_figures(count([one for one in rows if complete(one)]))],
        ["parts of it guessed", *_figures(count([one for one in rows if not complete(one)]))],
    ]
    for name, group in GROUPS.items():
        parts = {key: count(part) for key, part in by(rows, group).items()}
        cells += [[f"  {name} {key}", *_figures(found)] for key, found in parts.items() if found]
    return ["", paint(title, "bold"), *columns(("", *HEADINGS), cells)]


def _figures(errors: Errors | None) -> list[str]:
    """Return the cells of one line."""
    if errors is None:
        return ["0", "-", "-", "-", "-"]
    return [str(errors.rows), *(f"{e:.1%}" for e in errors[1:4]), f"{errors.bias:+.1%}"]


def _covered(coverage: Coverage | None) -> list[str]:
    """Return how often the truth lay within the interval."""
    if coverage is None:
        return []
    return [
        f"The interval from p10 to p90 holds {coverage.inside:.0%} of the truths; "
        f"{coverage.below:.0%} lie below it, {coverage.above:.0%} above."
    ]


def _fits(matrix: Confusion) -> list[str]:
    """Return the confusion matrix of fits-or-not."""
    if matrix.accuracy is None:
        return []
    cells = [
        ["ran", str(matrix.ok_as_ok), str(matrix.ok_as_oom)],
        ["ran out of memory", str(matrix.oom_as_ok), str(matrix.oom_as_oom)],
    ]
    title = paint(f"Fits or not: {matrix.accuracy:.1%} right", "bold")
    return ["", title, *columns(("", "said to fit", "said not to"), cells)]


def _worst(answered: Sequence[Answer]) -> list[str]:
    """Return the rows with the largest errors, and what they rest on."""
    found = worst(answered)
    if not found:
        return []
    lines = ["", paint("Worst rows", "bold")]
    for one in found:
        errors = [
            f"{name} {error:+.0%}"
            for name, error in (("time", one.step_time_error), ("memory", one.peak_memory_error))
            if error is not None
        ]
        lines += wrapped(f"  {one.row.id}: {', '.join(errors)}. {explanation(one)}", indent="    ")
    return lines


def _rivals(validation: Validation) -> list[str]:
    """Return each rival's errors beside ours on the rows that both answer."""
    lines = ["", paint("Rivals, on the rows that both answer", "bold")]
    cells = []
    for name in validation.rivals:
        for match in matches(validation, name):
            what = "step time" if match.quantity == "step_time" else f"memory, {METRIC_NAMES[match.quantity]}"
            cells.append([f"{what}: {name}", *_figures(match.theirs)])
            cells.append([f"{' ' * len(what)}  FineGauge", *_figures(match.ours)])
    if cells:
        lines += columns(("", *HEADINGS), cells)
    absent = (wrapped(f"{name}: {reason}.", indent="  ") for name, reason in validation.absent.items())
    return [*lines, *(line for said in absent for line in said)]


def _times_complete(one: Answer) -> bool:
    return one.row.times_complete


def _memory_complete(one: Answer) -> bool:
    return one.row.memory_complete
