"""Every plan of a space, evaluated: memory, time, energy and cost, the same numbers as `predict` and `quote`.

The operators of a rank are polynomials in the sizes of a micro-batch, so the functions that predict one
run take arrays as well: sizes of micro-batches [micro-batch, 1], rates and prices of machines [machine].
A structure's operators are walked once, a layout's exchange is priced once, and the numbers of all its
plans come out; nothing here knows any physics of its own.

Passed over without being timed: layouts whose memory is beyond `engine.HOPELESS_RATIO` of a machine's. They
are counted as pruned; all other plans are kept, whatever the limits, so that what a little more would
buy can be read off.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import isnan, nan
from typing import TYPE_CHECKING, Any, NamedTuple

from finegauge.catalogue.offers import Offer
from finegauge.data.batch_shape import shape
from finegauge.errors import FieldError, FineGaugeError, UnsupportedError
from finegauge.planning.engine import Columns, Engine, Labels
from finegauge.planning.quote import Quote, quote
from finegauge.planning.space import ORIGIN, Space, structures
from finegauge.prediction.phases import TRAINED
from finegauge.prediction.uncertainty import RISKY_FROM_FRACTION, probability_out_of_memory
from finegauge.run.rules import DATA_DEGREES, MODEL_DEGREES

if TYPE_CHECKING:
    from finegauge.profile import Profile
    from finegauge.run.run import Run

Heard = Callable[[float], None]
KNOWN = ("step_time_s", "memory_bytes", "capacity_bytes", "out_of_memory_fraction", "wall_s")
MAYBE_KNOWN = ("usd", "spot_usd", "energy_j", "emissions_kg")


class Limits(NamedTuple):
    """What a plan must keep; None where there is no limit."""

    within_s: float | None = None
    budget_usd: float | None = None
    out_of_memory_fraction: float = RISKY_FROM_FRACTION


class Candidate(NamedTuple):
    """One plan: a complete run on an offer, and what it takes; None where a price or a power is not known."""

    run: "Run"
    step_time_s: float
    memory_bytes: float  # of the fullest GPU: all that has to fit
    capacity_bytes: float
    out_of_memory_fraction: float
    wall_s: float
    usd: float | None
    spot_usd: float | None
    energy_j: float | None  # at the wall
    emissions_kg: float | None
    offer: Offer | None


class SearchResult(NamedTuple):
    """All plans that were evaluated, as columns, and how many there are."""

    space: Space
    columns: Columns
    labels: Labels
    num_candidates: int
    num_evaluated: int  # memory by phase, time, energy and cost of each
    num_pruned: int  # whose memory alone was evaluated, and hopeless

    def candidate(self, index: int) -> Candidate:
        """Return one plan, its run complete and checked."""
        column = self.columns
        structure, layout = column.laid[int(column["layout"][index])]
        offer = self.space.offers[int(column["offer"][index])]
        size, nodes = int(column["micro_batch_size"][index]), int(column["num_nodes"][index])
        rows = structure.batching.rows_per_step
        fields = {
            **structure.fields, **layout.fields, "optimizer": layout.optimizer, "micro_batch_size": size,
            "gradient_accumulation_steps": rows // (size * layout.run.data_parallel), "num_nodes": nodes,
            "gpu": offer.gpu, "provider": offer.provider, "region": offer.region,
            "node_network_gbit_per_s": None,
        }  # fmt: skip
        figures: dict[str, Any] = {name: float(column[name][index]) for name in KNOWN}
        for name in MAYBE_KNOWN:
            value = float(column[name][index])
            figures[name] = None if isnan(value) else value
        return Candidate(run=self.space.run.replace(ORIGIN, **fields), offer=offer, **figures)


def search(space: Space, *, heard: Heard | None = None) -> SearchResult:
    """Return every plan of `space` with its figures.

    Args:
        space: What to go through.
        heard: Told now and then which fraction is done.

    Raises:
        UnsupportedError: A phase whose steps are more than passes of training.
        FieldError: A run whose number of steps is not known.
    """
    if space.run.phase not in TRAINED:
        raise UnsupportedError(
            f"phase={space.run.phase} cannot be planned yet; plan knows {', '.join(TRAINED)}. "
            "'finegauge estimate' answers for one run at a time."
        )
    if shape(space.run).steps_total is None:
        raise FieldError(
            "The number of steps is not known, so no plan has a cost: add num_samples=… or max_steps=…."
        )
    todo = list(structures(space))
    engine = Engine(space)
    for number, structure in enumerate(todo):
        engine.evaluate(structure)
        if heard is not None:
            heard((number + 1) / len(todo))
    return SearchResult(
        space=space,
        columns=engine.columns,
        labels=Labels(engine.columns, space.offers),
        num_candidates=engine.num_evaluated + engine.num_pruned,
        num_evaluated=engine.num_evaluated,
        num_pruned=engine.num_pruned,
    )


COUNTS = (1, 2, 4, 8)
SHARDINGS = ("none", "zero2", "zero3", "fsdp")  # the least first
MOST_LEAN_MACHINES = 20
ALONE: Mapping[str, Any] = {
    **dict.fromkeys(("num_nodes", *MODEL_DEGREES, "expert_parallel"), 1),
    **dict.fromkeys(DATA_DEGREES),  # what the others leave
    **dict.fromkeys(("micro_batch_size", "gradient_accumulation_steps"), 1),
    "activation_checkpointing": "full",
    "cpu_offload": "none",
}
SURE_FRACTION = 0.05  # P(OOM) up to which a machine needs no more sharding
HOPELESS_FRACTION = 0.9  # P(OOM) from which a larger micro-batch is not asked about
LABELS = (
    *("method", "gpu", "num_gpus", "provider", "sharding", "activation_checkpointing"),
    *("optimizer", "micro_batch_size", "packing", "cpu_offload"),
)
FIGURES = (
    *("step_time_s", "memory_bytes", "capacity_bytes", "out_of_memory_fraction", "wall_s"),
    *("usd", "spot_usd", "energy_j", "emissions_kg"),
)
LoopHeard = Callable[[float], None]


class Looped(NamedTuple):
    """What was found, as a SearchResult has it."""

    columns: Mapping[str, Any]
    labels: Mapping[str, tuple[tuple[Any, ...], Any]]
    candidates: tuple["Candidate", ...]
    num_candidates: int
    num_evaluated: int

    def candidate(self, index: int) -> "Candidate":
        """Return one plan."""
        return self.candidates[index]


def search_one_by_one(space: "Space", heard: LoopHeard | None = None) -> Looped:
    """Return the plans of `space` on one node, each machine with the least sharding that it needs."""
    recipes = list(_recipes(space))
    machines = _machines(space)
    rows: list[tuple[Candidate, Mapping[str, float]]] = []
    asked = 0
    for number, recipe in enumerate(recipes):
        for place, (gpu, num_gpus) in enumerate(machines):
            offers = machines[gpu, num_gpus]
            for sharding in _shardings(space, num_gpus):
                sizes = [_made(recipe, gpu, num_gpus, sharding, size) for size in space.micro_batch_sizes]
                found, answered = _growing([run for run in sizes if run is not None], offers)
                rows, asked = rows + found, asked + answered
                if any(one.out_of_memory_fraction <= SURE_FRACTION for one, _ in found):
                    break
            if heard is not None:
                heard((number + (place + 1) / len(machines)) / len(recipes))
    return _looped(rows, asked)


def _recipes(space: "Space") -> Iterator["Run"]:
    """Yield the run with each method and each way of checkpointing."""
    for method in space.methods:
        for checkpointing in space.checkpointing:
            try:
                yield space.run.replace("plan", **method, activation_checkpointing=checkpointing)
            except FineGaugeError:
                continue


def _shardings(space: "Space", num_gpus: int) -> list[str]:
    """Return what may divide a model on so many GPUs, the least first."""
    if num_gpus == 1:
        return ["none"]
    known = [kind["sharding"] for kind in space.layouts if kind["cpu_offload"] == "none"]
    found = [kind for kind in SHARDINGS if kind in known]
    return found + [kind for kind in dict.fromkeys(known) if kind == space.run.sharding and kind not in found]


def _growing(
    runs: "Sequence[Run]", offers: Sequence[Offer]
) -> tuple[list[tuple["Candidate", Mapping[str, float]]], int]:
    """Return the plans of `runs`, of growing micro-batches, up to the first that cannot fit; and how many."""
    rows: list[tuple[Candidate, Mapping[str, float]]] = []
    for number, run in enumerate(runs):
        found = list(_plans(run, offers))
        rows += found
        if not found or found[0][0].out_of_memory_fraction > HOPELESS_FRACTION:
            return rows, number + 1
    return rows, len(runs)


def _machines(space: "Space") -> dict[tuple[str, int], list[Offer]]:
    """Return by GPU and count the offers that hold them on one node and rent no more than they must."""
    found: dict[tuple[str, int], list[Offer]] = {}
    for offer in space.offers:
        for count in COUNTS:
            if count <= min(offer.gpu_count, space.max_gpus):
                found.setdefault((offer.gpu, count), []).append(offer)
    return {
        key: [one for one in held if one.gpu_count == min(other.gpu_count for other in held)]
        for key, held in found.items()
    }


def _made(recipe: "Run", gpu: str, num_gpus: int, sharding: str, size: int) -> "Run | None":
    """Return the recipe on a machine with the same samples per step; None where nothing gives them."""
    batch = recipe.global_batch_size
    steps, rest = divmod(batch, size * num_gpus)
    if rest or not steps:
        return None
    try:
        return recipe.replace(
            "plan", gpu=gpu, num_gpus=num_gpus, num_nodes=1, sharding=sharding, cpu_offload="none",
            data_parallel_replicate=None, data_parallel_shard=None, micro_batch_size=size,
            gradient_accumulation_steps=steps,
        )  # fmt: skip
    except FineGaugeError:
        return None


def _plans(run: "Run", offers: Sequence[Offer]) -> Iterator[tuple["Candidate", Mapping[str, float]]]:
    """Yield `run` on the offer that is cheapest on demand, and on the one that is cheapest on spot."""
    from finegauge.prediction.predictor import predict

    try:
        profile = predict(run)
    except FineGaugeError:
        return
    chosen = {}
    for spot in (False, True):
        priced = [offer for offer in offers if offer.usd_per_h(spot=spot) is not None]
        if priced:
            best = min(priced, key=lambda offer: offer.usd_per_h(spot=spot) or 0.0)
            chosen[best.provider, best.region] = best
    for offer in chosen.values():
        placed = run.replace("plan", provider=offer.provider, region=offer.region)
        yield _row(replace(profile, run=placed), quote(placed, replace(profile, run=placed)), offer)


def _row(profile: "Profile", bill: Quote, offer: Offer) -> tuple["Candidate", Mapping[str, float]]:
    """Return one plan and its columns."""
    run, on_demand, spot = profile.run, bill.cheapest_on_demand, bill.cheapest_spot
    plan = Candidate(
        run=run,
        step_time_s=profile.step_time_s.total,
        memory_bytes=profile.device_memory_bytes.total,
        capacity_bytes=profile.capacity_bytes,
        out_of_memory_fraction=probability_out_of_memory(profile),
        wall_s=bill.wall_s or 0.0,
        usd=on_demand.on_demand_usd if on_demand else None,
        spot_usd=spot.spot_usd if spot else None,
        energy_j=bill.wall_energy_j,
        emissions_kg=bill.emissions_kg,
        offer=offer,
    )
    steps = run.gradient_accumulation_steps * run.data_parallel
    columns = {name: nan if (value := getattr(plan, name)) is None else value for name in FIGURES}
    return plan, {**columns, "num_nodes": 1.0, "samples_per_step": shape(run).samples * steps}


def _looped(rows: Sequence[tuple["Candidate", Mapping[str, float]]], asked: int) -> Looped:
    """Return the plans as columns and labels."""
    import numpy as np

    names = (*FIGURES, "num_nodes", "samples_per_step")
    plans = tuple(plan for plan, _ in rows)
    labels = {}
    for name in LABELS:
        values = [getattr(plan.run, name) for plan in plans]
        known = tuple(dict.fromkeys(values))
        labels[name] = known, np.array([known.index(value) for value in values], dtype=np.intp)
    return Looped(
        columns={name: np.array([columns[name] for _, columns in rows]) for name in names},
        labels=labels,
        candidates=plans,
        num_candidates=asked,
        num_evaluated=len(rows),
    )


def leanest(space: "Space") -> "Candidate | None":
    """Return the plan that comes closest to fitting its GPUs, of those that need the least memory.

    For a search that found nothing worth keeping: one sequence at a time, every block recomputed, each
    method, weights whole or divided, on the machines with the most memory of all.
    """
    from finegauge.catalogue.gpus import gpu as find_gpu

    machines = _machines(space)
    largest = sorted(machines, key=lambda key: -find_gpu(key[0]).memory_bytes * key[1])[:MOST_LEAN_MACHINES]
    plans = []
    for gpu, num_gpus in largest:
        for method in space.methods:
            for sharding in ("none", "fsdp") if num_gpus > 1 else ("none",):
                try:
                    run = space.run.replace(
                        "plan", **method, **ALONE, gpu=gpu, num_gpus=num_gpus, sharding=sharding,
                    )  # fmt: skip
                except FineGaugeError:
                    continue
                plans += [plan for plan, _ in _plans(run, machines[gpu, num_gpus])]
    return min(plans, key=lambda plan: plan.memory_bytes / plan.capacity_bytes, default=None)
