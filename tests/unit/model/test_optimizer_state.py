"""Optimizer state and temporaries, by hand and as bitsandbytes, transformers and torch held them when run."""

import pytest

from finegauge.model.weights import Trained, optimizer_bytes, state_bytes

SHAPES = ((100, 200), (60, 64), (4096,), (4095,), (3, 40, 50), (1000,))
# Bytes of state of those tensors in bf16, run on a CPU 2026-11-21 (bitsandbytes 0.50.2, transformers 5.23,
# torch 2.13), without the code tables of 8-bit states (2 x 1,024 bytes for all) and step counters.
HELD = {
    "adamw": 156_124,
    "paged_adamw": 2 * 156_124,
    "lion": 156_124,
    "adamw_8bit": 2 * (20_000 + 316 + 15_360 + 4_096 + 64 + 16_380 + 6_000 + 96 + 4_000),
    "lion_8bit": 20_000 + 316 + 15_360 + 4_096 + 64 + 16_380 + 6_000 + 96 + 4_000,
    "adafactor": 400 + 800 + 240 + 256 + 16_384 + 16_380 + 480 + 600 + 4_000,
    "sgd": 0,
}


@pytest.mark.parametrize("optimizer", HELD)
def test_states_are_those_of_a_real_step(optimizer: str) -> None:
    held = sum(state_bytes(optimizer, Trained(shape, 2)) for shape in SHAPES)
    assert held == HELD[optimizer]


def test_only_large_tensors_are_paged() -> None:
    tensors = [Trained((1000, 100), 2), Trained((999, 100), 2, num_alike=5)]
    assert optimizer_bytes("paged_adamw", tensors)[1] == 2 * 4 * 100_000
    assert optimizer_bytes("paged_adamw_8bit", tensors)[1] == 2 * (100_000 + 4 * 391)
    assert optimizer_bytes("adamw", tensors)[1] == 0


def test_a_loop_holds_two_temporaries_of_a_tensor_and_one_of_the_last() -> None:
    alone, before = Trained((10, 10), 4), Trained((5, 10), 4)
    assert optimizer_bytes("adamw", [alone])[2] == 2 * 400
    assert optimizer_bytes("adamw", [before, alone])[2] == 2 * 400 + 200
    assert optimizer_bytes("adamw", [alone, alone])[2] == 3 * 400
    assert optimizer_bytes("adamw_8bit", [alone])[2] == 0


def test_adafactor_updates_in_fp32() -> None:
    assert optimizer_bytes("adafactor", [Trained((10, 10), 2)])[2] == 4 * 4 * 100
    assert optimizer_bytes("adafactor", [Trained((10, 10), 4)])[2] == 2 * 4 * 100
