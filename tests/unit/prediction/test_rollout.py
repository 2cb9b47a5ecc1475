"""The rollout engine: what it holds at every moment, how its answers share it, and how a step adds up."""

from itertools import pairwise
from typing import Any

import pytest

from finegauge.errors import UnsupportedError
from finegauge.planning.capacity import safe_memory_utilization
from finegauge.planning.estimate import estimate
from finegauge.planning.whatif import ALREADY, switch_named
from finegauge.prediction.predictor import predict
from finegauge.prediction.rollout import EngineClock, engine_of
from finegauge.prediction.uncertainty import is_safe
from finegauge.profile import Profile
from finegauge.run.run import Run
from finegauge.units import GIB


def run(**changes: Any) -> Run:
    """Return GRPO of a small model with vLLM beside it."""
    fields: dict[str, Any] = {
        "model": "qwen2.5-1.5b", "method": "full", "phase": "grpo", "gpu": "h100", "seq_len": 1024,
        "max_new_tokens": 768, "num_generations": 8, "micro_batch_size": 8, "gradient_accumulation_steps": 4,
        "inference_engine": "vllm", "gpu_memory_utilization": 0.3, "activation_checkpointing": "full",
    }  # fmt: skip
    return Run(**fields | changes)


def engine_bytes(profile: Profile) -> dict[str, float]:
    """Return what the engine holds in each phase of a step."""
    phases = profile.phase_memory_bytes
    return {name: phases.under(name)["engine"] for (name, *_) in phases.at(1).parts}


def test_the_engine_takes_its_share_of_the_gpu_at_every_moment() -> None:
    """Weights, activations and cache together are what gpu_memory_utilization says."""
    profile = predict(run())
    held = engine_bytes(profile)
    assert set(held) >= {"generation", "scoring", "forward", "backward", "optimizer"}
    for value in held.values():
        assert value == pytest.approx(0.3 * profile.capacity_bytes, rel=1e-3)


def test_an_engine_that_sleeps_leaves_its_memory_to_the_trainer() -> None:
    """At sleep levels 1 and 2 it holds its share while it generates alone."""
    asleep = predict(run(rollout_sleep=2))
    held = engine_bytes(asleep)
    assert held.pop("generation") == pytest.approx(0.3 * asleep.capacity_bytes, rel=1e-3)
    assert not any(held.values())
    assert asleep.peak_memory_bytes.total < predict(run()).peak_memory_bytes.total


def test_weights_that_wait_on_the_host_cost_time_and_give_memory_while_answers_are_generated() -> None:
    """What the trainer parks is gone in generation alone, and moves twice."""
    here, parked = predict(run(rollout_sleep=1)), predict(run(rollout_sleep=1, rollout_offload="all"))
    generation = parked.phase_memory_bytes.under("generation")
    assert not generation["weights"]
    assert not generation["optimizer"]
    assert parked.phase_memory_bytes.under("backward") == here.phase_memory_bytes.under("backward")
    assert parked.step_time_s["sync"] > here.step_time_s["sync"]


def test_gpus_of_its_own_take_the_engine_off_the_trainer() -> None:
    """The trainer then holds nothing of it; the answers of a step are dealt to its replicas."""
    apart = predict(run(rollout_gpus=2, rollout_tensor_parallel=2))
    assert not any(engine_bytes(apart).values())
    assert engine_of(run(rollout_gpus=2, rollout_tensor_parallel=2)).replicas == 1
    assert apart.run.all_gpus == 3


def test_off_policy_steps_take_the_longer_of_generation_and_training() -> None:
    """In turn, both add up; ahead by a step, what is shorter hides."""
    turn, ahead = predict(run(rollout_gpus=1)), predict(run(rollout_gpus=1, off_policy_steps=1))
    sync, writing = turn.step_time_s["sync"], turn.step_time_s["generation"]
    training = turn.step_time_s.total - sync - writing
    assert ahead.step_time_s.total == pytest.approx(max(writing, training) + sync)
    far = predict(run(rollout_gpus=1, off_policy_steps=4, mean_new_tokens=100))
    near = predict(run(rollout_gpus=1, off_policy_steps=1, mean_new_tokens=100))
    assert far.step_time_s["generation"] < near.step_time_s["generation"]  # the last answers wait together


def test_new_weights_take_longer_where_ranks_share_them_and_to_other_gpus() -> None:
    """Tensor by tensor they are gathered first, or sent on."""
    alone, shared = predict(run(num_gpus=2)), predict(run(num_gpus=2, sharding="fsdp"))
    apart = predict(run(num_gpus=2, sharding="fsdp", rollout_gpus=2))
    waits = [one.step_time_s["sync"] for one in (alone, shared, apart)]
    assert waits == sorted(waits)
    assert waits[0] < waits[2]


def test_shorter_answers_end_earlier_but_the_step_waits_for_the_longest() -> None:
    """A step of answers that end by chance is shorter, yet has most steps of the longest one."""
    all_long, mixed = predict(run()), predict(run(mean_new_tokens=200))
    assert mixed.step_time_s["generation"] < all_long.step_time_s["generation"]
    assert mixed.step_time_s["generation"] > 0.6 * all_long.step_time_s["generation"]
    assert mixed.step_time_s.under("generation")["the last answers"] > 0


def test_packed_and_unpadded_answers_train_faster_than_padded_ones() -> None:
    """Neither is refused, and both leave the padding out; packed, fewer micro-batches are computed."""
    padded = predict(run(mean_new_tokens=200))
    free = predict(run(mean_new_tokens=200, padding="free"))
    packed = predict(
        run(mean_new_tokens=200, packing=True, micro_batch_size=2, gradient_accumulation_steps=16)
    )
    for one in (free, packed):
        assert one.step_time_s["backward"] < padded.step_time_s["backward"]
        assert one.step_sequences == pytest.approx(32)
        assert one.step_tokens == pytest.approx(32 * (256 + 200), rel=0.01)


def test_answers_without_padding_are_learnt_from_with_a_value_model_too() -> None:
    """PPO's value model scores them token by token; it is a reward model only in its head."""
    for engine in ("vllm", "hf"):
        asked = run(phase="ppo", num_generations=None, mean_new_tokens=200, inference_engine=engine)
        free, padded = predict(asked.replace(padding="free")), predict(asked)
        assert free.step_time_s["backward"] < padded.step_time_s["backward"]


def test_pipelines_and_context_parallelism_train_what_an_engine_generates() -> None:
    """The trainer's division has nothing to do with the engine's, and is not refused with one."""
    divided = predict(run(num_gpus=4, pipeline_parallel=2, context_parallel=2, num_generations=4))
    assert divided.step_time_s["scoring"] > 0
    with pytest.raises(UnsupportedError, match="pipeline_parallel=2"):
        predict(run(inference_engine="hf", num_gpus=2, pipeline_parallel=2))


def test_narrow_weights_leave_more_to_the_cache() -> None:
    """Weights in fp8 take half, and the share of the GPU stays as it is."""
    wide, narrow = engine_of(run()), engine_of(run(rollout_dtype="fp8"))
    assert narrow.weights_bytes < 0.7 * wide.weights_bytes
    assert narrow.cache_tokens > wide.cache_tokens


def test_a_share_in_which_no_answer_fits_is_refused_with_the_least_that_does() -> None:
    """The sentence says which value starts the engine, and that one does."""
    with pytest.raises(UnsupportedError, match=r"set (0\.\d+) or more") as refused:
        predict(run(gpu_memory_utilization=0.03))
    least = float(str(refused.value).split("set ")[1].split(" or")[0])
    assert engine_of(run(gpu_memory_utilization=least)).cache_tokens >= 1024


def test_the_largest_safe_share_is_safe_and_the_next_is_not() -> None:
    """It stands in the estimate, with what the trainer needs beside the engine."""
    found = estimate(run()).rollout
    assert found is not None
    assert found.safe_memory_fraction is not None
    assert found.safe_memory_fraction == safe_memory_utilization(run(), predict)
    assert is_safe(predict(run(gpu_memory_utilization=found.safe_memory_fraction)))
    assert not is_safe(predict(run(gpu_memory_utilization=round(found.safe_memory_fraction + 0.01, 2))))
    assert found.trainer_bytes + found.held_bytes == pytest.approx(
        predict(run()).device_memory_bytes.total, abs=0.1 * GIB
    )


def test_what_makes_engine_and_trainer_fit_is_said() -> None:
    """A smaller share is the largest that is safe; an engine that has it, or none, has nothing to change."""
    tight = run(gpu_memory_utilization=0.9)
    smaller = switch_named("smaller-engine")
    assert smaller is not None
    changes = smaller.change(tight)
    assert not isinstance(changes, str)
    assert is_safe(predict(tight.replace(**changes)))
    assert smaller.change(tight.replace(**changes)) == ALREADY
    for name in ("smaller-engine", "engine-sleeps", "trainer-on-host"):
        switch = switch_named(name)
        assert switch is not None
        assert "no rollout engine" in str(switch.change(run(inference_engine="hf")))


class Constant(EngineClock):
    """An engine whose tokens take a second, whatever its batch."""

    def __init__(self, at_once: int, cache_tokens: float, prompt_tokens: float = 10.0) -> None:
        self.engine = engine_of(run())._replace(at_once=at_once, cache_tokens=cache_tokens)
        self.prompt_tokens, self.prompt_s = prompt_tokens, 0.0

    def token_s(self, rows: float, context: float) -> float:
        """Return one second."""
        return 1.0


def test_answers_take_the_places_of_those_that_are_done() -> None:
    """Two at a time, of 30, 10 and 20 tokens: the third begins when the second is done."""
    done = Constant(2, 1e9).write([30, 10, 20], 1)
    assert done.tokens_s == 30
    assert done.answers_steps == 60
    assert Constant(3, 1e9).write([30, 10, 20], 1).tokens_s == 30
    assert Constant(1, 1e9).write([30, 10, 20], 1).tokens_s == 60


def test_the_youngest_answer_makes_room_where_the_cache_is_full() -> None:
    """Room for 500 tokens: of two answers that grow to 310 one waits, is read again, and nothing is lost."""
    full = Constant(2, 500.0)
    full.prompt_s = 1.0
    done = full.write([300, 300], 1)
    assert done.answers_steps == pytest.approx(600)  # every token is written once
    assert 350 <= done.tokens_s < 600
    assert done.prompts_s > 2.0  # one of them twice


def test_a_prompt_is_read_once_for_all_its_answers() -> None:
    """Eight answers of a group share the prefix; the room it takes too."""
    alone, shared = Constant(8, 1e9), Constant(8, 1e9)
    alone.prompt_s = shared.prompt_s = 1.0
    assert shared.write([5] * 8, 8).prompts_s == pytest.approx(alone.write([5] * 8, 1).prompts_s / 8)


def test_tokens_between_the_batches_that_are_worked_out_lie_on_lines() -> None:
    """More answers, and longer ones, never take less time."""
    found: list[float] = []
    original = EngineClock.write

    def noted(self: EngineClock, lengths: list[int], group: int) -> Any:
        found.extend(self.token_s(rows, 512.0) for rows in (1, 2, 3, 5, 8, 20, 32))
        return original(self, lengths, group)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EngineClock, "write", noted)
        predict(run())
    assert all(fewer <= more for fewer, more in pairwise(found[:7]))
