"""What a GPU costs per hour, a managed fine-tune per token, and a kWh in carbon.

A price belongs to a provider, an instance, a region and a day, and prices move: every offer tells
its date, and `stale_warning` says when that is more than 60 days ago. A price that is not known is
None, never 0. Tiers are different goods: `on-demand` and `spot` of a cloud, `secure`, `community`
and `marketplace` hosts, and the `seed-paper` prices of 2024, which are here to reproduce the paper.

Rows that `refresh` fetched replace the shipped ones of the same provider and GPU. A seller that prices a
single card rents out several of one machine at as many times that price: `multiples`, up to the largest node.

Carbon follows from the grid, and the overhead (PUE) that a data centre adds:

    kg of CO2e = kWh at the machine x PUE x kg per kWh of the grid

Figures are yearly averages of a country, state, province or cloud region; an hour at a site may
differ twofold. A region that is not listed falls back to the world average, and says so.
"""

import os
from collections.abc import Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from finegauge.catalogue.gpus import gpu as find_gpu
from finegauge.catalogue.tables import checked_row, filled, parse, read_shipped, rows_as, table, user_rows
from finegauge.documents import cache_path, home, read_text
from finegauge.errors import FieldError, FileFormatError, UnknownNameError
from finegauge.records import NamedTuple

if TYPE_CHECKING:
    from datetime import date

STALE_DAYS = 60
MAX_REFRESHED_BYTES = 50_000_000
_NOT_RANKED = ("marketplace", "seed-paper")


class Offer(NamedTuple):
    """One instance that can be rented, at the price of one day."""

    provider: str
    instance_type: str
    gpu: str  # a name of the catalogue; "" if the card is in no row of it
    gpu_printed: str  # what the provider calls the card
    gpu_count: int  # whole cards; 0: a slice of one
    vcpus: int | None
    ram_bytes: float | None
    region: str  # "any" where the provider names none
    on_demand_usd_per_h: float | None  # of the whole instance
    spot_usd_per_h: float | None  # of the whole instance
    tier: str
    date: str  # of the price
    source: str  # a key of `offer_sources`, or the user's file
    outlier: bool  # far from what others ask for the same card: left out of rankings
    notes: str
    is_scaled: bool = False  # the price of a card times their number, as this seller bills; shown with "~"

    @property
    def is_ranked(self) -> bool:
        """Return whether the price may be called cheapest.

        Outliers, marketplace minima (the lowest host, seldom the one you get) and the seed
        paper's prices of 2024 may not.
        """
        return not self.outlier and self.tier not in _NOT_RANKED

    def usd_per_h(self, *, spot: bool = False) -> float | None:
        """Return the price of the whole instance, or None if it is not known."""
        return self.spot_usd_per_h if spot else self.on_demand_usd_per_h


class CardSizes(NamedTuple):
    """How many cards of one machine a seller rents out that prices a single one."""

    source: str  # of the offers, a key of `offer_sources`
    tiers: tuple[str, ...]  # of them; empty: all
    gpus: tuple[str, ...]  # the same
    sizes: tuple[str, ...]  # beside one
    page: str  # that says so
    checked: str


class FinetunePrice(NamedTuple):
    """What a managed service asks for a million training tokens."""

    provider: str
    model: str  # a model's name, or the band of sizes that the price covers
    parameters_low: int | None  # the band: above `low`, up to `high` parameters
    parameters_high: int | None
    method: str
    usd_per_million_tokens: float | None
    lowest_usd_per_million_tokens: float | None  # a range, where no single price is printed
    highest_usd_per_million_tokens: float | None
    billed_tokens: str  # what the service counts; padding is never billed
    max_context: int | None  # tokens per example that this price allows, where it matters
    date: str  # of the price; "" if the source prints none
    checked: str
    trust: str  # high, medium, low
    source: str
    notes: str


def offers(
    gpu: str | None = None,
    provider: str | None = None,
    gpu_count: int | None = None,
    region: str | None = None,
) -> tuple[Offer, ...]:
    """Return the offers that match: one GPU (any of its names), provider, cards per instance, region.

    Raises: UnknownNameError for a GPU or provider that is in no row.
    """
    name = find_gpu(gpu).name if gpu else ""
    found = _offers(*_state(), name)
    if provider is not None and provider.casefold() not in (known := providers()):
        raise UnknownNameError("provider", provider, known=known, listing="finegauge offers")
    if provider is None and gpu_count is None and region is None:
        return found
    return tuple(
        offer
        for offer in found
        if (provider is None or offer.provider == provider.casefold())
        and (gpu_count is None or offer.gpu_count == gpu_count)
        and (region is None or offer.region.casefold() == region.casefold())
    )


def multiples(offer: Offer) -> tuple[Offer, ...]:
    """Return `offer` of one card as its seller rents out several of a machine, the fewest first.

    Empty for whole instances, and where it is not known how many cards the seller joins.
    """
    if offer.gpu_count != 1:
        return ()
    for row in rows_as(CardSizes, "offer_sizes.csv"):  # the first that fits counts
        tier, gpu = not row.tiers or offer.tier in row.tiers, not row.gpus or offer.gpu in row.gpus
        if row.source == offer.source and tier and gpu:
            return tuple([_times(offer, int(number)) for number in row.sizes])
    return ()


def _times(offer: Offer, number: int) -> Offer:
    def of(figure: float | None) -> float | None:
        return None if figure is None else number * figure

    return offer._replace(
        instance_type=f"{number}x {offer.instance_type.removeprefix('1x ')}",
        gpu_count=number,
        vcpus=None if offer.vcpus is None else number * offer.vcpus,
        ram_bytes=of(offer.ram_bytes),
        on_demand_usd_per_h=of(offer.on_demand_usd_per_h),
        spot_usd_per_h=of(offer.spot_usd_per_h),
        is_scaled=True,
    )


def holding(offer: Offer, num_gpus: int) -> Offer | None:
    """Return the smallest instance of this offer that has so many GPUs, or None."""
    if offer.gpu_count >= num_gpus:
        return offer
    return next((one for one in multiples(offer) if one.gpu_count >= num_gpus), None)


def providers() -> tuple[str, ...]:
    """Return the names of all providers."""
    return _providers(*_state())


@cache
def offer_sources() -> Mapping[str, str]:
    """Return what the `source` keys of the shipped offers stand for."""
    return {row["code"]: f"{row['source']} ({row['date_is']})" for row in table("offer_sources.csv")}


def finetune_prices() -> tuple[FinetunePrice, ...]:
    """Return the prices of managed fine-tuning services."""
    return rows_as(FinetunePrice, "finetune_prices.csv")


def managed_prices(model: str, parameters: float) -> tuple[FinetunePrice, ...]:
    """Return the managed prices for `model`: those that name it, and the size bands it falls into.

    A band says what such a size costs where the service hosts the model; not every service does.
    """
    wanted = model.casefold().rpartition("/")[2]
    return tuple(
        price
        for price in finetune_prices()
        if price.model.casefold().rpartition("/")[2] == wanted
        or (price.parameters_low or 0) < parameters <= (price.parameters_high or 0)
    )


def age_days(day: str, today: "date | None" = None) -> int | None:
    """Return how many days ago `day` was, or None if it is no date; a year alone means its first day."""
    from datetime import date

    try:
        then = date(*map(int, [*day.split("-"), "1", "1"][:3]))
    except (ValueError, TypeError):
        return None
    return ((today or date.today()) - then).days


def stale_warning(shown: Iterable[Offer], today: "date | None" = None) -> str | None:
    """Return a sentence if prices among `shown` are over 60 days old, else None."""
    num_dated, old = 0, []
    for offer in shown:
        age = age_days(offer.date, today) if offer.tier != "seed-paper" else None
        num_dated += age is not None
        if age is not None and age > STALE_DAYS:
            old.append((age, offer.date))
    if not old:
        return None
    age, day = max(old)
    which = "All" if len(old) == num_dated else f"{len(old)} of {num_dated}"
    return (
        f"{which} prices are over {STALE_DAYS} days old (oldest: {day}, {age} days); prices rose in 2026. "
        f"Fetch today's with 'finegauge offers --refresh'."
    )


def refreshed_path() -> str:
    """Return where refreshed prices are kept on this machine."""
    return cache_path("offers.csv")


def _state() -> tuple[str, str, int]:
    """Return the folder of the user's offers, the refreshed table, and when that was written."""
    refreshed = refreshed_path()
    return home(), refreshed, os.stat(refreshed).st_mtime_ns if os.path.isfile(refreshed) else 0


@cache
def _providers(folder: str, refreshed: str, stamp: int) -> tuple[str, ...]:
    return tuple(sorted({offer.provider for offer in _offers(folder, refreshed, stamp, "")}))


@cache
def _offers(folder: str, refreshed: str, stamp: int, gpu: str) -> tuple[Offer, ...]:
    """Return refreshed, shipped and user offers of one GPU (all if ""); refreshed at `stamp`."""
    column, shipped = "gpu" if gpu else "", read_shipped("offers.csv")
    rows = parse(_read_refreshed(refreshed, shipped), column=column, value=gpu) if stamp else []
    try:
        found = [filled(Offer, row) for row in rows]
    except ValueError:  # damaged: --refresh makes it anew
        found = []
    replaced = {(offer.provider, offer.gpu) for offer in found} if found else ()
    for row in parse(shipped, column=column, value=gpu):
        if not row["gpu"] or (row["provider"], row["gpu"]) not in replaced:
            found.append(filled(Offer, row))
    for path, user_row in user_rows(folder, "offers"):
        offer = _user_offer(user_row, path)
        if gpu in ("", offer.gpu):
            found.append(offer)
    return tuple(found)


def _read_refreshed(path: str, shipped: str) -> str:
    """Return the refreshed table, empty where it is torn."""
    header, _, _ = shipped.partition("\n")
    try:
        text = read_text(path, MAX_REFRESHED_BYTES)
    except FileFormatError:
        return header
    commas = header.count(",")
    whole = text.startswith(header + "\n") and all(line.count(",") == commas for line in text.splitlines())
    return text if whole else header


_USER_FIELDS = dict(Offer.__annotations__)
del _USER_FIELDS["gpu_printed"], _USER_FIELDS["outlier"], _USER_FIELDS["is_scaled"]


def _user_offer(row: Mapping[str, Any], path: str) -> Offer:
    given = checked_row(row, path, _USER_FIELDS, required=("provider", "gpu"))
    if "on_demand_usd_per_h" not in given and "spot_usd_per_h" not in given:
        raise FieldError(f"{path}: give 'on_demand_usd_per_h' or 'spot_usd_per_h', of the whole instance.")
    defaults: dict[str, Any] = {
        **{"instance_type": "", "gpu_count": 1, "vcpus": None, "ram_bytes": None, "region": "any"},
        **{"on_demand_usd_per_h": None, "spot_usd_per_h": None, "tier": "user", "date": "", "notes": ""},
    }
    names = {"gpu": find_gpu(given["gpu"]).name, "gpu_printed": given["gpu"]}
    names |= {"provider": given["provider"].casefold(), "source": given.get("source", path)}
    return Offer(**defaults | given | names, outlier=False)


_FILE = "grid_carbon.csv"


class GridIntensity(NamedTuple):
    """The greenhouse gas behind one kWh of a grid."""

    code: str  # "aws:us-east-1", ISO country code, "US-VA", "WORLD"
    name: str
    kg_per_kwh: float  # of CO2 equivalent
    year: int | None
    source: str
    checked: str


class Pue(NamedTuple):
    """Power usage effectiveness: what the site draws over what its machines draw."""

    name: str
    pue: float  # 1.0: no overhead
    year: int
    source: str
    checked: str


def grid(region: str | None = None, provider: str | None = None) -> GridIntensity:
    """Return the grid of a cloud region, country, state or province; the world's where none is named.

    `region` is "us-east-1", "aws:us-east-1", "DEU", "Germany", "US-VA" or "any"; a region that is not listed
    is the world where `provider` is given.

    Raises: UnknownNameError if `region` is given alone and is no place that is listed.
    """
    if region is None or region.casefold() in {"any", "world"}:
        return _world()
    for key in (f"{provider}:{region}" if provider else region, region):
        found = _grids().get(_fold(key))
        if found:
            return found
    if provider:
        return _world()
    clouds = [g for key, g in _grids().items() if key.endswith(f":{_fold(region)}")]
    if clouds:
        return clouds[0]
    raise UnknownNameError("grid", region, known=[g.code for g in _grids().values()])


def pue(provider: str | None = None, region: str | None = None) -> Pue:
    """Return the overhead of a provider's region, of the provider, or the latest surveyed average."""
    name = (provider or "").casefold()
    rows: tuple[Pue, ...] = rows_as(Pue, "pue.csv")
    for wanted in (f"{name}:{(region or '').casefold()}", name, "average"):
        latest = None
        for row in rows:
            if row.name == wanted and (latest is None or row.year > latest.year):
                latest = row
        if latest is not None:
            return latest
    raise UnknownNameError("PUE", "average", known=[row.name for row in rows])


def _fold(name: str) -> str:
    return name.casefold().replace(" ", "")


@cache
def _world() -> GridIntensity:
    return filled(GridIntensity, parse(read_shipped(_FILE), column="scope", value="world")[0])


@cache
def _grids() -> dict[str, GridIntensity]:
    """Return the grids by folded code and name; where two share one, the more specific code wins."""
    by_key: dict[str, GridIntensity] = {}
    for row in table(_FILE):
        found = filled(GridIntensity, row, code=row["code"] or row["name"])
        by_key.setdefault(_fold(found.code), found)
        if row["scope"] != "cloud_region":
            by_key.setdefault(_fold(found.name), found)
    return by_key
