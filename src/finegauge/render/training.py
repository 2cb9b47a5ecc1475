"""What a training that is under way is told: at its start the prediction, at its end what was measured."""

from typing import TYPE_CHECKING

from finegauge.prediction.predictor import Prediction
from finegauge.prediction.uncertainty import FITS, verdict
from finegauge.profile import Profile
from finegauge.render import number_format as fmt
from finegauge.render.measurement import headline
from finegauge.render.report import Toned
from finegauge.render.run_parts import TONES, WORDS, subject
from finegauge.render.terminal import paint, painted, wrapped
from finegauge.units import HOUR_S, gib

if TYPE_CHECKING:
    from finegauge.run.run import Run

TITLE = "FineGauge"
INDENT = "  "


def start_lines(
    run: "Run",
    prediction: Prediction,
    *,
    device: str,
    num_steps: int | None,
    usd_per_h: float | None,
    price_said: str,
    has_evaluation: bool = False,
) -> list[str]:
    """Return what is predicted for a run that is about to start.

    Args:
        run: As the trainer holds it.
        prediction: For this machine.
        device: What this machine's device calls itself.
        num_steps: From start to end; None where nobody knows.
        usd_per_h: Price of an hour of all machines; None where it is not known.
        price_said: Who says so.
        has_evaluation: Whether the trainer evaluates in between, which is not predicted.
    """
    about = subject(run).replace(run.dataset or "\0", "data in memory")
    lines = [paint(f"{TITLE}: predicted for this run", "bold"), about]
    profile = prediction.profile
    if profile is not None:
        lines += _verdict_lines(profile, device)
        lines += _time_lines(profile, num_steps, usd_per_h)
    if prediction.missing:
        lines.append(prediction.missing)
    if usd_per_h is not None:
        lines.append(f"${usd_per_h:.4g} an hour, {price_said}.")
    else:
        lines.append("No price is known: state usd_per_hour, and the cost is logged too.")
    if has_evaluation:
        lines.append("Evaluation comes on top.")
    lines += [paint(warning, "yellow") for warning in run.warnings]
    return [lines[0], *(INDENT + part for line in lines[1:] for part in wrapped(line, indent="  "))]


def nothing_predicted_lines(reason: str) -> list[str]:
    """Return that a run is not predicted, and why; its figures are logged all the same."""
    said = f"{TITLE}: nothing is predicted and no profile is kept: {reason.rstrip('.')}."
    return wrapped(paint(said, "yellow"), indent=INDENT)


def end_lines(measured: Profile, predicted: Profile | None, store: str) -> list[str]:
    """Return what was measured, beside what was predicted, and where it is kept."""
    lines = [f"{TITLE}: {painted(headline(measured))}"]
    step_s = measured.step_time_s.total
    if predicted is not None and predicted.step_time_s.total and step_s:
        error = predicted.step_time_s.total / step_s - 1
        lines.append(f"{fmt.duration(predicted.step_time_s.total)} a step were predicted, {error:+.1%}.")
    if store:
        lines.append(f"The profile is kept in {store}.")
    return [lines[0], *(INDENT + line for line in lines[1:])]


def _verdict_lines(profile: Profile, device: str) -> list[str]:
    """Return whether the run fits, and what would where it does not."""
    from finegauge.prediction.uncertainty import probability_out_of_memory

    chance = probability_out_of_memory(profile)
    word = verdict(chance)
    needed = fmt.gib_interval(profile.device_memory_bytes.total, profile.source.memory_interval)
    head = painted(Toned(WORDS[word], "strong", TONES[word]))
    room = f"{gib(profile.capacity_bytes)} on {device}"
    line = f"{head}: {needed} of {room}, P(OOM) {fmt.probability(chance)}."
    return [line] if word == FITS else [line, painted(Toned(f"Warning: {_way_out(profile)}", TONES[word]))]


def _way_out(profile: Profile) -> str:
    """Return what to do about a run that is too large, or may be."""
    from finegauge.answers.estimate import safe_micro_batch_size

    most = safe_micro_batch_size(profile)
    if most:
        return f"it may run out of memory; per_device_train_batch_size={most} is safe."
    return "it may run out of memory; a shorter max_length, adapters or a larger device would help."


def _time_lines(profile: Profile, num_steps: int | None, usd_per_h: float | None) -> list[str]:
    """Return what a step takes, and the whole run where its steps are known."""
    step_s = profile.step_time_s.total
    if not step_s:
        return []
    interval = fmt.seconds_interval(step_s, profile.source.time_interval)
    mfu = f", MFU {fmt.percent(profile.mfu_fraction)}" if profile.mfu_fraction else ""
    lines = [f"One step: {interval} s, {fmt.digits(profile.tokens_per_s)} tokens/s{mfu}."]
    if num_steps:
        whole_s = num_steps * step_s
        cost = "" if usd_per_h is None else f", {fmt.dollars(whole_s / HOUR_S * usd_per_h)}"
        lines.append(f"{num_steps:,} step{'s' * (num_steps != 1)}: {_span(whole_s)}{cost}.")
    return lines


def _span(seconds: float) -> str:
    """Return how long something takes as a person would say it: "36.0 s", "12 min", "118 h"."""
    return fmt.duration(seconds) if seconds < 100 else fmt.hours(seconds)
