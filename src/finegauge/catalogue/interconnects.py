"""The links inside a node and between nodes, per cloud instance.

Rates are one direction and per GPU: the number that a transfer time divides by (headlines count
both directions, and network rates are per node). Expect 80 to 90 % of it with large payloads.
"""

from functools import cache
from typing import NamedTuple

from finegauge.catalogue.tables import filled, table


class Interconnect(NamedTuple):
    """The links of one instance type."""

    provider: str  # "generic" for boards that many clouds use
    instance: str
    gpu: str  # a name of the catalogue; "" for a bus alone
    gpus_per_node: int | None
    intra_type: str
    intra_bytes_per_s: float | None  # to all peers of the node together
    p2p_bytes_per_s: float | None  # to one peer
    pcie: str
    inter_type: str
    nics: int | None
    inter_bytes_per_s: float | None
    rdma: bool | None  # may the network card read GPU memory; None: not stated
    confidence: str
    source: str
    checked: str
    notes: str


def interconnects(gpu: str | None = None, provider: str | None = None) -> tuple[Interconnect, ...]:
    """Return the listed instances, of one GPU (its catalogue name) or one provider if asked."""
    return tuple(
        link
        for link in _interconnects()
        if (gpu is None or link.gpu == gpu) and (provider is None or link.provider == provider.casefold())
    )


@cache
def _interconnects() -> tuple[Interconnect, ...]:
    return tuple([filled(Interconnect, row) for row in table("interconnects.csv")])
