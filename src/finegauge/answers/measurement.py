"""What was measured: a run, beside its prediction (`measure`); operators; a training under way."""

from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from statistics import median
from typing import Any, Literal

from finegauge.answers import Rules
from finegauge.answers.estimate import GpuCapacity, gpu_capacity
from finegauge.answers.profile import ProfileFigures, figures_of, predicted_waits
from finegauge.catalogue.device_profile import COLLECTIVES, KIND, DeviceProfile, Reading, own_profile_path
from finegauge.catalogue.gpus import gpu, known_gpu
from finegauge.errors import FileFormatError, FineGaugeError, UnsupportedError
from finegauge.formats.evidence import text_evidence
from finegauge.measurement.options import Options
from finegauge.measurement.trial import measure
from finegauge.measurement.watching import Seen, profile_of
from finegauge.planning.capacity import Bounds, MeasuredCapacity
from finegauge.prediction.links import Link, links_of, work_of
from finegauge.prediction.moments import process_moments
from finegauge.prediction.predictor import (
    Prediction,
    PredictionExplained,
    predict,
    prediction_elsewhere,
    prediction_for,
)
from finegauge.prediction.uncertainty import RISKY_FROM_FRACTION, probability_out_of_memory
from finegauge.profile import Breakdown, Exchange, Held, Path, Profile, compare
from finegauge.progress import Heard
from finegauge.records import NamedTuple, same
from finegauge.run.run import FROM_COMMAND_LINE, Run
from finegauge.store.document import plain
from finegauge.units import HOUR_S


@Rules(flat=("figures",))
class MeasuredFigures(NamedTuple):
    """A measured step: what every profile has, every step's seconds, the machine and its instruments."""

    figures: ProfileFigures
    step_energy_j: float | None  # of the boards; None where no meter read it
    peak_memory_breakdown_bytes: Breakdown
    phase_memory_breakdown_bytes: Breakdown
    step_times_s: tuple[float, ...]
    step_tokens: float
    step_sequences: float
    fingerprint: Mapping[str, str]
    observations: Mapping[str, Any]  # by instrument


class Difference(NamedTuple):
    """One quantity at one path, predicted against measured, in the quantity's unit."""

    quantity: str
    path: tuple[str, ...]
    predicted: float
    measured: float
    error_ratio: float | None


class MeasuredMoment(NamedTuple):
    """The peak of one moment of a job in one process; predictions start from what it held before."""

    moment: str
    rank: int
    allocated_bytes: float
    resident_bytes: float
    predicted_allocated_bytes: float | None
    predicted_resident_bytes: float | None


@Rules(hidden=("profile", "prediction", "held", "exchanged"))
class Measurement(NamedTuple):
    """One trial beside its prediction."""

    gpu: str | None
    outcome: str
    reason: str
    measured: MeasuredFigures
    predicted: Profile | None
    not_predicted: str
    differences: tuple[Difference, ...]
    profile: Profile
    prediction: Prediction
    held: Held | None  # what a rank is predicted to hold between steps
    exchanged: tuple[Exchange, ...]  # what it is predicted to send
    moments: tuple[MeasuredMoment, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Return whether the trial came to its end."""
        return self.outcome == "completed"


class MeasureAnswer(NamedTuple):
    """One trial, or one endpoint under several loads."""

    run: Run
    results: tuple[Measurement, ...]


def measured(
    run: Run,
    options: Options,
    *,
    users: Sequence[int] = (),
    heard: Heard | None = None,
    store: str | None = None,
) -> list[tuple[Profile, Prediction]]:
    """Return a trial on this machine, or one of a server for each number of users, beside its prediction.

    With an endpoint in `options` a server is measured, by default with `micro_batch_size` users; no load
    follows one that fails. The journal `store` keeps the outcome.
    """
    if not options.endpoint:
        alone = measure(run, options, heard=heard, store=store)
        return [(alone, prediction_for(run, options.device, alone.fingerprint.get("device", "")))]
    found = []
    for load in [run.replace(FROM_COMMAND_LINE, micro_batch_size=n) for n in users] or [run]:
        one, met = measure(load, options, heard=heard, store=store), load
        if options.requests_per_s and one.outcome == "completed":  # as many users as were in flight
            met = load.replace(micro_batch_size=max(1, round(one.observations["serving"]["in_flight"])))
        found.append((one, prediction_elsewhere(met)))
        if one.outcome != "completed":
            break
    return found


def measure_answer(found: Sequence[tuple[Profile, Prediction]]) -> MeasureAnswer:
    """Return what trials brought, each beside what is predicted for it."""
    return MeasureAnswer(found[0][0].run, tuple(measurement(*one) for one in found))


def measurement(measured: Profile, prediction: Prediction | None = None) -> Measurement:
    """Return what a trial brought, beside its prediction, which by default is made now."""
    prediction = prediction or _prediction(measured)
    predicted = prediction.profile
    said = predicted.explanation if predicted is not None else PredictionExplained(measured.run)
    try:
        ranks = "ranks" in measured.observations
        held, exchanged = (said.held, tuple(said.exchanged)) if ranks else (None, ())
    except FineGaugeError:
        held, exchanged = None, ()
    apart = () if predicted is None else compare(predicted, measured)
    figures = {
        "figures": figures_of(measured),
        "step_energy_j": measured.step_energy_j.total if measured.step_energy_j.parts else None,
        "peak_memory_breakdown_bytes": measured.peak_memory_bytes,
        "phase_memory_breakdown_bytes": measured.phase_memory_bytes,
        "observations": plain(measured.observations),
    }
    return Measurement(
        gpu=measured.run.gpu,
        outcome=measured.outcome,
        reason=measured.reason,
        measured=MeasuredFigures(**same(MeasuredFigures, measured) | figures),
        predicted=predicted,
        not_predicted=prediction.missing,
        differences=tuple(
            Difference(one.quantity, one.path, one.ours, one.theirs, one.error_ratio) for one in apart
        ),
        profile=measured,
        prediction=prediction,
        held=held,
        exchanged=exchanged,
        moments=tuple(_moments(measured, predicted)),
    )


def _moments(measured: Profile, predicted: Profile | None) -> Iterator[MeasuredMoment]:
    """Yield the moments of every process, each beside what is predicted; where none were measured, none."""
    if "moments" not in measured.observations:
        return
    on_processor = not measured.fingerprint.get("cuda")
    said = {}
    if predicted is not None:  # on a device whose profile may be gone by now
        step = predicted._replace(run=measured.run)
        said = {one.name: one for one in process_moments(step, on_processor=on_processor)}
    for process in measured.observations["moments"]:
        rank, other = process["rank"], min(process["rank"], 1)
        for name, peak in process["peaks"].items():
            found = said.get(name)
            yield MeasuredMoment(
                moment=name,
                rank=rank,
                allocated_bytes=peak["allocated_bytes"],
                resident_bytes=peak["resident_bytes"],
                predicted_allocated_bytes=found.allocated_bytes[other] if found else None,
                predicted_resident_bytes=(
                    process["baseline_bytes"] + found.resident_bytes[other] if found else None
                ),
            )


def _prediction(measured: Profile) -> Prediction:
    run, device = measured.run, measured.fingerprint.get("device", "")
    known = known_gpu(device) if device else None
    if known is None and device:
        for kind in ("cpu", "cuda"):
            try:
                own = gpu(own_profile_path(kind))
            except FineGaugeError:
                continue
            if own.name == device:
                return prediction_elsewhere(run.replace(gpu=own_profile_path(kind)))
        if run.gpu is None:
            missing = f"Not predicted: there is no device profile of {device}; run 'finegauge micro' on it."
            return Prediction(None, {}, {}, missing)
    return prediction_elsewhere(run if known is None else run.replace(gpu=known.name))


STEPS = 5  # of each measured run


class ModuleTime(NamedTuple):
    """The seconds of one operator of one module in one stage of a step."""

    path: Path  # stage, module, operator
    predicted_s: float
    measured_s: float


@Rules(hidden=("method",))
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


@Rules(flat=("profile",), absent=("runs",), hidden=("operators", "collectives"))
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
    missing = [name for name in ("torch", "transformers") if find_spec(name) is None]
    if missing:
        raise UnsupportedError(
            f"Timing operators needs {' and '.join(missing)}: pip install 'finegauge[measure]'. "
            "Predicting works without."
        )


CLOSE_FRACTION = 0.95  # of the memory: from here on a longer batch may not fit
Outcome = Literal["running", "completed", "out_of_memory", "failed"]


class Watched(NamedTuple):
    """What is asked about a training that is watched, settled once."""

    run: Run | None  # None: what runs cannot be read
    why_not: str
    predicted: Profile | None
    usd_per_h: float | None


@Rules(signed=("memory_error_fraction", "step_error_fraction"))
class WatchAnswer(NamedTuple):
    """What is seen of a training, and what is predicted; null where it is not known."""

    outcome: Outcome
    reason: str
    exit_code: int | None
    steps: int
    total_steps: int
    wall_s: float
    left_s: float | None
    step_s: float | None
    tokens_per_s: float | None
    loss: float | None
    gpu: str
    memory_bytes: float
    peak_bytes: float
    device_bytes: float
    host_peak_bytes: float
    energy_j: float | None
    cost_usd: float | None
    completion_usd: float | None
    predicted_peak_bytes: float | None
    predicted_step_s: float | None
    memory_error_fraction: float | None  # predicted over seen
    step_error_fraction: float | None
    warnings: tuple[str, ...]
    stored: str  # the journal that has its profile; "": none


def settled(run: Run | None, why_not: str, gpu: str, usd_per_h: float | None) -> Watched:
    """Return what is predicted for a run on the GPU that its processes are on, "" on a processor."""
    if run is None:
        return Watched(None, why_not, None, usd_per_h)
    found = prediction_for(run, "cuda" if gpu else "cpu", gpu)
    return Watched(run, found.missing, found.profile, usd_per_h)


def watch_answer(asked: Watched, seen: Seen) -> WatchAnswer:
    """Return what is seen of a training now."""
    predicted, price = asked.predicted, asked.usd_per_h
    peak = predicted.memory_bytes("nvidia_smi" if seen.gpu else "torch_allocated") if predicted else 0.0
    step_s = predicted.step_time_s.total if predicted else 0.0
    tokens = predicted.step_tokens if predicted else 0.0
    left = seen.left_s
    so_far = None if price is None else seen.wall_s / HOUR_S * price
    more = None if price is None or left is None else left / HOUR_S * price
    return WatchAnswer(
        outcome="running", reason="", exit_code=None, steps=seen.steps, total_steps=seen.total,
        wall_s=seen.wall_s, left_s=left, step_s=seen.step_s or None,
        tokens_per_s=tokens / seen.step_s if tokens and seen.step_s else None, loss=seen.loss, gpu=seen.gpu,
        memory_bytes=seen.memory_bytes, peak_bytes=seen.peak_bytes, device_bytes=seen.device_bytes,
        host_peak_bytes=seen.host_peak_bytes, energy_j=seen.energy_j, cost_usd=so_far,
        completion_usd=None if so_far is None or more is None else so_far + more,
        predicted_peak_bytes=peak or None, predicted_step_s=step_s or None,
        memory_error_fraction=peak / seen.peak_bytes - 1 if peak and seen.gpu and seen.peak_bytes else None,
        step_error_fraction=step_s / seen.step_s - 1 if step_s and seen.step_s else None,
        warnings=tuple(_warnings(asked, seen, peak)), stored="",
    )  # fmt: skip


def _warnings(asked: Watched, seen: Seen, peak: float) -> list[str]:
    found = []
    predicted = asked.predicted
    if seen.device_bytes and seen.peak_bytes > CLOSE_FRACTION * seen.device_bytes:
        share = 100 * seen.peak_bytes / seen.device_bytes
        found.append(f"It has held {share:.0f} % of the memory: a longer batch may not fit.")
    to_come = seen.gpu and seen.steps and peak > seen.peak_bytes
    if to_come and predicted and probability_out_of_memory(predicted) >= RISKY_FROM_FRACTION:
        found.append("The longest batch is still to come and may not fit; 'finegauge check' says what does.")
    if seen.loss is not None and not abs(seen.loss) < float("inf"):
        found.append("The loss is no number.")
    return found


def ended_answer(asked: Watched, seen: Seen, code: int, printed: str) -> tuple[WatchAnswer, Profile | None]:
    """Return how a training ended, and its measured profile where it is known what ran."""
    outcome: Outcome = "completed" if code == 0 else "failed"
    reason = "" if code == 0 else f"exit code {code}"
    if code:
        try:
            found = text_evidence(printed, "")
        except FileFormatError:
            found = None
        if found is not None and found.failure in ("device_memory", "host_memory"):
            outcome = "out_of_memory"
        elif code == 128 + 9:
            reason = "it was killed (SIGKILL): by the OOM killer (then dmesg says so), a limit or by hand"
        reason = found.says if found is not None and found.says else reason
    answer = watch_answer(asked, seen)._replace(outcome=outcome, reason=reason, exit_code=code, left_s=None)
    if asked.run is None:
        return answer, None
    steps: dict[str, Any] = {"tokens": 0.0, "sequences": float(asked.run.global_batch_size)}
    if asked.predicted is not None:
        steps["tokens"] = asked.predicted.step_tokens
    return answer, profile_of(asked.run, seen, **steps, ended=(outcome, reason))


class TrialOutcome(NamedTuple):
    """How one trial on the way to the largest micro-batch ended."""

    micro_batch_size: int
    outcome: str
    reason: str
    peak_memory_bytes: float | None
    step_time_s: float | None


@Rules(flat=("border",))
class MeasuredBorder(NamedTuple):
    """The largest micro-batch that a trial has shown to fit, with the predicted bounds and every trial."""

    border: GpuCapacity
    bounds: Bounds
    untried: int
    trials: tuple[TrialOutcome, ...]


@Rules(hidden=("allowed_bytes",))
class MeasuredCapacityAnswer(NamedTuple):
    """The largest micro-batch by trials on this machine."""

    run: Run
    results: tuple[MeasuredBorder]
    allowed_bytes: float = 0.0  # to each trial; 0: all there is


def measured_capacity_answer(
    run: Run, found: MeasuredCapacity, allowed_bytes: float
) -> MeasuredCapacityAnswer:
    """Return what trials have found."""
    profile = found.capacity.profile
    border = gpu_capacity(profile.run.gpu if profile else None, found.capacity)
    trials = tuple(
        TrialOutcome(
            trial.run.micro_batch_size, trial.outcome, trial.reason, trial.peak_memory_bytes.total or None,
            trial.step_time_s.total or None,
        )
        for trial in found.trials
    )  # fmt: skip
    whole = MeasuredBorder(border, found.bounds, found.untried, trials)
    return MeasuredCapacityAnswer(run, (whole,), allowed_bytes)
