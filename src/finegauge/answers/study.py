"""What a report file shows of one run beside its estimate: other batches, other GPUs, operators, sources."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from finegauge.answers.estimate import Bill, EstimateAnswer, GpuEstimate, explained, gpu_estimate
from finegauge.answers.throughput import Throughput, throughput
from finegauge.catalogue.gpus import gpu, is_file
from finegauge.errors import FineGaugeError
from finegauge.planning.estimate import estimate
from finegauge.planning.quote import quote
from finegauge.prediction.predictor import predict
from finegauge.profile import Path, Profile, Work
from finegauge.records import NamedTuple

if TYPE_CHECKING:
    from finegauge.planning.quote import Quote
    from finegauge.run.run import Run

MOST_BATCHES, LARGEST_BATCH = 12, 256
ELSEWHERE = ("L4", "RTX-4090", "A40", "L40S", "A100-40GB", "A100-80GB", "H100", "H200", "B200")


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


def way_of(name: str, group: str, quote: "Quote | Bill", *, taken: bool = False) -> Way | None:
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


def study_answer(run: "Run") -> tuple[EstimateAnswer, Study]:
    """Return the estimate of `run`, which names its GPU, with its formulas, and all that surrounds it."""
    run = _with_its_gpus_name(run)
    one = explained(gpu_estimate(estimate(run)))
    work = one.profile.explanation.work
    study = Study(
        _roof(one.profile), work, throughput(tuple(_sweep(one))), tuple(_elsewhere(run)), tuple(_sources(one))
    )
    return EstimateAnswer(run, (one,)), study


def _with_its_gpus_name(run: "Run") -> "Run":
    """Return `run` with the catalogue's name of its GPU, unless that is a file of the user's."""
    name = str(run.gpu)
    if run.gpu is None or is_file(name) or gpu(name).name == name:
        return run
    return run.replace(origin=run.origins["gpu"], gpu=gpu(name).name)


def _roof(profile: Profile) -> Roof | None:
    from finegauge.model.graph import build

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


def _elsewhere(run: "Run") -> Iterator[Way]:
    own = str(run.gpu)
    for name in dict.fromkeys([own, *(gpu(name).name for name in ELSEWHERE)]):
        way = _way(run, name, own)
        if way is not None:
            yield way


def _way(run: "Run", name: str, own: str) -> Way | None:
    try:
        moved = run if name == own else run.replace(gpu=name)
        profile = predict(moved)
        bill = quote(moved, profile)
    except FineGaugeError:
        return None
    if not profile.fits or bill.cheapest_on_demand is None:
        return None
    label, offer = own if is_file(name) else name, bill.cheapest_on_demand.offer
    said = f"{run.num_gpus} x {label} · {offer.provider} · {offer.instance_type or offer.tier}"
    return way_of(said, label, bill, taken=name == own)


def ways_of(found: Sequence[GpuEstimate]) -> tuple[Way, ...]:
    """Return the GPUs of an answer, each at its cheapest offer, where time and price are known."""
    ways = []
    for one in found:
        if one.quote and one.quote.cheapest_on_demand:
            name = f"{one.gpu} · {one.quote.cheapest_on_demand.provider}"
            ways.append(way_of(name, one.gpu, one.quote))
    return tuple(way for way in ways if way is not None)


def _sources(one: GpuEstimate) -> Iterator[SourceOf]:
    from finegauge.catalogue.offers import offer_sources

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


def _catalogued(run: "Run") -> Iterator[SourceOf]:
    """Yield the sources of GPU, model and data set, where the catalogue has them."""
    from finegauge.catalogue.datasets import dataset
    from finegauge.catalogue.models import model

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
