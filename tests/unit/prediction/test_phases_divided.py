"""Phases beyond supervised fine-tuning on several GPUs: what each model's share is, what judging sends."""

from typing import Any

import pytest

from finegauge.prediction.collectives import collectives, exchanges
from finegauge.prediction.explanation import formulas
from finegauge.prediction.generation import cache_bytes
from finegauge.prediction.predictor import predict
from finegauge.prediction.sharding import share_of
from finegauge.profile import Profile
from finegauge.run.run import Run

GPUS, NEW = 4, 32
WRITTEN: dict[str, dict[str, Any]] = {
    "ppo": {"max_new_tokens": NEW},
    "grpo": {"max_new_tokens": NEW, "num_generations": 2},
    "decode": {"max_new_tokens": NEW},
}
SHARDING = ("none", "zero1", "zero2", "zero3", "fsdp", "fsdp_shard_grad_op", "hybrid")
GATHERING = ("zero3", "fsdp", "fsdp_shard_grad_op", "hybrid")


def run(phase: str, **fields: Any) -> Run:
    stated = {"model": "llama-2-7b", "method": "full", "gpu": "H200", "seq_len": 128, "micro_batch_size": 2}
    return Run(**{**stated, "num_gpus": GPUS, **WRITTEN.get(phase, {}), **fields}, phase=phase)


def predicted(phase: str, **fields: Any) -> Profile:
    return predict(run(phase, **fields))


def gathered_bytes(asked: Run) -> float:
    """Return what the ranks gather of weights in a step."""
    return sum(v.bytes_per_step for v in exchanges(asked) if v.kind == "all_gather")


@pytest.mark.parametrize("method", ["full", "lora"])
@pytest.mark.parametrize("phase", ["reward", "dpo", "ppo", "grpo", "evaluate", "prefill", "decode"])
@pytest.mark.parametrize("sharding", SHARDING)
def test_every_phase_is_predicted_however_it_is_sharded(phase: str, method: str, sharding: str) -> None:
    asked = run(phase, method=method, sharding=sharding)
    profile, lines = predict(asked), formulas(asked)
    for path in (*profile.device_memory_bytes.parts, *profile.step_time_s.at(1).parts):
        assert path in lines or path[:1] in lines, path
    assert all(value > 0 for value in profile.step_time_s.parts.values())
    assert all(value >= 0 for held in profile.phase_memory_bytes.parts.items() for value in held[1:])


@pytest.mark.parametrize("sharding", SHARDING)
def test_frozen_models_are_divided_where_trained_ones_are(sharding: str) -> None:
    held = predicted("ppo", sharding=sharding).peak_memory_bytes.parts
    whole = predicted("ppo", sharding="zero1").peak_memory_bytes.parts["weights", "reference"]
    part = whole / GPUS if sharding in GATHERING else whole
    for name in ("model", "reference", "reward model", "value model"):
        assert held["weights", name] == pytest.approx(part, rel=0.03)


def test_states_of_policy_and_value_model_are_divided() -> None:
    one, four = (predicted("ppo", sharding="zero2", num_gpus=n).peak_memory_bytes.parts for n in (1, GPUS))
    for name in ("states", "value model"):
        assert four["optimizer", name] == pytest.approx(one["optimizer", name] / GPUS)


def test_replicas_send_their_updates_alone() -> None:
    assert {v.kind for v in exchanges(run("ppo", sharding="none"))} == {"all_reduce"}
    for phase in ("evaluate", "decode"):
        assert not exchanges(run(phase, sharding="none"))
        assert "communication" not in str(predicted(phase, sharding="none").step_time_s.parts)


def test_zero3_gathers_every_judge_and_every_token() -> None:
    asked = run("ppo", sharding="zero3", model="opt-350m", gpu="A100-SXM4-80GB")
    policy, value = (share_of(asked.replace(phase=phase, max_new_tokens=None)) for phase in ("sft", "reward"))
    weights = [share.whole.weights.base_bytes for share in (policy, value)]
    judged = 2 * weights[0] + 2 * weights[1]  # policy and reference, value and reward model
    # a policy below 1e9 elements is kept until its backward pass, a value model that judged first never
    trained = asked.ppo_epochs * (weights[0] + 2 * weights[1])
    assert gathered_bytes(asked) == pytest.approx(judged + trained + NEW * weights[0], rel=1e-9)


def test_a_policy_that_first_judges_what_it_wrote_past_the_hooks_is_gathered_again_backward_too() -> None:
    fields = {"sharding": "zero3", "model": "opt-350m", "gpu": "A100-SXM4-80GB", "ppo_epochs": 4}
    by_chat = run("ppo", **fields, framework="DeepSpeed-Chat")
    weights = share_of(by_chat.replace(phase="sft", max_new_tokens=None)).whole.weights.base_bytes
    more = gathered_bytes(by_chat) - gathered_bytes(by_chat.replace(framework=""))
    assert more == pytest.approx((4 - (NEW - 1)) * weights, rel=1e-9)


def test_fsdp_gathers_its_outermost_unit_once_per_pass_or_batch_of_answers() -> None:
    asked = run("grpo", sharding="fsdp")
    share = share_of(asked)
    layers = share.graph.model.num_layers * share.layer_bytes
    passes = 1 + NEW + 2  # the reference, every token, forward and backward
    assert gathered_bytes(asked) == pytest.approx(passes * layers + 3 * share.outer_bytes, rel=1e-9)


def test_weights_that_are_not_let_go_are_gathered_once_per_batch_of_answers() -> None:
    asked = run("grpo", sharding="fsdp_shard_grad_op")
    whole = share_of(asked).whole.weights.base_bytes
    assert gathered_bytes(asked) == pytest.approx(3 * whole, rel=1e-9)  # to write, to judge, to train
    assert gathered_bytes(run("decode", sharding="fsdp_shard_grad_op")) == pytest.approx(whole, rel=1e-9)
    held = predicted("grpo", sharding="fsdp_shard_grad_op").phase_memory_bytes.under("generation")
    assert held.parts["workspace", "gathered weights"] == pytest.approx(whole, rel=1e-9)


def test_a_framework_that_gathers_to_write_does_so_once() -> None:
    plain, trl = (run("grpo", sharding="zero3", framework=name) for name in ("", "trl 0.24"))
    weights = share_of(plain).whole.weights.base_bytes
    assert gathered_bytes(plain) - gathered_bytes(trl) == pytest.approx((NEW - 1) * weights, rel=1e-9)
    generation = [predict(asked).phase_memory_bytes.under("generation") for asked in (plain, trl)]
    assert generation[1].parts["workspace", "gathered weights"] == pytest.approx(weights)
    assert generation[0].parts["workspace", "gathered weights"] < 0.1 * weights
    assert predict(trl).step_time_s["generation"] < predict(plain).step_time_s["generation"]


@pytest.mark.parametrize("framework", ["", "vllm", "transformers"])
def test_tensor_parallel_ranks_add_up_every_branch_of_every_token(framework: str) -> None:
    asked = run("decode", tensor_parallel=GPUS, framework=framework, weights_dtype="bf16")
    found = {one.kind: 0.0 for one in collectives(asked)}
    for one in collectives(asked):
        found[one.kind] += one.num_per_step(1) * one.payload_bytes
    read, rows = asked.seq_len - NEW, asked.micro_batch_size
    tokens = rows * (read + NEW - 1)
    assert found["all_reduce"] == tokens * 4096 * 2 * (2 * 32 + 1)  # two branches, and the embedding
    assert found["all_gather"] == rows * NEW * 32_000 * 2


def test_tensor_parallel_serving_divides_weights_and_cache() -> None:
    one, four = (predicted("decode", num_gpus=n, tensor_parallel=n) for n in (1, GPUS))
    assert four.peak_memory_bytes["weights"] == pytest.approx(
        one.peak_memory_bytes["weights"] / GPUS, rel=0.01
    )
    cached = [profile.phase_memory_bytes.under("decode")["KV cache"] for profile in (one, four)]
    assert cached[1] == pytest.approx(cached[0] / GPUS)
    assert four.step_tokens == one.step_tokens
    assert four.step_flops == pytest.approx(one.step_flops)


def test_an_engine_is_bound_by_memory_where_transformers_are_by_their_host() -> None:
    eager, engine = (
        [predicted("decode", num_gpus=n, tensor_parallel=n, framework=name) for n in (1, GPUS)]
        for name in ("transformers", "vLLM 0.11")
    )
    assert eager[1].step_time_s["decode"] > 0.95 * eager[0].step_time_s["decode"]
    assert engine[1].step_time_s["decode"] < 0.85 * engine[0].step_time_s["decode"]
    weights_read_s = (NEW - 1) * 2 * 6.6e9 / 4.8e12
    assert weights_read_s < engine[0].step_time_s["decode"] < 2 * weights_read_s


def test_what_ranks_wait_for_stands_in_the_stage_that_waits() -> None:
    one, four = (
        predicted("decode", num_gpus=n, tensor_parallel=n, micro_batch_size=16, seq_len=2048)
        for n in (1, GPUS)
    )
    assert four.step_time_s.under("prefill")["communication"] > 0
    assert four.step_energy_j["communication"] > 0 == one.step_energy_j["communication"]


def test_a_rank_has_a_head_at_least() -> None:
    alone = run("decode", model="llama-3-8b", num_gpus=8)
    graph, eight = share_of(alone).graph, alone.replace(tensor_parallel=8)
    assert cache_bytes(graph, 1, 1, eight) == cache_bytes(graph, 1, 1, alone) / 8


def test_judging_waits_for_the_rank_with_the_longest_sequences() -> None:
    padded = {"dataset": "commonsense_15k", "sharding": "fsdp"}
    scoring = predicted("dpo", **padded).step_time_s.under("scoring")
    assert scoring.parts["communication", "waits for the slowest rank"] > 0
    same = predicted("dpo", sharding="fsdp").step_time_s.under("scoring").parts
    assert ("communication", "waits for the slowest rank") not in same
