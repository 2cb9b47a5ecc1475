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
    assert narrow.step_time_s["decode"] < 0.7 * wide.step_time_s["decode"]  # weights are read less often
