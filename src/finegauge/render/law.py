"""Fitted laws and calibrations as text, JSON and charts."""

import json
from collections.abc import Sequence
from typing import Any

from finegauge.laws.fit import SweepTable
from finegauge.laws.law import MAX_BATCH, Condition, Law, Scores
from finegauge.render.number_format import UNKNOWN, digits
from finegauge.render.terminal import WIDTH, columns, paint, wrapped
from finegauge.reproduction.published import Panel, Series
from finegauge.units import GB

UNITS = {MAX_BATCH: "sequences", "samples_per_s": "samples/s"}


def law_lines(law: Law, table: SweepTable, written: Sequence[str]) -> list[str]:
    """Return the law as a terminal shows it."""
    points = f"{law.scores.num_points} points of {law.table}"
    lines = [paint(f"{law.name}: {law.form.equation}", "bold")]
    lines += [*wrapped(f"Fitted to {points}{_shared(law)}.", indent=""), ""]
    lines += columns(("constant", "value", "95 % interval", "unit"), _constants(law), indent="  ")
    lines += ["", *columns(("error", "points", "RMSE", "mean |error|"), _errors(law), indent="  ")]
    if law.interval is not None:
        low, high = law.interval.low_ratio - 1, law.interval.high_ratio - 1
        spread = f"{100 * low:+.1f} to {100 * high:+.1f} %"
        lines += ["", f"  A new measurement lies {spread} from the law (10th to 90th percentile)."]
    for note in _notes(law, table):
        lines += [paint(f"  {line}", "yellow") for line in wrapped(note, indent="", width=WIDTH - 2)]
    use = f"  finegauge estimate RUN --law {law.name}"
    return [*lines, "", *(f"  {line}" for line in written), paint(use, "dim")]


def _shared(law: Law) -> str:
    """Return what all points have in common."""
    shared = ", ".join(f"{name} {value}" for name, value in law.context.items())
    return f" ({shared})" if shared else ""


def _constants(law: Law) -> list[list[str]]:
    rows = []
    for name, value in law.constants.items():
        width = law.half_widths.get(name)
        said = UNKNOWN if width is None else f"{digits(value - width)} to {digits(value + width)}"
        rows.append(
            [
                name,
                digits(value),
                "set, not fitted" if name in law.held else said,
                law.form.units[name] or "1",
            ]
        )
    return rows


def _errors(law: Law) -> list[list[str]]:
    rows = [_score_row("on the points it was fitted to", law, law.scores)]
    if law.extrapolation is not None:
        rows.append(_score_row(f"fitted to {law.smaller_half}, on the rest", law, law.extrapolation))
    return rows


def _score_row(what: str, law: Law, scores: Scores) -> list[str]:
    rmse = f"{digits(scores.rmse)} {UNITS[law.form.quantity]}"
    return [what, str(scores.num_points), rmse, f"{100 * scores.mape_fraction:.1f} %"]


def _notes(law: Law, table: SweepTable) -> list[str]:
    """Return what a user of the law should know."""
    notes = []
    for name, values in table.mixed.items():
        if name not in ("seq_len", "model_memory_gb") or law.form.quantity != MAX_BATCH:
            shown = ", ".join(values[:3]) + (", …" if len(values) > 3 else "")
            notes.append(
                f"The points mix {len(values)} values of {name} ({shown}): one law for all of them. "
                f"--where {name}=VALUE takes one."
            )
    if table.num_left_out:
        notes.append(f"{table.num_left_out} rows did not complete and were left out.")
    if law.extrapolation is None:
        notes.append("Too few points to test the law on batches that it was not fitted to.")
    if not law.half_widths:
        notes.append("As many constants as points: the law meets every point, and its error is not known.")
    return notes


def law_json(law: Law, table: SweepTable, path: str) -> str:
    """Return the law and its points as one JSON document."""
    points = [
        {**seen.condition._asdict(), "measured": seen.value, "law": law.at(seen.condition)}
        for seen in table.observations
    ]
    document = {
        "command": "calibrate", **law.to_json(), "path": path, "mixed": dict(table.mixed),
        "num_left_out": table.num_left_out, "points": points,
    }  # fmt: skip
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)


def law_panels(law: Law, table: SweepTable) -> tuple[Panel, Panel]:
    """Return two charts: the law through its points, and the residuals in percent."""
    fitted: list[Series] = []
    residuals: list[Series] = []
    capacity = law.form.quantity == MAX_BATCH
    groups = sorted({_group(seen.condition, capacity=capacity) for seen in table.observations}, reverse=True)
    for group in groups:
        points = [seen for seen in table.observations if _group(seen.condition, capacity=capacity) == group]
        points.sort(key=lambda seen: law.form.size(seen.condition))
        name = f"sparsity {group[0]:g}" + (f", {group[1]:,} tokens" if capacity else "")
        x = tuple(_place(law, seen.condition) for seen in points)
        fitted.append(Series(f"measured, {name}", name, x, tuple(seen.value for seen in points), "points"))
        drawn = _every_place(law, [seen.condition for seen in points])
        line = tuple(law.form.evaluate(law.constants, at) for at in drawn)
        fitted.append(Series(f"law, {name}", name, tuple(_place(law, at) for at in drawn), line, "line"))
        apart = tuple(100 * (law.at(seen.condition) / seen.value - 1) for seen in points)
        residuals.append(Series(name, name, x, apart))
    unit = UNITS[law.form.quantity]
    label = "GPU memory, GB" if capacity else "batch, sequences"
    return (
        Panel(
            f"{law.form_name}: {law.scores.num_points} points, RMSE {digits(law.scores.rmse)} {unit}",
            label,
            unit,
            tuple(fitted),
        ),
        Panel("Residuals", label, "law against measured, %", tuple(residuals), signed=True),
    )


def _group(at: Condition, *, capacity: bool) -> tuple[float, int]:
    return at.sparsity_fraction, at.seq_len if capacity else 0


def _place(law: Law, at: Condition) -> float:
    size = law.form.size(at)
    return size / GB if law.form.quantity == MAX_BATCH else size


def _every_place(law: Law, points: list[Condition]) -> list[Condition]:
    """Return the conditions at which the law is drawn: every batch, or the measured GPUs."""
    if law.form.quantity == MAX_BATCH:
        return points
    batches = range(min(at.batch for at in points), max(at.batch for at in points) + 1)
    return [points[0]._replace(batch=batch) for batch in batches]


def calibration_lines(content: dict[str, Any], path: str | None) -> list[str]:
    """Return a fitted calibration, as `calibrate.document` writes it, for the terminal."""
    fitted = f"{content['num_constants']} constants fitted to {content['num_rows']} rows"
    low, high = (f"{100 * (ratio - 1):+.0f} %" for ratio in content["time_interval"])
    constants = [
        [name, entry["meaning"], digits(entry["before"]), digits(entry["value"])]
        for name, entry in content["constants"].items()
    ]
    sources = [
        [
            one["source"],
            str(one["num_rows"]),
            _percent(one["left_out_median_error"]),
            _percent(one["left_out_bias"]),
        ]
        for one in content["sources"]
    ]
    known = any(one["left_out_bias"] is not None for one in content["sources"])
    why = "of sources left out, all weighing alike" if known else "as before: too few sources to tell anew"
    use = f"FINEGAUGE_CALIBRATION={path} finegauge estimate RUN" if path else "add -o FILE to keep it"
    return [
        paint(f"{content['name']}: {fitted}", "bold"),
        "",
        *columns(("constant", "meaning", "before", "after"), constants, left=2, indent="  "),
        "",
        *columns(("source", "rows", "left out: median |error|", "bias"), sources, indent="  "),
        "",
        *wrapped(
            f"A time not yet measured lies {low} to {high} from its prediction "
            f"(10th to 90th percentile {why}).",
            indent="  ",
        ),
        paint(f"  {use}", "dim"),
    ]


def _percent(fraction: float | None) -> str:
    """Return a signed share, or a dash where too few sources are known."""
    return UNKNOWN if fraction is None else f"{100 * fraction:+.1f} %"
