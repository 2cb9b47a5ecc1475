"""The cheapest, fastest or greenest way to do a run: the plan to take, what surrounds it, and why not others.

    searched: GPU x count x provider x method x layout x micro-batch x checkpointing x optimizer x offload
    kept:     model, data, samples of an optimizer step, sequence length, adapters, epochs

A plan counts as fitting where the probability that its longest batch runs out of memory is below the
allowed risk. Everything shown of the plan that is taken comes from `predict` and `quote` of its run.
"""

from collections.abc import Callable, Iterable, Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Any

from finegauge.catalogue.gpus import multiplies_bf16
from finegauge.errors import FieldError, FineGaugeError, InputError
from finegauge.planning.quote import Quote, quote
from finegauge.planning.search import leanest, search, search_one_by_one
from finegauge.planning.selection import (
    Alternative,
    Choice,
    Relaxation,
    SearchResult,
    Wanted,
    alternatives,
    front,
    joined,
    nearest_miss,
    relaxations,
    representatives,
    taken,
)
from finegauge.planning.space import ON_NO_MACHINE, ORIGIN, Space, space_of
from finegauge.planning.whatif import Standing, requirements, standing, with_known_length
from finegauge.prediction.predictor import predict
from finegauge.prediction.time import TRAINED
from finegauge.prediction.uncertainty import margin_ratio
from finegauge.profile import Profile
from finegauge.progress import Heard
from finegauge.records import NamedTuple
from finegauge.run.rules import DATA_DEGREES, LORA_FIELDS, MODEL_DEGREES
from finegauge.run.run import Run

if TYPE_CHECKING:
    from finegauge.formats.writing import Written

OBJECTIVES = ("cost", "time", "energy")
MOST_OF_FRONT = 10
Searched = Callable[["Run", Wanted, Heard | None], SearchResult]


class Miss(NamedTuple):
    """The plan that comes closest to the limits where none keeps them all."""

    limit: str  # memory, time or budget; unknown where a price or a power is
    over_fraction: float | None  # beyond the limit
    candidate: Standing | None


class Plan(NamedTuple):
    """The plan to take, and what surrounds it; what is about it is empty where there is none."""

    run: Run  # as it is
    wanted: Wanted
    assumed_samples: int | None  # where the run does not state its length
    base: Standing | None  # the run as it is; None where it states no GPU or has no answer
    front: tuple[Standing, ...]  # cost, time, energy; by cost. Beyond the limits where nothing keeps them
    num_on_front: int
    num_candidates: int
    num_evaluated: int
    search_s: float
    notes: tuple[str, ...]  # what the framework to export to runs otherwise; why the method stays or changes
    winner: Standing | None = None
    profile: Profile | None = None  # of the winner's step
    quote: Quote | None = None  # of the winner
    changes: Mapping[str, Any] = {}  # what the winner changes of the run
    asks: tuple[str, ...] = ()  # what those changes ask for in return
    alternatives: Mapping[str, tuple[Alternative, ...]] = {}
    relaxations: tuple[Relaxation, ...] = ()
    miss: Miss | None = None  # what comes closest, where there is no plan


def plan(
    run: Run, wanted: Wanted | None = None, *, searched: Searched | None = None, heard: Heard | None = None
) -> Plan:
    """Return the best way to do `run`.

    Args:
        run: The question; its GPU, if it states one, is only where it starts from.
        wanted: Limits, and what to minimise; the cheapest of all by default.
        searched: Evaluates the plans; FineGauge's vectorised search by default.
        heard: Called now and then with the progress of the search.

    Raises: UnsupportedError where the run's phase cannot be searched.
    """
    wanted = wanted or Wanted()
    sized, assumed = with_known_length(run)
    notes: tuple[str, ...] = ()
    if wanted.framework:
        sized, notes = as_said(sized, wanted.framework)
    started = perf_counter()
    result = (searched or _search)(sized, wanted, heard)
    took_s = perf_counter() - started
    choice = Choice.of(sized, result, wanted)
    best, among, method_note = taken(choice)
    base = None
    if sized.gpu is not None:
        try:
            base = standing(sized)
        except FineGaugeError:
            base = None
    shown, num_on_front = _front(choice, best)
    whole = Plan(
        run=sized,
        wanted=wanted,
        assumed_samples=assumed,
        base=base,
        front=shown,
        num_on_front=num_on_front,
        num_candidates=result.num_candidates,
        num_evaluated=result.num_evaluated,
        search_s=took_s,
        notes=(*notes, method_note) if method_note else notes,
    )
    if best is None:
        return whole._replace(miss=_miss(choice))
    winner = result.candidate(best)
    profile = predict(winner.run)
    return whole._replace(
        winner=winner,
        profile=profile,
        quote=quote(winner.run, profile),
        changes=changes(sized, winner.run),
        asks=requirements(sized, winner.run),
        alternatives=alternatives(among, best),
        relaxations=relaxations(among, best, margin_ratio=margin_ratio(profile, wanted.risk_fraction)),
    )


def changes(run: Run, planned: Run) -> dict[str, Any]:
    """Return the fields that `planned` has otherwise than `run`, and that mean anything to it."""
    before = run.fields()
    kept = {
        "micro_batch_size",
        "gradient_accumulation_steps",
        "sharding",
        "cpu_offload",
        "data_parallel_shard",
    }
    idle = set(ON_NO_MACHINE) - kept
    idle |= {"data_parallel_replicate", "loading"} | (set() if planned.trains_adapters else set(LORA_FIELDS))
    if planned.sharding != "hybrid":
        idle |= {"data_parallel_shard"}
    return {n: v for n, v in planned.fields().items() if v != before[n] and n not in idle}


def _space(run: Run, wanted: Wanted) -> Space:
    space = space_of(
        run,
        keep_method=wanted.keep_method,
        gpus=wanted.gpus or None,
        providers=wanted.providers or None,
        max_gpus=wanted.max_gpus,
    )
    return within(space, wanted.framework) if wanted.framework else space


def _search(run: Run, wanted: Wanted, heard: Heard | None) -> SearchResult:
    narrow = tuple([name for name in wanted.gpus if not multiplies_bf16(name)])
    if narrow and len(narrow) < len(wanted.gpus):  # whose plans are in fp16, the others' in bf16
        wide = tuple([name for name in wanted.gpus if name not in narrow])
        return joined([_search(run, wanted._replace(gpus=kind), heard) for kind in (wide, narrow)])
    space = _space(run, wanted)
    return search(space, heard=heard) if run.phase in TRAINED else search_one_by_one(space, heard)


def _front(choice: Choice, best: int | None) -> tuple[tuple[Standing, ...], int]:
    """Return a few plans of the Pareto front with the one to take, by cost, and how many it has.

    A plan whose energy is not known counts as the thirstiest.
    """
    import numpy as np

    rows = np.flatnonzero(choice.allowed() if best is not None else choice.fits() & choice.sensible)
    figures = [choice.column(name)[rows] for name in OBJECTIVES]
    energy = figures[2]
    figures[2] = np.where(np.isnan(energy), np.max(energy, initial=1.0, where=~np.isnan(energy)), energy)
    on_front = front(figures)
    chosen = on_front[representatives([column[on_front] for column in figures], MOST_OF_FRONT)]
    shown = np.unique(rows[chosen] if best is None else np.append(rows[chosen], best))
    by_cost = shown[np.argsort(choice.column("cost")[shown], kind="stable")]
    return tuple([choice.result.candidate(row) for row in by_cost.tolist()]), len(on_front)


def _miss(choice: Choice) -> Miss:
    index, limit, over = nearest_miss(choice, choice.sensible)
    if index is not None:
        return Miss(limit, over, choice.result.candidate(index))
    found = leanest(_space(choice.run, choice.wanted))
    took = found.outcome if found else None
    return Miss(limit, took and took.device_memory_bytes / took.capacity_bytes - 1.0, found)


# A plan as the files of a framework: what they can say is searched, and the winner is written down. Nothing
# here knows any framework. What one can say is found out by writing a run for it and reading the files back,
# one option at a time.

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

    run: Run
    notes: tuple[str, ...]  # what they mean otherwise


def as_said(run: Run, framework: str) -> Said:
    """Return `run` with the settings that it has as files of `framework`, its GPUs aside.

    Raises: InputError where the framework cannot train this at all.
    """
    from finegauge.formats.sheet import plain
    from finegauge.formats.writing import as_written

    alone = run.replace(ORIGIN, **ONE_GPU)
    changes: dict[str, Any] = {"framework": as_written(alone, framework)[0].framework}
    for probe in ({}, {"activation_checkpointing": "full"}, {"packing": True}):
        try:
            _, found = as_written(alone.replace(ORIGIN, **probe), framework)
        except InputError:  # what the probe adds cannot be said
            continue
        for name, was, written in found:
            if was == getattr(alone, name) and not (name == "padding" and "packing" in probe):
                changes[name] = written  # of the run as it is, not of the probe
    notes = [
        f"Planned with {name}={plain(value)}, as {framework} runs it, not {plain(getattr(run, name))}."
        for name, value in changes.items()
        if name != "framework"
    ]
    return Said(run.replace(origin=f"as {framework} runs it", **changes), tuple(notes))


def within(space: Space, framework: str) -> Space:
    """Return what of `space` the files of `framework` can say.

    Raises: InputError where nothing of it can be said.
    """
    alone = space.run.replace(ORIGIN, **ONE_GPU)

    def sayable(options: Iterable[Any], name: str = "") -> tuple[Any, ...]:
        return tuple([one for one in options if _says(alone, {name: one} if name else one, framework)])

    on_several = tuple([one for one in space.layouts if _says(alone, one, framework, ranks=RANKS)])
    on_one = tuple([one for one in sayable(space.layouts) if one not in on_several])
    if on_several:  # whose data ranks always share something: FSDP's, of torchtune
        on_one = tuple([one for one in on_one if one["sharding"] == "none"])
    methods = []  # each with what the files mean by it: in which format its adapters are, and the like
    for method in sayable(space.methods):
        meant = _meant_otherwise(alone, method, framework) or {}
        methods.append({**method, **{name: value for name, value in meant.items() if name not in VARIED}})
    packed = _meant_otherwise(alone, {"packing": True}, framework) or {}
    found = space._replace(
        methods=tuple(methods),
        checkpointing=sayable(space.checkpointing, "activation_checkpointing"),
        packing=sayable(space.packing, "packing"),
        divisions=sayable(space.divisions),
        layouts=on_several + on_one,
        alone=on_one,
        data_parallel=space.data_parallel if on_several else (1,),
        optimizers=sayable(space.optimizers, "optimizer"),
        # TRL keeps the samples of a row apart, others do not
        packed={name: value for name, value in packed.items() if name == "padding"},
    )
    for name in ("methods", "checkpointing", "packing", "divisions", "layouts", "optimizers"):
        if not getattr(found, name):
            raise InputError(f"{framework} can say none of the {name} that are searched; leave --export out.")
    return found


def _meant_otherwise(alone: Run, option: Mapping[str, Any], framework: str) -> dict[str, Any] | None:
    """Return what the files mean by a run with `option` other than it states; None where they cannot say it.

    Nothing for a run that cannot be, which the search passes over.
    """
    from finegauge.formats.writing import as_written

    try:
        asked = alone.replace(ORIGIN, **option)
    except FieldError:
        return {}
    try:
        _, found = as_written(asked, framework)
    except InputError:
        return None
    return {one.field: one.written for one in found}


def _says(alone: Run, option: Mapping[str, Any], framework: str, ranks: int = 1) -> bool:
    """Return whether the files mean a run with `option` as it is; one that no run can have may stay."""
    degrees = [int(option.get(name, 1)) for name in MODEL_DEGREES]
    num_gpus = degrees[0] * degrees[1] * degrees[2] * ranks
    placed = {"num_gpus": num_gpus, **dict.fromkeys(DATA_DEGREES), **option}
    meant = _meant_otherwise(alone, placed, framework)
    return meant is not None and meant.keys().isdisjoint({*option, "sharding", "cpu_offload"})


def export(
    plan: Plan, framework: str, folder: str, *, recipe: str | None = None, overwrite: bool = False
) -> "Written":
    """Write the plan to take as the files of `framework` into `folder`, with a SkyPilot task.

    What a run does not know is taken from `recipe`, the file that it was read from.

    Raises: InputError where the framework cannot say the plan, or files are there already.
    """
    from finegauge.formats.writing import write

    run, spot, offer = exported_run(plan), plan.wanted.spot, None  # the instance to rent
    if plan.quote is not None:
        priced = plan.quote.cheapest_spot if spot else plan.quote.cheapest_on_demand
        offer = priced.offer if priced else None
    return write(run, framework, folder, offer=offer, spot=spot, recipe=recipe, overwrite=overwrite)


def exported_run(plan: Plan) -> Run:
    """Return the run of the plan, without a number of samples that was only assumed to compare."""
    if plan.winner is None:
        raise InputError("There is no plan to write.")
    run = plan.winner.run
    return run.replace(ORIGIN, num_samples=None) if plan.assumed_samples else run
