"""A plan as the files of a framework: what they can say is searched, and the winner is written down.

Nothing here knows any framework. What one can say is found out by writing a run for it and reading
the files back, one option at a time.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from finegauge.errors import FieldError, InputError
from finegauge.workload.parallelism import DATA_DEGREES, MODEL_DEGREES
from finegauge.workload.writers import Written, as_written, write
from finegauge.workload.writers.sheet import plain

if TYPE_CHECKING:
    from finegauge.catalogue.offers import Offer
    from finegauge.plan.plan import Plan
    from finegauge.plan.space import Space
    from finegauge.workload.run import Run

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
