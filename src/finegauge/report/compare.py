"""How SpeedUp, MemoryUp and EnergyUp are shown: a table, who leads where, what improves everything."""

import json
from collections.abc import Sequence
from typing import Any

from finegauge.campaign.gains import DIMENSIONS, Comparison, Gain
from finegauge.report.figures import UNKNOWN
from finegauge.report.terminal import columns, paint, wrapped
from finegauge.reproduce.item import Panel, Series

ABOVE_ONE = "Above 1 is better: SpeedUp = T_base/T_opt, MemoryUp = M_base/M_opt, EnergyUp = E_base/E_opt."


def compare_lines(comparisons: Sequence[Comparison], baseline: str) -> list[str]:
    """Return every comparison as a table with its ranking and its statement."""
    lines = []
    for one in comparisons:
        lines += [paint(title(one), "bold"), *_table(one), *_statements(one, baseline), ""]
    measured = any(gain.intervals for one in comparisons for gain in one.gains)
    lines += [ABOVE_ONE, *(["[ ]: 95 % interval of the measured ratio."] if measured else [])]
    return lines


def title(comparison: Comparison) -> str:
    """Return where a comparison stands."""
    words = ", ".join(f"{name} {value}" for name, value in comparison.labels.items())
    return f"{words or 'the run'} ({comparison.estimator})"


def panels(comparisons: Sequence[Comparison]) -> list[Panel]:
    """Return a chart of bars for every comparison."""
    return [
        Panel(
            title(one), "", "times the baseline",
            tuple(
                Series(name, name, (), tuple(gain.ratios[name] for gain in one.gains))
                for name in DIMENSIONS
                if any(gain.ratios[name] is not None for gain in one.gains)
            ),
            tuple(gain.name for gain in one.gains),
        )
        for one in comparisons
    ]  # fmt: skip


def compare_json(comparisons: Sequence[Comparison], baseline: str) -> str:
    """Return the same as JSON."""
    whole = {
        "schema_version": 1,
        "command": "compare",
        "baseline": baseline,
        "comparisons": [
            {
                "labels": dict(one.labels),
                "estimator": one.estimator,
                "gains": [_gain_json(gain) for gain in one.gains],
                "ranking": {name: [gain.name for gain in one.ranking(name)] for name in DIMENSIONS},
                "pareto_front": [gain.name for gain in one.front()],
                "improves_all": [gain.name for gain in one.gains if gain.improves_all],
            }
            for one in comparisons
        ],
    }
    return json.dumps(whole, indent=2, ensure_ascii=False, allow_nan=False)


def _table(comparison: Comparison) -> list[str]:
    """Return a row per optimisation."""
    rows = [
        [gain.name, *(_cell(gain, name) for name in DIMENSIONS), _remark(gain)] for gain in comparison.gains
    ]
    return columns(["", *DIMENSIONS, ""], rows, indent="  ")


def _cell(gain: Gain, name: str) -> str:
    """Return a ratio, green where it improves, with its interval."""
    ratio = gain.ratios[name]
    if ratio is None:
        return UNKNOWN
    text = f"{ratio:.2f}"
    if interval := gain.intervals.get(name):
        low, high = interval.of(ratio)
        text += f" [{low:.2f}-{high:.2f}]"
    return paint(text, "green") if gain.improves(name) else text


def _remark(gain: Gain) -> str:
    """Return why there is no ratio."""
    return "" if gain.outcome == "completed" else paint(gain.outcome.replace("_", " "), "yellow")


def _statements(comparison: Comparison, baseline: str) -> list[str]:
    """Return who leads where, and whether anything improves everything."""
    leaders = []
    for name in DIMENSIONS:
        ranked = comparison.ranking(name)
        if ranked:
            leaders.append(f"{name} {ranked[0].name}" + ("" if ranked[0].improves(name) else " (no gain)"))
    lines = [f"Best: {', '.join(leaders)}."] if leaders else ["Nothing to compare."]
    unknown = [name for name in DIMENSIONS if not comparison.ranking(name)]
    all_of = "all three" if not unknown else "both" if len(unknown) == 1 else "it"
    winners = [gain.name for gain in comparison.gains if gain.improves_all]
    verb = "improve" if len(winners) > 1 else "improves"
    lines.append(f"{' and '.join(winners) if winners else 'Nothing'} {verb} {all_of} here over {baseline}.")
    front = [gain.name for gain in comparison.front()]
    if front:
        lines.append(f"Pareto front beside {baseline}: {', '.join(front)}.")
    if unknown:
        lines.append(f"{' and '.join(unknown)} not known: no meter read any energy.")
    return [line for text in lines for line in wrapped(f"  {text}", indent="  ")]


def _gain_json(gain: Gain) -> dict[str, Any]:
    """Return one gain as JSON."""
    found: dict[str, Any] = {"name": gain.name, "outcome": gain.outcome, "reason": gain.reason}
    for name in DIMENSIONS:
        ratio, interval = gain.ratios[name], gain.intervals.get(name)
        found[name] = ratio
        if ratio is not None and interval is not None:
            found[f"{name}_interval"] = list(interval.of(ratio))
    return found
