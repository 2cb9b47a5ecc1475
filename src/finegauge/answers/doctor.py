"""What this machine has: GPUs, host, disk, the extras and what each makes work, the way to what is missing.

Nothing is imported to find out, the network is not used, and no value of a secret is read.
"""

import os
import platform
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Literal, NamedTuple

from finegauge.errors import FineGaugeError
from finegauge.units import gib

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
    from finegauge.catalogue.gpus import this_gpu
    from finegauge.catalogue.machine import gpus_here

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
    if here and "+cpu" in (torch := _version("torch")):
        yield Finding(
            "machine", "torch", LIMITED, f"{torch} knows no GPU", "pip install torch for CUDA or ROCm"
        )


def _profile() -> Finding:
    from finegauge.catalogue.device_profile import own_profile_path

    found = [path for path in map(own_profile_path, ("cuda", "cpu")) if os.path.isfile(path)]
    if found:
        return Finding("machine", "device profile", WORKS, found[0], "")
    otherwise = "'finegauge micro' times this machine once; then --gpu here"
    return Finding("machine", "device profile", LIMITED, "none: datasheets stand in", otherwise)


def _host() -> Iterator[Finding]:
    from shutil import disk_usage

    from finegauge.catalogue.hub import hub_cache
    from finegauge.catalogue.machine import host_memory_bytes

    total, free = host_memory_bytes()
    memory = f"{gib(free)} of {gib(total)} free" if total else "not reported by this system"
    yield Finding("machine", "host memory", WORKS if total else LIMITED, memory, "")
    yield Finding("machine", "cores", WORKS, str(_cores()), "")
    folder = hub_cache()
    while not os.path.isdir(folder) and os.path.dirname(folder) != folder:
        folder = os.path.dirname(folder)
    room = disk_usage(folder or os.curdir)  # a relative path ends in ""
    yield Finding(
        "machine", "disk", WORKS, f"{gib(room.free)} of {gib(room.total)} free for {hub_cache()}", ""
    )


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _network() -> Finding:
    from finegauge.catalogue.hub import ENDPOINT, offline_by

    endpoint = os.environ.get("HF_ENDPOINT") or ENDPOINT
    token = "HF_TOKEN is set" if os.environ.get("HF_TOKEN") else "HF_TOKEN is not set: gated models stay shut"
    if forbids := offline_by():
        otherwise = f"unset {forbids} to fetch config.json of models that the catalogue lacks"
        return Finding("machine", "Hub", LIMITED, f"{forbids} forbids asking it", otherwise)
    return Finding(
        "machine", "Hub", WORKS, f"{endpoint}, asked where the catalogue lacks a model; {token}", ""
    )


def _extra(name: str) -> Finding:
    packages, makes_work = EXTRAS[name]
    missing = [package for package in packages.split() if find_spec(package) is None]
    if not missing:
        return Finding("extras", name, WORKS, makes_work, "")
    first = "pip install torch==2.13.0 " if "torch" in missing else "pip install "
    return Finding(
        "extras", name, MISSING, f"{makes_work}: no {', '.join(missing)}", f"{first}'finegauge[{name}]'"
    )


def _version(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return ""
