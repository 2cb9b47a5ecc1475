"""Every plan of a space, evaluated: memory, time, energy and cost, the same numbers as `predict` and `quote`.

The operators of a rank are polynomials in the sizes of a micro-batch, so the functions that predict one
run take arrays as well: sizes of micro-batches [micro-batch, 1], rates and prices of machines [machine].
A structure's operators are walked once, a layout's exchange is priced once, and the numbers of all its
plans come out; nothing here knows any physics of its own.

Passed over without being timed: layouts whose memory is beyond `engine.HOPELESS_RATIO` of a machine's. All
other plans are kept, whatever the limits, so that what a little more would buy can be read off.

Plans of phases that are more than passes of training (preference, reinforcement, ...) are predicted by
`predict` and `quote` one by one, so the figures are the same and the wait is longer. Hence one node, of each
machine only its cheapest offer, on demand and on spot, and the least sharding with which anything fits:
whole weights, then ZeRO-2, ZeRO-3 and FSDP.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import nan
from typing import TYPE_CHECKING, Any

from finegauge.catalogue.gpus import gpu as find_gpu
from finegauge.catalogue.offers import Offer
from finegauge.data.batch_shape import shape
from finegauge.errors import FieldError, FineGaugeError, UnsupportedError
from finegauge.planning.engine import KNOWN, MAYBE_KNOWN, Engine, coded
from finegauge.planning.selection import SearchResult
from finegauge.planning.space import ORIGIN, Space, structures
from finegauge.planning.whatif import Standing, standing
from finegauge.prediction.predictor import predict
from finegauge.prediction.training import TRAINED
from finegauge.progress import Heard, Progress
from finegauge.run.rules import DATA_DEGREES, MODEL_DEGREES

if TYPE_CHECKING:
    from finegauge.run.run import Run


COUNTS = (1, 2, 4, 8)
SHARDINGS = ("none", "zero2", "zero3", "fsdp")  # the least first
MOST_LEAN_MACHINES = 20
UNSPLIT: Mapping[str, Any] = dict.fromkeys(DATA_DEGREES)  # data-parallel ranks: what the others leave
ALONE: Mapping[str, Any] = {
    **dict.fromkeys(("num_nodes", *MODEL_DEGREES, "expert_parallel"), 1),
    **UNSPLIT,
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


def search(space: Space, *, heard: Heard | None = None) -> SearchResult:
    """Return every plan of `space` with its figures.

    Raises: UnsupportedError for a phase of more than passes of training, FieldError for an unknown number of
    steps.
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
            heard(Progress("", number + 1, len(todo)))
    plans, num_evaluated = engine.plans, engine.num_evaluated
    num_candidates = num_evaluated + engine.num_pruned
    return SearchResult(plans.columns, plans.labels, plans.candidate, num_candidates, num_evaluated)


def search_one_by_one(space: Space, heard: Heard | None = None) -> SearchResult:
    """Return the plans of `space` on one node, each machine with the least sharding that it needs."""
    recipes, machines = list(_recipes(space)), _machines(space)
    plans: list[Standing] = []
    num_asked = 0
    for number, recipe in enumerate(recipes):
        for place, ((gpu, num_gpus), offers) in enumerate(machines.items()):
            for sharding in _shardings(space, num_gpus):
                found, asked = _growing(space, recipe, gpu, num_gpus, sharding, offers)
                plans += found
                num_asked += asked
                if any(plan.out_of_memory_fraction <= SURE_FRACTION for plan in found):
                    break
            if heard is not None:
                heard(Progress("", number * len(machines) + place + 1, len(recipes) * len(machines)))
    return _tabled(plans, num_asked)


def _recipes(space: Space) -> Iterator["Run"]:
    for method in space.methods:
        for checkpointing in space.checkpointing:
            try:
                yield space.run.replace(ORIGIN, **method, activation_checkpointing=checkpointing)
            except FineGaugeError:
                continue


def _machines(space: Space) -> dict[tuple[str, int], list[Offer]]:
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


def _shardings(space: Space, num_gpus: int) -> list[str]:
    if num_gpus == 1:
        return ["none"]
    known = [kind["sharding"] for kind in space.layouts if kind["cpu_offload"] == "none"]
    found = [kind for kind in SHARDINGS if kind in known]
    own = space.run.sharding
    return [*found, own] if own in known and own not in found else found


def _growing(
    space: Space, recipe: "Run", gpu: str, num_gpus: int, sharding: str, offers: Sequence[Offer]
) -> tuple[list[Standing], int]:
    """Return the plans of growing micro-batches, up to the first that cannot fit; and how many were asked."""
    plans: list[Standing] = []
    num_asked = 0
    for size in space.micro_batch_sizes:
        steps, rest = divmod(recipe.global_batch_size, size * num_gpus)
        if rest or not steps:  # the samples of a step stay
            continue
        batch = {"micro_batch_size": size, "gradient_accumulation_steps": steps}
        placed = {"gpu": gpu, "num_gpus": num_gpus, "num_nodes": 1, "sharding": sharding}
        try:
            run = recipe.replace(ORIGIN, **placed, **UNSPLIT, **batch, cpu_offload="none")
        except FineGaugeError:
            continue
        num_asked += 1
        found = _on_offers(run, offers)
        plans += found
        if not found or found[0].out_of_memory_fraction > HOPELESS_FRACTION:
            break
    return plans, num_asked


def _on_offers(run: "Run", offers: Sequence[Offer]) -> list[Standing]:
    """Return `run` on the offer that is cheapest on demand, and on the one that is cheapest on spot."""
    try:
        profile = predict(run)
    except FineGaugeError:
        return []
    chosen: dict[tuple[str, str], Offer] = {}
    for spot in (False, True):
        priced = [offer for offer in offers if offer.usd_per_h(spot=spot) is not None]
        if priced:
            best = min(priced, key=lambda offer: offer.usd_per_h(spot=spot) or 0.0)
            chosen[best.provider, best.region] = best
    plans = []
    for offer in chosen.values():
        placed = run.replace(ORIGIN, provider=offer.provider, region=offer.region)
        plans.append(standing(placed, profile=profile._replace(run=placed))._replace(offer=offer))
    return plans


def _tabled(plans: Sequence[Standing], num_asked: int) -> SearchResult:
    import numpy as np

    columns: dict[str, Any] = {"num_nodes": np.ones(len(plans))}
    for name in (*KNOWN, *MAYBE_KNOWN, "samples_per_step"):
        values = [getattr(plan, name) for plan in plans]
        columns[name] = np.array([nan if value is None else value for value in values])
    labels = {name: coded([getattr(plan.run, name) for plan in plans]) for name in LABELS}
    return SearchResult(columns, labels, plans.__getitem__, num_asked, len(plans))


def leanest(space: Space) -> Standing | None:
    """Return the plan that comes closest to fitting its GPUs, of those that need the least memory.

    For a search that found nothing worth keeping: one sequence at a time, every block recomputed, each
    method, weights whole or divided, on the machines with the most memory of all.
    """
    machines = _machines(space)
    largest = sorted(machines, key=lambda key: -find_gpu(key[0]).memory_bytes * key[1])[:MOST_LEAN_MACHINES]
    plans: list[Standing] = []
    for gpu, num_gpus in largest:
        for method in space.methods:
            for sharding in ("none", "fsdp") if num_gpus > 1 else ("none",):
                placed = {"gpu": gpu, "num_gpus": num_gpus, "sharding": sharding}
                try:
                    run = space.run.replace(ORIGIN, **method, **ALONE, **placed)
                except FineGaugeError:
                    continue
                plans += _on_offers(run, machines[gpu, num_gpus])
    return min(plans, key=lambda plan: plan.memory_bytes / plan.capacity_bytes, default=None)
