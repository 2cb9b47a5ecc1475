"""How campaigns and stored results look: what a call did, the table of results, a report; gains.

SpeedUp, MemoryUp and EnergyUp: a table, who leads where, what improves everything, as charts.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

from finegauge.answers.campaign import (
    CampaignAnswer,
    CampaignStudy,
    CellBeside,
    ClaimsHeld,
    CompareAnswer,
    GainFigures,
    GainsAt,
    ResultsAnswer,
)
from finegauge.campaign.axes import Result
from finegauge.campaign.gains import DIMENSIONS, PROCESSOR_S, ClaimHeld
from finegauge.render import number_format as fmt
from finegauge.render import report
from finegauge.render.plots.drawing import Reach, panel_plot, radar_plot
from finegauge.render.plots.many_runs import (
    Pair,
    dots_plot,
    experts_plot,
    front_plot,
    loads_of,
    throughput_plot,
)
from finegauge.render.report import Note, Plot, Report, Section, Table, Text, Tile, Toned, notes, section
from finegauge.reproduction import Panel, Series
from finegauge.store.journal import Trials
from finegauge.units import GIB, counted, gib

if TYPE_CHECKING:
    from finegauge.campaign.sweep import Sweep

TONES = {"completed": "good", "out_of_memory": "risky", "failed": "bad", "interrupted": "bad"}
MOST_REASONS = 5


def campaign_report(answer: CampaignAnswer) -> Report:
    """Return what one call did, what the folder holds now, and why cells have no answer."""
    asked = sum(answer.outcomes.values())
    then = [Note(f"finegauge results {answer.folder}", label="Rows")]
    if answer.has_switches:
        then.append(Note(f"finegauge compare {answer.folder}", label="Gains"))
    said = f"{counted(asked, 'cell')} asked, {answer.done_before:,} were done before."
    return Report.of(
        answer.name,
        Toned(answer.name, "strong"),
        section("asked", "", Note(said), _ended_table(answer.ended)),
        section("reasons", "", *notes(_reasons(answer))),
        section("kept", "", Note(f"Kept in {answer.folder}"), *then),
        subject=(answer.about,) if answer.about else (),
    )


def _ended_table(ended: Mapping[str, Mapping[str, int]]) -> Table:
    names = tuple(dict.fromkeys(name for counts in ended.values() for name in counts))
    rows = tuple(
        (word, *(Toned(str(counts.get(name) or "-"), TONES.get(name, "")) for name in names))
        for word, counts in ended.items()
    )
    return Table("Cells", ("", *(name.replace("_", " ") for name in names)), rows, indent=2)


def _reasons(answer: CampaignAnswer) -> Iterator[str]:
    for reason, times in Counter(answer.reasons).most_common(MOST_REASONS):
        yield f"- {times:,} x {reason}"
    if len(answer.reasons) > MOST_REASONS:
        yield f"- and {len(answer.reasons) - MOST_REASONS:,} reasons more"


def shipped_report(abouts: Mapping[str, str]) -> Report:
    """Return the sweeps that come with FineGauge and what each is about."""
    parts = (section("sweep", name, *notes([about])) for name, about in abouts.items())
    return Report.of("Sweeps", "", *parts)


def dry_report(sweep: "Sweep", done: Mapping[str, str]) -> Report:
    """Return what a campaign would ask."""
    cells = []
    for cell in sweep.cells[:MOST_ROWS]:
        state = done.get(cell.key) or (f"no run: {cell.refusal}" if cell.run is None else "to do")
        cells.append(Note(f"{cell.title}: {state}"))
    if len(sweep.cells) > MOST_ROWS:
        cells.append(Note(f"... and {len(sweep.cells) - MOST_ROWS:,} cells more"))
    left = sum(cell.key not in done for cell in sweep.cells)
    said = f"{left:,} of {len(sweep.cells):,} cells are to be asked."
    return Report.of(sweep.name, "", section("cells", sweep.name, *cells, Note(said)))


LONGEST_CELL = 28


def results_report(answer: ResultsAnswer, limit: int, output: str | None = None) -> Report:
    """Return the first rows of a table, with what was left out below, and where all of it was written."""
    shown, num_rows = answer.results[:limit], answer.num_rows
    is_text = [bool(shown) and isinstance(shown[0][name], str) for name in answer.columns]
    num_text = is_text.index(False) if False in is_text else len(is_text)
    rows = tuple(tuple(_cell(row[name]) for name in answer.columns) for row in shown)
    said = f"{len(rows):,} of " if num_rows > limit else ""
    said += counted(num_rows, "row")
    below = [Note(said, tone="soft")]
    if torn := answer.num_quarantined:
        below.append(
            Note(f"{counted(torn, 'line')} did not read back: torn or changed, and passed by", tone="risky")
        )
    if output:
        below.append(Note(f"Written: {output}"))
    table = Table("Results", answer.columns, rows, num_text)
    return Report.of("Results", "", section("results", "", table, *below))


def _cell(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return fmt.plain(value)
    text = fmt.digits(value) if isinstance(value, float) else str(value)
    return text if len(text) <= LONGEST_CELL else f"{text[: LONGEST_CELL - 1]}…"


MOST_ROWS = 1000


def study_report(study: CampaignStudy) -> Report:
    """Return the report about many results."""
    results, comparisons = study.results, study.comparisons
    outcomes = Counter(result.facts.outcome for result in results)
    said = ", ".join(f"{count:,} {outcome.replace('_', ' ')}" for outcome, count in outcomes.most_common())
    done, about = outcomes["completed"], f"The fastest of {study.num_priced_from:,} cells on each machine"
    seen = (
        loads
        for result in reversed(results)
        if not {"experts", "evaluation"}.isdisjoint(result.facts.observed)
        and (loads := loads_of(result.profile.observations))
    )
    last = next(seen, None)
    return Report.of(
        study.title, f"{len(results):,} results: {said}." if results else "No cell has a result yet.",
        section("beside", "Predicted beside measured", *notes(_elsewhere(study)), *_beside(study)),
        section("gains", "SpeedUp, MemoryUp, EnergyUp",
                *notes(_of_many(study.num_comparisons, len(comparisons))),
                *notes((NO_METER,) if by_processor(comparisons) else ()),
                *_gains(comparisons, study.baseline)),
        section("throughput", "Throughput by batch",
                *notes(_of_many(study.num_sweeps, len(study.throughputs))), *_throughputs(study)),
        section("cost", "Cost against time",
                front_plot(study.ways, about=about) if len(study.ways) > 1 else None),
        section("experts", "Experts", experts_plot(last) if last else None),
        section("results", "Results", _table(results)),
        tone=report.GOOD if done == len(results) and results else report.RISKY if done else report.BAD,
        tiles=_tiles(study),
    )  # fmt: skip


def labelled(trials: Trials) -> list[Result]:
    """Return the results of a journal, each under the fields in which their runs differ."""
    first: Mapping[str, Any] = {}
    ends = []
    for end, fields in trials.fields():
        first = first or fields
        ends.append((end, {name: value for name, value in fields.items() if value != first.get(name)}))
    varied = dict.fromkeys(name for name in first if any(name in own for _, own in ends))
    return [
        Result(
            str(number), {name: fmt.plain(own.get(name, first[name])) for name in varied}, end.facts.source,
            0, end.facts, partial(trials.profile, end),
        )
        for number, (end, own) in enumerate(ends) if end.facts is not None
    ]  # fmt: skip


def _tiles(study: CampaignStudy) -> Iterator[Tile]:
    for estimator, count in Counter(result.estimator for result in study.results).items():
        yield Tile(estimator.capitalize(), f"{count:,}", "results")
    both = ((one.predicted_step_s, one.measured_step_s) for one in study.beside)
    errors = [abs(predicted / measured - 1) for predicted, measured in both if predicted and measured]
    if errors:
        yield Tile("Error of time", fmt.percent(median(errors)), f"median of {len(errors):,}")


def _elsewhere(study: CampaignStudy) -> Iterator[str]:
    if study.num_elsewhere:
        yield (
            f"{study.num_elsewhere} cells are predicted for another device than the one that measured them "
            f"({study.measured_on}), so they are not held against each other here."
        )


def _beside(study: CampaignStudy) -> "Iterator[Plot | None]":
    times = [_pair(one, one.predicted_step_s, one.measured_step_s) for one in study.beside]
    memories = [
        _pair(one, *(side and side / GIB for side in (one.predicted_peak_bytes, one.measured_peak_bytes)))
        for one in study.beside
    ]
    yield dots_plot("beside-time", "Time of a step", times, unit="seconds", said=fmt.duration)
    yield dots_plot("beside-memory", "Peak memory", memories, unit="GiB",
                    said=lambda value: fmt.size(value * GIB))  # fmt: skip


def _pair(cell: CellBeside, predicted: float | None, measured: float | None) -> Pair:
    name = ", ".join(f"{axis} {value}" for axis, value in cell.labels.items()) or "the run"
    return Pair(name, predicted, measured, next(iter(cell.labels.values()), ""))


def _of_many(number: int, most: int) -> tuple[str, ...]:
    return (f"The first {most} of {number:,} are drawn.",) if number > most else ()


def _gains(comparisons: Sequence[GainsAt], baseline: str) -> "Iterator[Plot]":
    for number, one in enumerate(comparisons, start=1):
        key, where = f"gains-{number}", title(one)
        reaches = [Reach(gain.name, gain.ratios, gain.intervals) for gain in one.gains]
        drawing = radar_plot(reaches, DIMENSIONS, over=f"{baseline}, {where}", key=key)
        drawn = [gain for gain in one.gains if set(gain.ratios.values()) != {None}]
        if drawing is None and drawn:
            caption = f"Times the baseline, {where}; above 1 is better. Not every dimension is known."
            drawing = panel_plot(key, bars_panel(one, drawn), caption)
        if drawing is not None:
            yield drawing._replace(title=f"Gains, {where}")


def _throughputs(study: CampaignStudy) -> "Iterator[Plot]":
    for number, (where, found) in enumerate(study.throughputs.items(), start=1):
        drawing = throughput_plot(found)
        if drawing is not None:
            yield drawing._replace(key=f"throughput-{number}", title=f"Throughput, {where}")


def _table(results: Sequence[Result]) -> Table:
    axes = tuple(dict.fromkeys(name for result in results for name in result.labels))
    more = f", the first {MOST_ROWS:,} of {len(results):,}" if len(results) > MOST_ROWS else ""
    headings = "estimator", "outcome", "memory", "one step", "tokens/s", "sequences/s", "energy of a step"
    rows = tuple(_row(result, axes) for result in results[:MOST_ROWS])
    return Table(f"Every result{more}", (*axes, *headings), rows, num_text_columns=len(axes) + 2)


def _row(result: Result, axes: Sequence[str]) -> tuple[str, ...]:
    facts, labels = result.facts, result.labels
    memory, energy = facts.device_memory_bytes or facts.peak_memory_bytes, facts.step_energy_j
    return (
        *(str(labels.get(name, "")) for name in axes), result.estimator, facts.outcome.replace("_", " "),
        gib(memory) if memory else fmt.UNKNOWN,
        fmt.duration(facts.step_s) if facts.step_s else fmt.UNKNOWN,
        fmt.digits(facts.tokens_per_s or None), fmt.digits(facts.samples_per_s or None),
        f"{fmt.digits(energy)} J" if energy else fmt.UNKNOWN,
    )  # fmt: skip


ABOVE_ONE = "Above 1 is better: SpeedUp = T_base/T_opt, MemoryUp = M_base/M_opt, EnergyUp = E_base/E_opt."
NO_METER = "EnergyUp by processor time: no meter on this machine read its joules."
INTERVALS = "[ ]: 95 % interval of the measured ratio."
VERDICT_TONES = {"agrees": "good", "partly": "risky", "disagrees": "bad", "unknown": "soft"}
MOST_POINTS = 500  # in the text; --json has all
MOST_PLACES = 4  # where a claim fails, in the text; --json has all


def compare_report(answer: CompareAnswer) -> Report:
    """Return every comparison with its ranking and its statement, then what a paper claims."""
    points = answer.comparisons
    legend = [ABOVE_ONE]
    left = len(points) - MOST_POINTS
    more = [f"{left:,} points more: choose by --at AXIS=VALUE, or see --json."] if left > 0 else []
    legend += [INTERVALS] if any(gain.intervals for one in points for gain in one.gains) else []
    legend += [NO_METER] if by_processor(points) else []
    return Report.of(
        f"Gains over {answer.baseline}",
        "",
        *(
            section("gains", title(one), _gains_table(one), *notes(_statements(one, answer)))
            for one in points[:MOST_POINTS]
        ),
        section("legend", "", *notes(more), *notes(legend)),
        *([_claims(answer.claims)] if answer.claims else ()),
    )


def by_processor(points: Iterable[GainsAt]) -> bool:
    """Return whether processor time stands for energy anywhere."""
    return any(gain.energy_by == PROCESSOR_S for one in points for gain in one.gains)


def title(point: GainsAt) -> str:
    """Return where a comparison stands."""
    words = ", ".join(f"{name} {value}" for name, value in point.labels.items())
    return f"{words or 'the run'} ({point.estimator})"


def _gains_table(point: GainsAt) -> Table:
    said = [("baseline " if one.of_baseline else "") + one.outcome.replace("_", " ") for one in point.gains]
    rows = tuple(
        (
            one.name,
            *(_gain_cell(one, name) for name in DIMENSIONS),
            "" if one.outcome == "completed" else Toned(how, "risky"),
        )
        for one, how in zip(point.gains, said, strict=True)
    )
    return Table("Gains", ("", *DIMENSIONS, ""), rows, ends_in_text=True, indent=2)


def _gain_cell(gain: GainFigures, name: str) -> str:
    ratio, interval = gain.ratios[name], gain.intervals.get(name)
    if ratio is None:
        return fmt.UNKNOWN
    text = f"{ratio:.2f}" + (f" [{interval[0]:.2f}-{interval[1]:.2f}]" if interval else "")
    return Toned(text, "good") if name in gain.improves else text


def _statements(point: GainsAt, answer: CompareAnswer) -> Iterator[str]:
    baseline = answer.baseline
    if answer.weights and point.weighed is not None:
        asked = ", ".join(f"{name} {weight:g}" for name, weight in answer.weights.items() if weight)
        means = sorted({**point.weighed, baseline: 1.0}.items(), key=lambda one: -one[1])
        yield f"Weighed by {asked}: {' > '.join(f'{name} {mean:.2f}' for name, mean in means)}."
    unknown = [name for name in DIMENSIONS if not point.ranking[name]]
    for name in DIMENSIONS:
        if name not in unknown:
            yield f"{name}: {_ranked(point, name, baseline)}."
    if len(unknown) == len(DIMENSIONS):
        yield "Nothing to compare."
    if len(unknown) < 2:
        verb, all_of = (
            "improve" if len(point.improves_all) > 1 else "improves",
            "both" if unknown else "all three",
        )
        yield f"{' and '.join(point.improves_all) or 'Nothing'} {verb} {all_of} here over {baseline}."
        if point.pareto_front:
            yield f"Pareto front beside {baseline}: {', '.join(point.pareto_front)}."
    if unknown == ["EnergyUp"]:
        yield "EnergyUp not known: no meter read any energy."
    for gain in point.gains:
        if gain.outcome == "unsupported" and gain.reason:
            yield f"Not answered: {gain.reason}"


def _ranked(point: GainsAt, dimension: str, baseline: str) -> str:
    """Return the optimisations and the baseline from the best down, = between those that print alike."""
    by_name = {gain.name: gain.ratios[dimension] or 0.0 for gain in point.gains}
    ratios = [*((name, by_name[name]) for name in point.ranking[dimension]), (baseline, 1.0)]
    ratios.sort(key=lambda one: -one[1])
    said = ratios[0][0]
    for (_, above), (name, ratio) in pairwise(ratios):
        said += f" {'=' if f'{above:.2f}' == f'{ratio:.2f}' else '>'} {name}"
    return said


def _claims(claims: ClaimsHeld) -> Section:
    held = (Note(_verdict(one)) for one in claims.held)
    return section("claims", f"Held against {claims.source}", *held, Note(claims.remark))


def _verdict(held: ClaimHeld) -> Text:
    num_holds, num_fails = len(held.holds_at), len(held.fails_at)
    said = f'- "{held.says}" ({held.estimator}): ', Toned(held.verdict, VERDICT_TONES[held.verdict])
    if held.verdict == "unknown":
        return (*said, "; no point has the figures.")
    where = f", {num_holds} of {num_holds + num_fails} points"
    if held.fails_at:
        failing = (
            f"{', '.join(one.labels.values()) or 'the run'} ({one.because})"
            for one in held.fails_at[:MOST_PLACES]
        )
        where += "; not at " + "; ".join(failing)
        where += f"; and {num_fails - MOST_PLACES} more" if num_fails > MOST_PLACES else ""
    return (*said, f"{where}.")


def panels(points: Iterable[GainsAt]) -> Iterator[Panel]:
    """Yield bars for every comparison, and beside them a radar where all three dimensions are known."""
    for point in points:
        drawn = [gain for gain in point.gains if any(ratio is not None for ratio in gain.ratios.values())]
        whole = [gain for gain in drawn if None not in gain.ratios.values()]
        if drawn:
            yield bars_panel(point, drawn)
        if whole:
            lines = tuple(Series(gain.name, gain.name, (), tuple(gain.ratios.values())) for gain in whole)
            yield Panel(title(point), "", "", lines, DIMENSIONS, radar=True)


def bars_panel(point: GainsAt, drawn: list[GainFigures]) -> Panel:
    """Return bars of the ratios that are known, a group for each optimisation."""
    bars = tuple(
        Series(
            name, name, (), tuple(gain.ratios[name] for gain in drawn), "",
            tuple(gain.intervals.get(name) for gain in drawn),
        )
        for name in DIMENSIONS
        if any(gain.ratios[name] is not None for gain in drawn)
    )  # fmt: skip
    return Panel(title(point), "", "times the baseline", bars, tuple(gain.name for gain in drawn), one=True)
