"""How phases use a data set's sequences: as pairs, as prompts with answers."""

from typing import Any

import pytest

from finegauge.data.batch_shape import shape
from finegauge.errors import FieldError
from finegauge.run.phases import batch_unit, micro_steps, prompts_of
from finegauge.run.run import Run


def run(**fields: Any) -> Run:
    return Run(**{"model": "llama-2-7b", "method": "full", "seq_len": 1024, **fields})


def test_pairs_are_two_sequences_for_each_sample() -> None:
    pairs = shape(run(phase="dpo", micro_batch_size=3, dataset="math_14k"))
    longer = shape(run(micro_batch_size=6, dataset="math_14k"))
    alone = shape(run(micro_batch_size=3, dataset="math_14k"))
    assert pairs.tokens == longer.tokens
    assert (pairs.samples, pairs.steps_total) == (3, alone.steps_total)


def test_prompt_and_answer_share_the_sequence() -> None:
    batch = shape(run(phase="ppo", micro_batch_size=2, max_new_tokens=24))
    assert (batch.sequences, batch.tokens, batch.tokens_square) == (2, 2 * 1024, 2 * 1024**2)
    assert prompts_of(run(phase="ppo", max_new_tokens=24)).seq_len == 1000


def test_answers_follow_prompts_of_their_own_lengths() -> None:
    asked = {"dataset": "math_14k", "seq_len": 512, "micro_batch_size": 4}
    prompts, answered = (
        shape(run(**asked, phase="evaluate")),
        shape(run(**{**asked, "seq_len": 612}, phase="decode", max_new_tokens=100)),
    )
    assert answered.tokens == pytest.approx(prompts.tokens + 4 * 100)
    assert answered.longest_len == prompts.longest_len + 100
    square = prompts.tokens_square + 2 * 100 * prompts.tokens + 4 * 100**2
    assert answered.tokens_square == pytest.approx(square)


def test_a_group_of_answers_has_one_prompt() -> None:
    grouped = run(phase="grpo", num_generations=4, micro_batch_size=4, gradient_accumulation_steps=2)
    assert prompts_of(grouped).micro_batch_size == 2
    single = run(phase="ppo", micro_batch_size=4, gradient_accumulation_steps=2)
    assert prompts_of(single).micro_batch_size == 8
    steps = [shape(r.replace(num_samples=800)).steps_total for r in (grouped, single)]
    assert steps == [400, 100]


def test_continuous_batching_pads_nothing() -> None:
    asked = {
        "phase": "decode",
        "dataset": "math_14k",
        "seq_len": 612,
        "max_new_tokens": 100,
        "micro_batch_size": 4,
    }
    free, padded = shape(run(**asked, padding="free")), shape(run(**asked))
    assert free.tokens == free.real_tokens < padded.tokens
    assert (micro_steps(run(**asked, padding="free")), micro_steps(run(**asked))) == (3, 1)


def test_answers_come_in_whole_groups() -> None:
    halves = run(phase="grpo", micro_batch_size=6, gradient_accumulation_steps=2)  # read, but not used
    with pytest.raises(FieldError, match=r"num_generations=8 answers to each prompt, which .* the 12 of"):
        shape(halves)
    assert batch_unit(halves) == 4
    assert shape(halves.replace(micro_batch_size=4)).sequences == 4
    assert batch_unit(run(phase="ppo")) == 1


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"phase": "reward", "packing": True}, "packing=true"),
        ({"phase": "dpo", "padding": "free"}, "padding=free"),
        ({"phase": "grpo", "off_policy_steps": 1}, "set rollout_gpus"),
        ({"phase": "grpo", "rollout_gpus": 3, "rollout_tensor_parallel": 2}, "does not divide"),
        ({"phase": "grpo", "max_new_tokens": 8, "mean_new_tokens": 9}, "answers end there"),
        ({"phase": "decode", "gradient_accumulation_steps": 2}, "trains nothing"),
    ],
)
def test_what_contradicts_the_phase_is_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(FieldError, match=words):
        run(**fields)
