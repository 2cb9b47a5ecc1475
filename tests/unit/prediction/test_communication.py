"""Seconds between ranks: collectives by hand, what overlaps, bubbles, totals over all GPUs."""

from typing import Any

import pytest

from finegauge.catalogue.gpus import gpu
from finegauge.catalogue.paths import fabric
from finegauge.prediction.calibration import DATASHEET
from finegauge.prediction.collectives import Collective
from finegauge.prediction.links import Network
from finegauge.prediction.predictor import predict
from finegauge.profile import Profile
from finegauge.run.run import Run

COPIES = "copies of sharded tensors"


def run(**fields: Any) -> Run:
    base: dict[str, Any] = {
        "model": "llama-2-7b",
        "method": "full",
        "gpu": "A100-SXM4-80GB",
        "attention": "flash",
        "seq_len": 2048,
        "activation_checkpointing": "full",
    }
    return Run(**{**base, **fields})


def step(**fields: Any) -> Profile:
    return predict(run(**fields), DATASHEET)


def network(**fields: Any) -> Network:
    asked = run(**fields)
    return Network.of(asked, gpu(str(asked.gpu)), DATASHEET)


def shown(profile: Profile, name: str) -> float:
    return sum(v for path, v in profile.step_time_s.parts.items() if path == ("communication", name))


def seconds(links: Network, kind: str, num_bytes: float, ranks: int, span: int) -> float:
    return links.seconds(Collective(kind, "data", "weights", num_bytes, ranks, span, 1.0))


def test_an_all_reduce_moves_twice_what_a_gather_does() -> None:
    """Both by the law: latency, what moves, and latency paid again for its chunks."""
    links, made = network(num_gpus=8), fabric(gpu("A100-SXM4-80GB"), "NVLink")
    for kind, times, own in (("all_gather", 1, 1), ("all_reduce", 2, 1)):
        latency = made.base_s + times * 7 * made.hop_s
        moving = times * 1e9 * 7 / 8 / (300e9 * made.ring_fraction)
        moving += own * 1e9 / 8 / (300e9 * (made.own_fraction or 0))
        filled = latency + moving + 2 * (made.fill_fraction * latency * moving) ** 0.5
        assert seconds(links, kind, 1e9, 8, 8) == pytest.approx(filled)
    assert seconds(links, "all_gather", 1e9, 1, 1) == 0.0


def test_a_measured_all_reduce_is_met() -> None:
    """nccl-tests on 8 A100: 537 MB at a bus bandwidth of 222.7 GB/s."""
    found = seconds(network(num_gpus=8), "all_reduce", 536_870_912, 8, 8)
    assert 536_870_912 * 1.75 / found == pytest.approx(222.7e9, rel=0.07)


def test_a_ring_over_nodes_is_as_fast_as_a_nodes_network_cards() -> None:
    wide = network(num_gpus=32, num_nodes=4)
    assert wide.inter_bytes_per_s == pytest.approx(8 * 6.25e9 * DATASHEET.network_fraction)  # 4 x 100 Gbit/s
    board = seconds(network(num_gpus=8), "all_gather", 1e9, 8, 8)
    assert seconds(wide, "all_gather", 1e9, 32, 32) > 3 * board
    assert seconds(wide, "all_gather", 1e9, 8, 8) == board


def test_without_nvlink_bytes_cross_the_host() -> None:
    assert network(gpu="A10G", num_gpus=4).node.ring(4) < 0.1 * network(num_gpus=4).node.ring(4)


def test_throughput_counts_every_gpu() -> None:
    alone, eight = step(), step(num_gpus=8)
    assert eight.step_tokens == 8 * alone.step_tokens
    assert eight.step_flops == pytest.approx(8 * alone.step_flops)
    assert 4 < eight.tokens_per_s / alone.tokens_per_s < 8
    assert eight.mfu_fraction < alone.mfu_fraction
    assert eight.step_energy_j.total > 7 * alone.step_energy_j.total


def test_gradients_are_reduced_once_a_step_beside_the_backward_pass() -> None:
    once, often = step(num_gpus=8), step(num_gpus=8, gradient_accumulation_steps=8)
    assert often.step_time_s["communication"] == pytest.approx(once.step_time_s["communication"], rel=0.01)


def test_fsdp_gathers_for_every_micro_batch() -> None:
    once = step(num_gpus=8, sharding="fsdp").step_time_s["communication"]
    often = step(num_gpus=8, sharding="fsdp", gradient_accumulation_steps=8, framework="llm-foundry")
    assert often.step_time_s["communication"] == pytest.approx(8 * once, rel=0.01)


def test_lora_reduces_next_to_nothing_but_gathers_as_much() -> None:
    full, lora = (step(num_gpus=8, sharding="fsdp", method=m) for m in ("full", "lora"))
    assert shown(lora, "reduce-scatter") < 0.2 * shown(full, "reduce-scatter")
    assert shown(lora, "all-gather") == pytest.approx(shown(full, "all-gather"), rel=0.05)


def test_slow_links_show_more() -> None:
    fields: dict[str, Any] = {"num_gpus": 4, "sharding": "fsdp", "seq_len": 512}
    nvlink, pcie = step(**fields), step(**fields, gpu="A10G")
    share = [p.step_time_s["communication"] / p.step_time_s.total for p in (nvlink, pcie)]
    assert share[1] > share[0]


def test_a_pipeline_waits_for_its_other_stages() -> None:
    few, many = (step(num_gpus=4, pipeline_parallel=4, gradient_accumulation_steps=m) for m in (4, 32))
    stages = ("forward", "recompute", "backward")
    parts = few.step_time_s.parts.items()
    layers = sum(v for path, v in parts if path[0] in stages and path[1] in ("attention", "mlp"))
    assert shown(few, "pipeline bubble") == pytest.approx(3 / 4 * layers)  # (p - 1) / m
    assert shown(many, "pipeline bubble") / many.step_time_s.total < 0.1


def test_layers_spread_over_gpus_work_one_after_the_other() -> None:
    alone, spread = step(), step(num_gpus=4, pipeline_parallel=4, pipeline_schedule="naive")
    assert spread.step_time_s["forward"] == pytest.approx(alone.step_time_s["forward"])
    assert spread.step_tokens == alone.step_tokens


def test_tensor_parallelism_reduces_twice_a_layer_and_pass() -> None:
    profile = step(num_gpus=8, tensor_parallel=8)
    links = network(num_gpus=8, tensor_parallel=8)
    each, losses = [seconds(links, "all_reduce", b, 8, 8) for b in (2048 * 4096 * 2, 2048 * 4)]
    ends = 2  # embedding and head
    assert shown(profile, "all-reduce (tensor parallel)") == pytest.approx(
        (32 * 2 * 3 + ends) * each + 3 * losses
    )
    assert profile.step_time_s["forward"] < step().step_time_s["forward"] / 4


def test_experts_are_reached_by_all_to_all() -> None:
    fields: dict[str, Any] = {"model": "mixtral-8x7b", "num_gpus": 8, "sharding": "fsdp"}
    assert shown(step(**fields, expert_parallel=8), "all-to-all (expert parallel)") > 0
    assert shown(step(**fields), "all-to-all (expert parallel)") == 0


def test_a_named_provider_decides_the_network() -> None:
    slow = network(gpu="H100", num_gpus=16, num_nodes=2, provider="gcp")
    fast = network(gpu="H100", num_gpus=16, num_nodes=2, provider="aws")
    assert slow.inter_bytes_per_s < fast.inter_bytes_per_s


def test_a_stated_network_decides_before_its_provider() -> None:
    stated = network(num_gpus=16, num_nodes=2, provider="aws", node_network_gbit_per_s=400)
    assert stated.inter_bytes_per_s == pytest.approx(50e9 * DATASHEET.network_fraction)


def test_hosts_run_ahead_where_nothing_limits_the_gathers() -> None:
    first, second = (step(num_gpus=8, sharding="fsdp", framework=f) for f in ("llm-foundry", "torchtitan"))
    assert shown(first, "host waits") > 0
    assert shown(second, "host waits") == 0


def test_fully_shard_copies_what_it_gathers_and_reduces() -> None:
    """Weights in 16 bit read and written again after each gather, gradients widened to fp32 before."""
    fields: dict[str, Any] = {"num_gpus": 8, "sharding": "fsdp", "weights_dtype": "fp32", "autocast": "bf16"}
    first, second = (step(**fields, framework=name) for name in ("llm-foundry", "torchtitan"))
    assert shown(first, COPIES) == 0
    outer = 2 * 32000 * 4096
    layers = 6_738_415_616 - outer
    moved = 2 * 2 * (2 * layers + outer) + 1.5 * 4 * (layers + outer)
    rate = gpu("A100-SXM4-80GB").memory_bytes_per_s * DATASHEET.bandwidth_fraction
    assert shown(second, COPIES) == pytest.approx(moved / rate, rel=1e-3)


def test_nothing_runs_beside_messages_where_every_launch_waits() -> None:
    fields: dict[str, Any] = {"num_gpus": 8, "sharding": "fsdp", "framework": "llm-foundry"}
    hidden, waited = (step(**fields, synchronous=synchronous) for synchronous in (False, True))
    assert shown(waited, "slows computation") == 0 < shown(hidden, "slows computation")
    assert shown(waited, "all-gather, reduce-scatter") > 0 == shown(hidden, "all-gather, reduce-scatter")


def test_a_node_smaller_than_any_known_one_has_ethernet() -> None:
    fields: dict[str, Any] = {"num_nodes": 2, "sharding": "zero2", "method": "full"}
    small, whole = (step(num_gpus=n, **fields) for n in (4, 16))
    stated = step(num_gpus=4, node_network_gbit_per_s=2 * 200, **fields)
    assert shown(small, "all-reduce") > 3 * shown(whole, "all-reduce")
    assert shown(small, "all-reduce") > 3 * shown(stated, "all-reduce")
