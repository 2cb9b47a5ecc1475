"""What `finegauge validate` prints: errors by group, memory by metric, coverage, the worst rows, rivals."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from finegauge.formats.measurement_tables import METRICS
from finegauge.render.operators import accuracy_section
from finegauge.render.terminal import columns, paint, wrapped
from finegauge.validation.local_validation import (
    MEMORY_BAR_FRACTION,
    TIME_BAR_FRACTION,
    HereValidation,
    Trial,
    describe,
)
from finegauge.validation.summary import (
    GROUPS,
    Answer,
    Confusion,
    Coverage,
    Errors,
    Validation,
    by,
    confusion,
    explanation,
    matches,
    memory_coverage,
    memory_errors,
    time_coverage,
    time_errors,
    worst,
)

if TYPE_CHECKING:
    from pathlib import Path

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
        *_quantity_section(
            "Step time", answered, time_errors, time_coverage, lambda one: one.row.times_complete
        ),
    ]
    for metric in METRICS:
        rows = validation.of_metric(metric)
        title = f"Peak memory: {METRIC_NAMES[metric]}"
        parts += _quantity_section(
            title, rows, memory_errors, memory_coverage, lambda one: one.row.memory_complete
        )
    parts += [
        *_fits_section(answered),
        *_weak(validation),
        *_rivals_section(validation),
        *_worst_section(answered),
        *_unanswered_section(validation),
        *accuracy_section(),
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
        "what each constant means and where it started stands in `prediction/calibration.py`."
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


def _quantity_section(
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


def _fits_section(answered: Sequence[Answer]) -> list[str]:
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


def _rivals_section(validation: Validation) -> list[str]:
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


def _worst_section(answered: Sequence[Answer]) -> list[str]:
    """Return the rows with the largest errors, and what they rest on."""
    lines = ["| row | time | memory | what the prediction rests on |", "|---|---:|---:|---|"]
    for one in worst(answered, 20):
        errors = [f"{e:+.0%}" if e is not None else "" for e in (one.step_time_error, one.peak_memory_error)]
        lines.append(f"| {one.row.id} | {errors[0]} | {errors[1]} | {explanation(one)} |")
    return ["## The twenty worst rows", "\n".join(lines)]


def _unanswered_section(validation: Validation) -> list[str]:
    """Return the rows without an answer, by reason."""
    lines = [f"- {len(ids)} rows ({ids[0]} …): {reason}" for reason, ids in validation.unanswered.items()]
    return ["## Rows without an answer", "\n".join(lines)] if lines else []


MIB = float(2**20)
NOTICED = 0.02  # of the measured time


def here_lines(validation: HereValidation) -> Iterator[str]:
    """Yield the table of a validation on this machine."""
    yield f"{validation.device}, seed {validation.seed}: predicted from single operators, then measured"
    yield ""
    yield f"{'step predicted':>14}  {'measured':>9}  {'error':>7}  {'peak predicted':>14}  {'error':>7}  run"
    for trial in validation.trials:
        yield _trial_line(trial)
    yield ""
    if validation.step_time_error is None or validation.peak_memory_error is None:
        yield "No trial was completed."
        return
    waited = max((trial.waited_fraction for trial in validation.complete), default=0.0)
    if waited > NOTICED:
        yield (
            f"Other programs had the processor for up to {100 * waited:.0f} % of the measured time; "
            "it is taken off. A quiet machine gives better figures."
        )
    yield _median("step time", validation.step_time_error, TIME_BAR_FRACTION)
    yield _median("peak memory", validation.peak_memory_error, MEMORY_BAR_FRACTION)


def _trial_line(trial: Trial) -> str:
    """Return one configuration."""
    step_s, peak = trial.predicted.step_time_s.total, trial.predicted.peak_memory_bytes.total / MIB
    if not trial.complete:
        what = f"{trial.measured.outcome}, {trial.measured.reason}"
        return f"{1e3 * step_s:11.1f} ms  {describe(trial.run)}: {what}"
    return (
        f"{1e3 * step_s:11.1f} ms  {1e3 * trial.measured_s:6.1f} ms  {100 * trial.step_time_error:+5.1f} %  "
        f"{peak:10.1f} MiB  {100 * trial.peak_memory_error:+5.2f} %  {describe(trial.run)}"
    )


def _median(what: str, error: float, bar: float) -> str:
    """Return one median with its bar."""
    word = "within" if error <= bar else "above"
    return f"median error of {what}: {100 * error:.2f} %, {word} {100 * bar:g} %"
