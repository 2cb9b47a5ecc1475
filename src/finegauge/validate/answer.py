"""One measured run and what is predicted for it: the two side by side, with signed relative errors.

An error is (ours - theirs) / theirs, and None where the row does not say. Memory is compared by
the metric that the row names: torch allocated is the live peak, torch reserved adds what the
allocator loses and caches, nvidia-smi adds what lives outside torch. Where the metric is not
stated it is taken for nvidia-smi's: both tables that do not state theirs are nearest to it.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from finegauge.errors import FineGaugeError
from finegauge.profile import Interval, Profile
from finegauge.units import GIB
from finegauge.workload.readers.measurement_table import MeasuredRow

if TYPE_CHECKING:
    from finegauge.workload.run import Run

Estimator = Callable[["Run"], Profile]
EXACT = Interval(1.0, 1.0)  # of an Estimator that gives no interval


class Prediction(NamedTuple):
    """What an Estimator says about one row, in the row's own quantities."""

    step_time_s: float
    step_time_s_p10: float
    step_time_s_p90: float
    tokens_per_s_per_gpu: float
    peak_memory_gib: float  # by the row's metric
    peak_memory_gib_p10: float
    peak_memory_gib_p90: float
    p_oom: float
    outcome: str  # ok or oom


class Answer(NamedTuple):
    """One row, answered or not."""

    row: MeasuredRow
    prediction: Prediction | None
    reason: str  # why there is no prediction; "" where there is one
    profile: Profile | None = None

    @property
    def step_time_error(self) -> float | None:
        """Return the signed relative error of the step's seconds."""
        ours, theirs = self.prediction, self.row.measured
        if ours is None or ours.step_time_s <= 0:
            return None
        if theirs.step_time_s:
            micro_steps = self.row.run.gradient_accumulation_steps if self.row.run else 1
            steps = micro_steps if theirs.step_is_micro_batch else 1
            return ours.step_time_s / (theirs.step_time_s * steps) - 1
        if theirs.tokens_per_s_per_gpu and ours.tokens_per_s_per_gpu > 0:
            return theirs.tokens_per_s_per_gpu / ours.tokens_per_s_per_gpu - 1
        if theirs.samples_per_s and self.profile is not None and self.profile.samples_per_s > 0:
            return theirs.samples_per_s / self.profile.samples_per_s - 1
        return None

    @property
    def peak_memory_error(self) -> float | None:
        """Return the signed relative error of the peak memory, by the row's metric."""
        if self.prediction is None or not self.row.measured.peak_memory_gib:
            return None
        if self.prediction.peak_memory_gib <= 0:  # a rival that says nothing about memory
            return None
        return self.prediction.peak_memory_gib / self.row.measured.peak_memory_gib - 1

    def to_json(self) -> dict[str, Any]:
        """Return the documented JSON form of one row."""
        ours = self.prediction
        blank = dict.fromkeys(Prediction._fields)
        return {
            "id": self.row.id,
            "source": self.row.source,
            "answered": ours is not None,
            "reason": self.reason or None,
            **(blank if ours is None else ours._asdict()),
            "step_time_error": self.step_time_error,
            "peak_memory_error": self.peak_memory_error,
            "memory_metric": self.row.measured.memory_metric if self.row.measured.peak_memory_gib else None,
            "measured_outcome": self.row.measured.outcome or None,
            "times_complete": self.row.times_complete,
            "memory_complete": self.row.memory_complete,
            "lengths": self.row.lengths,
            "defaults": list(self.row.defaults),
            "assumptions": list(self.row.assumptions),
        }


def answer(row: MeasuredRow, estimator: Estimator | None = None) -> Answer:
    """Return `row` with what `estimator` (FineGauge's prediction by default) says about its run.

    Only the run is handed on: the measured columns never reach the Estimator.
    """
    if row.run is None:
        return Answer(row, None, row.reason)
    if estimator is None:
        from finegauge.predict import predict

        estimator = predict
    try:
        profile = estimator(row.run)
        return Answer(row, prediction_of(profile, row.measured.memory_metric), "", profile)
    except FineGaugeError as error:
        return Answer(row, None, str(error))
    except Exception as error:
        # a table may describe a model that no code foresaw; one row must not end the whole validation
        return Answer(row, None, f"internal error ({type(error).__name__}: {error})")


def prediction_of(profile: Profile, metric: str) -> Prediction:
    """Return `profile` in the quantities of a row whose memory is counted by `metric`."""
    from finegauge.predict.uncertainty import probability_out_of_memory

    seconds, peak = profile.step_time_s.total, profile.memory_bytes(metric) / GIB
    fast, slow = (profile.source.time_interval or EXACT).of(seconds)
    low, high = (profile.source.memory_interval or EXACT).of(peak)
    return Prediction(
        step_time_s=seconds,
        step_time_s_p10=fast,
        step_time_s_p90=slow,
        tokens_per_s_per_gpu=profile.tokens_per_s / profile.run.num_gpus,
        peak_memory_gib=peak,
        peak_memory_gib_p10=low,
        peak_memory_gib_p90=high,
        p_oom=probability_out_of_memory(profile),
        outcome="ok" if profile.fits else "oom",
    )
