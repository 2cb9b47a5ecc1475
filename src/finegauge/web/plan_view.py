"""What the page says about a plan, about single changes and about several runs side by side.

Each of several runs comes as the token of its link, so that what was pinned last week is answered by the
prices and the physics of today.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple

from finegauge.answers.changes import ChangedRun
from finegauge.answers.estimate import EstimateAnswer, GpuEstimate
from finegauge.answers.plan import PlanAnswer, WhatIfAnswer
from finegauge.answers.questions import MOST_GPUS, MOST_HOURS, MOST_RISK, MOST_USD
from finegauge.errors import FineGaugeError, UnknownNameError
from finegauge.formats.writing import known_name
from finegauge.planning.plan import OBJECTIVES
from finegauge.planning.selection import Wanted
from finegauge.render import number_format as fmt
from finegauge.render.plan import assumed_samples_text, led_changes, machine_text, plan_report, rent_text
from finegauge.render.report import PAGE, Report, Text
from finegauge.render.run_parts import TONES, WORDS, tiles
from finegauge.render.whatif import base_text, leading_changes, moved
from finegauge.run.field import choice, flag, number, whole
from finegauge.run.run import Run
from finegauge.units import HOUR_S, gib
from finegauge.web.choices import controls
from finegauge.web.form import NOTHING, shown_value


class Moved(NamedTuple):
    """By how much a change moves one figure, and its bar from the run as it is."""

    text: Text
    start_fraction: float  # of a bar's width; the run as it is stands in the middle
    width_fraction: float
    tone: str
    is_beyond: bool  # more than twice what it was, which the bar has no room for


class Row(NamedTuple):
    """One single change."""

    name: str
    fields: str  # "field=value" lines that make it
    says: str
    asks: str
    fit: str
    fails: bool
    moved: tuple[Moved, ...]  # memory, time, cost, energy


class Switches(NamedTuple):
    """The changes that gain something, the largest first, and why others are not among them."""

    base: Text  # the run as it is
    rows: tuple[Row, ...]
    failing: tuple[str, ...]
    notes: tuple[str, ...]


def switches_of(answer: WhatIfAnswer) -> Switches:
    """Return what is shown of single changes."""
    rows = tuple(_row(one) for one in answer.results if one.gains and one.helps)
    failing = tuple(one.switch for one in answer.results if not one.helps)
    notes = (assumed_samples_text(answer.assumed_samples),) if answer.assumed_samples else ()
    return Switches(base_text(answer), rows, failing, notes)


def _row(one: ChangedRun) -> Row:
    led, change = leading_changes(one.changes), one.change_fraction
    says = ", ".join(f"{name}={fmt.plain(value)}" for name, value in led.items())
    return Row(
        one.switch, stated(led), says, "; ".join(one.breaks),
        f"{gib(one.outcome.device_memory_bytes)}, {fmt.probability(one.outcome.out_of_memory_fraction)}",
        one.outcome.verdict == "will_not_fit",
        tuple(map(_moved, (change.memory, change.time, change.cost, change.energy))),
    )  # fmt: skip


def _moved(fraction: float | None) -> Moved:
    shown = min(1.0, max(-1.0, fraction or 0.0)) / 2
    tone = "good" if shown < 0 else "bad"
    return Moved(moved(fraction), 0.5 + min(0.0, shown), abs(shown), tone, (fraction or 0.0) > 1.0)


def stated(changes: Mapping[str, Any]) -> str:
    """Return the lines "field=value" that state `changes`."""
    return "\n".join(f"{name}={_word(value)}" for name, value in changes.items())


def _word(value: Any) -> str:
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) or "none" if isinstance(value, tuple) else f"{value}"


PLAN_FIELDS: Mapping[str, Any] = {
    "plan_within_h": number(1e-3, MOST_HOURS, "hours"),
    "plan_budget_usd": number(1e-3, MOST_USD, "dollars"),
    "plan_minimise": choice(OBJECTIVES),
    "plan_max_gpus": whole(1, MOST_GPUS, "GPUs"),
    "plan_risk_percent": number(1e-3, 100 * MOST_RISK, "%"),
    "plan_keep_method": flag,
    "plan_spot": flag,
    "plan_framework": lambda _, value: known_name(str(value)),
}


class Setting(NamedTuple):
    """One field that the plan has otherwise."""

    name: str
    before: str
    after: str


class Planned(NamedTuple):
    """A plan's report, with what is rented, what changes, and the fields that make the run the plan."""

    report: Report
    found: bool
    rent: str
    settings: tuple[Setting, ...]
    fields: str
    needs: str
    framework: str


def wanted_of(form: Mapping[str, str]) -> Wanted:
    """Return the limits and the objective of the plan.

    Raises: FieldError, or UnknownNameError for a framework; `plan_field_of` says of which field.
    """
    stated = {
        name.removeprefix("plan_"): check(name, form[name].strip())
        for name, check in PLAN_FIELDS.items()
        if form.get(name, "").strip()
    }
    if "within_h" in stated:
        stated["within_s"] = stated.pop("within_h") * HOUR_S
    if "risk_percent" in stated:
        stated["risk_fraction"] = stated.pop("risk_percent") / 100
    return Wanted(**stated)


def plan_field_of(error: FineGaugeError) -> str | None:
    """Return the field of the plan's limits that an error is about."""
    if isinstance(error, UnknownNameError) and "framework" in str(error):
        return "plan_framework"
    return next((name for name in PLAN_FIELDS if str(error).startswith(name)), None)


def planned_of(answer: PlanAnswer) -> Planned:
    """Return what is said about a plan."""
    report, winner, before = plan_report(answer, PAGE), answer.winner, answer.run.fields()
    if winner is None:
        return Planned(report, False, "", (), "", "", answer.wanted.framework)
    machine = {name: getattr(winner.candidate, name) for name in ("gpu", "num_gpus", "num_nodes")}
    return Planned(
        report=report,
        found=True,
        rent=f"{machine_text(winner.candidate)}: {rent_text(winner)}",
        settings=tuple(
            Setting(name, fmt.plain(before[name]), fmt.plain(value))
            for name, value in led_changes(winner.candidate.changes).items()
        ),
        fields=stated({**machine, **leading_changes(winner.candidate.changes)}),
        needs="; ".join(winner.needs),
        framework=answer.wanted.framework,
    )


MOST_RUNS = 6
_KEYS = ("max-batch", "oom", "step", "tokens", "time", "usd", "spot", "energy", "co2")  # of tiles, in order


class Pinned(NamedTuple):
    """One run with its name, and its answer or the error."""

    name: str
    token: str
    estimate: EstimateAnswer | None = None
    error: str = ""


class Cell(NamedTuple):
    """One figure or value of one run."""

    text: str
    change: str = ""  # against the first run
    tone: str = ""
    differs: bool = False  # from the first run


class Line(NamedTuple):
    """One figure or field of all runs."""

    name: str
    cells: tuple[Cell, ...]


class Compared(NamedTuple):
    """What is shown of several runs."""

    pinned: tuple[Pinned, ...]
    figures: tuple[Line, ...]
    fields: tuple[Line, ...]  # that differ


def pins_of(form: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the name and the token of each run of a form: name0, token0, name1 ..."""
    for index in count():
        if index == MOST_RUNS or f"token{index}" not in form:
            return
        yield form.get(f"name{index}", "").strip()[:80] or f"Run {index + 1}", form[f"token{index}"]


def compared_of(pinned: Sequence[Pinned]) -> Compared:
    """Return the runs side by side, the first of those with an answer as the baseline."""
    found = [one.estimate.found[0] if one.estimate else None for one in pinned]
    return Compared(tuple(pinned), tuple(_figures(found)), tuple(_fields(found)))


def _figures(found: Sequence[GpuEstimate | None]) -> Iterator[Line]:
    base = next((one for one in found if one), None)
    if base is None:
        return
    words = [Cell(WORDS[one.verdict], tone=TONES[one.verdict]) if one else Cell("–") for one in found]
    yield Line("Verdict", tuple(words))
    memory = [f"{gib(one.device_memory_bytes)} of {gib(one.capacity_bytes)}" if one else "–" for one in found]
    yield Line("Memory of each GPU", _changed(memory, found, lambda one: one.device_memory_bytes))
    shown = [{tile.key: tile for tile in tiles(one)} if one else {} for one in found]
    for key in _KEYS:
        name = next((tiles[key].name for tiles in shown if key in tiles), "")
        if name:
            texts = [tiles[key].value if key in tiles else "–" for tiles in shown]
            yield Line(name, _changed(texts, found, _NUMBERS.get(key)))


_NUMBERS: Mapping[str, Callable[[GpuEstimate], float | None]] = {
    "step": lambda one: one.profile.step_time_s.total if one.quote else None,
    "time": lambda one: one.quote.wall_s if one.quote else None,
    "usd": lambda one: one.quote.on_demand_usd if one.quote else None,
    "energy": lambda one: one.quote.wall_energy_j if one.quote else None,
}


def _changed(
    texts: Sequence[str],
    found: Sequence[GpuEstimate | None],
    number: Callable[[GpuEstimate], float | None] | None,
) -> tuple[Cell, ...]:
    """Return the cells of one figure, each with its change against the first; less is better."""
    values = [number(one) if one and number else None for one in found]
    base = next((value for value in values if value), None)
    cells = []
    for text, value in zip(texts, values, strict=True):
        change = value / base - 1 if value is not None and base else 0.0
        said = f"{change:+.0%}".replace("-", "−").replace("%", " %") if round(change, 2) else ""
        cells.append(Cell(text, said, ("good" if change < 0 else "bad") if said else "", text != texts[0]))
    return tuple(cells)


def _fields(found: Sequence[GpuEstimate | None]) -> Iterator[Line]:
    """Yield the fields of a run that are not alike in all."""
    runs: list[Run | None] = [one.run if one else None for one in found]
    known = [run for run in runs if run is not None]
    for control in controls():
        if not hasattr(known[0] if known else None, control.name):
            continue
        texts = [shown_value(run, control.name) or "–" if run else "–" for run in runs]
        base = shown_value(known[0], control.name) or "–"
        if any(shown_value(run, control.name) != shown_value(known[0], control.name) for run in known):
            yield Line(control.label, tuple(Cell(text, differs=text != base) for text in texts))
