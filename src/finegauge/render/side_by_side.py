"""How several runs look side by side: figures in one table, bars under each other, what differs."""

from collections.abc import Callable, Iterator, Sequence

from finegauge.answers.study import Side, SidesAnswer
from finegauge.profile import Breakdown, Profile
from finegauge.render import number_format as fmt
from finegauge.render.plots.many_runs import Stack, front_plot, stacks_plot
from finegauge.render.report import Note, Report, Table, Text, Toned, section
from finegauge.render.run_parts import TONES, WORDS, shown_name, subject
from finegauge.units import GIB, count, gib

_Figure = tuple[str, Callable[[Side], float | None], Callable[[float], str], int]  # 1: more is better


def side_by_side_report(answer: SidesAnswer) -> Report:
    """Return all runs in one report, in their order."""
    sides = answer.sides
    return Report.of(
        f"{len(sides)} runs side by side", _headline(sides),
        section("figures", "Figures", _table(sides)),
        section("memory", "Memory", stacks_plot(
            "memory", "Memory, kind by kind", "What has to fit on the fullest GPU of each run; "
            "the mark is what the GPU has.",
            [Stack(one.name, _parts(one.profile.device_memory_bytes), one.profile.capacity_bytes)
             for one in sides], fmt.size, "GiB", 1 / GIB)),
        section("time", "Time", stacks_plot(
            "time", "One step, stage by stage", "One optimizer step of each run.",
            [Stack(one.name, _parts(one.profile.step_time_s)) for one in sides],
            fmt.duration, "seconds", 1.0)),
        section("cost", "Cost", front_plot(
            answer.ways, about="The runs, each at its cheapest offer") if len(answer.ways) > 1 else None),
        section("fields", "What differs", _fields(answer), None if answer.differing else
                Note("Every field is the same.")),
        subject=tuple(f"{side.name}: {subject(side.profile.run)}" for side in sides),
    )  # fmt: skip


def _headline(sides: Sequence[Side]) -> Text:
    """Return which run is the fastest and which the cheapest, of those that fit."""
    known = [side for side in sides if side.estimate and side.estimate.quote]
    times = {side.name: _of_bill(side, "wall_s") for side in known}
    usd = {side.name: _of_bill(side, "on_demand_usd") for side in known}
    parts = []
    for word, amounts, said in (("Fastest", times, fmt.hours), ("cheapest", usd, fmt.dollars)):
        have = {name: amount for name, amount in amounts.items() if amount is not None}
        if len(have) > 1:
            best = min(have, key=lambda name: have[name])
            parts.append(f"{word}: {best}, {said(have[best])}")
    if failing := [side.name for side in sides if side.estimate and side.estimate.quote is None]:
        parts.append(f"{'will' if parts else 'Will'} not fit: {', '.join(failing)}")
    return f"{'; '.join(parts)}." if parts else f"{len(sides)} runs."


def _figures() -> Iterator[_Figure]:
    yield "memory", lambda side: side.profile.device_memory_bytes.total, gib, -1
    yield "one step", lambda side: side.profile.step_time_s.total or None, fmt.duration, -1
    yield "tokens/s", lambda side: side.profile.tokens_per_s or None, count, 1
    yield "whole run", lambda side: _of_bill(side, "wall_s"), fmt.hours, -1
    yield "on demand", lambda side: _of_bill(side, "on_demand_usd"), fmt.dollars, -1
    yield "kWh at the wall", lambda side: _of_bill(side, "wall_energy_j"), fmt.kwh, -1
    yield "kg CO2e", lambda side: _of_bill(side, "emissions_kg"), lambda value: fmt.digits(value, 2), -1


def _of_bill(side: Side, name: str) -> float | None:
    quote = side.estimate.quote if side.estimate else None
    found: float | None = getattr(quote, name, None)
    return found


def _table(sides: Sequence[Side]) -> Table:
    """Return a column per run; the best of a row is in bold."""
    rows: list[tuple[Text, ...]] = [
        ("GPU", *(_gpu(side.profile) for side in sides)),
        ("verdict", *map(_verdict, sides)),
        ("usable", *(gib(s.profile.capacity_bytes) if s.profile.capacity_bytes else "-" for s in sides)),
    ]
    for name, figure, said, sense in _figures():
        amounts = [figure(side) for side in sides]
        known = [sense * amount for amount in amounts if amount is not None]
        best = max(known) if len(set(known)) > 1 else None
        cells = (
            fmt.UNKNOWN if one is None else Toned(said(one), "strong") if sense * one == best else said(one)
            for one in amounts
        )
        rows.append((name, *cells))
    headings = ("figure", *(side.name for side in sides))
    return Table("What each run takes; the best of a row in bold", headings, tuple(rows))


def _gpu(profile: Profile) -> str:
    run = profile.run
    return f"{run.all_gpus} x {run.gpu}" if run.gpu else profile.fingerprint.get("device", fmt.UNKNOWN)


def _verdict(side: Side) -> Text:
    if side.estimate is None:
        return side.profile.outcome.replace("_", " ")
    return Toned(WORDS[side.estimate.verdict], TONES[side.estimate.verdict])


def _parts(whole: Breakdown) -> dict[str, float]:
    return {shown_name(kind): amount for (kind, *_), amount in whole.at(1) if amount > 0}


def _fields(answer: SidesAnswer) -> Table:
    rows = tuple((name, *map(fmt.plain, values)) for name, values in answer.differing.items())
    headings = ("field", *(side.name for side in answer.sides))
    return Table("Fields that are not the same in all runs", headings, rows, len(headings))
