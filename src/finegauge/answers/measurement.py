"""What was measured of a run, beside what is predicted for it: `finegauge measure`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from finegauge.answers.profile import ProfileFigures, figures_of
from finegauge.answers.written import written
from finegauge.errors import FineGaugeError
from finegauge.prediction.predictor import Prediction, PredictionExplained, prediction_elsewhere
from finegauge.profile import Breakdown, Exchange, Held, Profile, compare
from finegauge.records import same
from finegauge.run.run import FROM_COMMAND_LINE, Run
from finegauge.store.document import plain

if TYPE_CHECKING:
    from finegauge.measurement.options import Options
    from finegauge.progress import Heard


@written(flat=("figures",))
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


@written(hidden=("profile", "prediction", "held", "exchanged"))
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
    options: "Options",
    *,
    users: Sequence[int] = (),
    heard: "Heard | None" = None,
    store: str | None = None,
) -> list[tuple[Profile, Prediction]]:
    """Return a trial on this machine, or one of a server for each number of users, beside its prediction.

    With an endpoint in `options` a server is measured, by default with `micro_batch_size` users; no load
    follows one that fails. The journal `store` keeps the outcome.
    """
    from finegauge.measurement.trial import measure
    from finegauge.prediction.predictor import prediction_for

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
    from finegauge.prediction.process_moments import process_moments

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
    from finegauge.catalogue.device_profile import own_profile_path
    from finegauge.catalogue.gpus import gpu, known_gpu

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
