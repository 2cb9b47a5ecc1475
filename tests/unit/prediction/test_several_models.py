"""Steps of several models: who is in memory, how often each trains, and DeepSpeed's hybrid engine."""

from typing import Any

import pytest

from finegauge.errors import FieldError
from finegauge.model.graph import build, step_flops
from finegauge.model.op import Extents
from finegauge.prediction.collectives import exchanges
from finegauge.prediction.explanation import formulas
from finegauge.prediction.moments import moments_of
from finegauge.prediction.predictor import predict
from finegauge.profile import Profile
from finegauge.run.run import Run

GPUS = 4


def run(**fields: Any) -> Run:
    stated = {"model": "opt-1.3b", "method": "full", "phase": "ppo", "gpu": "A100-SXM4-80GB", "seq_len": 512}
    return Run(**{**stated, "micro_batch_size": 4, "max_new_tokens": 64, **fields})


def predicted(**fields: Any) -> Profile:
    return predict(run(**fields))


def by_chat(**fields: Any) -> Profile:
    stated = {"framework": "DeepSpeed-Chat", "num_gpus": GPUS, "sharding": "zero3", "method": "lora"}
    return predicted(**{**stated, **fields})


def test_critic_and_reward_model_are_as_large_as_they_are_named() -> None:
    alike, small = predicted(), predicted(critic_model="opt-350m")
    other = predicted(critic_model="opt-350m", reward_model="opt-1.3b")
    weights = build(run(phase="reward", model="opt-350m", max_new_tokens=None)).weights
    held, others = small.peak_memory_bytes.parts, other.peak_memory_bytes.parts
    assert held["weights", "value model"] == held["weights", "reward model"] == weights.base_bytes
    assert held["optimizer", "value model"] == weights.optimizer_bytes
    assert others["weights", "value model"] == weights.base_bytes
    assert others["weights", "reward model"] == alike.peak_memory_bytes.parts["weights", "reward model"]
    assert small.step_time_s["backward"] < 0.7 * alike.step_time_s["backward"]
    assert small.step_time_s["scoring"] < other.step_time_s["scoring"] < alike.step_time_s["scoring"]


def test_a_rule_that_judges_holds_nothing() -> None:
    judged, ruled = predicted(), predicted(reward_model="none")
    assert ("weights", "reward model") not in ruled.peak_memory_bytes.parts
    assert ("weights", "value model") in ruled.peak_memory_bytes.parts
    assert ruled.step_time_s["scoring"] < judged.step_time_s["scoring"]


def test_a_critic_has_a_stage_of_its_own() -> None:
    alike, whole = by_chat(critic_model="opt-1.3b"), by_chat(critic_model="opt-1.3b", critic_sharding="none")
    second = by_chat(critic_model="opt-1.3b", critic_sharding="zero2")
    held, divided, states = (one.peak_memory_bytes.parts for one in (whole, alike, second))
    for name in ("value model", "reward model"):
        assert held["weights", name] == pytest.approx(GPUS * divided["weights", name], rel=1e-3)
        assert states["weights", name] == held["weights", name]
    assert held["optimizer", "value model"] == pytest.approx(
        GPUS * divided["optimizer", "value model"], rel=1e-3
    )
    assert states["optimizer", "value model"] == pytest.approx(divided["optimizer", "value model"], rel=1e-3)
    assert held["weights", "model"] == divided["weights", "model"]
    assert whole.step_time_s["scoring"] < alike.step_time_s["scoring"]  # nothing is gathered


def test_an_offloaded_critic_lies_where_its_stage_puts_it() -> None:
    offloaded = {"critic_model": "opt-1.3b", "cpu_offload": "all"}
    second, zeroth = (by_chat(**offloaded, critic_sharding=stage) for stage in ("zero2", "none"))
    assert second.peak_memory_bytes.parts["weights", "value model"] > 0
    assert not second.peak_memory_bytes.parts.get(("optimizer", "value model"))
    assert zeroth.peak_memory_bytes.parts["optimizer", "value model"] > 0


@pytest.mark.parametrize(("sharding", "critic"), [("fsdp", "zero2"), ("none", "zero3"), ("zero2", "fsdp")])
def test_only_stages_of_zero_are_mixed(sharding: str, critic: str) -> None:
    with pytest.raises(FieldError, match=f"critic_sharding={critic} beside sharding={sharding}"):
        run(num_gpus=2, sharding=sharding, critic_sharding=critic)


def test_a_rollout_is_learnt_from_as_often_as_asked() -> None:
    once, often = predicted(ppo_epochs=1), predicted(ppo_epochs=3)
    assert often.step_time_s["forward"] == pytest.approx(3 * once.step_time_s["forward"])
    assert often.step_time_s["optimizer"] == pytest.approx(3 * once.step_time_s["optimizer"])
    assert often.step_time_s["scoring"] == once.step_time_s["scoring"]
    assert often.step_sequences == once.step_sequences == 4
    assert often.peak_memory_bytes.total == once.peak_memory_bytes.total


@pytest.mark.parametrize("phase", ["ppo", "grpo"])
def test_mini_batches_are_generated_together_and_learnt_one_by_one(phase: str) -> None:
    fields = {"phase": phase, "ppo_epochs": 1, "num_generations": 4}
    one, two = predicted(**fields, old_log_probs=True), predicted(**fields, num_mini_batches=2)
    assert two.step_sequences == 2 * one.step_sequences
    for stage in ("forward", "optimizer", "scoring"):
        assert two.step_time_s[stage] == pytest.approx(2 * one.step_time_s[stage])
    assert two.step_time_s["generation"] < 1.5 * one.step_time_s["generation"]
    extents = Extents.of(4, 512)
    graph = build(run(**fields))
    assert step_flops(run(**fields, num_mini_batches=2), graph, extents) == pytest.approx(
        2 * step_flops(run(**fields, old_log_probs=True), graph, extents)
    )


def test_gradients_are_sent_once_an_update_and_weights_gathered_every_pass() -> None:
    sent = {}
    for epochs, batches in ((1, 1), (2, 3)):
        asked = run(num_gpus=GPUS, ppo_epochs=epochs, num_mini_batches=batches, gradient_accumulation_steps=2)
        (only,) = exchanges(asked)
        sent[epochs * batches] = only.bytes_per_step
    assert sent[6] == pytest.approx(6 * sent[1])


def test_answers_that_are_generated_in_parts_take_longer_and_less_memory() -> None:
    whole, parts = predicted(micro_batch_size=32), predicted(micro_batch_size=32, generation_batch_size=8)
    assert parts.step_time_s["generation"] > 3 * whole.step_time_s["generation"] / 2
    assert parts.phase_memory_bytes["generation"] < whole.phase_memory_bytes["generation"]
    assert parts.step_tokens == whole.step_tokens


def test_a_reference_is_a_copy_the_policy_itself_or_none() -> None:
    own, copy, none = (predicted(method="lora", reference_model=kind) for kind in ("policy", "copy", "none"))
    path = ("weights", "reference")
    assert path not in own.peak_memory_bytes.parts
    assert copy.peak_memory_bytes.parts[path] == copy.peak_memory_bytes.parts["weights", "model"]
    assert none.step_time_s["scoring"] < own.step_time_s["scoring"]
    small = predicted(phase="dpo", max_new_tokens=None, reference_model="opt-350m")
    assert small.peak_memory_bytes.parts[path] == build(run(model="opt-350m")).weights.base_bytes
    assert run(method="lora", framework="DeepSpeed-Chat").reference_model == "copy"


def test_a_reference_on_the_host_comes_for_every_pass() -> None:
    here, away = (by_chat(reference_offload=away, offload_pinned=True) for away in (False, True))
    host = {moment.moment: moment.host_breakdown_bytes.parts for moment in moments_of(away)}
    assert away.peak_memory_bytes.parts.get(("weights", "reference"), 0.0) == 0.0
    assert away.peak_memory_bytes.total < here.peak_memory_bytes.total
    assert away.step_time_s["scoring"] >= here.step_time_s["scoring"] * (1 - 1e-12)
    assert host["train"]["offloaded", "reference"] > 0


def test_a_moving_average_is_a_copy_that_is_updated() -> None:
    without, averaged = predicted(), predicted(ema=True)
    more = averaged.peak_memory_bytes.total - without.peak_memory_bytes.total
    assert more == averaged.peak_memory_bytes.parts["weights", "moving average"]
    assert averaged.step_time_s["optimizer"] > without.step_time_s["optimizer"]


def test_merged_adapters_cost_nothing_while_answers_are_generated() -> None:
    apart, merged = (predicted(method="lora", fuse_lora=fused) for fused in (False, True))
    adapters = apart.step_time_s.under("generation").under("attention")["adapters"]
    assert merged.step_time_s["generation"] < 0.8 * apart.step_time_s["generation"]
    assert merged.step_time_s.under("generation")["adapters"] > 0 <= adapters
    assert merged.step_time_s["forward"] == apart.step_time_s["forward"]


def test_the_hybrid_engine_divides_what_zero3_gathers() -> None:
    whole, divided = by_chat(), by_chat(rollout_tensor_parallel=GPUS)
    gathered = ("workspace", "gathered weights")
    parts = [one.phase_memory_bytes.under("generation").under("workspace") for one in (whole, divided)]
    assert parts[1]["gathered weights"] < 0.4 * parts[0]["gathered weights"]
    assert divided.phase_memory_bytes.under("gathering").under("workspace")["layers to be divided"] > 0
    assert gathered in divided.phase_memory_bytes.under("gathering").parts
    groups = [by_chat(rollout_tensor_parallel=GPUS, gathered_layers=n).phase_memory_bytes for n in (2, 8)]
    assert groups[0]["gathering"] < groups[1]["gathering"]
    sent = {(one.kind, one.group) for one in exchanges(divided.run)}
    assert ("all_reduce", "tensor") in sent


def test_the_hybrid_engine_keeps_its_workspace_unless_it_is_released() -> None:
    kept, released = by_chat(), by_chat(rollout_sleep=2)
    held = kept.phase_memory_bytes.under("forward")
    assert held["KV cache"] > 0 == released.phase_memory_bytes.under("forward")["KV cache"]
    cache = 4 * 512 * 24 * 2 * 2048 * 2  # rows x tokens x layers x keys and values x width x fp16
    assert held["KV cache"] == cache
    plain = by_chat(inference_engine="hf")
    assert kept.step_time_s["generation"] < plain.step_time_s["generation"]


def test_weights_that_are_not_gathered_once_are_gathered_for_every_token() -> None:
    pinned, unpinned = by_chat(), by_chat(gather_for_generation=False)
    assert unpinned.step_time_s["generation"] > pinned.step_time_s["generation"]
    assert unpinned.phase_memory_bytes["generation"] < pinned.phase_memory_bytes["generation"]


def test_every_line_has_its_formula() -> None:
    profile = by_chat(rollout_tensor_parallel=2, ema=True, critic_model="opt-350m")
    lines = formulas(profile.run)
    for path in (*profile.device_memory_bytes.parts, *profile.step_time_s.at(1).parts):
        assert path in lines or path[:1] in lines, path


def test_an_engine_divides_gathered_weights_alone() -> None:
    with pytest.raises(FieldError, match="rollout_tensor_parallel=2: DeepSpeed's engine"):
        run(framework="DeepSpeed-Chat", num_gpus=2, sharding="zero2", rollout_tensor_parallel=2)
