"""Hours, energy and dollars of a whole run, each by hand."""

import pytest

from finegauge.catalogue.gpus import gpu
from finegauge.catalogue.offers import Offer, grid
from finegauge.planning.quote import SAVE_BYTES_PER_S, SPOT_REPEATED_FRACTION, WALL_POWER_RATIO, Quote, quote
from finegauge.run.run import Run
from finegauge.units import HOUR_S
from tests.unit.planning.fakes import Fake, run

OFFER = Offer(
    provider="somewhere",
    instance_type="one",
    gpu="A40",
    gpu_printed="A40",
    gpu_count=1,
    vcpus=None,
    ram_bytes=None,
    region="any",
    on_demand_usd_per_h=0.50,
    spot_usd_per_h=0.20,
    tier="on-demand",
    date="2026-11-01",
    source="test",
    outlier=False,
    notes="",
)
ROOMY = Fake(capacity_bytes=1e12)


def quoted(asked: Run, *prices: Offer) -> Quote:
    """Return the quote of `asked` with the fake's step and `prices`."""
    return quote(asked, ROOMY(asked), prices=prices)


def test_hours_add_up() -> None:
    # 1,000 samples, batch 4 x 5: 50 steps an epoch; 2 epochs; 1 s + 1 ms x 400 tokens a step.
    asked = run(num_samples=1000, micro_batch_size=4, gradient_accumulation_steps=5, epochs=2.0, seq_len=100)
    bill = quoted(asked, OFFER)
    assert bill.num_steps == 100
    assert bill.wall_time_s["startup"] == asked.startup_s
    assert bill.wall_time_s["steps"] == pytest.approx(100 * 1.4)
    assert bill.wall_time_s["saves"] == pytest.approx(2 * (25 + 25) / SAVE_BYTES_PER_S)
    assert bill.wall_time_s["evaluation"] == 0
    assert bill.wall_s == pytest.approx(bill.wall_time_s.total)


def test_evaluation_is_a_forward_pass_each_epoch() -> None:
    asked = run(num_samples=10, epochs=3.0, eval_samples=7, seq_len=100)
    forward_s = 0.25 + 0.0003 * 100
    assert quoted(asked).wall_time_s["evaluation"] == pytest.approx(3 * 7 * forward_s)


def test_a_full_fine_tune_saves_the_whole_model() -> None:
    asked = run(num_samples=10, method="full")
    assert quoted(asked).wall_time_s["saves"] == pytest.approx((50 + 25) / SAVE_BYTES_PER_S)


def test_max_steps_ends_the_run() -> None:
    asked = run(num_samples=1000, max_steps=10)
    bill = quoted(asked)
    assert bill.num_steps == 10
    assert bill.wall_time_s["saves"] == pytest.approx(10 / 1000 * 50 / SAVE_BYTES_PER_S)


def test_cost_is_hours_times_price() -> None:
    bill = quoted(run(num_samples=1000, seq_len=100), OFFER)
    (priced,) = bill.offers
    assert bill.wall_s is not None
    hours = bill.wall_s / HOUR_S
    assert priced.on_demand_usd == pytest.approx(hours * 0.50)
    assert priced.spot_usd == pytest.approx(hours * (1 + SPOT_REPEATED_FRACTION) * 0.20)


def test_an_instance_is_billed_whole() -> None:
    eight = OFFER._replace(gpu_count=8, on_demand_usd_per_h=4.0)
    bill = quoted(run(num_samples=1000), eight)
    (priced,) = bill.offers
    assert bill.wall_s is not None
    assert priced.idle_gpus == 7
    assert priced.on_demand_usd == pytest.approx(bill.wall_s / HOUR_S * 4.0)


def test_a_slice_of_a_card_is_no_offer() -> None:
    assert quoted(run(num_samples=1000), OFFER._replace(gpu_count=0)).offers == ()


def test_an_unknown_price_is_none_and_last() -> None:
    unknown = OFFER._replace(provider="a", on_demand_usd_per_h=None, spot_usd_per_h=None)
    bill = quoted(run(num_samples=1000), unknown, OFFER)
    assert [o.provider for o in bill.offers] == ["somewhere", "a"]
    assert bill.offers[1].on_demand_usd is None
    assert bill.cheapest_on_demand is not None
    assert bill.cheapest_on_demand.offer is OFFER


def test_outliers_and_historical_prices_are_listed_but_not_ranked() -> None:
    outlier = OFFER._replace(outlier=True, on_demand_usd_per_h=0.01)
    paper = OFFER._replace(tier="seed-paper", on_demand_usd_per_h=0.02)
    bill = quoted(run(num_samples=1000), outlier, paper, OFFER)
    assert len(bill.offers) == 3
    assert bill.cheapest_on_demand is not None
    assert bill.cheapest_on_demand.offer is OFFER


def test_no_price_is_a_warning_not_a_zero() -> None:
    bill = quoted(run(num_samples=1000))
    assert bill.cheapest_on_demand is None
    assert bill.cheapest_spot is None
    assert bill.warnings == ("No price is known for 1 x A40.",)


def test_unknown_steps_are_said() -> None:
    bill = quoted(run(), OFFER)
    assert bill.num_steps is None
    assert bill.wall_s is None
    assert bill.boards_energy_j is None
    assert bill.emissions_kg is None
    assert bill.offers == ()
    assert "num_samples" in bill.warnings[0]


def test_energy_of_boards_and_at_the_wall_are_two_figures() -> None:
    asked = run(num_samples=100, startup_s=60.0, saves_per_epoch=0.0, seq_len=100)
    bill = quoted(asked, OFFER)
    idle_w = gpu("A40").idle_power_w or 0.15 * (gpu("A40").board_power_w or 0)
    boards_j = 100 * 100.0 * 1.1 + 60 * idle_w
    assert bill.boards_energy_j == pytest.approx(boards_j)
    assert bill.wall_energy_j == pytest.approx(boards_j * WALL_POWER_RATIO)
    assert bill.emissions_kg == pytest.approx(
        boards_j * WALL_POWER_RATIO / 3.6e6 * bill.pue * grid().kg_per_kwh
    )


@pytest.mark.parametrize(
    ("stated", "evaluations", "saves"),
    [({}, 2, 2), ({"eval_steps": 30, "save_steps": 0.05}, 7, 20), ({"save_steps": 500.0}, 2, 1)],
)
def test_evaluations_and_saves_come_every_so_many_steps(
    stated: dict[str, float], evaluations: int, saves: int
) -> None:
    wall = quoted(run(num_samples=100, epochs=2.0, eval_samples=10, **stated), OFFER).wall_time_s  # 200 steps
    once = quoted(run(num_samples=100, epochs=1.0, eval_samples=10), OFFER).wall_time_s
    assert wall["evaluation"] == pytest.approx(evaluations * once["evaluation"])
    assert wall["saves"] == pytest.approx(saves * once["saves"])


def test_wall_power_ratio_is_what_mlperf_measured() -> None:
    assert pytest.approx(1.39, abs=0.005) == WALL_POWER_RATIO


def test_managed_services_bill_tokens_without_padding() -> None:
    asked = run(dataset="commonsense_15k", seq_len=512, epochs=10.0)
    managed = quoted(asked, OFFER).managed
    fireworks = next(price for price in managed if price.provider == "fireworks")
    assert fireworks.billed_tokens == pytest.approx(10 * 15_119 * 99.9, rel=0.01)  # mean length 99.9
    assert fireworks.low_usd == pytest.approx(0.5 * fireworks.billed_tokens / 1e6)
    assert "RL" not in {price.method for price in managed}
    assert managed == tuple(sorted(managed, key=lambda price: price.low_usd))


def test_only_sft_has_a_managed_alternative() -> None:
    assert quoted(run(num_samples=10, phase="pretrain"), OFFER).managed == ()


def test_stale_prices_are_said() -> None:
    (warning,) = quoted(run(num_samples=10), OFFER._replace(date="2020-01-01")).warnings
    assert "days" in warning
    assert "--refresh" in warning


def test_the_catalogue_prices_by_default() -> None:
    bill = quote(run(num_samples=1000), ROOMY(run(num_samples=1000)))
    assert {o.offer.gpu for o in bill.offers if o.offer} == {"A40"}
    assert bill.cheapest_on_demand is not None
    assert any(o.tier == "seed-paper" for o in bill.offers)


def test_a_provider_narrows_the_offers() -> None:
    asked = run(num_samples=1000, provider="cudo-2024")
    assert {o.provider for o in quote(asked, ROOMY(asked)).offers} == {"cudo-2024"}


def test_prediction_by_default() -> None:
    bill = quote(run(num_samples=100, method="qlora"))
    assert bill.wall_s is not None
    assert bill.wall_s > 0


def test_several_consumer_cards_of_one_machine() -> None:
    run = Run(model="Qwen/Qwen3-8B", gpu="RTX 4090", method="lora", num_gpus=4, sharding="ddp", max_steps=100)
    found = quote(run).offers
    assert {one.provider for one in found} >= {"runpod", "novita"}
    assert all(one.is_scaled and one.gpu_count == 4 for one in found)
    joined = quote(run.replace("test", num_gpus=16, num_nodes=2)).offers
    assert not any(one.is_scaled for one in joined)  # nobody joins such machines


def test_without_an_end_the_price_is_of_tokens() -> None:
    (warning,) = quote(Run(model="Qwen/Qwen3-8B", gpu="a40", method="lora")).warnings
    assert "per 1 M tokens on demand from crusoe" in warning
