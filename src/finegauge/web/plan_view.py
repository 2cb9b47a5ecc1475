"""What the page says about a plan: the one to take, what surrounds it, and why not others."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from finegauge.errors import FieldError
from finegauge.formats.writing import known_name
from finegauge.planning.plan import OBJECTIVES, Plan
from finegauge.planning.selection import BEATEN, Alternative, Wanted
from finegauge.prediction.uncertainty import WILL_NOT_FIT, verdict
from finegauge.render import number_format as fmt
from finegauge.render.plan import (
    ASPECTS,
    FAR_FRACTION,
    FOLLOWS_FROM,
    MOST_ALTERNATIVES,
    alternative_text,
    machine_text,
    plan_name,
    relaxation_text,
    rent_text,
    verdict_line,
)
from finegauge.render.plan import FOLLOWS_FROM as FOLLOW_ANOTHER
from finegauge.render.report import Table
from finegauge.render.terminal import unpainted
from finegauge.render.whatif import FOLLOWS, assumed_samples_text, signed_percent
from finegauge.run.field import choice, flag, number, whole
from finegauge.units import GIB, HOUR_S, count, gib
from finegauge.web.form import NOTHING

if TYPE_CHECKING:
    from finegauge.planning.whatif import Standing, Variant, WhatIf

LEAST_SHOWN_FRACTION = 0.005


class Change(NamedTuple):
    """One change of one figure."""

    text: str
    tone: str  # good, bad or ""


class Row(NamedTuple):
    """One switch."""

    name: str
    fields: str  # "field=value" lines that make it
    says: str
    asks: str
    fit: Change
    changes: tuple[Change, ...]  # memory, time, cost, energy


class Switches(NamedTuple):
    """The changes that gain something, the largest first, and why others are not among them."""

    base: str  # the run as it is
    rows: tuple[Row, ...]
    failing: tuple[str, ...]
    notes: tuple[str, ...]


def switches_of(found: "WhatIf") -> Switches:
    """Return what is shown of the changes."""
    rows = [_row(found, one) for one in found.variants if found.gains(one) and _is_no_worse(found, one)]
    failing = tuple(one.switch for one in found.variants if not _is_no_worse(found, one))
    notes = (assumed_samples_text(found.assumed_samples),) if found.assumed_samples else ()
    return Switches(_base(found), tuple(rows), failing, notes)


def stated(changes: Mapping[str, Any]) -> str:
    """Return the lines "field=value" that state `changes`."""
    return "\n".join(f"{name}={_word(value)}" for name, value in changes.items())


def leading(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes that others follow from: all of them where all only follow."""
    led = {
        name: value
        for name, value in changes.items()
        if name not in FOLLOWS and FOLLOW_ANOTHER.get(name) not in changes
    }
    return led or dict(changes)


def _word(value: Any) -> str:
    """Return the value of a field as the form states it."""
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) or "none" if isinstance(value, tuple) else f"{value}"


def _base(found: "WhatIf") -> str:
    """Return what the run takes as it is."""
    base = found.base
    usd, kwh = fmt.dollars(base.amount("cost", spot=found.spot)), fmt.kwh(base.energy_j)
    chance = fmt.probability(base.out_of_memory_fraction)
    return (
        f"{gib(base.memory_bytes)} of {gib(base.capacity_bytes)} on {base.run.gpu}, P(OOM) {chance}; "
        f"{fmt.hours(base.wall_s)}, {usd}, {kwh} kWh"
    )


def _is_no_worse(found: "WhatIf", one: "Variant") -> bool:
    """Return whether a change leaves a run that works, or one that is nearer to it."""
    chance = one.standing.out_of_memory_fraction
    return verdict(chance) != WILL_NOT_FIT or chance < found.base.out_of_memory_fraction


def _row(found: "WhatIf", one: "Variant") -> Row:
    """Return one switch with all it moves."""
    new = one.standing
    chance = fmt.probability(new.out_of_memory_fraction)
    fit = Change(f"{gib(new.memory_bytes)}, {chance}", "bad" if new.fails else "")
    led = leading(one.changes)
    says = ", ".join(f"{name}={fmt.plain(value)}" for name, value in led.items())
    moved = tuple(
        _change(found.change_fraction(one, figure)) for figure in ("memory", "time", "cost", "energy")
    )
    return Row(one.switch, stated(led), says, "; ".join(one.breaks), fit, moved)


def _change(fraction: float | None) -> Change:
    """Return by what share a figure moves, with whether that is good."""
    if fraction is None or abs(fraction) < LEAST_SHOWN_FRACTION:
        return Change(signed_percent(fraction), "")
    return Change(signed_percent(fraction), "good" if fraction < 0 else "bad")


PLAN_FIELDS: Mapping[str, Any] = {
    "plan_within_h": number(1e-3, 1e6, "hours"),
    "plan_budget_usd": number(1e-3, 1e12, "dollars"),
    "plan_minimise": choice(OBJECTIVES),
    "plan_max_gpus": whole(1, 65_536, "GPUs"),
    "plan_risk_percent": number(1e-3, 50.0, "%"),
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
    """All of it."""

    found: bool
    sentence: str
    rent: str
    settings: tuple[Setting, ...]
    fields: str  # "field=value" lines that make the run the plan
    asks: str
    figures: tuple[tuple[str, str], ...]
    front: Table | None
    relaxations: tuple[str, ...]
    alternatives: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    framework: str


def wanted_of(form: Mapping[str, str]) -> Wanted:
    """Return what is asked of the plan.

    Raises: FieldError, or UnknownNameError for a framework; `plan_field_of` says of which field.
    """
    stated = {
        name: check(name, form[name].strip())
        for name, check in PLAN_FIELDS.items()
        if form.get(name, "").strip()
    }
    within_h = stated.get("plan_within_h")
    default = Wanted()
    return default._replace(
        within_s=None if within_h is None else within_h * HOUR_S,
        budget_usd=stated.get("plan_budget_usd"),
        minimise=stated.get("plan_minimise", default.minimise),
        max_gpus=stated.get("plan_max_gpus", default.max_gpus),
        risk_fraction=stated.get("plan_risk_percent", 100 * default.risk_fraction) / 100,
        keep_method=stated.get("plan_keep_method", False),
        spot=stated.get("plan_spot", False),
        framework=stated.get("plan_framework", ""),
    )


def plan_field_of(error: FieldError) -> str | None:
    """Return the field of the plan's limits that an error names."""
    return next((name for name in PLAN_FIELDS if str(error).startswith(name)), None)


def planned_of(plan: Plan) -> Planned:
    """Return what is said about a plan."""
    winner = plan.winner
    before = plan.run.fields()
    settings = [
        Setting(name, fmt.plain(before[name]), fmt.plain(value))
        for name, value in plan.changes.items()
        if FOLLOWS_FROM.get(name) not in plan.changes
    ]
    return Planned(
        found=winner is not None,
        sentence=unpainted(verdict_line(plan)),
        rent=f"{machine_text(winner.run)}: {rent_text(plan)}" if winner else "",
        settings=tuple(settings),
        fields=stated(_taken(plan)),
        asks="; ".join(plan.asks),
        figures=tuple(_figures(winner)) if winner else (),
        front=_front(plan),
        relaxations=tuple(unpainted(relaxation_text(plan, one)) for one in plan.relaxations),
        alternatives=tuple(
            (ASPECTS[aspect], _alternatives(plan, found)) for aspect, found in plan.alternatives.items()
        ),
        notes=tuple(_notes(plan)),
        framework=plan.wanted.framework,
    )


def _taken(plan: Plan) -> dict[str, object]:
    """Return the fields that make the run the plan that is taken."""
    if plan.winner is None:
        return {}
    run = plan.winner.run
    machine = {"gpu": run.gpu, "num_gpus": run.num_gpus, "num_nodes": run.num_nodes}
    return {**machine, **leading(plan.changes)}


def _alternatives(plan: Plan, found: "Sequence[Alternative]") -> str:
    """Return what stands against the closest plans with one choice made otherwise."""
    near = [one for one in found if one.reason != BEATEN or (one.over_fraction or 0.0) < FAR_FRACTION]
    told = [alternative_text(plan, one) for one in (near or found[:1])[:MOST_ALTERNATIVES]]
    more = f"; {len(found) - len(told)} more" if len(found) > len(told) else ""
    return unpainted("; ".join(told)) + more


def _figures(winner: "Standing") -> Iterator[tuple[str, str]]:
    """Yield what the plan takes."""
    yield "Whole run", fmt.hours(winner.wall_s)
    yield "On demand", fmt.dollars(winner.usd)
    yield "Spot", fmt.dollars(winner.spot_usd)
    yield "Memory, GiB", fmt.gib_of(winner.memory_bytes, winner.capacity_bytes)
    yield "P(out of memory)", fmt.probability(winner.out_of_memory_fraction)
    yield "Energy, kWh", fmt.kwh(winner.energy_j)
    yield "CO₂e, kg", fmt.digits(winner.emissions_kg, 2)


def _front(plan: Plan) -> Table | None:
    """Return the plans that nothing beats in cost, time and energy at once."""
    if not plan.front:
        return None
    beyond = "" if plan.winner is not None else ", beyond the limits"
    shown = f"{len(plan.front)} of {plan.num_on_front:,}{beyond}"
    caption = f"Nothing beats these in cost, time and energy at once: {shown}"
    headings = ("plan", "provider", "memory, GiB", "time", "on demand", "spot", "kWh")
    return Table(caption, headings, tuple(_front_row(plan, one) for one in plan.front), 2)


def _front_row(plan: Plan, one: "Standing") -> tuple[str, ...]:
    """Return one plan's row; the one to take is marked."""
    mark = "▸ " if plan.winner is not None and one.run == plan.winner.run else ""
    return (
        mark + plan_name(one.run, plan.winner.run if plan.winner else plan.run),
        str(one.run.provider or ""),
        f"{one.memory_bytes / GIB:.1f}/{one.capacity_bytes / GIB:.0f}",
        fmt.hours(one.wall_s),
        fmt.dollars(one.usd),
        fmt.dollars(one.spot_usd),
        fmt.kwh(one.energy_j),
    )


def _notes(plan: Plan) -> Iterator[str]:
    """Yield how old prices are, what was assumed, and what was searched."""
    if plan.quote is not None:
        yield from plan.quote.warnings
    if plan.assumed_samples:
        yield assumed_samples_text(plan.assumed_samples)
    yield from plan.notes
    yield (
        f"Searched {count(plan.num_candidates)} plans in {plan.search_s:.1f} s; "
        f"{count(plan.num_evaluated)} were evaluated in full."
    )
