"""Speed of collectives over kinds of links: timings of NCCL, reduced to a few constants a machine.

Constants are shares of the rate that the datasheet gives, so that a GPU that was not timed takes those of its
architecture, or of all machines with such links. `prediction.links` has their law;
`python -m benchmarks.fabrics` fits them anew to a table of timings.
"""

from functools import cache
from typing import NamedTuple

from finegauge.catalogue.gpus import GpuSpec
from finegauge.catalogue.tables import rows_as

NVLINK, PCIE, XGMI = "NVLink", "PCIe", "xGMI"


class Fabric(NamedTuple):
    """What a collective takes over one kind of link."""

    name: str  # the GPU that was timed; else the kind of link
    architecture: str
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

    @property
    def is_timed(self) -> bool:
        """Return whether it was timed on one GPU, rather than put together from several."""
        return bool(self.architecture)


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
    return next(one for one in fabrics() if one.link == link and not one.is_timed)
