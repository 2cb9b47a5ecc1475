"""ZeRO++: a second copy of the weights within a node, weights gathered in 8 bits, gradients sent in 4."""

from typing import Any

import pytest

from finegauge.prediction.collectives import Collective, collectives, exchanges
from finegauge.prediction.offload import kept_on_host
from finegauge.prediction.predictor import predict
from finegauge.prediction.sharding import SECOND_COPY, share_of
from finegauge.run.run import Run
from finegauge.units import GIB

PARAMETERS = 6_738_415_616  # Llama-2-7B


def run(**fields: Any) -> Run:
    base: dict[str, Any] = {
        "model": "llama-2-7b", "method": "full", "gpu": "A100-SXM4-80GB", "attention": "flash",
        "seq_len": 512, "activation_checkpointing": "full", "num_gpus": 16, "num_nodes": 2,
        "gradient_accumulation_steps": 4, "sharding": "zero3",
    }  # fmt: skip
    return Run(**{**base, **fields})


def gathered(asked: Run) -> list[Collective]:
    return [one for one in collectives(asked) if one.kind == "all_gather"]


def sent(messages: list[Collective], steps: int) -> float:
    return sum(one.num_per_step(steps) * one.payload_bytes for one in messages)


def test_a_node_holds_the_weights_once_more_until_the_update() -> None:
    plain, second = (predict(run(zero_hpz_partition_size=of)).phase_memory_bytes for of in (1, 8))
    for phase in ("forward", "loss", "backward", "optimizer"):
        assert second.parts[(phase, *SECOND_COPY)] == pytest.approx(2 * PARAMETERS / 8, rel=1e-3)
        grown = second.under(phase).total - plain.under(phase).total
        assert grown == pytest.approx(2 * PARAMETERS / 8, rel=1e-3)


def test_only_the_first_micro_batch_gathers_from_all_nodes() -> None:
    found = gathered(run(zero_hpz_partition_size=8))
    far, near = ([one for one in found if one.ranks == ranks] for ranks in (16, 8))
    assert len(far) + len(near) == len(found)
    assert sent(far, 4) == pytest.approx(2 * PARAMETERS, rel=1e-3)
    assert sent(found, 4) == pytest.approx(sent(gathered(run()), 4))
    assert all(one.span == 8 for one in near)


def test_the_copy_of_frozen_weights_never_goes_stale() -> None:
    assert {one.ranks for one in gathered(run(method="lora", zero_hpz_partition_size=8))} == {8}


def test_weights_travel_in_half_and_gradients_in_a_quarter_of_their_bytes() -> None:
    plain, narrow = gathered(run()), gathered(run(zero_quantized_weights=True))
    assert sent(narrow, 4) == pytest.approx(sent(plain, 4) / 2)
    found = {one.kind: one.bytes_per_step for one in exchanges(run(zero_quantized_gradients=True))}
    assert "reduce_scatter" not in found
    within, between = 0.5, 0.5 / 8  # bytes a value: to the node's ranks, and their sums to the other node
    assert found["all_to_all"] == pytest.approx(4 * (within + between) * PARAMETERS, rel=1e-3)
    alone = exchanges(run(num_nodes=1, num_gpus=8, zero_quantized_gradients=True))
    assert {one.kind: one.bytes_per_step for one in alone}["all_to_all"] == pytest.approx(
        4 * within * PARAMETERS, rel=1e-3
    )


def test_each_of_them_shortens_a_step_between_nodes() -> None:
    plain = predict(run()).step_time_s.total
    for field, value in (
        ("zero_hpz_partition_size", 8),
        ("zero_quantized_weights", True),
        ("zero_quantized_gradients", True),
    ):
        assert predict(run(**{field: value})).step_time_s.total < plain, field


def test_the_second_copy_of_offloaded_weights_lies_on_the_host() -> None:
    """A published pair of rows on 8 A800: the host's memory grew by 12.2 GB, the GPU's not at all."""
    offloaded = {"num_gpus": 8, "num_nodes": 1, "cpu_offload": "all", "zero_hpz_partition_size": 8}
    plain, second = (run(**{**offloaded, "zero_hpz_partition_size": of}) for of in (1, 8))
    host = [8 * kept_on_host(one, share_of(one)).total for one in (plain, second)]
    assert (host[1] - host[0]) / GIB == pytest.approx(12.2, rel=0.05)
    assert predict(second).peak_memory_bytes.total == predict(plain).peak_memory_bytes.total


def test_other_ways_to_shard_know_nothing_of_it() -> None:
    asked = {"zero_hpz_partition_size": 8, "zero_quantized_weights": True, "zero_quantized_gradients": True}
    for sharding in ("zero2", "fsdp"):
        assert collectives(run(sharding=sharding, **asked)) == collectives(run(sharding=sharding))
        two = [predict(run(sharding=sharding, **more)).peak_memory_bytes for more in ({}, asked)]
        assert two[0] == two[1]
