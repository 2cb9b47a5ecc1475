"""A load of requests: its rates and waits agree with the laws of queues, and with a batch's prediction."""

from itertools import pairwise
from typing import Any

import pytest

from finegauge.answers.estimate import served_answer
from finegauge.errors import FieldError, UnsupportedError
from finegauge.prediction.generation import cache_bytes
from finegauge.prediction.predictor import predict
from finegauge.prediction.serving import served_outcomes
from finegauge.prediction.sharding import share_of
from finegauge.profile import Profile
from finegauge.run.run import Run

NEW = 256


def run(**fields: Any) -> Run:
    stated = {"model": "llama-3-8b", "gpu": "H100-SXM5-80GB", "seq_len": 768, "max_new_tokens": NEW}
    return Run(**{"method": "full", "phase": "serve", "inference_engine": "vllm", **stated, **fields})


def served(**fields: Any) -> Profile:
    return predict(run(**fields))


def seen(profile: Profile) -> dict[str, Any]:
    return dict(profile.observations["serving"])


@pytest.mark.parametrize("users", [4, 64, 256])
def test_users_are_answered_as_fast_as_a_batch_of_them(users: int) -> None:
    load = served(micro_batch_size=users)
    batch = served_outcomes(predict(run(phase="decode", micro_batch_size=users)))
    found = served_outcomes(load)
    assert found["output_tokens_per_s"] == pytest.approx(batch["output_tokens_per_s"], rel=0.02)
    between_s = found["time_per_output_token_s"]  # beside prompts of others, which a batch has read before
    assert 0.99 * batch["time_per_output_token_s"] < between_s < 1.02 * users / found["output_tokens_per_s"]
    assert found["joules_per_token"] == pytest.approx(batch["joules_per_token"], rel=0.02)
    assert seen(load)["in_flight"] == pytest.approx(users, rel=0.1)


def test_the_laws_of_queues_hold() -> None:
    calm, busy = served(arrivals_per_s=2.0), served(arrivals_per_s=40.0, mean_new_tokens=100)
    assert seen(calm)["requests_per_s"] == pytest.approx(2.0, rel=0.1)
    for load in map(seen, (calm, busy)):
        assert load["in_flight"] == pytest.approx(load["requests_per_s"] * load["latency_s"]["mean"])
        assert load["ttft_s"]["p50"] <= load["ttft_s"]["p90"] <= load["ttft_s"]["p99"]
    assert seen(busy)["time_per_output_token_s"]["p50"] > seen(calm)["time_per_output_token_s"]["p50"]
    assert calm.step_time_s["waiting"] > 0.0


def test_a_burst_waits_for_its_turn() -> None:
    few = served(arrivals="burst", micro_batch_size=256, max_num_seqs=32)
    many = served(arrivals="burst", micro_batch_size=256)
    assert few.step_time_s.total > 1.5 * many.step_time_s.total
    assert seen(few)["ttft_s"]["p50"] > 3 * seen(many)["ttft_s"]["p50"]
    assert seen(few)["num_requests"] == 256


def test_replicas_share_the_requests() -> None:
    one, two = served(micro_batch_size=16), served(micro_batch_size=16, num_gpus=2)
    assert seen(two)["written_tokens_per_s"] == pytest.approx(2 * seen(one)["written_tokens_per_s"], rel=0.01)
    assert served_outcomes(two)["joules_per_token"] == pytest.approx(
        served_outcomes(one)["joules_per_token"], rel=0.01
    )


def test_what_cannot_be_served_is_said() -> None:
    with pytest.raises(UnsupportedError, match="inference_engine=hf is not"):
        predict(run(inference_engine="hf"))
    with pytest.raises(FieldError, match="need each other"):
        run(arrivals="poisson")
    with pytest.raises(FieldError, match="phase=decode"):
        run(phase="decode", arrivals="burst")


def test_the_estimate_says_what_users_wait_for() -> None:
    found = served_answer(served(arrivals_per_s=4.0))
    assert found is not None
    assert found.waits_s is not None
    assert found.ttft_s == found.waits_s["ttft_s"]["p50"] < found.waits_s["ttft_s"]["p99"]
    assert served_answer(predict(run(phase="evaluate", max_new_tokens=None))) is None


def test_latents_are_kept_once_for_all_heads_on_every_rank() -> None:
    stated = {"model": "deepseek-v3", "gpu": "H200-SXM-141GB", "num_gpus": 8, "phase": "decode"}
    share = share_of(run(**stated, tensor_parallel=8))
    one = cache_bytes(share.graph, 1.0, 1000.0, share.run)
    assert one == 1000 * 61 * (512 + 64) * 2  # DeepSeek-V3's report: 70 kB a token
    # vLLM 0.32 on a processor, four layers of such latents: 233,008 tokens in 1 GiB
    assert 2**30 / (one / 1000 * 4 / 61) // 16 * 16 == 233_008
    slow = run(**stated, tensor_parallel=8, inference_engine="hf")
    assert cache_bytes(share_of(slow).graph, 1.0, 1000.0, slow) > 7 * one


def test_stages_share_weights_and_cache_and_wait_for_each_other() -> None:
    stated: dict[str, Any] = {"model": "llama-3.1-70b", "num_gpus": 4, "micro_batch_size": 32}
    ranks, staged = (
        served(**stated, tensor_parallel=4),
        served(**stated, tensor_parallel=2, pipeline_parallel=2),
    )
    held = [one.device_memory_bytes["weights"] for one in (ranks, staged)]
    assert held[1] == pytest.approx(held[0], rel=0.03)
    between = [seen(one)["time_per_output_token_s"]["p50"] for one in (ranks, staged)]
    assert 1.15 * between[0] < between[1] < 2.0 * between[0]  # every part reads all weights of its stage
    alone: dict[str, Any] = {"model": "llama-3.1-70b", "gpu": "H200-SXM-141GB", "tensor_parallel": 2}
    pair = (served(**alone, num_gpus=2), served(**alone, num_gpus=4, pipeline_parallel=2))
    slower = [seen(one)["time_per_output_token_s"]["p50"] for one in pair]
    assert slower[0] < slower[1] < 1.05 * slower[0]  # one request finds one stage at work
    with pytest.raises(UnsupportedError, match="context_parallel=2 is not predicted"):
        served(**stated, tensor_parallel=2, context_parallel=2)


def test_an_engine_starts_with_room_for_its_longest_request() -> None:
    small = {"gpu": "RTX 4090", "micro_batch_size": 4}
    assert served(**small).outcome == "completed"
    long = served(**small, max_model_len=131_072)  # vLLM: larger than the tokens that the cache can store
    assert long.outcome == "out_of_memory"
    assert long.device_memory_bytes["KV cache"] == pytest.approx(131_072 * 131_072)


def rate(**fields: Any) -> float:
    return float(seen(served(**fields))["written_tokens_per_s"])


def test_a_prompt_longer_than_a_step_is_read_in_parts_beside_answers() -> None:
    """Twice the prompt leaves a third to half of the rate; one at a time it was an eighth."""
    rates = [rate(seq_len=seq_len, micro_batch_size=32) for seq_len in (4096, 8192, 16384, 32768)]
    for shorter, longer in pairwise(rates):
        assert 0.33 < longer / shorter < 0.67
    burst = served(seq_len=32768, micro_batch_size=8, arrivals="burst")
    assert seen(burst)["in_flight"] > 4


def test_a_full_cache_makes_the_youngest_wait_or_nobody_come() -> None:
    """vLLM takes whoever's prompt has room; TGI keeps room for the longest answer, of which most are not."""
    stated: dict[str, Any] = {"gpu": "RTX 4090", "seq_len": 4096, "max_new_tokens": 2048}
    stated |= {"micro_batch_size": 64, "gpu_memory_utilization": 0.9}
    short: dict[str, Any] = {**stated, "mean_new_tokens": 700}
    by_vllm, by_tgi = served(**short), served(**short, inference_engine="tgi")
    assert seen(by_vllm)["num_preemptions"] > 0 == seen(by_tgi)["num_preemptions"]
    assert rate(**short) > 1.1 * seen(by_tgi)["written_tokens_per_s"]
    long = seen(served(**stated))  # all come to their longest: more are cut short
    assert long["num_preemptions"] > seen(by_vllm)["num_preemptions"]
    assert seen(served(**{**stated, "micro_batch_size": 2}))["num_preemptions"] == 0
    waits = long["time_per_output_token_s"]  # of whom is not, and of whom is cut short
    assert waits["p90"] > 1.3 * waits["p50"]


def test_the_room_for_keys_is_there_before_anybody_asks() -> None:
    few, many = (served(micro_batch_size=users).device_memory_bytes["KV cache"] for users in (1, 256))
    assert few == many
    assert served(max_num_batched_tokens=2048).device_memory_bytes["KV cache"] > few


def test_experts_in_blocks_of_fp8_are_read_as_they_are_asked_for() -> None:
    """One user asks 8 of 128 experts; on ranks with experts of their own all were read (ML.ENERGY)."""
    stated: dict[str, Any] = {"model": "qwen3-30b-a3b", "micro_batch_size": 1}
    for gpu, most in (("A100-SXM4-80GB", 1.0), ("H100", 1.4)):
        wide, narrow = (
            seen(served(**stated, gpu=gpu, weights_dtype=dtype))["time_per_output_token_s"]["p50"]
            for dtype in ("bf16", "fp8")
        )
        assert 0.5 * wide < narrow < most * wide


@pytest.mark.parametrize("model", ["llama-3-8b", "llama-3-70b"])
def test_no_rate_falls_off_a_cliff(model: str) -> None:
    """Newer GPUs are quicker, users and GPUs add to the rate by less than their number."""
    fields: dict[str, Any] = {"model": model, "micro_batch_size": 32, "num_gpus": 4, "tensor_parallel": 4}
    by_gpu = {name: rate(**{**fields, "gpu": name}) for name in ("A100-SXM4-80GB", "H100", "H200", "B200")}
    assert [*by_gpu.values()] == sorted(by_gpu.values())
    assert by_gpu["A100-SXM4-80GB"] < rate(**{**fields, "gpu": "MI300X"}) < by_gpu["B200"]
    for name in ("H200", "B200"):
        several = [rate(**{**fields, "gpu": name, "num_gpus": n, "tensor_parallel": n}) for n in (2, 4, 8)]
        assert all(0.9 < more / fewer < 2.0 for fewer, more in pairwise(several))
    by_users = [rate(**{**fields, "gpu": "H200", "micro_batch_size": n}) for n in (1, 4, 16, 64, 256)]
    assert all(1.0 < more / fewer < 4.0 for fewer, more in pairwise(by_users))
    full = [
        rate(**{**fields, "gpu": "A100", "num_gpus": 2, "tensor_parallel": 2, "micro_batch_size": n})
        for n in (16, 64, 256)
    ]
    assert all(more > 0.98 * fewer for fewer, more in pairwise(full))  # places are taken: who comes waits
    narrow = [rate(**{**fields, "gpu": "H200", "weights_dtype": dtype}) for dtype in ("bf16", "fp8", "awq")]
    assert all(narrow[0] < one < 4.0 * narrow[0] for one in narrow[1:])
