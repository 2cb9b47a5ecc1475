"""What listings show: rows of the catalogue, every number in SI units, and what this machine has.

Of the machine: GPUs, host, disk, the extras and what each makes work, the way to what is missing. Nothing is
imported to find out, the network is not used, and no value of a secret is read.
"""

import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from itertools import starmap
from typing import Any, Literal, NamedTuple

from finegauge.catalogue.datasets import Dataset, datasets
from finegauge.catalogue.device_profile import own_profile_path
from finegauge.catalogue.frameworks import Framework, frameworks
from finegauge.catalogue.gpus import GpuSpec, cloud_machine, counted, fold, gpus, matching_gpus, this_gpu
from finegauge.catalogue.hub import ENDPOINT, hub_cache, offline_by
from finegauge.catalogue.machine import gpus_here, host_memory_bytes
from finegauge.catalogue.models import ModelFigures, models
from finegauge.catalogue.offers import Offer, multiples, offer_sources, offers
from finegauge.documents import installed_version
from finegauge.errors import FineGaugeError
from finegauge.units import gib

SORTS = ("price", "gpu-price", "provider", "date")


def found_gpus(pattern: str = "", vendor: str = "") -> list[GpuSpec]:
    """Return the accelerators whose name or alias contains `pattern`."""
    wanted = fold(pattern)
    return [
        spec
        for spec in gpus().values()
        if (not vendor or spec.vendor.casefold() == vendor.casefold())
        and any(wanted in fold(name) for name in (spec.name, *spec.aliases))
    ]


def found_models(pattern: str = "") -> list[ModelFigures]:
    """Return the models whose name, alias or model_type contains `pattern`."""
    rows = models().values()
    return [row for row in rows if _holds(pattern, row.name, *row.aliases, str(row.config.get("model_type")))]


def _holds(pattern: str, *names: str) -> bool:
    """Return whether every word of `pattern` stands in `names`, signs apart."""
    said, asked = (text.casefold().replace("-", "").replace("_", "") for text in (" ".join(names), pattern))
    return all(word in said for word in asked.split())


def found_datasets(pattern: str = "") -> list[Dataset]:
    """Return the data sets whose name or alias contains `pattern`."""
    return [one for one in datasets().values() if _holds(pattern, one.name, *one.aliases)]


def found_offers(
    gpu: str = "",
    provider: str = "",
    region: str = "",
    count: int | None = None,
    *,
    spot: bool = False,
    sort: str = "gpu-price",
) -> list[Offer]:
    """Return the cloud offers asked for, ordered by `sort`, one of SORTS.

    `gpu` may be a family (h100 is every H100), with a number (8xh100), or a cloud's machine (p5.48xlarge).
    `count` is GPUs per instance, exactly; a seller that prices a single card asks as many times its price.
    With `spot`, only offers with a spot price, ranked by it.
    """
    name, number = counted(gpu)
    names: Sequence[str | None] = matching_gpus(name) if gpu else (None,)
    found = [offer for name in names for offer in offers(name, provider or None, None, region or None)]
    if rented := cloud_machine(gpu):
        found = [one for one in found if one.instance_type == rented.name] or found
    if (count := count or number) is not None:
        found = [each for one in found for each in (one, *multiples(one)) if each.gpu_count == count]
    if spot:
        found = [offer for offer in found if offer.spot_usd_per_h is not None]
    return sorted(found, key=lambda offer: _offer_key(offer, sort, spot=spot))


def _offer_key(offer: Offer, sort: str, *, spot: bool) -> tuple[Any, ...]:
    """Return what an offer is ordered by; prices far from all others come last."""
    price = offer.usd_per_h(spot=spot)
    first: tuple[Any, ...] = {
        "price": (price is None, price or 0.0),
        "gpu-price": (price is None or not offer.gpu_count, (price or 0.0) / (offer.gpu_count or 1)),
        "provider": (offer.provider,),
        "date": (offer.date,),
    }[sort]
    return offer.outlier and sort.endswith("price"), *first, offer.provider, offer.instance_type, offer.region


def offers_json(found: Sequence[Offer]) -> list[dict[str, Any]]:
    """Return offers as JSON has them, each with where it was read."""
    sources = offer_sources()
    return [plain(offer) | {"source": sources.get(offer.source, offer.source)} for offer in found]


def plain(row: Any) -> dict[str, Any]:
    """Return a named tuple as JSON writes it."""
    values = {name: dict(one) if isinstance(one, Mapping) else one for name, one in row._asdict().items()}
    return {name: one.to_json() if hasattr(one, "to_json") else one for name, one in values.items()}


class DefaultsSince(NamedTuple):
    """Fields that a framework sets where its file leaves them open, from a version on."""

    since: str
    where: Mapping[str, str]  # column of a measurement table: the pattern of those rows alone
    fields: Mapping[str, Any]


class FrameworkRow(NamedTuple):
    """One framework: how it is named, whether its files are read and written, what it does unasked."""

    name: str
    named_by: tuple[str, ...]  # any of these words in a run's `framework`
    reads: bool
    export: str | None  # what --export calls it
    behaviours: tuple[str, ...]  # flags of `catalogue.frameworks.Framework` that hold
    defaults: tuple[DefaultsSince, ...]
    source: str


class FrameworksAnswer(NamedTuple):
    """Every framework whose name or words contain what was asked."""

    frameworks: tuple[FrameworkRow, ...]


def frameworks_answer(pattern: str = "") -> FrameworksAnswer:
    """Return the frameworks whose name or words contain `pattern`; all of them where it is empty."""
    wanted = pattern.casefold()
    found = (one for one in frameworks() if any(wanted in word for word in (one.name.casefold(), *one.words)))
    return FrameworksAnswer(tuple(map(_row, found)))


def _row(one: Framework) -> FrameworkRow:
    behaviours = tuple(name for name, value in one._asdict().items() if value is True)
    changes = [(".".join(map(str, each.since)), each.where, each.defaults) for each in one.defaults]
    defaults, export = tuple(starmap(DefaultsSince, changes)), one.exports[0] if one.exports else None
    return FrameworkRow(one.name, one.words, bool(one.signatures), export, behaviours, defaults, one.source)


State = Literal["works", "limited", "missing"]
WORKS: State = "works"
LIMITED: State = "limited"  # something else does instead
MISSING: State = "missing"

# By extra: the packages that it brings, by the names they are imported by, and what they make work.
EXTRAS = {
    "measure": (
        "accelerate bitsandbytes pynvml peft safetensors torch transformers",
        "finegauge measure, micro, trace; models of unknown types",
    ),
    "data": ("jinja2 numpy pyarrow tokenizers", "finegauge data; data sets in files"),
    "report": ("jinja2 matplotlib numpy scipy", "finegauge report, reproduce"),
    "calibrate": ("jinja2 matplotlib numpy scipy", "finegauge calibrate; laws"),
    "web": ("jinja2 matplotlib numpy scipy starlette uvicorn", "finegauge serve"),
    "mcp": ("mcp", "finegauge mcp"),
    "campaign": ("duckdb orjson pyarrow", "finegauge results --sql; Parquet"),
    "ray": ("ray", "finegauge campaign --engine ray"),
    "endpoint": ("aiohttp", "finegauge measure --endpoint"),
    "deepspeed": ("deepspeed", "finegauge measure of ZeRO on several processes"),
    "harness": ("lm_eval", "finegauge measure --tasks"),
}


class Finding(NamedTuple):
    """One thing of this machine."""

    group: str  # machine | extras
    name: str
    state: State
    found: str
    way_out: str  # what to do about it; "" where nothing is to be done


class DoctorAnswer(NamedTuple):
    """What this machine has, and what works on it."""

    python: str
    system: str
    findings: tuple[Finding, ...]


def doctor_answer() -> DoctorAnswer:
    """Return what this machine has."""
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    findings = (*_gpus(), _profile(), *_host(), _network(), *map(_extra, EXTRAS))
    return DoctorAnswer(platform.python_version(), system, findings)


def _gpus() -> Iterator[Finding]:
    here = gpus_here()
    kinds = dict.fromkeys(one.name for one in here)
    if not here:
        otherwise = "predict for any GPU with --gpu NAME; 'finegauge gpus' lists them"
        yield Finding("machine", "GPU", LIMITED, "none that a driver reports", otherwise)
    for kind in kinds:
        alike = [one for one in here if one.name == kind]
        free = sum(one.free_bytes for one in alike) / len(alike)
        driver = f", driver {alike[0].driver}" if alike[0].driver else ""
        found = f"{len(alike)} x {kind}, {gib(free)} of {gib(alike[0].total_bytes)} free{driver}"
        problem = ""
        if len(kinds) == 1:
            try:
                this_gpu()
            except FineGaugeError as error:
                problem = str(error)
        yield Finding("machine", "GPU", LIMITED if problem else WORKS, found, problem)
    if here and "+cpu" in (torch := installed_version("torch")):
        way_out = "pip install torch for CUDA or ROCm"
        yield Finding("machine", "torch", LIMITED, f"torch {torch} knows no GPU", way_out)


def _profile() -> Finding:
    found = [path for path in map(own_profile_path, ("cuda", "cpu")) if os.path.isfile(path)]
    if found:
        return Finding("machine", "device profile", WORKS, found[0], "")
    otherwise = "'finegauge micro' times this machine once; then --gpu here"
    return Finding("machine", "device profile", LIMITED, "none: datasheets stand in", otherwise)


def _host() -> Iterator[Finding]:
    from shutil import disk_usage

    total, free = host_memory_bytes()
    memory = f"{gib(free)} of {gib(total)} free" if total else "not reported by this system"
    yield Finding("machine", "host memory", WORKS if total else LIMITED, memory, "")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    yield Finding("machine", "cores", WORKS, str(cores), "")
    folder = hub_cache()
    while not os.path.isdir(folder) and os.path.dirname(folder) != folder:
        folder = os.path.dirname(folder)
    room = disk_usage(folder or os.curdir)  # a relative path ends in ""
    found = f"{gib(room.free)} of {gib(room.total)} free for {hub_cache()}"
    yield Finding("machine", "disk", WORKS, found, "")


def _network() -> Finding:
    endpoint = os.environ.get("HF_ENDPOINT") or ENDPOINT
    token = "is set" if os.environ.get("HF_TOKEN") else "is not set: gated models cannot be read"
    if forbids := offline_by():
        otherwise = f"unset {forbids} to fetch config.json of models that the catalogue lacks"
        return Finding("machine", "Hub", LIMITED, f"{forbids} forbids asking it", otherwise)
    found = f"{endpoint}, asked where the catalogue lacks a model; HF_TOKEN {token}"
    return Finding("machine", "Hub", WORKS, found, "")


def _extra(name: str) -> Finding:
    packages, makes_work = EXTRAS[name]
    missing = [package for package in packages.split() if find_spec(package) is None]
    if not missing:
        return Finding("extras", name, WORKS, makes_work, "")
    first = "torch==2.13.0 " if "torch" in missing else ""
    way_out = f"pip install {first}'finegauge[{name}]'"
    return Finding("extras", name, MISSING, f"{makes_work}: no {', '.join(missing)}", way_out)
