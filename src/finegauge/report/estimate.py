"""What `finegauge estimate` prints: the verdict first, one table, and for one GPU where it all goes."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from finegauge.plan.estimate import Estimate
from finegauge.plan.prices import SPOT_REPEATED_FRACTION, PricedOffer
from finegauge.plan.quote import WALL_POWER_RATIO
from finegauge.plan.verdict import FITS, RISKY, WILL_NOT_FIT
from finegauge.profile import Breakdown, Profile
from finegauge.report import figures
from finegauge.report.terminal import WIDTH, bar, columns, pad, paint, wrapped
from finegauge.units import GIB, count, gib

if TYPE_CHECKING:
    from finegauge.workload.run import Run

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
    needed = figures.gib_interval(profile.device_memory_bytes.total, profile.source.memory_interval)
    word = paint(WORDS[verdict], "bold", COLOURS[verdict])
    chance = figures.probability(estimate.out_of_memory_fraction)
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
    memory = figures.gib_of(profile.device_memory_bytes.total, profile.capacity_bytes)
    most = f"{'≥' if estimate.capacity.at_limit else ''}{estimate.capacity.value:,}"
    cells = [str(profile.run.gpu), paint(memory, COLOURS[estimate.verdict]), most]
    if estimate.verdict == WILL_NOT_FIT:
        return [*cells, *[figures.UNKNOWN] * (len(HEADINGS) - len(cells))]
    return [
        *cells,
        figures.seconds_interval(profile.step_time_s.total, profile.source.time_interval),
        figures.digits(profile.tokens_per_s),
        figures.digits(profile.samples_per_s),
        figures.hours(quote.wall_s),
        figures.dollars(quote.cheapest_on_demand.on_demand_usd if quote.cheapest_on_demand else None),
        figures.dollars(quote.cheapest_spot.spot_usd if quote.cheapest_spot else None),
        figures.kwh(quote.wall_energy_j),
        figures.digits(quote.emissions_kg, 2),
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
    mfu, host = figures.percent(profile.mfu_fraction), figures.percent(profile.host_bound_fraction)
    rates = f"{count(profile.tokens_per_s)} tokens/s, {mfu} of the GPU's peak FLOP/s, host-bound {host}"
    lines = [f"{paint('Time', 'bold')}    {figures.digits(step.total)} s a step: {rates}"]
    for (stage, *_), value in step.at(1).parts.items():
        parts = _parts(step.at(2).under(stage), 1.0)
        lines.append(_bar_line(stage, f"{figures.digits(value)} s", value / step.total, parts, "blue"))
    if profile.run.phase == "decode":
        from finegauge.report.serving import predicted_line

        lines.append(predicted_line(profile))
    return lines


def _bar_line(name: str, amount: str, fraction: float, parts: str, colour: str) -> str:
    """Return "  weights    22.9 GiB  52 %  ██████  experts 22.1 · attention 0.6"."""
    share = pad(figures.percent(fraction), 5, right=True)
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
        longer = (
            f"{text} · {name} {figures.digits(value, 2)}" if text else f"{name} {figures.digits(value, 2)}"
        )
        if value < 0.01 * named[0][1] or len(longer) > room:
            break
        text = longer
    return text


def _bottleneck_lines(profile: Profile) -> list[str]:
    """Return the bottleneck in words."""
    from finegauge.predict.bottleneck import bottleneck

    return wrapped(f"{paint('Bottleneck', 'bold')}  {bottleneck(profile)}", indent="  ")


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
            f"  Managed: {cheapest.provider} ({cheapest.model}) {figures.dollars(cheapest.low_usd)} for "
            f"{count(cheapest.billed_tokens)} training tokens, padding not billed."
        )
    if texts:
        lines += wrapped(
            f"Spot allows {figures.percent(SPOT_REPEATED_FRACTION)} for work that interruptions repeat. kWh "
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
    return f"{figures.dollars(usd_per_h)}/h {offer.provider} ({tier}{offer.date}{idle})"


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
            by_origin.setdefault(origin, []).append(f"{name}={figures.plain(value)}")
    texts = [f"{', '.join(items)} ({origin})" for origin, items in by_origin.items()]
    texts += list(profile.source.assumptions)
    lines = wrapped(f"{paint('Assumed', 'bold')} {'; '.join(texts)}.", indent="  ") if texts else []
    for warning in run.warnings:
        lines += [paint(line, "yellow") for line in wrapped(warning, indent="  ")]
    return lines
