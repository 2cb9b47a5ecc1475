"""What an hour of a training run costs, and who says so."""

from math import ceil
from typing import NamedTuple

from finegauge.catalogue.gpus import known_gpu
from finegauge.catalogue.offers import Offer, offers
from finegauge.errors import InputError, UnknownNameError
from finegauge.workload.field import number

MOST_USD_PER_HOUR = 1e7


class Price(NamedTuple):
    """Dollars of an hour of all machines together."""

    usd_per_h: float
    said: str  # who says so


def price_of(
    usd_per_hour: float | None, offer: str | None, *, gpu: str, num_gpus: int, num_nodes: int
) -> Price | None:
    """Return the price of an hour; None where nobody knows one.

    Args:
        usd_per_hour: As the caller states it, of all machines together; it wins.
        offer: A provider, an instance, or "provider/instance" of `finegauge offers`.
        gpu: What the device calls itself; "" for a processor.
        num_gpus: Of all machines.
        num_nodes: Machines.

    Raises: FieldError for a price that is none, UnknownNameError for an offer that no row has.
    """
    if usd_per_hour is not None:
        return Price(number(0.0, MOST_USD_PER_HOUR)("usd_per_hour", usd_per_hour), "as stated")
    spec = known_gpu(gpu) if gpu else None
    if spec is None:
        if offer is not None:
            what = f"'{gpu}' is in no row of the catalogue" if gpu else "this run uses no GPU"
            raise InputError(f"offer={offer} names no price: {what}; state usd_per_hour instead.")
        return None
    per_node = ceil(num_gpus / max(1, num_nodes))
    holding = [row for row in offers(spec.name) if row.gpu_count >= per_node and row.on_demand_usd_per_h]
    if offer is not None:
        wanted = [row for row in holding if offer.casefold() in _names(row)]
        if not wanted:
            known = {name for row in holding for name in _names(row)}
            raise UnknownNameError(
                f"offer of {per_node} x {spec.name}", offer, known=known, listing="finegauge offers"
            )
        return _price(_cheapest(wanted), num_nodes, "as the catalogue has it")
    ranked = [row for row in holding if row.is_ranked]
    return _price(_cheapest(ranked), num_nodes, "the cheapest on demand of the catalogue") if ranked else None


def _names(row: Offer) -> set[str]:
    """Return what an offer may be called."""
    whole = f"{row.provider}/{row.instance_type}" if row.instance_type else row.provider
    return {name.casefold() for name in (row.provider, row.instance_type, whole) if name}


def _cheapest(rows: list[Offer]) -> Offer:
    """Return the row with the lowest price."""
    return min(rows, key=lambda row: row.on_demand_usd_per_h or 0.0)


def _price(row: Offer, num_nodes: int, said: str) -> Price:
    """Return the price of as many instances as there are machines."""
    which = f"{row.provider} {row.instance_type}".strip()
    day = f" of {row.date}" if row.date else ""
    return Price((row.on_demand_usd_per_h or 0.0) * max(1, num_nodes), f"{said}: {which}{day}")
