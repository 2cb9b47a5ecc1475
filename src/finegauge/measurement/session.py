"""Inside the child: build what the run says, take its steps pass by pass, and put the Profile together."""

import gc
import math
import os
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from statistics import median, quantiles
from time import process_time
from typing import Any, NamedTuple

import torch

from finegauge.errors import FineGaugeError, InputError
from finegauge.measurement.device import (
    capacity_bytes,
    device_name,
    fingerprint,
    lift_limit,
    limit_memory,
    model_flops,
    out_of_memory_reason,
    peak_of,
    peaks_of,
    warm,
)
from finegauge.measurement.instruments.memory_meter import resident_bytes
from finegauge.measurement.instruments.stage_clock import NoClock, StageClock
from finegauge.measurement.options import Options
from finegauge.measurement.subject import Clock, Phase, StepFacts
from finegauge.profile import Breakdown, Profile, Source
from finegauge.run.run import Run
from finegauge.store.document import profile_document, run_of


def refusal(
    facts: Sequence[StepFacts],
    *,
    first_step: int = 1,
    step_times_s: Sequence[float] = (),
    mfu_fraction: float = 0.0,
    throttled: Sequence[str] = (),
) -> str:
    """Return why the measured steps are refused as data; "" where they are not.

    Args:
        facts: Of the steps.
        first_step: The number of the first of them, for the message.
        step_times_s: Of the measured steps.
        mfu_fraction: Model FLOPs over the device's peak; 0 where the peak is not known.
        throttled: Why the device ran slower than it can, in the driver's words.
    """
    for number, fact in enumerate(facts, first_step):
        if fact.loss is not None and not math.isfinite(fact.loss):
            return f"the loss of step {number} is {fact.loss}: check the weights and the learning rate"
        if fact.tokens <= 0:
            return f"step {number} worked on no tokens: check the data set and seq_len"
    if any(seconds <= 0 for seconds in step_times_s):
        return "a step took no time: the clock is broken"
    if throttled:
        return f"the device was throttled ({', '.join(throttled)}): measure again when it is cool and idle"
    if mfu_fraction > 1.0:
        return (
            f"the step would use {100 * mfu_fraction:.0f} % of the device's peak FLOP/s, which cannot be: "
            "check the GPU's figures and the clock"
        )
    return ""


COMPARED_STEPS = 10  # under the layer clock and without it, in turn
Tell = Callable[[str, int, int], None]  # what is being done, how much of it is done, of how much


class RefusedError(Exception):
    """A step whose result is no data; the message says why."""


class Trial:
    """A phase under measurement: takes its steps, and refuses those that are no data."""

    def __init__(self, phase: Phase, options: Options, tell: Tell) -> None:
        """Take steps of `phase`; `tell` is told of each."""
        self.phase, self.options, self.tell = phase, options, tell
        self.facts: list[StepFacts] = []  # of every step that was taken
        self.device = phase.subject.device

    def step(self, clock: Clock) -> StepFacts:
        """Take one step.

        Raises: RefusedError where its loss is no number, or it worked on no tokens.
        """
        facts = self.phase.step(clock)
        self.facts.append(facts)
        if reason := refusal([facts], first_step=len(self.facts)):
            raise RefusedError(reason)
        return facts

    def steps(self, what: str, count: int, clock: Clock) -> Iterator[StepFacts]:
        """Take `count` steps, telling of each."""
        for number in range(count):
            self.tell(what, number, count)
            yield self.step(clock)
        self.tell(what, count, count)

    @property
    def models(self) -> list[Any]:
        """Return every model in memory."""
        return list(self.phase.models.values()) or [self.phase.subject.model]


class HostShare:
    """What the host gave to the process while it was watched."""

    processor_s = 0.0  # of all threads
    waited_s = 0.0  # in which the main thread could have run and another program's did


class Timing(NamedTuple):
    """What the timing pass found."""

    steps: tuple[Breakdown, ...]  # the seconds of every step by stage
    facts: tuple[StepFacts, ...]
    energy: Mapping[str, Any] | None  # the energy meter's document; None where it was not asked for
    throttled: tuple[str, ...]  # why the device ran slower than it can
    host: HostShare

    @property
    def step_times_s(self) -> tuple[float, ...]:
        """Return the seconds of every step."""
        return tuple(step.total for step in self.steps)

    @property
    def median_s(self) -> Breakdown:
        """Return the median step by stage."""
        return median_of(self.steps)

    def spread(self) -> dict[str, float]:
        """Return how far the steps lie apart."""
        times = self.step_times_s
        tenths = quantiles(times, n=10, method="inclusive") if len(times) > 1 else [times[0]] * 9
        middle = median(times)
        return {
            "steps": len(times),
            "median_s": middle,
            "min_s": min(times),
            "max_s": max(times),
            "p10_s": tenths[0],
            "p90_s": tenths[-1],
            "spread_fraction": (tenths[-1] - tenths[0]) / middle if middle else 0.0,
            "processor_s": self.host.processor_s / len(times),
            "waited_fraction": self.host.waited_s / sum(times) if sum(times) else 0.0,
        }


def warm_up(trial: Trial) -> None:
    """Take the steps that are discarded: they allocate optimizer state and fill caches."""
    for _ in trial.steps("warm-up", trial.options.warmup_steps, NoClock()):
        pass


def timing(trial: Trial) -> Timing:
    """Time steps by stage with nothing else on, but for the energy meter, which only reads counters."""
    before = len(trial.facts)
    energy: dict[str, Any] | None = None
    with (
        StageClock(trial.device, *trial.models) as clock,
        _throttle_watch(trial) as throttled,
        _energy_meter(trial) as meter,
        _host_share() as host,
    ):
        _clocked(trial, "timing", clock)
    if meter is not None:
        energy = {**meter.reading.to_json(), "steps": len(clock.steps)}
    return Timing(tuple(clock.steps), tuple(trial.facts[before:]), energy, tuple(throttled()), host)


def layers(trial: Trial) -> tuple[tuple[Breakdown, ...], dict[str, Any]]:
    """Return the seconds of steps by stage, part and operator, and what the layer clock costs.

    The first of them take turns with steps under the stage clock alone, so that whatever else
    the machine does meets both; the cost is the median ratio of neighbours.
    """
    from finegauge.measurement.instruments.layer_clock import LayerClock

    plain = StageClock(trial.device, *trial.models)
    clock = LayerClock(trial.phase.subject, *trial.models)
    count = trial.options.steps
    for number in range(count):
        trial.tell("layers", number, count)
        for each in (plain, clock) if number < COMPARED_STEPS else (clock,):
            with each, each.step():
                trial.step(each)
    trial.tell("layers", count, count)
    ratios = [own.total / bare.total for own, bare in zip(clock.steps, plain.steps, strict=False)]
    return tuple(clock.steps), {"overhead_ratio": median(ratios), "compared_steps": len(ratios)}


def _clocked(trial: Trial, what: str, clock: Any) -> None:
    """Take the measured steps, each as one step of `clock`."""
    count = trial.options.steps
    for number in range(count):
        trial.tell(what, number, count)
        with clock.step():
            trial.step(clock)
    trial.tell(what, count, count)


@contextmanager
def _host_share() -> Iterator[HostShare]:
    """Watch how much of the processor the process gets."""
    found = HostShare()
    processor_s, waited_s = process_time(), _waited_s()
    yield found
    found.processor_s, found.waited_s = process_time() - processor_s, _waited_s() - waited_s


def _waited_s() -> float:
    """Return the seconds for which this thread has waited for a processor; 0 where nobody counts them."""
    with (
        suppress(OSError, IndexError, ValueError),
        open("/proc/thread-self/schedstat", encoding="ascii") as text,
    ):
        return int(text.read().split()[1]) / 1e9
    return 0.0


@contextmanager
def _throttle_watch(trial: Trial) -> Iterator[Callable[[], Sequence[str]]]:
    """Watch why a GPU runs slower than it can."""
    if trial.device.type != "cuda":
        yield tuple
        return
    from finegauge.measurement.instruments.counters import ThrottleWatch

    with ThrottleWatch(trial.device) as watch:
        yield lambda: watch.reasons


@contextmanager
def _energy_meter(trial: Trial) -> Iterator[Any]:
    """Yield the energy meter, already running; None where it was not asked for."""
    if not trial.options.energy:
        yield None
        return
    from finegauge.measurement.instruments.counters import EnergyMeter

    with EnergyMeter(trial.device) as meter:
        yield meter


def median_of(steps: Sequence[Breakdown]) -> Breakdown:
    """Return the median step: the median of every part, scaled to add up to the median of the totals."""
    paths = dict.fromkeys(path for step in steps for path in step.parts)
    parts = {path: median(step.parts.get(path, 0.0) for step in steps) for path in paths}
    whole, total = sum(parts.values()), median(step.total for step in steps)
    return Breakdown({path: value * total / whole for path, value in parts.items() if value} if whole else {})


def shared_out(stages: Breakdown, finer: Breakdown) -> Breakdown:
    """Return `stages`, each divided in the proportions that `finer` shows within it.

    A stage that `finer` does not know stays whole.
    """
    parts: dict[tuple[str, ...], float] = {}
    for path, seconds in stages.parts.items():
        within = finer.under(path[0])
        known = within.total
        if known <= 0:
            parts[path] = seconds
            continue
        for rest, value in within.parts.items():
            parts[(path[0], *rest)] = seconds * value / known
    return Breakdown(parts)


Measured = Callable[[Run, Options, Tell], Profile]


def answer(trial: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    """Return the document of the profile of one trial: a run and options as JSON values."""
    run, options = run_of(trial["run"]), Options(**trial["options"])
    gc.enable()
    profile = outcome(run, options, tell)
    lift_limit()
    return profile_document(profile)


def outcome(run: Run, options: Options, tell: Tell, measured: Measured | None = None) -> Profile:
    """Return the profile of `run`, measured, or with the reason why there is none.

    Args:
        run: The question.
        options: How it is measured.
        tell: Told how far it is.
        measured: Who measures in this process; None: this one, or processes of their own for several GPUs.
    """
    try:
        device = device_of(options)
        if measured is None and run.num_gpus > 1:
            from finegauge.measurement.ranks.launch import over_ranks

            return over_ranks(run, options, tell)
        warm(run)
        limit_memory(options.memory_limit_bytes, device)
        return (measured or take_apart)(run, options, tell)
    except RefusedError as error:
        return _without(run, options, "failed", str(error))
    except FineGaugeError as error:
        return _without(run, options, "unsupported", str(error))
    except Exception as error:
        lift_limit()
        traceback.print_exc()
        if reason := out_of_memory_reason(error, limited=options.memory_limit_bytes > 0):
            return _without(run, options, "out_of_memory", reason)
        return _without(run, options, "failed", f"{type(error).__name__}: {_one_line(error)}")


def take_apart(run: Run, options: Options, tell: Tell) -> Profile:
    """Return the measured profile of `run`.

    Raises: whatever the model's own code raises; RefusedError for steps that are no data.
    """
    from finegauge.measurement.phases.choice import phase_of

    device = device_of(options)
    _check_asked(run, options)
    resting_bytes = resident_bytes()
    tell("building", 0, 1)
    phase = phase_of(run, options, device)
    tell("building", 1, 1)
    trial = Trial(phase, options, tell)
    warm_up(trial)
    timed = timing(trial)
    step, observations = timed.median_s, observations_of(trial, timed)
    if options.layers:
        step = _with_layers(trial, timed, observations)
    memory = _memory(trial, resting_bytes, observations)
    _instruments(trial, run, step.total, observations)
    flops, peak = model_flops(run), peak_of(run, device)
    profile = Profile(
        run=run,
        source=source_of(options),
        step_time_s=step,
        step_times_s=timed.step_times_s,
        step_energy_j=energy_of(timed),
        step_flops=flops,
        step_tokens=_mean([facts.tokens for facts in timed.facts]),
        step_sequences=_mean([facts.sequences for facts in timed.facts]),
        host_bound_fraction=observations.get("kernels", {}).get("host_bound_fraction", 0.0),
        peak_flops_per_s=peak.flops_per_s,
        capacity_bytes=capacity_bytes(options, device),
        fingerprint=fingerprint(device),
        observations=observations,
        **memory,
    )
    if reason := refusal(
        timed.facts,
        step_times_s=timed.step_times_s,
        mfu_fraction=profile.mfu_fraction if peak.from_datasheet else 0.0,
        throttled=timed.throttled,
    ):
        raise RefusedError(reason)
    return profile


def device_of(options: Options) -> torch.device:
    """Return the device, with as many threads as asked for."""
    if options.device == "cuda" and not torch.cuda.is_available():
        raise FineGaugeError("--device cuda: PyTorch finds no GPU here; use --device cpu.")
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    return torch.device(options.device)


def _check_asked(run: Run, options: Options) -> None:
    """Refuse a trace that cannot be written and tasks that cannot be asked, before anything is built."""
    if options.trace_path:
        try:
            os.makedirs(os.path.dirname(options.trace_path) or ".", exist_ok=True)
            with open(options.trace_path, "ab"):
                pass
        except OSError as error:
            raise InputError(f"--trace {options.trace_path} cannot be written: {error.strerror}.") from None
    if options.tasks:
        from finegauge.measurement.evaluation.scores import task_manager, tokenizer_folder

        tokenizer_folder(run)
        task_manager(options.tasks, options.task_folder or None)


def observations_of(trial: Trial, timed: Timing) -> dict[str, Any]:
    """Return what the timing pass saw beside the seconds."""
    found: dict[str, Any] = {
        "timing": {**timed.spread(), "warmup_steps": trial.options.warmup_steps},
        "steps": {
            "losses": [facts.loss for facts in timed.facts],
            "real_tokens": _mean([facts.real_tokens for facts in timed.facts]),
            "details": _details(timed),
        },
        "notes": list(trial.phase.subject.notes),
    }
    if timed.energy is not None:
        found["energy"] = timed.energy
    return found


def _details(timed: Timing) -> dict[str, float]:
    """Return the mean of whatever else the steps report: time to the first token, rewards."""
    names = dict.fromkeys(name for facts in timed.facts for name in facts.details)
    return {name: _mean([f.details[name] for f in timed.facts if name in f.details]) for name in names}


def _with_layers(trial: Trial, timed: Timing, observations: dict[str, Any]) -> Breakdown:
    """Return the median step by stage, part and operator."""
    steps, seen = layers(trial)
    finer, plain = median_of(steps), timed.median_s
    observations["layers"] = {**seen, "steps": len(steps)}
    return shared_out(plain, finer)


def _memory(trial: Trial, resting_bytes: float, observations: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of the profile that the memory meter fills, from one more step."""
    if not trial.options.memory:
        return {}
    from finegauge.measurement.instruments.memory_meter import measure_memory

    trial.tell("memory", 0, 1)
    reading = measure_memory(trial.phase, trial.device, resting_bytes=resting_bytes)
    trial.tell("memory", 1, 1)
    observations["memory"] = reading.document
    return {
        "peak_memory_bytes": reading.peak_memory_bytes,
        "device_memory_bytes": reading.device_memory_bytes,
        "phase_memory_bytes": reading.phase_memory_bytes,
        "peak_phase": reading.peak_phase,
        "cached_bytes": reading.cached_bytes,
    }


def _instruments(trial: Trial, run: Run, step_s: float, observations: dict[str, Any]) -> None:
    """Add what the instruments that were asked for see, each in steps of its own."""
    options, phase, device = trial.options, trial.phase, trial.device
    if options.kernels or options.trace_path:
        from finegauge.measurement.instruments.kernel_table import watch_kernels
        from finegauge.measurement.instruments.module_roles import roles_of

        trial.tell("kernels", 0, 1)
        observations["kernels"] = watch_kernels(
            phase, device=device, steps=min(options.steps, 3), trace_path=options.trace_path,
            peaks=peaks_of(device), unwatched_step_s=step_s, role_of=roles_of(phase.subject.model),
        )  # fmt: skip
        if device.type == "cuda":
            from finegauge.measurement.instruments.gpu_profilers import watch_utilisation

            observations["gpm"] = watch_utilisation(phase, device=device)
        trial.tell("kernels", 1, 1)
    if options.experts:
        from finegauge.measurement.instruments.router_probe import probe

        trial.tell("experts", 0, 1)
        observations["experts"] = probe(phase)
        trial.tell("experts", 1, 1)
    if options.ncu:
        from finegauge.measurement.instruments.gpu_profilers import layer_utilisation

        observations["ncu"] = layer_utilisation(run, options)
    if options.tasks:
        from finegauge.measurement.evaluation.scores import harness_scores, tokenizer_folder

        trial.tell("tasks", 0, 1)
        observations["tasks"] = harness_scores(
            phase.subject, options.tasks, tokenizer=tokenizer_folder(run),
            folder=options.task_folder or None, limit=options.task_limit or None,
        )  # fmt: skip
        trial.tell("tasks", 1, 1)
    if options.evaluate:
        from finegauge.measurement.evaluation.epochs import evaluate

        observations["evaluation"] = evaluate(phase, options, trial.tell)  # last: it changes the weights


def energy_of(timed: Timing) -> Breakdown:
    """Return the joules of a step; empty where no meter read any."""
    joules = timed.energy.get("energy_j") if timed.energy else None
    return Breakdown({("device",): joules / len(timed.steps)}) if joules else Breakdown({})


def source_of(options: Options) -> Source:
    """Return who says so."""
    return Source(
        kind="measured",
        name=f"this machine, {device_name(torch.device(options.device))}",
        assumptions=(f"steps: {options.warmup_steps} discarded as warm-up, {options.steps} measured",),
    )


def _without(run: Run, options: Options, what: str, reason: str) -> Profile:
    """Return the profile of a trial that brought no data."""
    return Profile(
        run=run, source=Source("measured", f"this machine, {options.device}"), outcome=what, reason=reason,
        capacity_bytes=options.memory_limit_bytes, fingerprint=fingerprint(torch.device("cpu")),
    )  # fmt: skip


def _one_line(error: BaseException) -> str:
    """Return what an error says, in one line and without a full stop."""
    return " ".join(str(error).split())[:300].rstrip(".") or "no message"


def _mean(values: list[float]) -> float:
    """Return the mean; 0 of nothing."""
    return sum(values) / len(values) if values else 0.0
