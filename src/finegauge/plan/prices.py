"""What a run costs: on a rented instance by the hour, or on a managed service by the token.

    cost = hours x price of the instance x instances

An instance is rented whole: one with more GPUs than the run uses bills them all. A price
that is not known stays unknown (None), never 0.
"""

from collections.abc import Iterable
from math import ceil
from typing import TYPE_CHECKING, NamedTuple

from finegauge.catalogue.offers import Offer, managed_prices
from finegauge.units import HOUR_S

if TYPE_CHECKING:
    from finegauge.workload.run import Run

# Assumption: a spot instance is taken away now and then, and work since the last checkpoint is
# done again. Interruption rates differ by cloud, card and hour; none is published for all.
SPOT_REPEATED_FRACTION = 0.10


class PricedOffer(NamedTuple):
    """One offer, and what the whole run would cost on it."""

    offer: Offer
    instances: int
    idle_gpus: int  # rented and billed, but not asked for
    wall_s: float
    on_demand_usd: float | None
    spot_usd: float | None  # with the hours that interruptions make it repeat


class ManagedPrice(NamedTuple):
    """What a managed fine-tuning service would bill; low and high are equal where one price is printed."""

    provider: str
    model: str  # the model or the band of sizes that is priced
    method: str
    billed_tokens: float  # training tokens times epochs; padding is not billed
    low_usd: float
    high_usd: float
    date: str  # of the price; "" where none is printed
    trust: str


def priced(run: "Run", wall_s: float, offers: Iterable[Offer]) -> tuple[PricedOffer, ...]:
    """Return every offer that holds the run, cheapest on demand first, unknown prices last.

    Args:
        run: How many GPUs on how many nodes.
        wall_s: From the start of the first process to the end of the last.
        offers: Of the run's GPU; slices of a card and nodes that are too small are left out.
    """
    per_node = ceil(run.num_gpus / run.num_nodes)
    found = [_priced(run, wall_s, offer) for offer in offers if offer.gpu_count >= per_node]
    return tuple(sorted(found, key=_rank))


def cheapest(offers: Iterable[PricedOffer], *, spot: bool = False) -> PricedOffer | None:
    """Return the ranked offer with the lowest cost, or None where no price is known.

    Where nothing ranked is on offer (a marketplace asked for by name), the lowest of the rest
    that is no outlier.
    """

    def cost_usd(offer: PricedOffer) -> float | None:
        return offer.spot_usd if spot else offer.on_demand_usd

    known = [offer for offer in offers if cost_usd(offer) is not None and not offer.offer.outlier]
    ranked = [offer for offer in known if offer.offer.is_ranked] or known
    return min(ranked, key=lambda offer: cost_usd(offer) or 0.0, default=None)


def managed(run: "Run", billed_tokens: float) -> tuple[ManagedPrice, ...]:
    """Return what managed services would bill for the run's training tokens, cheapest first.

    Only supervised fine-tuning is compared; prices of low trust and prices that hold only
    for longer contexts are left out.
    """
    from finegauge.catalogue.models import model

    figures = model(run.model)
    parameters = figures.parameters or figures.published_parameters
    if run.phase != "sft" or not parameters:
        return ()
    found = []
    for price in managed_prices(figures.name, parameters):
        low = price.usd_per_million_tokens or price.lowest_usd_per_million_tokens
        high = price.usd_per_million_tokens or price.highest_usd_per_million_tokens
        longer = price.max_context is not None and price.max_context > 65_536  # a dearer tier of the same
        if low is None or high is None or price.trust == "low" or longer or "RL" in price.method:
            continue
        found.append(
            ManagedPrice(
                provider=price.provider,
                model=price.model,
                method=price.method,
                billed_tokens=billed_tokens,
                low_usd=low * billed_tokens / 1e6,
                high_usd=high * billed_tokens / 1e6,
                date=price.date,
                trust=price.trust,
            )
        )
    return tuple(sorted(found, key=lambda price: price.low_usd))


def _priced(run: "Run", wall_s: float, offer: Offer) -> PricedOffer:
    """Return the cost of `wall_s` seconds on as many instances as the run has nodes."""
    hours, instances = wall_s / HOUR_S, run.num_nodes
    on_demand, spot = offer.on_demand_usd_per_h, offer.spot_usd_per_h
    return PricedOffer(
        offer=offer,
        instances=instances,
        idle_gpus=offer.gpu_count * instances - run.num_gpus,
        wall_s=wall_s,
        on_demand_usd=None if on_demand is None else rent_usd(hours, on_demand, instances),
        spot_usd=None if spot is None else rent_usd(hours * (1 + SPOT_REPEATED_FRACTION), spot, instances),
    )


def rent_usd(hours: float, usd_per_h: float, instances: int) -> float:
    """Return what `instances` cost for so many hours."""
    return hours * usd_per_h * instances


def _rank(priced_offer: PricedOffer) -> tuple[bool, float, str, str]:
    """Return the place of an offer in the list: by cost, unknown last, then by name."""
    usd = priced_offer.on_demand_usd
    offer = priced_offer.offer
    return usd is None, usd or 0.0, offer.provider, offer.instance_type
