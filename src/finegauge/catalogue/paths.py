"""Links from a GPU to its neighbours and to the next node: facts of the machine, or stated assumptions.

Three reaches: the GPUs that one fabric joins (8 on an HGX board, 72 in an NVL72 rack, 2 by a bridge, a pod
of TPUs), those of the same host over PCIe, and all others over the network. What a run states comes first,
then the rows of its provider, then what is usual for the GPU; else what machines of its class
have.
"""

from typing import NamedTuple

from finegauge.catalogue.fabrics import NVLINK, PCIE, XGMI
from finegauge.catalogue.gpus import GpuSpec, Interconnect, interconnects

PCIE_BYTES_PER_S = {"3": 15.75e9, "4": 31e9, "5": 63e9, "6": 121e9}  # x16, one direction, by generation
USUAL_PCIE = "4.0 x16"
ETHERNET_BYTES_PER_S = 1.5625e9  # per GPU: 100 Gbit/s for a node of eight
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
        rows = whole or [one for one in known if one.gpus_per_node != 1]
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
