"""The price of an hour: as stated, of an offer, the cheapest; and who says so."""

import pytest

from finegauge.callbacks.trial import price_of
from finegauge.catalogue.offers import holding, offers
from finegauge.errors import FieldError, InputError, UnknownNameError

H100 = "NVIDIA H100 80GB HBM3"


def test_the_stated_price_wins() -> None:
    price = price_of(2.5, "whatever", gpu="", num_gpus=1, num_nodes=1)
    assert price is not None
    assert price == (2.5, "as stated")


@pytest.mark.parametrize("wrong", [-1.0, float("nan"), 1e9])
def test_a_price_that_is_none(wrong: float) -> None:
    with pytest.raises(FieldError, match="usd_per_hour"):
        price_of(wrong, None, gpu="", num_gpus=1, num_nodes=1)


def test_the_cheapest_that_holds_the_run() -> None:
    price = price_of(None, None, gpu=H100, num_gpus=8, num_nodes=1)
    assert price is not None
    assert price.said.startswith("the cheapest on demand of the catalogue: ")
    held = [holding(o, 8) for o in offers("H100") if o.is_ranked]
    assert price.usd_per_h == min(o.on_demand_usd_per_h for o in held if o and o.on_demand_usd_per_h)
    assert "a card's price times 8" in price.said


def test_machines_are_paid_each() -> None:
    one = price_of(None, "p5.48xlarge", gpu=H100, num_gpus=8, num_nodes=1)
    two = price_of(None, "p5.48xlarge", gpu=H100, num_gpus=16, num_nodes=2)
    assert one is not None
    assert two is not None
    assert two.usd_per_h == 2 * one.usd_per_h


def test_an_offer_by_name() -> None:
    row = next(o for o in offers("H100") if o.on_demand_usd_per_h and o.instance_type and o.gpu_count >= 1)
    price = price_of(None, f"{row.provider}/{row.instance_type}".upper(), gpu=H100, num_gpus=1, num_nodes=1)
    assert price is not None
    assert row.provider in price.said
    with pytest.raises(UnknownNameError, match="finegauge offers"):
        price_of(None, "nobody", gpu=H100, num_gpus=1, num_nodes=1)


def test_no_price_is_known() -> None:
    assert price_of(None, None, gpu="", num_gpus=1, num_nodes=1) is None
    assert price_of(None, None, gpu="Some Card 3000", num_gpus=1, num_nodes=1) is None
    with pytest.raises(InputError, match="state usd_per_hour"):
        price_of(None, "runpod", gpu="", num_gpus=1, num_nodes=1)
