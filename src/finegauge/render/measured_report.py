"""The report about a measurement, beside what is predicted for its run."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from finegauge.answers.profile import WHOLE
from finegauge.catalogue.gpus import gpu, known_gpu
from finegauge.errors import FineGaugeError
from finegauge.prediction.predictor import Prediction
from finegauge.profile import Profile
from finegauge.render import number_format as fmt
from finegauge.render.measurement import OUTCOMES, Part, beside, headline
from finegauge.render.plots.experts import experts_plot, loads_of
from finegauge.render.plots.many_runs import Pair, bars_plot
from finegauge.render.plots.step import memory_plot, step_time_plot
from finegauge.render.report import BAD, GOOD, RISKY, Report, Table, Tile, filled, notes, section
from finegauge.render.run_parts import input_table, subject, time_bar, title_of
from finegauge.render.terminal import unpainted

if TYPE_CHECKING:
    from finegauge.render.report import Plot

TONES = {"completed": GOOD, "out_of_memory": BAD, "interrupted": RISKY}


def measured_report(measured: Profile, prediction: Prediction | None = None) -> Report:
    """Return the report about a measurement, beside what is predicted for its run where that can be said.

    Args:
        measured: The trial.
        prediction: What was predicted; by default asked now.
    """
    prediction = prediction or _prediction(measured)
    predicted, step = prediction.profile, measured.step_time_s
    texts = (prediction.missing,) if prediction.missing else ()
    held, said = measured, tuple[str, ...]()
    if not measured.device_memory_bytes.total and predicted is not None and not step.total:
        held, said = predicted, ("The trial brought no figures; this is what is predicted for it.",)
    memory = memory_plot(held, prediction.formulas) if held.device_memory_bytes.total else None
    return Report(
        title=title_of(measured.run),
        headline=unpainted(headline(measured)),
        tone=TONES.get(measured.outcome, BAD),
        subject=(subject(measured.run),),
        tiles=tuple(_tiles(measured, predicted)),
        sections=filled(
            section("beside", "Predicted beside measured", *notes(texts), *_pairs(measured, predicted)),
            section("memory", "Memory", *notes(said), memory),
            section("time", "Time", time_bar(measured) if step.total else None,
                    step_time_plot(measured) if step.total else None),
            section("experts", "Experts", experts_plot(loads_of(measured.observations))),
            section("assumptions", "Assumptions and origins", *notes(measured.run.warnings),
                    input_table(measured.run)),
            section("sources", "Sources", *notes(measured.source.assumptions), _machine_table(measured)),
        ),
    )  # fmt: skip


def _prediction(measured: Profile) -> Prediction:
    """Return what is predicted for a measured run, on the machine that measured it or the GPU it names."""
    from finegauge.catalogue.device_profile import own_profile_path
    from finegauge.prediction.predictor import prediction_elsewhere

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


def _tiles(measured: Profile, predicted: Profile | None) -> Iterator[Tile]:
    """Yield what was measured first of all."""
    word = OUTCOMES.get(measured.outcome, ("No data", ""))[0]
    yield Tile("Outcome", word, measured.fingerprint.get("device", ""))
    step_s, peak = (
        (getattr(measured, name).total, getattr(predicted, name).total if predicted else 0.0)
        for name in ("step_time_s", "peak_memory_bytes")
    )
    pairs = (("One step", *step_s, fmt.duration), ("Peak memory", *peak, fmt.size))
    for name, ours, theirs, said in pairs:
        if ours:
            note = (
                f"predicted {said(theirs)}, {Pair(name, theirs, ours).error}" if theirs else "not predicted"
            )
            yield Tile(name, said(ours), note)
    if measured.tokens_per_s:
        rate = f"{fmt.digits(measured.samples_per_s)} sequences/s"
        yield Tile("Throughput", f"{fmt.digits(measured.tokens_per_s)} tokens/s", rate)
    if measured.step_energy_j.total:
        yield Tile("Energy", f"{fmt.digits(measured.step_energy_j.total)} J", "a step, of the boards")


def _pairs(measured: Profile, predicted: Profile | None) -> "Iterator[Plot | None]":
    """Yield the step's time and memory, predicted beside measured."""
    if predicted is None:
        return
    times = _as_pairs("one step", beside(measured.step_time_s, predicted.step_time_s, 1), 1.0)
    yield bars_plot(
        "beside-time", "Time of a step", "Seconds of one step by stage", times, unit="seconds",
        said=fmt.duration,
    )  # fmt: skip
    if "serving" not in measured.observations:
        parts = beside(measured.peak_memory_bytes, predicted.peak_memory_bytes, 1)
        if predicted.peak_memory_bytes.parts.keys() == {WHOLE}:
            parts = parts[:1]  # the answer that was kept says no more
        kinds = _as_pairs("the peak", parts, 2.0**20)
        yield bars_plot(
            "beside-memory", "Peak memory", "Peak memory by kind, as torch allocates it", kinds, unit="MiB",
            said=lambda mib: fmt.size(mib * 2.0**20),
        )  # fmt: skip


def _as_pairs(whole: str, parts: Sequence[Part], per_unit: float) -> list[Pair]:
    """Return parts as pairs, the whole first."""
    return [
        Pair(
            " · ".join(part.path) or whole,
            None if part.predicted is None else part.predicted / per_unit,
            part.measured / per_unit,
        )
        for part in parts
    ]


def _machine_table(measured: Profile) -> Table:
    """Return what the measurement was taken on."""
    rows = tuple((name, str(value)) for name, value in measured.fingerprint.items())
    return Table("The machine and its software", ("what", "value"), rows, num_text_columns=2)
