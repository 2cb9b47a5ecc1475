"""The report about one run as predicted now: fit, time, cost, where it goes, and what it rests on."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from finegauge.catalogue.datasets import dataset
from finegauge.catalogue.gpus import gpu, is_file
from finegauge.catalogue.models import model
from finegauge.catalogue.offers import offer_sources
from finegauge.errors import FineGaugeError
from finegauge.planning.estimate import Estimate, estimate
from finegauge.planning.quote import Quote
from finegauge.prediction.uncertainty import FITS, RISKY, WILL_NOT_FIT, verdict
from finegauge.profile import Path, Profile
from finegauge.render import number_format as fmt
from finegauge.render import report
from finegauge.render.bars import Table, memory_bar, stage_bar
from finegauge.render.estimate import WORDS, one_verdict, subject_lines
from finegauge.render.plots.many_runs import Way, front_drawing, throughput_drawing
from finegauge.render.plots.step import Roof, memory_drawing, roofline_drawing, step_time_drawing
from finegauge.render.report import Fact, Report, filled, section
from finegauge.render.terminal import unpainted
from finegauge.run.rules import LORA_FIELDS
from finegauge.units import gib

if TYPE_CHECKING:
    from finegauge.render.plots.drawing import Drawing
    from finegauge.run.run import Run

MOST_OFFERS = 12


def assumption_table(run: "Run") -> Table:
    """Return every field with its value and who stated it."""
    rows = tuple(
        (name, fmt.plain(value), run.origins.get(name, ""))
        for name, value in run.fields().items()
        if value not in (None, "") and (run.trains_adapters or name not in LORA_FIELDS)
    )
    return Table(
        "Every input, and who stated it", ("field", "value", "who says so"), rows, num_text_columns=3
    )


def formula_table(profile: Profile, formulas: Mapping[Path, str]) -> Table:
    """Return how the stages of the step come about; the memory's formulas stand with the waterfall."""
    stages = [path for path in profile.step_time_s.at(1).parts if path in formulas]
    rows = tuple((" · ".join(path), formulas[path]) for path in stages)
    return Table("How the seconds come about", ("stage", "formula"), rows, num_text_columns=2)


def offer_table(quote: Quote) -> Table | None:
    """Return the cheapest offers, those last that nobody would call so; None where nobody lets that GPU."""
    offers = sorted(quote.offers, key=lambda priced: not priced.offer.is_ranked)
    rows = tuple(
        (
            priced.offer.provider, priced.offer.instance_type, priced.offer.region,
            priced.offer.tier + (", outlier" if priced.offer.outlier else ""), priced.offer.date,
            f"{priced.instances} x {priced.offer.gpu_count}",
            fmt.dollars(priced.offer.on_demand_usd_per_h),
            fmt.dollars(priced.on_demand_usd), fmt.dollars(priced.spot_usd),
        )
        for priced in offers[:MOST_OFFERS]
    )  # fmt: skip
    if not rows:
        return None
    more = f", the first {MOST_OFFERS} of {len(quote.offers)}" if len(quote.offers) > MOST_OFFERS else ""
    headings = ("provider", "instance", "region", "tier", "price of", "GPUs", "per hour", "on demand", "spot")
    return Table(f"Offers, cheapest on demand first{more}", headings, rows, num_text_columns=5)


def source_table(profile: Profile, quote: Quote) -> Table:
    """Return where the figures come from, with the day someone last read each source."""
    rows = tuple(row for row in _sources(profile, quote) if row[1])
    return Table("Where the figures come from", ("what", "source", "read"), rows, num_text_columns=3)


def _sources(profile: Profile, quote: Quote) -> Iterator[tuple[str, str, str]]:
    """Yield (what, source, when)."""
    run = profile.run
    yield "constants", f"FineGauge's calibration: {profile.source.name}", ""
    yield from _catalogued(run)
    for priced in (quote.cheapest_on_demand, quote.cheapest_spot):
        if priced is not None:
            offer = priced.offer
            yield f"price of {offer.provider}", offer_sources().get(offer.source, offer.source), offer.date
    yield "electricity", f"{quote.grid}, {quote.grid_kg_per_kwh:.3f} kg/kWh, PUE {quote.pue:.2f}", ""


def _catalogued(run: "Run") -> Iterator[tuple[str, str, str]]:
    """Yield the sources of GPU, model and data set, where the catalogue has them."""
    for what, name, find in (
        ("GPU", run.gpu, gpu),
        ("model", run.model, model),
        ("data set", run.dataset, dataset),
    ):
        if not name:
            continue
        try:
            found = find(name)
        except FineGaugeError:
            continue
        yield f"{what} {found.name}", found.source, found.checked


TONES = {FITS: report.GOOD, RISKY: report.RISKY, WILL_NOT_FIT: report.BAD}
MOST_BATCHES, LARGEST_BATCH = 12, 256
ELSEWHERE = ("L4", "RTX-4090", "A40", "L40S", "A100-40GB", "A100-80GB", "H100", "H200", "B200")


def profile_report(profile: Profile) -> Report:
    """Return the report about `profile`: a prediction's is computed anew from its run."""
    if profile.source.kind == "predicted":
        return run_report(profile.run)
    from finegauge.render.measured_report import measured_report

    return measured_report(profile)


def run_report(run: "Run") -> Report:
    """Return the report about `run`, which names its GPU, as predicted."""
    from finegauge.prediction.explanation import formulas
    from finegauge.prediction.predictor import work_of

    run = _with_its_gpus_name(run)
    found, lines = estimate(run), formulas(run)
    profile = found.profile
    roof = _roof(profile)
    return Report(
        title=title_of(run),
        verdict=unpainted(one_verdict(found)),
        tone=TONES[found.verdict],
        about=about(run),
        facts=tuple(_facts(found)),
        bars=(("Memory", memory_bar(profile)), ("One step", stage_bar(profile))),
        sections=filled(
            section("memory", "Memory", drawings=(memory_drawing(profile, lines),)),
            section(
                "time", "Time", texts=(bottleneck_text(profile),),
                drawings=(step_time_drawing(profile), roof and roofline_drawing(profile, work_of(run), roof)),
            ),
            section("throughput", "Batch", drawings=(throughput_drawing(_sweep(found)),)),
            section(
                "cost", "Cost", drawings=(_elsewhere(run),), tables=(offer_table(found.quote),),
                texts=found.quote.warnings,
            ),
            section("assumptions", "Assumptions and origins", texts=run.warnings,
                    tables=(assumption_table(run), formula_table(profile, lines))),
            section("sources", "Sources", texts=profile.source.assumptions,
                    tables=(source_table(profile, found.quote),)),
        ),
    )  # fmt: skip


def _with_its_gpus_name(run: "Run") -> "Run":
    """Return `run` with the catalogue's name of its GPU, unless that is a file of the user's."""
    name = str(run.gpu)
    if run.gpu is None or is_file(name) or gpu(name).name == name:
        return run
    return run.replace(origin=run.origins["gpu"], gpu=gpu(name).name)


def title_of(run: "Run") -> str:
    """Return "Mixtral-8x7B-v0.1 on A40"; of a file, what holds it."""
    name = run.model.removesuffix("/config.json").rpartition("/")[2] or run.model
    many = f"{run.num_gpus} x " if run.num_gpus > 1 else ""
    return f"{name} on {many}{run.gpu.rpartition('/')[2]}" if run.gpu else name


def about(run: "Run") -> tuple[str, ...]:
    """Return which run this is."""
    return (" ".join(line.strip() for line in map(unpainted, subject_lines(run))),)


def bottleneck_text(profile: Profile) -> str:
    """Return what a step spends most of its time on."""
    return f"Bottleneck: {profile.bottleneck}"


def _facts(found: Estimate) -> Iterator[Fact]:
    """Yield the numbers of a prediction that are asked for first."""
    profile, quote, source = found.profile, found.quote, found.profile.source
    yield Fact(
        "Memory", fmt.gib_interval(profile.device_memory_bytes.total, source.memory_interval),
        f"of {gib(profile.capacity_bytes)}, P(OOM) {fmt.probability(found.out_of_memory_fraction)}",
    )  # fmt: skip
    most = f"{'≥' if found.capacity.at_limit else ''}{found.capacity.value:,}"
    yield Fact("Largest micro-batch", most, f"asked: {profile.run.micro_batch_size:,}")
    if found.verdict == WILL_NOT_FIT:
        return
    took = fmt.duration_interval(profile.step_time_s.total, source.time_interval)
    yield Fact("One step", took, f"{fmt.digits(profile.tokens_per_s)} tokens/s")
    host = fmt.percent(profile.host_bound_fraction)
    yield Fact("Of the peak", fmt.percent(profile.mfu_fraction), f"model FLOP/s; host-bound {host}")
    steps = (
        f"{quote.num_steps:,} steps" if quote.num_steps is not None else "the number of steps is not known"
    )
    yield Fact("Whole run", fmt.hours(quote.wall_s), steps)
    if quote.wall_s is None:
        return
    cheapest, spot = quote.cheapest_on_demand, quote.cheapest_spot
    yield Fact(
        "Cost", fmt.dollars(cheapest.on_demand_usd if cheapest else None),
        f"on demand; spot {fmt.dollars(spot.spot_usd if spot else None)}",
    )  # fmt: skip
    if quote.wall_energy_j is None:
        return
    kilograms = fmt.digits(quote.emissions_kg, 2)
    yield Fact("Energy", f"{fmt.kwh(quote.wall_energy_j)} kWh", f"at the wall; {kilograms} kg CO2e")


def _roof(profile: Profile) -> Roof | None:
    """Return what the run's GPU is sold with; None for one that was measured instead."""
    from finegauge.model.graph import build

    spec = gpu(str(profile.run.gpu))
    if spec.measured is not None:
        return None
    dtype = build(profile.run).lowering.compute_dtype
    return Roof(spec.name, dtype, profile.peak_flops_per_s, spec.memory_bytes_per_s)


def _sweep(found: Estimate) -> Sequence[Profile]:
    """Return the prediction at about a dozen micro-batches, up to the largest that fits and one beyond."""
    from finegauge.prediction.predictor import predict

    most = max(1, min(found.capacity.value, LARGEST_BATCH))
    sizes = {round(most ** (n / (MOST_BATCHES - 1))) for n in range(MOST_BATCHES)}
    if most <= MOST_BATCHES:
        sizes = set(range(1, most + 1))
    sizes |= {found.run.micro_batch_size, *(() if found.capacity.at_limit else (found.capacity.value + 1,))}
    sweep = []
    for size in sorted(sizes):
        try:
            sweep.append(predict(found.run.replace(micro_batch_size=size)))
        except FineGaugeError:
            continue  # a batch that the run's files do not allow
    return sweep


def _elsewhere(run: "Run") -> "Drawing | None":
    """Return cost against time of the same run on other GPUs, each at its cheapest offer."""
    own = str(run.gpu)
    names = dict.fromkeys([own, *(gpu(name).name for name in ELSEWHERE)])
    ways = [way for name in names if (way := _way(run, name, own)) is not None]
    return front_drawing(
        ways, about="The run as it is on one kind of GPU after another, each at its cheapest offer"
    )


def _way(run: "Run", name: str, own: str) -> Way | None:
    """Return what the run costs on a GPU; None where it does not fit, or nobody lets that GPU."""
    from finegauge.planning.quote import quote
    from finegauge.prediction.predictor import predict

    try:
        moved = run if name == own else run.replace(gpu=name)
        profile = predict(moved)
        bill = quote(moved, profile)
    except FineGaugeError:
        return None
    cheapest = bill.cheapest_on_demand
    if not profile.fits or bill.wall_s is None or cheapest is None or cheapest.on_demand_usd is None:
        return None
    label = own if is_file(name) else name
    offer = cheapest.offer
    said = f"{run.num_gpus} x {label} · {offer.provider} · {offer.instance_type or offer.tier}"
    return Way(said, label, bill.wall_s, cheapest.on_demand_usd, bill.wall_energy_j, taken=name == own)


SIZES = ("device_memory_bytes", "capacity_bytes")


def answered_report(
    profile: Profile, formulas: Mapping[Path, str], results: Sequence[Mapping[str, Any]]
) -> Report:
    """Return the report about an answer that a file holds.

    Args:
        profile: Of the first GPU that was asked about.
        formulas: By path, where the answer has them.
        results: Of every GPU, as the file has them.
    """
    from finegauge.prediction.uncertainty import probability_out_of_memory

    needed, room = profile.device_memory_bytes.total, profile.capacity_bytes
    chance = probability_out_of_memory(profile)
    said = fmt.gib_interval(needed, profile.source.memory_interval)
    word = verdict(chance)
    took = fmt.duration_interval(profile.step_time_s.total, profile.source.time_interval)
    return Report(
        title=title_of(profile.run),
        verdict=f"{WORDS[word]}: {said} of {gib(room)}, P(OOM) {fmt.probability(chance)}.",
        tone=TONES[word],
        about=about(profile.run),
        facts=(
            Fact("Memory", said, f"of {gib(room)}"),
            Fact("One step", took, f"{fmt.digits(profile.tokens_per_s)} tokens/s"),
            Fact("Of the peak", fmt.percent(profile.mfu_fraction), "model FLOP/s"),
        ),
        bars=(("Memory", memory_bar(profile)), ("One step", stage_bar(profile))),
        sections=filled(
            section("memory", "Memory", drawings=(memory_drawing(profile, formulas),)),
            section("time", "Time", texts=(bottleneck_text(profile),),
                    drawings=(step_time_drawing(profile),)),
            section("cost", "Every GPU that was asked about", drawings=(_costs(results),),
                    tables=(_verdicts(results),)),
            section("assumptions", "Assumptions and origins", texts=profile.run.warnings,
                    tables=(assumption_table(profile.run), formula_table(profile, formulas))),
            section("sources", "Sources",
                    texts=(f"Constants: {profile.source.name}.", *profile.source.assumptions)),
        ),
    )  # fmt: skip


def _costs(results: Sequence[Mapping[str, Any]]) -> "Drawing | None":
    """Return cost against time of the GPUs that were asked about, where there are several."""
    ways = []
    for one in results:
        bill = one.get("quote") or {}
        cheapest = bill.get("cheapest_on_demand") or {}
        if bill.get("wall_s") is not None and cheapest.get("on_demand_usd") is not None:
            name = f"{one['gpu']} · {cheapest['provider']}"
            ways.append(
                Way(name, str(one["gpu"]), bill["wall_s"], cheapest["on_demand_usd"], bill["wall_energy_j"])
            )
    if len(ways) < 2:
        return None
    return front_drawing(ways, about="The run on each GPU, at its cheapest offer")


def _verdicts(results: Sequence[Mapping[str, Any]]) -> Table | None:
    """Return a row per GPU, where there are several."""
    rows = tuple(
        (
            str(one["gpu"]), WORDS.get(one["verdict"], one["verdict"]),
            *(gib(one[name]) if one.get(name) else fmt.UNKNOWN for name in SIZES),
            fmt.hours((one.get("quote") or {}).get("wall_s")), str(one.get("reason", "")),
        )
        for one in results
    )  # fmt: skip
    headings = ("GPU", "verdict", "needs", "has", "time", "why not")
    table = Table("Does it fit, and how long does it take", headings, rows, 2, ends_in_text=True)
    return table if len(rows) > 1 else None
