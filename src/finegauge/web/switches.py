"""What the page says about single changes: each with what it moves, and the fields that make it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from finegauge.plan.verdict import WILL_NOT_FIT, verdict
from finegauge.report import figures
from finegauge.report.plan import FOLLOWS as FOLLOW_ANOTHER
from finegauge.report.whatif import FOLLOWS, assumed_samples_text, signed_percent
from finegauge.units import gib
from finegauge.web.form import NOTHING

if TYPE_CHECKING:
    from finegauge.plan.whatif import Variant, WhatIf

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
    usd, kwh = figures.dollars(base.amount("cost", spot=found.spot)), figures.kwh(base.energy_j)
    chance = figures.probability(base.out_of_memory_fraction)
    return (
        f"{gib(base.memory_bytes)} of {gib(base.capacity_bytes)} on {base.run.gpu}, P(OOM) {chance}; "
        f"{figures.hours(base.wall_s)}, {usd}, {kwh} kWh"
    )


def _is_no_worse(found: "WhatIf", one: "Variant") -> bool:
    """Return whether a change leaves a run that works, or one that is nearer to it."""
    chance = one.standing.out_of_memory_fraction
    return verdict(chance) != WILL_NOT_FIT or chance < found.base.out_of_memory_fraction


def _row(found: "WhatIf", one: "Variant") -> Row:
    """Return one switch with all it moves."""
    new = one.standing
    chance = figures.probability(new.out_of_memory_fraction)
    fit = Change(f"{gib(new.memory_bytes)}, {chance}", "bad" if new.fails else "")
    led = leading(one.changes)
    says = ", ".join(f"{name}={figures.plain(value)}" for name, value in led.items())
    moved = tuple(
        _change(found.change_fraction(one, figure)) for figure in ("memory", "time", "cost", "energy")
    )
    return Row(one.switch, stated(led), says, "; ".join(one.breaks), fit, moved)


def _change(fraction: float | None) -> Change:
    """Return by what share a figure moves, with whether that is good."""
    if fraction is None or abs(fraction) < LEAST_SHOWN_FRACTION:
        return Change(signed_percent(fraction), "")
    return Change(signed_percent(fraction), "good" if fraction < 0 else "bad")
