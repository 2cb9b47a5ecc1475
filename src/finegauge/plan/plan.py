"""The cheapest, fastest or greenest way to do a run: the plan to take, what surrounds it, and why not others.

    searched: GPU x count x provider x method x layout x micro-batch x checkpointing x optimizer x offload
    kept:     model, data, samples of an optimizer step, sequence length, adapters, epochs

A plan counts as fitting where the probability that its longest batch runs out of memory is below the
allowed risk. Everything shown of the plan that is taken comes from `predict` and `quote` of its run.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from finegauge.errors import FineGaugeError, UnsupportedError
from finegauge.plan.verdict import RISKY_FROM_FRACTION
from finegauge.plan.whatif import Standing, standing, with_known_length
from finegauge.predict.phases import TRAINED
from finegauge.workload.method import LORA_FIELDS
from finegauge.workload.parallelism import MODEL_DEGREES

if TYPE_CHECKING:
    from finegauge.plan.alternatives import Alternative
    from finegauge.plan.plan_choice import Choice, Found
    from finegauge.plan.quote import Quote
    from finegauge.plan.relaxations import Relaxation
    from finegauge.plan.search import Candidate, Limits
    from finegauge.plan.space import Space
    from finegauge.profile import Profile
    from finegauge.workload.run import Run

OBJECTIVES = ("cost", "time", "energy")
MOST_OF_FRONT = 10
Heard = Callable[[float], None]
Searched = Callable[["Run", "Wanted", Heard | None], "Found"]


class Wanted(NamedTuple):
    """What is asked of a plan; None where there is no limit."""

    within_s: float | None = None
    budget_usd: float | None = None
    risk_fraction: float = RISKY_FROM_FRACTION
    minimise: str = "cost"
    spot: bool = False
    keep_method: bool = False
    gpus: tuple[str, ...] = ()  # only these; all of the catalogue where empty
    providers: tuple[str, ...] = ()
    max_gpus: int = 64
    framework: str = ""  # whose files are to say it; "" where it is not written down


class Miss(NamedTuple):
    """The plan that comes closest to the limits where none keeps them all."""

    limit: str  # memory, time or budget; unknown where a price or a power is
    over_fraction: float | None  # beyond the limit
    candidate: "Candidate | None"


class Plan(NamedTuple):
    """The plan to take, and what surrounds it; what is about it is empty where there is none."""

    run: "Run"  # as it is
    wanted: Wanted
    assumed_samples: int | None  # where the run does not state its length
    base: Standing | None  # the run as it is; None where it states no GPU or has no answer
    front: tuple["Candidate", ...]  # cost, time, energy; by cost. Beyond the limits where nothing keeps them
    num_on_front: int
    num_candidates: int
    num_evaluated: int
    search_s: float
    notes: tuple[str, ...]  # what the framework to export to runs otherwise
    winner: "Candidate | None" = None
    profile: "Profile | None" = None  # of the winner's step
    quote: "Quote | None" = None  # of the winner
    changes: Mapping[str, Any] = {}  # what the winner changes of the run
    asks: tuple[str, ...] = ()  # what those changes ask for in return
    alternatives: Mapping[str, tuple["Alternative", ...]] = {}
    relaxations: tuple["Relaxation", ...] = ()
    miss: Miss | None = None  # what comes closest, where there is no plan


def plan(
    run: "Run", wanted: Wanted | None = None, *, searched: Searched | None = None, heard: Heard | None = None
) -> Plan:
    """Return the best way to do `run`.

    Args:
        run: The question; its GPU, if it states one, is only where it starts from.
        wanted: Limits, and what to minimise; the cheapest of all by default.
        searched: Who evaluates the plans; FineGauge's vectorised search by default.
        heard: Told now and then which fraction of the search is done.

    Raises: UnsupportedError where NumPy is missing, or where the run's phase cannot be searched.
    """
    from time import perf_counter

    from finegauge.plan.plan_choice import Choice

    wanted = wanted or Wanted()
    sized, assumed = with_known_length(run)
    notes: tuple[str, ...] = ()
    if wanted.framework:
        from finegauge.plan.plan_export import as_said

        sized, notes = as_said(sized, wanted.framework)
    started = perf_counter()
    result = (searched or _search)(sized, wanted, heard)
    took_s = perf_counter() - started
    choice = Choice.of(sized, result, _limits(wanted), wanted.minimise, spot=wanted.spot)
    best = choice.best(choice.allowed())
    front, num_on_front = _front(choice, best)
    whole = Plan(
        run=sized,
        wanted=wanted,
        assumed_samples=assumed,
        base=_base(sized),
        front=front,
        num_on_front=num_on_front,
        num_candidates=result.num_candidates,
        num_evaluated=result.num_evaluated,
        search_s=took_s,
        notes=notes,
    )
    if best is None:
        return whole._replace(miss=_miss(choice, wanted))
    return _with_winner(whole, choice, best)


def _with_winner(whole: Plan, choice: "Choice", best: int) -> Plan:
    """Return the plan with what is told about its winner."""
    from finegauge.plan.alternatives import alternatives
    from finegauge.plan.quote import quote
    from finegauge.plan.relaxations import relaxations
    from finegauge.predict import predict

    winner = choice.result.candidate(best)
    profile = predict(winner.run)
    return whole._replace(
        winner=winner,
        profile=profile,
        quote=quote(winner.run, profile),
        changes=changes(whole.run, winner.run),
        asks=tuple(dict.fromkeys(asks(whole.run, winner.run))),
        alternatives=alternatives(choice, best),
        relaxations=relaxations(choice, best, margin_ratio=_margin_ratio(profile, whole.wanted)),
    )


def changes(run: "Run", planned: "Run") -> dict[str, Any]:
    """Return the fields that `planned` has otherwise than `run`, and that mean anything to it."""
    before = run.fields()
    idle = {"provider", "region", "gpu", "num_gpus", "num_nodes", "node_network_gbit_per_s"}
    idle |= {"data_parallel_replicate"} | (set() if planned.trains_adapters else set(LORA_FIELDS))
    if planned.sharding != "hybrid":
        idle |= {"data_parallel_shard"}
    return {n: v for n, v in planned.fields().items() if v != before[n] and n not in idle}


def asks(run: "Run", planned: "Run") -> Iterator[str]:
    """Yield what the switches that `planned` has and `run` has not ask for in return."""
    from finegauge.plan.switches import ALREADY, SEARCHING, SWITCHES

    for switch in SWITCHES:
        if not switch.breaks or switch.name in SEARCHING:
            continue
        degree = switch.name.replace("-", "_")
        if degree in MODEL_DEGREES:
            has = getattr(planned, degree) > getattr(run, degree)
        else:
            has = switch.change(planned) == ALREADY and switch.change(run) != ALREADY
        if has and not (switch.name == "lora" and run.trains_adapters):
            yield switch.breaks


def _space(run: "Run", wanted: Wanted) -> "Space":
    """Return what is searched."""
    from finegauge.plan.space import space_of

    space = space_of(
        run,
        keep_method=wanted.keep_method,
        gpus=wanted.gpus or None,
        providers=wanted.providers or None,
        max_gpus=wanted.max_gpus,
    )
    if not wanted.framework:
        return space
    from finegauge.plan.plan_export import within

    return within(space, wanted.framework)


def _search(run: "Run", wanted: Wanted, heard: Heard | None) -> "Found":
    """Return what FineGauge's own search finds."""
    try:
        import numpy  # noqa: F401  # as search needs it
    except ImportError:
        raise UnsupportedError("Planning needs NumPy: pip install 'finegauge[plan]'.") from None
    space = _space(run, wanted)
    if run.phase in TRAINED:
        from finegauge.plan.search import search

        return search(space, heard=heard)
    from finegauge.plan.plan_loop import search_one_by_one

    return search_one_by_one(space, heard)


def _limits(wanted: Wanted) -> "Limits":
    """Return what a plan must keep."""
    from finegauge.plan.search import Limits

    return Limits(
        within_s=wanted.within_s,
        budget_usd=wanted.budget_usd,
        out_of_memory_fraction=wanted.risk_fraction,
    )


def _base(run: "Run") -> Standing | None:
    """Return how the run stands as it is, where it can be answered."""
    if run.gpu is None:
        return None
    try:
        return standing(run)
    except FineGaugeError:
        return None


def _front(choice: "Choice", best: int | None) -> tuple[tuple["Candidate", ...], int]:
    """Return a few plans of the Pareto front with the one to take, by cost, and how many it has.

    A plan whose energy is not known counts as the thirstiest.
    """
    import numpy as np

    from finegauge.plan.pareto import front, representatives

    rows = np.flatnonzero(choice.allowed() if best is not None else choice.fits() & choice.sensible)
    figures = [choice.column(name)[rows] for name in OBJECTIVES]
    energy = figures[2]
    figures[2] = np.where(np.isnan(energy), np.max(energy, initial=1.0, where=~np.isnan(energy)), energy)
    on_front = front(figures)
    chosen = on_front[representatives([column[on_front] for column in figures], MOST_OF_FRONT)]
    shown = set(rows[chosen].tolist()) | ({best} if best is not None else set())
    by_cost = sorted(shown, key=lambda row: (float(choice.column("cost")[row]), row))
    return tuple(choice.result.candidate(row) for row in by_cost), len(on_front)


def _miss(choice: "Choice", wanted: Wanted) -> Miss:
    """Return the plan that comes closest to the limits; the one that needs least where none came near."""
    from finegauge.plan.alternatives import nearest_miss
    from finegauge.plan.plan_loop import leanest

    index, limit, over = nearest_miss(choice, choice.sensible)
    if index is not None:
        return Miss(limit, over, choice.result.candidate(index))
    found = leanest(_space(choice.run, wanted))
    return Miss(limit, None if found is None else found.memory_bytes / found.capacity_bytes - 1.0, found)


def _margin_ratio(profile: "Profile", wanted: Wanted) -> float:
    """Return by which factor of its median a plan's memory must stay below the card's to keep the risk."""
    from statistics import NormalDist

    from finegauge.predict.uncertainty import P90

    interval = profile.source.memory_interval
    if interval is None:
        return 1.0
    return float(interval.high_ratio ** (NormalDist().inv_cdf(1.0 - wanted.risk_fraction) / P90))
