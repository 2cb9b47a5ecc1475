"""Campaigns and stored results as text, JSON and report."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Sized
from statistics import median
from typing import TYPE_CHECKING, Any

from finegauge.answers.study import Way
from finegauge.campaign.axes import MEASURED, PREDICTED, SWITCH
from finegauge.campaign.folder import Result
from finegauge.campaign.gains import DIMENSIONS, Comparison, compare_results
from finegauge.errors import FineGaugeError
from finegauge.profile import Profile
from finegauge.render import number_format as fmt
from finegauge.render import report
from finegauge.render.compare import NO_METER, by_processor, panels, title
from finegauge.render.number_format import UNKNOWN, digits
from finegauge.render.plots.charts import Reach, panel_plot, radar_plot
from finegauge.render.plots.experts import experts_plot, loads_of
from finegauge.render.plots.many_runs import Pair, dots_plot, front_plot, throughput_plot
from finegauge.render.report import Report, Table, Tile, filled, notes, section
from finegauge.render.terminal import columns, paint, wrapped
from finegauge.store.table import FACTS, answer_of
from finegauge.units import gib

if TYPE_CHECKING:
    import pyarrow as pa

    from finegauge.campaign.driver import Summary
    from finegauge.campaign.folder import Folder
    from finegauge.campaign.sweep import Sweep
    from finegauge.render.report import Plot

COLOURS = {"completed": "green", "out_of_memory": "yellow", "failed": "red", "interrupted": "red"}
MOST_REASONS = 5
MAY_BE_UNKNOWN = (
    "peak_memory_bytes", "device_memory_bytes", "step_time_s", "step_energy_j", "tokens_per_s",
    "samples_per_s",
)  # fmt: skip


def campaign_lines(sweep: "Sweep", folder: "Folder", summary: "Summary") -> list[str]:
    """Return what one call did, what the folder holds now, and why cells have no answer."""
    lines = [paint(sweep.name, "bold")]
    lines += wrapped(sweep.about, indent="") if sweep.about else []
    asked = sum(summary.outcomes.values())
    lines += [
        "",
        f"{asked:,} cell{'' if asked == 1 else 's'} asked, {summary.before:,} were done before.",
        *_outcomes(sweep, folder),
        "",
    ]
    kept = f"Kept in {folder.path}: finegauge results {folder.path}"
    kept += f", finegauge compare {folder.path}" if SWITCH in sweep.axes else ""
    return [*lines, *_reasons(folder), kept]


def shipped_lines(abouts: Mapping[str, str]) -> list[str]:
    """Return the sweeps that come with FineGauge and what each is about."""
    lines = []
    for name, about in abouts.items():
        lines += [paint(name, "bold"), *(f"  {line}" for line in wrapped(about, indent="", width=96))]
    return lines


def dry_lines(sweep: "Sweep", done: Mapping[str, str]) -> list[str]:
    """Return what a campaign would ask."""
    lines = [paint(sweep.name, "bold")]
    for cell in sweep.cells:
        state = done.get(cell.key) or (f"no run: {cell.refusal}" if cell.run is None else "to do")
        lines.append(f"  {cell.title}: {state}")
    left = sum(cell.key not in done for cell in sweep.cells)
    return [*lines, f"{left:,} of {len(sweep.cells):,} cells are to be asked."]


def campaign_json(sweep: "Sweep", folder: "Folder", summary: "Summary") -> str:
    """Return the same as JSON."""
    whole = {
        "schema_version": 1,
        "command": "campaign",
        "name": sweep.name,
        "folder": folder.path,
        "num_cells": len(sweep.cells),
        "done_before": summary.before,
        "outcomes": dict(summary.outcomes),
        "refused": [{"labels": dict(r.labels), "reason": r.reason} for r in folder.refusals()],
        "results": [
            {
                "cell": result.key, "labels": dict(result.labels), "estimator": result.estimator,
                "repetition": result.repetition, "profile": _profile_json(result.profile),
            }
            for result in folder.results()
        ],
    }  # fmt: skip
    return json.dumps(whole, indent=2, ensure_ascii=False, allow_nan=False)


def _profile_json(profile: "Profile") -> dict[str, Any]:
    """Return a profile for readers, with the reason where it has no answer; null is what is not known."""
    said = profile.to_json() | {"reason": profile.reason}
    return said | {name: said[name] or None for name in MAY_BE_UNKNOWN}


def _outcomes(sweep: "Sweep", folder: "Folder") -> list[str]:
    """Return a row per estimator: how many of its cells ended how."""
    done = folder.done()
    ended = {word: Counter(done.get(c.key, "to do") for c in sweep.cells if c.estimator == word)
             for word in (PREDICTED, MEASURED)}  # fmt: skip
    names = list(dict.fromkeys(name for counter in ended.values() for name in counter))
    rows = [
        [word, *(paint(str(counter[name] or "-"), *_colour(name)) for name in names)]
        for word, counter in ended.items()
        if counter
    ]
    return columns(["", *(name.replace("_", " ") for name in names)], rows, indent="  ")


def _colour(outcome: str) -> tuple[str, ...]:
    """Return the colour of an outcome."""
    return (COLOURS[outcome],) if outcome in COLOURS else ()


def _reasons(folder: "Folder") -> list[str]:
    """Return why cells have no answer, the most frequent reasons."""
    reasons = Counter(refusal.reason for refusal in folder.refusals())
    reasons.update(
        result.profile.reason
        for result in folder.results()
        if result.profile.outcome in ("failed", "unsupported")
    )
    lines = []
    for reason, times in reasons.most_common(MOST_REASONS):
        lines += wrapped(f"- {times:,} x {reason}", indent="  ")
    if len(reasons) > MOST_REASONS:
        lines.append(f"- and {len(reasons) - MOST_REASONS:,} reasons more")
    return [*lines, ""] if lines else []


OF_PREDICTION, OF_MEASUREMENT = "predicted", "measured"
BATCH = "micro_batch_size"
MOST_ROWS, MOST_COMPARISONS, MOST_SWEEPS, MOST_WAYS = 1000, 12, 8, 20
Key = tuple[tuple[str, str], ...]


def campaign_report(
    heading: str,
    results: Sequence[Result],
    baseline: str = "baseline",
    axes: Mapping[str, Sequence[str]] | None = None,
) -> Report:
    """Return the report about `results`.

    Args:
        heading: Of the report.
        results: How its cells ended.
        baseline: The switch that the others are held against.
        axes: The order of points and of switches; without it, that of the results.
    """
    outcomes = Counter(result.profile.outcome for result in results)
    said = ", ".join(f"{count:,} {outcome.replace('_', ' ')}" for outcome, count in outcomes.most_common())
    done = outcomes["completed"]
    comparisons, sweeps = compare_results(results, baseline, axes), _sweeps(results)
    return Report(
        title=heading,
        headline=f"{len(results):,} results: {said}." if results else "No cell has a result yet.",
        tone=report.GOOD if done == len(results) and results else report.RISKY if done else report.BAD,
        tiles=tuple(_tiles(results)),
        sections=filled(
            section("beside", "Predicted beside measured", *notes(_elsewhere(results)), *_beside(results)),
            section(
                "gains",
                "SpeedUp, MemoryUp, EnergyUp",
                *notes(_of_many(comparisons, MOST_COMPARISONS)),
                *notes((NO_METER,) if by_processor(comparisons) else ()),
                *_gains(comparisons, baseline),
            ),
            section(
                "throughput",
                "Throughput by batch",
                *notes(_of_many(sweeps, MOST_SWEEPS)),
                *_throughputs(sweeps),
            ),
            section("cost", "Cost against time", _front(results)),
            section("experts", "Experts", _experts(results)),
            section("results", "Results", _table(results)),
        ),
    )


def _tiles(results: Sequence[Result]) -> Iterator[Tile]:
    """Yield how many results there are of each estimator, and how far the predictions are off."""
    for estimator, count in Counter(result.estimator for result in results).items():
        yield Tile(estimator.capitalize(), f"{count:,}", "results")
    pairs = [pair for pair in _pairs(results, "step_time_s") if pair.predicted and pair.measured]
    if pairs:
        errors = [abs((pair.predicted or 0.0) / (pair.measured or 1.0) - 1) for pair in pairs]
        yield Tile("Error of time", fmt.percent(median(errors)), f"median of {len(errors):,}")


def _by_labels(results: Sequence[Result]) -> dict[Key, dict[str, list[Profile]]]:
    """Return the completed profiles by the labels of their cell, then by estimator."""
    found: dict[Key, dict[str, list[Profile]]] = {}
    for result in results:
        if result.profile.outcome == "completed":
            cell = found.setdefault(tuple(result.labels.items()), {})
            cell.setdefault(result.estimator, []).append(result.profile)
    return found


def _same_device(profiles: Mapping[str, Sequence[Profile]]) -> bool:
    """Return whether a cell was predicted for the device that it was measured on."""
    from finegauge.catalogue.gpus import gpu, known_gpu

    names = set()
    for profile in (*profiles.get(OF_PREDICTION, ()), *profiles.get(OF_MEASUREMENT, ())):
        seen = profile.fingerprint.get("device")
        known = known_gpu(seen) if seen else None
        try:
            names.add(known.name if known else seen or gpu(str(profile.run.gpu)).name)
        except FineGaugeError:
            return False  # predicted from a file that is no longer there
    return len(names) == 1


def _elsewhere(results: Sequence[Result]) -> tuple[str, ...]:
    """Return what to say where predictions and measurements are of different devices."""
    both = [cell for cell in _by_labels(results).values() if len(cell) > 1]
    num_apart = sum(not _same_device(cell) for cell in both)
    if not num_apart:
        return ()
    measured = next(one for cell in both for one in cell[OF_MEASUREMENT])
    device = measured.fingerprint.get("device", "another device")
    return (f"{num_apart} cells are predicted for another device than the one that measured them ({device}), "
            "so they are not held against each other here.",)  # fmt: skip


def _pairs(results: Sequence[Result], quantity: str) -> list[Pair]:
    """Return a pair per cell: the median of its predictions beside that of its measurements, in SI units."""
    pairs = []
    for labels, profiles in _by_labels(results).items():
        if len(profiles) > 1 and not _same_device(profiles):
            continue
        amounts: dict[str, float] = {}
        for estimator, each in profiles.items():
            known = [total for profile in each if (total := getattr(profile, quantity).total)]
            if known:
                amounts[estimator] = median(known)
        name = ", ".join(f"{axis} {value}" for axis, value in labels) or "the run"
        group = labels[0][1] if labels else ""
        pairs.append(Pair(name, amounts.get(OF_PREDICTION), amounts.get(OF_MEASUREMENT), group))
    return pairs


def _beside(results: Sequence[Result]) -> "Iterator[Plot | None]":
    """Yield step time and peak memory, predicted beside measured."""
    yield dots_plot("beside-time", "Time of a step", "Cells", _pairs(results, "step_time_s"),
                       unit="seconds", said=fmt.duration)  # fmt: skip
    memory = [
        pair._replace(
            predicted=pair.predicted and pair.predicted / 2.0**30,
            measured=pair.measured and pair.measured / 2.0**30,
        )
        for pair in _pairs(results, "peak_memory_bytes")
    ]
    yield dots_plot("beside-memory", "Peak memory", "Cells", memory, unit="GiB",
                       said=lambda value: fmt.size(value * 2.0**30))  # fmt: skip


def _of_many(found: Sized, most: int) -> tuple[str, ...]:
    """Return what to say where not all that was found is drawn."""
    return (f"The first {most} of {len(found):,} are drawn.",) if len(found) > most else ()


def _gains(comparisons: Sequence[Comparison], baseline: str) -> "Iterator[Plot]":
    """Yield the radar of every comparison, bars where a dimension is not known."""
    for number, one in enumerate(comparisons[:MOST_COMPARISONS], start=1):
        key = f"gains-{number}"
        over = f"{baseline}, {title(one)}"
        drawing = radar_plot(_reaches(one), DIMENSIONS, over=over, key=key)
        if drawing is None:
            caption = f"Times the baseline, {title(one)}; above 1 is better. Not every dimension is known."
            drawing = panel_plot(key, panels([one])[0], caption)
        yield drawing._replace(title=f"Gains, {title(one)}")


def _reaches(comparison: Comparison) -> list[Reach]:
    """Return the gains as the radar takes them."""
    return [
        Reach(
            gain.name,
            gain.ratios,
            {
                name: interval.of(ratio)
                for name, interval in gain.intervals.items()
                if (ratio := gain.ratios[name]) is not None
            },
        )
        for gain in comparison.gains
    ]


def _sweeps(results: Sequence[Result]) -> dict[str, list[Profile]]:
    """Return, for every point of the other axes that has several batches, its profiles by batch."""
    sweeps: dict[str, dict[int, Profile]] = {}
    for result in results:
        if BATCH in result.labels and result.profile.step_time_s.total:
            others = [f"{name} {value}" for name, value in result.labels.items() if name != BATCH]
            sweep = sweeps.setdefault(f"{', '.join(others) or 'the run'} ({result.estimator})", {})
            sweep[result.profile.run.micro_batch_size] = result.profile
    return {
        where: [sweep[size] for size in sorted(sweep)] for where, sweep in sweeps.items() if len(sweep) > 1
    }


def _throughputs(sweeps: Mapping[str, Sequence[Profile]]) -> "Iterator[Plot]":
    """Yield throughput against the batch, a figure for each sweep."""
    for number, (where, sweep) in enumerate(list(sweeps.items())[:MOST_SWEEPS], start=1):
        drawing = throughput_plot(sweep)
        if drawing is not None:
            yield drawing._replace(key=f"throughput-{number}", title=f"Throughput, {where}")


def _front(results: Sequence[Result]) -> "Plot | None":
    """Return cost against time of the predicted cells, where all do the same work; None where they do not.

    On one machine the fastest cell is the cheapest too, so one of each machine is priced.
    """
    completed = [
        r for r in results if r.estimator == OF_PREDICTION and r.profile.fits and r.profile.samples_per_s
    ]
    if len({_work(result.profile) for result in completed}) != 1:
        return None
    fastest: dict[tuple[object, ...], Result] = {}
    for result in completed:
        machine = _machine(result.profile)
        other = fastest.get(machine)
        if other is None or result.profile.samples_per_s > other.profile.samples_per_s:
            fastest[machine] = result
    ways = [way for result in fastest.values() if (way := _way(result)) is not None]
    ways = sorted(ways, key=lambda way: way.usd)[:MOST_WAYS]
    about = f"The fastest of {len(completed):,} cells on each machine"
    return front_plot(ways, about=about) if len(ways) > 1 else None


def _way(result: Result) -> Way | None:
    """Return what a cell costs at its cheapest offer; None where nobody lets that machine."""
    from finegauge.planning.quote import quote

    try:
        bill = quote(result.profile.run, result.profile)
    except FineGaugeError:
        return None
    cheapest = bill.cheapest_on_demand
    if bill.wall_s is None or cheapest is None or cheapest.on_demand_usd is None:
        return None
    name = ", ".join(f"{axis} {value}" for axis, value in result.labels.items())
    return Way(name, str(result.profile.run.gpu), bill.wall_s, cheapest.on_demand_usd, bill.wall_energy_j)


def _machine(profile: Profile) -> tuple[object, ...]:
    """Return what a run rents."""
    run = profile.run
    return run.gpu, run.num_gpus, run.num_nodes, run.provider, run.region


def _work(profile: Profile) -> tuple[object, ...]:
    """Return what a run does, by which its cost can be held against another's."""
    run = profile.run
    return run.model, run.dataset, run.num_samples, run.seq_len, run.epochs, run.max_steps, run.phase


def _experts(results: Sequence[Result]) -> "Plot | None":
    """Return the load of the experts of the last measurement that saw it."""
    seen = [loads for result in results if (loads := loads_of(result.profile.observations))]
    return experts_plot(seen[-1]) if seen else None


def _table(results: Sequence[Result]) -> Table:
    """Return a row per result."""
    axes = list(dict.fromkeys(name for result in results for name in result.labels))
    rows = tuple(_row(result, axes) for result in results[:MOST_ROWS])
    more = f", the first {MOST_ROWS:,} of {len(results):,}" if len(results) > MOST_ROWS else ""
    headings = (
        *axes,
        "estimator",
        "outcome",
        "memory",
        "one step",
        "tokens/s",
        "sequences/s",
        "energy of a step",
    )
    return Table(f"Every result{more}", headings, rows, num_text_columns=len(axes) + 2)


def _row(result: Result, axes: Sequence[str]) -> tuple[str, ...]:
    """Return how one cell ended."""
    profile, labels = result.profile, result.labels
    memory = profile.device_memory_bytes.total or profile.peak_memory_bytes.total
    energy = profile.step_energy_j.total
    return (
        *(str(labels.get(name, "")) for name in axes), result.estimator, profile.outcome.replace("_", " "),
        gib(memory) if memory else fmt.UNKNOWN,
        fmt.duration(profile.step_time_s.total) if profile.step_time_s.total else fmt.UNKNOWN,
        fmt.digits(profile.tokens_per_s or None), fmt.digits(profile.samples_per_s or None),
        f"{fmt.digits(energy)} J" if energy else fmt.UNKNOWN,
    )  # fmt: skip


def labels_of(profiles: Sequence[Profile]) -> list[Mapping[str, str]]:
    """Return, for every profile of a journal, the fields in which their runs differ."""
    fields = [profile.run.fields() for profile in profiles]
    varied = [name for name in fields[0] if len({str(one[name]) for one in fields}) > 1] if fields else []
    return [{name: fmt.plain(one[name]) for name in varied} for one in fields]


USUAL = ("outcome", "step_time_s", "tokens_per_s", "peak_memory_bytes", "step_energy_j")
LONGEST_CELL = 28
NOT_TOLD = ("cell", "reason", *FACTS)  # in the table, and no help in telling rows apart
MOST_COLUMNS = 14


def telling(table: "pa.Table") -> "pa.Table":
    """Return the columns in which rows differ, and the usual facts that are known."""
    names = [
        name
        for name in table.column_names
        if name in USUAL or (len(table[name].unique()) > 1 and name not in NOT_TOLD and "time_" not in name)
    ]
    names = [n for n in names if n not in USUAL] + [n for n in USUAL if table[n].null_count < len(table)]
    return table.select(list(dict.fromkeys(names))[-MOST_COLUMNS:])


def results_lines(table: "pa.Table", limit: int, quarantined: int, output: str | None) -> list[str]:
    """Return the first rows of a table as text, with what was left out below."""
    answer = answer_of(table.slice(0, limit))
    numeric = [not isinstance(column.to_pylist()[0] if len(column) else "", str) for column in table.columns]
    left = next((n for n, number in enumerate(numeric) if number), len(numeric))
    lines = columns(answer.columns, [list(map(_cell, row)) for row in answer.rows], left=left)
    shown = f"{len(answer.rows):,} of " if len(table) > limit else ""
    shown += "1 row" if len(table) == 1 else f"{len(table):,} rows"
    lines.append(paint(shown, "dim"))
    if quarantined:
        said = "1 line" if quarantined == 1 else f"{quarantined:,} lines"
        lines.append(paint(f"{said} did not read back: torn or changed, and passed by", "yellow"))
    if output:
        lines.append(f"Written: {output}")
    return lines


def results_json(table: "pa.Table", quarantined: int) -> str:
    """Return a whole table as JSON: a mapping per row."""
    answer = answer_of(table)
    rows = [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]
    whole = {"schema_version": 1, "command": "results", "num_quarantined": quarantined, "results": rows}
    return json.dumps(whole, indent=2, ensure_ascii=False, allow_nan=False, default=str)


def _cell(value: Any) -> str:
    """Return a value as a cell."""
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return digits(value)
    text = str(value)
    return text if len(text) <= LONGEST_CELL else f"{text[: LONGEST_CELL - 1]}…"
