"""How measurements look: the step, measured beside predicted, and what the instruments saw."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from finegauge.answers.measurement import MeasureAnswer, MeasuredCapacityAnswer, Measurement
from finegauge.answers.profile import WHOLE
from finegauge.profile import Breakdown, Path, Profile, Work
from finegauge.render import number_format as fmt
from finegauge.render.instruments import instrument_sections, load_table
from finegauge.render.plots.many_runs import Pair, bars_plot, experts_plot, loads_of
from finegauge.render.plots.step import memory_plot, step_time_plot
from finegauge.render.report import (
    TERMINAL,
    Block,
    Note,
    Plot,
    Report,
    Section,
    Table,
    Text,
    Tile,
    Toned,
    notes,
    section,
)
from finegauge.render.run_parts import formula_of, input_table, subject, time_bar, title_of
from finegauge.units import counted

OUTCOMES = {
    "completed": ("Measured", "good"),
    "out_of_memory": ("Out of memory", "bad"),
    "interrupted": ("Interrupted", "risky"),
    "unsupported": ("Cannot be measured", "risky"),
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

    @property
    def error(self) -> str:
        """Return how far the prediction is off the measurement: "+4 %"."""
        return fmt.error_percent(self.predicted, self.measured)


def measure_report(answer: MeasureAnswer, medium: str = TERMINAL) -> Report:
    """Return the report about one trial, or about one endpoint under several loads."""
    one = answer.results[0]
    if len(answer.results) > 1:
        return _loads_report(answer)
    sections = _terminal_sections(one) if medium == TERMINAL else _file_sections(one)
    return Report.of(
        title_of(one.profile.run),
        headline(one.profile),
        *sections,
        tone=OUTCOMES.get(one.outcome, ("", "bad"))[1],
        subject=(subject(one.profile.run),),
        tiles=() if medium == TERMINAL else _tiles(one),
    )


def _loads_report(answer: MeasureAnswer) -> Report:
    one, whole = answer.results[0], [found for found in answer.results if found.is_whole]
    failed = tuple(Note(headline(found.profile)) for found in answer.results if not found.is_whole)
    said: Text = ""
    if whole:
        where = f" on {one.profile.fingerprint['device']}, {counted(len(whole), 'load')}."
        said = (Toned("Measured", "strong", "good"), where)
    return Report.of(
        title_of(one.profile.run),
        said,
        section("failed", "", *failed),
        section("serving", "Serving", load_table(answer.results), said="a row for each load"),
        section("machine", "", *_machine(one)),
        tone="good" if whole else "bad",
        subject=(subject(one.profile.run),),
    )


def headline(measured: Profile) -> Text:
    """Return the outcome in one line."""
    word, tone = OUTCOMES.get(measured.outcome, ("No data", "bad"))
    if measured.outcome != "completed":
        return Toned(word, "strong", tone), f": {measured.reason or 'no reason is known'}."
    timing = measured.observations.get("timing", {})
    step = fmt.duration(measured.step_time_s.total)
    if "p10_s" in timing:
        step += f" [{fmt.duration(timing['p10_s'])} – {fmt.duration(timing['p90_s'])}]"
    rates = f"{fmt.digits(measured.tokens_per_s)} tokens/s"
    memory = measured.peak_memory_bytes.total
    peak = f", peak {fmt.size(memory)}" if memory else ""
    mfu = f", MFU {fmt.percent(measured.mfu_fraction)}" if measured.mfu_fraction else ""
    device = measured.fingerprint.get("device", "this machine")
    return Toned(word, "strong", tone), f" on {device}: {step} a step, {rates}{mfu}{peak}."


# --- terminal


def _terminal_sections(one: Measurement) -> tuple[Section, ...]:
    if not one.is_whole:
        return (section("predicted", "", *_what_was_predicted(one)),)
    return (
        *_memory(one),
        *_moments(one),
        *_time(one),
        section("differences", "Differences", *_differences(one), said="the largest first"),
        *_ranks(one),
        *instrument_sections(one.profile.observations),
        section("machine", "", *_machine(one)),
    )


def _what_was_predicted(one: Measurement) -> Iterator[Note]:
    if one.predicted is not None:
        needed = one.predicted.device_memory_bytes.total
        usable = one.profile.capacity_bytes or one.predicted.capacity_bytes
        outcome = "completed" if needed <= usable else "out of memory"
        yield Note(f"Predicted: {outcome}, {fmt.size(needed)} of {fmt.size(usable)} usable.")


def _memory(one: Measurement) -> Iterator[Section]:
    measured, predicted = one.profile, one.predicted
    kinds = beside(measured.peak_memory_bytes, predicted.peak_memory_bytes if predicted else None, 1)
    if not kinds or "serving" in measured.observations:  # of a server nothing is seen but its answers
        return
    peak = f" (peak, during {measured.peak_phase})" if measured.peak_phase else ""
    beyond = measured.device_memory_bytes.total - measured.peak_memory_bytes.total
    rest = f"  Beside this the process holds {fmt.size(beyond)} (allocator, libraries)."
    table = _beside_table(("kind",), kinds, fmt.size, kinds[0].measured)
    said = f"as torch allocates it{peak}"
    yield section("memory", "Memory", table, Note(rest) if beyond > 0 else None, said=said)
    phases = beside(_by_phase(measured), _by_phase(predicted) if predicted else None, 1)
    if len(phases) > 2:
        table = _beside_table(("phase",), phases[1:], fmt.size)
        yield section("phases", "Memory", table, said="peak of each phase")


def _moments(one: Measurement) -> Iterator[Section]:
    """Yield the peak of every moment of the job in the first two processes, measured and predicted."""
    rows = []
    for moment in one.moments:
        if moment.rank > 1:
            continue
        row = [moment.moment, str(moment.rank)]
        for ours, theirs in (
            (moment.allocated_bytes, moment.predicted_allocated_bytes),
            (moment.resident_bytes, moment.predicted_resident_bytes),
        ):
            known = fmt.size(theirs) if theirs is not None else fmt.UNKNOWN
            row += [fmt.size(ours) if ours else fmt.UNKNOWN, known, fmt.error_percent(theirs, ours)]
        rows.append(tuple(row))
    headings = ("moment", "rank", "allocated", "predicted", "error", "process", "predicted", "error")
    before = one.profile.observations.get("moments") or [{"baseline_bytes": 0.0}]
    said = f"of a process that holds {fmt.size(before[0]['baseline_bytes'])} before"
    table = Table("Every moment", headings, tuple(rows), 2, indent=2)
    yield section("moments", "Every moment at its peak", table, said=said)


def _time(one: Measurement) -> Iterator[Section]:
    step, theirs = one.profile.step_time_s, one.predicted.step_time_s if one.predicted else None
    if theirs is not None and not theirs.parts:
        theirs = None
    stages = _beside_table(("stage",), beside(step, theirs, 1), fmt.duration, step.total)
    yield section("time", "Time of one step", stages)
    for depth, headings in ((2, ("stage", "part")), (3, ("stage", "part", "operator"))):
        if step.depth >= depth:
            parts = [part for part in beside(step, theirs, depth)[1:] if len(part.path) == depth]
            shown = [part for part in parts if part.measured >= LEAST_FRACTION * step.total][:MOST_PARTS]
            table = _beside_table(headings, shown, fmt.duration, step.total)
            yield section(f"time-{depth}", "", table)


def _by_phase(profile: Profile) -> Breakdown:
    return profile.phase_memory_bytes.at(1)


def _beside_table(headings: tuple[str, ...], parts: Sequence[Part], unit: Unit, whole: float = 0.0) -> Table:
    """Return one row per part: measured, its share of the `whole`, predicted and how far that is off."""
    known = any(part.predicted is not None for part in parts)
    rows = []
    for part in parts:
        names = part.path or ("total",)
        row = [*names, *[""] * (len(headings) - len(names))]
        row.append(unit(part.measured) if part.measured else fmt.UNKNOWN)
        if whole:
            share = fmt.percent(part.measured / whole) if part.path else "100 %"
            row.append(share if part.measured else fmt.UNKNOWN)
        if known:
            row += [unit(part.predicted) if part.predicted else fmt.UNKNOWN, part.error]
        rows.append(tuple(row))
    more = (*(["share"] if whole else []), *(["predicted", "error"] if known else []))
    titles = (*headings, "measured", *more)
    return Table("Measured beside predicted", titles, tuple(rows), len(headings), indent=2)


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


def _differences(one: Measurement) -> Iterator[Note]:
    measured, predicted = one.profile, one.predicted
    if predicted is None:
        return
    yield from (Note(f"  {text}") for text in _circumstances(measured, predicted))
    for name, ours, theirs, unit in (
        ("time", measured.step_time_s, predicted.step_time_s, fmt.duration),
        ("memory", measured.peak_memory_bytes, predicted.peak_memory_bytes, fmt.size),
    ):
        if not ours.parts or not theirs.parts:
            continue
        parts = beside(ours, theirs, min(ours.depth, theirs.depth))[1:]
        largest = sorted(parts, key=lambda part: -abs(part.measured - (part.predicted or 0.0)))
        for part in largest[:MOST_DIFFERENCES]:
            if abs(part.measured - (part.predicted or 0.0)) >= 0.01 * ours.total:
                yield Note(f"  {name}, {' / '.join(part.path)}: {_explanation(part, unit, one)}")


def _explanation(part: Part, unit: Unit, one: Measurement) -> str:
    predicted = part.predicted or 0.0
    gap = part.measured - predicted
    more = "more" if gap > 0 else "less"
    text = f"{unit(abs(gap))} {more} than predicted ({unit(part.measured)} against {unit(predicted)})"
    if not predicted:
        return f"{text}; the prediction counts nothing here by this name"
    if not part.measured:
        return f"{text}; measured under another name, or not run"
    spread = one.profile.observations.get("timing", {}).get("spread_fraction", 0.0)
    if unit is fmt.duration and abs(gap) < spread * part.measured:
        text += f", within the spread of the steps ({fmt.percent(spread)})"
    if unit is fmt.duration and part.path in one.prediction.work:
        return f"{text}; {_rates(one.prediction.work[part.path], part.measured, predicted)}"
    counted = formula_of(part.path, one.prediction.formulas)
    return f"{text}; predicted as {counted}" if counted else text


def _rates(work: Work, measured_s: float, predicted_s: float) -> str:
    if work.flops:
        return (
            f"{fmt.si(work.flops)}FLOP at {fmt.si(work.flops / measured_s)}FLOP/s, "
            f"predicted at {fmt.si(work.flops / predicted_s)}FLOP/s"
        )
    return (
        f"{fmt.size(work.num_bytes)} read and written at {fmt.size(work.num_bytes / measured_s)}/s, "
        f"predicted at {fmt.size(work.num_bytes / predicted_s)}/s"
    )


def _circumstances(measured: Profile, predicted: Profile) -> Iterator[str]:
    waited = measured.observations.get("timing", {}).get("waited_fraction", 0.0)
    if waited > NOTABLE_WAIT_FRACTION:
        yield (
            f"The machine was busy: for {fmt.percent(waited)} of the time the steps waited for a "
            "processor that another program had, so every time is that much longer."
        )
    if predicted.step_tokens and abs(measured.step_tokens / predicted.step_tokens - 1) > 0.01:
        yield (
            f"The measured steps held {measured.step_tokens:,.0f} tokens on average, the data set's mean is "
            f"{predicted.step_tokens:,.0f}."
        )


def _ranks(one: Measurement) -> Iterator[Section]:
    """Yield what each rank holds for good, and what the first one sent; nothing of one process."""
    ranks = one.profile.observations.get("ranks")
    if not ranks:
        return
    kinds = ("weights", "gradients", "optimizer")
    rows = [
        (
            str(rank["rank"]),
            fmt.duration(rank["step_time_s"]),
            *(fmt.size(rank[f"{kind}_bytes"]) for kind in kinds),
            fmt.size(rank["peak_memory_bytes"]) if rank["peak_memory_bytes"] else fmt.UNKNOWN,
        )
        for rank in ranks
    ]
    if one.held:
        rows.append(("predicted", "", *map(fmt.size, one.held), ""))
    table = Table("Ranks", ("rank", "step", *kinds, "peak"), tuple(rows), indent=2)
    yield section("ranks", "Ranks", table, said="what each holds for good")
    said = "by a rank in one step, each message waited for on its own"
    yield section("exchanged", "Exchanged", _messages(one, ranks[0]["collectives"]), said=said)


def _messages(one: Measurement, collectives: Sequence[dict[str, float]]) -> Table:
    sent = {str(found["kind"]): found for found in collectives}
    predicted: dict[str, tuple[float, float]] = {}
    for message in one.exchanged:
        times, size = predicted.get(message.kind, (0.0, 0.0))
        predicted[message.kind] = times + message.num_per_step, size + message.bytes_per_step
    rows = []
    for kind in dict.fromkeys([*sent, *predicted]):
        ours, theirs = sent.get(kind), predicted.get(kind)
        rows.append(
            (
                kind.replace("_", "-"),
                *((f"{ours['messages']}", fmt.size(ours["bytes"])) if ours else (fmt.UNKNOWN,) * 2),
                *((f"{theirs[0]:.0f}", fmt.size(theirs[1])) if theirs else (fmt.UNKNOWN,) * 2),
                fmt.duration(ours["seconds"]) if ours else fmt.UNKNOWN,
            )
        )
    headings = ("kind", "messages", "bytes", "predicted", "bytes", "seconds")
    return Table("Exchanged in one step", headings, tuple(rows), indent=2)


def _machine(one: Measurement) -> Iterator[Note]:
    found = one.profile.fingerprint
    software = [
        f"{name} {found[name]}" for name in ("torch", "transformers", "peft", "driver") if name in found
    ]
    threads = f"{found['threads']} thread{'s' * (found['threads'] != '1')}" if "threads" in found else ""
    parts = [found.get("device", ""), threads, *software, found.get("date", "")]
    yield Note(f"{', '.join(filter(None, parts))}.", label="Machine")
    remarks = [*one.profile.source.assumptions, *one.profile.observations.get("notes", [])]
    if remarks:
        yield Note(f"{'; '.join(remarks)}.", label="Notes")
    if one.not_predicted:
        yield Note(one.not_predicted)


# --- file


def _tiles(one: Measurement) -> Iterator[Tile]:
    measured, predicted = one.profile, one.predicted
    word = OUTCOMES.get(measured.outcome, ("No data", ""))[0]
    yield Tile("Outcome", word, measured.fingerprint.get("device", ""))
    for name, quantity, said in (
        ("One step", "step_time_s", fmt.duration),
        ("Peak memory", "peak_memory_bytes", fmt.size),
    ):
        ours = getattr(measured, quantity).total
        theirs = getattr(predicted, quantity).total if predicted else 0.0
        if ours:
            apart = f"predicted {said(theirs)}, {fmt.error_percent(theirs, ours)}"
            yield Tile(name, said(ours), apart if theirs else "not predicted")
    if measured.tokens_per_s:
        rate = f"{fmt.digits(measured.samples_per_s)} samples/s"
        yield Tile("Throughput", f"{fmt.digits(measured.tokens_per_s)} tokens/s", rate)
    if measured.step_energy_j.total:
        yield Tile("Energy", f"{fmt.digits(measured.step_energy_j.total)} J", "a step, of the boards")


def _file_sections(one: Measurement) -> tuple[Section, ...]:
    measured, predicted, step = one.profile, one.predicted, one.profile.step_time_s
    held, said = measured, ""
    if not measured.device_memory_bytes.total and predicted is not None and not step.total:
        held, said = predicted, "The trial brought no figures; this is what is predicted for it."
    time: tuple[Block, ...] = (time_bar(measured), step_time_plot(measured)) if step.total else ()
    machine = tuple((name, str(value)) for name, value in measured.fingerprint.items())
    return (
        section("beside", "Predicted beside measured", *notes(filter(None, (one.not_predicted,))),
                *_pairs(one)),
        section("memory", "Memory", Note(said) if said else None,
                memory_plot(held, one.prediction.formulas) if held.device_memory_bytes.total else None),
        section("time", "Time", *time),
        section("experts", "Experts", experts_plot(loads_of(measured.observations))),
        section("assumptions", "Assumptions and origins", *notes(measured.run.warnings),
                input_table(measured.run)),
        section("sources", "Sources", *notes(measured.source.assumptions),
                Table("The machine and its software", ("what", "value"), machine, 2)),
    )  # fmt: skip


def _pairs(one: Measurement) -> Iterator[Plot | None]:
    measured, predicted = one.profile, one.predicted
    if predicted is None:
        return

    def pairs(whole: str, parts: Sequence[Part], per_unit: float) -> list[Pair]:
        return [
            Pair(
                " · ".join(part.path) or whole,
                None if part.predicted is None else part.predicted / per_unit,
                part.measured / per_unit,
            )
            for part in parts
        ]

    times = pairs("one step", beside(measured.step_time_s, predicted.step_time_s, 1), 1.0)
    yield bars_plot(
        "beside-time", "Time of a step", "Seconds of one step by stage", times, unit="seconds",
        said=fmt.duration,
    )  # fmt: skip
    if "serving" not in measured.observations:
        parts = beside(measured.peak_memory_bytes, predicted.peak_memory_bytes, 1)
        if predicted.peak_memory_bytes.parts.keys() == {WHOLE}:
            parts = parts[:1]  # the answer that was kept says no more
        yield bars_plot(
            "beside-memory", "Peak memory", "Peak memory by kind, as torch allocates it",
            pairs("the peak", parts, 2.0**20), unit="MiB", said=lambda mib: fmt.size(mib * 2.0**20),
        )  # fmt: skip


def measured_capacity_report(answer: MeasuredCapacityAnswer) -> Report:
    """Return the largest micro-batch that a trial has shown to fit, and every trial."""
    (one,) = answer.results
    where = f" within {fmt.size(answer.allowed_bytes)}" if answer.allowed_bytes else ""
    value = f"{'≥ ' if one.border.at_limit else ''}{one.border.value:,}"
    low, likely, high = one.bounds
    rows = tuple(
        (
            f"{trial.micro_batch_size:,}",
            trial.outcome.replace("_", " "),
            fmt.size(trial.peak_memory_bytes) if trial.peak_memory_bytes else fmt.UNKNOWN,
            fmt.duration(trial.step_time_s) if trial.step_time_s else fmt.UNKNOWN,
        )
        for trial in one.trials
    )
    headings = "micro_batch_size", "outcome", "peak", "a step"
    untried = f"{one.untried:,} sizes above it were not tried." if one.untried else ""
    return Report.of(
        title_of(answer.run),
        Toned(f"Largest micro-batch measured{where}: {value}", "strong"),
        section("trials", "", Table("Trials", headings, rows, 2, indent=2)),
        subject=(
            f"Predicted: {low:,} surely fits, {likely:,} probably, {high:,} surely does not.",
            *([untried] if untried else []),
        ),
    )
