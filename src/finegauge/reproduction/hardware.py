"""Figs. 2, 3 and 9 to 11: what we recompute from the published points rather than predict.

Lengths, accuracies, utilisations and expert loads are measurements of data, training and kernels
that FineGauge does not predict. Ours beside theirs is here the same figure derived again from the
points: a median, a best epoch, a time-weighted mean, a variance.
"""

from statistics import pvariance, variance

from finegauge.catalogue.datasets import datasets
from finegauge.catalogue.length_histogram import quantiles
from finegauge.reproduction import published
from finegauge.reproduction.published import OURS, THEIRS, Cell, Item, Panel, Series, Setting, figures, value

BIN_TOKENS = 16
WEIGHTED = "time_weighted"
PRETRAINED, TUNED = "pretrained", "tuned"
SAME_WITHIN = 1.0  # percentage points by which a published mean may differ from ours


def fig_2() -> Item:
    """Return the length histograms with their medians, means and tails."""
    rows, panels = [], []
    for short, name in published.DATASETS.items():
        known = datasets()[name]
        printed = value("table2", dataset=short, part="median_seq_len")
        counts = known.lengths
        beyond = sum(count for length, count in counts if length > 1024)
        tail = (known.mean_tokens, quantiles(counts, (0.95,))[0], known.max_tokens, beyond)
        rows.append((short, known.num_samples, printed, known.median_tokens, *tail))
        binned: dict[int, int] = {}
        for length, count in counts:
            binned[length // BIN_TOKENS] = binned.get(length // BIN_TOKENS, 0) + count
        shown = range(max(bin_ for bin_ in binned if bin_ * BIN_TOKENS < 640) + 1)
        x = tuple((n + 0.5) * BIN_TOKENS for n in shown)
        drawn = Series("examples", published.COUNTED, x, tuple(float(binned.get(n, 0)) for n in shown))
        title = f"{short}: median {known.median_tokens} tokens"
        panels.append(Panel(title, "tokens of an example", f"examples per {BIN_TOKENS} tokens", (drawn,)))
    return Item(
        key="fig-2",
        title="Fig. 2: lengths of the examples, tokens",
        headings=published.columns(
            "data|examples|median\npaper|counted|mean|95th\npercentile|longest|above\n1,024"
        ),
        rows=tuple(rows),
        panels=tuple(panels),
    )


def fig_3() -> Item:
    """Return the accuracy by epoch: where it starts, where it peaks, what sparse costs."""
    rows: list[tuple[Cell, ...]] = []
    panels = []
    for model in published.MODELS:
        for dataset in published.TUNED_ON:
            drawn = []
            for mode in published.SPARSITY:
                curve = figures("fig3", model=model, mode=mode, dataset=dataset)
                best = max(curve, key=lambda f: f.value)
                near = next(f for f in curve if f.value >= 0.95 * best.value)
                percents = (100 * f.value for f in (curve[0], curve[1], best))
                rows.append((best.variant, dataset, *percents, int(best.part), int(near.part)))
                x = tuple(float(f.part) for f in curve)
                drawn.append(Series(mode, mode, x, tuple(100 * f.value for f in curve)))
            panels.append(Panel(f"{model} on {dataset}", "epoch", "accuracy, %", tuple(drawn)))
    gaps = ", ".join(f"{gap:+.1f}" for gap in accuracy_gaps())
    return Item(
        key="fig-3",
        title="Fig. 3: accuracy by epoch, % (measured by the authors; FineGauge predicts no accuracy)",
        headings=published.columns(
            "model|on|before\ntuning|after\nepoch 1|best|at\nepoch|95 % of best\nby epoch"
        ),
        rows=tuple(rows),
        notes=(f"Best sparse against best dense: {gaps} points (Mixtral HE, GS; BlackMamba HE, GS).",),
        panels=tuple(panels),
        num_text_columns=2,
    )


def accuracy_gaps() -> list[float]:
    """Return best sparse less best dense accuracy of Fig. 3, in points, by model and data set."""

    def best(model: str, mode: str, dataset: str) -> float:
        return max(f.value for f in figures("fig3", model=model, mode=mode, dataset=dataset))

    return [
        100 * (best(model, "sparse", dataset) - best(model, "dense", dataset))
        for model in published.MODELS
        for dataset in published.TUNED_ON
    ]


def weighted(item: str, at: Setting) -> tuple[float, float]:
    """Return the published time-weighted utilisation in %, and the one that follows from its kernels."""
    shares, seconds = at.by_part(item), at.by_part("fig6")
    printed = shares.pop(WEIGHTED)
    common = [kernel for kernel in shares if kernel in seconds]
    return printed, sum(shares[k] * seconds[k] for k in common) / sum(seconds[k] for k in common)


def fig_9() -> Item:
    """Return the utilisation of the multiprocessors."""
    return _utilisation("fig9", "Fig. 9: utilisation of the multiprocessors, by kernel and time-weighted, %")


def fig_10() -> Item:
    """Return the utilisation of the memory system."""
    return _utilisation("fig10", "Fig. 10: 'Memory [%]' of ncu, by kernel and time-weighted, %")


def _utilisation(item: str, title: str) -> Item:
    rows: list[tuple[Cell, ...]] = []
    panels = []
    for model in published.MODELS:
        kernels = tuple(published.by_part(item, model=model))
        bars = []
        for n, at in enumerate(Setting.all(item, model=model)):
            printed, derived = weighted(item, at)
            follows = "yes" if abs(printed - derived) <= SAME_WITHIN else f"no, {printed - derived:+.1f}"
            rows.append((at.variant, at.batch, printed, derived, follows))
            shares = at.by_part(item)
            bars.append(Series(f"{at.mode} {at.batch}", f"group {n}", (), tuple(map(shares.get, kernels))))
        labels = tuple(name.replace("_", "\n") for name in kernels)
        panels.append(Panel(model, "", "%", tuple(bars), labels))
    return Item(
        key=item.replace("fig", "fig-"),
        title=title,
        headings=published.columns("model|batch|published|from its kernels|follows"),
        rows=tuple(rows),
        notes=("From its kernels: sum(utilisation x duration) / sum(duration), durations of Fig. 6.",),
        panels=tuple(panels),
    )


def expert_loads(model: str, dataset: str, state: str) -> tuple[float, ...]:
    """Return the tokens per query that each expert got."""
    found = figures("fig11", model=model, dataset=dataset, mode=state)
    return tuple(f.value for f in found if f.part != "variance")


def fig_11() -> Item:
    """Return the load of the experts before and after tuning, with both variances."""
    rows: list[tuple[Cell, ...]] = []
    panels = []
    for model in published.MODELS:
        for dataset in published.TUNED_ON:
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
        headings=published.columns(
            "model|state|variance\nprinted|population\nrecomputed|sample\nrecomputed|printed\nis the|"
            "fullest expert\nover mean"
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
