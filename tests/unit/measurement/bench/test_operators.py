"""Every operator runs as training runs it, under the names and sizes that a device profile knows."""

import pytest
import torch

from finegauge.catalogue.device_profile import COLLECTIVES, OPERATORS
from finegauge.measurement.bench.microbenchmarks import COPIES
from finegauge.measurement.bench.operators import OPERATORS as USES
from finegauge.measurement.bench.timing import DIFFERENTIATED, Bench
from tests.unit.measurement.bench.sizes import SIZES

UPDATES = {"adamw_fused", "adamw_foreach", "adamw_loop", "clip"}


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench(torch.device("cpu"), "fp32")


def test_every_operator_of_a_profile_has_a_maker() -> None:
    assert set(OPERATORS) == {*USES, *UPDATES, *COPIES, *COLLECTIVES}


def test_every_operator_has_a_smallest_size_by_the_catalogues_names() -> None:
    assert {name: set(sizes) for name, sizes in SIZES.items()} == {
        name: set(OPERATORS[name]) for name in USES
    }


@pytest.mark.parametrize("name", [name for name in USES if USES[name].directions])
def test_each_direction_gives_the_gradients_it_names(bench: Bench, name: str) -> None:
    for direction in USES[name].directions:
        use = USES[name].make(bench, **SIZES[name])
        inputs, weights = DIFFERENTIATED[direction]
        for leaf in use.inputs:
            leaf.requires_grad_(inputs)
        for leaf in use.weights:
            leaf.requires_grad_(weights)
        output = use.forward()
        output.backward(torch.ones_like(output))
        assert all((leaf.grad is not None) == inputs for leaf in use.inputs), direction
        assert all((leaf.grad is not None) == weights for leaf in use.weights), direction


def test_two_uses_share_no_weights(bench: Bench) -> None:
    one, other = (USES["linear"].make(bench, **SIZES["linear"]) for _ in range(2))
    assert one.weights[0].data_ptr() != other.weights[0].data_ptr()


def test_attention_is_causal_and_its_two_forms_agree(bench: Bench) -> None:
    outputs = []
    for name in ("attention_sdpa", "attention_eager"):
        bench.next = 0
        outputs.append(USES[name].make(bench, **SIZES[name]).forward())
    assert torch.allclose(*outputs, atol=1e-5)


def test_grouped_experts_and_their_loop_agree(bench: Bench) -> None:
    outputs = []
    for name in ("experts_grouped", "experts_eager"):
        bench.next = 0
        bench.random.manual_seed(1)
        outputs.append(USES[name].make(bench, **SIZES[name]).forward())
    assert torch.allclose(*outputs, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("linear", 2 * 4 * 8 * 16),
        ("grouped_linear", 2 * 8 * 8 * 16),
        ("lora_linear", 2 * 4 * (8 * 16 + 2 * (8 + 16))),
        ("attention_sdpa", 4 * 2 * 4 * 4 * 4**2),
        ("experts_grouped", 3 * 2 * (4 * 2) * 8 * 16),
    ],
)
def test_flops_are_those_of_the_products(name: str, expected: float) -> None:
    flops = USES[name].flops
    assert flops is not None
    assert flops(**SIZES[name]) == expected


def test_only_the_adapter_of_a_lora_linear_trains(bench: Bench) -> None:
    use = USES["lora_linear"].make(bench, **SIZES["lora_linear"])
    assert sorted(tuple(weight.shape) for weight in use.weights) == [(2, 16), (8, 2)]
