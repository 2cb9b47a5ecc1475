"""What a report file shows of one run beside its estimate, and of several runs side by side."""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from finegauge.answers.estimate import EstimateAnswer, GpuEstimate, explained, gpu_estimate
from finegauge.catalogue.datasets import dataset
from finegauge.catalogue.gpus import gpu, is_file
from finegauge.catalogue.models import model
from finegauge.catalogue.offers import offer_sources
from finegauge.errors import FineGaugeError
from finegauge.model.graph import build
from finegauge.planning.estimate import estimate
from finegauge.planning.quote import Quote, quote
from finegauge.prediction.predictor import predict
from finegauge.profile import Path, Profile, Work
from finegauge.records import NamedTuple
from finegauge.run.run import Run

MOST_BATCHES, LARGEST_BATCH = 12, 256
ELSEWHERE = ("L4", "RTX-4090", "A40", "L40S", "A100-40GB", "A100-80GB", "H100", "H200", "B200")

LAWS = ("affine", "xia-eq2")
CURVE_POINTS = 64


class BatchRate(NamedTuple):
    """What one micro-batch reaches."""

    micro_batch_size: int
    samples_per_s: float
    low_samples_per_s: float | None  # 10th and 90th percentile
    high_samples_per_s: float | None
    fits: bool


class LawLine(NamedTuple):
    """A law fitted to the rates."""

    name: str
    mape_fraction: float
    samples_per_s: tuple[float, ...]  # at every micro-batch
    between_rates: tuple[tuple[float, float], ...]  # (micro-batch, samples/s) from the first to the last


class Throughput(NamedTuple):
    """Rates of runs that differ in their micro-batch alone."""

    kind: str  # predicted or measured
    gradient_accumulation_steps: int
    rates: tuple[BatchRate, ...]
    laws: tuple[LawLine, ...]  # those that settle; none without SciPy


class Roof(NamedTuple):
    """What a GPU's datasheet promises."""

    gpu: str
    dtype: str
    flops_per_s: float
    memory_bytes_per_s: float


class Way(NamedTuple):
    """One way to do a run: its machine, its time, its cost at the cheapest offer."""

    name: str
    group: str  # its kind of GPU, which decides colour and shape
    wall_s: float
    usd: float
    energy_j: float | None  # at the wall
    taken: bool = False


def way_of(name: str, group: str, quote: Quote, *, taken: bool = False) -> Way | None:
    """Return a way to do a run at its cheapest offer; None where time or price is not known."""
    cheapest = quote.cheapest_on_demand
    if quote.wall_s is None or cheapest is None or cheapest.on_demand_usd is None:
        return None
    return Way(name, group, quote.wall_s, cheapest.on_demand_usd, quote.wall_energy_j, taken)


class SourceOf(NamedTuple):
    """Where a figure comes from, and the day when that source was last read."""

    what: str
    source: str
    read: str


class Study(NamedTuple):
    """One run on one GPU, seen from all sides."""

    roof: Roof | None  # None of a GPU that was measured instead
    work: Mapping[Path, Work]
    throughput: Throughput | None  # by micro-batch, up to the largest that fits and one beyond
    elsewhere: tuple[Way, ...]
    sources: tuple[SourceOf, ...]


def study_answer(run: Run) -> tuple[EstimateAnswer, Study]:
    """Return the estimate of `run`, which names its GPU, with its formulas, and all that surrounds it."""
    run = _with_its_gpus_name(run)
    one = explained(gpu_estimate(estimate(run)))
    work = one.profile.explanation.work
    study = Study(
        _roof(one.profile), work, throughput(tuple(_sweep(one))), tuple(_elsewhere(run)), tuple(_sources(one))
    )
    return EstimateAnswer(run, (one,)), study


def _with_its_gpus_name(run: Run) -> Run:
    """Return `run` with the catalogue's name of its GPU, unless that is a file of the user's."""
    name = str(run.gpu)
    if run.gpu is None or is_file(name) or gpu(name).name == name:
        return run
    return run.replace(origin=run.origins["gpu"], gpu=gpu(name).name)


def _roof(profile: Profile) -> Roof | None:
    spec = gpu(str(profile.run.gpu))
    if spec.measured is not None:
        return None
    dtype = build(profile.run).lowering.compute_dtype
    return Roof(spec.name, dtype, profile.peak_flops_per_s, spec.memory_bytes_per_s)


def _sweep(one: GpuEstimate) -> Iterator[Profile]:
    """Yield the prediction at about a dozen micro-batches, up to the largest that fits and one beyond."""
    most = max(1, min(one.max_micro_batch_size, LARGEST_BATCH))
    sizes = {round(most ** (n / (MOST_BATCHES - 1))) for n in range(MOST_BATCHES)}
    if most <= MOST_BATCHES:
        sizes = set(range(1, most + 1))
    sizes |= {one.micro_batch_size, *(() if one.is_at_limit else (one.max_micro_batch_size + 1,))}
    for size in sorted(sizes):
        try:
            yield predict(one.run.replace(micro_batch_size=size))
        except FineGaugeError:
            continue  # a batch that the run's files do not allow


def _elsewhere(run: Run) -> Iterator[Way]:
    own = str(run.gpu)
    for name in dict.fromkeys([own, *(gpu(name).name for name in ELSEWHERE)]):
        try:
            profile = predict(run if name == own else run.replace(gpu=name))
            bill = quote(profile.run, profile)
        except FineGaugeError:
            continue
        if profile.fits and (offer := bill.cheapest_on_demand):
            said = f"{run.num_gpus} x {name} · {offer.provider} · {offer.instance_type or offer.tier}"
            if way := way_of(said, name, bill, taken=name == own):
                yield way


def ways_of(found: Sequence[GpuEstimate]) -> tuple[Way, ...]:
    """Return the GPUs of an answer, each at its cheapest offer, where time and price are known."""
    return tuple(way for one in found if (way := _way_of(one)) is not None)


def _way_of(one: GpuEstimate, name: str = "") -> Way | None:
    if one.quote is None or one.quote.cheapest_on_demand is None:
        return None
    said = f"{one.gpu} · {one.quote.cheapest_on_demand.provider}"
    return way_of(f"{name} · {said}" if name else said, name or one.gpu, one.quote)


def _sources(one: GpuEstimate) -> Iterator[SourceOf]:
    yield SourceOf("constants", f"FineGauge's calibration: {one.profile.source.name}", "")
    yield from _catalogued(one.run)
    if one.quote is None:
        return
    for offer in (one.quote.cheapest_on_demand, one.quote.cheapest_spot):
        if offer is not None:
            source = offer_sources().get(offer.source, offer.source)
            yield SourceOf(f"price of {offer.provider}", source, offer.date)
    grid = f"{one.quote.grid}, {one.quote.grid_kg_per_kwh:.3f} kg/kWh, PUE {one.quote.pue:.2f}"
    yield SourceOf("electricity", grid, "")


def _catalogued(run: Run) -> Iterator[SourceOf]:
    """Yield the sources of GPU, model and data set, where the catalogue has them."""
    named = (("GPU", run.gpu, gpu), ("model", run.model, model), ("data set", run.dataset, dataset))
    for what, name, find in named:
        if not name:
            continue
        try:
            found = find(name)
        except FineGaugeError:
            continue
        if found.source:
            yield SourceOf(f"{what} {found.name}", found.source, found.checked)


def throughput(sweep: Sequence[Profile]) -> Throughput | None:
    """Return the throughput over `sweep`, whose profiles differ in the micro-batch alone; None below two."""
    timed = [one for one in sweep if one.step_time_s.total]
    if len(timed) < 2:
        return None
    laws = tuple(line for name in LAWS if (line := _law_line(name, sweep)) is not None)
    own = sweep[0]
    return Throughput(
        own.source.kind, own.run.gradient_accumulation_steps, tuple(map(_batch_rate, timed)), laws
    )


def _batch_rate(profile: Profile) -> BatchRate:
    """Return what one micro-batch reaches; a longer step is a lower rate."""
    rate, interval = profile.samples_per_s, profile.source.time_interval
    low, high = (None, None) if interval is None else (rate / interval.high_ratio, rate / interval.low_ratio)
    return BatchRate(profile.run.micro_batch_size, rate, low, high, profile.fits)


def _law_line(name: str, sweep: Sequence[Profile]) -> LawLine | None:
    """Return a law fitted to `sweep`; None where it does not settle or SciPy is missing."""
    from finegauge.laws.fit import fit
    from finegauge.laws.law import Condition, Observation, form, sparsity_fraction

    conditions = [
        Condition(batch=one.run.micro_batch_size, sparsity_fraction=sparsity_fraction(one.run))
        for one in sweep
    ]
    seen = [Observation(at, one.samples_per_s) for at, one in zip(conditions, sweep, strict=True)]
    try:
        law = fit(form(name), seen)
    except FineGaugeError:
        return None
    first, last = conditions[0], conditions[-1]
    step = (last.batch - first.batch) / CURVE_POINTS
    sizes = sorted({round(first.batch + step * n) for n in range(CURVE_POINTS + 1)})
    return LawLine(
        name,
        law.scores.mape_fraction,
        tuple(law.form.evaluate(law.constants, at) for at in conditions),
        tuple((float(size), law.form.evaluate(law.constants, first._replace(batch=size))) for size in sizes),
    )


class Side(NamedTuple):
    """One run."""

    name: str
    profile: Profile
    estimate: GpuEstimate | None  # none of a run that was measured


class SidesAnswer(NamedTuple):
    """All of them, in the order in which they were asked for."""

    sides: tuple[Side, ...]
    differing: Mapping[str, tuple[Any, ...]]  # fields by name, with the value of each run
    ways: tuple[Way, ...]  # where time and price are known


def side_by_side(found: Mapping[str, GpuEstimate | Profile]) -> SidesAnswer:
    """Return the runs that were found under these paths."""
    names = _names(tuple(found))
    sides = tuple(
        Side(names[path], *((one.profile, one) if isinstance(one, GpuEstimate) else (one, None)))
        for path, one in found.items()
    )
    fields = [side.profile.run.fields() for side in sides]
    differing = {
        name: tuple(one.get(name) for one in fields)
        for name in fields[0]
        if any(one.get(name) != fields[0][name] for one in fields)
    }
    ways = (_way_of(side.estimate, side.name) for side in sides if side.estimate)
    return SidesAnswer(sides, differing, tuple(filter(None, ways)))


def _names(paths: tuple[str, ...]) -> dict[str, str]:
    """Return the last part of each path, or all of it where two would be called the same."""
    short = {path: os.path.splitext(os.path.basename(os.path.normpath(path)))[0] for path in paths}
    taken = list(short.values())
    return {path: name if taken.count(name) == 1 else path for path, name in short.items()}
