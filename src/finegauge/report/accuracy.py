"""The page docs/accuracy.md: every error of a validation as Markdown tables, written by nobody's hand.

`make accuracy` writes it from the measurement tables it is given.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from finegauge.report.validation import METRIC_NAMES
from finegauge.validate.answer import Answer
from finegauge.validate.explanation import explanation
from finegauge.validate.statistics import (
    GROUPS,
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

if TYPE_CHECKING:
    from pathlib import Path

HEAD = ("| | rows | median | mean | p90 | bias |", "|---|---:|---:|---:|---:|---:|")
INTRODUCTION = """# Accuracy

Written by `make accuracy`; nothing on this page is typed by hand.

An error is (ours - theirs) / theirs. Median, mean and p90 are of its magnitude; the bias is the signed
median. Memory is compared by the metric that the source names, never over the mixture. A row is complete
where nothing that the quantity depends on had to be guessed: its lengths, number formats, optimizer."""
WEAK = 0.15  # a group whose median error is above this is named as weak


def accuracy_page(
    validation: Validation, tables: Iterable["Path"], calibration: Mapping[str, Any] | None = None
) -> str:
    """Return the page as Markdown.

    Args:
        validation: Every row with its answer.
        tables: Where the rows come from.
        calibration: The document behind the predictions, if these tables were what it was fitted to.
    """
    answered = validation.answered
    parts = [
        INTRODUCTION,
        _what(validation, tables),
        *(_left_out(calibration) if calibration else ()),
        *_quantity("Step time", answered, time_errors, time_coverage, lambda one: one.row.times_complete),
    ]
    for metric in METRICS:
        rows = validation.of_metric(metric)
        title = f"Peak memory: {METRIC_NAMES[metric]}"
        parts += _quantity(title, rows, memory_errors, memory_coverage, lambda one: one.row.memory_complete)
    parts += [
        *_fits(answered),
        *_weak(validation),
        *_rivals(validation),
        *_worst(answered),
        *_unanswered(validation),
    ]
    return "\n\n".join(parts) + "\n"


def _what(validation: Validation, tables: Iterable["Path"]) -> str:
    """Return which tables stand behind the page, and by which calibration."""
    names = ", ".join(f"`{path.name}`" for path in tables)
    answered, everything = len(validation.answered), len(validation.answers)
    calibrations = sorted({one.profile.source.name for one in validation.answered if one.profile})
    return (
        f"{answered} of {everything} rows are answered, from {names}. "
        f"Calibration: {', '.join(calibrations)}; "
        "what each constant means and where it started stands in `predict/calibration.py`."
    )


def _left_out(calibration: Mapping[str, Any]) -> list[str]:
    """Return how wrong the step time was on each source while the constants had not seen it."""
    low, high = (f"{ratio - 1:+.0%}" for ratio in calibration["time_interval"])
    lines = ["| source left out | rows | median | bias |", "|---|---:|---:|---:|"]
    lines += [
        f"| {one['source']} | {one['num_rows']} | {one['left_out_median_error']:.1%} "
        f"| {one['left_out_bias']:+.1%} |"
        for one in calibration["sources"]
        if one["left_out_median_error"] is not None
    ]
    sentence = (
        f"{calibration['num_constants']} constants are fitted to the times of {calibration['num_rows']} of "
        "these rows, so the tables further down are no blind test. This one is: each source in turn is left "
        "out, the constants are fitted to the others, and its step times predicted. Nothing is fitted to "
        "memory; the shares that the allocator loses and caches were read off these rows. The interval of "
        f"times that follows, every source weighing alike: {low} to {high}."
    )
    return ["## Step time of sources left out of the fit", sentence, "\n".join(lines)]


def _quantity(
    title: str,
    rows: Sequence[Answer],
    count: Callable[[Iterable[Answer]], Errors | None],
    cover: Callable[[Iterable[Answer]], Coverage | None],
    complete: Callable[[Answer], bool],
) -> list[str]:
    """Return one section: all rows, complete and incomplete ones, every group, coverage."""
    if count(rows) is None:
        return []
    lines = [
        *HEAD,
        _line("all rows", count(rows)),
        _line("complete", count([one for one in rows if complete(one)])),
        _line("parts guessed", count([one for one in rows if not complete(one)])),
    ]
    for name, group in GROUPS.items():
        lines += [
            _line(f"{name}: {key}", found)
            for key, part in by(rows, group).items()
            if (found := count(part)) is not None
        ]
    covered = cover(rows)
    sentence = (
        f"The interval from p10 to p90 holds {covered.inside:.0%} of the truths; "
        f"{covered.below:.0%} lie below it, {covered.above:.0%} above."
        if covered
        else ""
    )
    return [f"## {title}", "\n".join(lines), *([sentence] if sentence else [])]


def _line(name: str, errors: Errors | None) -> str:
    """Return one line of a table."""
    if errors is None:
        return f"| {name} | 0 | - | - | - | - |"
    figures = " | ".join(f"{figure:.1%}" for figure in errors[1:4])
    return f"| {name} | {errors.rows} | {figures} | {errors.bias:+.1%} |"


def _fits(answered: Sequence[Answer]) -> list[str]:
    """Return fits-or-not."""
    matrix = confusion(answered)
    if matrix.accuracy is None:
        return []
    lines = [
        "| | said to fit | said not to |",
        "|---|---:|---:|",
        f"| ran | {matrix.ok_as_ok} | {matrix.ok_as_oom} |",
        f"| ran out of memory | {matrix.oom_as_ok} | {matrix.oom_as_oom} |",
    ]
    return [f"## Fits or not: {matrix.accuracy:.1%} right", "\n".join(lines)]


def _weak(validation: Validation) -> list[str]:
    """Return the groups whose median error is large."""
    named = []
    quantities = [("step time", validation.answered, time_errors)]
    quantities += [
        (f"memory ({METRIC_NAMES[metric]})", validation.of_metric(metric), memory_errors)
        for metric in METRICS
    ]
    for quantity, rows, count in quantities:
        for name, group in GROUPS.items():
            for key, part in by(rows, group).items():
                errors = count(part)
                if errors is not None and errors.median > WEAK:
                    figures = f"median {errors.median:.0%}, bias {errors.bias:+.0%}, {errors.rows} rows"
                    named.append(f"- {quantity}, {name} {key}: {figures}")
    return [f"## Where it is weak (median error above {WEAK:.0%})", "\n".join(named)] if named else []


def _rivals(validation: Validation) -> list[str]:
    """Return the rivals' errors beside ours, on the rows that both answer."""
    lines = [*HEAD]
    for name in validation.rivals:
        for match in matches(validation, name):
            what = "step time" if match.quantity == "step_time" else f"memory, {METRIC_NAMES[match.quantity]}"
            lines += [_line(f"{what}: {name}", match.theirs), _line(f"{what}: FineGauge", match.ours)]
    if len(lines) == len(HEAD):
        return []
    absent = [f"{name} is left out: {reason}." for name, reason in validation.absent.items()]
    return ["## Rivals, on the rows that both answer", "\n".join(lines), *absent]


def _worst(answered: Sequence[Answer]) -> list[str]:
    """Return the rows with the largest errors, and what they rest on."""
    lines = ["| row | time | memory | what the prediction rests on |", "|---|---:|---:|---|"]
    for one in worst(answered, 20):
        errors = [f"{e:+.0%}" if e is not None else "" for e in (one.step_time_error, one.peak_memory_error)]
        lines.append(f"| {one.row.id} | {errors[0]} | {errors[1]} | {explanation(one)} |")
    return ["## The twenty worst rows", "\n".join(lines)]


def _unanswered(validation: Validation) -> list[str]:
    """Return the rows without an answer, by reason."""
    lines = [f"- {len(ids)} rows ({ids[0]} …): {reason}" for reason, ids in validation.unanswered.items()]
    return ["## Rows without an answer", "\n".join(lines)] if lines else []
