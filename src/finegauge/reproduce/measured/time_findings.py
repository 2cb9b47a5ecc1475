"""The paper's findings about time, held against measured steps: stages, layers, modes, batches."""

from collections.abc import Mapping, Sequence
from statistics import mean

from finegauge.laws.fit import LEAST_SQUARES, fit
from finegauge.laws.forms import form
from finegauge.laws.law import Law
from finegauge.laws.observation import Condition, Observation
from finegauge.profile import Profile
from finegauge.reproduce.characterisation import STAGES, Setting
from finegauge.reproduce.item import MEASURED, OURS, THEIRS, Cell, Item, Panel, Series
from finegauge.reproduce.measured.held import Held, between, percent
from finegauge.reproduce.measured.trials import (
    BATCH,
    BATCHES,
    EXPERTS_PER_TOKEN,
    LOOKED_INTO,
    MIXTRAL,
    SMALLEST,
    SWEEP,
    Trial,
    layers_s,
    stages_s,
    step_s,
)
from finegauge.reproduce.published import SPARSITY, claim, figures

Profiles = Mapping[Trial, Profile]


def stages(profiles: Profiles) -> Held:
    """Return whether the backward pass takes longer than the forward pass."""
    rows: list[tuple[Cell, ...]] = []
    ours: list[float] = []
    for trial in LOOKED_INTO:
        found = stages_s(profiles[trial])
        ours.append(found["backward"] / found["forward"])
        rows.append((_name(trial), *(1e3 * found[stage] for stage in STAGES), ours[-1]))
    theirs = [found["backward"] / found["forward"] for found in map(_published_stages, Setting.all("fig4"))]
    item = Item(
        key="stages",
        title=f"A step by stage, batch {BATCH}",
        headings=("run", "forward ms", "backward ms", "optimizer ms", "backward / forward"),
        rows=tuple(rows),
        notes=(
            "The paper's Mixtral recomputes activations in its backward pass; here nothing is recomputed.",
        ),
        panels=(_stacked([stages_s(profiles[trial]) for trial in LOOKED_INTO], STAGES),),
    )
    return Held(
        "backward takes longer than forward",
        between(theirs, " x"),
        between(ours, " x"),
        min(ours) > 1,
        item,
    )


def layers(profiles: Profiles) -> Held:
    """Return whether the experts are the costliest part."""
    found = {trial: layers_s(profiles[trial]) for trial in LOOKED_INTO}
    parts = tuple(dict.fromkeys(part for seconds in found.values() for part in seconds))
    rows: list[tuple[Cell, ...]] = []
    for trial, seconds in found.items():
        total = sum(seconds.values())
        shares = [100 * seconds[part] / total if part in seconds else None for part in parts]
        rows.append((_name(trial), *shares))
    ours = [found[t]["moe"] / sum(found[t].values()) for t in LOOKED_INTO if t.model == MIXTRAL]
    others = [found[t]["moe"] / sum(found[t].values()) for t in LOOKED_INTO if t.model != MIXTRAL]
    item = Item(
        key="layers",
        title=f"Share of forward and backward by part of the model, batch {BATCH}, %",
        headings=("run", *parts),
        rows=tuple(rows),
        notes=(
            f"The finding is judged on {MIXTRAL}. In BlackMamba, where experts take "
            f"{between([100 * share for share in others], ' %', 0)}, the scan runs token by token in PyTorch "
            "unless mamba_ssm's kernels, which need a GPU, are installed; the paper ran the kernels.",
            "The paper's share is of its layers' sum, experts and mixers; of its whole step it is less.",
        ),
        panels=(_stacked(list(found.values()), parts),),
    )
    return Held(
        "experts are the costliest part",
        percent(claim("MoE share of execution time")),
        between([100 * share for share in ours], " %", 0),
        all(max(found[t], key=found[t].__getitem__) == "moe" for t in LOOKED_INTO if t.model == MIXTRAL),
        item,
    )


def modes(profiles: Profiles) -> Held:
    """Return whether sparse is faster than dense at the same batch."""
    rows: list[tuple[Cell, ...]] = []
    ours: list[float] = []
    for batch in BATCHES:
        seconds = [_step_s(profiles, mode, batch) for mode in ("dense", "sparse")]
        ours.append(seconds[0] / seconds[1])
        rows.append((str(batch), *(1e3 * one for one in seconds), ours[-1]))
    item = Item(
        key="modes",
        title=f"Milliseconds of a step, {MIXTRAL}, LoRA: dense against sparse at one batch",
        headings=("batch", "dense", "sparse", "dense / sparse"),
        rows=tuple(rows),
        notes=("Theirs: all pairs of Figs. 14 and 15 with one model, data set, GPU and batch.",),
        panels=(
            Panel(
                "step time of dense over sparse",
                "batch",
                "ratio",
                (Series("measured here", "ratio", tuple(map(float, BATCHES)), tuple(ours)),),
            ),
        ),
    )
    theirs = _published_ratios()
    held = min(ours) > 1
    return Held("sparse is faster at equal batch", between(theirs, " x"), between(ours, " x"), held, item)


def throughput(profiles: Profiles) -> Held:
    """Return whether throughput rises with the batch, by less and less, and which law says so best."""
    rate = {t: profiles[t].step_sequences / step_s(profiles[t]) for t in SWEEP}
    points = [Observation(Condition(t.batch, SPARSITY[t.mode]), rate[t]) for t in SWEEP]
    affine, log_law = fit(form("affine"), points), fit(form("xia-eq2"), points, objective=LEAST_SQUARES)
    rows = [
        (f"{t.mode} {t.batch}", p.value, affine.at(p.condition), log_law.at(p.condition))
        for t, p in zip(SWEEP, points, strict=True)
    ]
    gains = [
        rate[Trial(MIXTRAL, "lora", mode, 8)] / rate[Trial(MIXTRAL, "lora", mode, 1)] for mode in SPARSITY
    ]
    a, c, d = (1e3 * affine.constants[name] for name in ("a", "c", "d"))
    item = Item(
        key="throughput",
        title=f"Sequences per second by batch, {MIXTRAL}, LoRA, and two laws on them",
        headings=("mode, batch", "measured", "affine law", "equation 2"),
        rows=tuple(rows),
        notes=(
            f"Affine law: milliseconds of a step = {a:.1f} + batch ({c:.2f} + {d:.2f} sparsity); mean "
            f"|error| {percent(affine.scores.mape_fraction)}. Equation 2, fitted the artifact's way: "
            f"{percent(log_law.scores.mape_fraction)}.",
        ),
        panels=tuple(_throughput_panel(mode, points, affine, log_law) for mode in ("sparse", "dense")),
    )
    return Held(
        "throughput rises less than the batch",
        f"{claim('speed-up from batch 1 to 8'):.1f} x at batch 8",
        f"{between(gains, ' x')} at batch 8",
        all(1 < gain < 8 for gain in gains),
        item,
    )


def optimizer(profiles: Profiles) -> Held:
    """Return whether the optimizer weighs in full fine-tuning and does not with adapters."""
    shown = (*SMALLEST, *LOOKED_INTO)
    share = {t: _optimizer_share(stages_s(profiles[t])) for t in shown}
    by_method = {method: [share[t] for t in SMALLEST if t.method == method] for method in ("full", "lora")}
    theirs = {
        model: max(_optimizer_share(_published_stages(at)) for at in Setting.all("fig4") if at.model == model)
        for model in dict.fromkeys(at.model for at in Setting.all("fig4"))
    }
    bars = Series("optimizer", "optimizer", (), tuple(100 * value for value in share.values()))
    names = tuple(f"{_bar(t)}\nbatch {t.batch}" for t in shown)
    item = Item(
        key="optimizer",
        title="Share of the optimizer in a step, %",
        headings=("run", "batch", "optimizer"),
        rows=tuple((_name(t), t.batch, 100 * value) for t, value in share.items()),
        notes=(
            "Theirs, largest: "
            + ", ".join(f"{model} {percent(value)}" for model, value in theirs.items())
            + " (Mixtral trains adapters, BlackMamba everything), at batch 1, as judged here.",
        ),
        panels=(Panel("share of the optimizer", "", "% of the step", (bars,), names),),
    )
    low, high = sorted(theirs.values())
    return Held(
        "the optimizer weighs in full, not in LoRA",
        f"{percent(high)} against {percent(low)}",
        f"{percent(mean(by_method['full']))} against {percent(mean(by_method['lora']))}",
        all(share[t._replace(method="full")] > share[t] for t in SMALLEST if t.method == "lora"),
        item,
    )


def _published_stages(at: Setting) -> dict[str, float]:
    return {f.part: f.value for f in figures("fig4", model=at.model, mode=at.mode, batch=at.batch)}


def _published_ratios() -> list[float]:
    """Return the published throughput of sparse over dense wherever both ran with one batch."""
    dense = {(f.series, f.batch): f.value for f in figures("fig14", "fig15", mode="dense")}
    sparse = {(f.series, f.batch): f.value for f in figures("fig14", "fig15", mode="sparse")}
    return [sparse[key] / dense[key] for key in dense if key in sparse]


def _step_s(profiles: Profiles, mode: str, batch: int) -> float:
    return next(step_s(profiles[t]) for t in SWEEP if (t.mode, t.batch) == (mode, batch))


def _optimizer_share(seconds: Mapping[str, float]) -> float:
    return seconds["optimizer"] / sum(seconds.values())


def _throughput_panel(mode: str, points: list[Observation], affine: Law, log_law: Law) -> Panel:
    """Return the measured points of one mode with both laws."""
    seen = [point for point in points if point.condition.sparsity_fraction == SPARSITY[mode]]
    measured = tuple(float(point.condition.batch) for point in seen)
    batches = range(1, max(BATCHES) + 1)

    def line(label: str, whose: str, law: Law) -> Series:
        y = tuple(law.at(Condition(batch, SPARSITY[mode])) for batch in batches)
        return Series(label, whose, tuple(map(float, batches)), y)

    series = (
        Series("measured here", MEASURED, measured, tuple(point.value for point in seen)),
        line("affine law", OURS, affine),
        line("equation 2", THEIRS, log_law),
    )
    return Panel(f"{mode}: {EXPERTS_PER_TOKEN[mode]} of 8 experts", "batch", "sequences/s", series)


def _stacked(seconds: Sequence[Mapping[str, float]], parts: tuple[str, ...]) -> Panel:
    """Return bars of a hundred percent, the parts on top of each other."""
    series = tuple(
        Series(part, part, (), tuple(100 * one.get(part, 0.0) / sum(one.values()) for one in seconds))
        for part in parts
    )
    return Panel("shares of each run", "", "%", series, tuple(map(_bar, LOOKED_INTO)), stacked=True)


def _name(trial: Trial) -> str:
    return f"{trial.model}, {trial.method}, {trial.mode}"


def _bar(trial: Trial) -> str:
    """Return a trial's name to stand under a bar."""
    return f"{trial.model}\n{trial.method}, {trial.mode}"
