"""What `finegauge whatif` prints: the run as it is, then one row per change, the largest gain first."""

from collections.abc import Iterable, Sequence
from typing import Any

from finegauge.planning.whatif import OBJECTIVES, Standing, Variant, WhatIf
from finegauge.prediction.uncertainty import verdict
from finegauge.render import number_format as fmt
from finegauge.render.json import run_document
from finegauge.render.run_parts import TONES, WORDS, subject
from finegauge.render.terminal import TONE_COLOURS, columns, item, paint, wrapped
from finegauge.units import GIB, gib

HEADINGS = (
    "\nchange", "memory\nGiB", "\n", "\nP(OOM)", "\ntime", "\n", "\ncost", "\n", "kWh\nwall", "\n",
)  # fmt: skip
FOLLOWS = (
    "padding",
    "data_parallel_replicate",
    "data_parallel_shard",
    "num_nodes",
    "lora_alpha",
    "max_steps",
)


def whatif_lines(found: WhatIf, *, named: bool, everything: bool) -> list[str]:
    """Return the answer.

    Args:
        found: The run with each change.
        named: Whether the changes were asked for by name: all are shown then, with every refusal.
        everything: Whether to show changes that gain nothing too.
    """
    shown = [one for one in found.variants if named or everything or _is_worth_a_row(found, one)]
    lines = wrapped(_base_line(found), indent="  ")
    lines += [*wrapped(paint(subject(found.base.run), "dim"), indent="")]
    if shown:
        rows = [_row(found, one) for one in shown]
        lines += ["", *columns(HEADINGS, rows), "", *_asks_lines(shown)]
    else:
        lines += ["", "No single change gains 1 % of memory, time, cost or energy; --all shows them all."]
    return [*lines, *_note_lines(found, shown, named=named)]


def whatif_json(found: WhatIf) -> str:
    """Return the whole JSON text."""
    results = [
        {
            "switch": one.switch,
            "changes": {name: _plain(value) for name, value in one.changes.items()},
            "breaks": list(one.breaks),
            **standing_json(one.standing),
            "change_fraction": {objective: found.change_fraction(one, objective) for objective in OBJECTIVES},
        }
        for one in found.variants
    ]
    more = {
        "minimise": found.minimise,
        "spot": found.spot,
        "assumed_samples": found.assumed_samples,
        "base": {"gpu": found.base.run.gpu, **standing_json(found.base)},
        "refused": [one._asdict() for one in found.refused],
    }
    return run_document("whatif", found.base.run, results, more)


def standing_json(standing: Standing) -> dict[str, Any]:
    """Return the figures of one run."""
    return {
        "verdict": verdict(standing.out_of_memory_fraction),
        "device_memory_bytes": standing.memory_bytes,
        "capacity_bytes": standing.capacity_bytes,
        "out_of_memory_fraction": standing.out_of_memory_fraction,
        "step_time_s": standing.step_time_s,
        "samples_per_step": standing.samples_per_step,
        "wall_s": standing.wall_s,
        "on_demand_usd": standing.usd,
        "spot_usd": standing.spot_usd,
        "wall_energy_j": standing.energy_j,
        "emissions_kg": standing.emissions_kg,
    }


def signed_percent(fraction: float | None) -> str:
    """Return "-22 %", "+3 %" or "=" for less than half a percent; "-" if unknown."""
    if fraction is None:
        return fmt.UNKNOWN
    if abs(fraction) < 0.005:
        return "="
    return f"{100 * fraction:+,.0f} %"


def switch_lines(switches: Iterable[tuple[str, str]]) -> list[str]:
    """Return every switch with what it asks for in return."""
    return columns(["switch", "what it asks for"], [list(pair) for pair in switches], left=2)


def _is_worth_a_row(found: WhatIf, one: Variant) -> bool:
    """Return whether a change saves something and does not end in a run that will not fit."""
    lost = one.standing.fails and one.standing.out_of_memory_fraction >= found.base.out_of_memory_fraction
    return found.gains(one) and not lost


def _base_line(found: WhatIf) -> str:
    """Return what the run takes as it is."""
    base = found.base
    word = verdict(base.out_of_memory_fraction)
    chance = fmt.probability(base.out_of_memory_fraction)
    usd = base.amount("cost", spot=found.spot)
    bill = [fmt.hours(base.wall_s)]
    bill += [f"{fmt.dollars(usd)} {_market(found)}" if usd is not None else "no price known"]
    bill += [f"{fmt.kwh(base.energy_j)} kWh"] if base.energy_j is not None else []
    fit = paint(WORDS[word].lower(), TONE_COLOURS[TONES[word]])
    return (
        f"{paint('As it is', 'bold')}: {fit}, {gib(base.memory_bytes)} of {gib(base.capacity_bytes)} on "
        f"{base.run.gpu}, P(OOM) {chance}; {', '.join(bill)}."
    )


def _market(found: WhatIf) -> str:
    return "spot" if found.spot else "on demand"


def _row(found: WhatIf, one: Variant) -> list[str]:
    """Return one change's row."""
    new, base = one.standing, found.base
    chance = fmt.probability(new.out_of_memory_fraction)
    return [
        one.switch,
        f"{new.memory_bytes / GIB:.1f}",
        _painted((new.memory_bytes - base.memory_bytes) / base.memory_bytes),
        paint(chance, TONE_COLOURS[TONES[verdict(new.out_of_memory_fraction)]]),
        fmt.hours(new.wall_s),
        _painted(found.change_fraction(one, "time")),
        fmt.dollars(new.amount("cost", spot=found.spot)),
        _painted(found.change_fraction(one, "cost")),
        fmt.kwh(new.energy_j),
        _painted(found.change_fraction(one, "energy")),
    ]


def _painted(fraction: float | None) -> str:
    """Return a change in green where it saves, in red where it costs."""
    text = signed_percent(fraction)
    if text in ("=", fmt.UNKNOWN) or fraction is None:
        return paint(text, "dim")
    return paint(text, "green" if fraction < 0 else "red")


def _asks_lines(shown: Sequence[Variant]) -> list[str]:
    """Return for each change its fields, and what it asks for in return."""
    lines = []
    for one in shown:
        fields = ", ".join(
            f"{name}={fmt.plain(value)}"
            for name, value in one.changes.items()
            if name not in FOLLOWS or not set(one.changes) - set(FOLLOWS)
        )
        asks = f": {'; '.join(one.breaks)}" if one.breaks else ""
        said = "" if fields in (one.switch, f"gpu={one.switch}") else f" ({fields})"
        if not said and not asks:
            continue
        lines += item(f"{paint(one.switch, 'bold')}{said}{asks}")
    return lines


def assumed_samples_text(num_samples: int) -> str:
    """Return what is said where the length of a run is not known."""
    return (
        f"The length of the run is not known: every figure is for {num_samples:,} samples; state "
        "num_samples=…, max_steps=… or a dataset."
    )


def _note_lines(found: WhatIf, shown: Sequence[Variant], *, named: bool) -> list[str]:
    """Return what was assumed, what was left out, and why a named change is not there."""
    notes = []
    if found.assumed_samples:
        notes.append(assumed_samples_text(found.assumed_samples))
    if named:
        notes += [f"{one.switch}: {one.reason.rstrip('.')}." for one in found.refused]
        return [line for note in notes for line in wrapped(paint(note, "yellow"), indent="  ")]
    failing = [one.switch for one in found.variants if one not in shown and one.standing.fails]
    left_out = len(found.variants) - len(shown) - len(failing)
    if failing:
        notes.append(f"Will not fit: {', '.join(failing)}.")
    if left_out:
        notes.append(f"{left_out} more gain{'s' * (left_out == 1)} nothing here; --all shows.")
    if found.refused:
        names = ", ".join(one.switch for one in found.refused)
        notes.append(f"Not here: {names}; by name, each says why.")
    return [line for note in notes for line in wrapped(paint(note, "dim"), indent="  ")]


def _plain(value: Any) -> Any:
    """Return a field's value as JSON has it."""
    return list(value) if isinstance(value, tuple) else value
