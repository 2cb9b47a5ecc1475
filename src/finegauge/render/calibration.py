"""How `finegauge calibrate` and `learn` look: constants, a law with its charts, what finished runs teach."""

from collections.abc import Iterator, Sequence

from finegauge.answers.calibration import CalibrationAnswer, FinishedRun, LawAnswer, LearnAnswer, LearnedScope
from finegauge.laws.law import MAX_BATCH, Law, Scores
from finegauge.render import number_format as fmt
from finegauge.render.report import Note, Report, Table, Text, Toned, notes, section
from finegauge.reproduction import Panel, Series
from finegauge.units import GB, counted, gib

UNITS = {MAX_BATCH: "sequences", "samples_per_s": "samples/s"}


def calibration_report(answer: CalibrationAnswer, path: str | None = None) -> Report:
    """Return what a terminal shows of fitted constants, kept at `path`."""
    low, high = (f"{100 * (ratio - 1):+.0f} %" for ratio in answer.time_interval)
    constants = tuple(
        (name, one.meaning, fmt.digits(one.before), fmt.digits(one.value))
        for name, one in answer.constants.items()
    )
    sources = tuple(
        (
            one.source,
            str(one.num_rows),
            fmt.percents(one.left_out_median_error, "+"),
            fmt.percents(one.left_out_bias, "+"),
        )
        for one in answer.sources
    )
    known = any(one.left_out_bias is not None for one in answer.sources)
    why = "of sources left out, all weighing alike" if known else "as before: too few sources to tell anew"
    use = f"FINEGAUGE_CALIBRATION={path} finegauge estimate RUN" if path else "add -o FILE to keep it"
    return Report.of(
        "Calibration",
        Toned(
            f"{answer.name}: {answer.num_constants} constants fitted to {answer.num_rows} rows", "strong"
        ),
        section("constants", "",
                Table("Constants", ("constant", "meaning", "before", "after"), constants, 2, indent=2)),
        section("sources", "", Table("Sources left out",
                ("source", "rows", "left out: median |error|", "bias"), sources, indent=2)),
        section("interval", "", Note(
            f"  A time not yet measured lies {low} to {high} from its prediction "
            f"(10th to 90th percentile {why}).",
        ), Note(f"  {use}", tone="soft")),
    )  # fmt: skip


def law_report(answer: LawAnswer, drawn: Sequence[str] = ()) -> Report:
    """Return what a terminal shows of a law; `drawn` are the paths of its charts."""
    law = answer.stored.law
    shared = ", ".join(f"{name} {value}" for name, value in law.context.items())
    spread = ""
    if law.interval is not None:
        low, high = law.interval.low_ratio - 1, law.interval.high_ratio - 1
        spread = f"{100 * low:+.1f} to {100 * high:+.1f} %"
    lies = f"  A new measurement lies {spread} from the law (10th to 90th percentile)."
    constants = Table(
        "Constants", ("constant", "value", "95 % interval", "unit"), tuple(_constants(law)), indent=2
    )
    files = (
        ("stored as", answer.path),
        *(("drawn as", path) for path in drawn),
        ("used by", f"finegauge estimate RUN --law {law.name}"),
    )
    errors = Table("Errors", ("error", "points", "RMSE", "mean |error|"), tuple(_errors(law)), indent=2)
    return Report.of(
        law.name, Toned(f"{law.name}: {law.form.equation}", "strong"),
        section("constants", "", constants),
        section("errors", "", errors),
        section("notes", "", Note(lies) if spread else None, *notes(_notes(answer), tone="risky")),
        section("files", "", Table("Files", ("", ""), files, ends_in_text=True, indent=2)),
        subject=(
            f"Fitted to {law.scores.num_points} points of {law.table}{f' ({shared})' if shared else ''}.",
        ),
    )  # fmt: skip


def _constants(law: Law) -> Iterator[tuple[str, ...]]:
    for name, value in law.constants.items():
        width = law.half_widths.get(name)
        said = fmt.UNKNOWN if width is None else f"{fmt.digits(value - width)} to {fmt.digits(value + width)}"
        said = "set, not fitted" if name in law.held else said
        yield name, fmt.digits(value), said, law.form.units[name] or "1"


def _errors(law: Law) -> Iterator[tuple[str, ...]]:
    def row(what: str, scores: Scores) -> tuple[str, ...]:
        rmse = f"{fmt.digits(scores.rmse)} {UNITS[law.form.quantity]}"
        return what, str(scores.num_points), rmse, f"{100 * scores.mape_fraction:.1f} %"

    yield row("on the points it was fitted to", law.scores)
    if law.extrapolation is not None:
        yield row(f"fitted to {law.smaller_half}, on the rest", law.extrapolation)


def _notes(answer: LawAnswer) -> Iterator[str]:
    law = answer.stored.law
    for name, values in answer.mixed.items():
        if name not in ("seq_len", "model_memory_gb") or law.form.quantity != MAX_BATCH:
            shown = ", ".join(values[:3]) + (", …" if len(values) > 3 else "")
            yield (
                f"  The points mix {len(values)} values of {name} ({shown}): one law for all of them. "
                f"--where {name}=VALUE takes one."
            )
    if answer.num_left_out:
        yield f"  {answer.num_left_out} rows did not complete and were left out."
    if law.extrapolation is None:
        yield "  Too few points to test the law on batches that it was not fitted to."
    if not law.half_widths:
        yield "  As many constants as points: the law meets every point, and its error is not known."


def law_panels(answer: LawAnswer) -> tuple[Panel, Panel]:
    """Return two charts: the law through its points, and the residuals in percent."""
    law, unit = answer.stored.law, UNITS[answer.stored.quantity]
    capacity = law.form.quantity == MAX_BATCH
    label, per_unit = ("GPU memory, GB", GB) if capacity else ("batch, sequences", 1.0)
    fitted, residuals = list[Series](), list[Series]()
    for curve in answer.curves:
        name = f"sparsity {curve.sparsity_fraction:g}" + (f", {curve.seq_len:,} tokens" if capacity else "")
        x = tuple(law.form.size(one.condition) / per_unit for one in curve.points)
        measured = tuple(one.measured for one in curve.points)
        line_x, line_y = zip(*((size / per_unit, value) for size, value in curve.line), strict=True)
        fitted.append(Series(f"measured, {name}", name, x, measured, "points"))
        fitted.append(Series(f"law, {name}", name, line_x, line_y, "line"))
        apart = tuple(100 * (one.law / one.measured - 1) for one in curve.points)
        residuals.append(Series(name, name, x, apart))
    title = f"{law.form_name}: {law.scores.num_points} points, RMSE {fmt.digits(law.scores.rmse)} {unit}"
    return (
        Panel(title, label, unit, tuple(fitted)),
        Panel("Residuals", label, "law against measured, %", tuple(residuals), signed=True),
    )


USES = {
    "used": ("learned", "good"), "one_run": ("not used: one run", "soft"),
    "no_better": ("not used: no better", "risky"),
    "noise": ("nothing to learn: noise", "soft"),
    "shipped_worse": ("not used: shipped worse", "risky"),
}  # fmt: skip


def learn_report(answer: LearnAnswer) -> Report:
    """Return what is learned by GPU and framework, then the runs beside their predictions."""
    used = [one for one in answer.learned if one.use == "used"]
    told = sum(one.num_runs for one in answer.learned)
    return Report.of(
        "Learned",
        (
            Toned(f"{told} of {len(answer.runs)} finished runs", "strong"),
            f" teach; {len(used)} of {len(answer.learned)} GPUs and frameworks are predicted better by it.",
        ),
        section(
            "learned", "",
            Table("Median error of step times",
                  ("GPU, framework", "runs", "now", "run left out", "kernels", "each batch", "each step", ""),
                  tuple(map(_scope, answer.learned)), ends_in_text=True, indent=2),
            *notes(_shipped(answer), tone="soft"),
        ),
        section(
            "runs", "",
            Table("Runs", ("run", "step", "predicted", "now", "left out", "peak", "predicted"),
                  tuple(_run(one) for one in answer.runs if one.reason is None), indent=2),
            *notes((f"{one.name}: {one.reason}" for one in answer.runs if one.reason), tone="risky"),
            *notes(_assumed(answer), tone="soft"),
        ),
        section("use", "", *_use(answer, any_used=bool(used))),
        tone="good" if used else "neutral",
    )  # fmt: skip


def _scope(one: LearnedScope) -> tuple[Text, ...]:
    word, tone = USES[one.use]
    return (
        f"{one.gpu}, {one.framework or 'no framework'}",
        str(one.num_runs),
        fmt.percents(one.step_time_median_error),
        fmt.percents(one.left_out_median_error),
        f"x {one.pace_ratio:.2f}",
        f"{1e3 * one.trainer_s:.1f} ms",
        f"{1e3 * one.trainer_step_s:.1f} ms",
        Toned(word, tone),
    )


def _run(one: FinishedRun) -> tuple[Text, ...]:
    return (
        one.name,
        fmt.duration(one.step_time_s) if one.step_time_s else fmt.UNKNOWN,
        fmt.duration(one.predicted_step_time_s) if one.predicted_step_time_s else fmt.UNKNOWN,
        fmt.percents(one.step_time_error, "+"),
        fmt.percents(one.left_out_error, "+"),
        gib(one.peak_memory_bytes) if one.peak_memory_bytes else "",
        fmt.percents(one.peak_memory_error, "+") if one.peak_memory_bytes else "",
    )


def _shipped(answer: LearnAnswer) -> Iterator[str]:
    for one in answer.learned:
        if (rows := one.shipped) is not None:
            now, then = map(fmt.percents, (rows.step_time_median_error, rows.left_out_median_error))
            where = f"{one.gpu} with {one.framework}"
            yield f"{rows.num_rows} shipped rows of {where}: {now} now, {then} with it."
    yield "Left out: each run predicted by what the others teach. Memory is compared, and not learned."


def _assumed(answer: LearnAnswer) -> Iterator[str]:
    found: dict[str, int] = {}
    for one in answer.runs:
        for assumed in one.assumptions if one.reason is None else ():
            found[assumed] = found.get(assumed, 0) + 1
    for assumed, number in found.items():
        yield f"Assumed of {counted(number, 'run')}: {assumed}."


def _use(answer: LearnAnswer, *, any_used: bool) -> Iterator[Note]:
    if answer.stored:
        yield Note(f"Use it: FINEGAUGE_CALIBRATION={answer.stored} finegauge estimate RUN")
    elif any_used:
        yield Note("Add -o FILE to keep it.", tone="soft")
    else:
        yield Note("Predictions stay as they are: nothing is kept.", tone="soft")
