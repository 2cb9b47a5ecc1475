"""The tables of a report: what was assumed and by whom, how parts come about, offers, and sources."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from finegauge.catalogue.datasets import dataset
from finegauge.catalogue.gpus import gpu
from finegauge.catalogue.models import model
from finegauge.catalogue.offers import offer_sources
from finegauge.errors import FineGaugeError
from finegauge.plan.quote import Quote
from finegauge.profile import Path, Profile
from finegauge.report import figures
from finegauge.report.bars import Table
from finegauge.workload.method import LORA_FIELDS

if TYPE_CHECKING:
    from finegauge.workload.run import Run

MOST_OFFERS = 12


def assumption_table(run: "Run") -> Table:
    """Return every field with its value and who stated it."""
    rows = tuple(
        (name, figures.plain(value), run.origins.get(name, ""))
        for name, value in run.fields().items()
        if value not in (None, "") and (run.trains_adapters or name not in LORA_FIELDS)
    )
    return Table(
        "Every input, and who stated it", ("field", "value", "who says so"), rows, num_text_columns=3
    )


def formula_table(profile: Profile, formulas: Mapping[Path, str]) -> Table:
    """Return how the stages of the step come about; the memory's formulas stand with the waterfall."""
    stages = [path for path in profile.step_time_s.at(1).parts if path in formulas]
    rows = tuple((" · ".join(path), formulas[path]) for path in stages)
    return Table("How the seconds come about", ("stage", "formula"), rows, num_text_columns=2)


def offer_table(quote: Quote) -> Table | None:
    """Return the cheapest offers, those last that nobody would call so; None where nobody lets that GPU."""
    offers = sorted(quote.offers, key=lambda priced: not priced.offer.is_ranked)
    rows = tuple(
        (
            priced.offer.provider, priced.offer.instance_type, priced.offer.region,
            priced.offer.tier + (", outlier" if priced.offer.outlier else ""), priced.offer.date,
            f"{priced.instances} x {priced.offer.gpu_count}",
            figures.dollars(priced.offer.on_demand_usd_per_h),
            figures.dollars(priced.on_demand_usd), figures.dollars(priced.spot_usd),
        )
        for priced in offers[:MOST_OFFERS]
    )  # fmt: skip
    if not rows:
        return None
    more = f", the first {MOST_OFFERS} of {len(quote.offers)}" if len(quote.offers) > MOST_OFFERS else ""
    headings = ("provider", "instance", "region", "tier", "price of", "GPUs", "per hour", "on demand", "spot")
    return Table(f"Offers, cheapest on demand first{more}", headings, rows, num_text_columns=5)


def source_table(profile: Profile, quote: Quote) -> Table:
    """Return where the figures come from, with the day someone last read each source."""
    rows = tuple(row for row in _sources(profile, quote) if row[1])
    return Table("Where the figures come from", ("what", "source", "read"), rows, num_text_columns=3)


def _sources(profile: Profile, quote: Quote) -> Iterator[tuple[str, str, str]]:
    """Yield (what, source, when)."""
    run = profile.run
    yield "constants", f"FineGauge's calibration: {profile.source.name}", ""
    yield from _catalogued(run)
    for priced in (quote.cheapest_on_demand, quote.cheapest_spot):
        if priced is not None:
            offer = priced.offer
            yield f"price of {offer.provider}", offer_sources().get(offer.source, offer.source), offer.date
    yield "electricity", f"{quote.grid}, {quote.grid_kg_per_kwh:.3f} kg/kWh, PUE {quote.pue:.2f}", ""


def _catalogued(run: "Run") -> Iterator[tuple[str, str, str]]:
    """Yield the sources of GPU, model and data set, where the catalogue has them."""
    for what, name, find in (
        ("GPU", run.gpu, gpu),
        ("model", run.model, model),
        ("data set", run.dataset, dataset),
    ):
        if not name:
            continue
        try:
            found = find(name)
        except FineGaugeError:
            continue
        yield f"{what} {found.name}", found.source, found.checked
