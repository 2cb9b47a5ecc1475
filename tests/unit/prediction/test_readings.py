"""Seconds between readings: exact at a reading, in between beside it, and never of another operator."""

from itertools import pairwise

import pytest

from finegauge.catalogue.device_profile import Reading
from finegauge.prediction.profiled_device import Readings, work
from tests.unit.prediction.profiles import CALL_S, FLOPS_PER_S, profile, readings


@pytest.mark.parametrize("one", [r for r in readings() if r.operator != "rms_norm"][::7], ids=lambda r: r[0])
def test_a_reading_is_given_back(one: Reading) -> None:
    found = Readings(profile()).seconds(one.operator, one.dtype, one.direction, one.sizes)
    assert found == pytest.approx(one.seconds, rel=1e-9)


def test_between_readings_the_product_takes_what_its_flops_take() -> None:
    sizes = {"rows": 1000, "n": 700, "k": 512}
    found = Readings(profile()).seconds("linear", "fp32", "forward", sizes)
    assert found == pytest.approx(CALL_S + 2 * 1000 * 700 * 512 / FLOPS_PER_S, rel=0.25)


def test_more_rows_take_longer() -> None:
    asked = Readings(profile())
    times = [
        asked.seconds("linear", "fp32", "forward", {"rows": rows, "n": 300, "k": 300})
        for rows in (8, 20, 60, 150, 500, 2000, 9000)
    ]
    assert all(less < more for less, more in pairwise(t for t in times if t is not None))
    assert None not in times


def test_an_operator_without_a_reading_is_none() -> None:
    asked = Readings(profile())
    assert asked.seconds("clip", "fp32", "update", {"params": 10, "tensors": 1}) is None
    assert asked.seconds("linear", "bf16", "forward", {"rows": 16, "n": 16, "k": 16}) is None


def test_an_adapter_is_what_a_lora_linear_takes_beyond_its_linear() -> None:
    sizes = {"rows": 256.0, "n": 256.0, "k": 256.0}
    alone = next(r for r in readings() if r[:4] == ("linear", "fp32", "forward", sizes)).seconds
    lora = Reading("lora_linear", "fp32", "forward", {**sizes, "rank": 8.0}, alone + 3e-4)
    found = Readings(profile(readings=(*readings(), lora))).seconds(
        "adapter", "fp32", "forward", {**sizes, "rank": 8}
    )
    assert found == pytest.approx(3e-4)


def test_stated_values_stand_for_rows_and_width() -> None:
    whole = work("add", {"rows": 12, "width": 32}, 4.0, backward=False)
    assert work("add", {"values": 384}, 4.0, backward=False) == whole
