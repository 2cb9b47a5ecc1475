"""Filters, rankings, ages, and offers that the user adds."""

from datetime import date
from pathlib import Path

import pytest

from finegauge.catalogue.offers import (
    age_days,
    holding,
    managed_prices,
    multiples,
    offers,
    providers,
    stale_warning,
)
from finegauge.errors import FieldError, UnknownNameError


def test_filters() -> None:
    found = offers("h100", provider="AWS", gpu_count=8)
    assert {offer.instance_type for offer in found} == {"p5.48xlarge"}
    assert offers("h100", region="us-east-1", provider="aws", gpu_count=3) == ()
    assert len(offers()) == 1481
    assert len(providers()) == 25


def test_unknown_provider_and_gpu() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'runpod'"):
        offers(provider="runpods")
    with pytest.raises(UnknownNameError, match="No GPU named"):
        offers("h1000")


def test_outliers_marketplaces_and_history_are_not_ranked() -> None:
    tiers = {offer.tier for offer in offers() if offer.is_ranked}
    assert "on-demand" in tiers
    assert not {"seed-paper", "marketplace"} & tiers
    assert not any(offer.outlier for offer in offers() if offer.is_ranked)


def test_spot_and_on_demand_are_two_prices() -> None:
    found = next(o for o in offers("l4") if o.spot_usd_per_h and o.on_demand_usd_per_h)
    assert found.usd_per_h(spot=True) == found.spot_usd_per_h != found.usd_per_h()


def test_slices_hold_no_whole_card() -> None:
    slices = [offer for offer in offers("a10") if "fraction" in offer.notes]
    assert len(slices) == 108
    assert {offer.gpu_count for offer in slices} == {0}


def test_who_prices_a_card_lets_several_of_a_machine() -> None:
    (card,) = [o for o in offers("rtx4090", provider="runpod") if o.tier == "secure"]
    eight = holding(card, 8)
    assert eight is not None
    assert (eight.gpu_count, eight.is_scaled, eight.tier) == (8, True, "secure")
    assert eight.on_demand_usd_per_h == pytest.approx(8 * (card.on_demand_usd_per_h or 0))
    assert eight.ram_bytes == pytest.approx(8 * (card.ram_bytes or 0))
    assert holding(card, 3) == next(o for o in multiples(card) if o.gpu_count == 3)
    assert holding(card, 9) is None
    assert holding(card, 1) is card


def test_a_seller_lets_what_it_lets() -> None:
    def most(gpu: str, provider: str) -> int:
        return max(o.gpu_count for one in offers(gpu, provider=provider) for o in (one, *multiples(one)))

    assert (most("a10", "modal"), most("l40s", "modal")) == (4, 8)  # its documentation says so
    assert (most("l40s", "crusoe"), most("a40", "crusoe")) == (10, 8)
    assert most("rtx4090", "salad") == 1  # nothing is known
    (h100,) = offers("h100", provider="crusoe")
    assert [one.gpu_count for one in multiples(h100)] == [8]  # or one
    assert not any(multiples(o) for o in offers("h100", provider="aws"))  # whole instances


@pytest.mark.parametrize(
    ("day", "age"), [("2026-06-18", 155), ("2026-11-20", 0), ("2024", 1054), ("2026-11", 19), ("soon", None)]
)
def test_age(day: str, age: int | None) -> None:
    assert age_days(day, date(2026, 11, 20)) == age


def test_stale_warning() -> None:
    shown = offers("h100", provider="aws")
    warning = stale_warning(shown, date(2026, 11, 20))
    assert warning is not None
    assert "All prices are over 60 days old (oldest: 2026-07-20, 123 days)" in warning
    assert stale_warning(shown, date(2026, 9, 18)) is None
    assert stale_warning(offers(provider="cudo-2024"), date(2026, 11, 20)) is None


def test_managed_prices_by_band_and_name() -> None:
    bands = managed_prices("meta-llama/Meta-Llama-3-8B", 8.03e9)
    assert {price.provider for price in bands} == {"fireworks", "together", "ori"}
    assert "thinkingmachines-tinker" in {price.provider for price in managed_prices("Qwen/Qwen3-8B", 8.19e9)}


def test_user_offer(home: Path) -> None:
    (home / "offers").mkdir(parents=True)
    (home / "offers" / "ours.yaml").write_text(
        "- {provider: Basement, gpu: a40, gpu_count: 4, on_demand_usd_per_h: 0.4, date: 2026-11-01}\n",
        "utf-8",
    )
    (found,) = offers("A40", provider="basement")
    assert found.gpu_count == 4
    assert found.date == "2026-11-01"
    assert found.is_ranked


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("{provider: x, gpu: a40}", "give 'on_demand_usd_per_h' or 'spot_usd_per_h'"),
        ("{provider: x, gpu: a40, on_demand_usd_per_h: 0}", "above zero"),
        ("{gpu: a40, on_demand_usd_per_h: 1}", "'provider' is missing"),
    ],
)
def test_bad_user_offer(home: Path, row: str, says: str) -> None:
    (home / "offers").mkdir(parents=True)
    (home / "offers" / "bad.yaml").write_text(row, "utf-8")
    with pytest.raises(FieldError, match=says):
        offers()
