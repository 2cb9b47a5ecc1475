"""Optimizer updates, clipping and copies do what they are timed for."""

import pytest
import torch

from finegauge.measurement.bench.timing import Bench, _call, _parameters, copy_timing, update_timing


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench(torch.device("cpu"), "fp32")


@pytest.mark.parametrize("operator", ["adamw_fused", "adamw_foreach", "adamw_loop"])
def test_an_update_moves_every_parameter(bench: Bench, operator: str) -> None:
    parameters = _parameters(bench, 12, 3)
    before = [parameter.detach().clone() for parameter in parameters]
    _call(operator, parameters)()
    assert [parameter.numel() for parameter in parameters] == [4, 4, 4]
    assert all(not torch.equal(a, b) for a, b in zip(before, parameters, strict=True))


def test_clipping_bounds_the_gradients(bench: Bench) -> None:
    parameters = _parameters(bench, 4, 2)
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, 100.0)
    _call("clip", parameters)()
    norms = torch.stack([parameter.grad.norm() for parameter in parameters])
    assert norms.norm() == pytest.approx(1.0, rel=1e-3)


def test_seconds_are_of_one_update_and_one_copy(bench: Bench) -> None:
    assert 0 < update_timing(bench, "adamw_fused", params=2**14, tensors=4).seconds < 1
    assert 0 < copy_timing(bench, "copy", num_bytes=2**12).seconds < 1
