"""Phases beyond supervised fine-tuning: which models they hold, which passes they make."""

from typing import Any

import pytest

from finegauge.errors import UnsupportedError
from finegauge.model.graph import build
from finegauge.model.op import Extents
from finegauge.prediction.explanation import formulas
from finegauge.prediction.forward_passes import Generation
from finegauge.prediction.generation import cache_bytes, generation_memory, passing_bytes
from finegauge.prediction.predictor import predict
from finegauge.profile import Profile
from finegauge.run.run import Run

WRITTEN = {"ppo": {"max_new_tokens": 256}, "grpo": {"max_new_tokens": 256, "num_generations": 2},
           "decode": {"max_new_tokens": 256}}  # fmt: skip
PHASES = ("reward", "dpo", "ppo", "grpo", "evaluate", "prefill", "decode")


def run(**fields: Any) -> Run:
    stated = {"model": "llama-2-7b", "method": "full", "gpu": "H200", "seq_len": 1024, "micro_batch_size": 2}
    return Run(**{**stated, **WRITTEN.get(fields.get("phase", "sft"), {}), **fields})


def predicted(phase: str, **fields: Any) -> Profile:
    return predict(run(phase=phase, **fields))


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("method", ["full", "lora", "qlora"])
def test_every_line_of_every_phase_has_its_formula(phase: str, method: str) -> None:
    asked = run(phase=phase, method=method)
    profile, lines = predict(asked), formulas(asked)
    for path in (*profile.device_memory_bytes.parts, *profile.step_time_s.at(1).parts):
        assert path in lines or path[:1] in lines, path
    assert profile.step_time_s.total > 0 < profile.step_tokens
    assert 0 < profile.mfu_fraction < 1


def test_a_reference_is_a_copy_unless_adapters_can_be_switched_off() -> None:
    weights = predicted("sft").peak_memory_bytes.parts["weights", "model"]
    assert predicted("dpo").peak_memory_bytes.parts["weights", "reference"] == weights
    assert ("weights", "reference") not in predicted("dpo", method="lora").peak_memory_bytes.parts


def test_preferences_are_pairs_and_cost_a_forward_pass_more() -> None:
    pairs, twice = predicted("dpo"), predicted("sft", micro_batch_size=4)
    assert pairs.step_tokens == twice.step_tokens
    assert pairs.step_sequences == 2
    assert pairs.step_time_s["scoring"] == pytest.approx(pairs.step_time_s["forward"])
    scored = pairs.step_time_s["scoring"]
    assert pairs.step_time_s.total == pytest.approx(twice.step_time_s.total + scored)


def test_a_reward_model_has_one_output_per_token() -> None:
    reward, words = build(run(phase="reward")), build(run())
    assert words.weights.trained_params - reward.weights.trained_params == (32_000 - 1) * 4096
    assert predicted("reward").phase_memory_bytes.under("loss")["logits"] < 1e6


def test_ppo_holds_four_models_and_updates_two_of_them_four_times() -> None:
    ppo, sft = predicted("ppo"), predicted("sft")
    held = ppo.peak_memory_bytes.parts
    for kind in ("reference", "value model", "reward model"):
        assert held["weights", kind] == pytest.approx(held["weights", "model"], rel=0.03)
    assert held["optimizer", "value model"] == pytest.approx(held["optimizer", "states"], rel=0.03)
    both = 2 * 4 * sft.step_time_s["backward"]
    assert ppo.step_time_s["backward"] == pytest.approx(both, rel=0.05)
    assert ppo.step_time_s["scoring"] == pytest.approx(4 * sft.step_time_s["forward"], rel=0.05)
    gradients = ppo.phase_memory_bytes.under("optimizer")["gradients"]
    assert gradients == pytest.approx(2 * sft.phase_memory_bytes.under("optimizer")["gradients"], rel=0.03)


def test_accumulated_micro_batches_are_written_together() -> None:
    one, four = predicted("ppo"), predicted("ppo", gradient_accumulation_steps=4)
    assert four.step_time_s["generation"] < 2 * one.step_time_s["generation"]
    assert four.step_time_s["scoring"] == pytest.approx(4 * one.step_time_s["scoring"])


def test_evaluation_holds_neither_gradients_nor_states() -> None:
    held = predicted("evaluate").peak_memory_bytes
    assert held["gradients"] == held["optimizer"] == 0
    assert set(predicted("evaluate").step_time_s.at(1).parts) == {("forward",)}


def test_the_cache_holds_two_vectors_per_token_and_layer() -> None:
    alone = run()
    assert cache_bytes(build(alone), 3, 100, alone) == 3 * 100 * 32 * 2 * 4096 * 2
    grouped = run(model="llama-3-8b")
    assert cache_bytes(build(grouped), 1, 1, grouped) == 32 * 2 * 8 * 128 * 2
    assert cache_bytes(build(grouped), 1, 1, grouped.replace(kv_cache_dtype="fp8")) == 32 * 2 * 8 * 128
    state = run(model="blackmamba-2.8b")
    assert cache_bytes(build(state), 1, 10, state) == cache_bytes(build(state), 1, 10_000, state) > 0


def test_decoding_by_an_engine_is_bound_by_memory_and_grows_with_what_was_read() -> None:
    short, long = (predicted("decode", seq_len=tokens, framework="vLLM") for tokens in (512, 4096))
    assert short.step_time_s["decode"] < long.step_time_s["decode"]
    assert short.mfu_fraction < 0.05
    weights_read_s = 255 * 2 * 6.6e9 / 4.8e12
    assert weights_read_s < short.step_time_s["decode"] < 2 * weights_read_s


def test_decoding_by_transformers_is_bound_by_their_python() -> None:
    eager, engine = (predicted("decode", framework=name) for name in ("transformers", "SGLang"))
    python_s = 255 * (32 * 3e-4 + 8e-4)
    assert python_s < eager.step_time_s["decode"] < 3 * python_s
    assert eager.step_time_s["decode"] > engine.step_time_s["decode"]
    assert eager.host_bound_fraction > 0.5 > engine.host_bound_fraction
    compiled = predicted("decode", compile=True)
    assert engine.step_time_s["decode"] < compiled.step_time_s["decode"] < eager.step_time_s["decode"]


def test_few_rows_read_few_experts() -> None:
    fields = {"model": "mixtral-8x7b", "seq_len": 512, "max_new_tokens": 256, "gpu": "H200"}
    one, many = (
        predicted("decode", micro_batch_size=1, **fields),
        predicted("decode", micro_batch_size=16, **fields),
    )
    moe = [p.step_time_s.under("decode").under("moe")["gate_up_proj"] for p in (one, many)]
    assert moe[0] < 0.4 * moe[1]


def test_writing_is_largest_at_the_prompts_or_at_the_last_token() -> None:
    alone = run()
    graph = build(alone)
    reading, answering = generation_memory(graph, Generation(2, 100, 400), alone)
    assert reading["KV cache",] == cache_bytes(graph, 2, 100, alone)
    assert answering["KV cache",] > cache_bytes(graph, 2, 500, alone)
    assert reading["activations", "passing"] == passing_bytes(graph, Extents.of(2, 100))


def test_a_queue_of_requests_takes_as_long_as_its_batches() -> None:
    queued, batch = predicted("decode", padding="free"), predicted("decode")
    assert queued.step_time_s.total == pytest.approx(3 * batch.step_time_s.total)
    assert queued.step_tokens == 3 * batch.step_tokens


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"pipeline_parallel": 2}, "phase=ppo with pipeline_parallel=2"),
        ({"context_parallel": 2}, "phase=ppo with context_parallel=2"),
    ],
)
def test_what_no_equation_covers_is_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        predicted("ppo", num_gpus=2, **fields)
