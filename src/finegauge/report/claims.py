"""How a comparison stands to what a paper claims: each sentence, where it holds and where not."""

from collections.abc import Mapping, Sequence
from typing import Any

from finegauge.campaign.claims import Claims, Held, hold
from finegauge.campaign.gains import Comparison
from finegauge.report.terminal import paint, wrapped

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
