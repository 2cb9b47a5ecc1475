"""The layouts and machines of a search side by side, as arrays: their memory, their time, their cost."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import nan
from typing import Any, NamedTuple

from finegauge.catalogue.carbon import grid
from finegauge.catalogue.carbon import pue as site_overhead
from finegauge.catalogue.gpus import gpu as find_gpu
from finegauge.catalogue.offers import Offer
from finegauge.errors import UnsupportedError
from finegauge.model.op import Extents
from finegauge.model.weights import Weights
from finegauge.planning.quote import (
    SPOT_REPEATED_FRACTION,
    WALL_POWER_RATIO,
    StepQuantities,
    boards_energy_j,
    checkpoint_bytes,
    emissions_kg,
    rent_usd,
    wall_time_s,
)
from finegauge.planning.space import ACCUMULATING, Batching, Layout, unchecked
from finegauge.prediction.calibration import DATASHEET, Calibration
from finegauge.prediction.communication import Network
from finegauge.prediction.device import Device
from finegauge.prediction.memory import CUBLAS_BYTES, CUBLAS_DEFAULT_BYTES, Update, outside_tensors
from finegauge.prediction.predictor import device_of
from finegauge.prediction.sharding import Beside, Share, beside_of, rank_extents, rank_graph, rank_live_set
from finegauge.prediction.time import BoardPower, StepTime, board_power, step_energy_j, step_of
from finegauge.profile import Breakdown, Path
from finegauge.run.rules import FSDP
from finegauge.run.run import Run
from finegauge.units import HOUR_S

JOINED_NODE_GPUS = 8  # only whole nodes of so many are joined ...
SUPERCHIPS, SUPERCHIP_NODE_GPUS = ("GB200", "GB300"), 4  # ... or of four of these
CONSUMER = ("RTX", "GTX")
NO_POWER = BoardPower(nan, nan)


class Devices(NamedTuple):
    """The kinds of GPU of a search that have the matrix rate of one dtype."""

    calibration: Calibration
    names: tuple[str, ...]
    together: Device
    place: dict[str, int]  # by name
    power: BoardPower  # nan where none is known
    step_power: BoardPower  # under the predictions' own calibration
    usable_bytes: Any
    cublas_bytes: Any

    @classmethod
    def of(cls, offers: Sequence[Offer], calibration: Calibration, dtype: str) -> "Devices":
        """Return the GPUs of `offers`, without those that have no such rate, or readings instead of rates."""
        import numpy

        found: dict[str, Device] = {}
        for name in dict.fromkeys(offer.gpu for offer in offers):
            try:
                device = device_of(name, calibration, dtype)
            except UnsupportedError:
                continue
            if isinstance(device, Device):
                found[name] = device
        specs = [find_gpu(name) for name in found]
        return cls(
            calibration=calibration,
            names=tuple(found),
            together=Device.side_by_side(list(found.values())),
            place={name: index for index, name in enumerate(found)},
            power=_powers([board_power(spec, DATASHEET) for spec in specs]),
            step_power=_powers([board_power(spec, calibration) for spec in specs]),
            usable_bytes=numpy.array([spec.usable_bytes for spec in specs]),
            cublas_bytes=numpy.array(
                [CUBLAS_BYTES.get(spec.architecture, CUBLAS_DEFAULT_BYTES) for spec in specs]
            ),
        )


class Rents(NamedTuple):
    """What offers of the machines ask for, and how clean their sites are; one number for each offer."""

    machines: Any  # places in the fleet
    offers: Any  # places in the search's offers
    nodes: Any
    usd_per_h: Any  # of one instance; nan where no price is known
    spot_usd_per_h: Any
    kg_per_kwh: Any
    pue: Any


class Fleet(NamedTuple):
    """The machines of a family of layouts; arrays have one number for each.

    Offers of equal machines, in other regions or by other providers with the same network, are rents of one.
    """

    layouts: Any  # places in the family: which number of GPUs it holds
    gpus: Any  # places in `Devices`
    device: Device
    network: Network
    power: BoardPower
    step_power: BoardPower
    rents: Rents

    def at(self, machines: Any) -> "Fleet":
        """Return some of its machines with their rents."""
        import numpy

        place = numpy.full(len(self.gpus), -1)
        place[machines] = numpy.arange(len(machines))
        rents: Rents = _taken(self.rents, place[self.rents.machines] >= 0)
        rents = rents._replace(machines=place[rents.machines])
        numbers: dict[str, Any] = {
            name: _taken(value, machines) for name, value in self._asdict().items() if name != "rents"
        }
        return Fleet(**numbers, rents=rents)


class Market:
    """All machines of a search that compute in one dtype, from which fleets are made."""

    def __init__(self, run: "Run", offers: Sequence[Offer], calibration: Calibration, dtype: str) -> None:
        """Find the devices of `offers`; `run` states the network of its nodes, if anyone does."""
        self.run, self.offers = run, offers
        self.devices = Devices.of(offers, calibration, dtype)
        self._holding: dict[int, list[Rented]] = {}
        self._fleets: dict[tuple[int, ...], Fleet | None] = {}
        self._networks: dict[tuple[object, ...], Network] = {}

    def fleet(self, counts: tuple[int, ...]) -> Fleet | None:
        """Return the machines of a family of layouts of so many GPUs each; None where there are none."""
        if counts not in self._fleets:
            self._fleets[counts] = self._fleet(counts)
        return self._fleets[counts]

    def _fleet(self, counts: tuple[int, ...]) -> Fleet | None:
        from numpy import array

        machines: dict[tuple[int, int, Network], int] = {}
        rented: list[tuple[int, Rented]] = []
        for place, count in enumerate(counts):
            for rent in self._rented(count):
                key = place, self.devices.place[rent.offer.gpu], rent.network
                rented.append((machines.setdefault(key, len(machines)), rent))
        if not rented:
            return None
        layouts, gpus, networks = zip(*machines, strict=True)
        places, devices = array(gpus), self.devices
        return Fleet(
            layouts=array(layouts),
            gpus=places,
            device=_taken(devices.together._replace(known={}), places),
            network=_side_by_side(networks),
            power=_taken(devices.power, places),
            step_power=_taken(devices.step_power, places),
            rents=_rents(rented),
        )

    def _rented(self, num_gpus: int) -> "list[Rented]":
        """Return the offers that hold `num_gpus` and rent no more than others of their provider must."""
        if num_gpus not in self._holding:
            held = [
                (index, offer, nodes)
                for index, offer in enumerate(self.offers)
                if offer.gpu in self.devices.place and (nodes := nodes_for(offer, num_gpus))
            ]
            least: dict[tuple[str, str], int] = {}
            for _, offer, nodes in held:
                key, rented = (offer.provider, offer.gpu), nodes * offer.gpu_count
                least[key] = min(least.get(key, rented), rented)
            self._holding[num_gpus] = [
                Rented(index, offer, nodes, self._network(offer, num_gpus, nodes))
                for index, offer, nodes in held
                if nodes * offer.gpu_count == least[offer.provider, offer.gpu]
            ]
        return self._holding[num_gpus]

    def _network(self, offer: Offer, num_gpus: int, nodes: int) -> Network:
        """Return the links of so many GPUs of each instance: in all regions alike, however many instances."""
        key = offer.gpu, offer.provider, num_gpus // nodes
        if key not in self._networks:
            placed = unchecked(self.run, num_gpus=num_gpus, num_nodes=nodes, provider=offer.provider)
            network = Network.of(placed, find_gpu(offer.gpu), self.devices.calibration)
            self._networks[key] = network
        return self._networks[key]


class Rented(NamedTuple):
    """Instances of one offer that hold a number of GPUs together."""

    place: int  # in the search's offers
    offer: Offer
    nodes: int
    network: Network


def _rents(rented: Sequence[tuple[int, Rented]]) -> Rents:
    """Return prices and sites of what is rented, each with the place of its machine."""
    from numpy import array

    offers = [rent.offer for _, rent in rented]
    sites = {(offer.provider, offer.region): None for offer in offers}
    grids = {site: grid(site[1], site[0]).kg_per_kwh for site in sites}
    overheads = {site: site_overhead(*site).pue for site in sites}
    return Rents(
        machines=array([machine for machine, _ in rented]),
        offers=array([rent.place for _, rent in rented]),
        nodes=array([rent.nodes for _, rent in rented]),
        usd_per_h=array([_known(offer.on_demand_usd_per_h) for offer in offers]),
        spot_usd_per_h=array([_known(offer.spot_usd_per_h) for offer in offers]),
        kg_per_kwh=array([grids[offer.provider, offer.region] for offer in offers]),
        pue=array([overheads[offer.provider, offer.region] for offer in offers]),
    )


def _taken(numbers: Any, places: Any) -> Any:
    """Return the numbers of some machines."""
    if isinstance(numbers, Calibration):
        return numbers
    if isinstance(numbers, tuple):
        return type(numbers)(*(_taken(each, places) for each in numbers))
    if isinstance(numbers, dict):
        return {key: _taken(each, places) for key, each in numbers.items()}
    return numbers[places]


def nodes_for(offer: Offer, num_gpus: int) -> int:
    """Return how many instances of `offer` hold `num_gpus` GPUs; 0 where nobody would join so many.

    Only whole data-centre nodes are joined.
    """
    if num_gpus <= offer.gpu_count:
        return 1
    least = SUPERCHIP_NODE_GPUS if offer.gpu.startswith(SUPERCHIPS) else JOINED_NODE_GPUS
    alone = offer.gpu.startswith(CONSUMER) and "Server" not in offer.gpu
    if alone or offer.gpu_count < least or num_gpus % offer.gpu_count:
        return 0
    return num_gpus // offer.gpu_count


def _side_by_side(networks: Sequence[Network]) -> Network:
    """Return networks as one of arrays; what nobody rents out has measured links."""
    import numpy

    rates = (network._replace(links=())[:-1] for network in networks)
    numbers: list[Any] = [numpy.array(column) for column in zip(*rates, strict=True)]
    return Network(*numbers)


def _powers(known: Sequence[BoardPower | None]) -> BoardPower:
    """Return the power of all boards as arrays."""
    import numpy

    each = [power or NO_POWER for power in known]
    limits: Any = numpy.array([power.limit_w for power in each])
    idles: Any = numpy.array([power.idle_w for power in each])
    return BoardPower(limits, idles)


def _known(usd_per_h: float | None) -> float:
    return nan if usd_per_h is None else usd_per_h


Members = Sequence[tuple[Layout, Share]]


class Held(NamedTuple):
    """What the ranks of some layouts hold, [accumulation, micro-batch, layout, kind of GPU]."""

    device_bytes: Any  # all that has to fit
    checkpoint_bytes: Any  # what a save writes
    steps: tuple[int, ...]  # of accumulation, by the first axis
    kinds: Any  # of each GPU, by the last axis

    def at(self, micro_steps: Any, layouts: Any, gpus: Any) -> tuple[Any, Any]:
        """Return both, [micro-batch, machine].

        Args:
            micro_steps: How many micro-batches a step has, [micro-batch, machine].
            layouts: Which layout it is, [machine].
            gpus: Which GPU it is, [machine].
        """
        import numpy

        accumulated = numpy.searchsorted(self.steps, numpy.minimum(micro_steps, self.steps[-1]))
        rows = numpy.arange(len(micro_steps))[:, None]
        place = accumulated, rows, layouts, self.kinds[gpus]
        return self.device_bytes[place], self.checkpoint_bytes[place]


def held(
    members: Members, longest: Extents, micro_steps: Any, cublas_bytes: Any, calibration: Calibration
) -> Held:
    """Return what the ranks of `members`, which run the same operators, hold.

    Args:
        members: Layouts with one rank's share of each.
        longest: The longest micro-batches, [micro-batch, 1].
        micro_steps: The numbers of micro-batches per step that occur.
        cublas_bytes: What matrix products hold on each GPU.
        calibration: In force.
    """
    import numpy

    run, share = members[0][0].run, members[0][1]
    deep: list[Any] = [numbers[:, :, None] for numbers in _arrays(rank_extents(run, longest))]
    extents = Extents(*deep)
    different: Any
    different, kinds = numpy.unique(cublas_bytes, return_inverse=True)
    steps = _accumulations(run, micro_steps)
    shape = (len(steps), len(_arrays(longest)[0]), len(members), len(different))
    needed, written = numpy.empty(shape), numpy.empty(shape)
    graph = rank_graph(run, share.whole, stacked(Weights, [one.graph.weights for _, one in members]))
    nccl = column([calibration.nccl_bytes if one.distributed else 0.0 for _, one in members])
    for place, number in enumerate(steps):
        runs = [
            layout.run
            if number == ACCUMULATING
            else unchecked(layout.run, gradient_accumulation_steps=number)
            for layout, _ in members
        ]
        beside = _stacked_beside([beside_of(own, one) for own, (_, one) in zip(runs, members, strict=True)])
        own = unchecked(share.run, gradient_accumulation_steps=number)
        live = rank_live_set(runs[0], share._replace(run=own, graph=graph), extents, different, beside)
        peak = live.peak
        on_device = peak + outside_tensors(own, graph, peak, calibration) + Breakdown({("NCCL",): nccl})
        needed[place] = on_device.total
        written[place] = checkpoint_bytes(own, live.phases.get("optimizer", on_device))
    return Held(needed, written, steps, kinds)


def same_operators(layout: Layout, share: Share) -> tuple[Any, ...]:
    """Return what layouts have in common that can stand side by side."""
    run = layout.run
    hooked = run.sharding in FSDP and run.trains_adapters and run.activation_checkpointing == "full"
    return share.whole.lowering, hooked


def stacked(kind: Any, each: Sequence[Any], places: Any = None) -> Any:
    """Return tuples of numbers, one for each layout, as one of arrays: see `column`."""
    return kind(*(column(numbers, places) for numbers in zip(*each, strict=True)))


def column(numbers: Sequence[float], places: Any = None) -> Any:
    """Return numbers of layouts as an array, or as the one number that they all are.

    Args:
        numbers: One for each layout.
        places: The layout of each machine, [machine]; without it the array is [layout, 1].
    """
    import numpy

    first = numbers[0]
    if all(number == first for number in numbers):
        return first
    array = numpy.array(numbers)
    return array[:, None] if places is None else array[places]


def _arrays(extents: Extents) -> Sequence[Any]:
    """Return the numbers of `extents`, which are arrays here."""
    return extents


def _accumulations(run: Run, micro_steps: Any) -> tuple[int, ...]:
    """Return the numbers of micro-batches that make a difference to memory.

    What is beyond one makes none, but for the micro-batches in flight in a pipeline.
    """
    flying = max(ACCUMULATING, run.pipeline_parallel * run.virtual_pipeline_stages)
    if run.pipeline_parallel > 1 and run.pipeline_schedule == "gpipe":
        flying = int(max(micro_steps))
    return tuple(sorted({min(int(number), flying) for number in micro_steps}))


def _stacked_beside(each: Sequence[Beside]) -> Beside:
    """Return what every layout holds beside as arrays [layout, 1]."""
    phases = dict.fromkeys(phase for one in each for phase in one.gathered)
    gathered: dict[str, Mapping[Path, Any]] = {}
    for phase in phases:
        parts = [one.gathered.get(phase, {}) for one in each]
        paths = dict.fromkeys(path for part in parts for path in part)
        gathered[phase] = {path: column([part.get(path, 0.0) for part in parts]) for path in paths}
    return Beside(gathered, stacked(Update, [one.update for one in each]))


DEGREES = ("data_parallel_replicate", "data_parallel_shard", "num_gpus")


class Costs(NamedTuple):
    """What a whole run takes, whoever rents out the machine, [micro-batch, machine]."""

    step_time_s: Any
    wall_s: Any
    energy_j: Any  # at the wall


class Family(NamedTuple):
    """Layouts that differ in the number of ranks, on the machines of a fleet."""

    run: Run  # degrees as arrays [machine]
    share: Share
    fleet: Fleet
    communicates: bool


def family_of(members: Sequence[tuple[Layout, Share]], fleet: Fleet) -> Family:
    """Return `members` on the machines of `fleet`."""
    (layout, share), places = members[0], fleet.layouts
    degrees = {name: column([getattr(one.run, name) for one, _ in members], places) for name in DEGREES}
    weights = stacked(Weights, [one.graph.weights for _, one in members], places)
    sizes = {
        name: column([getattr(one, name) for _, one in members], places)
        for name, value in share._asdict().items()
        if isinstance(value, float)
    }
    graph = replace(share.graph, weights=weights)
    if share.run.sequence_parallel:  # whose norms' gradients are exchanged, operator by operator
        graph = rank_graph(layout.run, share.whole, weights)
    together = share._replace(run=unchecked(share.run, **degrees), graph=graph, **sizes)
    return Family(unchecked(layout.run, **degrees), together, fleet, share.communicates)


def costs(
    family: Family, batching: Batching, rows: Any, micro_batch: StepTime, waits_s: Any, written_bytes: Any,
    micro_steps: Any, calibration: Calibration,
) -> Costs:  # fmt: skip
    """Return what the whole run takes on each machine with each of the micro-batches `rows`.

    Args:
        family: Layouts and machines.
        batching: All micro-batches of the structure.
        rows: Which of them.
        micro_batch: The times of all, [micro-batch, GPU].
        waits_s: What a micro-batch waits for the slowest rank, [micro-batch, machine].
        written_bytes: By a save, [micro-batch, machine].
        micro_steps: How many of them a step has, [micro-batch, machine].
        calibration: In force.
    """
    run, share, fleet, communicates = family
    sizes: tuple[Any, ...] = rank_extents(run, batching.mean)
    mean = Extents(*(numbers[rows] for numbers in sizes))
    alone = on_machines(micro_batch, rows, fleet)
    network = fleet.network if communicates else None
    step = step_of(alone, share, mean, fleet.device, network, micro_steps, waits_s)
    sequences = batching.samples[rows] * micro_steps * run.data_parallel
    quantities = StepQuantities(
        step_s=step.parts.total,
        sequence_forward_s=step.parts["forward"] / sequences,
        checkpoint_bytes=written_bytes,
        step_j=step_energy_j(fleet.step_power, step, calibration, run.num_gpus).total,
    )
    num_steps, num_epochs = batching.num_steps[rows], batching.num_epochs[rows]
    wall = wall_time_s(run, quantities, num_steps, num_epochs)
    wall_s: Any = wall.total
    boards_j = boards_energy_j(run, quantities, num_steps, wall, fleet.power.idle_w)
    wall_j: Any = boards_j * WALL_POWER_RATIO
    return Costs(step_time_s=quantities.step_s, wall_s=wall_s, energy_j=wall_j)


def bills(wall_s: Any, wall_j: Any, rents: Rents, places: Any) -> dict[str, Any]:
    """Return what runs of `wall_s` seconds and `wall_j` joules cost on the rents at `places`."""
    hours, nodes = wall_s / HOUR_S, rents.nodes[places]
    return {
        "usd": rent_usd(hours, rents.usd_per_h[places], nodes),
        "spot_usd": rent_usd(hours * (1 + SPOT_REPEATED_FRACTION), rents.spot_usd_per_h[places], nodes),
        "emissions_kg": emissions_kg(wall_j, rents.pue[places], rents.kg_per_kwh[places]),
    }


def on_machines(micro_batch: StepTime, rows: Any, fleet: Fleet) -> StepTime:
    """Return times [micro-batch, GPU] as [micro-batch, machine], of some micro-batches."""
    import numpy

    place = numpy.ix_(rows, fleet.gpus)
    known: Mapping[Path, Any] = micro_batch.parts.parts
    rest: tuple[Any, ...] = micro_batch[1:]
    parts = Breakdown({path: seconds[place] for path, seconds in known.items()})
    return StepTime(parts, *(seconds[place] for seconds in rest))
