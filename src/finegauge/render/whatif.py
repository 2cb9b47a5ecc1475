"""How single changes look, the run as it is first, the largest gain next; how what fits a GPU looks."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from finegauge.answers.changes import AdviceAnswer, ChangedRun, Fixed
from finegauge.answers.plan import CanAnswer, FitsAt, FitsOn, FitsWith, WhatIfAnswer
from finegauge.answers.runs import FROM_COMMON
from finegauge.prediction.uncertainty import WILL_NOT_FIT
from finegauge.render import number_format as fmt
from finegauge.render.files import written_notes
from finegauge.render.plan import assumed_samples_text, led_changes
from finegauge.render.report import TERMINAL, Block, Note, Report, Section, Table, Text, Toned, notes, section
from finegauge.render.run_parts import TONES, WORDS, gpus_text, model_name, subject, title_of
from finegauge.run.run import FROM_MODEL_TOO_LARGE
from finegauge.units import GIB, count, gib

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


METHODS = {"full": "full", "lora": "LoRA", "qlora": "QLoRA"}
SHARDING = {"none": "", "fsdp": ", FSDP", "zero3": ", ZeRO-3"}

_KEY = (
    *("Largest micro-batch that is ", Toned("safe", "good"), " (P(OOM) below 5 %), in brackets the largest "),
    *("that ", Toned("may fit", "risky"), "; ", Toned("no", "bad"), ": not even 1."),
)
_NO_GPU = "No GPU is stated: this is the first of the common ones that is safe; --gpu 4090:2 asks for others."


def can_report(answer: CanAnswer) -> Report:
    """Return what is shown of what fits."""
    run = answer.run
    name = model_name(run)
    checkpointing = {"full": "checkpointing", "none": "no checkpointing"}
    kept = run.activation_checkpointing
    parts = [
        f"rank {run.lora_rank}",
        checkpointing.get(kept, f"{kept} checkpointing"),
        "all sequences at full length",
        "micro-batch per GPU",
    ]
    return Report.of(
        f"What fits: {name}",
        tuple(_fits_headline(name, answer)),
        *(
            section(one.gpu, "", _fits_table(one, answer.limit, run.seq_len), *_fits_reasons(one))
            for one in answer.results
        ),
        section("key", "", Note(_KEY), *([Note(_NO_GPU)] if run.origins["gpu"] == FROM_COMMON else [])),
        subject=(" · ".join(parts),),
    )


def _fits_headline(name: str, answer: CanAnswer) -> Iterator[str]:
    """Yield "Qwen3-32B on 2 x RTX 4090: QLoRA is safe, LoRA may fit, full will not.", per GPU."""
    for number, one in enumerate(answer.results):
        best: dict[str, int] = {}
        only = dict[str, str]()  # with what methods fit that do not without
        for way in one.methods:
            at = next((fits for fits in way.lengths if fits.seq_len == answer.run.seq_len), None)
            rank = 0 if at is None else 2 if at.safe_micro_batch_size else 1 if at.max_micro_batch_size else 0
            if way.host_bytes is not None:  # which is for the reader to judge
                only |= {way.method: "offload"} if rank else {}
                continue
            if way.kernels:
                only |= {way.method: way.kernels[0].title()} if rank else {}
                continue
            best[way.method] = max(best.get(way.method, 0), rank)
        said = {2: ("is safe", "good"), 1: ("may fit", "risky"), 0: ("does not fit", "bad")}
        gpus = gpus_text(one.gpu, one.num_gpus)
        yield f"{' ' if number else ''}{name} on {gpus} at {answer.run.seq_len:,} tokens: "
        for place, (method, rank) in enumerate(best.items()):
            word, tone = said[rank]
            if not rank and method in only:
                word, tone = f"only with {only[method]}", "risky"
            yield f"{', ' if place else ''}{METHODS[method]} "
            yield Toned(word, "strong", tone)
        yield "."


def _fits_table(one: FitsOn, limit: int, seq_len: int) -> Table:
    lengths = next((way.lengths for way in one.methods if way.lengths), ())
    gpus = gpus_text(one.gpu, one.num_gpus)
    headings = (f"{gpus}\n{gib(one.capacity_bytes)} each", *(f"tokens\n{at.seq_len:,}" for at in lengths))
    rows = tuple(_fits_row(way, limit) for way in one.methods if way.lengths)
    return Table(f"What fits {gpus}", (*headings, f"tokens/s\nat {seq_len:,}"), rows)


def _fits_row(way: FitsWith, limit: int) -> tuple[Text, ...]:
    held = f", {way.host_bytes / 1e9:,.0f} GB on the host" if way.host_bytes is not None else ""
    name = f"{_way_name(way)}{held}"
    rate = count(way.tokens_per_s) if way.tokens_per_s else fmt.UNKNOWN
    return (name, *(_fits_cell(at, limit) for at in way.lengths), rate)


def _fits_cell(at: FitsAt, limit: int) -> str:
    """Return "13 (15)": 13 are safe, 15 may fit."""
    safe, may = at.safe_micro_batch_size, at.max_micro_batch_size
    if not may:
        return Toned("no", "bad")
    if not safe:
        return Toned(f"({may})", "risky")
    return Toned(f"{'≥' * (safe == limit)}{safe}{f' ({may})' * (may > safe)}", "good")


def _fits_reasons(one: FitsOn) -> Iterator[Note]:
    for way in one.methods:
        if way.reason:
            yield Note(f"{_way_name(way)}: {way.reason}", tone="risky")


def _way_name(way: FitsWith) -> str:
    """Return "QLoRA, FSDP, Liger"."""
    return (
        f"{METHODS[way.method]}{SHARDING[way.sharding]}{''.join(f', {one.title()}' for one in way.kernels)}"
    )
