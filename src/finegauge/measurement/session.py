"""Inside the child: build what the run says, take its steps pass by pass, and put the Profile together.

    warm-up    discarded
    timing     the stage clock alone: the step's seconds, median and spread
    layers     the layer clock: its proportions share out the stages of the timing pass
    memory     one step under the memory meter
    kernels    steps under the profiler
    experts    the router probe, before tuning and after it
    tasks      lm-evaluation-harness
    evaluate   epochs of training with the accuracy before and after each

Each pass takes its own steps with one instrument, so that none disturbs another. Every way to fail is an
outcome: memory that runs out, results that are no data, questions that the installed libraries have no
answer to.
"""

import gc
import os
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from statistics import fmean, median, quantiles
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
    peak_flops_per_s,
    peaks_of,
    warm,
)
from finegauge.measurement.instruments.clocks import LayerClock, NoClock, StageClock
from finegauge.measurement.instruments.counters import EnergyMeter, ThrottleWatch
from finegauge.measurement.instruments.gpu_profilers import layer_utilisation, watch_utilisation
from finegauge.measurement.instruments.kernel_table import watch_kernels
from finegauge.measurement.instruments.memory_meter import measure_memory, resident_bytes
from finegauge.measurement.instruments.module_roles import roles_of
from finegauge.measurement.instruments.router_probe import probe
from finegauge.measurement.options import Options
from finegauge.measurement.subject import Clock, Phase, StepFacts, refusal
from finegauge.profile import Breakdown, Profile, Source
from finegauge.progress import Heard, Progress, told
from finegauge.run.run import Run
from finegauge.store.document import profile_document, run_of

COMPARED_STEPS = 10  # under the layer clock and without it, in turn
Backend = Callable[[Run, Options, Heard], Profile]


class RefusedError(Exception):
    """A step whose result is no data; the message says why."""


def answer(trial: Mapping[str, Any], heard: Heard, backend: Backend | None = None) -> dict[str, Any]:
    """Return the document of the profile of one trial: a run and options as JSON values."""
    run, options = run_of(trial["run"]), Options(**trial["options"])
    gc.enable()
    profile = outcome(run, options, heard, backend)
    lift_limit()
    return profile_document(profile)


def outcome(run: Run, options: Options, heard: Heard, backend: Backend | None = None) -> Profile:
    """Return the profile of `run` by `backend` (by default this process), or one with the reason why not."""
    try:
        return (backend or measured_here)(run, options, heard)
    except RefusedError as error:
        return _without(run, options, "failed", str(error))
    except FineGaugeError as error:
        return _without(run, options, "unsupported", str(error))
    except Exception as error:
        lift_limit()
        traceback.print_exc()
        if reason := out_of_memory_reason(error, limited=options.memory_limit_bytes > 0):
            return _without(run, options, "out_of_memory", reason)
        said = " ".join(str(error).split())[:300].rstrip(".") or "no message"
        return _without(run, options, "failed", f"{type(error).__name__}: {said}")


def _without(run: Run, options: Options, what: str, reason: str) -> Profile:
    return Profile(
        run=run, source=Source("measured", f"this machine, {options.device}"), outcome=what, reason=reason,
        capacity_bytes=options.memory_limit_bytes, fingerprint=fingerprint(torch.device("cpu")),
    )  # fmt: skip


class Trial:
    """A phase under measurement: takes its steps, and refuses those that are no data."""

    def __init__(self, phase: Phase, options: Options, heard: Heard) -> None:
        self.phase, self.options, self.heard = phase, options, heard
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

    @property
    def models(self) -> list[Any]:
        """Return every model in memory."""
        return list(self.phase.models.values()) or [self.phase.subject.model]


@contextmanager
def telling(heard: Heard, what: str) -> Iterator[None]:
    """Tell that `what` begins and is done."""
    heard(Progress(what, 0, 1))
    yield
    heard(Progress(what, 1, 1))


class Timing(NamedTuple):
    """What the timing pass found."""

    steps: tuple[Breakdown, ...]  # the seconds of every step by stage
    facts: tuple[StepFacts, ...]
    energy: Mapping[str, Any] | None  # the energy meter's document; None where it was not asked for
    throttled: tuple[str, ...]  # why the device ran slower than it can
    notes: tuple[str, ...]  # of its clocks, where what was measured still counts
    processor_s: float  # of all threads
    waited_s: float  # in which the main thread could have run and another program's did

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
            "processor_s": self.processor_s / len(times),
            "waited_fraction": self.waited_s / sum(times) if sum(times) else 0.0,
        }


def warm_up(trial: Trial) -> None:
    """Take the steps that are discarded: they allocate optimizer state and fill caches."""
    for _ in told(trial.heard, "warm-up", trial.options.warmup_steps):
        trial.step(NoClock())


def timing(trial: Trial) -> Timing:
    """Time steps by stage with nothing else on, but for the energy meter, which only reads counters."""
    before, device = len(trial.facts), trial.device
    with (
        StageClock(device, *trial.models) as clock,
        ThrottleWatch(device) if device.type == "cuda" else nullcontext() as watch,
        EnergyMeter(device) if trial.options.energy else nullcontext() as meter,
    ):
        processor_s, waited_s = process_time(), _waited_s()
        for _ in told(trial.heard, "timing", trial.options.steps):
            with clock.step():
                trial.step(clock)
        processor_s, waited_s = process_time() - processor_s, _waited_s() - waited_s
    energy = {**meter.reading._asdict(), "steps": len(clock.steps)} if meter is not None else None
    throttled, notes = (watch.reasons, watch.notes) if watch is not None else ((), ())
    facts = tuple(trial.facts[before:])
    return Timing(tuple(clock.steps), facts, energy, throttled, notes, processor_s, waited_s)


def layers(trial: Trial) -> tuple[tuple[Breakdown, ...], dict[str, Any]]:
    """Return the seconds of steps by stage, part and operator, and what the layer clock costs.

    The first of them take turns with steps under the stage clock alone, so that whatever else
    the machine does meets both; the cost is the median ratio of neighbours.
    """
    plain = StageClock(trial.device, *trial.models)
    clock = LayerClock(trial.phase.subject, *trial.models)
    for number in told(trial.heard, "layers", trial.options.steps):
        for each in (plain, clock) if number < COMPARED_STEPS else (clock,):
            with each, each.step():
                trial.step(each)
    ratios = [own.total / bare.total for own, bare in zip(clock.steps, plain.steps, strict=False)]
    return tuple(clock.steps), {"overhead_ratio": median(ratios), "compared_steps": len(ratios)}


def _waited_s() -> float:
    """Return the seconds for which this thread has waited for a processor; 0: not known."""
    with (
        suppress(OSError, IndexError, ValueError),
        open("/proc/thread-self/schedstat", encoding="ascii") as text,
    ):
        return int(text.read().split()[1]) / 1e9
    return 0.0


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


def measured_here(run: Run, options: Options, heard: Heard) -> Profile:
    """Return the profile of `run`, measured in this process.

    Raises: whatever the model's own code raises; RefusedError for steps that are no data.
    """
    from finegauge.measurement.phases.choice import phase_of

    device = prepared(run, options)
    _check_requests(run, options)
    moments = []
    if options.moments:
        from finegauge.measurement.job_moments import watch_moments
        from finegauge.measurement.phases.training import Placement

        moments.append(watch_moments(run, options, Placement, heard))
    resting_bytes = resident_bytes()
    with telling(heard, "building"):
        phase = phase_of(run, options, device)
    trial = Trial(phase, options, heard)
    warm_up(trial)
    timed = timing(trial)
    step, observations = timed.median_s, observations_of(trial, timed)
    if moments:
        observations["moments"] = moments
    if options.layers:
        steps, seen = layers(trial)
        observations["layers"] = {**seen, "steps": len(steps)}
        step = shared_out(step, median_of(steps))
    memory = {}
    if options.memory:
        with telling(heard, "memory"):
            reading = measure_memory(phase, device, resting_bytes=resting_bytes)
        observations["memory"], memory = reading.document, reading.fields
    _instruments(trial, run, step.total, observations)
    profile = profile_of(
        run, trial, timed, observations, step_time_s=step, step_flops=model_flops(run),
        host_bound_fraction=observations.get("kernels", {}).get("host_bound_fraction", 0.0), **memory,
    )  # fmt: skip
    if reason := refusal(
        timed.facts,
        step_times_s=timed.step_times_s,
        # a CPU's peak is of this machine's own readings, which a step may by chance exceed
        mfu_fraction=profile.mfu_fraction if device.type == "cuda" else 0.0,
        throttled=timed.throttled,
    ):
        raise RefusedError(reason)
    return profile


def device_of(options: Options) -> torch.device:
    """Return the device, with as many threads as requested."""
    if options.device == "cuda" and not torch.cuda.is_available():
        raise FineGaugeError("--device cuda: PyTorch finds no GPU here; use --device cpu.")
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    return torch.device(options.device)


def prepared(run: Run, options: Options) -> torch.device:
    """Return the device, with libraries loaded and the limit of memory set."""
    device = device_of(options)
    warm(run)
    limit_memory(options.memory_limit_bytes, device)
    return device


def _check_requests(run: Run, options: Options) -> None:
    """Refuse a trace that cannot be written and tasks that cannot be asked, before anything is built."""
    if options.trace_path:
        try:
            os.makedirs(os.path.dirname(options.trace_path) or ".", exist_ok=True)
            with open(options.trace_path, "ab"):
                pass
        except OSError as error:
            raise InputError(f"--trace {options.trace_path} cannot be written: {error.strerror}.") from None
    if options.tasks:
        from finegauge.measurement.evaluation import task_manager, tokenizer_folder

        tokenizer_folder(run)
        task_manager(options.tasks, options.task_folder or None)


def observations_of(trial: Trial, timed: Timing) -> dict[str, Any]:
    """Return what the timing pass saw beside the seconds."""
    names = dict.fromkeys(name for facts in timed.facts for name in facts.details)
    found: dict[str, Any] = {
        "timing": {**timed.spread(), "warmup_steps": trial.options.warmup_steps},
        "steps": {
            "losses": [facts.loss for facts in timed.facts],
            "real_tokens": fmean(facts.real_tokens for facts in timed.facts),
            "details": {
                name: fmean(facts.details[name] for facts in timed.facts if name in facts.details)
                for name in names
            },
        },
        "notes": [*trial.phase.subject.notes, *(f"The GPU was {note}." for note in timed.notes)],
    }
    if timed.energy is not None:
        found["energy"] = timed.energy
    return found


def profile_of(run: Run, trial: Trial, timed: Timing, observations: dict[str, Any], **fields: Any) -> Profile:
    """Return the profile of timed steps, with `fields` in addition or in place."""
    options, joules = trial.options, (timed.energy or {}).get("energy_j")
    found: dict[str, Any] = {
        "run": run,
        "source": Source(
            kind="measured",
            name=f"this machine, {device_name(torch.device(options.device))}",
            assumptions=(f"steps: {options.warmup_steps} discarded as warm-up, {options.steps} measured",),
        ),
        "step_time_s": timed.median_s,
        "step_times_s": timed.step_times_s,
        "step_energy_j": Breakdown({("device",): joules / len(timed.steps)} if joules else {}),
        "step_tokens": fmean(facts.tokens for facts in timed.facts),
        "step_sequences": fmean(facts.sequences for facts in timed.facts),
        "peak_flops_per_s": peak_flops_per_s(run, trial.device),
        "capacity_bytes": capacity_bytes(options, trial.device),
        "fingerprint": fingerprint(trial.device),
        "observations": observations,
    }
    return Profile(**{**found, **fields})


def _instruments(trial: Trial, run: Run, step_s: float, observations: dict[str, Any]) -> None:
    options, phase, device = trial.options, trial.phase, trial.device
    if options.kernels or options.trace_path:
        with telling(trial.heard, "kernels"):
            observations["kernels"] = watch_kernels(
                phase, device=device, steps=min(options.steps, 3), trace_path=options.trace_path,
                peaks=peaks_of(device), unwatched_step_s=step_s, role_of=roles_of(phase.subject.model),
            )  # fmt: skip
            if device.type == "cuda":
                observations["gpm"] = watch_utilisation(phase, device=device)
    if options.experts:
        with telling(trial.heard, "experts"):
            observations["experts"] = probe(phase)
    if options.ncu:
        observations["ncu"] = layer_utilisation(run, options)
    if options.tasks:
        from finegauge.measurement.evaluation import harness_scores, tokenizer_folder

        with telling(trial.heard, "tasks"):
            observations["tasks"] = harness_scores(
                phase.subject, options.tasks, tokenizer=tokenizer_folder(run),
                folder=options.task_folder or None, limit=options.task_limit or None,
            )  # fmt: skip
    if options.evaluate:
        from finegauge.measurement.evaluation import evaluate

        observations["evaluation"] = evaluate(phase, options, trial.heard)  # last: it changes the weights
