"""Memory, time and cost of many machines and layouts at once, as arrays.

A fleet is the machines that hold the GPUs of some layouts, with one number per machine in its arrays and
one per offer in those of its rents; the arrays of `Devices` have one per kind of GPU, for computing is the
same whatever provider rents it out.

Layouts of one structure run the same operators over tensors of other sizes. For memory, their sizes stand
side by side as arrays [layout, 1]; micro-batches are [micro-batch, 1, 1], kinds of GPU [GPU]. One
micro-batch is timed once per structure and kind of GPU; what a layout adds is its update, what its ranks
exchange, and the price of the machines, as arrays [micro-batch, machine]; how many ranks there are is an
array [machine] too, for a machine is one layout of a family on one offer. The functions are those of
`prediction` and `quote`.
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from math import nan
from typing import Any

from finegauge.arithmetic import present
from finegauge.catalogue.gpus import gpu as find_gpu
from finegauge.catalogue.gpus import has_no_flash
from finegauge.catalogue.offers import Offer, grid
from finegauge.catalogue.offers import pue as site_overhead
from finegauge.errors import UnsupportedError
from finegauge.model.op import Extents
from finegauge.model.weights import Weights
from finegauge.planning.quote import WALL_POWER_RATIO, StepQuantities, checkpoint_bytes, run_totals
from finegauge.planning.space import ACCUMULATING, Batching, Layout, variant
from finegauge.prediction.allocator import outside_tensors
from finegauge.prediction.calibration import DATASHEET, Calibration
from finegauge.prediction.device import Device
from finegauge.prediction.links import Network
from finegauge.prediction.memory import CUBLAS_BYTES, CUBLAS_DEFAULT_BYTES, Update
from finegauge.prediction.predictor import device_of
from finegauge.prediction.prefetch import Messages
from finegauge.prediction.sharding import (
    Beside,
    Share,
    beside_of,
    rank_extents,
    rank_graph,
    rank_live_set,
    whole_gradients,
)
from finegauge.prediction.time import BoardPower, StepTime, board_power, step_energy_j, step_of
from finegauge.profile import Breakdown, Path
from finegauge.records import NamedTuple
from finegauge.run.rules import FSDP
from finegauge.run.run import Run

JOINED_NODE_GPUS = 8  # only whole nodes of so many are joined ...
SUPERCHIPS, SUPERCHIP_NODE_GPUS = ("GB200", "GB300"), 4  # ... or of four of these
CONSUMER = ("RTX", "GTX")
DEGREES = ("data_parallel_replicate", "data_parallel_shard", "num_gpus")

Members = Sequence[tuple[Layout, Share]]  # layouts, with one rank's share of each


class Devices(NamedTuple):
    """The kinds of GPU of a search that have the matrix rate of one dtype."""

    place: dict[str, int]  # by name
    together: Device
    power: BoardPower  # nan where none is known
    step_power: BoardPower  # under the predictions' own calibration
    usable_bytes: Any
    cublas_bytes: Any

    @classmethod
    def of(cls, run: Run, offers: Sequence[Offer], calibration: Calibration, dtype: str) -> "Devices":
        """Return the GPUs of `offers`, without those that have no such rate, or readings instead of rates."""
        import numpy

        found: dict[str, Device] = {}
        rows: list[tuple[float, ...]] = []
        names = list(dict.fromkeys([offer.gpu for offer in offers]))
        alike = all(map(has_no_flash, names))
        for name in names:
            spec = find_gpu(name)
            if dtype != "fp32" and has_no_flash(name) and not alike:
                continue  # its 16-bit attention is another kernel than that of the others
            try:
                learned = calibration.learned_of(spec.name, run)
                device = device_of(name, calibration, dtype, learned=learned)
            except UnsupportedError:
                continue
            if isinstance(device, Device):
                found[name] = device
                powers = board_power(spec, DATASHEET), board_power(spec, calibration)
                limits = [one or BoardPower(nan, nan) for one in powers]
                cublas_bytes = CUBLAS_BYTES.get(spec.architecture, CUBLAS_DEFAULT_BYTES)
                rows.append((*limits[0], *limits[1], spec.usable_bytes, cublas_bytes))
        numbers: Any = numpy.array(rows, dtype=float).reshape(-1, 6).T
        return cls(
            place={name: index for index, name in enumerate(found)},
            together=Device.side_by_side(list(found.values())),
            power=BoardPower(*numbers[:2]),
            step_power=BoardPower(*numbers[2:4]),
            usable_bytes=numbers[4],
            cublas_bytes=numbers[5],
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
        numbers: Any = _taken(self._replace(rents=()), machines)  # type: ignore[arg-type]  # apart
        fleet: Fleet = numbers._replace(rents=rents._replace(machines=place[rents.machines]))
        return fleet


class Rented(NamedTuple):
    """Instances of one offer that hold a number of GPUs together."""

    place: int  # in the search's offers
    offer: Offer
    nodes: int
    network: Network


class Market:
    """All machines of a search that compute in one dtype, from which fleets are made."""

    def __init__(self, run: Run, offers: Sequence[Offer], calibration: Calibration, dtype: str) -> None:
        """Find the devices of `offers`; `run` states the network of its nodes, if anyone does."""
        self.run, self.offers, self.calibration = run, offers, calibration
        self.devices = Devices.of(run, offers, calibration, dtype)
        self._holding: dict[int, list[Rented]] = {}
        self._fleets: dict[tuple[int, ...], Fleet | None] = {}
        self._networks: dict[tuple[object, ...], Network] = {}
        self._sites: dict[tuple[str, str], tuple[float, float]] = {}

    def fleet(self, counts: tuple[int, ...]) -> Fleet | None:
        """Return the machines of a family of layouts of so many GPUs each; None where there are none."""
        if counts not in self._fleets:
            self._fleets[counts] = self._fleet(counts)
        return self._fleets[counts]

    def _fleet(self, counts: tuple[int, ...]) -> Fleet | None:
        from numpy import array

        machines: dict[tuple[int, int, Network], int] = {}
        rows: list[tuple[Any, ...]] = []
        for layout, count in enumerate(counts):
            for place, offer, nodes, network in self._rented(count):
                key = layout, self.devices.place[offer.gpu], network
                usd, spot_usd = offer.on_demand_usd_per_h, offer.spot_usd_per_h
                prices = nan if usd is None else usd, nan if spot_usd is None else spot_usd
                machine = machines.setdefault(key, len(machines))
                rows.append((machine, place, nodes, *prices, *self._site(offer)))
        if not rows:
            return None
        layouts, gpus, networks = zip(*machines, strict=True)
        places, devices = array(gpus), self.devices
        return Fleet(
            layouts=array(layouts),
            gpus=places,
            device=_taken(devices.together._replace(known={}), places),
            network=Network.side_by_side(networks),
            power=_taken(devices.power, places),
            step_power=_taken(devices.step_power, places),
            rents=Rents(*map(array, zip(*rows, strict=True))),
        )

    def _rented(self, num_gpus: int) -> list[Rented]:
        """Return the offers that hold `num_gpus` and rent no more than others of their provider must."""
        if num_gpus not in self._holding:
            held: list[tuple[int, Offer, int]] = []
            least: dict[tuple[str, str], int] = {}
            for index, offer in enumerate(self.offers):
                nodes = nodes_for(offer, num_gpus) if offer.gpu in self.devices.place else 0
                if nodes:
                    held.append((index, offer, nodes))
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
        spec = find_gpu(offer.gpu)
        racks = num_gpus if (spec.link_gpus or 1) > num_gpus // nodes else 0  # whose switch joins nodes
        key = offer.gpu, offer.provider, num_gpus // nodes, racks
        if key not in self._networks:
            placed = variant(self.run, num_gpus=num_gpus, num_nodes=nodes, provider=offer.provider)
            network = Network.of(placed, spec, self.calibration)
            self._networks[key] = network._replace(links=())
        return self._networks[key]

    def _site(self, offer: Offer) -> tuple[float, float]:
        key = offer.provider, offer.region
        if key not in self._sites:
            intensity, overhead = grid(offer.region, offer.provider), site_overhead(*key)
            self._sites[key] = intensity.kg_per_kwh, self.run.pue or overhead.pue
        return self._sites[key]


def nodes_for(offer: Offer, num_gpus: int) -> int:
    """Return how many instances of `offer` hold `num_gpus` GPUs; 0 where so many are not joined.

    Only whole data-centre nodes are joined.
    """
    if num_gpus <= offer.gpu_count:
        return 1
    least = SUPERCHIP_NODE_GPUS if offer.gpu.startswith(SUPERCHIPS) else JOINED_NODE_GPUS
    alone = offer.gpu.startswith(CONSUMER) and "Server" not in offer.gpu
    if alone or offer.is_scaled or offer.gpu_count < least or num_gpus % offer.gpu_count:
        return 0
    return num_gpus // offer.gpu_count


def _taken(numbers: Any, places: Any) -> Any:
    """Return the numbers of some machines, of a tuple or mapping of arrays."""
    if isinstance(numbers, Calibration):
        return numbers
    if isinstance(numbers, tuple):
        taken = [_taken(each, places) for each in numbers]
        return type(numbers)(*taken) if hasattr(numbers, "_fields") else tuple(taken)
    if isinstance(numbers, dict):
        return {key: _taken(each, places) for key, each in numbers.items()}
    return numbers[places]


class Held(NamedTuple):
    """What the ranks of some layouts hold, [accumulation, micro-batch, layout, kind of GPU]."""

    device_bytes: Any  # all that has to fit
    checkpoint_bytes: Any  # what a save writes
    steps: tuple[int, ...]  # of accumulation, by the first axis
    kinds: Any  # of each GPU, by the last axis

    def at(self, micro_steps: Any, layouts: Any, gpus: Any) -> tuple[Any, Any]:
        """Return both, [micro-batch, machine].

        `micro_steps` is [micro-batch, machine]; the layout and the GPU of a machine are [machine].
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

    `longest` are micro-batches, [micro-batch, 1]; `micro_steps` the numbers of them per step that occur;
    `cublas_bytes` what matrix products hold on each GPU.
    """
    import numpy

    run, share = members[0][0].run, members[0][1]
    sizes: tuple[Any, ...] = rank_extents(run, longest)
    extents = Extents(*[numbers[:, :, None] for numbers in sizes])
    different: Any
    different, kinds = numpy.unique(cublas_bytes, return_inverse=True)
    # more micro-batches than two make no difference to memory, but for those in flight in a pipeline
    flying = max(ACCUMULATING, run.pipeline_parallel * run.virtual_pipeline_stages + 1)
    if run.pipeline_parallel > 1 and run.pipeline_schedule == "gpipe":
        flying = int(max(micro_steps))
    steps = tuple(numpy.unique(numpy.minimum(micro_steps, flying)).tolist())
    shape = (len(steps), len(sizes[0]), len(members), len(different))
    needed, written = numpy.empty(shape), numpy.empty(shape)
    graph = rank_graph(run, share.whole, stacked(Weights, [one.graph.weights for _, one in members]))
    stages = zip(*[one.stages for _, one in members], strict=False)  # none where nothing is divided
    share = share._replace(graph=graph, stages=tuple(stacked(Weights, each) for each in stages))
    nccl = column([calibration.nccl_bytes if one.distributed else 0.0 for _, one in members])
    for place, number in enumerate(steps):
        each = []
        for layout, one in members:
            accumulates = number == ACCUMULATING
            own = layout.run if accumulates else variant(layout.run, gradient_accumulation_steps=number)
            each.append(beside_of(own, one))
        first = run if number == ACCUMULATING else variant(run, gradient_accumulation_steps=number)
        own = variant(share.run, gradient_accumulation_steps=number)
        live = rank_live_set(first, share._replace(run=own), extents, different, _stacked_beside(each))
        peak = live.peak
        on_device = peak + outside_tensors(own, graph, peak, calibration) + Breakdown({("NCCL",): nccl})
        needed[place] = on_device.total
        written[place] = checkpoint_bytes(own, live.phases.get("optimizer", on_device))
    return Held(needed, written, steps, kinds)


def same_operators(layout: Layout, share: Share) -> tuple[Any, ...]:
    """Return what layouts have in common that can stand side by side."""
    run = layout.run
    hooked = run.sharding in FSDP and run.trains_adapters and run.activation_checkpointing == "full"
    in_units = present(whole_gradients(variant(run, gradient_accumulation_steps=1), share))
    return share.whole.lowering, hooked, in_units


def stacked(kind: Any, each: Sequence[Any], places: Any = None) -> Any:
    """Return tuples of numbers, one for each layout, as one of arrays: see `column`."""
    return kind(*[column(numbers, places) for numbers in zip(*each, strict=True)])


def column(numbers: Sequence[float], places: Any = None) -> Any:
    """Return numbers of layouts as an array [layout, 1], or as the one number that they all are.

    With `places`, the layout of each machine, the array is [machine].
    """
    import numpy

    first = numbers[0]
    for number in numbers:
        if number != first:
            array = numpy.array(numbers)
            return array[:, None] if places is None else array[places]
    return first


def _stacked_beside(each: Sequence[Beside]) -> Beside:
    every, updates, messages, unit_bytes = zip(*each, strict=True)
    gathered: dict[str, Mapping[Path, Any]] = {}
    for phase in dict.fromkeys(chain(*every)):
        parts = [one.get(phase, {}) for one in every]
        found: dict[Path, Any] = {}
        for path in dict.fromkeys(chain(*parts)):
            found[path] = column([part.get(path, 0.0) for part in parts])
        gathered[phase] = found
    return Beside(gathered, stacked(Update, updates), stacked(Messages, messages), column(unit_bytes))


class Costs(NamedTuple):
    """What a whole run takes, whatever it is rented for, [micro-batch, machine]."""

    step_time_s: Any
    wall_s: Any
    energy_j: Any  # at the wall


def costs(
    members: Members, fleet: Fleet, batching: Batching, rows: Any, micro_batch: StepTime, waits_s: Any,
    written_bytes: Any, micro_steps: Any, calibration: Calibration, free_bytes: Any,
) -> Costs:  # fmt: skip
    """Return what the whole run takes on each machine with each of the micro-batches `rows`.

    Shapes: `micro_batch` (the times of all) [micro-batch, GPU]; `waits_s` for the slowest rank,
    `written_bytes` by a save, `micro_steps` and `free_bytes` of a GPU [micro-batch, machine].
    """
    import numpy

    run, share = _on_machines(members, fleet)
    sizes: tuple[Any, ...] = rank_extents(run, batching.mean)
    mean = Extents(*[numbers[rows] for numbers in sizes])
    place = numpy.ix_(rows, fleet.gpus)
    known: Mapping[Path, Any] = micro_batch.parts.parts
    times: tuple[Any, ...] = micro_batch[1:]
    rest: list[Any] = [seconds[place] for seconds in times]
    alone = StepTime(Breakdown({path: seconds[place] for path, seconds in known.items()}), *rest)
    network = fleet.network if members[0][1].communicates else None
    step = step_of(alone, share, mean, fleet.device, network, micro_steps, waits_s, free_bytes)
    sequences = batching.samples[rows] * micro_steps * run.data_parallel
    quantities = StepQuantities(
        step_s=step.parts.total,
        sequence_forward_s=step.parts["forward"] / sequences,
        checkpoint_bytes=written_bytes,
        step_j=step_energy_j(fleet.step_power, step, calibration, run.num_gpus).total,
    )
    num_steps, num_epochs = batching.num_steps[rows], batching.num_epochs[rows]
    wall, boards_j = run_totals(run, quantities, num_steps, num_epochs, fleet.power.idle_w)
    return Costs(quantities.step_s, wall.total, boards_j * WALL_POWER_RATIO)


def _on_machines(members: Members, fleet: Fleet) -> tuple[Run, Share]:
    (layout, share), places = members[0], fleet.layouts
    degrees = {name: column([getattr(one.run, name) for one, _ in members], places) for name in DEGREES}
    sizes: dict[str, Any] = {}
    for name, value in share._asdict().items():
        if isinstance(value, float):
            sizes[name] = column([getattr(one, name) for _, one in members], places)
    weights = stacked(Weights, [one.graph.weights for _, one in members], places)
    graph = share.graph._replace(weights=weights)
    if share.run.sequence_parallel:  # whose norms' gradients are exchanged, operator by operator
        graph = rank_graph(layout.run, share.whole, weights)
    together = share._replace(run=variant(share.run, **degrees), graph=graph, **sizes)
    return variant(layout.run, **degrees), together
