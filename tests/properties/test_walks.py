"""Walks over all GPUs: one unit more of anything costs no more than its share, without a reason."""

from functools import cache
from itertools import pairwise
from math import inf
from typing import Any

import pytest

from finegauge.catalogue.gpus import gpu, gpus
from finegauge.prediction.device import COMPILED
from finegauge.prediction.predictor import predict
from finegauge.run.run import Run

TIMED = [name for name, one in gpus().items() if {"bf16", "fp16"} & set(one.flops_per_s)]
STEP = 1.2  # a tile of 8 rows more where 16 filled theirs, on what has few FLOPs to a byte (P100)
FEW, STEP_OF_FEW = 25.0, 1.25  # FLOPs to a byte of GeForce cards of Pascal and GTX 16: fewer than any
SHARE = 1.06  # of what a step takes, by waves of tiles


@cache
def seconds(name: str, **fields: Any) -> float:
    """Return the seconds of a step of a small model."""
    if "bf16" not in gpu(name).flops_per_s:
        fields = {"weights_dtype": "fp16", **fields}
    return predict(Run.from_fields({"model": "qwen3-1.7b", "gpu": name, **fields})).step_time_s.total


@cache
def generated_s(name: str, rows: int, **fields: Any) -> float:
    """Return the seconds in which an engine answers so many prompts at once."""
    dtype = "bf16" if "bf16" in gpu(name).flops_per_s else "fp16"
    return seconds(
        name, method="full", phase="decode", weights_dtype=dtype, inference_engine="vllm", max_new_tokens=64,
        micro_batch_size=rows, seq_len=128, truncated_sampling=False,
        **fields,
    )  # fmt: skip


@pytest.mark.parametrize("name", TIMED)
def test_a_user_more_is_no_cliff(name: str) -> None:
    """H20's tokens took 1.7 times as long with 17 users as with 16."""
    spec = gpu(name)
    step = STEP_OF_FEW if spec.flops_per_s.get("fp16", inf) < FEW * spec.memory_bytes_per_s else STEP
    for rows in (1, 8, 15, 16, 31, 32, 63, 64):
        assert generated_s(name, rows + 1) < step * (rows + 1) / rows * generated_s(name, rows), rows
    for few, many in pairwise((1, 2, 4, 8, 16, 32, 64, 128)):
        assert generated_s(name, few) <= 1.001 * generated_s(name, many)
        assert generated_s(name, many) < SHARE * many / few * generated_s(name, few), many


@pytest.mark.parametrize("name", TIMED)
@pytest.mark.parametrize("method", ["full", "lora"])
def test_larger_batches_are_never_quicker_and_hardly_less_efficient(name: str, method: str) -> None:
    sizes = [seconds(name, method=method, micro_batch_size=batch, seq_len=1024) for batch in (1, 2, 3, 4, 8)]
    for (one, small), (other, large) in pairwise(zip((1, 2, 3, 4, 8), sizes, strict=True)):
        assert small <= 1.001 * large
        assert large < SHARE * other / one * small, other


@pytest.mark.parametrize("name", [name for name in TIMED if gpu(name).nvlink_bytes_per_s])
@pytest.mark.parametrize("rows", [1, 8])
def test_a_second_gpu_over_its_own_links_makes_tokens_quicker(name: str, rows: int) -> None:
    """MI300X's pairs have one link of seven: NCCL's rings left them little of what two memories gain."""
    asked = {"model": "llama-3-8b"}
    two = generated_s(name, rows, num_gpus=2, tensor_parallel=2, **asked)
    assert two < generated_s(name, rows, **asked)


@pytest.mark.parametrize("name", [name for name in TIMED if gpu(name).architecture in COMPILED])
@pytest.mark.parametrize("num_gpus", [1, 8])
def test_a_graph_of_a_compiler_waits_for_no_launches(name: str, num_gpus: int) -> None:
    fields = {"num_gpus": num_gpus, "sharding": "fsdp" if num_gpus > 1 else "none"}
    asked = {"model": "qwen3-0.6b", "gpu": name, "method": "lora", "micro_batch_size": 1, "seq_len": 128}
    found = predict(Run.from_fields({**asked, **fields}))
    assert found.host_bound_fraction == 0
    assert ("communication", "host waits") not in found.step_time_s.parts
