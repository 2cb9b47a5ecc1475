"""Time of known cases: FLOPs by hand, host-bound steps, recomputation, energy."""

from typing import Any

import pytest

from finegauge.catalogue.gpus import gpu
from finegauge.model.op import Cost, Extents, Gemm, Op, Poly
from finegauge.prediction.calibration import DATASHEET, current
from finegauge.prediction.device import Device
from finegauge.prediction.predictor import predict
from finegauge.profile import Profile
from finegauge.run.run import Run

LAYER_MACS = 4 * 4096 * 4096 + 3 * 4096 * 11008  # of one Llama-2-7B layer per token


def step(**fields: Any) -> Profile:
    base: dict[str, Any] = {
        "model": "llama-2-7b",
        "method": "full",
        "gpu": "A100-SXM4-80GB",
        "attention": "flash",
    }
    return predict(Run(**{**base, **fields}))


def test_flops_of_a_full_step_by_hand() -> None:
    tokens, pairs = 2048, 2048**2
    matrices = 2 * tokens * (32 * LAYER_MACS + 4096 * 32000)
    attention = 32 * 2 * pairs * 4096  # causal: half of 4·S²·A·D
    assert step(seq_len=2048).step_flops == pytest.approx(3 * matrices + 3.5 * attention, rel=2e-3)


def test_lora_skips_the_weight_gradients_of_frozen_weights() -> None:
    full, lora = step(), step(method="lora", lora_rank=8)
    assert 0.6 < lora.step_flops / full.step_flops < 0.75


def test_recomputation_costs_a_forward_and_is_not_counted_as_model_flops() -> None:
    plain, again = step(), step(activation_checkpointing="full")
    assert plain.step_flops == again.step_flops
    assert again.step_time_s["recompute"] == pytest.approx(again.step_time_s["forward"], rel=0.1)
    assert again.mfu_fraction < plain.mfu_fraction


def test_selective_checkpointing_recomputes_less_than_full() -> None:
    selective, full = (step(activation_checkpointing=kind) for kind in ("selective", "full"))
    assert 0 < selective.step_time_s["recompute"] < full.step_time_s["recompute"]
    assert selective.phase_memory_bytes.under("loss").total > full.phase_memory_bytes.under("loss").total


def test_tiny_batches_wait_for_the_host() -> None:
    tiny = step(method="qlora", gpu="H100-SXM5-80GB", seq_len=32)
    large = step(method="qlora", gpu="H100-SXM5-80GB", seq_len=4096, micro_batch_size=4)
    assert tiny.host_bound_fraction > 0.5 > large.host_bound_fraction
    assert "host" in tiny.bottleneck.lower()
    assert "host" not in large.bottleneck.lower()


def test_a_full_update_at_batch_one_spends_much_of_its_step_in_the_optimizer() -> None:
    small = step(seq_len=128, optimizer_implementation="foreach")
    assert small.step_time_s["optimizer"] > 0.3 * small.step_time_s.total


def test_accumulation_repeats_all_but_the_optimizer() -> None:
    one, four = step(), step(gradient_accumulation_steps=4)
    assert four.step_time_s["forward"] == pytest.approx(4 * one.step_time_s["forward"])
    assert four.step_time_s["optimizer"] == one.step_time_s["optimizer"]
    assert four.step_tokens == 4 * one.step_tokens


def test_dense_experts_cost_more_than_sparse_ones() -> None:
    sparse, dense = (
        step(model="mixtral-8x7b", method="qlora", micro_batch_size=4, num_experts_per_tok=k) for k in (2, 8)
    )
    assert dense.step_flops > 3 * sparse.step_flops
    assert dense.step_time_s.total > sparse.step_time_s.total


def test_energy_lies_between_idle_and_the_board_limit() -> None:
    profile = step(micro_batch_size=4)
    watts = profile.step_energy_j.total / profile.step_time_s.total
    limit = gpu("A100-SXM4-80GB").board_power_w
    assert limit is not None
    assert 0.3 * limit < watts < limit


def test_fp16_stands_in_where_a_gpu_has_no_bf16() -> None:
    assert step(gpu="T4", weights_dtype="fp16", method="lora", seq_len=512).step_time_s.total > 0


def device() -> Device:
    return Device.of(gpu("A100-SXM4-80GB"), DATASHEET, {"bf16", "fp32"})


def matmul(rows: float, n: int, k: int) -> float:
    """Return the FLOP/s that a product of these sizes reaches."""
    cost = Cost(flops=Poly(token=2.0 * n * k), gemms=(Gemm(1.0, n, k),))
    op = Op(("x", "y"), "gemm", forward=cost)
    return 2.0 * rows * n * k / device().seconds(op, cost, Extents.of(1, rows), backward=False)


def test_large_products_reach_the_ceiling_and_small_ones_do_not() -> None:
    peak = gpu("A100-SXM4-80GB").peak_flops_per_s("bf16")
    assert 0.6 < matmul(8192, 8192, 8192) / peak < 0.8
    assert matmul(64, 4096, 4096) < 0.5 * matmul(8192, 8192, 8192)
    assert matmul(8192, 16, 4096) < 0.3 * matmul(8192, 8192, 8192)


def test_a_window_bounds_the_pairs() -> None:
    extents = Extents.of(2, 4096)
    assert extents.windowed(None) == extents.windowed(8192) == extents
    assert extents.windowed(1024).pairs == 2 * (2 * 4096 * 1024 - 1024**2)


def test_instruments_make_host_and_device_add_up() -> None:
    fields: dict[str, Any] = {"model": "llama-3-8b", "method": "lora", "gpu": "A100-80GB", "seq_len": 2048}
    plain, instrumented = predict(Run(**fields)), predict(Run(**fields, synchronous=True))
    assert plain.host_bound_fraction < 0.05  # the host runs ahead of large kernels
    assert instrumented.host_bound_fraction > plain.host_bound_fraction
    assert instrumented.step_time_s.total > 1.05 * plain.step_time_s.total
    assert instrumented.step_flops == plain.step_flops


def test_short_rows_of_keys_run_at_half_rate() -> None:
    device = Device.of(gpu("A100-SXM4-80GB"), DATASHEET, {"bf16"})
    cost = Cost(flops=Poly(pair=1e6))
    op = Op(("attention", "attention kernel"), "attention", forward=cost)
    long, short = (device.seconds(op, cost, Extents.of(1, s), backward=False) / s**2 for s in (450_000, 450))
    assert short / long == pytest.approx(2.0, rel=2e-3)
    windowed = op._replace(window=450)
    assert device.seconds(windowed, cost, Extents.of(1, 450_000), backward=False) < 0.01 * long * 450_000**2


def test_one_kernel_for_all_experts_is_slower_than_a_product_of_their_size() -> None:
    device = Device.of(gpu("A100-SXM4-80GB"), DATASHEET, {"bf16"})
    gemm = Gemm(2.0, 4096, 4096, 8)
    looped, grouped = (
        device.seconds(Op(("moe", "w1"), "grouped_gemm", cost), cost, Extents.of(4, 4096), backward=False)
        for cost in (Cost(launches=8, gemms=(gemm,)), Cost(launches=1, gemms=(gemm,)))
    )
    assert grouped / looped == pytest.approx(1 / DATASHEET.grouped_fraction)


def test_gptq_unpacked_by_pytorch_is_slower_than_by_one_kernel_and_keeps_the_copy() -> None:
    fields = {"method": "gptq_lora", "weights_dtype": "gptq4", "autocast": "fp16", "lora_rank": 8}
    plain = step(**fields, seq_len=512, framework="HF Trainer")
    fused = step(**fields, seq_len=512, framework="fms-hf-tuning")
    assert plain.step_time_s.total > 1.1 * fused.step_time_s.total
    kept = plain.phase_memory_bytes.under("backward")["activations"]
    assert kept - fused.phase_memory_bytes.under("backward")["activations"] > 2 * 32 * LAYER_MACS * 0.9


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_an_optimizer_of_products_has_a_time_in_every_format(dtype: str) -> None:
    run = Run(model="qwen3-0.6b", method="full", gpu="A40", weights_dtype=dtype)
    muon, adamw = (predict(run.replace(optimizer=name)) for name in ("muon", "adamw"))
    assert muon.step_time_s["optimizer"] > adamw.step_time_s["optimizer"]


def test_paged_states_cross_pcie_where_they_have_no_room() -> None:
    """torchtune's 7B on an RTX 4090 was 69 % too fast."""
    path = ("communication", "paged states from the host and back")
    small, large = (
        step(optimizer="paged_adamw", optimizer_implementation="in_backward", gpu=name,
             activation_checkpointing="full", seq_len=512)
        for name in ("RTX 4090", "B200")
    )  # fmt: skip
    assert path not in large.step_time_s.parts
    room = small.capacity_bytes - small.device_memory_bytes.total
    states = 8.0 * 6.738e9
    expected = 2.0 * (states - room) / (31e9 * DATASHEET.link_fraction)
    assert small.step_time_s.parts[path] == pytest.approx(expected, rel=0.01)
    assert small.step_energy_j.total > 0


@pytest.mark.parametrize(
    ("changes", "held_bytes"),
    [
        ({}, 2.0 * 6.738e9),
        ({"num_gpus": 2, "sharding": "fsdp"}, 2.0 * 6.738e9),  # whole until the last micro-batch
        ({"num_gpus": 2, "sharding": "fsdp", "sync_each_batch": True}, 6.738e9),
        ({"kernels": ("megatron",)}, 0.0),  # its products add in their own kernel
    ],
)
def test_gradients_of_several_micro_batches_are_added_up(changes: dict[str, Any], held_bytes: float) -> None:
    path = ("backward", "parameters", "add gradients")
    once, four = (step(seq_len=512, gradient_accumulation_steps=n, **changes) for n in (1, 4))
    assert path not in once.step_time_s.parts
    moved = four.step_time_s.parts.get(path, 0.0) * 2039e9 * current().bandwidth_fraction
    assert moved == pytest.approx(3 * 3.0 * held_bytes, rel=0.01)


def test_a_loop_over_experts_in_one_tensor_adds_gradients_as_large_as_all() -> None:
    looped = step(model="mixtral-8x7b", experts_implementation="eager", transformers_version="5.0")
    one_tensor = 2.0 * 8 * 4096 * 14336  # of all experts' last projections, in one layer
    least = 32 * (8 * one_tensor + 7 * 3 * one_tensor) / (2039e9 * current().bandwidth_fraction)
    taken = looped.step_time_s.parts["backward", "moe", "down_proj"]
    assert least < taken < 1.2 * least
