"""Parts of reports about runs: verdict, subject, tiles, bars, offers, inputs."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from finegauge.planning.quote import OfferCost
from finegauge.prediction.uncertainty import FITS, RISKY, WILL_NOT_FIT
from finegauge.profile import Breakdown, Interval, Path, Profile
from finegauge.render import number_format as fmt
from finegauge.render.report import Bar, BarPart, Note, Table, Text, Tile, Toned, notes
from finegauge.run.options import PHASES, SHARDING
from finegauge.run.phases import group_size
from finegauge.run.rules import LORA_FIELDS, RL, unused_by
from finegauge.run.run import FROM_COPY_TOO_LARGE, FROM_MODEL_TOO_LARGE, Run
from finegauge.units import GIB, HOUR_S, count, gib

if TYPE_CHECKING:
    from finegauge.answers.estimate import GpuEstimate

WORDS = {FITS: "Fits", RISKY: "Risky", WILL_NOT_FIT: "Will not fit"}
TONES = {FITS: "good", RISKY: "risky", WILL_NOT_FIT: "bad"}
HEADINGS = (
    "\nGPU", "memory\nGiB", "batch\n(max)", "one step, s\n[p10–p90]", "\ntokens/s", "\nsamples/s",
    "\ntime", "on\ndemand", "\nspot", "kWh\nwall", "kg\nCO2e",
)  # fmt: skip
FIRST_TO_GO = (10, 9, 5, 8, 4, 3)  # time and cost stay the longest
ASSUMED = (
    "method", "sharding", "micro_batch_size", "gradient_accumulation_steps", "seq_len", "lora_rank",
    "weights_dtype", "activation_checkpointing", "attention", "optimizer", "num_experts_per_tok", "padding",
    "startup_s", "saves_per_epoch", "dataset", "num_samples", "gpu",
)  # fmt: skip
SHOWN_NAMES = {
    "slack": "allocator overhead", "context": "CUDA context",
    "inputs pinned by 4-bit linears": "kept for 4-bit layers",
}  # fmt: skip
LEAST_SHOWN_BYTES = 0.005 * GIB
MOST_OFFERS, FIRST_OFFERS = 24, 6


def title_of(run: Run) -> str:
    """Return "Mixtral-8x7B-v0.1 on A40"; of a file, what holds it."""
    name = model_name(run)
    return f"{name} on {gpus_text(run.gpu.rpartition('/')[2], run.all_gpus)}" if run.gpu else name


def model_name(run: Run) -> str:
    """Return "Mixtral-8x7B-v0.1"; of a config.json the folder that holds it."""
    return run.model.removesuffix("/config.json").rpartition("/")[2] or run.model


def gpus_text(gpu: str, number: int) -> str:
    """Return "A40" or "8 x A40"."""
    return f"{number} x {gpu}" if number > 1 else gpu


def headlines(found: "Sequence[GpuEstimate]") -> Text:
    """Return the verdicts on several GPUs, by name."""
    parts: list[str] = []
    for verdict, word in WORDS.items():
        names = ", ".join(str(one.gpu) for one in found if one.verdict == verdict)
        if names:
            said = f"{word.lower() if parts else word} on {names}"
            parts += ["; " if parts else "", Toned(said, "strong", TONES[verdict])]
    return (*parts, ".")


def headline(one: "GpuEstimate") -> Text:
    """Return "Fits: 19.8 GiB [18.9–21.4] of 44.4 GiB on A40, P(OOM) 2 %.", and which micro-batch is safe."""
    needed = fmt.gib_interval(one.device_memory_bytes, one.profile.source.memory_interval)
    chance = fmt.probability(one.out_of_memory_fraction)
    said = f": {needed} of {gib(one.capacity_bytes)} on {one.gpu}, P(OOM) {chance}."
    return Toned(WORDS[one.verdict], "strong", TONES[one.verdict]), f"{said} {_batches(one)}"


ROOMS = {"device": "GPU memory", "host": "host memory of a node", "disk": "disk"}


def _batches(one: "GpuEstimate") -> str:
    short, fits_a_step = one.shortage, one.device_memory_bytes <= one.capacity_bytes
    if fits_a_step and short is not None and (short.moment, short.what) != ("train", "device"):
        amounts = f"{gib(short.needed_bytes)} of {gib(short.room_bytes)}"
        return f"It fails at {short.moment}, for {ROOMS[short.what]}: {amounts}."
    safe, most = one.safe_micro_batch_size, one.max_micro_batch_size
    if safe:
        return f"micro_batch_size={safe_and_most(safe, most, at_limit=one.is_at_limit)}."
    if most:
        return f"micro_batch_size={most} may fit, none is safe."
    return "Not even micro_batch_size=1 fits."


def safe_and_most(safe: int, most: int, *, at_limit: bool = False) -> str:
    """Return "13 is safe, 15 may fit"; with a sign where a search stopped at its limit."""
    sign = "≥ " if at_limit else ""
    if safe == most:
        return f"{sign}{safe:,} is safe" if safe else "not even 1 fits"
    return f"{safe:,} is safe, {sign}{most:,} may fit" if safe else f"{sign}{most:,} may fit, none is safe"


def _method(run: Run) -> str:
    """Return how a run trains: full, lora rank 16, qlora by dora rank 16, prompt_tuning of 20."""
    if not run.trains_adapters:
        return run.method
    named = run.adapter if run.method == "lora" else f"{run.method} by {run.adapter}"
    sized = f" of {run.adapter_size}" if run.adapter_size is not None else ""
    ranked = "" if "lora_rank" in unused_by(run.adapter) else f" rank {run.lora_rank}"
    return (run.method if run.adapter == "lora" else named) + ranked + sized


def subject(run: Run) -> str:
    """Return which run this is."""
    parts = [run.model.rpartition("/")[2] or run.model, f"{_method(run)} {run.weights_dtype}"]
    if run.phase != "sft":
        parts.insert(1, PHASES[run.phase] or run.phase)
    if run.sharding != "none":
        parts.append(SHARDING[run.sharding])
    if run.task is not None:
        labels = f" of {run.num_labels} labels" if run.task.endswith("classification") else ""
        parts.append(run.task.replace("_", " ") + labels)
    if run.num_experts_per_tok is not None:
        parts.append(f"top-{run.num_experts_per_tok} experts")
    parts.append(f"{run.dataset}, cut at {run.seq_len:,}" if run.dataset else f"sequences of {run.seq_len:,}")
    if run.target_seq_len is not None:
        parts[-1] += f" to {run.target_seq_len:,}"
    if run.phase == "ppo" and run.critic_model is not None:
        parts.insert(1, f"critic {run.critic_model.rpartition('/')[2] or run.critic_model}")
    accumulated = run.gradient_accumulation_steps
    batch = f"micro-batch {run.micro_batch_size}"
    batch += f", accumulation {accumulated}" if accumulated > 1 else ""
    parts.append(batch + (f", {run.num_mini_batches} mini-batches" if run.num_mini_batches > 1 else ""))
    epochs = f"{run.epochs:g} epoch{'s' * (run.epochs != 1)}"
    parts.append(f"{run.max_steps:,} steps" if run.max_steps else epochs)
    return " · ".join(parts)


def tiles(one: "GpuEstimate") -> Iterator[Tile]:
    """Yield the figures that a decision is made by; of a run that will not fit, there is no bill."""
    profile, quote = one.profile, one.quote
    sign = "≥ " if one.is_at_limit else ""
    safe, most = f"{one.safe_micro_batch_size:,}", f"{one.max_micro_batch_size:,}"
    value = f"{sign if safe == most else ''}{safe}"
    used = f"{'' if safe == most else f'{sign}{most} may fit, '}now {one.micro_batch_size:,}"
    yield Tile("Largest safe micro-batch", value, used, "max-batch")
    yield Tile("P(out of memory)", fmt.probability(one.out_of_memory_fraction), "", "oom")
    if quote is None:
        return
    interval, step_s = profile.source.time_interval, profile.step_time_s.total
    ends = "–".join(fmt.digits(end, 2) for end in interval.of(step_s)) if interval else ""
    yield Tile("One step", f"{fmt.digits(step_s)} s", f"{ends} s, 10–90 %" if ends else "", "step")
    rate = f"{fmt.digits(profile.samples_per_s)} samples/s, {fmt.percent(profile.mfu_fraction)} MFU"
    yield Tile("Tokens per second", count(profile.tokens_per_s), rate, "tokens")
    steps = "" if quote.num_steps is None else f"{quote.num_steps:,} steps"
    yield Tile("Whole run", fmt.hours(quote.wall_s), steps, "time")
    on_demand = _whose(quote.cheapest_on_demand, profile)
    spot = _whose(quote.cheapest_spot, profile, spot=True)
    yield Tile("On demand, cheapest", fmt.dollars(quote.on_demand_usd), on_demand, "usd")
    yield Tile("Spot, cheapest", fmt.dollars(quote.spot_usd), spot, "spot")
    boards = f"{fmt.kwh(quote.boards_energy_j)} kWh of the boards"
    yield Tile("Energy at the wall", f"{fmt.kwh(quote.wall_energy_j)} kWh", boards, "energy")
    grid = f"{quote.grid_kg_per_kwh:.3f} kg/kWh, PUE {quote.pue:.2f} ({quote.grid})"
    yield Tile("CO₂ equivalent", f"{fmt.digits(quote.emissions_kg, 2)} kg", grid, "co2")


def _whose(offer: OfferCost | None, profile: Profile, *, spot: bool = False) -> str:
    if offer is None:
        return "no price is known"
    rate = usd_per_million_tokens(offer, profile, spot=spot)
    return f"{seller(offer)}, {offer.date}" + (f", {rate}" if rate else "")


def usd_per_million_tokens(offer: OfferCost, profile: Profile, *, spot: bool = False) -> str:
    """Return "$0.11 per 1 M tokens", as the machines of the offer train them; "" where that is not known.

    Of reinforcement, what a thousand prompts with all their answers cost follows.
    """
    usd_per_h = offer.spot_usd_per_h if spot else offer.on_demand_usd_per_h
    if usd_per_h is None or not profile.tokens_per_s:
        return ""
    usd_per_s, about = usd_per_h * offer.instances / HOUR_S, approximately(offer)
    said = f"{about}{fmt.dollars(usd_per_s / profile.tokens_per_s * 1e6)} per 1 M tokens"
    if profile.run.phase not in RL:
        return said
    usd = usd_per_s * group_size(profile.run) / profile.samples_per_s * 1e3
    return f"{said}, {about}{fmt.dollars(usd)} per 1,000 prompts"


def approximately(offer: OfferCost) -> str:
    """Return "~" before a price that is a card's times their number, else nothing."""
    return "~" if offer.is_scaled else ""


def seller(offer: OfferCost) -> str:
    """Return "runpod community": the provider, with its tier where that is another good than usual."""
    usual = offer.tier in ("on-demand", "spot", "user", "")
    return offer.provider if usual else f"{offer.provider} {offer.tier}"


def gpu_table(found: "Sequence[GpuEstimate]") -> Table:
    """Return a row per GPU; time and cost are of the run as asked, so a run that fails has none."""
    return Table(
        "Does it fit, how long does it take, what does it cost",
        HEADINGS,
        tuple(map(_gpu_row, found)),
        first_to_go=FIRST_TO_GO,
    )


def usual(found: "Sequence[GpuEstimate]") -> "GpuEstimate":
    """Return the first estimate as it was meant: LoRA, a copy on each GPU, where a model alone fits so."""
    return min(found, key=_instead)


def _instead(one: "GpuEstimate") -> tuple[bool, bool]:
    """Return whether a model alone got another method, and whether it is sharded, because it did not fit."""
    origins = one.run.origins
    return origins.get("method") == FROM_MODEL_TOO_LARGE, origins.get("sharding") == FROM_COPY_TOO_LARGE


def method_notes(found: "Sequence[GpuEstimate]") -> Iterator[Note]:
    """Yield which GPUs have another method or sharding than the others, of a model alone."""
    why = (
        "with QLoRA in place of LoRA, which is not safe there",
        "sharded by FSDP, for a copy on each GPU is not safe there",
    )
    for place, says in enumerate(why):
        gpus = [str(one.gpu) for one in found if _instead(one)[place]]
        if 0 < len(gpus) < len(found):
            yield Note(f"On {', '.join(gpus)} {says}.", tone="risky")


def _gpu_row(one: "GpuEstimate") -> tuple[str, ...]:
    profile, quote = one.profile, one.quote
    memory = fmt.gib_of(one.device_memory_bytes, one.capacity_bytes)
    most = f"{'≥' if one.is_at_limit else ''}{one.max_micro_batch_size:,}"
    safe = f"{one.safe_micro_batch_size:,}"
    if one.safe_micro_batch_size < one.max_micro_batch_size or one.is_at_limit:
        safe += f" ({most})"
    cells = (gpus_text(one.gpu, one.run.all_gpus), Toned(memory, TONES[one.verdict]), safe)
    if quote is None:
        return (*cells, *[fmt.UNKNOWN] * (len(HEADINGS) - len(cells)))
    return (
        *cells,
        fmt.seconds_interval(profile.step_time_s.total, profile.source.time_interval),
        fmt.digits(profile.tokens_per_s),
        fmt.digits(profile.samples_per_s),
        _bound(one) + fmt.hours(quote.wall_s),
        fmt.dollars(quote.on_demand_usd),
        fmt.dollars(quote.spot_usd),
        fmt.kwh(quote.wall_energy_j),
        fmt.digits(quote.emissions_kg, 2),
    )


def _bound(one: "GpuEstimate") -> str:
    """Return "≤" where nothing says how long the samples are, so that each is taken as seq_len long."""
    run, known = one.run, one.quote is not None and one.quote.wall_s is not None
    unsure = run.dataset is None and run.phase == "sft" and not run.packing and run.padding != "max"
    return "≤" if unsure and known else ""


def moments_table(one: "GpuEstimate") -> Table:
    """Return what each moment of the job takes at its peak."""
    rows = tuple(
        (
            moment.moment,
            *(_amount_at(one, moment.moment, what, getattr(moment, f"{what}_bytes")) for what in ROOMS),
        )
        for moment in one.moments
    )
    return Table("Every moment, GiB at its peak", ("moment", "GPU", "host of a node", "disk"), rows, indent=2)


def moments_note(one: "GpuEstimate") -> Note:
    """Return the peaks of the moments in a line: of the GPU each, of the node and the disk the most."""
    device = ", ".join(f"{fmt.digits(each.device_bytes / GIB)} {each.moment}" for each in one.moments)
    host = max(each.host_bytes for each in one.moments)
    disk = max(each.disk_bytes for each in one.moments)
    return Note(f"{device} GiB; host of a node {gib(host)}, disk {gib(disk)}.", label="Moments")


def _amount_at(one: "GpuEstimate", moment: str, what: str, amount_bytes: float) -> Text:
    short = one.shortage
    fails = short is not None and (short.moment, short.what) == (moment, what)
    return Toned(fmt.digits(amount_bytes / GIB), "bad") if fails else fmt.digits(amount_bytes / GIB)


def memory_bar(profile: Profile) -> Bar:
    """Return what has to fit by kind, against what the GPU has."""
    needed, room = profile.device_memory_bytes, profile.capacity_bytes
    total, interval = needed.total, profile.source.memory_interval
    whole, free = max(room, total) or 1.0, room - total
    peak = f" (peak, during {profile.peak_phase})" if profile.peak_phase else ""
    on = f" on {profile.run.gpu}" if profile.run.gpu else ""
    limit = f"{gib(room)} usable{on}" if room else ""
    far = f", {fmt.times(total / room)} the memory" if room and total >= fmt.FAR_RATIO * room else ""
    return Bar(
        title="Memory",
        said=f"{gib(total)} of {gib(room)}{far}{peak}",
        says=f"{fmt.gib_interval(total, interval)} needed" + (f" of {limit}{far}." if limit else "."),
        parts=tuple(
            BarPart(shown_name(kind), value / whole, amount(value), _details(needed.under(kind), 1 / GIB))
            for (kind, *_), value in needed.at(1)
        ),
        limit_fraction=room / whole,
        limit_text=limit,
        spare=BarPart("free" if free >= 0 else "over by", abs(free) / whole, gib(abs(free))),
        interval_fractions=_fractions(total, interval, whole),
        least_fraction=LEAST_SHOWN_BYTES / whole,
    )


def time_bar(profile: Profile) -> Bar:
    """Return the seconds of one step by stage."""
    step, interval = profile.step_time_s, profile.source.time_interval
    total = step.total or 1.0
    mfu, host = fmt.percent(profile.mfu_fraction), fmt.percent(profile.host_bound_fraction)
    peak = "16-bit peak" if profile.run.fp8 else "peak FLOP/s"  # which products in fewer bits may exceed
    rates = f"{count(profile.tokens_per_s)} tokens/s, {mfu} of the GPU's {peak}, GPU waits for CPU {host}"
    return Bar(
        title="Time",
        said=f"{fmt.digits(step.total)} s a step: {rates}",
        says=f"One step takes {fmt.duration_interval(step.total, interval)}.",
        parts=tuple(
            BarPart(stage, value / total, fmt.duration(value), _details(step.at(2).under(stage), 1.0))
            for (stage, *_), value in step.at(1).parts.items()
        ),
        interval_fractions=_fractions(step.total, interval, total),
    )


def _fractions(total: float, interval: Interval | None, whole: float) -> tuple[float, float] | None:
    if interval is None:
        return None
    low, high = interval.of(total)
    return low / whole, high / whole


def shown_name(name: str) -> str:
    """Return how a part is called on a screen."""
    return SHOWN_NAMES.get(name, name)


def amount(num_bytes: float) -> str:
    """Return GiB, and of little the unit that does not round it to nothing."""
    return gib(num_bytes) if num_bytes >= 0.1 * GIB else fmt.size(num_bytes)


def _details(parts: Breakdown, per_unit: float) -> tuple[str, ...]:
    """Return the parts of a part, the largest first: "experts 22.1"; none where there is but one."""
    named = [(path[-1], value * per_unit) for path, value in parts if path and value]
    if len(named) < 2:
        return ()
    least = 0.01 * named[0][1]
    return tuple(f"{shown_name(name)} {fmt.digits(value, 2)}" for name, value in named if value >= least)


def _load_notes(seen: Mapping[str, Any]) -> tuple[Note, ...]:
    """Return what users of a predicted load wait for, by percentile, and what they get."""
    if not seen:
        return ()
    rows = (("to the first token", "ttft_s"), ("for each further one", "time_per_output_token_s"))
    said = []
    for what, name in (*rows, ("to the last one", "latency_s")):
        waits = seen.get(name) or {}
        times = ", ".join(f"{fmt.duration(waits[key])} ({key})" for key in ("p50", "p90", "p99") if waits)
        said += [Note(f"  {times} {what}")] if times else []
    rates = [fmt.digits(seen[name]) for name in ("requests_per_s", "written_tokens_per_s", "in_flight")]
    return (*said, Note(f"  {rates[0]} requests/s, {rates[1]} tokens/s generated, {rates[2]} in flight"))


def waits_notes(profile: Profile) -> tuple[Note, ...]:
    """Return what users of a service would wait for; nothing where nothing is served."""
    if profile.run.phase == "serve":
        return _load_notes(profile.observations.get("serving", {}))
    if profile.run.phase != "decode":
        return ()
    from finegauge.answers.profile import predicted_waits

    waits = predicted_waits(profile)
    if not waits:
        return ()
    first, further = (fmt.duration(waits[name]) for name in ("ttft_s", "time_per_output_token_s"))
    rate = fmt.digits(waits["written_tokens_per_s"])
    said = f"  {first} to the first token, {further} for each further one; {rate} tokens/s generated"
    rows = profile.run.micro_batch_size
    at_once = profile.observations.get("engine", {}).get("sequences_at_once", rows)
    waiting = f"  {at_once:,} of {rows:,} sequences at once, for which there is room; the others wait"
    return (Note(said), *([Note(waiting)] if at_once < rows else []))


def rollout_notes(one: "GpuEstimate") -> tuple[Note, ...]:
    """Return what the rollout engine takes, its answers at once, and what the trainer needs beside it."""
    found = one.rollout
    if found is None:
        return ()
    where = "beside the trainer" if not found.gpus else f"on {gpus_text(one.gpu, found.gpus)} of its own"
    said = (
        f"{found.engine} {where} takes {gib(found.held_bytes)} of each GPU "
        f"(gpu_memory_utilization={found.memory_fraction:g}): weights {gib(found.weights_bytes)}, cache "
        f"{gib(found.cache_bytes)} for {count(found.cache_tokens)} tokens; {found.at_once:,} of "
        f"{found.answers:,} answers run at once."
    )
    if found.gpus:
        return (Note(said, label="Engine"),)
    safe = found.safe_memory_fraction
    limit = "no gpu_memory_utilization is safe" if safe is None else f"up to {safe:g} is safe"
    return (
        Note(said, label="Engine"),
        Note(f"  The trainer needs {gib(found.trainer_bytes)} beside it at the peak; {limit}."),
    )


def offer_tables(offers: Sequence[OfferCost]) -> Iterator[Table]:
    """Yield the cheapest offers, then the others; last those that do not count as cheapest."""
    known = [one for one in offers if one.on_demand_usd is not None or one.spot_usd is not None]
    known.sort(key=lambda one: not one.is_ranked)
    headings = ("provider", "instance", "region", "tier", "$/h", "spot $/h", "on demand", "spot", "price of")
    rows = tuple(_offer_row(one) for one in known[:MOST_OFFERS])
    yield Table("What the whole run costs, by provider", headings, rows[:FIRST_OFFERS], 4)
    more = rows[FIRST_OFFERS:]
    yield Table(f"{len(more)} more offers", headings, more, 4, folded=True)


def _offer_row(offer: OfferCost) -> tuple[str, ...]:
    times = f"{offer.instances} × " if offer.instances > 1 else ""
    idle = f", {offer.idle_gpus} idle" if offer.idle_gpus else ""
    return (
        offer.provider,
        f"{times}{offer.instance_type or f'{offer.gpu_count} GPU'}{idle}",
        offer.region,
        offer.tier + (", outlier" if offer.outlier else ""),
        *(
            fmt.UNKNOWN if usd is None else f"{approximately(offer)}{fmt.dollars(usd)}"
            for usd in (offer.on_demand_usd_per_h, offer.spot_usd_per_h, offer.on_demand_usd, offer.spot_usd)
        ),
        offer.date,
    )


def assumed(run: Run) -> list[str]:
    """Return the defaults that the answer rests on, by who assumed them."""
    by_origin: dict[str, list[str]] = {}
    for name in ASSUMED:
        origin, value = run.origins.get(name, ""), getattr(run, name)
        is_used = {"lora_rank": run.trains_adapters, "sharding": run.sharding != "none"}.get(name, True)
        if "default" in origin and value is not None and is_used:
            by_origin.setdefault(origin, []).append(f"{name}={fmt.plain(value)}")
    return [f"{', '.join(items)} ({origin})" for origin, items in by_origin.items()]


def basis_notes(one: "GpuEstimate", defaults: Sequence[str]) -> Iterator[Note]:
    """Yield the assumptions of the answer, warnings about the run, and the calibration."""
    texts = (*defaults, *one.profile.source.assumptions)
    if texts:
        yield Note(f"{'; '.join(texts)}.", label="Assumed")
    yield from notes(one.run.warnings if defaults else (), tone="risky")
    yield Note(f"{one.profile.source.name}.", label="Calibrated on")


def input_table(run: Run) -> Table:
    """Return every field with its value and who stated it."""
    return field_table("Every input, and who stated it", run.fields(), run.origins)


def field_table(
    caption: str, fields: Mapping[str, Any], origins: Mapping[str, str], otherwise: str = ""
) -> Table:
    """Return fields that are set, with who stated each; `otherwise` of those that `origins` lacks."""
    adapts = fields.get("method") not in ("full", "freeze")
    rows = tuple(
        (name, fmt.plain(value), origins.get(name, otherwise))
        for name, value in fields.items()
        if value not in (None, "") and (adapts or name not in LORA_FIELDS)
    )
    return Table(caption, ("field", "value", "origin"), rows, 3, indent=2)


def formula_of(path: Path, formulas: Mapping[Path, str]) -> str:
    """Return the arithmetic behind `path`, or behind the nearest whole that it is part of."""
    return next((formulas[path[:n]] for n in range(len(path), 0, -1) if path[:n] in formulas), "")
