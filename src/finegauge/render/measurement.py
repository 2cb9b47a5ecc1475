"""What `finegauge measure` prints: the step, measured beside predicted, and what the instruments saw."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from finegauge.errors import FineGaugeError
from finegauge.prediction.predictor import Prediction
from finegauge.profile import Breakdown, Difference, Path, Profile, compare
from finegauge.render import number_format as fmt
from finegauge.render.instruments import instrument_lines, load_lines
from finegauge.render.json import run_document
from finegauge.render.run_parts import formula_of, subject
from finegauge.render.terminal import columns, paint, wrapped
from finegauge.store.document import plain

if TYPE_CHECKING:
    from finegauge.profile import Exchange, Work
    from finegauge.run.run import Run

KINDS = ("weights", "gradients", "optimizer")


def rank_lines(measured: Profile) -> list[str]:
    """Return a table of ranks and one of messages; nothing of a run in one process."""
    ranks = measured.observations.get("ranks")
    if not ranks:
        return []
    held = predicted_held(measured.run)
    rows = [
        [
            f"  {rank['rank']}",
            fmt.duration(rank["step_time_s"]),
            *(fmt.size(rank[f"{kind}_bytes"]) for kind in KINDS),
            fmt.size(rank["peak_memory_bytes"]) if rank["peak_memory_bytes"] else fmt.UNKNOWN,
        ]
        for rank in ranks
    ]
    if held:
        rows.append(["  predicted", "", *map(fmt.size, held), ""])
    table = columns(["  rank", "step", *KINDS, "peak"], rows)
    return [f"{paint('Ranks', 'bold')}, what each holds for good", *table, "", *_message_lines(measured)]


def _message_lines(measured: Profile) -> list[str]:
    """Return what the first rank sent in a step, by kind, beside what was predicted."""
    sent = {one["kind"]: one for one in measured.observations["ranks"][0]["collectives"]}
    predicted: dict[str, tuple[float, float]] = {}
    for volume in _exchanges(measured.run):
        times, size = predicted.get(volume.kind, (0.0, 0.0))
        predicted[volume.kind] = times + volume.num_per_step, size + volume.bytes_per_step
    rows = []
    for kind in dict.fromkeys([*sent, *predicted]):
        ours, theirs = sent.get(kind), predicted.get(kind)
        rows.append(
            [
                f"  {kind.replace('_', '-')}",
                f"{ours['messages']}" if ours else fmt.UNKNOWN,
                fmt.size(ours["bytes"]) if ours else fmt.UNKNOWN,
                f"{theirs[0]:.0f}" if theirs else fmt.UNKNOWN,
                fmt.size(theirs[1]) if theirs else fmt.UNKNOWN,
                fmt.duration(ours["seconds"]) if ours else fmt.UNKNOWN,
            ]
        )
    titles = ["  kind", "messages", "bytes", "predicted", "bytes", "seconds"]
    title = f"{paint('Exchanged', 'bold')} by a rank in one step, each message waited for on its own"
    return [title, *columns(titles, rows)]


def predicted_held(run: "Run") -> tuple[float, float, float] | None:
    """Return the predicted bytes of weights, gradients and optimizer states of what a rank trains."""
    from finegauge.model.graph import value_run
    from finegauge.prediction.sharding import gradients_left, share_of

    trained = (run, value_run(run)) if run.phase == "ppo" else (run,)
    try:
        models = [share_of(one).graph.weights for one in trained]
    except FineGaugeError:
        return None
    return (
        sum(weights.base_bytes + weights.adapter_bytes for weights in models),
        sum(weights.gradient_bytes for weights in models) * gradients_left(run),
        sum(weights.optimizer_bytes for weights in models),
    )


def _exchanges(run: "Run") -> "list[Exchange]":
    """Return what is predicted to be sent; nothing where nothing is predicted."""
    from finegauge.prediction.collectives import exchanges

    try:
        return exchanges(run)
    except FineGaugeError:
        return []


OUTCOMES = {
    "completed": ("Measured", "green"),
    "out_of_memory": ("Out of memory", "red"),
    "interrupted": ("Interrupted", "yellow"),
    "unsupported": ("Cannot be measured", "yellow"),
}
LEAST_FRACTION = 0.005  # of the whole: smaller parts are left to --json
MOST_PARTS = 30
MOST_DIFFERENCES = 5
NOTABLE_WAIT_FRACTION = 0.03

Unit = Callable[[float], str]  # how an amount is printed


class Part(NamedTuple):
    """One part of a quantity, measured and predicted, in the quantity's unit."""

    path: Path
    measured: float
    predicted: float | None  # None where nothing is predicted


def measurement_lines(measured: Profile, prediction: Prediction) -> list[str]:
    """Return the whole report about one trial."""
    lines = [headline(measured), *wrapped(paint(subject(measured.run), "dim"), indent="")]
    if measured.outcome != "completed":
        return [*lines, *_predicted_lines(measured, prediction)]
    predicted = prediction.profile
    for section in (
        memory_lines(measured, predicted),
        time_lines(measured, predicted),
        difference_lines(measured, prediction),
        rank_lines(measured),
        instrument_lines(measured),
        [*machine_lines(measured), *(wrapped(prediction.missing, indent="  ") if prediction.missing else [])],
    ):
        if section:
            lines += ["", *section]
    return lines


def measurements_lines(found: Sequence[tuple[Profile, Prediction]]) -> list[str]:
    """Return the whole report about one trial, or about one endpoint under several loads."""
    if len(found) == 1:
        return measurement_lines(*found[0])
    first, prediction = found[0]
    whole = [measured for measured, _ in found if measured.outcome == "completed"]
    lines = [headline(measured) for measured, _ in found if measured.outcome != "completed"]
    if whole:
        loads = f"{len(whole)} load{'s' * (len(whole) != 1)}"
        lines.insert(0, f"{paint('Measured', 'bold', 'green')} on {first.fingerprint['device']}, {loads}.")
    lines += [*wrapped(paint(subject(first.run), "dim"), indent=""), ""]
    lines += [f"{paint('Serving', 'bold')}, a row for each load"]
    lines += [*load_lines(found), "", *machine_lines(first)]
    return lines + (wrapped(prediction.missing, indent="  ") if prediction.missing else [])


def headline(measured: Profile) -> str:
    """Return the outcome in one line."""
    word, colour = OUTCOMES.get(measured.outcome, ("No data", "red"))
    word = paint(word, "bold", colour)
    if measured.outcome != "completed":
        return f"{word}: {measured.reason or 'no reason is known'}."
    timing = measured.observations.get("timing", {})
    step = fmt.duration(measured.step_time_s.total)
    if "p10_s" in timing:
        step += f" [{fmt.duration(timing['p10_s'])} – {fmt.duration(timing['p90_s'])}]"
    rates = f"{fmt.digits(measured.tokens_per_s)} tokens/s"
    memory = measured.peak_memory_bytes.total
    peak = f", peak {fmt.size(memory)}" if memory else ""
    mfu = f", MFU {fmt.percent(measured.mfu_fraction)}" if measured.mfu_fraction else ""
    return (
        f"{word} on {measured.fingerprint.get('device', 'this machine')}: {step} a step, {rates}{mfu}{peak}."
    )


def memory_lines(measured: Profile, predicted: Profile | None) -> list[str]:
    """Return what is alive at the fullest moment, by kind, and the peaks of the phases."""
    kinds = beside(measured.peak_memory_bytes, predicted.peak_memory_bytes if predicted else None, 1)
    if not kinds or "serving" in measured.observations:  # of a server nothing is seen but its answers
        return []
    phase = f" (fullest in {measured.peak_phase})" if measured.peak_phase else ""
    lines = [f"{paint('Memory', 'bold')}, as torch allocates it{phase}"]
    lines += _table(("  kind",), kinds, fmt.size, kinds[0].measured)
    beyond = measured.device_memory_bytes.total - measured.peak_memory_bytes.total
    if beyond > 0:
        lines.append(f"  Beside this the process holds {fmt.size(beyond)} (allocator, libraries).")
    phases = beside(_by_phase(measured), _by_phase(predicted) if predicted else None, 1)
    if len(phases) > 2:
        lines += ["", f"{paint('Memory', 'bold')}, peak of each phase"]
        lines += _table(("  phase",), phases[1:], fmt.size)
    return lines


def time_lines(measured: Profile, predicted: Profile | None) -> list[str]:
    """Return the seconds of the median step by stage, and by part of the model where they are known."""
    step, theirs = measured.step_time_s, predicted.step_time_s if predicted else None
    if theirs is not None and not theirs.parts:
        theirs = None
    stages = beside(step, theirs, 1)
    lines = [
        f"{paint('Time', 'bold')} of one step",
        *_table(("  stage",), stages, fmt.duration, step.total),
    ]
    for depth, headings in ((2, ("  stage", "part")), (3, ("  stage", "part", "operator"))):
        if step.depth >= depth:
            parts = [part for part in beside(step, theirs, depth)[1:] if len(part.path) == depth]
            shown = [part for part in parts if part.measured >= LEAST_FRACTION * step.total][:MOST_PARTS]
            lines += ["", *_table(headings, shown, fmt.duration, step.total)]
    return lines


def difference_lines(measured: Profile, prediction: Prediction) -> list[str]:
    """Return the largest differences between measured and predicted, each with its explanation."""
    predicted = prediction.profile
    if predicted is None:
        return []
    lines = [
        f"  {line}" for text in _circumstances(measured, predicted) for line in wrapped(text, indent="    ")
    ]
    for name, ours, theirs, unit in (
        ("time", measured.step_time_s, predicted.step_time_s, fmt.duration),
        ("memory", measured.peak_memory_bytes, predicted.peak_memory_bytes, fmt.size),
    ):
        if not ours.parts or not theirs.parts:
            continue
        depth = min(ours.depth, theirs.depth)
        parts = beside(ours, theirs, depth)[1:]
        largest = sorted(parts, key=lambda part: -abs(part.measured - (part.predicted or 0.0)))
        for part in largest[:MOST_DIFFERENCES]:
            gap = part.measured - (part.predicted or 0.0)
            if abs(gap) < 0.01 * ours.total:
                continue
            text = f"{name}, {' / '.join(part.path)}: {explanation(part, gap, unit, measured, prediction)}"
            lines += [f"  {line}" for line in wrapped(text, indent="    ")]
    return [f"{paint('Differences', 'bold')}, the largest first", *lines] if lines else []


def explanation(part: Part, gap: float, unit: Unit, measured: Profile, prediction: Prediction) -> str:
    """Return what one difference is, and what the prediction had counted."""
    predicted = part.predicted or 0.0
    more = "more" if gap > 0 else "less"
    text = f"{unit(abs(gap))} {more} than predicted ({unit(part.measured)} against {unit(predicted)})"
    if not predicted:
        return f"{text}; the prediction counts nothing here by this name"
    if not part.measured:
        return f"{text}; measured under another name, or not run"
    spread = measured.observations.get("timing", {}).get("spread_fraction", 0.0)
    if unit is fmt.duration and abs(gap) < spread * part.measured:
        text += f", within the spread of the steps ({fmt.percent(spread)})"
    if unit is fmt.duration and part.path in prediction.work:
        return f"{text}; {rates(prediction.work[part.path], part.measured, predicted)}"
    counted = formula_of(part.path, prediction.formulas)
    return f"{text}; predicted as {counted}" if counted else text


def rates(work: "Work", measured_s: float, predicted_s: float) -> str:
    """Return the rate that was reached and the rate that was predicted, of what limits the operator."""
    if work.flops:
        return (
            f"{fmt.si(work.flops)}FLOP at {fmt.si(work.flops / measured_s)}FLOP/s, "
            f"predicted at {fmt.si(work.flops / predicted_s)}FLOP/s"
        )
    return (
        f"{fmt.size(work.num_bytes)} read and written at {fmt.size(work.num_bytes / measured_s)}/s, "
        f"predicted at {fmt.size(work.num_bytes / predicted_s)}/s"
    )


def beside(measured: Breakdown, predicted: Breakdown | None, depth: int) -> list[Part]:
    """Return the total, then every part at `depth` in either, the largest measured first."""
    ours = measured.at(depth)
    theirs = predicted.at(depth) if predicted is not None else Breakdown({})
    paths = dict.fromkeys([path for path, _ in ours] + [path for path, _ in theirs])
    if not paths:
        return []

    def other(path: Path) -> float | None:
        return None if predicted is None else theirs.parts.get(path, 0.0)

    total = Part((), ours.total, None if predicted is None else theirs.total)
    return [total, *(Part(path, ours.parts.get(path, 0.0), other(path)) for path in paths)]


def machine_lines(measured: Profile) -> list[str]:
    """Return what the measurement was taken on."""
    found = measured.fingerprint
    software = [
        f"{name} {found[name]}" for name in ("torch", "transformers", "peft", "driver") if name in found
    ]
    threads = f"{found['threads']} thread{'s' * (found['threads'] != '1')}" if "threads" in found else ""
    parts = [found.get("device", ""), threads, *software, found.get("date", "")]
    lines = wrapped(f"{paint('Machine', 'bold')}  {', '.join(part for part in parts if part)}.", indent="  ")
    notes = [*measured.source.assumptions, *measured.observations.get("notes", [])]
    return lines + (wrapped(f"{paint('Notes', 'bold')}  {'; '.join(notes)}.", indent="  ") if notes else [])


def _by_phase(profile: Profile) -> Breakdown:
    """Return the peak of each phase."""
    return profile.phase_memory_bytes.at(1)


def _table(headings: tuple[str, ...], parts: Sequence[Part], unit: Unit, whole: float = 0.0) -> list[str]:
    """Return one row per part: measured, its share of the `whole`, predicted and how far that is off."""
    known = any(part.predicted is not None for part in parts)
    rows = []
    for part in parts:
        names = [*part.path, *[""] * (len(headings) - len(part.path))] if part.path else ["total"]
        names = [f"  {names[0]}", *names[1:], *[""] * (len(headings) - len(names))]
        row = [*names, unit(part.measured) if part.measured else fmt.UNKNOWN]
        if whole:
            share = fmt.percent(part.measured / whole) if part.path else "100 %"
            row.append(share if part.measured else fmt.UNKNOWN)
        if known:
            row += [unit(part.predicted) if part.predicted else fmt.UNKNOWN, error_text(part)]
        rows.append(row)
    titles = [
        *headings,
        "measured",
        *(["share"] if whole else []),
        *(["predicted", "error"] if known else []),
    ]
    return columns(titles, rows, left=len(headings))


def error_text(part: Part) -> str:
    """Return how far the prediction is off the measurement: "+4 %"."""
    if not part.predicted or not part.measured:
        return fmt.UNKNOWN
    error = round(100 * (part.predicted / part.measured - 1))
    return f"{error:+d} %" if error else "0 %"


def _circumstances(measured: Profile, predicted: Profile) -> list[str]:
    """Return what was different about the steps themselves."""
    found = []
    waited = measured.observations.get("timing", {}).get("waited_fraction", 0.0)
    if waited > NOTABLE_WAIT_FRACTION:
        found.append(
            f"The machine was busy: for {fmt.percent(waited)} of the time the steps waited for a "
            "processor that another program had, so every time is that much longer."
        )
    if predicted.step_tokens and abs(measured.step_tokens / predicted.step_tokens - 1) > 0.01:
        found.append(
            f"The measured steps held {measured.step_tokens:,.0f} tokens on average, the data set's mean is "
            f"{predicted.step_tokens:,.0f}."
        )
    return found


def _predicted_lines(measured: Profile, prediction: Prediction) -> list[str]:
    """Return what the prediction had said about a trial that brought no data."""
    predicted = prediction.profile
    if predicted is None:
        return []
    needed, usable = predicted.device_memory_bytes.total, measured.capacity_bytes or predicted.capacity_bytes
    outcome = "completed" if needed <= usable else "out of memory"
    return ["", f"Predicted: {outcome}, {fmt.size(needed)} of {fmt.size(usable)} usable."]


def measurement_json(measured: Profile, predicted: Profile | None, missing: str = "") -> str:
    """Return the whole JSON text: the question, the step as measured, as predicted, and the differences."""
    return measurements_json([(measured, predicted, missing)])


def measurements_json(found: Sequence[tuple[Profile, Profile | None, str]]) -> str:
    """Return the whole JSON text about (measured, predicted, why not), one of them or several loads."""
    results = [json.loads(json.dumps(plain(_result(*one)))) for one in found]
    return run_document("measure", found[0][0].run, results)


def _result(measured: Profile, predicted: Profile | None, missing: str) -> dict[str, Any]:
    """Return one measurement, its prediction and their differences."""
    return {
        "gpu": measured.run.gpu,
        "outcome": measured.outcome,
        "reason": measured.reason,
        "measured": measured_json(measured),
        "predicted": None if predicted is None else predicted.to_json(),
        "not_predicted": missing,
        "differences": [] if predicted is None else [_difference(d) for d in compare(predicted, measured)],
    }


def measured_json(measured: Profile) -> Mapping[str, Any]:
    """Return a measured profile: what every profile has, every step's seconds, machine and instruments."""
    return {
        **measured.to_json(),
        "step_energy_j": measured.step_energy_j.total if measured.step_energy_j.parts else None,
        "peak_memory_breakdown_bytes": measured.peak_memory_bytes.to_json(),
        "phase_memory_breakdown_bytes": measured.phase_memory_bytes.to_json(),
        "step_times_s": list(measured.step_times_s),
        "step_tokens": measured.step_tokens,
        "step_sequences": measured.step_sequences,
        "fingerprint": dict(measured.fingerprint),
        "observations": measured.observations,
    }


def _difference(one: Difference) -> dict[str, Any]:
    """Return one quantity at one path, predicted against measured."""
    return {
        "quantity": one.quantity,
        "path": list(one.path),
        "predicted": one.ours,
        "measured": one.theirs,
        "error_ratio": one.error_ratio,
    }
