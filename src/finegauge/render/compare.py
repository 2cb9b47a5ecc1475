"""How SpeedUp, MemoryUp and EnergyUp are shown: a table, who leads where, what improves everything."""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from finegauge.campaign.gains import DIMENSIONS, PROCESSOR_S, Claims, Comparison, Gain, Held, hold
from finegauge.render.number_format import UNKNOWN
from finegauge.render.terminal import columns, paint, wrapped
from finegauge.reproduction.published import Panel, Series

COLOURS = {"agrees": "green", "partly": "yellow", "disagrees": "red", "unknown": "dim"}
MOST_PLACES = 4  # where a claim fails, in the text; --json has all
Place = tuple[Mapping[str, str], str]


def claims_lines(claims: Claims, comparisons: Sequence[Comparison]) -> list[str]:
    """Return each claim with its verdict for each estimator, and the places where it fails."""
    lines = [paint(f"Held against {claims.source}", "bold")]
    for held in hold(claims, comparisons):
        lines += wrapped(f"- {_verdict(held)}", indent="  ")
    return [*lines, *wrapped(claims.remark, indent="  ")]


def claims_json(claims: Claims, comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """Return the same as JSON, every place named."""
    return {
        "name": claims.name,
        "source": claims.source,
        "remark": claims.remark,
        "held": [
            {
                "claim": held.claim.name,
                "says": held.claim.says,
                "estimator": held.estimator,
                "verdict": held.verdict,
                "holds_at": _places_json(held.holds_at),
                "fails_at": _places_json(held.fails_at),
                "silent_at": held.silent_at,
            }
            for held in hold(claims, comparisons)
        ],
    }


def _verdict(held: Held) -> str:
    """Return one sentence: the claim, whether it holds, and where it does not."""
    num_holds, num_fails = len(held.holds_at), len(held.fails_at)
    said = f'"{held.claim.says}" ({held.estimator}): {paint(held.verdict, COLOURS[held.verdict])}'
    if held.verdict == "unknown":
        return f"{said}; no point has the figures."
    said += f", {num_holds} of {num_holds + num_fails} points"
    if held.fails_at:
        said += "; not at " + "; ".join(map(_place, held.fails_at[:MOST_PLACES]))
        more = num_fails - MOST_PLACES
        said += f"; and {more} more" if more > 0 else ""
    return f"{said}."


def _place(place: Place) -> str:
    """Return one point with the figure that decides."""
    labels, because = place
    return f"{', '.join(labels.values()) or 'the run'} ({because})"


def _places_json(places: Sequence[Place]) -> list[dict[str, Any]]:
    """Return points as JSON."""
    return [{"labels": dict(labels), "because": because} for labels, because in places]


ABOVE_ONE = "Above 1 is better: SpeedUp = T_base/T_opt, MemoryUp = M_base/M_opt, EnergyUp = E_base/E_opt."
NO_METER = "EnergyUp by processor time: no meter on this machine read its joules."


def compare_lines(
    comparisons: Sequence[Comparison], baseline: str, claims: Claims | None = None
) -> list[str]:
    """Return every comparison as a table with its ranking and its statement, then what a paper claims."""
    lines = []
    for one in comparisons:
        lines += [paint(title(one), "bold"), *_table(one), *_statements(one, baseline), ""]
    measured = any(gain.intervals for one in comparisons for gain in one.gains)
    lines += [ABOVE_ONE, *(["[ ]: 95 % interval of the measured ratio."] if measured else [])]
    lines += [NO_METER] if by_processor(comparisons) else []
    return [*lines, *(["", *claims_lines(claims, comparisons)] if claims else [])]


def by_processor(comparisons: Sequence[Comparison]) -> bool:
    """Return whether processor time stands for energy anywhere."""
    return any(gain.energy_by == PROCESSOR_S for one in comparisons for gain in one.gains)


def title(comparison: Comparison) -> str:
    """Return where a comparison stands."""
    words = ", ".join(f"{name} {value}" for name, value in comparison.labels.items())
    return f"{words or 'the run'} ({comparison.estimator})"


def panels(comparisons: Sequence[Comparison]) -> list[Panel]:
    """Return bars for every comparison, and beside them a radar where all three dimensions are known."""
    return [panel for one in comparisons for panel in _panels(one)]


def _panels(comparison: Comparison) -> Iterator[Panel]:
    """Yield the charts of one comparison, without what is not known."""
    drawn = [gain for gain in comparison.gains if any(gain.ratios[name] is not None for name in DIMENSIONS)]
    if not drawn:
        return
    yield Panel(
        title(comparison), "", "times the baseline",
        tuple(
            Series(
                name, name, (), tuple(gain.ratios[name] for gain in drawn), "",
                tuple(_interval(gain, name) for gain in drawn),
            )
            for name in DIMENSIONS
            if any(gain.ratios[name] is not None for gain in drawn)
        ),
        tuple(gain.name for gain in drawn),
        one=True,
    )  # fmt: skip
    whole = [gain for gain in drawn if all(gain.ratios[name] is not None for name in DIMENSIONS)]
    if whole:
        lines = tuple(
            Series(gain.name, gain.name, (), tuple(gain.ratios[name] for name in DIMENSIONS))
            for gain in whole
        )
        yield Panel(title(comparison), "", "", lines, DIMENSIONS, radar=True)


def _interval(gain: Gain, dimension: str) -> tuple[float, float] | None:
    """Return between what a ratio lies; None where that is not known."""
    ratio, interval = gain.ratios[dimension], gain.intervals.get(dimension)
    return interval.of(ratio) if ratio is not None and interval is not None else None


def compare_json(comparisons: Sequence[Comparison], baseline: str, claims: Claims | None = None) -> str:
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
        "claims": claims_json(claims, comparisons) if claims else None,
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
    ratio, interval = gain.ratios[name], _interval(gain, name)
    if ratio is None:
        return UNKNOWN
    text = f"{ratio:.2f}"
    if interval:
        text += f" [{interval[0]:.2f}-{interval[1]:.2f}]"
    return paint(text, "green") if gain.improves(name) else text


def _remark(gain: Gain) -> str:
    """Return why there is no ratio."""
    if gain.outcome == "completed":
        return ""
    return paint(("baseline " if gain.of_baseline else "") + gain.outcome.replace("_", " "), "yellow")


def _statements(comparison: Comparison, baseline: str) -> list[str]:
    """Return who leads where, and whether anything improves everything."""
    lines = [
        f"{name}: {_ranked(comparison, name, baseline)}." for name in DIMENSIONS if comparison.ranking(name)
    ]
    if not lines:
        lines = ["Nothing to compare."]
    unknown = [name for name in DIMENSIONS if not comparison.ranking(name)]
    winners = [gain.name for gain in comparison.gains if gain.improves_all]
    if len(unknown) < 2:
        verb, all_of = "improve" if len(winners) > 1 else "improves", "both" if unknown else "all three"
        lines.append(f"{' and '.join(winners) or 'Nothing'} {verb} {all_of} here over {baseline}.")
    front = [gain.name for gain in comparison.front()]
    if front and len(unknown) < 2:
        lines.append(f"Pareto front beside {baseline}: {', '.join(front)}.")
    if unknown == ["EnergyUp"]:
        lines.append("EnergyUp not known: no meter read any energy.")
    reasons = dict.fromkeys(g.reason for g in comparison.gains if g.outcome == "unsupported" and g.reason)
    lines += [f"Not answered: {reason}" for reason in reasons]
    return [line for text in lines for line in wrapped(f"  {text}", indent="  ")]


def _ranked(comparison: Comparison, dimension: str, baseline: str) -> str:
    """Return the optimisations and the baseline from the best down, = between those that print alike."""
    ratios = [(gain.name, gain.ratios[dimension] or 0.0) for gain in comparison.ranking(dimension)]
    ratios = sorted([*ratios, (baseline, 1.0)], key=lambda one: -one[1])
    said = ratios[0][0]
    for (_, above), (name, ratio) in pairwise(ratios):
        said += f" {'=' if f'{above:.2f}' == f'{ratio:.2f}' else '>'} {name}"
    return said


def _gain_json(gain: Gain) -> dict[str, Any]:
    """Return one gain as JSON."""
    found: dict[str, Any] = {
        "name": gain.name, "outcome": gain.outcome, "of_baseline": gain.of_baseline, "reason": gain.reason,
        "energy_by": gain.energy_by,
    }  # fmt: skip
    for name in DIMENSIONS:
        found[name] = gain.ratios[name]
        if interval := _interval(gain, name):
            found[f"{name}_interval"] = list(interval)
    return found
