"""What `finegauge estimate` prints: the verdict first, one table, and for one GPU where it all goes."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from finegauge.planning.estimate import Estimate
from finegauge.planning.quote import SPOT_REPEATED_FRACTION, WALL_POWER_RATIO, PricedOffer
from finegauge.prediction.uncertainty import FITS, RISKY, WILL_NOT_FIT
from finegauge.profile import Breakdown, Path, Profile
from finegauge.render import number_format as fmt
from finegauge.render.terminal import WIDTH, bar, columns, pad, paint, visible_width, wrapped
from finegauge.run.rules import LORA_FIELDS
from finegauge.units import GIB, count, gib

if TYPE_CHECKING:
    from finegauge.run.run import Run

WORDS = {FITS: "Fits", RISKY: "Risky", WILL_NOT_FIT: "Will not fit"}
COLOURS = {FITS: "green", RISKY: "yellow", WILL_NOT_FIT: "red"}
HEADINGS = (
    "\nGPU", "memory\nGiB", "max\nbatch", "one step, s\n[p10–p90]", "\ntokens/s", "\nqueries/s",
    "\ntime", "on\ndemand", "\nspot", "kWh\nwall", "kg\nCO2e",
)  # fmt: skip
ASSUMED = (
    "method", "micro_batch_size", "seq_len", "lora_rank", "weights_dtype", "activation_checkpointing",
    "attention", "optimizer", "num_experts_per_tok", "padding", "startup_s", "saves_per_epoch",
)  # fmt: skip
BAR_WIDTH = 24
LEAST_SHOWN_BYTES = 0.005 * GIB
NAME_WIDTH = 13


def estimate_lines(estimates: Sequence[Estimate], unsupported: Mapping[str, str]) -> list[str]:
    """Return the answer about one run on one or several GPUs.

    Args:
        estimates: One per GPU, in the order asked.
        unsupported: For every GPU without an answer, the sentence that says why.
    """
    run = estimates[0].run
    lines = [verdict_line(estimates), *subject_lines(run), "", *_table(estimates)]
    lines += [paint(f"{name}: {reason}", "yellow") for name, reason in unsupported.items()]
    if len(estimates) == 1:
        profile = estimates[0].profile
        lines += ["", *memory_lines(profile), "", *time_lines(profile), "", *_bottleneck_lines(profile)]
    return [
        *lines,
        "",
        *_price_lines(estimates),
        *_assumption_lines(run, estimates[0].profile),
        constants_line(estimates[0].profile),
    ]


def verdict_line(estimates: Sequence[Estimate]) -> str:
    """Return the answer in one line: of one GPU with its figures, of several by name."""
    if len(estimates) == 1:
        return one_verdict(estimates[0])
    parts: list[str] = []
    for verdict, word in WORDS.items():
        names = [str(e.run.gpu) for e in estimates if e.verdict == verdict]
        if names:
            said = word.lower() if parts else word
            parts.append(paint(f"{said} on {', '.join(names)}", "bold", COLOURS[verdict]))
    return "; ".join(parts) + "."


def one_verdict(estimate: Estimate) -> str:
    """Return "Fits: 19.8 GiB [18.9–21.4] of 44.4 GiB on A40, P(OOM) 2 %.", or with the way out."""
    profile, verdict = estimate.profile, estimate.verdict
    needed = fmt.gib_interval(profile.device_memory_bytes.total, profile.source.memory_interval)
    word = paint(WORDS[verdict], "bold", COLOURS[verdict])
    chance = fmt.probability(estimate.out_of_memory_fraction)
    line = f"{word}: {needed} of {gib(profile.capacity_bytes)} on {profile.run.gpu}, P(OOM) {chance}."
    return line if verdict == FITS else f"{line} {_way_out(estimate)}"


def _way_out(estimate: Estimate) -> str:
    """Return what to do about a run that is too large."""
    safe, most = estimate.safe_micro_batch_size, estimate.capacity.value
    if safe:
        return f"micro_batch_size={safe} is safe."
    if most:
        return f"micro_batch_size={most} may fit, none is safe: use a larger GPU or a shorter seq_len."
    return "Not even micro_batch_size=1 fits: use a larger GPU, a shorter seq_len, or qlora."


def subject_lines(run: "Run") -> list[str]:
    """Return one or two lines that say which run this is."""
    parts = [run.model.rpartition("/")[2] or run.model, _method(run)]
    if run.num_experts_per_tok is not None:
        parts.append(f"top-{run.num_experts_per_tok} experts")
    data = f"{run.dataset}, cut at {run.seq_len:,}" if run.dataset else f"sequences of {run.seq_len:,}"
    epochs = f"{run.max_steps:,} steps" if run.max_steps else f"{run.epochs:g} epoch{'s' * (run.epochs != 1)}"
    parts += [data, f"batch {run.micro_batch_size} x {run.gradient_accumulation_steps}", epochs]
    return wrapped(paint(" · ".join(parts), "dim"), indent="")


def _method(run: "Run") -> str:
    """Return "qlora rank 16 nf4_dq" or "full bf16"."""
    rank = f" rank {run.lora_rank}" if run.trains_adapters else ""
    return f"{run.method}{rank} {run.weights_dtype}"


def _table(estimates: Sequence[Estimate]) -> list[str]:
    """Return the table, one row per GPU."""
    return columns(HEADINGS, [_row(estimate) for estimate in estimates])


def _row(estimate: Estimate) -> list[str]:
    """Return one GPU's row; time and cost are of the run as asked, so a run that fails has none."""
    profile, quote = estimate.profile, estimate.quote
    memory = fmt.gib_of(profile.device_memory_bytes.total, profile.capacity_bytes)
    most = f"{'≥' if estimate.capacity.at_limit else ''}{estimate.capacity.value:,}"
    cells = [str(profile.run.gpu), paint(memory, COLOURS[estimate.verdict]), most]
    if estimate.verdict == WILL_NOT_FIT:
        return [*cells, *[fmt.UNKNOWN] * (len(HEADINGS) - len(cells))]
    return [
        *cells,
        fmt.seconds_interval(profile.step_time_s.total, profile.source.time_interval),
        fmt.digits(profile.tokens_per_s),
        fmt.digits(profile.samples_per_s),
        fmt.hours(quote.wall_s),
        fmt.dollars(quote.cheapest_on_demand.on_demand_usd if quote.cheapest_on_demand else None),
        fmt.dollars(quote.cheapest_spot.spot_usd if quote.cheapest_spot else None),
        fmt.kwh(quote.wall_energy_j),
        fmt.digits(quote.emissions_kg, 2),
    ]


def memory_lines(profile: Profile) -> list[str]:
    """Return the memory of the fullest moment by kind, each with a bar of the whole GPU."""
    needed, usable = profile.device_memory_bytes, profile.capacity_bytes
    phase = f" (fullest in {profile.peak_phase})" if profile.peak_phase else ""
    title = f"{paint('Memory', 'bold')}  {gib(needed.total)} of {gib(usable)}{phase}"
    lines = [title]
    kinds = {path[0]: value for path, value in needed.at(1)}
    whole = max(usable, needed.total)
    for kind, value in kinds.items():
        if value < LEAST_SHOWN_BYTES:
            continue
        lines.append(_bar_line(kind, gib(value), value / whole, _parts(needed.under(kind), 1 / GIB), "cyan"))
    free = usable - needed.total
    lines.append(_bar_line("free" if free >= 0 else "missing", gib(abs(free)), abs(free) / whole, "", "dim"))
    return lines


def time_lines(profile: Profile) -> list[str]:
    """Return the seconds of one step by stage, each with its largest layer parts."""
    step = profile.step_time_s
    mfu, host = (
        fmt.percent(profile.mfu_fraction),
        fmt.percent(profile.host_bound_fraction),
    )
    rates = f"{count(profile.tokens_per_s)} tokens/s, {mfu} of the GPU's peak FLOP/s, host-bound {host}"
    lines = [f"{paint('Time', 'bold')}    {fmt.digits(step.total)} s a step: {rates}"]
    for (stage, *_), value in step.at(1).parts.items():
        parts = _parts(step.at(2).under(stage), 1.0)
        lines.append(_bar_line(stage, f"{fmt.digits(value)} s", value / step.total, parts, "blue"))
    if profile.run.phase == "decode":
        from finegauge.render.instruments import predicted_line

        lines.append(predicted_line(profile))
    return lines


def _bar_line(name: str, amount: str, fraction: float, parts: str, colour: str) -> str:
    """Return "  weights    22.9 GiB  52 %  ██████  experts 22.1 · attention 0.6"."""
    share = pad(fmt.percent(fraction), 5, right=True)
    drawn = pad(paint(bar(fraction, BAR_WIDTH), colour), BAR_WIDTH)
    figure = pad(amount, 9, right=True)
    return f"  {pad(name, NAME_WIDTH)}{figure} {share}  {drawn}  {paint(parts, 'dim')}".rstrip()


def _parts(parts: Breakdown, per_unit: float, *, room: int = WIDTH - 59) -> str:
    """Return the largest `parts` as "experts 22.1 · attention 0.6", as many as there is room for."""
    named = [(path[-1], value * per_unit) for path, value in parts if path and value]
    if len(named) < 2:
        return ""
    text = ""
    for name, value in named:
        longer = f"{text} · {name} {fmt.digits(value, 2)}" if text else f"{name} {fmt.digits(value, 2)}"
        if value < 0.01 * named[0][1] or len(longer) > room:
            break
        text = longer
    return text


def _bottleneck_lines(profile: Profile) -> list[str]:
    """Return the bottleneck in words."""
    return wrapped(f"{paint('Bottleneck', 'bold')}  {profile.bottleneck}", indent="  ")


def _price_lines(estimates: Sequence[Estimate]) -> list[str]:
    """Return whose prices the table used, the managed alternative, and how old they are."""
    answered = [e for e in estimates if e.verdict != WILL_NOT_FIT]
    named = [_offer_text(e) for e in answered]
    texts = [text for text in named if text]
    lines = wrapped(f"{paint('Offers', 'bold')}  {'; '.join(texts)}.", indent="  ") if texts else []
    quote = estimates[0].quote
    if quote.managed:
        cheapest = quote.managed[0]
        lines.append(
            f"  Managed: {cheapest.provider} ({cheapest.model}) {fmt.dollars(cheapest.low_usd)} for "
            f"{count(cheapest.billed_tokens)} training tokens, padding not billed."
        )
    if texts:
        lines += wrapped(
            f"Spot allows {fmt.percent(SPOT_REPEATED_FRACTION)} for work that interruptions repeat. kWh "
            f"at the wall are {WALL_POWER_RATIO:.2f} x the boards'; CO2e with PUE {quote.pue:.2f} and "
            f"{quote.grid_kg_per_kwh:.3f} kg/kWh ({quote.grid}).",
            indent="  ",
        )
    for warning in dict.fromkeys(w for e in answered for w in e.quote.warnings):
        lines += [paint(line, "yellow") for line in wrapped(warning, indent="  ")]
    return lines


def _offer_text(estimate: Estimate) -> str:
    """Return "A40 $0.39/h dataoorts, spot $0.20/h vast-ai"."""
    on_demand, spot = estimate.quote.cheapest_on_demand, estimate.quote.cheapest_spot
    parts = []
    if on_demand:
        parts.append(_rate(on_demand, on_demand.offer.on_demand_usd_per_h))
    if spot:
        parts.append(f"spot {_rate(spot, spot.offer.spot_usd_per_h)}")
    return f"{estimate.run.gpu} {', '.join(parts)}" if parts else ""


def _rate(priced: PricedOffer, usd_per_h: float | None) -> str:
    """Return "$0.39/h dataoorts (community, 2026-05-24)", with the GPUs that are billed but not used."""
    offer = priced.offer
    tier = "" if offer.tier in ("on-demand", "spot") else f"{offer.tier}, "
    idle = f", {priced.idle_gpus} more GPUs billed than used" if priced.idle_gpus >= 1 else ""
    return f"{fmt.dollars(usd_per_h)}/h {offer.provider} ({tier}{offer.date}{idle})"


def constants_line(profile: Profile) -> str:
    """Return which calibration the figures rest on."""
    return f"{paint('Constants', 'bold')} {profile.source.name}."


def _assumption_lines(run: "Run", profile: Profile) -> list[str]:
    """Return what nobody stated and the answer rests on, by who assumed it."""
    by_origin: dict[str, list[str]] = {}
    for name in ASSUMED:
        origin, value = run.origins.get(name, ""), getattr(run, name)
        if (
            "default" in origin
            and value is not None
            and not (name == "lora_rank" and not run.trains_adapters)
        ):
            by_origin.setdefault(origin, []).append(f"{name}={fmt.plain(value)}")
    texts = [f"{', '.join(items)} ({origin})" for origin, items in by_origin.items()]
    texts += list(profile.source.assumptions)
    lines = wrapped(f"{paint('Assumed', 'bold')} {'; '.join(texts)}.", indent="  ") if texts else []
    for warning in run.warnings:
        lines += [paint(line, "yellow") for line in wrapped(warning, indent="  ")]
    return lines


SUM_BEFORE = {"slack": "= allocated by torch at the peak", "context": "= reserved by torch's allocator"}
LEAST_SHARE_FRACTION = 0.005  # of a step: smaller parts are left to --json


def explain_lines(estimate: Estimate, formulas: Mapping[Path, str]) -> list[str]:
    """Return the whole explanation of one run on one GPU.

    Args:
        estimate: The answer to explain.
        formulas: One line per path of its memory and its time, with the numbers put in.
    """
    profile = estimate.profile
    return [
        one_verdict(estimate),
        *subject_lines(profile.run),
        "",
        *_memory_lines(profile, formulas),
        "",
        *_phase_lines(profile),
        "",
        *_time_lines(profile, formulas),
        *_exchange_lines(profile.run),
        "",
        *_wall_lines(estimate),
        "",
        *_input_lines(profile.run),
        *[line for text in profile.source.assumptions for line in wrapped(f"Assumed: {text}.", indent="  ")],
        constants_line(profile),
    ]


def _memory_lines(profile: Profile, formulas: Mapping[Path, str]) -> list[str]:
    """Return the waterfall: each line an amount, the total so far, its name and its formula."""
    total, lines = 0.0, [paint("Memory, line by line to the figure of nvidia-smi", "bold")]
    lines.append(paint(f"{pad('GiB', 9, right=True)}{pad('so far', 9, right=True)}", "dim"))
    for path, amount in _by_kind(profile.device_memory_bytes):
        if path[0] in SUM_BEFORE and total:
            lines.append(_sum_line(total, SUM_BEFORE[path[0]]))
        total += amount
        amounts = f"{pad(_gib(amount), 9, right=True)}{pad(_gib(total), 9, right=True)}"
        lines += _formula_lines(amounts, " · ".join(path), _formula(path, formulas))
    lines.append(_sum_line(total, "= what has to fit"))
    if profile.cached_bytes:
        amounts = f"{pad(_gib(profile.cached_bytes), 9, right=True)}{pad('', 9)}"
        lines += _formula_lines(amounts, "cached", "freed blocks that the allocator gives back if need be")
        lines.append(_sum_line(total + profile.cached_bytes, "= what nvidia-smi shows"))
    return [*lines, _sum_line(profile.capacity_bytes, f"usable on {profile.run.gpu}")]


def _by_kind(breakdown: Breakdown) -> Iterator[tuple[Path, float]]:
    """Yield the parts in the order of their kinds, so that equal kinds stand together."""
    for kind in breakdown.at(1).parts:
        yield from ((path, value) for path, value in breakdown.parts.items() if path[:1] == kind)


def _formula(path: Path, formulas: Mapping[Path, str]) -> str:
    """Return the formula of `path`, or of the nearest whole it is part of."""
    for length in range(len(path), 0, -1):
        if path[:length] in formulas:
            return formulas[path[:length]]
    return ""


def _formula_lines(amounts: str, name: str, formula: str) -> list[str]:
    """Return amounts, name and formula; a long formula goes on below."""
    below = " " * (visible_width(amounts) + 4)
    text = f"{name}  {formula}".rstrip()
    first, *rest = wrapped(text, indent="  ", width=WIDTH - visible_width(amounts) - 2)
    first = name + paint(first[len(name) :], "dim")
    return [f"{amounts}  {first}", *(paint(f"{below}{line.strip()}", "dim") for line in rest)]


def _sum_line(amount_bytes: float, name: str) -> str:
    """Return a line of the waterfall that sums up."""
    return paint(f"{pad('', 9)}{pad(_gib(amount_bytes), 9, right=True)}  {name}", "bold")


def _gib(amount_bytes: float) -> str:
    """Return GiB with three decimals: a waterfall has to add up."""
    return f"{amount_bytes / 2**30:.3f}"


def _phase_lines(profile: Profile) -> list[str]:
    """Return what is alive at the fullest moment of each phase, by kind."""
    by_phase = profile.phase_memory_bytes
    phases = [path[0] for path in by_phase.at(1).parts]
    kinds = list(dict.fromkeys(path[1] for path in by_phase.at(2).parts if len(path) > 1))
    rows = []
    for phase in phases:
        parts = by_phase.under(phase).at(1)
        cells = [_gib(parts[kind]) if parts[kind] else fmt.UNKNOWN for kind in kinds]
        total = paint(_gib(parts.total), *(("bold",) if phase == profile.peak_phase else ()))
        rows.append([f"  {phase}", *cells, total])
    title = paint("Memory by phase, GiB live in torch at its fullest moment", "bold")
    return [title, *columns(["  phase", *kinds, "total"], rows)]


def _time_lines(profile: Profile, formulas: Mapping[Path, str]) -> list[str]:
    """Return the seconds of a step by stage and operator group, with formulas."""
    step, total = profile.step_time_s, profile.step_time_s.total
    lines = [f"{paint('Time of one step', 'bold')}  {fmt.digits(total)} s"]
    for stage, stage_s in step.at(1).parts.items():
        drawn = f"{stage[0]}  {paint(bar(stage_s / total, 20), 'blue')}"
        lines += _formula_lines(_time_amounts(stage_s, total), drawn, formulas.get(stage, ""))
        for path, seconds in _largest(step.under(*stage)):
            if path and seconds >= LEAST_SHARE_FRACTION * total:
                formula = formulas.get((*stage, *path), "")
                lines += _formula_lines(_time_amounts(seconds, total), f"  {' · '.join(path)}", formula)
    return [*lines, *wrapped(f"Bottleneck: {profile.bottleneck}", indent="  ")]


def _exchange_lines(run: "Run") -> list[str]:
    """Return the messages that one rank takes part in, by kind; none on one GPU."""
    from finegauge.prediction.collectives import exchanges

    rows = [
        [f"  {volume.kind.replace('_', '-')}", volume.group, f"{volume.num_per_step:,.0f}",
         fmt.size(volume.bytes_per_step)]
        for volume in exchanges(run)
    ]  # fmt: skip
    if not rows:
        return []
    title = paint(
        "Sent in one step, as one rank sees it: whole tensors, whatever part of them is its own", "bold"
    )
    return ["", title, *columns(["  kind", "among ranks of", "messages", "bytes"], rows)]


def _time_amounts(seconds: float, total_s: float) -> str:
    """Return "  0.83 s   38 %"."""
    return f"{pad(_seconds(seconds), 9, right=True)}{pad(fmt.percent(seconds / total_s), 9, right=True)}"


def _largest(parts: Breakdown) -> list[tuple[Path, float]]:
    """Return the parts, the largest group first and, within a group, the largest part first."""
    groups = {path[:1]: value for path, value in parts.at(1).parts.items()}
    return sorted(parts.parts.items(), key=lambda item: (-groups[item[0][:1]], -item[1]))


def _seconds(value_s: float) -> str:
    """Return seconds or milliseconds."""
    return f"{fmt.digits(value_s)} s" if value_s >= 0.1 else f"{fmt.digits(1e3 * value_s)} ms"


def _wall_lines(estimate: Estimate) -> list[str]:
    """Return the parts of the whole run's wall clock and of its energy."""
    quote = estimate.quote
    if estimate.verdict == WILL_NOT_FIT:
        return [f"{paint('Whole run', 'bold')}  it will not fit, so it has no end and no bill."]
    if quote.num_steps is None:
        return [paint(line, "yellow") for line in wrapped(quote.warnings[0], indent="  ")]
    lines = [f"{paint('Whole run', 'bold')}  {quote.num_steps:,} steps, {fmt.hours(quote.wall_s)}"]
    for (part, *_), seconds in quote.wall_time_s.parts.items():
        share = pad(fmt.percent(seconds / quote.wall_time_s.total), 9, right=True)
        lines.append(f"{pad(fmt.hours(seconds), 9, right=True)}{share}  {part}")
    boards, wall = fmt.kwh(quote.boards_energy_j), fmt.kwh(quote.wall_energy_j)
    co2 = fmt.digits(quote.emissions_kg, 2)
    lines.append(
        f"  Energy: {boards} kWh of the boards, {wall} kWh at the wall, {co2} kg CO2e ({quote.grid})."
    )
    return lines


def _input_lines(run: "Run") -> list[str]:
    """Return every field with its value and who stated it."""
    rows = [
        [f"  {name}", fmt.plain(value), run.origins.get(name, "")]
        for name, value in run.fields().items()
        if value not in (None, "") and (run.trains_adapters or name not in LORA_FIELDS)
    ]
    return [
        paint("Inputs, and who stated them", "bold"),
        *columns(["  field", "value", "origin"], rows, left=3),
    ]
