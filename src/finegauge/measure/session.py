"""Inside the child: build what the run says, take its steps pass by pass, and put the Profile together.

    warm-up    discarded
    timing     the stage clock alone: the step's seconds, median and spread
    layers     the layer clock: its proportions share out the stages of the timing pass
    memory     one step under the memory meter
    kernels    steps under the profiler
    experts    the router probe, before tuning and after it
    tasks      lm-evaluation-harness
    evaluate   epochs of training with the accuracy before and after each

Every way to fail is an outcome: memory that runs out, results that are no data, questions
that the installed libraries have no answer to.
"""

import gc
import os
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import torch

from finegauge.errors import FineGaugeError, InputError
from finegauge.measure.fingerprint import device_name, fingerprint
from finegauge.measure.instruments.resident import resident_bytes
from finegauge.measure.limits import lift_limit, limit_memory, out_of_memory_reason, warm
from finegauge.measure.options import Options
from finegauge.measure.passes import (
    RefusedError,
    Tell,
    Timing,
    Trial,
    layers,
    median_of,
    shared_out,
    timing,
    warm_up,
)
from finegauge.measure.rates import capacity_bytes, model_flops, peak_of, peaks_of
from finegauge.measure.refusal import refusal
from finegauge.profile import Breakdown, Profile, Source
from finegauge.store.document import profile_document, run_of
from finegauge.workload.run import Run

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
            from finegauge.measure.ranks.launch import over_ranks

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
    from finegauge.measure.phases import phase_of

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
        from finegauge.measure.evaluation.harness import task_manager, tokenizer_folder

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
    from finegauge.measure.instruments.memory_meter import measure_memory

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
        from finegauge.measure.instruments.kernel_table import watch_kernels
        from finegauge.measure.instruments.roles import roles_of

        trial.tell("kernels", 0, 1)
        observations["kernels"] = watch_kernels(
            phase, device=device, steps=min(options.steps, 3), trace_path=options.trace_path,
            peaks=peaks_of(device), unwatched_step_s=step_s, role_of=roles_of(phase.subject.model),
        )  # fmt: skip
        if device.type == "cuda":
            from finegauge.measure.instruments.gpm import watch_utilisation

            observations["gpm"] = watch_utilisation(phase, device=device)
        trial.tell("kernels", 1, 1)
    if options.experts:
        from finegauge.measure.instruments.router_probe import probe

        trial.tell("experts", 0, 1)
        observations["experts"] = probe(phase)
        trial.tell("experts", 1, 1)
    if options.ncu:
        from finegauge.measure.instruments.ncu import layer_utilisation

        observations["ncu"] = layer_utilisation(run, options)
    if options.tasks:
        from finegauge.measure.evaluation.harness import harness_scores, tokenizer_folder

        trial.tell("tasks", 0, 1)
        observations["tasks"] = harness_scores(
            phase.subject, options.tasks, tokenizer=tokenizer_folder(run),
            folder=options.task_folder or None, limit=options.task_limit or None,
        )  # fmt: skip
        trial.tell("tasks", 1, 1)
    if options.evaluate:
        from finegauge.measure.evaluation.epochs import evaluate

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
