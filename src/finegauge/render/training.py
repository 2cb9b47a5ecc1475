"""How a training looks: what the callback prints at its start and end, and what is seen from outside."""

from collections.abc import Iterator

from finegauge.answers.changes import advice_answer
from finegauge.answers.estimate import safe_micro_batch_size
from finegauge.answers.measurement import WatchAnswer
from finegauge.planning.advice import advise
from finegauge.prediction.predictor import Prediction
from finegauge.prediction.uncertainty import FITS, probability_out_of_memory, verdict
from finegauge.profile import Profile
from finegauge.render import number_format as fmt
from finegauge.render.measurement import headline
from finegauge.render.report import Note, Report, Section, Table, Text, Toned, notes, section
from finegauge.render.run_parts import TONES, WORDS, subject
from finegauge.render.whatif import advice_sentence
from finegauge.run.run import Run
from finegauge.units import HOUR_S, KWH_J, counted, gib

TITLE = "FineGauge"


def start_section(
    run: Run,
    prediction: Prediction,
    *,
    device: str,
    num_steps: int | None,
    usd_per_h: float | None,
    price_said: str,
    has_evaluation: bool = False,
) -> Section:
    """Return what is predicted for a run that is about to start on this machine.

    `price_said` is the source of the price of an hour of all machines; evaluation between steps is not
    predicted.
    """
    profile = prediction.profile
    price = "No price is known: state usd_per_hour, and the cost is logged too."
    if usd_per_h is not None:
        price = f"${usd_per_h:.4g} an hour, {price_said}."
    said: list[Text] = [
        subject(run).replace(run.dataset or "\0", "data in memory"),
        *(_verdict(profile, device) if profile is not None else ()),
        *(_time(profile, num_steps, usd_per_h) if profile is not None else ()),
        prediction.missing,
        price,
        "Evaluation comes on top." if has_evaluation else "",
    ]
    return section(
        "start",
        f"{TITLE}: predicted for this run",
        *(Note(("  ", text) if isinstance(text, str) else ("  ", *text)) for text in said if text),
        *notes((f"  {warning}" for warning in run.warnings), tone="risky"),
    )


def nothing_predicted(reason: str) -> Section:
    """Return that a run is not predicted, and why; its figures are logged all the same."""
    said = f"{TITLE}: nothing is predicted and no profile is kept: {reason.rstrip('.')}."
    return section("start", "", Note(said, tone="risky"))


def end_section(measured: Profile, predicted: Profile | None, store: str) -> Section:
    """Return what was measured, beside what was predicted, and where it is kept."""
    step_s, apart = measured.step_time_s.total, ""
    if predicted is not None and predicted.step_time_s.total and step_s:
        error = predicted.step_time_s.total / step_s - 1
        apart = f"  {fmt.duration(predicted.step_time_s.total)} a step were predicted, {error:+.1%}."
    return section(
        "end",
        "",
        Note((f"{TITLE}: ", *headline(measured))),
        Note(apart) if apart else None,
        Note(f"  The profile is kept in {store}.") if store else None,
    )


def _verdict(profile: Profile, device: str) -> Iterator[Text]:
    chance = probability_out_of_memory(profile)
    word = verdict(chance)
    needed = fmt.gib_interval(profile.device_memory_bytes.total, profile.source.memory_interval)
    room = f"{gib(profile.capacity_bytes)} on {device}"
    head = Toned(WORDS[word], "strong", TONES[word])
    yield head, f": {needed} of {room}, P(OOM) {fmt.probability(chance)}."
    if word != FITS:
        most = safe_micro_batch_size(profile)
        more = f" per_device_train_batch_size={most} is safe." if most else _advice(profile)
        yield (Toned(f"Warning: it may run out of memory.{more}", TONES[word]),)


def _advice(profile: Profile) -> str:
    """Return what makes a run safe; nothing on a device whose figures are not published."""
    if profile.run.gpu is None:
        return ""
    return f" {advice_sentence(advice_answer(advise(profile.run)))}"


def _time(profile: Profile, num_steps: int | None, usd_per_h: float | None) -> Iterator[str]:
    step_s = profile.step_time_s.total
    if not step_s:
        return
    interval = fmt.seconds_interval(step_s, profile.source.time_interval)
    mfu = f", MFU {fmt.percent(profile.mfu_fraction)}" if profile.mfu_fraction else ""
    yield f"One step: {interval} s, {fmt.digits(profile.tokens_per_s)} tokens/s{mfu}."
    if num_steps:
        whole_s = num_steps * step_s
        cost = "" if usd_per_h is None else f", {fmt.dollars(whole_s / HOUR_S * usd_per_h)}"
        span = fmt.duration(whole_s) if whole_s < 100 else fmt.hours(whole_s)
        yield f"{counted(num_steps, 'step')}: {span}{cost}."


OUTCOME_TONES = {"running": "neutral", "completed": "good"}  # all others are bad


def watch_report(answer: WatchAnswer, why_not: str = "") -> Report:
    """Return what is seen of a training, a row per quantity; `why_not` says why nothing is predicted."""
    rows = tuple(_rows(answer))
    hints = [f"Not predicted: {why_not}"] if why_not and answer.predicted_peak_bytes is None else []
    if answer.outcome in ("out_of_memory", "failed") and answer.reason:
        hints.append(answer.reason)
    if answer.outcome == "out_of_memory":
        hints.append("'finegauge why RUN LOG' says at which moment, and what makes it fit.")
    if not answer.steps and not answer.peak_bytes:
        hints.append(
            "No step was read: no trainer_state.json, TensorBoard event or log line tells one there."
        )
    if answer.stored:
        hints.append(f"The profile is kept in {answer.stored}.")
    return Report.of(
        "Watched", _headline(answer),
        section(
            "watch", "", Table("", ("", "seen", "predicted", ""), rows, 3, ends_in_text=True),
            *notes(answer.warnings, tone="risky"), *notes(hints, tone="soft"),
        ),
        tone=OUTCOME_TONES.get(answer.outcome, "bad"),
    )  # fmt: skip


def _headline(answer: WatchAnswer) -> Text:
    steps = f"step {answer.steps:,}"
    if answer.total_steps:
        steps += f" of {answer.total_steps:,}, {100 * answer.steps / answer.total_steps:.0f} %"
    left = f", {fmt.duration(answer.left_s)} left" if answer.left_s is not None else ""
    word, tone = answer.outcome.replace("_", " ").capitalize(), OUTCOME_TONES.get(answer.outcome, "bad")
    return Toned(word, "strong", tone), f": {steps}, {fmt.duration(answer.wall_s)}{left}."


def _rows(answer: WatchAnswer) -> Iterator[tuple[Text, ...]]:
    room = f" of {gib(answer.device_bytes)}" if answer.device_bytes else ""
    predicted, error = answer.predicted_peak_bytes, answer.memory_error_fraction
    where = answer.gpu or "the fullest process"
    now = f"{gib(answer.memory_bytes)}, " if answer.outcome == "running" else ""
    if answer.peak_bytes:  # a process is watched
        yield (
            f"memory, {where}", f"{now}peak {gib(answer.peak_bytes)}{room}",
            gib(predicted) if predicted else fmt.UNKNOWN, f"{error:+.1%}" if error is not None else "",
        )  # fmt: skip
    step_s, error = answer.step_s, answer.step_error_fraction
    yield (
        "a step", fmt.duration(step_s) if step_s else fmt.UNKNOWN,
        fmt.duration(answer.predicted_step_s) if answer.predicted_step_s else fmt.UNKNOWN,
        f"{error:+.1%}" if error is not None else "",
    )  # fmt: skip
    if answer.tokens_per_s:
        yield "tokens/s", fmt.digits(answer.tokens_per_s), "", ""
    if answer.loss is not None:
        yield "loss", f"{answer.loss:.4g}", "", ""
    if answer.cost_usd is not None:
        whole = answer.completion_usd
        yield (
            "cost",
            f"${answer.cost_usd:.4g}" + (f", ${whole:.4g} at the end" if whole is not None else ""),
            "",
            "",
        )
    if answer.energy_j:
        yield "energy", f"{answer.energy_j / KWH_J:.4g} kWh", "", ""
