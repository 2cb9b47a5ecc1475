"""Answers about one run on one or several GPUs: estimate, explain, check, max-batch, max-length.

Each is worked out once, by the planner, and holds what every view shows: figures, names and sentences,
without layout. The fields are those of `--json`, in its order.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

from finegauge.answers import Rules
from finegauge.answers.changes import AdviceAnswer, Fixed, advice_answer, fixed_run
from finegauge.planning.capacity import Capacity, max_micro_batch_size
from finegauge.planning.estimate import Estimate, estimate, estimates
from finegauge.planning.quote import ManagedPrice, OfferCost, Quote
from finegauge.prediction.moments import Moment, Shortage
from finegauge.prediction.predictor import needed
from finegauge.prediction.uncertainty import FITS, WILL_NOT_FIT, Verdict
from finegauge.profile import Estimator, Exchange, Path, Profile, RolloutUse
from finegauge.records import NamedTuple, same
from finegauge.run.rules import SERVING
from finegauge.run.run import Run, positions_of

Rules(hidden=("is_ranked", "source", "offer"))(OfferCost)
Rules(hidden=("first_bytes", "other_bytes"))(Moment)
Rules(most={"offers": 20})(Quote)


@Rules(absent=("sequences_at_once", "requests_per_s", "in_flight", "waits_s"))
class ServedAnswer(NamedTuple):
    """What users of a service wait for and get: medians of a load, else of a batch."""

    ttft_s: float
    time_per_output_token_s: float | None  # none where answers have one token
    output_tokens_per_s: float  # all GPUs
    joules_per_token: float | None
    sequences_at_once: int | None  # of each replica
    requests_per_s: float | None  # of a load
    in_flight: float | None
    waits_s: Mapping[str, Mapping[str, float]] | None  # of a load, by what is waited for: mean, p50, p90, p99


@Rules(
    hidden=("is_at_limit", "managed", "offers"),
    absent=("formulas", "exchanged", "method", "sharding", "advice", "rollout", "served"),
)
class GpuEstimate(NamedTuple):
    """One run on one GPU: whether it fits, one step, and the bill; of explain, how all of it comes about."""

    gpu: str
    verdict: Verdict
    out_of_memory_fraction: float
    safe_micro_batch_size: int  # the largest that is not even risky
    device_memory_bytes: float
    capacity_bytes: float
    micro_batch_size: int
    max_micro_batch_size: int
    profile: Profile
    bottleneck: str
    quote: Quote | None
    formulas: Mapping[Path, str] | None = None
    exchanged: tuple[Exchange, ...] | None = None
    method: str | None = None  # where that of a model alone differs by GPU
    sharding: str | None = None  # likewise
    is_at_limit: bool = False  # the search for the largest micro-batch ended before memory did
    managed: tuple[ManagedPrice, ...] = ()  # known of a run that will not fit too
    offers: tuple[OfferCost, ...] = ()  # of a run that will not fit; else they stand in the bill
    moments: tuple[Moment, ...] = ()
    shortage: Shortage | None = None  # the first moment that needs more than there is, and of what
    advice: AdviceAnswer | None = None  # of a run that is not safe: what makes it so
    rollout: RolloutUse | None = None  # the engine beside the trainer
    served: ServedAnswer | None = None  # of a service

    @property
    def run(self) -> Run:
        """Return the run on that GPU."""
        return self.profile.run


@Rules(
    hidden=("is_at_limit", "managed", "offers"), absent=("method", "sharding", "advice", "rollout", "served")
)
class GpuExplanation(GpuEstimate):
    """The same, with the formula of each part and what ranks send each other."""


@Rules(absent=("advice",))
class GpuVerdict(NamedTuple):
    """Whether one run fits one GPU."""

    gpu: str
    verdict: Verdict
    out_of_memory_fraction: float
    safe_micro_batch_size: int
    device_memory_bytes: float
    capacity_bytes: float
    shortage: Shortage | None = None  # the first moment that needs more than there is, and of what
    advice: AdviceAnswer | None = None  # of a run that is not safe: what makes it so


class Unsupported(NamedTuple):
    """A GPU that has no answer, and why."""

    gpu: str
    verdict: Literal["unsupported"]
    reason: str


class EstimateAnswer(NamedTuple):
    """Memory, time, cost and energy of a run, once per GPU; last the GPUs that have no answer."""

    run: Run
    results: tuple[GpuEstimate | Unsupported, ...]

    @property
    def found(self) -> tuple[GpuEstimate, ...]:
        """Return the results of the GPUs that have an answer."""
        return tuple(one for one in self.results if isinstance(one, GpuEstimate))

    @property
    def unsupported(self) -> tuple[Unsupported, ...]:
        """Return the GPUs that have none."""
        return tuple(one for one in self.results if isinstance(one, Unsupported))


class ExplainAnswer(NamedTuple):
    """Every byte and second with its formula, once per GPU."""

    run: Run
    results: tuple[GpuExplanation, ...]

    @property
    def found(self) -> tuple[GpuEstimate, ...]:
        """Return all results."""
        return self.results


@Rules(hidden=("found",), absent=("fixed",))
class CheckAnswer(NamedTuple):
    """Whether a run fits, once per GPU."""

    run: Run
    results: tuple[GpuVerdict, ...]
    found: tuple[GpuEstimate, ...] = ()  # all that is known of each
    fixed: Fixed | None = None  # with --fix, of a run that was not safe


@Rules(hidden=("capacity_bytes",))
class GpuCapacity(NamedTuple):
    """The largest value of a field that fits one GPU, with the memory on both sides of the border."""

    gpu: str | None
    field: str
    value: int  # the largest that may fit
    safe_value: int  # the largest that is not even risky
    limit: int
    at_limit: bool
    num_probes: int
    device_memory_bytes: float | None
    step_time_s: float | None
    tokens_per_s: float | None
    samples_per_s: float | None
    first_that_fails_bytes: float | None
    capacity_bytes: float | None = None  # usable on that GPU


@Rules(hidden=("trained_positions",))
class CapacityAnswer(NamedTuple):
    """The largest micro-batch or the longest sequence that fits, once per GPU."""

    run: Run
    results: tuple[GpuCapacity, ...]
    trained_positions: int | None = None  # of the model: longer ones it was not built for


def estimate_answer(
    runs: Sequence[Run],
    estimator: Estimator | None = None,
    *,
    at_max_batch: bool = False,
    advises: bool = True,
) -> EstimateAnswer:
    """Return what each of `runs` takes, the same run on one GPU after another; of one, what makes it safe.

    Raises: UnsupportedError where no GPU has an answer.
    """
    found, unsupported = estimates(runs, estimator, at_max_batch=at_max_batch)
    missing = (Unsupported(gpu, "unsupported", reason) for gpu, reason in unsupported.items())
    answered = list(map(gpu_estimate, found))
    if len(runs) == 1 and advises:
        answered = [advised(one, estimator) for one in answered]
    if len({one.run.method for one in answered}) > 1:
        answered = [one._replace(method=one.run.method) for one in answered]
    if len({one.run.sharding for one in answered}) > 1:
        answered = [one._replace(sharding=one.run.sharding) for one in answered]
    return EstimateAnswer(runs[0], (*answered, *missing))


def explain_answer(runs: Sequence[Run]) -> ExplainAnswer:
    """Return what each of `runs` takes, with formulas."""
    found = tuple(explained(gpu_estimate(estimate(run))) for run in runs)
    return ExplainAnswer(found[0].run, found)


def check_answer(runs: Sequence[Run]) -> CheckAnswer:
    """Return whether each of `runs` fits its GPU."""
    found = tuple(advised(gpu_estimate(estimate(run))) for run in runs)
    return CheckAnswer(found[0].run, tuple(map(gpu_verdict, found)), found)


def advised(one: GpuEstimate, estimator: Estimator | None = None) -> GpuEstimate:
    """Return an estimate with what makes the run safe, where it is not."""
    if one.verdict == FITS:
        return one
    from finegauge.planning.advice import advise

    return one._replace(advice=advice_answer(advise(one.run, estimator)))


def fixed_answer(run: Run, folder: str, *, recipe: str, overwrite: bool = False) -> CheckAnswer:
    """Return whether `run`, read from `recipe`, fits; if it is not safe, write the cheapest change that is.

    Raises: InputError where files are there already.
    """
    one = gpu_estimate(estimate(run))
    fixed = None
    if one.verdict != FITS:
        from finegauge.planning.advice import advise

        advice = advise(run)
        one = one._replace(advice=advice_answer(advice))
        fixed = fixed_run(run, advice, folder, recipe=recipe, overwrite=overwrite)
    return CheckAnswer(one.run, (gpu_verdict(one),), (one,), fixed)


def capacity_answer(found: Sequence[tuple[Run, Capacity]]) -> CapacityAnswer:
    """Return the borders that were found for a run on one GPU after another."""
    run = found[0][0]
    results = tuple(gpu_capacity(run.gpu, one) for run, one in found)
    return CapacityAnswer(run, results, positions_of(run.config))


def gpu_estimate(one: Estimate) -> GpuEstimate:
    """Return the planner's estimate of one run on one GPU."""
    profile = one.profile
    return GpuEstimate(
        gpu=str(profile.run.gpu),
        verdict=one.verdict,
        out_of_memory_fraction=one.out_of_memory_fraction,
        safe_micro_batch_size=one.capacity.safe_value,
        device_memory_bytes=profile.device_memory_bytes.total,
        capacity_bytes=profile.capacity_bytes,
        micro_batch_size=one.run.micro_batch_size,
        max_micro_batch_size=one.capacity.value,
        profile=profile,
        bottleneck=profile.bottleneck,
        quote=None if one.verdict == WILL_NOT_FIT else one.quote,
        is_at_limit=one.capacity.at_limit,
        managed=one.quote.managed,
        offers=one.quote.offers if one.verdict == WILL_NOT_FIT else (),
        moments=one.moments,
        shortage=one.shortage,
        rollout=one.rollout,
        served=served_answer(profile),
    )


def served_answer(profile: Profile) -> ServedAnswer | None:
    """Return what users of a service wait for and get; None where nothing is served."""
    if profile.run.phase not in SERVING:
        return None
    from finegauge.prediction.serving import served_outcomes

    found, load = served_outcomes(profile), profile.observations.get("serving", {})
    if not found:
        return None
    waits = {
        name: load[name] for name in ("ttft_s", "time_per_output_token_s", "latency_s") if load.get(name)
    }
    return ServedAnswer(
        ttft_s=found["ttft_s"],
        time_per_output_token_s=found.get("time_per_output_token_s"),
        output_tokens_per_s=found["output_tokens_per_s"],
        joules_per_token=found.get("joules_per_token"),
        sequences_at_once=profile.observations.get("engine", {}).get("sequences_at_once"),
        requests_per_s=load.get("requests_per_s"),
        in_flight=load.get("in_flight"),
        waits_s=waits or None,
    )


def explained(one: GpuEstimate) -> GpuExplanation:
    """Return an estimate with its formulas and with what ranks send each other."""
    said = one.profile.explanation
    more = {"formulas": said.formulas, "exchanged": tuple(said.exchanged)}
    return GpuExplanation(**one._asdict() | more)


def safe_micro_batch_size(profile: Profile) -> int:
    """Return the largest micro-batch up to the run's that is not even risky; 0 if none is known."""
    if not profile.step_time_s.total:
        return 0
    return max_micro_batch_size(profile.run, needed, limit=profile.run.micro_batch_size).safe_value


def gpu_verdict(one: GpuEstimate) -> GpuVerdict:
    """Return whether the run fits, of all that is known."""
    return GpuVerdict(**same(GpuVerdict, one))


def gpu_capacity(gpu: str | None, capacity: Capacity) -> GpuCapacity:
    """Return where memory ends on one GPU."""
    below, above = capacity.profile, capacity.first_that_fails
    known = below or above
    return GpuCapacity(
        gpu=gpu,
        **same(GpuCapacity, capacity),
        device_memory_bytes=below.device_memory_bytes.total if below else None,
        step_time_s=below.step_time_s.total if below else None,
        tokens_per_s=below.tokens_per_s if below else None,
        samples_per_s=below.samples_per_s if below else None,
        first_that_fails_bytes=above.device_memory_bytes.total if above else None,
        capacity_bytes=known.capacity_bytes if known else None,
    )
