"""What an engine made for serving takes of a GPU, and how many sequences run in it at once."""

from typing import Any

import pytest

from finegauge.prediction.predictor import predict
from finegauge.prediction.uncertainty import probability_out_of_memory
from finegauge.profile import Profile
from finegauge.run.run import Run
from finegauge.units import GIB


def predicted(**fields: Any) -> Profile:
    stated = {"model": "llama-3-8b", "gpu": "H100-SXM5-80GB", "seq_len": 1024, "micro_batch_size": 32}
    return predict(
        Run(**{"method": "full", "phase": "decode", "inference_engine": "vllm", **stated, **fields})
    )


def test_the_framework_is_the_engine_where_it_is_one() -> None:
    named = Run(model="llama-3-8b", method="full", phase="decode", framework="vLLM 0.11")
    assert named.inference_engine == "vllm"
    assert Run(model="llama-3-8b", method="full", framework="TRL").inference_engine == "hf"


def test_an_engine_takes_the_share_of_memory_that_it_is_told() -> None:
    half, most = predicted(gpu_memory_utilization=0.5), predicted(gpu_memory_utilization=0.9)
    for found, share in ((half, 0.5), (most, 0.9)):
        assert found.capacity_bytes == pytest.approx(share * 79.2 * GIB, rel=0.01)
        assert 0 <= found.capacity_bytes - found.device_memory_bytes.total < 0.01 * GIB
        assert (found.outcome, probability_out_of_memory(found)) == ("completed", 0.0)
    assert most.peak_memory_bytes["weights"] == half.peak_memory_bytes["weights"]
    assert most.peak_memory_bytes["KV cache"] > half.peak_memory_bytes["KV cache"] > 15 * GIB


def test_an_engine_without_room_for_one_sequence_does_not_start() -> None:
    found = predicted(gpu_memory_utilization=0.2)
    assert (found.outcome, probability_out_of_memory(found)) == ("out_of_memory", 1.0)


def test_sequences_beyond_the_limit_wait() -> None:
    all_at_once, limited = predicted(micro_batch_size=64), predicted(micro_batch_size=64, max_num_seqs=16)
    sixteen = predicted(micro_batch_size=16)
    assert limited.step_time_s["decode"] == pytest.approx(4 * sixteen.step_time_s["decode"])
    assert all_at_once.step_time_s["decode"] < limited.step_time_s["decode"]


def test_a_narrow_cache_is_read_faster_and_lets_more_sequences_in() -> None:
    many = {"micro_batch_size": 2048, "max_num_seqs": 2048}
    wide, narrow = predicted(**many), predicted(**many, kv_cache_dtype="fp8")
    read = [one.step_time_s.under("decode").under("attention")["KV cache"] for one in (wide, narrow)]
    assert read[1] == pytest.approx(read[0] / 2, rel=0.02)
    assert narrow.step_time_s["decode"] < 0.9 * wide.step_time_s["decode"]  # weights are read less often


# Steps of vLLM on H100 (ML.ENERGY Benchmark v3, lm-arena-chat and gpqa, read 2026-11-22): model, GPUs,
# format, sequences at once, tokens of prompt and answer; median milliseconds between tokens, tokens/s,
# watts of a GPU
MEASURED = (
    ("qwen3-8b", 1, "bf16", 8, 256, 647, 8.20, 962, 427),
    ("qwen3-8b", 1, "bf16", 128, 256, 641, 20.7, 5930, 573),
    ("qwen3-8b", 1, "bf16", 32, 250, 8170, 16.9, 1917, 608),
    ("qwen3-32b", 2, "bf16", 64, 256, 635, 22.4, 2654, 487),
    ("gemma-3-27b-it", 1, "bf16", 32, 256, 714, 28.3, 1088, 571),
    ("qwen3-30b-a3b", 1, "bf16", 32, 256, 922, 22.6, 1394, 468),
    ("qwen3-235b-a22b", 8, "bf16", 128, 256, 863, 46.6, 2626, 488),
    ("qwen3-235b-a22b", 8, "fp8", 128, 256, 879, 42.1, 2840, 484),
    ("gpt-oss-120b", 1, "mxfp4", 32, 250, 1758, 18.0, 1745, 656),
    ("gpt-oss-20b", 1, "mxfp4", 1024, 250, 2102, 65.8, 13226, 591),
)


@pytest.mark.parametrize("row", MEASURED, ids=lambda row: f"{row[0]}-{row[2]}-{row[3]}")
def test_steps_that_others_measured(row: tuple[Any, ...]) -> None:
    model, gpus, dtype, rows, prompt, new, between_ms, tokens_per_s, watts = row
    experts = gpus if gpus > 1 and "-a" in model else 1
    found = predicted(
        model=model, weights_dtype=dtype, micro_batch_size=rows, max_num_seqs=rows, seq_len=prompt + new,
        max_new_tokens=new, num_gpus=gpus, tensor_parallel=gpus, expert_parallel=experts,
    )  # fmt: skip
    assert found.outcome == "completed"
    assert 1e3 * found.step_time_s["decode"] / (new - 1) == pytest.approx(between_ms, rel=0.15)
    assert rows * new / found.step_time_s.total == pytest.approx(tokens_per_s, rel=0.15)
    assert found.step_energy_j.total / found.step_time_s.total / gpus == pytest.approx(watts, rel=0.3)


def test_a_token_reads_weights_as_they_are_stored() -> None:
    fields = {"model": "llama-3-70b", "num_gpus": 4, "tensor_parallel": 4, "micro_batch_size": 8}
    seconds = {
        dtype: predicted(weights_dtype=dtype, **fields).step_time_s["decode"]
        for dtype in ("bf16", "fp8", "awq")
    }
    assert seconds["awq"] < seconds["fp8"] < seconds["bf16"]


def test_top_p_sorts_the_words() -> None:
    plain, sorted_ = (predicted(truncated_sampling=asked) for asked in (False, True))
    paths = [one.step_time_s.under("decode").under("head").parts["sampling",] for one in (plain, sorted_)]
    assert paths[1] > 10 * paths[0]


def test_an_engine_of_its_time_launched_every_kernel() -> None:
    of_2023 = predicted(framework="vLLM", framework_version="0.2.1", micro_batch_size=1)
    today = predicted(framework="vLLM", micro_batch_size=1)
    assert of_2023.step_time_s["decode"] > 1.15 * today.step_time_s["decode"]


def test_ranks_may_outnumber_the_heads_of_keys() -> None:
    eight = {"num_gpus": 8, "tensor_parallel": 8}
    assert predicted(model="qwen3-235b-a22b", weights_dtype="fp8", **eight).outcome == "completed"


def test_what_is_cached_already_is_not_read_again() -> None:
    fields = {"seq_len": 4096, "max_new_tokens": 64}
    all_read, half = predicted(**fields), predicted(prefix_cached_fraction=0.5, **fields)
    assert half.step_time_s["prefill"] == pytest.approx(all_read.step_time_s["prefill"] / 2, rel=0.2)
    assert half.step_time_s["decode"] == pytest.approx(all_read.step_time_s["decode"])


def test_drafts_that_are_right_save_steps_where_few_are_served() -> None:
    def seconds(rows: int, **fields: Any) -> float:
        return predicted(micro_batch_size=rows, **fields).step_time_s["decode"]

    drafted = {"speculative_tokens": 3}
    right, wrong = (drafted | {"speculative_accepted_fraction": share} for share in (0.9, 0.0))
    assert 0.3 < seconds(1, **right) / seconds(1) < 0.6
    assert seconds(1, **wrong) > seconds(1)
    assert seconds(256, **right) / seconds(256) > seconds(1, **right) / seconds(1)
