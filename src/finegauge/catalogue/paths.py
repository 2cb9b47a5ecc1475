"""Links from a GPU to its neighbours, its host and the next node: facts, or stated assumptions.

Three reaches: the GPUs that one fabric joins (8 on an HGX board, 72 in an NVL72 rack, 2 by a bridge, a pod
of TPUs), those of the same host over PCIe, and all others over the network. What a run states comes first,
then the rows of its provider, then what is usual for the GPU; else what machines of its class
have.

How quick collectives are over a kind of link, timings of NCCL say, reduced to a few constants a machine:
shares of the rate that the datasheet gives, so that a GPU that was not timed takes those of its architecture,
or of all machines with such links. `prediction.links` has their law; `python -m benchmarks.fabrics` fits them
anew to a table of timings.

Of hosts a provider's row comes first, then the board maker's own machine; else a server of two sockets,
or for one or two GeForce cards a desktop. What a core of an EPYC streams is STREAM's reading on DGX A100 [1].

[1] gist.github.com/v0dro/0559e1d9b205ca9ac0ad1a29fe10377b: 28 GB/s by one thread, 148 by 32 of one socket
"""

from functools import cache
from typing import NamedTuple

from finegauge.catalogue.gpus import GpuSpec, Interconnect, interconnects
from finegauge.catalogue.tables import rows_as

NVLINK, PCIE, XGMI = "NVLink", "PCIe", "xGMI"
PCIE_BYTES_PER_S = {"3": 15.75e9, "4": 31e9, "5": 63e9, "6": 121e9}  # x16, one direction, by generation
USUAL_PCIE = "4.0 x16"
ETHERNET_BYTES_PER_S = 1.5625e9  # per GPU: 100 Gbit/s for a node of eight
STAGED_FRACTION = 0.5  # of the rate peer to peer: to the host's memory and back over the same root
BOARD_GPUS = 8  # joined on a board, and in a node, where a GPU's own rows do not say
# per GPU and direction, of data-centre boards with a link of their own: the network card that servers of
# their year came with (HDR 200, NDR 400, XDR 800 Gbit/s); before 2020 four cards of 100 Gbit/s for eight
# GPUs
CARDS_BYTES_PER_S = ((2025, 100e9), (2022, 50e9), (2020, 25e9), (0, 6.25e9))
OTHERWISE = "node_network_gbit_per_s says otherwise"


class Paths(NamedTuple):
    """The ways from one GPU to the others of its machine and of its cluster."""

    fabric: str  # NVLink | xGMI | PCIe: whose timings stand for the way to the closest
    joined: int  # GPUs that reach each other over it; 1: none but PCIe
    link_bytes_per_s: float  # of one GPU to all of them, one direction
    peers: int  # over how many links, one to each, that is divided; 0: a switch
    node_gpus: int  # of a usual node
    pcie_bytes_per_s: float
    p2p: bool  # whether they write to each other over PCIe; else through the memory of the host
    neighbour_source: str
    network_bytes_per_s: float  # of one GPU to other nodes, one direction
    network_source: str

    @property
    def bridge_bytes_per_s(self) -> float:
        """Return bytes/s of one GPU to those of its host over PCIe."""
        return self.pcie_bytes_per_s * (1.0 if self.p2p else STAGED_FRACTION)


def paths_of(gpu: GpuSpec, provider: str | None = None, gpus_per_node: int | None = None) -> Paths:
    """Return the paths of `gpu` in a usual machine, or in the instances of `provider` with so many GPUs."""
    rate, joined = gpu.nvlink_bytes_per_s, gpu.link_gpus
    source = gpu.link_source
    if joined is None:
        joined = BOARD_GPUS if rate > 0 else 1
        source = f"assumed: {BOARD_GPUS} GPUs on a board" if rate > 0 else "assumed: PCIe alone"
    mesh = gpu.vendor in ("AMD", "Intel") and joined > 1
    network, network_source = _network(gpu, provider, gpus_per_node)
    return Paths(
        fabric=(XGMI if gpu.vendor == "AMD" else NVLINK) if joined > 1 else PCIE,
        joined=joined if rate > 0 else 1,
        link_bytes_per_s=rate,
        peers=joined - 1 if mesh else 0,
        node_gpus=gpu.node_gpus or BOARD_GPUS,
        pcie_bytes_per_s=pcie_bytes_per_s(gpu),
        p2p=gpu.p2p is not False,
        neighbour_source=source,
        network_bytes_per_s=network,
        network_source=network_source,
    )


def pcie_bytes_per_s(gpu: GpuSpec) -> float:
    """Return bytes/s of one direction between the GPU and its host, by generation and width ("4.0 x8")."""
    generation, _, width = (gpu.pcie or USUAL_PCIE).partition(" x")
    lanes = float(width) if width.isdecimal() else 16.0
    return PCIE_BYTES_PER_S.get(generation[:1], PCIE_BYTES_PER_S["4"]) * lanes / 16.0


def _network(gpu: GpuSpec, provider: str | None, gpus_per_node: int | None) -> tuple[float, str]:
    """Return bytes/s per GPU between nodes, and the source."""
    for whose in (provider, "generic", None):
        known = [one for one in interconnects(gpu.name, whose) if one.inter_bytes_per_s]
        whole = [one for one in known if one.gpus_per_node == gpus_per_node] if whose == provider else []
        # one GPU of a divided machine has its share of a card; a chip that is its own node has its own
        rows = whole or [one for one in known if one.gpus_per_node != 1 or gpu.node_gpus == 1]
        if rows:
            rows.sort(key=_rate)
            row = rows[len(rows) // 2]
            return _rate(row), f"{row.provider} {row.instance}: {row.source}"
    year, rate = gpu.launch_year or 0, ETHERNET_BYTES_PER_S
    if gpu.nvlink_bytes_per_s > 0 and (gpu.link_gpus or BOARD_GPUS) >= BOARD_GPUS:
        rate = next(rate for since, rate in CARDS_BYTES_PER_S if year >= since)
        return rate, f"assumed: {rate * 8 / 1e9:.0f} Gbit/s per GPU, as boards of its year ({OTHERWISE})"
    return rate, f"assumed: 100 Gbit/s for a node of eight ({OTHERWISE})"


def _rate(row: Interconnect) -> float:
    return row.inter_bytes_per_s or 0.0


class Fabric(NamedTuple):
    """What a collective takes over one kind of link."""

    name: str  # the GPU that was timed; else the kind of link
    architecture: str  # of that GPU; "" where it is put together from several
    link: str  # NVLink | PCIe | xGMI
    base_s: float  # before the first byte
    hop_s: float  # of each step after it
    fill_fraction: float  # of that latency, paid again for every chunk of a payload
    ring_fraction: float  # of the link's rate, in rings
    own_fraction: float | None  # of the same, when a rank copies its own part; None: beside the link
    exchange_fraction: float  # of the link's rate, in all-to-all
    switch_fraction: float | None  # where the switch adds up (NVLS); None: it does not
    sharing_ratio: float  # halvings of the rate of a rank per doubling of their number: 0 behind a switch
    readings: int
    median_error_fraction: float  # of its readings of 1 MiB and more
    source: str
    checked: str
    notes: str


def fabrics() -> tuple[Fabric, ...]:
    """Return every row, timed GPUs first."""
    return rows_as(Fabric, "fabrics.csv")


def fabric(gpu: GpuSpec, link: str) -> Fabric:
    """Return the speed of collectives over `link` of `gpu`: as timed, as its architecture, as all such links.

    Behind PCIe the bridges are the machine's, not the GPU's: another machine's is `common`.
    """
    rows = [one for one in fabrics() if one.link == link]
    for one in rows:
        if one.name == gpu.name:
            return one
    family = gpu.architecture.removesuffix(" Ultra")
    for one in rows:
        if link == NVLINK and one.architecture == family and gpu.architecture:
            return one
    return common(link)


@cache
def common(link: str) -> Fabric:
    """Return what is known of all machines with such links together."""
    return next(one for one in fabrics() if one.link == link and not one.architecture)


class Host(NamedTuple):
    """One machine: what its GPUs share."""

    provider: str  # "generic" for machines that many have
    gpus: tuple[str, ...]  # names of the catalogue
    machine: str
    num_gpus: int
    cores: int  # of all sockets; a vCPU is half a core
    core_bytes_per_s: float | None  # that one of them streams where it is alone; None: not known
    ram_bytes_per_s: float  # channels times their rate, all sockets
    ram_bytes: float
    gpus_per_switch: int  # whose PCIe switch has one link to the processor
    link_bytes_per_s: float | None  # of one GPU to the processor, one direction; None: PCIe as the GPU has it
    source: str
    checked: str
    notes: str = ""


_ASSUMED = "assumed: {}; host_cores and host_memory_gb_per_s say otherwise"
SERVER = Host(
    "generic", (), "server of two sockets", 8, 64, None, 409.6e9, 1024e9, 1, None,
    _ASSUMED.format("2 x 32 cores, 16 channels of DDR4-3200"), "2026-11-22",
)  # fmt: skip
DESKTOP = Host(
    "generic", (), "desktop", 1, 16, None, 89.6e9, 64e9, 1, None,
    _ASSUMED.format("16 cores, two channels of DDR5-5600"), "2026-11-22",
)  # fmt: skip


def host_of(gpu: GpuSpec, provider: str | None = None, gpus_per_node: int = 1) -> Host:
    """Return the machine that `gpu` is in, in the instances of `provider` where they are known."""
    for whose in (provider, "generic"):
        for one in hosts():
            if one.provider == whose and gpu.name in one.gpus:
                return one
    if gpu.p2p is False and gpus_per_node <= 2:
        return DESKTOP._replace(num_gpus=gpus_per_node)
    return SERVER


def hosts() -> tuple[Host, ...]:
    """Return the machines of the catalogue."""
    return rows_as(Host, "hosts.csv")
