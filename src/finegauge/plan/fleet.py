"""The machines of a search side by side: numbers of GPUs, links, prices and grids as arrays.

A fleet is the machines that hold the GPUs of some layouts, with one number per machine in its arrays and
one per offer in those of its rents; the arrays of `Devices` have one per kind of GPU, for computing is the
same whoever rents it out.
"""

from collections.abc import Sequence
from math import nan
from typing import TYPE_CHECKING, Any, NamedTuple

from finegauge.catalogue.carbon import grid
from finegauge.catalogue.carbon import pue as site_overhead
from finegauge.catalogue.gpus import gpu as find_gpu
from finegauge.catalogue.offers import Offer
from finegauge.errors import UnsupportedError
from finegauge.plan.unchecked import unchecked
from finegauge.predict.calibration import DATASHEET, Calibration
from finegauge.predict.communication import Network
from finegauge.predict.device import Device
from finegauge.predict.energy import BoardPower, board_power
from finegauge.predict.memory import cublas_bytes
from finegauge.predict.predictor import device_of

if TYPE_CHECKING:
    from finegauge.workload.run import Run

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
            cublas_bytes=numpy.array([cublas_bytes(spec.architecture) for spec in specs]),
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
