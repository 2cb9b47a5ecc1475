"""The measured operators of one machine, and runs on it part by part: `finegauge micro`."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from finegauge.answers.profile import predicted_waits
from finegauge.answers.written import written
from finegauge.catalogue.device_profile import COLLECTIVES, KIND, DeviceProfile, Reading
from finegauge.errors import UnsupportedError
from finegauge.prediction.links import Link, links_of, work_of
from finegauge.profile import Path, Profile
from finegauge.run.run import Run

STEPS = 5  # of each measured run


class ModuleTime(NamedTuple):
    """The seconds of one operator of one module in one stage of a step."""

    path: Path  # stage, module, operator
    predicted_s: float
    measured_s: float


@written(hidden=("method",))
class RunByModule(NamedTuple):
    """One run, as a device profile predicts it and as measured on the same device."""

    name: str
    phase: str
    outcome: str
    reason: str
    predicted_step_s: float
    measured_step_s: float
    serving: Mapping[str, float]  # seconds to the first token and for each further one, tokens per second
    predicted_serving: Mapping[str, float]
    modules: tuple[ModuleTime, ...]  # of either side, in the order of the prediction
    method: str


class OperatorRates(NamedTuple):
    """One operator in one dtype over all its sizes, forward or in the one direction it has."""

    operator: str
    dtype: str
    num_readings: int
    quickest_s: float
    slowest_s: float
    flops_per_s: float  # the best of all sizes
    bytes_per_s: float
    spread_fraction: float  # the median


class CollectiveRates(NamedTuple):
    """One kind of collective between so many ranks, and the link fitted to all its readings."""

    kind: str
    ranks: int
    num_readings: int
    smallest: Reading
    largest: Reading
    bytes_per_s: float  # of the largest
    link: Link


@written(flat=("profile",), absent=("runs",), hidden=("operators", "collectives"))
class MicroAnswer(NamedTuple):
    """The device profile that was written, where, and the runs that were measured with it."""

    kind: str
    profile: DeviceProfile
    path: str | None  # the file that was written; None where a predicted profile was only asked for
    runs: tuple[RunByModule, ...] | None  # with --modules
    operators: tuple[OperatorRates, ...]
    collectives: tuple[CollectiveRates, ...]


def micro_answer(
    profile: DeviceProfile, path: str | None = None, runs: Sequence[RunByModule] | None = None
) -> MicroAnswer:
    """Return what is said of a device profile that lies at `path`, and of runs measured with it."""
    groups: dict[tuple[str, str], list[Reading]] = {}
    exchanged: dict[tuple[str, int], list[Reading]] = {}
    for one in profile.readings:
        if one.operator in COLLECTIVES:
            exchanged.setdefault((one.operator, int(one.sizes["ranks"])), []).append(one)
        elif not one.direction.startswith("backward"):
            groups.setdefault((one.operator, one.dtype), []).append(one)
    links = {link.kind: link for link in links_of(profile)} if exchanged else {}
    return MicroAnswer(
        kind=KIND,
        profile=profile,
        path=path,
        runs=None if runs is None else tuple(runs),
        operators=tuple(_rates(*key, readings) for key, readings in groups.items()),
        collectives=tuple(
            _collective(kind, ranks, readings, links[kind]) for (kind, ranks), readings in exchanged.items()
        ),
    )


def _rates(operator: str, dtype: str, readings: Sequence[Reading]) -> OperatorRates:
    return OperatorRates(
        operator,
        dtype,
        num_readings=len(readings),
        quickest_s=min(one.seconds for one in readings),
        slowest_s=max(one.seconds for one in readings),
        flops_per_s=max(one.flops / one.seconds for one in readings),
        bytes_per_s=max(one.bytes / one.seconds for one in readings),
        spread_fraction=median(one.spread_fraction for one in readings),
    )


def _collective(kind: str, ranks: int, readings: Sequence[Reading], link: Link) -> CollectiveRates:
    smallest, largest = (pick(readings, key=lambda one: one.sizes["bytes"]) for pick in (min, max))
    rate = largest.sizes["bytes"] * work_of(kind, ranks)[1] / largest.seconds
    return CollectiveRates(kind, ranks, len(readings), smallest, largest, rate, link)


def runs_by_module(runs: Mapping[str, Run], device: str, threads: int, path: str) -> Iterator[RunByModule]:
    """Yield every run as the device profile at `path` predicts it and as this machine runs it."""
    from finegauge.measurement.options import Options
    from finegauge.measurement.trial import measure
    from finegauge.prediction.predictor import predict

    options = Options(device=device, threads=threads, steps=STEPS, layers=True, memory=False)
    for name, run in runs.items():
        here = run.replace(gpu=path)
        yield run_by_module(name, predict(here), measure(here, options))


def run_by_module(name: str, predicted: Profile, measured: Profile) -> RunByModule:
    """Return both sides of one run, operator by operator."""
    ours, theirs = (one.step_time_s.at(3).parts for one in (predicted, measured))
    details = measured.observations.get("steps", {}).get("details", {})
    return RunByModule(
        name=name,
        phase=measured.run.phase,
        outcome=measured.outcome,
        reason=measured.reason,
        predicted_step_s=predicted.step_time_s.total,
        measured_step_s=measured.step_time_s.total,
        serving={key: value for key, value in details.items() if key.endswith("_s")},
        predicted_serving=predicted_waits(predicted),
        modules=tuple(
            ModuleTime(path, ours.get(path, 0.0), theirs.get(path, 0.0))
            for path in dict.fromkeys((*ours, *theirs))
        ),
        method=measured.run.method,
    )


def check_libraries() -> None:
    """Raise UnsupportedError where the libraries whose operators are timed are missing."""
    from importlib.util import find_spec

    missing = [name for name in ("torch", "transformers") if find_spec(name) is None]
    if missing:
        raise UnsupportedError(
            f"Timing operators needs {' and '.join(missing)}: pip install 'finegauge[measure]'. "
            "Predicting works without."
        )
