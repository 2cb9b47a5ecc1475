"""The prices: how many, whose, per what, and that an unknown one stays unknown."""

from collections import Counter

import pytest

from finegauge.catalogue.offers import finetune_prices, offer_sources, offers
from finegauge.catalogue.tables import read_shipped, table

ROWS = table("offers.csv")


def test_as_many_offers_and_providers_as_were_collected() -> None:
    counts = Counter(row["provider"] for row in ROWS)
    assert len(ROWS) - counts["cudo-2024"] == 1478
    assert len(counts) - 1 == 24
    assert counts["azure"] == 758
    assert counts["gcp"] == 390


def test_every_offer_has_a_price_and_a_known_source() -> None:
    for row in ROWS:
        assert row["on_demand_usd_per_h"] or row["spot_usd_per_h"], row
        assert row["source"] in offer_sources(), row
        assert row["region"], row
        assert row["instance_type"], row
        assert row["outlier"] in {"", "high", "low"}, row


def test_spot_is_below_on_demand() -> None:
    for row in ROWS:
        if row["on_demand_usd_per_h"] and row["spot_usd_per_h"]:
            assert float(row["spot_usd_per_h"]) <= float(row["on_demand_usd_per_h"]), row


def test_outliers_keep_their_flag() -> None:
    assert sum(1 for row in ROWS if row["outlier"]) == 91


@pytest.mark.parametrize(("gpu", "price"), [("A40", 0.79), ("A100-80GB", 1.67), ("H100", 2.10)])
def test_seed_paper_prices(gpu: str, price: float) -> None:
    (found,) = offers(gpu, provider="cudo-2024")
    assert found.on_demand_usd_per_h == price
    assert found.tier == "seed-paper"
    assert found.date == "2024"


def test_unknown_price_is_none() -> None:
    assert any(offer.on_demand_usd_per_h is None for offer in offers())
    assert all(offer.on_demand_usd_per_h != 0 for offer in offers())


def test_managed_prices_name_a_price_or_a_range() -> None:
    for price in finetune_prices():
        ranged = price.lowest_usd_per_million_tokens and price.highest_usd_per_million_tokens
        assert price.usd_per_million_tokens or ranged, price
        assert price.trust in {"high", "medium", "low"}


def test_licences_allow_shipping() -> None:
    allowed = {"Apache-2.0", "MIT", "MPL-2.0", "facts"}
    assert {row["licence"] for row in table("offer_sources.csv")} == allowed
    assert "ship_ok" not in read_shipped("offers.csv")
