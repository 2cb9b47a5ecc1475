"""Every plan of a space, evaluated: memory, time, energy and cost, the same numbers as `predict` and `quote`.

The operators of a rank are polynomials in the sizes of a micro-batch, so the functions that predict one
run take arrays as well: sizes of micro-batches [micro-batch, 1], rates and prices of machines [machine].
A structure's operators are walked once, a layout's exchange is priced once, and the numbers of all its
plans come out; nothing here knows any physics of its own.

For each structure: the memory of all its layouts, the time of its micro-batches on every kind of GPU,
then family by family what the ranks exchange and what the machines cost. The plans stand as columns, one
number per plan and figure, nan where unknown. A plan is a layout, a micro-batch and an offer; what the
layouts say of it (method, sharding, ...) is looked up when it is needed, not copied for every plan.

Passed over without being timed: layouts whose memory is beyond `HOPELESS_RATIO` of a machine's. All
other plans are kept, whatever the limits, so that what a little more would buy can be read off.

Plans of phases that are more than passes of training (preference, reinforcement, ...) are predicted by
`predict` and `quote` one by one, so the figures are the same and the wait is longer. Hence one node, of each
machine only its cheapest offer, on demand and on spot, and the least sharding with which anything fits:
whole weights, then ZeRO-2, ZeRO-3 and FSDP.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from math import isnan, nan
from operator import attrgetter
from typing import Any

from finegauge.catalogue.gpus import gpu as find_gpu
from finegauge.catalogue.offers import Offer
from finegauge.data.batch_shape import shape
from finegauge.errors import FieldError, FineGaugeError, UnsupportedError
from finegauge.model.op import Extents
from finegauge.planning.quote import SPOT_REPEATED_FRACTION, Outcome, emissions_kg
from finegauge.planning.selection import SearchResult
from finegauge.planning.space import (
    OF_ONE_MACHINE,
    ORIGIN,
    Batching,
    Layout,
    Space,
    Structure,
    families,
    structures,
    variant,
)
from finegauge.planning.vectors import Devices, Held, Market, Members, costs, held, same_operators
from finegauge.planning.whatif import Standing, standing
from finegauge.prediction.calibration import current
from finegauge.prediction.predictor import predict
from finegauge.prediction.sharding import Share, held_by, held_likewise, rank_extents, share_of
from finegauge.prediction.time import (
    ATTENTION,
    OUTER,
    TRAINED,
    StepTime,
    meets_every_micro_batch,
    micro_batch_time,
    slowest_extents,
)
from finegauge.prediction.uncertainty import exceeding_fraction, memory_interval, verdict
from finegauge.profile import Breakdown, Path
from finegauge.progress import Heard, Progress
from finegauge.records import NamedTuple
from finegauge.run.rules import DATA_DEGREES, MODEL_DEGREES
from finegauge.run.run import Run
from finegauge.units import HOUR_S

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
LABELS_OF_RUNS = (
    *("method", "gpu", "num_gpus", "provider", "sharding", "activation_checkpointing"),
    *("optimizer", "micro_batch_size", "packing", "cpu_offload"),
)
HOPELESS_RATIO = 1.5  # of a machine's memory: no higher limit would be that much
KNOWN = ("step_time_s", "device_memory_bytes", "capacity_bytes", "out_of_memory_fraction", "wall_s")
MAYBE_KNOWN = ("on_demand_usd", "spot_usd", "wall_energy_j", "emissions_kg")
COLUMNS = (
    *KNOWN, *MAYBE_KNOWN, "layout", "micro_batch_size", "offer", "num_nodes", "samples_per_step",
)  # fmt: skip
OF_LAYOUT = (
    *("method", "num_gpus", "sharding", "cpu_offload", "optimizer", "packing", "activation_checkpointing"),
    *("tensor_parallel", "pipeline_parallel", "context_parallel", "expert_parallel", "data_parallel"),
)
LABELS = (*OF_LAYOUT, "gpu", "provider", "micro_batch_size", "num_nodes")
# fields that change the operators of a rank, or which of them run again
TIMED = attrgetter(
    *("tensor_parallel", "pipeline_parallel", "pipeline_schedule", "virtual_pipeline_stages"),
    *("context_parallel", "expert_parallel", "sequence_parallel", "activation_checkpointing"),
    *("checkpointing_reentrant", "weights_dtype", "autocast", "method"),
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
                if any(plan.outcome.out_of_memory_fraction <= SURE_FRACTION for plan in found):
                    break
            if heard is not None:
                heard(Progress("", number * len(machines) + place + 1, len(recipes) * len(machines)))
    return _tabled(plans, num_asked)


def _recipes(space: Space) -> Iterator[Run]:
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
    space: Space, recipe: Run, gpu: str, num_gpus: int, sharding: str, offers: Sequence[Offer]
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
        if not found or found[0].outcome.out_of_memory_fraction > HOPELESS_FRACTION:
            break
    return plans, num_asked


def _on_offers(run: Run, offers: Sequence[Offer]) -> list[Standing]:
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
        values = [getattr(plan if name == "samples_per_step" else plan.outcome, name) for plan in plans]
        columns[name] = np.array([nan if value is None else value for value in values])
    labels = {name: coded([getattr(plan.run, name) for plan in plans]) for name in LABELS_OF_RUNS}
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
    return min(
        plans, key=lambda plan: plan.outcome.device_memory_bytes / plan.outcome.capacity_bytes, default=None
    )


class Laid(NamedTuple):
    """A layout of a structure, some of whose plans have been evaluated."""

    structure: Structure
    layout: Layout


class Lazy(Mapping[str, Any]):
    """Values by name, each worked out when it is first read."""

    def __init__(self, names: tuple[str, ...], work_out: Callable[[str], Any]) -> None:
        """Take the names of all values, and what returns one of them."""
        self._names, self._work_out = names, cache(work_out)

    def __getitem__(self, name: str) -> Any:
        """Return one value."""
        if name not in self._names:
            raise KeyError(name)
        return self._work_out(name)

    def __iter__(self) -> Iterator[str]:
        """Yield the names."""
        return iter(self._names)

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._names)


class Plans:
    """The plans of a space that have been evaluated."""

    def __init__(self, space: Space) -> None:
        """Start with none."""
        self.space = space
        self.laid: list[Laid] = []
        self.chunks: list[dict[str, Any]] = []
        self.columns, self.labels = Lazy(COLUMNS, self._column), Lazy(LABELS, self._label)

    def candidate(self, index: int) -> Standing:
        """Return one plan, its run complete and checked."""
        column = self.columns
        structure, layout = self.laid[int(column["layout"][index])]
        offer = self.space.offers[int(column["offer"][index])]
        size, nodes = int(column["micro_batch_size"][index]), int(column["num_nodes"][index])
        batching = structure.batching
        fields = {
            **structure.fields, **layout.fields, "optimizer": layout.optimizer, "micro_batch_size": size,
            "gradient_accumulation_steps": batching.rows_per_step // (size * layout.run.data_parallel),
            "num_nodes": nodes, "gpu": offer.gpu, "provider": offer.provider, "region": offer.region,
            **OF_ONE_MACHINE,
        }  # fmt: skip
        figures: dict[str, Any] = {name: float(column[name][index]) for name in (*KNOWN, *MAYBE_KNOWN)}
        for name in MAYBE_KNOWN:
            if isnan(figures[name]):
                figures[name] = None
        run = self.space.run.replace(ORIGIN, **fields)
        found = Outcome(verdict=verdict(figures["out_of_memory_fraction"]), **figures)
        return Standing(run, found, batching.samples_per_step, offer)

    def _column(self, name: str) -> Any:
        import numpy

        if name == "samples_per_step":
            of_layout = [laid.structure.batching.samples_per_step for laid in self.laid]
            return numpy.array(of_layout)[self.columns["layout"]]
        found = [chunk.pop(name) for chunk in self.chunks]
        return numpy.concatenate(found) if found else numpy.empty(0, dtype=int)

    def _label(self, name: str) -> tuple[tuple[Any, ...], Any]:
        import numpy

        if name in ("micro_batch_size", "num_nodes"):
            values, codes = numpy.unique(self.columns[name], return_inverse=True)
            return tuple(values.astype(int).tolist()), codes
        if name in ("gpu", "provider"):
            of_each, place = [getattr(offer, name) for offer in self.space.offers], self.columns["offer"]
        else:
            of_each, place = [getattr(laid.layout.run, name) for laid in self.laid], self.columns["layout"]
        return coded(of_each, place)


def coded(of_each: Iterable[Any], place: Any = None) -> tuple[tuple[Any, ...], Any]:
    """Return the different values of `of_each`, and which of them each has, or each of those at `place`."""
    import numpy

    known: dict[Any, int] = {}
    codes = numpy.array([known.setdefault(value, len(known)) for value in of_each], dtype=numpy.intp)
    return tuple(known), codes if place is None or not len(codes) else codes[place]


class Engine:
    """Adds the plans of structures to columns."""

    def __init__(self, space: Space) -> None:
        """Start with no plans."""
        self.space, self.calibration = space, current()
        self.plans = Plans(space)
        self.num_evaluated = self.num_pruned = 0
        self._markets: dict[str, Market] = {}
        self._tried: dict[tuple[object, ...], bool] = {}
        self._times: dict[tuple[Any, ...], StepTime] = {}
        self._shares: dict[tuple[Any, ...], Share] = {}
        self._slowest: dict[tuple[Any, ...], Extents | None] = {}

    def evaluate(self, structure: Structure) -> None:
        """Add every plan of `structure`."""
        groups: dict[tuple[Any, ...], list[Members]] = {}
        for first, *others in families(self.space, structure, self._tried):
            share = held_by(first.run)
            members = [(first, share), *[(other, held_likewise(other.run, share)) for other in others]]
            groups.setdefault(same_operators(first, share), []).append(members)
        for alike in groups.values():
            self._group(structure, alike)

    def _group(self, structure: Structure, alike: list[Members]) -> None:
        import numpy

        every = [member for members in alike for member in members]
        batching, dtype = structure.batching, every[0][1].graph.lowering.compute_dtype
        if dtype not in self._markets:
            run = variant(self.space.run, **OF_ONE_MACHINE)
            self._markets[dtype] = Market(run, self.space.offers, self.calibration, dtype)
        market = self._markets[dtype]
        ranks = numpy.array([layout.run.data_parallel for layout, _ in every])
        micro_steps = batching.rows_per_step // (numpy.array(batching.sizes)[:, None] * ranks)
        occurring = numpy.unique(micro_steps[micro_steps > 0])
        if not market.devices.place or not len(occurring):
            return
        holding = held(every, batching.longest, occurring, market.devices.cublas_bytes, self.calibration)
        first = 0
        for members in alike:
            last = first + len(members)
            self._family(structure, members, market, holding, numpy.arange(first, last), ranks[first:last])
            first = last

    def _family(
        self, structure: Structure, members: Members, market: Market, holding: Held, places: Any, ranks: Any
    ) -> None:
        """Add the plans of one family, whose layouts stand in `holding` at `places`."""
        import numpy

        batching, devices = structure.batching, market.devices
        fleet = market.fleet(tuple([layout.run.num_gpus for layout, _ in members]))
        if fleet is None:
            return
        together = numpy.array(batching.sizes)[:, None] * ranks[fleet.layouts]
        divides = batching.rows_per_step % together == 0
        steps = numpy.maximum(1, batching.rows_per_step // together)
        needed, written = holding.at(steps, places[fleet.layouts], fleet.gpus)
        hopeful = divides & (needed <= HOPELESS_RATIO * devices.usable_bytes[fleet.gpus])
        rows, machines = numpy.flatnonzero(hopeful.any(axis=1)), numpy.flatnonzero(hopeful.any(axis=0))
        place = numpy.ix_(rows, machines)
        self.num_pruned += int(divides[:, fleet.rents.machines].sum())
        if not len(rows):
            return
        fleet, hopeful, needed = fleet.at(machines), hopeful[place], needed[place]
        num_here = int(divides[place][:, fleet.rents.machines].sum())
        self.num_pruned -= num_here
        self.num_evaluated += num_here
        micro_batch = self._micro_batch(members[0], batching.mean, devices)
        slowest, waits_s = self._slowest_of(batching, members), 0.0
        if slowest is not None:
            late: Any = self._micro_batch(members[0], slowest, devices).parts.total
            usual: Any = micro_batch.parts.total
            late = late.reshape(len(batching.sizes), len(members), -1) - usual[:, None]
            waits_s = late[rows[:, None], fleet.layouts, fleet.gpus]
        capacity, rents = devices.usable_bytes[fleet.gpus], fleet.rents
        found = costs(
            members, fleet, batching, rows, micro_batch, waits_s, written[place], steps[place],
            self.calibration, capacity - needed,
        )  # fmt: skip
        chance: Any = exceeding_fraction(
            needed, capacity, memory_interval(self.space.run, self.calibration.memory_interval)
        )
        row, rent = numpy.nonzero(hopeful[:, rents.machines])
        machine = rents.machines[rent]
        cell = row * len(fleet.gpus) + machine
        wall_s, wall_j = found.wall_s.ravel()[cell], found.energy_j.ravel()[cell]
        hours, nodes = wall_s / HOUR_S, rents.nodes[rent]
        self.plans.chunks.append(
            {
                "step_time_s": found.step_time_s.ravel()[cell],
                "wall_s": wall_s,
                "on_demand_usd": hours * rents.usd_per_h[rent] * nodes,
                "spot_usd": hours * (1 + SPOT_REPEATED_FRACTION) * rents.spot_usd_per_h[rent] * nodes,
                "wall_energy_j": wall_j,
                "emissions_kg": emissions_kg(wall_j, rents.pue[rent], rents.kg_per_kwh[rent]),
                "device_memory_bytes": needed.ravel()[cell],
                "capacity_bytes": capacity[machine],
                "out_of_memory_fraction": chance.ravel()[cell],
                "micro_batch_size": numpy.array(batching.sizes)[rows][row],
                "offer": rents.offers[rent],
                "num_nodes": nodes,
                "layout": len(self.plans.laid) + fleet.layouts[machine],
            }
        )
        self.plans.laid += [Laid(structure, layout) for layout, _ in members]

    def _slowest_of(self, batching: Batching, members: Members) -> Extents | None:
        """Return the micro-batches of the slowest ranks, [micro-batch and layout, 1]; None if alike."""
        import numpy

        run, degrees = members[0][0].run, tuple([layout.run.data_parallel for layout, _ in members])
        key = id(batching), degrees, meets_every_micro_batch(run), run.context_parallel
        if key not in self._slowest:
            found: list[Extents] = []
            for size, shape in zip(batching.sizes, batching.shapes, strict=True):
                for layout, _ in members:
                    steps = max(1, batching.rows_per_step // (size * layout.run.data_parallel))
                    own = variant(layout.run, micro_batch_size=size, gradient_accumulation_steps=steps)
                    found.append(slowest_extents(own, shape))
            slowest: Any = numpy.array(found, dtype=float)
            means: Any = numpy.repeat(numpy.hstack(batching.mean), len(members), axis=0)
            alike = (slowest == means).all()
            self._slowest[key] = None if alike else Extents(*[one[:, None] for one in slowest.T])
        return self._slowest[key]

    def _micro_batch(self, member: tuple[Layout, Share], extents: Extents, devices: Devices) -> StepTime:
        """Return the times of micro-batches of `extents`, [micro-batch, GPU], forward and backward.

        Those at the model's two ends stand apart; of experts on several ranks every operator does.
        """
        import numpy

        layout, share = member
        whole = share.whole.lowering, TIMED(share.run)
        key = id(extents), *whole
        if key not in self._times:
            if whole not in self._shares:
                self._shares[whole] = share_of(layout.run)
            mine = rank_extents(layout.run, extents)
            timed = micro_batch_time(self._shares[whole], mine, devices.together)
            parts: dict[Path, Any] = {}
            for path, seconds in timed.parts.parts.items():
                stage = "forward" if path[0] == "forward" else "backward"
                apart = {*path[1:]}.intersection((*OUTER, *ATTENTION))  # what `step_of` asks for
                coarse = stage, min(apart, default="layers")
                own = path if share.run.expert_parallel > 1 else coarse
                parts[own] = parts.get(own, 0.0) + seconds
            tokens: Any = extents.tokens
            shape = len(tokens), len(devices.place)
            for path, seconds in parts.items():
                parts[path] = numpy.array(numpy.broadcast_to(seconds, shape))
            rest: list[Any] = [numpy.array(numpy.broadcast_to(seconds, shape)) for seconds in timed[1:]]
            self._times[key] = StepTime(Breakdown(parts), *rest)
        return self._times[key]
