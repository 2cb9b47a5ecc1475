"""The report about one run as predicted now: fit, time, cost, where it goes, and what it rests on."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from finegauge.catalogue.gpus import gpu, is_file
from finegauge.errors import FineGaugeError
from finegauge.plan.estimate import Estimate, estimate
from finegauge.plan.verdict import FITS, RISKY, WILL_NOT_FIT
from finegauge.profile import Profile
from finegauge.report import figures, page
from finegauge.report.bars import memory_bar, stage_bar
from finegauge.report.drawings.front import Way, front_drawing
from finegauge.report.drawings.memory import memory_drawing
from finegauge.report.drawings.roofline import Roof, roofline_drawing
from finegauge.report.drawings.step_time import step_time_drawing
from finegauge.report.drawings.throughput import throughput_drawing
from finegauge.report.estimate import one_verdict, subject_lines
from finegauge.report.page import Fact, Report, filled, section
from finegauge.report.report_tables import assumption_table, formula_table, offer_table, source_table
from finegauge.report.terminal import unpainted
from finegauge.units import gib

if TYPE_CHECKING:
    from finegauge.report.drawing import Drawing
    from finegauge.workload.run import Run

TONES = {FITS: page.GOOD, RISKY: page.RISKY, WILL_NOT_FIT: page.BAD}
MOST_BATCHES, LARGEST_BATCH = 12, 256
ELSEWHERE = ("L4", "RTX-4090", "A40", "L40S", "A100-40GB", "A100-80GB", "H100", "H200", "B200")


def profile_report(profile: Profile) -> Report:
    """Return the report about `profile`: a prediction's is computed anew from its run."""
    if profile.source.kind == "predicted":
        return run_report(profile.run)
    from finegauge.report.measured_report import measured_report

    return measured_report(profile)


def run_report(run: "Run") -> Report:
    """Return the report about `run`, which names its GPU, as predicted."""
    from finegauge.predict.formulas import formulas
    from finegauge.predict.work import work_of

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
    from finegauge.predict.bottleneck import bottleneck

    return f"Bottleneck: {bottleneck(profile)}"


def _facts(found: Estimate) -> Iterator[Fact]:
    """Yield the numbers of a prediction that are asked for first."""
    profile, quote, source = found.profile, found.quote, found.profile.source
    yield Fact(
        "Memory", figures.gib_interval(profile.device_memory_bytes.total, source.memory_interval),
        f"of {gib(profile.capacity_bytes)}, P(OOM) {figures.probability(found.out_of_memory_fraction)}",
    )  # fmt: skip
    most = f"{'≥' if found.capacity.at_limit else ''}{found.capacity.value:,}"
    yield Fact("Largest micro-batch", most, f"asked: {profile.run.micro_batch_size:,}")
    if found.verdict == WILL_NOT_FIT:
        return
    took = figures.duration_interval(profile.step_time_s.total, source.time_interval)
    yield Fact("One step", took, f"{figures.digits(profile.tokens_per_s)} tokens/s")
    host = figures.percent(profile.host_bound_fraction)
    yield Fact("Of the peak", figures.percent(profile.mfu_fraction), f"model FLOP/s; host-bound {host}")
    steps = (
        f"{quote.num_steps:,} steps" if quote.num_steps is not None else "the number of steps is not known"
    )
    yield Fact("Whole run", figures.hours(quote.wall_s), steps)
    if quote.wall_s is None:
        return
    cheapest, spot = quote.cheapest_on_demand, quote.cheapest_spot
    yield Fact(
        "Cost", figures.dollars(cheapest.on_demand_usd if cheapest else None),
        f"on demand; spot {figures.dollars(spot.spot_usd if spot else None)}",
    )  # fmt: skip
    if quote.wall_energy_j is None:
        return
    kilograms = figures.digits(quote.emissions_kg, 2)
    yield Fact("Energy", f"{figures.kwh(quote.wall_energy_j)} kWh", f"at the wall; {kilograms} kg CO2e")


def _roof(profile: Profile) -> Roof | None:
    """Return what the run's GPU is sold with; None for one that was measured instead."""
    from finegauge.graph.build import build

    spec = gpu(str(profile.run.gpu))
    if spec.measured is not None:
        return None
    dtype = build(profile.run).lowering.compute_dtype
    return Roof(spec.name, dtype, profile.peak_flops_per_s, spec.memory_bytes_per_s)


def _sweep(found: Estimate) -> Sequence[Profile]:
    """Return the prediction at about a dozen micro-batches, up to the largest that fits and one beyond."""
    from finegauge.predict import predict

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
    from finegauge.plan.quote import quote
    from finegauge.predict import predict

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
