"""How predictions beside published figures look: errors by group, coverage, rivals; a paper regenerated."""

from collections.abc import Iterator, Sequence
from math import floor, log10

from finegauge.answers.validation import (
    FindingRows,
    ItemRows,
    OperatorsAnswer,
    QuantityErrors,
    ReproduceAnswer,
    ValidationAnswer,
    ValidationSummary,
)
from finegauge.render import number_format as fmt
from finegauge.render.number_format import UNKNOWN, percent
from finegauge.render.plots.drawing import panels_plot
from finegauge.render.report import FILE, TERMINAL, Note, Report, Section, Table, Toned, notes, section
from finegauge.reproduction.published import Cell
from finegauge.units import MIB
from finegauge.validation.local_validation import HereValidation, Summary, Trial
from finegauge.validation.operators import Group
from finegauge.validation.summary import NUM_WORST, Errors, Reliability

HEADINGS = ("rows", "median", "mean", "p90", "bias")
METRIC_NAMES = {
    "torch_allocated": "torch allocated",
    "torch_reserved": "torch reserved",
    "nvidia_smi": "nvidia-smi",
    "unknown": "metric not stated",
}
SHOWN_IDS = 4


def validation_report(answer: ValidationAnswer) -> Report:
    """Return what a terminal shows of a validation."""
    summary = answer.summary
    return Report.of(
        "Accuracy",
        Toned(f"{summary.answered} of {summary.rows} rows answered", "strong"),
        _unanswered(summary),
        *_quantities(summary),
        _fits(summary),
        _reliability(summary.reliability),
        _worst(summary, "Worst rows", NUM_WORST),
        _rivals(summary),
    )


def _unanswered(summary: ValidationSummary) -> Section:
    found = []
    for reason, count, ids in summary.unanswered:
        more = f" and {count - SHOWN_IDS} more" if count > SHOWN_IDS else ""
        found.append(f"{count} without an answer ({', '.join(ids[:SHOWN_IDS])}{more}): {reason}")
    return section("unanswered", "Rows without an answer", *notes(found))


def _quantities(summary: ValidationSummary) -> Iterator[Section]:
    yield _quantity("Step time, relative error", summary.step_time)
    if summary.parts:
        title = "Parts of steps that generate and learn, and of services, relative error"
        rows = tuple((name.removesuffix("_s"), *_figures(errors)) for name, errors in summary.parts.items())
        yield section("errors", title, Table(title, ("", *HEADINGS), rows))
    for metric, errors in summary.peak_memory.items():
        yield _quantity(f"Peak memory, {METRIC_NAMES[metric]}, relative error", errors)


def _quantity(title: str, errors: QuantityErrors) -> Section:
    """Return one table: all rows, those of complete and of guessed configurations, every group."""
    if errors.all is None:
        return section("", title)
    rows = [
        ("all rows", *_figures(errors.all)),
        ("configuration complete", *_figures(errors.complete)),
        ("parts of it guessed", *_figures(errors.incomplete)),
        *(
            (f"{name}: {key}", *_figures(part))
            for name, groups in errors.by.items()
            for key, part in groups.items()
            if part is not None
        ),
    ]
    covered = errors.coverage
    said = covered and Note(
        f"The interval from p10 to p90 holds {covered.inside:.0%} of the truths; "
        f"{covered.below:.0%} lie below it, {covered.above:.0%} above."
    )
    return section("errors", title, Table(title, ("", *HEADINGS), tuple(rows)), said)


def _figures(errors: Errors | None) -> tuple[str, ...]:
    if errors is None:
        return ("0", *[fmt.UNKNOWN] * 4)
    return (str(errors.rows), *(f"{error:.1%}" for error in errors[1:4]), f"{errors.bias:+.1%}")


def _fits(summary: ValidationSummary) -> Section:
    counts, accuracy = summary.fits
    title = f"Fits or not: {accuracy or 0.0:.1%} right"
    rows = (
        ("ran", str(counts.ok_as_ok), str(counts.ok_as_oom)),
        ("ran out of memory", str(counts.oom_as_ok), str(counts.oom_as_oom)),
    )
    table = Table("Fits or not", ("", "said to fit", "said not to"), rows)
    return section("fits", title, table if accuracy is not None else None)


def _reliability(found: Reliability | None) -> Section:
    title = "P(OOM) against what happened, each source by the interval of the others"
    if found is None:
        return section("reliability", title)
    rows = tuple(
        (
            f"{one.low_fraction:.0%} to {one.high_fraction:.0%}", f"{one.predicted_fraction:.1%}",
            f"{one.observed_fraction:.1%}", f"{one.claims:,}", str(one.sources),
        )
        for one in found.bins
    )  # fmt: skip
    headings = ("P(OOM)", "predicted", "observed", "claims", "sources")
    right = found.accuracy_fraction is not None and Note(
        f"Fits or not, by the more likely: {found.accuracy_fraction:.1%} of {found.rows:,} rows right."
    )
    said = Note("A claim is a row's own outcome, or its measured peak against a room near the predicted one.")
    return section("reliability", title, Table(title, headings, rows), right or None, said)


def _worst(summary: ValidationSummary, title: str, most: int) -> Section:
    rows = tuple(
        (one.id, *_signed(one.step_time_error, one.peak_memory_error), one.explanation)
        for one in summary.worst[:most]
    )
    headings = ("row", "time", "memory", "what the prediction rests on")
    return section("worst", title, Table(title, headings, rows, ends_in_text=True))


def _signed(*errors: float | None) -> tuple[str, ...]:
    return tuple(fmt.UNKNOWN if error is None else f"{error:+.0%}" for error in errors)


def _rivals(summary: ValidationSummary) -> Section:
    title, rows, absent = "Rivals, on the rows that both answer", [], []
    for name, found in summary.rivals.items():
        for quantity, one in found.items():
            if isinstance(one, str):
                absent.append(f"{name} is left out: {one}.")
                continue
            what = "step time" if quantity == "step_time" else f"memory, {METRIC_NAMES[quantity]}"
            rows.append((f"{what}: {name}", *_figures(one.theirs)))
            rows.append((f"{what}: FineGauge", *_figures(one.ours)))
    return section("rivals", title, Table(title, ("", *HEADINGS), tuple(rows)), *notes(absent))


# --- on this machine

NOTICED = 0.02  # of the measured time


def here_report(found: HereValidation) -> Report:
    """Return what a terminal shows of a validation on this machine."""
    headings = (
        "step\npredicted", "\nmeasured", "\nerror", "peak\npredicted", "\nerror", "\nrun"
    )  # fmt: skip
    table = Table("Trials", headings, tuple(map(_trial_row, found.trials)), 0, ends_in_text=True)
    return Report.of(
        f"Validation on {found.device}",
        f"{found.device}, seed {found.seed}: predicted from single operators, then measured",
        section("trials", "", table),
        section("medians", "", *_medians(found.summary, found.trials)),
        tone="good" if found.summary.holds else "bad",
    )


def _trial_row(one: Trial) -> tuple[str, ...]:
    step = f"{1e3 * one.predicted_step_time_s:.1f} ms"
    peak = f"{one.predicted_peak_memory_bytes / MIB:.1f} MiB"
    if one.step_time_error is None or one.peak_memory_error is None:
        what = f"{one.run}: {one.outcome}, {one.reason}"
        return step, fmt.UNKNOWN, fmt.UNKNOWN, peak, fmt.UNKNOWN, what
    return (
        step, f"{1e3 * one.undisturbed_s:.1f} ms", f"{100 * one.step_time_error:+.1f} %",
        peak, f"{100 * one.peak_memory_error:+.2f} %", one.run,
    )  # fmt: skip


def _medians(summary: Summary, trials: Sequence[Trial]) -> Iterator[Note]:
    time, memory = summary.step_time_error_median, summary.peak_memory_error_median
    if time is None or memory is None:
        yield Note("No trial was completed.")
        return
    waited = max(one.waited_fraction for one in trials if one.complete)
    if waited > NOTICED:
        yield Note(
            f"Other programs had the processor for up to {100 * waited:.0f} % of the measured time; "
            "it is taken off. A quiet machine gives better figures."
        )
    for what, error, bar in (
        ("step time", time, summary.step_time_error_bar),
        ("peak memory", memory, summary.peak_memory_error_bar),
    ):
        word = "within" if error <= bar else "above"
        yield Note(f"median error of {what}: {100 * error:.2f} %, {word} {100 * bar:g} %")


GROUP_HEADINGS = ("GPU", "kind", "format", "evidence", "rows", "answered", "median", "p90", "bias", "covered")
EVIDENCE = {"timed": "GPU timed", "architecture": "its kin timed", "other": "others timed", "": UNKNOWN}


def operators_report(answer: OperatorsAnswer) -> Report:
    """Return the errors by GPU, kind and number format, and what has no answer."""
    summary = answer.summary
    missing = [f"{number:,} without an answer: {reason}" for reason, number in summary.unanswered.items()]
    unseen = {one.gpu: one.note for one in summary.groups if one.evidence in ("architecture", "other")}
    return Report.of(
        "Operators",
        f"{summary.answered:,} of {summary.rows:,} operators answered",
        section("unanswered", "", *notes(missing)),
        section("operators", "", Table("", GROUP_HEADINGS, tuple(map(_cells, summary.groups)), 4)),
        section("evidence", "", *notes([f"{note[:1].upper()}{note[1:]}." for note in unseen.values()])),
    )


def _cells(one: Group) -> tuple[str, ...]:
    shares = (one.median_error, one.p90_error, one.bias, one.covered_fraction)
    return (
        one.gpu, one.kind, one.dtype, EVIDENCE[one.evidence], f"{one.rows:,}", f"{one.answered:,}",
        *(percent(share) if share is not None else UNKNOWN for share in shares),
    )  # fmt: skip


MOST_DECIMALS = 3


def reproduction_report(
    answer: ReproduceAnswer, medium: str = TERMINAL, written: Sequence[str] = ()
) -> Report:
    """Return everything that was regenerated, in a FILE with charts; `written` files are named at the end."""
    regenerated = "Regenerated by FineGauge: ours beside theirs."
    return Report.of(
        answer.title,
        regenerated if medium == FILE else Toned(answer.title, "strong"),
        section("summary", "", *(Note(f"- {text}") for text in answer.summary)),
        *(_item_section(item, medium) for item in answer.items),
        *map(_finding_section, answer.findings),
        section("written", "", Note(f"Written: {', '.join(written)}") if written else None),
        subject=("; ".join(answer.sources),),
    )


def _item_section(one: ItemRows, medium: str) -> Section:
    item = one.item
    table = Table(one.title, item.columns, texts(one.rows), item.num_text_columns, indent=2)
    shown = panels_plot(one.key, one.title, item.panels, table) if medium == FILE and item.panels else table
    return section(one.key, one.title, shown, *notes(one.notes, tone="soft"))


def _finding_section(one: FindingRows) -> Section:
    table = Table(one.title, one.finding.headings, texts(one.rows), indent=2)
    title = f"Inconsistency {one.number}: {one.title}"
    return section(f"finding-{one.number}", title, Note(one.statement), table)


def texts(rows: Sequence[Sequence[Cell]]) -> tuple[tuple[str, ...], ...]:
    """Return the cells as text, the numbers of a column with the same decimals."""
    places = [_decimals(column) for column in zip(*rows, strict=True)]
    return tuple(
        tuple(_cell(cell, decimals) for cell, decimals in zip(row, places, strict=True)) for row in rows
    )


def _decimals(column: Sequence[Cell]) -> int:
    """Return the decimals that give the middle number of a column three digits that matter."""
    sizes = sorted(abs(cell) for cell in column if isinstance(cell, float) and cell)
    if not sizes or all(size == int(size) for size in sizes):
        return 0
    middle = sizes[len(sizes) // 2]
    return min(MOST_DECIMALS, max(int(middle < 1000), 2 - floor(log10(middle))))


def _cell(cell: Cell, decimals: int) -> str:
    if isinstance(cell, str):
        return cell
    return UNKNOWN if cell is None else f"{cell:,.{0 if isinstance(cell, int) else decimals}f}"
