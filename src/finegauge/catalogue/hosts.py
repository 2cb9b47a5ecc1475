"""The host of a GPU: its cores, the bandwidth of its memory, and how its GPUs hang on PCIe.

A provider's row comes first, then the board maker's own machine; else a server of two sockets,
or for one or two GeForce cards a desktop. What a core of an EPYC streams is STREAM's reading on DGX A100 [1].

[1] gist.github.com/v0dro/0559e1d9b205ca9ac0ad1a29fe10377b: 28 GB/s by one thread, 148 by 32 of one socket
"""

from finegauge.catalogue.gpus import GpuSpec
from finegauge.catalogue.tables import rows_as
from finegauge.records import NamedTuple


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
