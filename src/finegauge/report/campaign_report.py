"""The report about many results: a campaign's folder, or a journal of measurements."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Sized
from statistics import median
from typing import TYPE_CHECKING

from finegauge.campaign.folder import Result
from finegauge.campaign.gains import DIMENSIONS, Comparison, compare_results
from finegauge.errors import FineGaugeError
from finegauge.profile import Profile
from finegauge.report import figures, page
from finegauge.report.bars import Table
from finegauge.report.charts import panel_drawing
from finegauge.report.compare import NO_METER, by_processor, panels, title
from finegauge.report.drawings.beside import Pair, dots_drawing
from finegauge.report.drawings.experts import experts_drawing, loads_of
from finegauge.report.drawings.front import Way, front_drawing
from finegauge.report.drawings.radar import Reach, radar_drawing
from finegauge.report.drawings.throughput import throughput_drawing
from finegauge.report.page import Fact, Report, filled, section
from finegauge.units import gib

if TYPE_CHECKING:
    from finegauge.report.drawing import Drawing

PREDICTED, MEASURED = "predicted", "measured"
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
        verdict=f"{len(results):,} results: {said}." if results else "No cell has a result yet.",
        tone=page.GOOD if done == len(results) and results else page.RISKY if done else page.BAD,
        about=(),
        facts=tuple(_facts(results)),
        bars=(),
        sections=filled(
            section(
                "beside",
                "Predicted beside measured",
                texts=_elsewhere(results),
                drawings=tuple(_beside(results)),
            ),
            section(
                "gains",
                "SpeedUp, MemoryUp, EnergyUp",
                texts=(
                    *_of_many(comparisons, MOST_COMPARISONS),
                    *((NO_METER,) if by_processor(comparisons) else ()),
                ),
                drawings=tuple(_gains(comparisons, baseline)),
            ),
            section(
                "throughput",
                "Throughput by batch",
                texts=_of_many(sweeps, MOST_SWEEPS),
                drawings=tuple(_throughputs(sweeps)),
            ),
            section("cost", "Cost against time", drawings=(_front(results),)),
            section("experts", "Experts", drawings=(_experts(results),)),
            section("results", "Results", tables=(_table(results),)),
        ),
    )


def _facts(results: Sequence[Result]) -> Iterator[Fact]:
    """Yield how many results there are of each estimator, and how far the predictions are off."""
    for estimator, count in Counter(result.estimator for result in results).items():
        yield Fact(estimator.capitalize(), f"{count:,}", "results")
    pairs = [pair for pair in _pairs(results, "step_time_s") if pair.predicted and pair.measured]
    if pairs:
        errors = [abs((pair.predicted or 0.0) / (pair.measured or 1.0) - 1) for pair in pairs]
        yield Fact("Error of time", figures.percent(median(errors)), f"median of {len(errors):,}")


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
    for profile in (*profiles.get(PREDICTED, ()), *profiles.get(MEASURED, ())):
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
    measured = next(one for cell in both for one in cell[MEASURED])
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
        pairs.append(Pair(name, amounts.get(PREDICTED), amounts.get(MEASURED), group))
    return pairs


def _beside(results: Sequence[Result]) -> "Iterator[Drawing | None]":
    """Yield step time and peak memory, predicted beside measured."""
    yield dots_drawing("beside-time", "Time of a step", "Cells", _pairs(results, "step_time_s"),
                       unit="seconds", said=figures.duration)  # fmt: skip
    memory = [
        pair._replace(
            predicted=pair.predicted and pair.predicted / 2.0**30,
            measured=pair.measured and pair.measured / 2.0**30,
        )
        for pair in _pairs(results, "peak_memory_bytes")
    ]
    yield dots_drawing("beside-memory", "Peak memory", "Cells", memory, unit="GiB",
                       said=lambda value: figures.size(value * 2.0**30))  # fmt: skip


def _of_many(found: Sized, most: int) -> tuple[str, ...]:
    """Return what to say where not all that was found is drawn."""
    return (f"The first {most} of {len(found):,} are drawn.",) if len(found) > most else ()


def _gains(comparisons: Sequence[Comparison], baseline: str) -> "Iterator[Drawing]":
    """Yield the radar of every comparison, bars where a dimension is not known."""
    for number, one in enumerate(comparisons[:MOST_COMPARISONS], start=1):
        key = f"gains-{number}"
        over = f"{baseline}, {title(one)}"
        drawing = radar_drawing(_reaches(one), DIMENSIONS, over=over, key=key)
        if drawing is None:
            caption = f"Times the baseline, {title(one)}; above 1 is better. Not every dimension is known."
            drawing = panel_drawing(key, panels([one])[0], caption)
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


def _throughputs(sweeps: Mapping[str, Sequence[Profile]]) -> "Iterator[Drawing]":
    """Yield throughput against the batch, a figure for each sweep."""
    for number, (where, sweep) in enumerate(list(sweeps.items())[:MOST_SWEEPS], start=1):
        drawing = throughput_drawing(sweep)
        if drawing is not None:
            yield drawing._replace(key=f"throughput-{number}", title=f"Throughput, {where}")


def _front(results: Sequence[Result]) -> "Drawing | None":
    """Return cost against time of the predicted cells, where all do the same work; None where they do not.

    On one machine the fastest cell is the cheapest too, so one of each machine is priced.
    """
    completed = [
        r for r in results if r.estimator == PREDICTED and r.profile.fits and r.profile.samples_per_s
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
    return front_drawing(ways, about=about) if len(ways) > 1 else None


def _way(result: Result) -> Way | None:
    """Return what a cell costs at its cheapest offer; None where nobody lets that machine."""
    from finegauge.plan.quote import quote

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


def _experts(results: Sequence[Result]) -> "Drawing | None":
    """Return the load of the experts of the last measurement that saw it."""
    seen = [loads for result in results if (loads := loads_of(result.profile.observations))]
    return experts_drawing(seen[-1]) if seen else None


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
        gib(memory) if memory else figures.UNKNOWN,
        figures.duration(profile.step_time_s.total) if profile.step_time_s.total else figures.UNKNOWN,
        figures.digits(profile.tokens_per_s or None), figures.digits(profile.samples_per_s or None),
        f"{figures.digits(energy)} J" if energy else figures.UNKNOWN,
    )  # fmt: skip


def labels_of(profiles: Sequence[Profile]) -> list[Mapping[str, str]]:
    """Return, for every profile of a journal, the fields in which their runs differ."""
    fields = [profile.run.fields() for profile in profiles]
    varied = [name for name in fields[0] if len({str(one[name]) for one in fields}) > 1] if fields else []
    return [{name: figures.plain(one[name]) for name in varied} for one in fields]
