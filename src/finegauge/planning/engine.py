"""Evaluates a space structure by structure, and keeps what structures share.

For each structure: the memory of all its layouts, the time of its micro-batches on every kind of GPU,
then family by family what the ranks exchange and what the machines cost.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from finegauge.catalogue.offers import Offer
from finegauge.model.op import Extents
from finegauge.planning.space import Batching, Layout, Space, Structure, families, unchecked
from finegauge.planning.vectors import (
    Costs,
    Devices,
    Fleet,
    Held,
    Market,
    bills,
    costs,
    family_of,
    held,
    same_operators,
)
from finegauge.prediction.calibration import current
from finegauge.prediction.sharding import Share, held_by, held_likewise, rank_extents, share_of
from finegauge.prediction.time import (
    OUTER,
    StepTime,
    meets_every_micro_batch,
    micro_batch_time,
    slowest_extents,
)
from finegauge.prediction.uncertainty import exceeding_fraction
from finegauge.profile import Breakdown

FIGURES = (
    *("step_time_s", "wall_s", "usd", "spot_usd", "energy_j", "emissions_kg"),
    *("memory_bytes", "capacity_bytes", "out_of_memory_fraction"),
)
PLACES = ("layout", "micro_batch_size", "offer", "num_nodes")
OF_LAYOUT = (
    *("method", "num_gpus", "sharding", "cpu_offload", "optimizer", "packing", "activation_checkpointing"),
    *("tensor_parallel", "pipeline_parallel", "context_parallel", "expert_parallel", "data_parallel"),
)


class Laid(NamedTuple):
    """A layout of a structure, some of whose plans have been evaluated."""

    structure: Structure
    layout: Layout


class Columns(Mapping[str, Any]):
    """Figures by name, each an array with one number per plan."""

    def __init__(self) -> None:
        """Start without plans."""
        self.laid: list[Laid] = []
        self._chunks: list[dict[str, Any]] = []
        self._whole: dict[str, Any] = {}

    def add(self, laid: Sequence[Laid], columns: Mapping[str, Any]) -> None:
        """Add plans of some layouts, which `columns["layout"]` counts from the number of those before."""
        self.laid += laid
        self._chunks.append(dict(columns))

    def __getitem__(self, name: str) -> Any:
        """Return one column."""
        import numpy

        if name == "samples_per_step":
            of_layout = [laid.structure.batching.samples_per_step for laid in self.laid]
            return numpy.array(of_layout)[self["layout"]]
        if name not in self._whole:
            if name not in (*FIGURES, *PLACES):
                raise KeyError(name)
            found = [chunk.pop(name) for chunk in self._chunks]
            self._whole[name] = numpy.concatenate(found) if found else numpy.empty(0, dtype=int)
        return self._whole[name]

    def __iter__(self) -> Iterator[str]:
        """Yield the names of all columns."""
        return iter((*FIGURES, *PLACES, "samples_per_step"))

    def __len__(self) -> int:
        """Return how many columns there are."""
        return len(FIGURES) + len(PLACES) + 1


class Labels(Mapping[str, Any]):
    """What plans differ in, by name: the values, and for each plan which of them it has."""

    def __init__(self, columns: Columns, offers: Sequence[Offer]) -> None:
        """Look up in `columns`, whose offers are places in `offers`."""
        self.columns, self.offers = columns, offers
        self._known: dict[str, tuple[tuple[Any, ...], Any]] = {}

    def __getitem__(self, name: str) -> tuple[tuple[Any, ...], Any]:
        """Return (values, codes)."""
        if name not in self._known:
            self._known[name] = self._found(name)
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        """Yield the names."""
        return iter((*OF_LAYOUT, "gpu", "provider", "micro_batch_size", "num_nodes"))

    def __len__(self) -> int:
        """Return how many there are."""
        return len(OF_LAYOUT) + 4

    def _found(self, name: str) -> tuple[tuple[Any, ...], Any]:
        import numpy

        if name in ("micro_batch_size", "num_nodes"):
            values, codes = numpy.unique(self.columns[name], return_inverse=True)
            return tuple(int(value) for value in values), codes
        if name in ("gpu", "provider"):
            of_each = [getattr(offer, name) for offer in self.offers]
            place = self.columns["offer"]
        elif name in OF_LAYOUT:
            of_each = [getattr(laid.layout.run, name) for laid in self.columns.laid]
            place = self.columns["layout"]
        else:
            raise KeyError(name)
        known = tuple(dict.fromkeys(of_each))
        codes = numpy.array([known.index(value) for value in of_each], dtype=numpy.intp)
        return known, codes[place] if len(codes) else codes


HOPELESS_RATIO = 1.5  # of a machine's memory: no relaxation would be that large
TIMED = (
    *("tensor_parallel", "pipeline_parallel", "pipeline_schedule", "virtual_pipeline_stages"),
    *("context_parallel", "expert_parallel", "sequence_parallel", "activation_checkpointing"),
    *("checkpointing_reentrant", "weights_dtype", "autocast", "method"),
)  # fields that change the operators of a rank, or which of them run again

Members = list[tuple[Layout, Share]]


class Engine:
    """Adds the plans of structures to columns."""

    def __init__(self, space: Space) -> None:
        """Start with no plans."""
        self.space, self.calibration = space, current()
        self.columns = Columns()
        self.num_evaluated = self.num_pruned = 0
        self._markets: dict[str, Market] = {}
        self._tried: dict[tuple[object, ...], bool] = {}
        self._times: dict[tuple[Any, ...], StepTime] = {}
        self._shares: dict[tuple[Any, ...], Share] = {}
        self._slowest: dict[tuple[Any, ...], Extents | None] = {}

    def evaluate(self, structure: Structure) -> None:
        """Add every plan of `structure`."""
        groups: dict[tuple[Any, ...], list[Members]] = {}
        for family in families(self.space, structure, self._tried):
            first, *others = family
            share = held_by(first.run)
            members = [(first, share), *((other, held_likewise(other.run, share)) for other in others)]
            groups.setdefault(same_operators(*members[0]), []).append(members)
        for alike in groups.values():
            self._group(structure, alike)

    def _group(self, structure: Structure, alike: list[Members]) -> None:
        """Add the plans of families that run the same operators."""
        import numpy

        every, batching = [member for members in alike for member in members], structure.batching
        market = self._market(every[0][1].graph.lowering.compute_dtype)
        if market is None:
            return
        ranks = numpy.array([layout.run.data_parallel for layout, _ in every])
        micro_steps = batching.rows_per_step // (_sizes(batching) * ranks)
        occurring = numpy.unique(micro_steps[micro_steps > 0])
        if not len(occurring):
            return
        holding = held(every, batching.longest, occurring, market.devices.cublas_bytes, self.calibration)
        first = 0
        for members in alike:
            self._family(structure, members, market, holding, first)
            first += len(members)

    def _family(
        self, structure: Structure, members: Members, market: Market, holding: Held, first: int
    ) -> None:
        """Add the plans of one family, whose layouts stand in `holding` from `first` on."""
        import numpy

        batching, counts = structure.batching, tuple(layout.run.num_gpus for layout, _ in members)
        fleet, devices = market.fleet(counts), market.devices
        if fleet is None:
            return
        ranks = numpy.array([layout.run.data_parallel for layout, _ in members])[fleet.layouts]
        together = _sizes(batching) * ranks
        divides = batching.rows_per_step % together == 0
        steps = numpy.maximum(1, batching.rows_per_step // together)
        needed, written = holding.at(steps, first + fleet.layouts, fleet.gpus)
        hopeful = divides & (needed <= HOPELESS_RATIO * devices.usable_bytes[fleet.gpus])
        rows, machines = numpy.flatnonzero(hopeful.any(axis=1)), numpy.flatnonzero(hopeful.any(axis=0))
        place = numpy.ix_(rows, machines)
        num_plans = int(divides[:, fleet.rents.machines].sum())
        self.num_pruned += num_plans
        if not len(rows):
            return
        fleet, hopeful = fleet.at(machines), hopeful[place]
        num_here = int(divides[place][:, fleet.rents.machines].sum())
        self.num_pruned -= num_here
        self.num_evaluated += num_here
        micro_batch = self._micro_batch(batching, members[0], batching.mean, devices)
        found = costs(
            family_of(members, fleet), batching, rows, micro_batch,
            self._waits_s(batching, members, devices, micro_batch, rows, fleet),
            written[place], steps[place], self.calibration,
        )  # fmt: skip
        self._keep(structure, members, devices, fleet, rows, hopeful, found, needed[place])

    def _keep(
        self, structure: Structure, members: Members, devices: Devices, fleet: Fleet, rows: Any, hopeful: Any,
        found: Costs, needed: Any,
    ) -> None:  # fmt: skip
        """Add the hopeful plans to the columns, each with every offer of its machine."""
        import numpy

        capacity = devices.usable_bytes[fleet.gpus]
        chance: Any = exceeding_fraction(needed, capacity, self.calibration.memory_interval)
        sizes, rents = _sizes(structure.batching)[rows, 0], fleet.rents
        row, rent = numpy.nonzero(hopeful[:, rents.machines])
        machine = rents.machines[rent]
        cell = row * len(fleet.gpus) + machine
        figures = {name: values.ravel()[cell] for name, values in found._asdict().items()}
        columns = {
            **figures,
            **bills(figures["wall_s"], figures["energy_j"], rents, rent),
            "memory_bytes": needed.ravel()[cell],
            "capacity_bytes": capacity[machine],
            "out_of_memory_fraction": chance.ravel()[cell],
            "micro_batch_size": sizes[row],
            "offer": rents.offers[rent],
            "num_nodes": rents.nodes[rent],
            "layout": len(self.columns.laid) + fleet.layouts[machine],
        }
        self.columns.add([Laid(structure, layout) for layout, _ in members], columns)

    def _waits_s(
        self, batching: Batching, members: Members, devices: Devices, micro_batch: StepTime, rows: Any,
        fleet: Fleet,
    ) -> Any:  # fmt: skip
        """Return what a micro-batch waits for the slowest rank, [micro-batch, machine]."""
        slowest = self._slowest_of(batching, members)
        if slowest is None:
            return 0.0
        usual: Any = micro_batch.parts.total
        timed: Any = self._micro_batch(batching, members[0], slowest, devices).parts.total
        late = timed.reshape(len(batching.sizes), len(members), -1) - usual[:, None]
        return late[rows[:, None], fleet.layouts, fleet.gpus]

    def _slowest_of(self, batching: Batching, members: Members) -> Extents | None:
        """Return the micro-batches of the slowest ranks, [micro-batch and layout, 1]; None if alike."""
        layout = members[0][0]
        degrees = tuple(one.run.data_parallel for one, _ in members)
        key = id(batching), degrees, meets_every_micro_batch(layout.run), layout.run.context_parallel
        if key not in self._slowest:
            self._slowest[key] = _slowest(batching, [one for one, _ in members])
        return self._slowest[key]

    def _micro_batch(
        self, batching: Batching, member: tuple[Layout, Share], extents: Extents, devices: Devices
    ) -> StepTime:
        """Return the times of micro-batches of `extents`, [micro-batch, GPU]."""
        layout, share = member
        fields = [getattr(share.run, name) for name in TIMED]
        key = (id(extents), share.whole.lowering, *fields)
        if key not in self._times:
            mine, whole = rank_extents(layout.run, extents), (share.whole.lowering, *fields)
            if whole not in self._shares:
                self._shares[whole] = share_of(layout.run)
            timed = micro_batch_time(self._shares[whole], mine, devices.together)
            tokens: Any = extents.tokens
            shape = len(tokens), len(devices.names)
            parts = timed.parts if share.run.expert_parallel > 1 else _by_stage(timed.parts)
            self._times[key] = _filled(timed._replace(parts=parts), shape)
        return self._times[key]

    def _market(self, dtype: str) -> Market | None:
        """Return the machines that compute in `dtype`; None where there are none."""
        if dtype not in self._markets:
            run = unchecked(self.space.run, node_network_gbit_per_s=None)
            self._markets[dtype] = Market(run, self.space.offers, self.calibration, dtype)
        market = self._markets[dtype]
        return market if market.devices.names else None


def _sizes(batching: Batching) -> Any:
    """Return the sequences of each micro-batch, [micro-batch, 1]."""
    import numpy

    return numpy.array(batching.sizes)[:, None]


def _slowest(batching: Batching, layouts: list[Layout]) -> Extents | None:
    """Return the micro-batch of the slowest rank for every micro-batch and every layout."""
    import numpy

    found: list[Extents] = []
    for size, shape in zip(batching.sizes, batching.shapes, strict=True):
        for layout in layouts:
            steps = max(1, batching.rows_per_step // (size * layout.run.data_parallel))
            run = unchecked(layout.run, micro_batch_size=size, gradient_accumulation_steps=steps)
            found.append(slowest_extents(run, shape))
    columns: list[Any] = [numpy.array(numbers, dtype=float)[:, None] for numbers in zip(*found, strict=True)]
    means: list[Any] = [numpy.repeat(numbers, len(layouts), axis=0) for numbers in batching.mean]
    alike = all((one == mean).all() for one, mean in zip(columns, means, strict=True))
    return None if alike else Extents(*columns)


def _filled(timed: StepTime, shape: tuple[int, int]) -> StepTime:
    """Return the same times with every number as an array of `shape`."""
    import numpy

    def whole(seconds: Any) -> Any:
        return numpy.array(numpy.broadcast_to(seconds, shape))

    parts = Breakdown({path: whole(seconds) for path, seconds in timed.parts.parts.items()})
    return StepTime(parts, *map(whole, timed[1:]))


def _by_stage(parts: Breakdown) -> Breakdown:
    """Return the seconds of a micro-batch forward and backward, those at the model's two ends apart."""
    return Breakdown.add_up(
        (("forward" if stage == "forward" else "backward", part if part in OUTER else "layers"), seconds)
        for (stage, part, *_), seconds in parts.parts.items()
    )
