"""The seed paper's qualitative findings, measured again on this machine at small scale."""

from collections.abc import Mapping, Sequence
from statistics import mean, pvariance, variance
from typing import Any, NamedTuple

from finegauge.laws.fit import LEAST_SQUARES, fit
from finegauge.laws.law import Condition, Law, Observation, form
from finegauge.measurement.options import Options
from finegauge.profile import Profile
from finegauge.reproduction import hardware
from finegauge.reproduction.characterisation import STAGES, Setting
from finegauge.reproduction.measured_trials import (
    BATCH,
    BATCHES,
    EXPERTS_PER_TOKEN,
    LOOKED_INTO,
    MIXTRAL,
    SEQ_LEN,
    SMALLEST,
    SWEEP,
    Told,
    Trial,
    Tunings,
    layers_s,
    measured,
    stages_s,
    step_s,
    tunings,
    waited_fraction,
)
from finegauge.reproduction.published import (
    MEASURED,
    MODELS,
    OURS,
    SPARSITY,
    THEIRS,
    Cell,
    Item,
    Panel,
    Reproduction,
    Series,
    claim,
    figures,
)


class Held(NamedTuple):
    """One finding of the paper and its proof."""

    finding: str
    paper: str  # the paper's figure
    here: str  # the figure of this machine
    holds: bool
    item: Item

    @property
    def row(self) -> tuple[str, str, str, str]:
        """Return the line of the summary."""
        return self.finding, self.paper, self.here, "yes" if self.holds else "no"


def percent(fraction: float) -> str:
    """Return a fraction as text in percent."""
    return f"{100 * fraction:.0f} %"


def between(values: list[float], unit: str = "", decimals: int = 1) -> str:
    """Return "1.2 to 3.4 s", the smallest and the largest of some values."""
    low, high = (f"{value:.{decimals}f}" for value in (min(values), max(values)))
    return f"{low if low == high else f'{low} to {high}'}{unit}"


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


SAME_WITHIN = 0.05  # of accuracy, by which sparse may end below dense and still do as well
CHANGED_BY = 0.10  # of the variance, from which the load of the experts has changed
DATASETS = ("HE", "GS")


def experts(found: Tunings) -> Held:
    """Return whether tuning changes how evenly the experts are used."""
    rows: list[tuple[Cell, ...]] = []
    panels, ours = [], []
    for number, (before, after) in enumerate(zip(*_counts(found.sparse), strict=True), start=1):
        layer = f"layer {number}"
        spreads = []
        for state, loads in (("before", before), ("after", after)):
            shares = [100 * load / sum(loads) for load in loads]
            spreads.append(pvariance(shares))
            peak = max(loads) / mean(loads)
            rows.append((layer, state, *shares, spreads[-1], variance(shares), peak))
        ours.append(spreads[1] / spreads[0])
        panels.append(_loads(layer, before, after))
    theirs = [
        pvariance(hardware.expert_loads(model, dataset, hardware.TUNED))
        / pvariance(hardware.expert_loads(model, dataset, hardware.PRETRAINED))
        for model in MODELS
        for dataset in DATASETS
    ]
    item = Item(
        key="experts",
        title="Tokens by expert before and after tuning, sparse, % of a layer's",
        headings=(
            "layer", "tuning", *(f"{n}" for n in range(len(before))), "variance\npopulation", "\nsample",
            "fullest\nover mean",
        ),
        rows=tuple(rows),
        notes=("The same test questions are read both times. Variances are of the shares in percent.",),
        panels=tuple(panels),
        num_text_columns=2,
    )  # fmt: skip
    return Held(
        "tuning changes the load of the experts",
        f"variance x {between(theirs)}",
        f"variance x {between(ours)}",
        any(abs(ratio - 1) > CHANGED_BY for ratio in ours),
        item,
    )


def accuracy(found: Tunings) -> Held:
    """Return whether a sparse model ends as good as a dense one."""
    modes = {"sparse": found.sparse["epochs"], "dense": found.dense["epochs"]}
    rows = [
        (
            mode,
            epoch["epoch"],
            100 * epoch["exact_match_fraction"],
            100 * epoch["acc_fraction"],
            100 * epoch["acc_norm_fraction"],
            epoch["loss"],
            epoch["train_s"] or None,
        )
        for mode, epochs in modes.items()
        for epoch in epochs
    ]
    best = {mode: max(e["exact_match_fraction"] for e in epochs) for mode, epochs in modes.items()}
    gap = best["sparse"] - best["dense"]
    item = Item(
        key="accuracy",
        title="Accuracy by epoch on additions that were not trained on, %",
        headings=(
            "\nmode", "\nepoch", "exact\nmatch", "choice\nacc", "choice\nacc_norm", "\nloss",
            "seconds of\nthe epoch",
        ),
        rows=tuple(rows),
        notes=(
            f"{found.sparse['num_train']:,} additions to learn from, {found.sparse['num_test']} to be asked. "
            "Both begin with the weights of a sparse model that has seen subtractions. Exact match: the "
            "model writes the sum digit by digit, as for GSM8K; choice: four sums by likelihood, as for "
            "HellaSwag.",
            f"95 % of the best is reached by epoch {_by_epoch(modes['sparse'])} (sparse) and "
            f"{_by_epoch(modes['dense'])} (dense).",
        ),
        panels=(
            _curves("exact match", "exact_match_fraction", modes),
            _curves("multiple choice", "acc_fraction", modes),
        ),
    )  # fmt: skip
    learnt = all(best[mode] > modes[mode][0]["exact_match_fraction"] + SAME_WITHIN for mode in modes)
    return Held(
        "sparse ends as accurate as dense",
        f"{_published_gaps()} points",
        f"{100 * gap:+.0f} points, at {percent(best['sparse'])}",
        learnt and gap >= -SAME_WITHIN,
        item,
    )


def _counts(tuned: dict[str, Any]) -> tuple[list[list[float]], list[list[float]]]:
    """Return the tokens of each expert by layer, before and after."""
    before, after = (
        [seen["tokens_per_expert"] for seen in tuned[state]["layers"].values()]
        for state in ("experts_before", "experts_after")
    )
    return before, after


def _loads(layer: str, before: list[float], after: list[float]) -> Panel:
    """Return bars of each expert's share before and after."""
    bars = tuple(
        Series(label, whose, (), tuple(100 * load / sum(loads) for load in loads))
        for label, whose, loads in (("before", THEIRS, before), ("after", OURS, after))
    )
    return Panel(layer, "expert", "% of tokens", bars, tuple(map(str, range(len(before)))))


def _curves(title: str, key: str, modes: dict[str, list[dict[str, Any]]]) -> Panel:
    """Return accuracy against epochs, one line a mode."""
    lines = tuple(
        Series(mode, mode, tuple(float(e["epoch"]) for e in epochs), tuple(100 * e[key] for e in epochs))
        for mode, epochs in modes.items()
    )
    return Panel(title, "epoch", "accuracy, %", lines)


def _by_epoch(epochs: list[dict[str, Any]]) -> int:
    """Return the first epoch at 95 % of the best accuracy."""
    best = max(epoch["exact_match_fraction"] for epoch in epochs)
    return next(int(e["epoch"]) for e in epochs if e["exact_match_fraction"] >= 0.95 * best)


def _published_gaps() -> str:
    """Return the smallest and largest gap of the paper's best accuracies, sparse minus dense, in points."""

    def best(model: str, mode: str, dataset: str) -> float:
        return max(f.value for f in figures("fig3", model=model, mode=mode, dataset=dataset))

    gaps = [
        100 * (best(model, "sparse", dataset) - best(model, "dense", dataset))
        for model in MODELS
        for dataset in DATASETS
    ]
    return f"{min(gaps):+.0f} to {max(gaps):+.0f}"


TITLE = "The findings of Xia et al. 2024, measured again on this machine at small scale"
BUSY_FROM = 0.05  # of the time, spent waiting for a processor
PAPER = "paper: arXiv 2408.04693"
MACHINE = ("device", "cores", "threads", "torch", "transformers", "date")


def measure_findings(options: Options, *, told: Told | None = None, store: str | None = None) -> Reproduction:
    """Return every finding with the paper's figure, this machine's, and whether it holds.

    Args:
        options: Device, threads and seed.
        told: Told what is being measured.
        store: A journal that keeps the profiles of the trials.
    Raises: UnsupportedError without PyTorch, or where a trial brings no data.
    """
    profiles = measured(options, told=told, store=store)
    return findings_of(profiles, tunings(options, told=told))


def findings_of(profiles: Mapping[Trial, Profile], tuned: Tunings) -> Reproduction:
    """Return the reproduction that measured steps and tunings make."""
    held = [
        *(judge(profiles) for judge in (
            stages, layers, modes, throughput,
            optimizer,
        )),
        experts(tuned),
        accuracy(tuned),
    ]  # fmt: skip
    machine = next(iter(profiles.values())).fingerprint
    known = [f"{name}: {machine[name]}" for name in MACHINE if machine.get(name)]
    return Reproduction(
        TITLE,
        (PAPER, ", ".join(known)),
        (_overview(held), *(one.item for one in held)),
        (),
        (
            f"{sum(one.holds for one in held)} of {len(held)} findings hold here.",
            f"Steps: fp32, {SEQ_LEN} random tokens to a sequence, each run in a process of its own, the "
            "median step after a warm-up. Models have the paper's structure, eight experts to a layer, and "
            "millions of parameters, not billions: figures show the same effects, not the same sizes.",
            *_busy(profiles),
        ),
    )


def _busy(profiles: Mapping[Trial, Profile]) -> tuple[str, ...]:
    """Say so where other programs took much of the machine."""
    waited = max(map(waited_fraction, profiles.values()))
    if waited < BUSY_FROM:
        return ()
    return (
        f"The machine was busy: for up to {percent(waited)} of the time the steps waited for a processor. "
        "That time is taken out of the totals, but blurs them; measure again on a quiet machine.",
    )


def _overview(held: list[Held]) -> Item:
    """Return the findings in one table."""
    return Item(
        key="findings",
        title="Findings",
        headings=("finding", "paper", "here", "holds"),
        rows=tuple(one.row for one in held),
        num_text_columns=4,
    )
