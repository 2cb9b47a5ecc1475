"""What a paper claims of optimisations, held against a comparison: where it holds and where not.

A claim is a sentence and a question to one point of a campaign: yes, no, or nothing where the
claim is not about that point or a figure it needs is not known. Only what the abstract of

    Chen, Soto, Tuttle, Zong 2024: SpeedUp, MemoryUp, EnergyUp (IPDPSW, pp. 929-937,
    10.1109/IPDPSW63119.2024.00162)

says is held against anything: its text could not be had. It names ZeRO-1 and gradient checkpointing;
that the other three of the five optimisations are ZeRO-2, ZeRO-3 and LoRA is our reconstruction.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from finegauge.campaign.gains import DIMENSIONS, Comparison
from finegauge.errors import UnknownNameError

PHASE = "phase"  # the axis by which a sweep tells phases apart
LITTLE = 1.1  # EnergyUp up to which little energy is saved: no more than a tenth


class Answer(NamedTuple):
    """What one point says of a claim."""

    holds: bool
    because: str  # the figure that decides


Question = Callable[[Comparison], Answer | None]


class Claim(NamedTuple):
    """One sentence of a paper."""

    name: str
    says: str
    question: Question


class Claims(NamedTuple):
    """What one paper claims."""

    name: str
    source: str
    remark: str  # what is ours in it
    claims: tuple[Claim, ...]


class Held(NamedTuple):
    """A claim against all points of one estimator."""

    claim: Claim
    estimator: str
    holds_at: tuple[tuple[Mapping[str, str], str], ...]  # labels, and the figure that decides
    fails_at: tuple[tuple[Mapping[str, str], str], ...]
    silent_at: int  # points that the claim is not about, or of which a figure is missing

    @property
    def verdict(self) -> str:
        """Return agrees, disagrees, partly or unknown."""
        if not self.holds_at and not self.fails_at:
            return "unknown"
        return "partly" if self.holds_at and self.fails_at else "agrees" if self.holds_at else "disagrees"


def claims_called(name: str) -> Claims:
    """Return the claims of that name.

    Raises: UnknownNameError naming its neighbours.
    """
    if name not in CLAIMS:
        raise UnknownNameError("set of claims", name, known=CLAIMS)
    return CLAIMS[name]


def hold(claims: Claims, comparisons: Iterable[Comparison]) -> list[Held]:
    """Return each claim against the points of each estimator."""
    by: dict[str, list[Comparison]] = {}
    for one in comparisons:
        by.setdefault(one.estimator, []).append(one)
    return [_held(claim, estimator, points) for estimator, points in by.items() for claim in claims.claims]


def _held(claim: Claim, estimator: str, points: Sequence[Comparison]) -> Held:
    """Return one claim against the points of one estimator."""
    holds: list[tuple[Mapping[str, str], str]] = []
    fails: list[tuple[Mapping[str, str], str]] = []
    silent = 0
    for point in points:
        answer = claim.question(point)
        if answer is None:
            silent += 1
        else:
            (holds if answer.holds else fails).append((point.labels, answer.because))
    return Held(claim, estimator, tuple(holds), tuple(fails), silent)


def improves(name: str, dimension: str) -> Question:
    """Return the question whether an optimisation improves a dimension, beyond its interval."""

    def ask(point: Comparison) -> Answer | None:
        gain = next((one for one in point.gains if one.name == name), None)
        ratio = gain.ratios[dimension] if gain is not None else None
        if gain is None or ratio is None:
            return None
        return Answer(gain.improves(dimension), f"{dimension} {ratio:.2f}")

    return ask


def ranks(name: str, dimension: str, place: int, phases: Sequence[str] = ()) -> Question:
    """Return the question whether an optimisation has a place in a dimension: 0 the best, -1 the lowest."""

    def ask(point: Comparison) -> Answer | None:
        if phases and point.labels.get(PHASE) not in phases:
            return None
        ranking = point.ranking(dimension)
        if len(ranking) < 2 or name not in [gain.name for gain in ranking]:
            return None
        there = ranking[place]
        own = next(gain for gain in ranking if gain.name == name).ratios[dimension] or 0.0
        if there.name == name:
            return Answer(holds=True, because=f"{own:.2f}")
        return Answer(holds=False, because=f"{own:.2f}, {there.name} {there.ratios[dimension]:.2f}")

    return ask


def none_is_best(point: Comparison) -> Answer | None:
    """Say whether no optimisation leads in every dimension that is known, of which there are two at least."""
    leaders = {name: ranked[0].name for name in DIMENSIONS if (ranked := point.ranking(name))}
    if len(leaders) < 2:
        return None
    said = ", ".join(f"{name} {leader}" for name, leader in leaders.items())
    return Answer(len(set(leaders.values())) > 1, said)


def little_energy_saved(point: Comparison) -> Answer | None:
    """Say whether no optimisation saves more than a tenth of the energy."""
    ranking = point.ranking("EnergyUp")
    if not ranking:
        return None
    best = ranking[0].ratios["EnergyUp"] or 0.0
    return Answer(best <= LITTLE, f"{ranking[0].name} {best:.2f}")


CHEN = Claims(
    name="chen2024",
    source="the abstract of Chen et al. 2024 (IPDPSW, 10.1109/IPDPSW63119.2024.00162)",
    remark="The abstract names ZeRO-1 and gradient checkpointing; ZeRO-2, ZeRO-3 and LoRA as the other three "
    "optimisations, the formulas, and EnergyUp of at most 1.1 as little are our reconstruction.",
    claims=(
        Claim("zero1-speed", "ZeRO-1 speeds up all phases, whatever the hardware",
              improves("zero1", "SpeedUp")),
        Claim("checkpointing-memory", "checkpointing is best in MemoryUp in phases 1 and 2",
              ranks("checkpointing", "MemoryUp", 0, ("sft", "reward"))),
        Claim("checkpointing-energy", "checkpointing is lowest in EnergyUp",
              ranks("checkpointing", "EnergyUp", -1)),
        Claim("none-best", "no optimisation is best in everything", none_is_best),
        Claim("little-energy", "no optimisation saves much energy", little_energy_saved),
    ),
)  # fmt: skip
CLAIMS: Mapping[str, Claims] = {CHEN.name: CHEN}
