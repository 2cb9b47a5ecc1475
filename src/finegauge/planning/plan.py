"""The cheapest, fastest or greenest way to do a run: the plan to take, what surrounds it, and why not others.

    searched: GPU x count x provider x method x layout x micro-batch x checkpointing x optimizer x offload
    kept:     model, data, samples of an optimizer step, sequence length, adapters, epochs

A plan counts as fitting where the probability that its longest batch runs out of memory is below the
allowed risk. Everything shown of the plan that is taken comes from `predict` and `quote` of its run.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from finegauge.errors import FieldError, FineGaugeError, InputError, UnsupportedError
from finegauge.formats.sheet import plain
from finegauge.formats.writing import Written, as_written, write
from finegauge.planning.whatif import Standing, standing, with_known_length
from finegauge.prediction.phases import TRAINED
from finegauge.prediction.uncertainty import RISKY_FROM_FRACTION
from finegauge.run.rules import DATA_DEGREES, LORA_FIELDS, MODEL_DEGREES

if TYPE_CHECKING:
    from finegauge.catalogue.offers import Offer
    from finegauge.planning.quote import Quote
    from finegauge.planning.search import Candidate, Limits
    from finegauge.planning.selection import Alternative, Choice, Found, Relaxation
    from finegauge.planning.space import Space
    from finegauge.profile import Profile
    from finegauge.run.run import Run

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

    from finegauge.planning.selection import Choice

    wanted = wanted or Wanted()
    sized, assumed = with_known_length(run)
    notes: tuple[str, ...] = ()
    if wanted.framework:
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
    from finegauge.planning.quote import quote
    from finegauge.planning.selection import alternatives, relaxations
    from finegauge.prediction.predictor import predict

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
    from finegauge.planning.switches import ALREADY, SEARCHING, SWITCHES

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
    from finegauge.planning.space import space_of

    space = space_of(
        run,
        keep_method=wanted.keep_method,
        gpus=wanted.gpus or None,
        providers=wanted.providers or None,
        max_gpus=wanted.max_gpus,
    )
    if not wanted.framework:
        return space

    return within(space, wanted.framework)


def _search(run: "Run", wanted: Wanted, heard: Heard | None) -> "Found":
    """Return what FineGauge's own search finds."""
    try:
        import numpy  # noqa: F401  # as search needs it
    except ImportError:
        raise UnsupportedError("Planning needs NumPy: pip install 'finegauge[plan]'.") from None
    space = _space(run, wanted)
    if run.phase in TRAINED:
        from finegauge.planning.search import search

        return search(space, heard=heard)
    from finegauge.planning.search import search_one_by_one

    return search_one_by_one(space, heard)


def _limits(wanted: Wanted) -> "Limits":
    """Return what a plan must keep."""
    from finegauge.planning.search import Limits

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

    from finegauge.planning.selection import front, representatives

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
    from finegauge.planning.search import leanest
    from finegauge.planning.selection import nearest_miss

    index, limit, over = nearest_miss(choice, choice.sensible)
    if index is not None:
        return Miss(limit, over, choice.result.candidate(index))
    found = leanest(_space(choice.run, wanted))
    return Miss(limit, None if found is None else found.memory_bytes / found.capacity_bytes - 1.0, found)


def _margin_ratio(profile: "Profile", wanted: Wanted) -> float:
    """Return by which factor of its median a plan's memory must stay below the card's to keep the risk."""
    from statistics import NormalDist

    from finegauge.prediction.uncertainty import P90

    interval = profile.source.memory_interval
    if interval is None:
        return 1.0
    return float(interval.high_ratio ** (NormalDist().inv_cdf(1.0 - wanted.risk_fraction) / P90))


ONE_GPU: Mapping[str, Any] = {
    **dict.fromkeys(("num_gpus", "num_nodes", *MODEL_DEGREES, "expert_parallel"), 1),
    **dict.fromkeys(DATA_DEGREES),  # what the others leave
    "sharding": "none",
    "cpu_offload": "none",
}
VARIED = ("optimizer", "activation_checkpointing", "packing", "sharding", "cpu_offload")  # on their own
RANKS = 8  # of one node, on which options of sharding are tried


class Said(NamedTuple):
    """A run as a framework's files mean it."""

    run: "Run"
    notes: tuple[str, ...]  # what they mean otherwise


def as_said(run: "Run", framework: str) -> Said:
    """Return `run` with the settings that it has as files of `framework`, its GPUs aside.

    Raises: InputError where the framework cannot train this at all.
    """
    alone = run.replace(origin="plan", **ONE_GPU)
    changes: dict[str, Any] = {"framework": as_written(alone, framework)[0].framework}
    for probe in ({}, {"activation_checkpointing": "full"}, {"packing": True}):
        try:
            asked = alone.replace(origin="plan", **probe)
            _, found = as_written(asked, framework)
        except InputError:  # what the probe adds cannot be said
            continue
        changes |= {
            name: written
            for name, was, written in found
            if was == getattr(alone, name) and not (name == "padding" and "packing" in probe)
        }  # of the run as it is, not of the probe
    notes = tuple(
        f"Planned with {name}={plain(value)}, as {framework} runs it, not {plain(getattr(run, name))}."
        for name, value in changes.items()
        if name != "framework"
    )
    return Said(run.replace(origin=f"as {framework} runs it", **changes), notes)


def within(space: "Space", framework: str) -> "Space":
    """Return what of `space` the files of `framework` can say.

    Raises: InputError where nothing of it can be said.
    """
    alone = space.run.replace(origin="plan", **ONE_GPU)

    def sayable(options: Iterable[Any], name: str = "") -> tuple[Any, ...]:
        return tuple(one for one in options if _says(alone, {name: one} if name else one, framework))

    on_several = tuple(one for one in space.layouts if _says(alone, one, framework, ranks=RANKS))
    on_one = tuple(one for one in sayable(space.layouts) if one not in on_several)
    if on_several:  # whose data ranks always share something: FSDP's, of torchtune
        on_one = tuple(one for one in on_one if one["sharding"] == "none")
    found = space._replace(
        methods=tuple(_meant(alone, one, framework) for one in sayable(space.methods)),
        checkpointing=sayable(space.checkpointing, "activation_checkpointing"),
        packing=sayable(space.packing, "packing"),
        divisions=sayable(space.divisions),
        layouts=on_several + on_one,
        alone=on_one,
        data_parallel=space.data_parallel if on_several else (1,),
        optimizers=sayable(space.optimizers, "optimizer"),
        packed=_packed(alone, framework),
    )
    for name in ("methods", "checkpointing", "packing", "divisions", "layouts", "optimizers"):
        if not getattr(found, name):
            raise InputError(f"{framework} can say none of the {name} that are searched; leave --export out.")
    return found


def _meant(alone: "Run", method: Mapping[str, Any], framework: str) -> Mapping[str, Any]:
    """Return a method with what the files mean by it: in which format its adapters are, and the like."""
    try:
        _, found = as_written(alone.replace("plan", **method), framework)
    except (FieldError, InputError):  # no such run, which the search passes over
        return method
    return {**method, **{one.field: one.written for one in found if one.field not in VARIED}}


def _packed(alone: "Run", framework: str) -> Mapping[str, Any]:
    """Return what packing changes besides itself: TRL keeps the samples of a row apart, others do not."""
    try:
        _, found = as_written(alone.replace("plan", packing=True), framework)
    except InputError:
        return {}
    return {one.field: one.written for one in found if one.field == "padding"}


def export(
    plan: "Plan", framework: str, folder: str, *, recipe: str | None = None, overwrite: bool = False
) -> Written:
    """Write the plan to take as the files of `framework` into `folder`, with a SkyPilot task.

    Args:
        plan: One that has a winner.
        framework: A name of the writers.
        folder: Where the files go.
        recipe: The file that the run was read from; what a run does not know is taken from it.
        overwrite: Whether files of the same names are replaced.

    Raises: InputError where the framework cannot say the plan, or files are there already.
    """
    run, offer = exported_run(plan), _offer(plan)
    spot = plan.wanted.spot
    return write(run, framework, folder, offer=offer, spot=spot, recipe=recipe, overwrite=overwrite)


def exported_run(plan: "Plan") -> "Run":
    """Return the run of the plan, without a number of samples that was only assumed to compare."""
    if plan.winner is None:
        raise InputError("There is no plan to write.")
    run = plan.winner.run
    return run.replace(origin="plan", num_samples=None) if plan.assumed_samples else run


def _offer(plan: "Plan") -> "Offer | None":
    """Return the instance to rent: on demand, or on spot where that was asked for."""
    if plan.quote is None:
        return None
    priced = plan.quote.cheapest_spot if plan.wanted.spot else plan.quote.cheapest_on_demand
    return priced.offer if priced else None


def _says(alone: "Run", option: Mapping[str, Any], framework: str, ranks: int = 1) -> bool:
    """Return whether the files mean a run with `option` as it is; one that no run can have may stay."""
    degrees = [int(option.get(name, 1)) for name in MODEL_DEGREES]
    model_ranks = degrees[0] * degrees[1] * degrees[2]
    try:
        asked = alone.replace("plan", num_gpus=model_ranks * ranks, **dict.fromkeys(DATA_DEGREES), **option)
    except FieldError:
        return True
    try:
        _, found = as_written(asked, framework)
    except InputError:
        return False
    return not {one.field for one in found} & {*option, "sharding", "cpu_offload"}
