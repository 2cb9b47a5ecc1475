"""How single changes look: the run as it is, then one row per change, the largest gain first."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from finegauge.answers.changes import AdviceAnswer, ChangedRun, Fixed
from finegauge.answers.plan import WhatIfAnswer
from finegauge.answers.runs import FROM_MODEL_TOO_LARGE
from finegauge.prediction.uncertainty import WILL_NOT_FIT
from finegauge.render import number_format as fmt
from finegauge.render.files import written_notes
from finegauge.render.plan import assumed_samples_text, led_changes
from finegauge.render.report import TERMINAL, Block, Note, Report, Section, Table, Text, Toned, notes, section
from finegauge.render.run_parts import TONES, WORDS, subject, title_of
from finegauge.units import GIB, gib

HEADINGS = (
    "\nchange", "memory\nGiB", "\n", "\nP(OOM)", "\ntime", "\n", "\ncost", "\n", "kWh\nwall", "\n",
)  # fmt: skip
FIRST_TO_GO = (9, 8, 7, 5, 2)  # energy, and by how much the others move
FOLLOWS = (
    "padding", "data_parallel_replicate", "data_parallel_shard", "num_nodes", "lora_alpha", "loading",
    "max_steps",
)  # fmt: skip
LEAST_SHOWN_FRACTION = 0.005


def whatif_report(answer: WhatIfAnswer, *, named: bool, everything: bool) -> Report:
    """Return what is shown of single changes: `named` ones all, with every refusal; else those that gain."""
    shown = [one for one in answer.results if named or everything or (one.gains and one.helps)]
    nothing = "No single change gains 1 % of memory, time, cost or energy; --all shows them all."
    needs = tuple((text,) for one in shown if (text := _needs(one)))
    return Report.of(
        f"Single changes of {title_of(answer.run)}", base_text(answer),
        section(
            "changes", "",
            Table("Single changes", HEADINGS, tuple(_row(answer, one) for one in shown),
                  first_to_go=FIRST_TO_GO),
            *([] if shown else [Note(nothing)]),
        ),
        section("needs", "", Table("", ("",), needs, ends_in_text=True, indent=2),
                *_closing_notes(answer, shown, named=named)),
        tone=TONES[answer.base.outcome.verdict],
        subject=(subject(answer.run),),
    )  # fmt: skip


def base_text(answer: WhatIfAnswer) -> Text:
    """Return what the run takes as it is."""
    base = answer.base
    now = base.outcome
    instead = answer.run.origins.get("method") == FROM_MODEL_TOO_LARGE
    usd = now.usd(spot=answer.spot)
    market = "spot" if answer.spot else "on demand"
    bill = [fmt.hours(now.wall_s), f"{fmt.dollars(usd)} {market}" if usd is not None else "no price known"]
    bill += [f"{fmt.kwh(now.wall_energy_j)} kWh"] if now.wall_energy_j is not None else []
    return (
        Toned("Current run", "strong"), ": ", Toned(WORDS[now.verdict].lower(), TONES[now.verdict]),
        f", {gib(now.device_memory_bytes)} of {gib(now.capacity_bytes)} on {base.gpu}, P(OOM) "
        f"{fmt.probability(now.out_of_memory_fraction)}; {', '.join(bill)}.",
        " Trained by QLoRA, for LoRA is not safe there." if instead else "",
    )  # fmt: skip


def moved(fraction: float | None) -> str:
    """Return "-22 %", "+3 %" or "=" for less than half a percent, toned; "-" if unknown."""
    if fraction is None:
        return Toned(fmt.UNKNOWN, "soft")
    if abs(fraction) < LEAST_SHOWN_FRACTION:
        return Toned("=", "soft")
    return Toned(f"{100 * fraction:+,.0f} %", "good" if fraction < 0 else "bad")


def _row(answer: WhatIfAnswer, one: ChangedRun) -> tuple[str, ...]:
    change = one.change_fraction
    takes = one.outcome
    return (
        one.switch,
        f"{takes.device_memory_bytes / GIB:.1f}",
        moved(change.memory),
        Toned(fmt.probability(takes.out_of_memory_fraction), TONES[takes.verdict]),
        fmt.hours(takes.wall_s),
        moved(change.time),
        fmt.dollars(takes.usd(spot=answer.spot)),
        moved(change.cost),
        fmt.kwh(takes.wall_energy_j),
        moved(change.energy),
    )


def leading_changes(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes that others follow from: all of them where all only follow."""
    led = {name: value for name, value in led_changes(changes).items() if name not in FOLLOWS}
    return led or dict(changes)


NOTHING_FITS = "No change makes it fit, nor does any of the hardware that was tried."
ADVICE_HEADINGS = "change", "GiB", "P(OOM)", "time", "cost"
MOST_HERE, MOST_ELSEWHERE = 6, 2  # ways that are shown, on the same GPUs and on others


def advice_blocks(advice: AdviceAnswer, medium: str = TERMINAL) -> tuple[Block, ...]:
    """Return what makes a run safe, what costs least first; TERMINAL hangs what each needs under its name."""
    shown, left_out = _shown_ways(advice)
    if not shown:
        return (Note(NOTHING_FITS, tone="bad"),)
    more = f" whatif has {left_out} more." if left_out else ""
    needs = [text for one in shown if (text := _needs(one))]
    hanging = Table("", ("",), tuple((text,) for text in needs), ends_in_text=True, indent=2)
    return (
        Note(f"{_said(advice)}, what costs least first.{more}"),
        Table("", ADVICE_HEADINGS, tuple(map(_advice_row, shown)), indent=2),
        *((hanging,) if medium == TERMINAL else map(Note, needs)),
    )


def advice_sentence(advice: AdviceAnswer) -> str:
    """Return what makes a run safe in a line, each with what it takes, what costs least first."""
    shown, _ = _shown_ways(advice)
    ways = ", ".join(f"{one.switch} ({_bill(one)})" for one in shown)
    return f"{_said(advice)}: {ways}." if ways else NOTHING_FITS


def _said(advice: AdviceAnswer) -> str:
    if advice.together is not None:
        return (
            "No single change on this hardware makes it fit, several together do, and so does other hardware"
        )
    if all(map(_is_elsewhere, advice.ways)):
        return "No change on this hardware makes it fit; other hardware does"
    return "Each alone makes it fit"


def _shown_ways(advice: AdviceAnswer) -> tuple[list[ChangedRun], int]:
    """Return the first ways on the same GPUs and on others, and how many are left out."""
    here = [one for one in (advice.together, *advice.ways) if one and not _is_elsewhere(one)]
    ways = [one for one in advice.ways if _is_elsewhere(one)]
    small = advice.smallest
    if small is not None:
        ways = [small, *(one for one in ways if one.switch != small.switch)]
    shown = [*here[:MOST_HERE], *ways[:MOST_ELSEWHERE]]
    return shown, len(here) + len(ways) - len(shown)


def _is_elsewhere(one: ChangedRun) -> bool:
    return not {"gpu", "num_gpus"}.isdisjoint(one.changes)


def fixed_section(fixed: Fixed) -> Section:
    """Return with which change a run was written, what it then takes, and where it lies."""
    one = fixed.change
    takes = one.outcome
    fields = ", ".join(f"{name}={fmt.plain(value)}" for name, value in leading_changes(one.changes).items())
    needed = f"{gib(takes.device_memory_bytes)} of {gib(takes.capacity_bytes)}"
    text = f" with {fields}: {needed}, P(OOM) {fmt.probability(takes.out_of_memory_fraction)}, {_bill(one)}."
    asks = f" It asks for: {'; '.join(one.breaks)}." if one.breaks else ""
    return section(
        "fixed", "", Note((Toned("Fixed", "strong", "good"), text + asks)), *written_notes(fixed)
    )  # fmt: skip


def _bill(one: ChangedRun) -> str:
    takes = one.outcome
    usd = f", {fmt.dollars(takes.on_demand_usd)}" if takes.on_demand_usd is not None else ""
    return f"{fmt.hours(takes.wall_s)}{usd}"


def _advice_row(one: ChangedRun) -> tuple[Text, ...]:
    takes = one.outcome
    return (
        Toned(one.switch, "strong"),
        f"{takes.device_memory_bytes / GIB:.1f}",
        Toned(fmt.probability(takes.out_of_memory_fraction), TONES[takes.verdict]),
        fmt.hours(takes.wall_s),
        fmt.dollars(takes.on_demand_usd),
    )


def _fields_text(one: ChangedRun) -> str:
    """Return the fields that a change sets; nothing where its name says them."""
    shown = [name for name in one.changes if name not in FOLLOWS] or list(one.changes)
    fields = ", ".join(f"{name}={fmt.plain(one.changes[name])}" for name in shown)
    return "" if fields in (one.switch, f"gpu={one.switch}") else fields


def _needs(one: ChangedRun) -> Text:
    """Return a change's fields and what it needs in return; nothing where its name says it all."""
    said = f" ({fields})" if (fields := _fields_text(one)) else ""
    needs = f": {'; '.join(one.breaks)}" if one.breaks else ""
    return (Toned(one.switch, "strong"), f"{said}{needs}") if said or needs else ""


def _closing_notes(answer: WhatIfAnswer, shown: Sequence[ChangedRun], *, named: bool) -> Iterator[Note]:
    texts = [assumed_samples_text(answer.assumed_samples)] if answer.assumed_samples else []
    if named:
        texts += [f"{one.switch}: {one.reason.rstrip('.')}." for one in answer.refused]
        yield from notes(texts, tone="risky")
        return
    hidden = [one for one in answer.results if one not in shown]
    failing = [one.switch for one in hidden if one.outcome.verdict == WILL_NOT_FIT]
    left_out = len(hidden) - len(failing)
    if failing:
        texts.append(f"Will not fit: {', '.join(failing)}.")
    if left_out:
        texts.append(f"{left_out} more gain{'s' * (left_out == 1)} nothing here; --all shows.")
    if answer.refused:
        names = ", ".join(one.switch for one in answer.refused)
        texts.append(f"Not here: {names}; by name, each says why.")
    yield from notes(texts, tone="soft")


def switches_report(switches: Iterable[tuple[str, str]]) -> Report:
    """Return every switch with what it needs in return."""
    table = Table("Switches", ("switch", "what it needs"), tuple(switches), 2)
    return Report.of("Switches", "", section("switches", "", table))
