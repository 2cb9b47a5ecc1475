"""Figs. 2, 3 and 9 to 11: what we recompute from the published points rather than predict.

Lengths, accuracies, utilisations and expert loads are measurements of data, training and kernels
that FineGauge does not predict. Ours beside theirs is here the same figure derived again from the
points: a median, a best epoch, a time-weighted mean, a variance.
"""

from statistics import pvariance, variance

from finegauge.catalogue.datasets import datasets
from finegauge.reproduction.characterisation import Setting
from finegauge.reproduction.published import (
    COUNTED,
    DATASETS,
    MODELS,
    OURS,
    THEIRS,
    Cell,
    Item,
    Panel,
    Series,
    figures,
    value,
)

BIN_TOKENS = 16
WEIGHTED = "time_weighted"
PRETRAINED, TUNED = "pretrained", "tuned"
SAME_WITHIN = 1.0  # percentage points by which a published mean may differ from ours


def fig_2() -> Item:
    """Return the length histograms with their medians, means and tails."""
    rows, panels = [], []
    for short, name in DATASETS.items():
        known = datasets()[name]
        printed = value("table2", dataset=short, part="median_seq_len")
        counts = known.lengths
        beyond = sum(count for length, count in counts if length > 1024)
        rows.append(
            (
                short,
                known.num_samples,
                printed,
                known.median_tokens,
                known.mean_tokens,
                quantile(counts, 0.95),
                known.max_tokens,
                beyond,
            )
        )
        binned: dict[int, int] = {}
        for length, count in counts:
            binned[length // BIN_TOKENS] = binned.get(length // BIN_TOKENS, 0) + count
        shown = range(max(bin_ for bin_ in binned if bin_ * BIN_TOKENS < 640) + 1)
        x = tuple((n + 0.5) * BIN_TOKENS for n in shown)
        drawn = Series("examples", COUNTED, x, tuple(float(binned.get(n, 0)) for n in shown))
        title = f"{short}: median {known.median_tokens} tokens"
        panels.append(Panel(title, "tokens of an example", f"examples per {BIN_TOKENS} tokens", (drawn,)))
    return Item(
        key="fig-2",
        title="Fig. 2: lengths of the examples, tokens",
        headings=(
            "\ndata",
            "\nexamples",
            "median\npaper",
            "\ncounted",
            "\nmean",
            "95th\npercentile",
            "\nlongest",
            "above\n1,024",
        ),
        rows=tuple(rows),
        panels=tuple(panels),
    )


def quantile(counts: tuple[tuple[int, int], ...], share: float) -> int:
    """Return the shortest length that `share` of the examples do not exceed."""
    wanted, seen = share * sum(count for _, count in counts), 0
    for length, count in counts:
        seen += count
        if seen >= wanted:
            return length
    return counts[-1][0]


def fig_3() -> Item:
    """Return the accuracy by epoch: where it starts, where it peaks, what sparse costs."""
    rows, panels = [], []
    for model in MODELS:
        for dataset in ("HE", "GS"):
            drawn = []
            for mode in ("dense", "sparse"):
                curve = figures("fig3", model=model, mode=mode, dataset=dataset)
                best = max(curve, key=lambda f: f.value)
                near = next(f for f in curve if f.value >= 0.95 * best.value)
                rows.append(
                    (
                        f"{model} {mode}",
                        dataset,
                        *(100 * f.value for f in (curve[0], curve[1], best)),
                        int(best.part),
                        int(near.part),
                    )
                )
                x = tuple(float(f.part) for f in curve)
                drawn.append(Series(mode, mode, x, tuple(100 * f.value for f in curve)))
            panels.append(Panel(f"{model} on {dataset}", "epoch", "accuracy, %", tuple(drawn)))
    gaps = [
        100 * (_best(model, "sparse", dataset) - _best(model, "dense", dataset))
        for model in MODELS
        for dataset in ("HE", "GS")
    ]
    return Item(
        key="fig-3",
        title="Fig. 3: accuracy by epoch, % (measured by the authors; FineGauge predicts no accuracy)",
        headings=(
            "\nmodel",
            "\non",
            "before\ntuning",
            "after\nepoch 1",
            "\nbest",
            "at\nepoch",
            "95 % of best\nby epoch",
        ),
        rows=tuple(rows),
        notes=(
            f"Best sparse against best dense: {', '.join(f'{gap:+.1f}' for gap in gaps)} points (Mixtral "
            "HE, GS; BlackMamba HE, GS).",
        ),
        panels=tuple(panels),
        num_text_columns=2,
    )


def _best(model: str, mode: str, dataset: str) -> float:
    return max(f.value for f in figures("fig3", model=model, mode=mode, dataset=dataset))


def weighted(item: str, at: Setting) -> tuple[float, float]:
    """Return the published time-weighted utilisation in %, and the one that follows from its kernels."""
    where = {"model": at.model, "mode": at.mode, "batch": at.batch}
    shares = {f.part: f.value for f in figures(item, **where)}
    seconds = {f.part: f.value for f in figures("fig6", **where)}
    published = shares.pop(WEIGHTED)
    common = shares.keys() & seconds.keys()
    mean = sum(shares[k] * seconds[k] for k in common) / sum(seconds[k] for k in common)
    return published, mean


def fig_9() -> Item:
    """Return the utilisation of the multiprocessors."""
    return _utilisation(
        "fig9", "fig-9", "Fig. 9: utilisation of the multiprocessors, by kernel and time-weighted, %"
    )


def fig_10() -> Item:
    """Return the utilisation of the memory system."""
    return _utilisation("fig10", "fig-10", "Fig. 10: 'Memory [%]' of ncu, by kernel and time-weighted, %")


def _utilisation(item: str, key: str, title: str) -> Item:
    rows: list[tuple[Cell, ...]] = []
    panels = []
    for model in MODELS:
        settings = [at for at in Setting.all(item) if at.model == model]
        pairs = [weighted(item, at) for at in settings]
        for at, (published, derived) in zip(settings, pairs, strict=True):
            follows = "yes" if abs(published - derived) <= SAME_WITHIN else f"no, {published - derived:+.1f}"
            rows.append((f"{at.model} {at.mode}", at.batch, published, derived, follows))
        kernels = dict.fromkeys(f.part for f in figures(item, model=model))
        groups = tuple(_kernel_bars(item, at, tuple(kernels), n) for n, at in enumerate(settings))
        panels.append(Panel(model, "", "%", groups, tuple(name.replace("_", "\n") for name in kernels)))
    return Item(
        key=key,
        title=title,
        headings=("model", "batch", "published", "from its kernels", "follows"),
        rows=tuple(rows),
        notes=("From its kernels: sum(utilisation x duration) / sum(duration), durations of Fig. 6.",),
        panels=tuple(panels),
    )


def _kernel_bars(item: str, at: Setting, kernels: tuple[str, ...], n: int) -> Series:
    found = {f.part: f.value for f in figures(item, model=at.model, mode=at.mode, batch=at.batch)}
    return Series(f"{at.mode} {at.batch}", f"group {n}", (), tuple(found.get(kernel) for kernel in kernels))


def expert_loads(model: str, dataset: str, state: str) -> tuple[float, ...]:
    """Return the tokens per query that each expert got."""
    found = figures("fig11", model=model, dataset=dataset, mode=state)
    return tuple(f.value for f in found if f.part != "variance")


def fig_11() -> Item:
    """Return the load of the experts before and after tuning, with both variances."""
    rows: list[tuple[Cell, ...]] = []
    panels = []
    for model in MODELS:
        for dataset in ("HE", "GS"):
            drawn = []
            for state in (PRETRAINED, TUNED):
                loads = expert_loads(model, dataset, state)
                printed = value("fig11", model=model, dataset=dataset, mode=state, part="variance")
                population, sample = pvariance(loads), variance(loads)
                kind = which_variance(printed or 0.0, population, sample)
                peak = max(loads) / (sum(loads) / len(loads))
                rows.append((f"{model} {dataset}", state, printed, population, sample, kind, peak))
                drawn.append(Series(state, THEIRS if state == PRETRAINED else OURS, (), loads))
            labels = tuple(map(str, range(len(drawn[0].y))))
            panels.append(Panel(f"{model} on {dataset}", "expert", "tokens per query", tuple(drawn), labels))
    return Item(
        key="fig-11",
        title="Fig. 11: tokens per query of each expert, and their variance",
        headings=(
            "\nmodel",
            "\nstate",
            "variance\nprinted",
            "population\nrecomputed",
            "sample\nrecomputed",
            "printed\nis the",
            "fullest expert\nover mean",
        ),
        rows=tuple(rows),
        panels=tuple(panels),
        num_text_columns=2,
    )


def which_variance(printed: float, population: float, sample: float) -> str:
    """Return which of the two formulae a printed variance follows."""
    if abs(printed - population) <= 0.051:
        return "population"
    return "sample" if abs(printed - sample) <= 0.051 else "neither"
