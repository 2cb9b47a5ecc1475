"""Products in 8 and 4 bit, attention that is handed a mask or fp32, and what a loop holds."""

from typing import Any

import pytest

from finegauge.model.graph import build
from finegauge.model.op import Op
from finegauge.prediction.predictor import predict
from finegauge.run.run import Run

FULL = Run(
    model="llama-3-8b", method="full", seq_len=4096, micro_batch_size=2, gpu="B200", weights_dtype="bf16"
)
QLORA = Run(model="llama-3-8b", method="qlora", seq_len=2048, gpu="A100-80GB", transformers_version="4.49")


def kernel(run: Run) -> Op:
    """Return the attention kernel of a layer of `run`."""
    return next(op for op in build(run).layers[0].ops if op.path[-1] == "attention kernel")


def seconds(run: Run, *path: str) -> float:
    """Return the seconds of one path of the step."""
    return predict(run).step_time_s.parts[path]


def test_a_scale_of_the_tensor_takes_a_pass_more_than_that_of_the_steps_before() -> None:
    casts = [
        seconds(FULL.replace(fp8=True, fp8_recipe=recipe), "forward", "mlp", "fp8 casts")
        for recipe in ("delayed", "tensorwise")
    ]
    assert casts[1] / casts[0] == pytest.approx(6 / 4)


def test_four_bit_products_are_faster_than_eight_bit_ones_where_the_gpu_has_them() -> None:
    def product(**fields: Any) -> float:
        return seconds(FULL.replace(fp8=True, **fields), "forward", "mlp", "up_proj")

    assert product(fp8_recipe="nvfp4") < product(fp8_recipe="mxfp8")
    assert product(fp8_recipe="nvfp4", gpu="H100") == product(fp8_recipe="mxfp8", gpu="H100")


def test_casts_of_experts_are_divided_as_the_experts_are() -> None:
    whole = Run(
        model="mixtral-8x7b", method="full", gpu="H100", num_gpus=8, sharding="fsdp", fp8=True, seq_len=1024
    )
    path = "forward", "moe", "fp8 casts of experts"
    tokens = 1024 * 2
    weights = 8 * 4096 * 14336
    shared = (weights / 8 + tokens * 4096) / (weights + tokens * 4096)
    ratio = seconds(whole.replace(expert_parallel=8), *path) / seconds(whole, *path)
    assert ratio == pytest.approx(shared, rel=0.5)


def test_experts_alone_or_linears_alone() -> None:
    run = Run(model="mixtral-8x7b", method="full", gpu="H100", fp8=True)
    for products, experts, linears in (
        ("all", True, True),
        ("experts", True, False),
        ("linears", False, True),
    ):
        ops = build(run.replace(fp8_products=products)).layers[0].ops
        narrow = {op.kind for op in ops if op.dtype == "fp8"}
        assert ("grouped_gemm" in narrow, "gemm" in narrow) == (experts, linears)


def test_a_mask_takes_the_kernel_that_skips_nothing() -> None:
    plain, masked = kernel(FULL), kernel(FULL.replace(attention_mask=True))
    assert masked.forward.flops.pair == 2 * plain.forward.flops.pair
    assert (plain.generation, masked.generation) == (3, 0)


def test_padding_hands_over_a_mask_and_packing_does_not() -> None:
    padded = FULL.replace(dataset="alpaca", transformers_version="4.49")
    assert kernel(padded).generation == 0
    assert kernel(padded.replace(packing=True)).generation == 2
    assert kernel(padded.replace(attention="flash")).generation == 2
    assert kernel(padded.replace(framework="torchtune")).generation == 2


def test_k_bit_preparation_without_autocast_attends_in_fp32() -> None:
    prepared = QLORA.replace(upcast_unquantized=True)
    assert kernel(QLORA).dtype == "bf16"
    assert (kernel(prepared).dtype, kernel(prepared).generation) == ("fp32", 0)
    assert kernel(prepared.replace(autocast="bf16")).dtype == "bf16"
    slow, narrow, plain = (
        predict(run).step_time_s.total for run in (prepared, prepared.replace(autocast="bf16"), QLORA)
    )
    assert slow > 1.5 * plain
    assert narrow < slow


def test_a_head_made_fp32_computes_there() -> None:
    heads = [next(op for op in build(run).head if op.path[-1] == "lm_head") for run in (QLORA, FULL)]
    assert [op.dtype for op in heads] == ["bf16", "bf16"]
    prepared = build(QLORA.replace(upcast_unquantized=True)).head
    assert next(op for op in prepared if op.path[-1] == "lm_head").dtype == "fp32"


def test_a_loop_that_keeps_the_outputs_holds_the_logits() -> None:
    freed, kept = (predict(FULL.replace(keeps_outputs=keeps)).phase_memory_bytes for keeps in (False, True))
    logits = 2 * 4096 * 128256 * 2
    assert kept["optimizer"] - freed["optimizer"] == pytest.approx(logits)


@pytest.mark.parametrize("gpu", ["T4", "V100"])
def test_a_gpu_without_bf16_gets_fp16_unasked(gpu: str) -> None:
    run = Run(model="llama-2-7b", method="lora", gpu=gpu, attention="sdpa")
    assert (run.weights_dtype, run.adapter_dtype) == ("fp16", "fp16")
    assert build(run.replace(method="qlora")).lowering.compute_dtype == "fp16"
    assert kernel(run).generation == 0  # no FlashAttention there
    assert Run(model="llama-2-7b", method="lora").weights_dtype == "bf16"
