r"""SpeedUp, MemoryUp and EnergyUp: what an optimisation gains over the run without it.

$$ SpeedUp = \frac{T_{base}}{T_{opt}}, \quad MemoryUp = \frac{M_{base}}{M_{opt}}, \quad
   EnergyUp = \frac{E_{base}}{E_{opt}} $$

T and E are of one sequence, so that a change of the batch gains nothing by itself; M is the peak
of torch's allocator on the fullest GPU. Above 1 is better. Chen et al. 2024 (IPDPSW, pp. 929-937)
name the three; the formulas are our reconstruction, for only their abstract could be had.

Where both were measured on a processor and no meter read its joules, E is the processor time of all
processes: what a core draws while it works is charged, what the machine draws anyway is not.

Measured: the ratio of medians over all steps of all repetitions, with the 95 % interval of a
bootstrap that draws repetitions first and then steps. Predicted: the ratio alone, for most of the
error of two predictions of like runs is common to both, and how much is not known.

[m of n]: Bickel, Götze, van Zwet 1997, Statistica Sinica 7, 1-31: fewer draws than there are, scaled.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import exp, log, sqrt
from operator import ge
from random import Random
from statistics import median
from typing import NamedTuple

from finegauge.campaign.axes import BASELINE, PREDICTED, SWITCH, Result
from finegauge.errors import FieldError, UnknownKeyError, UnknownNameError
from finegauge.profile import Interval
from finegauge.run.field import number
from finegauge.store.document import Facts

DIMENSIONS = ("SpeedUp", "MemoryUp", "EnergyUp")
DRAWS = 400
MOST_DRAWN = 200  # repetitions in one draw; of more, the interval is that of so many, made narrower
JOULES, PROCESSOR_S = "joules", "processor seconds"
LEAST_GAIN = 1.005  # without an interval: what is less is printed as 1.00
Ratios = Mapping[str, float | None]
Weights = Mapping[str, float]  # by dimension, what one matters to a user


def weights_of(text: str) -> Weights:
    """Return the weights of "speed=2,memory=1,energy=1"; what is not named weighs nothing.

    Raises: FieldError, UnknownKeyError.
    """
    names = {name.removesuffix("Up").casefold(): name for name in DIMENSIONS}
    found: dict[str, float] = {}
    for word in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = word.partition("=")
        if name.strip().casefold() not in names:
            raise UnknownKeyError("--weigh", name.strip(), known=names)
        found[names[name.strip().casefold()]] = number(0.0, 1e6)(name, value if equals else "1")
    if not any(found.values()):
        raise FieldError("--weigh needs a weight above 0, such as speed=2,memory=1,energy=1.")
    return found


class Gain(NamedTuple):
    """What one optimisation gains."""

    name: str
    ratios: Ratios  # by dimension; None where a side is not known
    intervals: Mapping[str, Interval]  # of measured ratios, as factors of them
    outcome: str = "completed"
    reason: str = ""
    of_baseline: bool = False  # whether the outcome is that of the run without it
    energy_by: str = JOULES  # or PROCESSOR_S: what EnergyUp is the ratio of

    def improves(self, dimension: str) -> bool:
        """Return whether it is better than without, beyond the interval where there is one."""
        ratio = self.ratios[dimension]
        if ratio is None:
            return False
        interval = self.intervals.get(dimension)
        return interval.of(ratio)[0] > 1.0 if interval else ratio >= LEAST_GAIN

    @property
    def improves_all(self) -> bool:
        """Return whether it improves every dimension that is known, of which there are two at least."""
        known = [name for name in DIMENSIONS if self.ratios[name] is not None]
        return len(known) > 1 and all(self.improves(name) for name in known)


class Comparison(NamedTuple):
    """Optimisations of one run by one estimator, held against the run without them."""

    labels: Mapping[str, str]  # of the other axes
    estimator: str
    gains: tuple[Gain, ...]

    def ranking(self, dimension: str) -> list[Gain]:
        """Return the gains that are known in one dimension, the best first."""
        known = [gain for gain in self.gains if gain.ratios[dimension] is not None]
        return sorted(known, key=lambda gain: -(gain.ratios[dimension] or 0.0))

    def weighed(self, weights: Weights) -> dict[str, float]:
        """Return the geometric mean of the ratios by `weights`, the best first; 1 is the baseline's.

        Who lacks a ratio that weighs something is not among them.
        """
        total, asked = sum(weights.values()), [name for name, weight in weights.items() if weight]
        known = [gain for gain in self.gains if all(gain.ratios[name] for name in asked)]
        means = {
            gain.name: exp(sum(weights[name] * log(gain.ratios[name] or 1.0) for name in asked) / total)
            for gain in known
        }
        return dict(sorted(means.items(), key=lambda one: -one[1]))

    def front(self) -> list[Gain]:
        """Return the optimisations that neither another nor the baseline beats."""
        names = [n for n in DIMENSIONS if any(gain.ratios[n] is not None for gain in self.gains)]
        known = [gain for gain in self.gains if all(gain.ratios[n] is not None for n in names)]
        rivals = [dict.fromkeys(DIMENSIONS, 1.0), *(gain.ratios for gain in known)]
        return [one for one in known if not any(_beats(other, one.ratios, names) for other in rivals)]


Switches = Mapping[str, Sequence[Facts]]  # the repetitions of each
Point = tuple[Mapping[str, str], str, Switches]  # labels of the other axes, estimator


def points_of(
    results: Iterable[Result], baseline: str = BASELINE, axes: Mapping[str, Sequence[str]] | None = None
) -> list[Point]:
    """Return every point of a campaign's other axes that has the switch `baseline` and another.

    `axes` is the order of points and of switches; without it, that of the results.
    """
    points: dict[tuple[tuple[tuple[str, str], ...], str], dict[str, list[Facts]]] = {}
    for result in results:
        others = tuple((name, value) for name, value in result.labels.items() if name != SWITCH)
        switches = points.setdefault((others, result.estimator), {})
        switches.setdefault(result.labels.get(SWITCH, baseline), []).append(result.facts)
    order = {(axis, value): n for axis, values in (axes or {}).items() for n, value in enumerate(values)}

    def place(label: tuple[str, str]) -> int:
        return order.get(label, len(order))

    found: list[Point] = [
        (dict(others), estimator, dict(sorted(switches.items(), key=lambda one: place((SWITCH, one[0])))))
        for (others, estimator), switches in points.items()
        if baseline in switches and len(switches) > 1
    ]
    return sorted(found, key=lambda one: (one[1] != PREDICTED, *map(place, one[0].items())))


def comparison_at(point: Point, baseline: str = BASELINE) -> Comparison:
    """Return what the other switches of a point gain over the `baseline`."""
    labels, estimator, switches = point
    others = {name: facts for name, facts in switches.items() if name != baseline}
    return Comparison(labels, estimator, gains_over(switches[baseline], others))


def compare_results(
    results: Iterable[Result], baseline: str = BASELINE, axes: Mapping[str, Sequence[str]] | None = None
) -> list[Comparison]:
    """Return the comparison at every one of `points_of`."""
    return [comparison_at(point, baseline) for point in points_of(results, baseline, axes)]


def gains_over(base: Sequence[Facts], others: Mapping[str, Sequence[Facts]]) -> tuple[Gain, ...]:
    """Return what each of `others` gains over `base`, each a run's repetitions."""
    return tuple(_gain(name, base, profiles) for name, profiles in others.items())


def _gain(name: str, base: Sequence[Facts], profiles: Sequence[Facts]) -> Gain:
    """Return what one run gains over another.

    Of a run that is predicted not to fit, what it would hold is known all the same.
    """
    for of_baseline, group in ((False, profiles), (True, base)):
        failed = next((p for p in group if p.outcome != "completed"), None)
        if failed is not None:
            fits_not = all(p.outcome in ("completed", "out_of_memory") for p in (*profiles, *base))
            held = _ratio(_bytes(base), _bytes(profiles)) if fits_not else None
            ratios = {**dict.fromkeys(DIMENSIONS), "MemoryUp": held}
            return Gain(name, ratios, {}, failed.outcome, failed.reason, of_baseline)
    energy_by, ratio = _energy(base, profiles)
    ratios = {
        "SpeedUp": _ratio(_seconds(base), _seconds(profiles)),
        "MemoryUp": _ratio(_bytes(base), _bytes(profiles)),
        "EnergyUp": ratio,
    }
    intervals = {}
    if ratios["SpeedUp"] and (interval := _bootstrap(base, profiles)):
        intervals["SpeedUp"] = interval
    return Gain(name, ratios, intervals, energy_by=energy_by)


def _seconds(profiles: Sequence[Facts]) -> float | None:
    """Return the seconds of one sequence: the median of all steps, or what is predicted."""
    steps = ((p, p.step_times_s or filter(None, [p.step_s])) for p in profiles)
    return _median(s / p.step_sequences for p, times in steps if p.step_sequences for s in times)


def _median(values: Iterable[float]) -> float | None:
    known = list(values)
    return median(known) if known else None


def _bytes(profiles: Sequence[Facts]) -> float | None:
    return _median(p.peak_memory_bytes for p in profiles if p.peak_memory_bytes is not None)


def _joules(profiles: Sequence[Facts]) -> float | None:
    known = ((p.step_energy_j, p.step_sequences) for p in profiles)
    return _median(joules / sequences for joules, sequences in known if joules and sequences)


def _processor_s(profiles: Sequence[Facts]) -> float | None:
    """Return the processor seconds of one sequence; None where anything but a processor did the work."""
    if not all(p.is_processor for p in profiles):
        return None
    known = ((p.processor_s, p.step_sequences) for p in profiles)
    return _median(busy / sequences for busy, sequences in known if busy and sequences)


def _energy(base: Sequence[Facts], profiles: Sequence[Facts]) -> tuple[str, float | None]:
    joules = _joules(base), _joules(profiles)
    if joules == (None, None) and (ratio := _ratio(_processor_s(base), _processor_s(profiles))):
        return PROCESSOR_S, ratio
    return JOULES, _ratio(*joules)


def _ratio(base: float | None, other: float | None) -> float | None:
    return base / other if base and other else None


def _bootstrap(base: Sequence[Facts], profiles: Sequence[Facts]) -> Interval | None:
    """Return the 95 % interval of SpeedUp as factors of it; None where steps were not measured."""
    if not all(len(p.step_times_s) > 1 for p in (*base, *profiles)):
        return None
    random = Random(0)
    middle = _ratio(_seconds(base), _seconds(profiles))
    drawn = sorted(_drawn(base, random) / _drawn(profiles, random) for _ in range(DRAWS))
    low, high = drawn[round(0.025 * (DRAWS - 1))], drawn[round(0.975 * (DRAWS - 1))]
    if not middle:
        return None
    narrower = sqrt(
        min(1.0, MOST_DRAWN / max(len(base), len(profiles)))
    )  # an error falls with the root [m of n]
    return Interval(1.0 + (low / middle - 1.0) * narrower, 1.0 + (high / middle - 1.0) * narrower)


def _drawn(profiles: Sequence[Facts], random: Random) -> float:
    """Return the median seconds of one sequence over steps drawn from repetitions drawn."""
    chosen = random.choices(profiles, k=min(len(profiles), MOST_DRAWN))
    return median(
        step / profile.step_sequences
        for profile in chosen
        for step in random.choices(profile.step_times_s, k=len(profile.step_times_s))
    )


def _beats(one: Ratios, other: Ratios, names: Sequence[str]) -> bool:
    """Return whether `one` is nowhere worse than `other`, and somewhere better."""
    ours, theirs = ([ratios[name] or 0.0 for name in names] for ratios in (one, other))
    return ours != theirs and all(map(ge, ours, theirs))


PHASE = "phase"  # the axis by which a sweep tells phases apart
LITTLE = 1.1  # no more than a tenth: an EnergyUp that saves little energy, speeds that are much alike


class Answer(NamedTuple):
    """Whether a claim holds at one point."""

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


class Place(NamedTuple):
    """One point of a campaign, and the figures that decide there."""

    labels: Mapping[str, str]
    because: str


class ClaimHeld(NamedTuple):
    """One sentence of a paper against all points of one estimator."""

    claim: str
    says: str
    estimator: str
    verdict: str  # agrees, partly, disagrees or unknown
    holds_at: tuple[Place, ...]
    fails_at: tuple[Place, ...]
    silent_at: int  # points that the claim is not about, or that lack a figure


def claims_called(name: str) -> Claims:
    """Return the claims of that name.

    Raises: UnknownNameError naming its neighbours.
    """
    if name not in CLAIMS:
        raise UnknownNameError("set of claims", name, known=CLAIMS)
    return CLAIMS[name]


def hold(claims: Claims, comparisons: Iterable[Comparison]) -> list[ClaimHeld]:
    """Return each claim against the points of each estimator."""
    by: dict[str, list[Comparison]] = {}
    for one in comparisons:
        by.setdefault(one.estimator, []).append(one)
    return [_held(claim, estimator, points) for estimator, points in by.items() for claim in claims.claims]


def _held(claim: Claim, estimator: str, points: Sequence[Comparison]) -> ClaimHeld:
    answers = [(point.labels, claim.question(point)) for point in points]
    holds, fails = (
        tuple(Place(labels, one.because) for labels, one in answers if one and one.holds == expected)
        for expected in (True, False)
    )
    verdict = "partly" if holds and fails else "agrees" if holds else "disagrees" if fails else "unknown"
    silent = len(points) - len(holds) - len(fails)
    return ClaimHeld(claim.name, claim.says, estimator, verdict, holds, fails, silent)


def improves(name: str, dimension: str) -> Question:
    """Return the question whether an optimisation improves a dimension, beyond its interval.

    It is not asked where the optimisation changes nothing at all, as ZeRO-1 among one rank.
    """

    def ask(point: Comparison) -> Answer | None:
        gain = next((one for one in point.gains if one.name == name), None)
        ratio = gain.ratios[dimension] if gain is not None else None
        if gain is None or ratio is None or {*gain.ratios.values()} == {1.0}:
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
    """Say whether no optimisation leads in every dimension that is known, of which there are two at least.

    Of one optimisation alone, as where the others do not fit, nothing is said.
    """
    if len(point.ranking("SpeedUp")) < 2:
        return None
    leaders = {name: ranked[0].name for name in DIMENSIONS if (ranked := point.ranking(name))}
    if len(leaders) < 2:
        return None
    said = ", ".join(f"{name} {leader}" for name, leader in leaders.items())
    return Answer(len(set(leaders.values())) > 1, said)


def speed_varies(point: Comparison) -> Answer | None:
    """Say whether the quickest is more than a tenth quicker than the slowest, the baseline among them."""
    ranking = [(gain.ratios["SpeedUp"] or 0.0, gain.name) for gain in point.ranking("SpeedUp")]
    if len(ranking) < 2:
        return None
    (most, quick), (least, slow) = max([*ranking, (1.0, "baseline")]), min([*ranking, (1.0, "baseline")])
    return Answer(most > LITTLE * least, f"{quick} {most:.2f}, {slow} {least:.2f}")


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
ZHANG = Claims(
    name="zhang2023",
    source="the abstract of Zhang et al. 2023 (arXiv:2311.03687)",
    remark="The abstract prints no figures; more than a tenth as significant, and that the best choice "
    "is difficult to choose because none leads in everything, are our reconstruction.",
    claims=(
        Claim("speed-varies", "the runtime performance can vary significantly", speed_varies),
        Claim("none-best", "it is difficult to choose the best configuration", none_is_best),
    ),
)
CLAIMS: Mapping[str, Claims] = {claims.name: claims for claims in (CHEN, ZHANG)}
