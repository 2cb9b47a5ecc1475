"""The paper's findings about learning, held against a small model that learns to add."""

from statistics import mean, pvariance, variance
from typing import Any

from finegauge.reproduce import hardware
from finegauge.reproduce.item import OURS, THEIRS, Cell, Item, Panel, Series
from finegauge.reproduce.measured.held import Held, between, percent
from finegauge.reproduce.measured.tuning import Tunings
from finegauge.reproduce.published import figures
from finegauge.reproduce.runs import MODELS

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
