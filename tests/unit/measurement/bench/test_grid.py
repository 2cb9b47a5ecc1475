"""The grid asks for what a device profile can hold, once each, and no more than a device bears."""

import pytest

from finegauge.catalogue.device_profile import COLLECTIVES, OPERATORS
from finegauge.measurement.bench.points import MAX_FLOPS, default_points, in_turns


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_points_have_the_sizes_that_profiles_name(device: str) -> None:
    for point in default_points(device):
        assert set(point.sizes) == set(OPERATORS[point.operator])
        assert all(size >= 1 for size in point.sizes.values())


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_no_point_is_asked_twice(device: str) -> None:
    keys = [(point.operator, *sorted(point.sizes.items())) for point in default_points(device)]
    assert len(keys) == len(set(keys))


def test_every_operator_is_in_the_grid() -> None:
    names = {point.operator for point in default_points("cuda")}
    assert names == set(OPERATORS) - set(COLLECTIVES)
    assert names - {point.operator for point in default_points("cpu")} == {"to_device", "to_host"}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_linears_stay_below_the_limit_and_span_decades(device: str) -> None:
    flops = [
        2 * point.sizes["rows"] * point.sizes["n"] * point.sizes["k"]
        for point in default_points(device)
        if point.operator == "linear"
    ]
    assert max(flops) <= MAX_FLOPS[device]
    assert max(flops) / min(flops) > 1000


def test_any_beginning_of_the_turns_covers_all_operators() -> None:
    points = [("fp32", point) for point in default_points("cpu")]
    turned = in_turns(points)
    names = {point.operator for _, point in points}
    assert {point.operator for _, point in turned[: len(names)]} == names
    assert len(turned) == len(points)
    assert all(turned.count(entry) == 1 for entry in points)


def test_the_largest_copy_comes_first_for_every_time_rests_on_its_rate() -> None:
    first = in_turns([("fp32", point) for point in default_points("cpu")])[0][1]
    sizes = [point.sizes["bytes"] for point in default_points("cpu") if point.operator == "copy"]
    assert (first.operator, first.sizes["bytes"]) == ("copy", max(sizes))


def test_attention_is_timed_on_both_sides_of_a_processors_blocks() -> None:
    """From 768 queries on its kernel takes other blocks; what lies beyond the longest is held to its rate."""
    lengths = {p.sizes["seq_len"] for p in default_points("cpu") if p.operator == "attention_sdpa"}
    assert 512 in lengths
    assert max(lengths) >= 768
