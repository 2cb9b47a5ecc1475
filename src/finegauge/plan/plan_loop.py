"""Plans of phases that the vectorised search does not know (preference, reinforcement, ...), one by one.

Every plan is asked of `predict` and `quote`, so the figures are the same and the wait is longer: hence
one node, of each machine only who rents it out cheapest, on demand and on spot, and the least sharding
with which anything fits: whole weights, then ZeRO-2, ZeRO-3 and FSDP.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import nan
from typing import TYPE_CHECKING, Any, NamedTuple

from finegauge.catalogue.offers import Offer
from finegauge.errors import FineGaugeError
from finegauge.plan.quote import Quote, quote
from finegauge.predict.uncertainty import probability_out_of_memory
from finegauge.workload.data import shape
from finegauge.workload.parallelism import DATA_DEGREES, MODEL_DEGREES

if TYPE_CHECKING:
    from finegauge.plan.search import Candidate
    from finegauge.plan.space import Space
    from finegauge.profile import Profile
    from finegauge.workload.run import Run

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
Heard = Callable[[float], None]


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


def search_one_by_one(space: "Space", heard: Heard | None = None) -> Looped:
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
    from finegauge.predict import predict

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
    from finegauge.plan.search import Candidate

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
