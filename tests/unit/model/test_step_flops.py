"""The FLOPs of a step of each phase, counted in forward and backward passes."""

from typing import Any

import pytest

from finegauge.model.graph import build, step_flops, value_run
from finegauge.model.op import Extents
from finegauge.run.run import Run

EXTENTS = Extents(2.0, 2048.0, 2 * 1024.0**2, 1024.0)


def run(phase: str, **fields: Any) -> Run:
    return Run(model="llama-2-7b", method="full", phase=phase, seq_len=1024, micro_batch_size=2, **fields)


def taken(phase: str, **fields: Any) -> float:
    asked = run(phase, **fields)
    return step_flops(asked, build(asked), EXTENTS)


FORWARD, BOTH = build(run("sft")).flops(EXTENTS)


def test_a_backward_pass_is_twice_a_forward_pass_but_for_the_first_layer() -> None:
    assert pytest.approx(3 * FORWARD, rel=0.01) == BOTH
    assert pytest.approx(2 * 6.74e9 * 2048, rel=0.1) == FORWARD


@pytest.mark.parametrize(
    ("phase", "fields", "flops"),
    [
        ("sft", {}, BOTH),
        ("pretrain", {"gradient_accumulation_steps": 3}, 3 * BOTH),
        ("dpo", {"gradient_accumulation_steps": 3}, 3 * (BOTH + FORWARD)),
        ("grpo", {"max_new_tokens": 128, "num_generations": 2}, BOTH + 2 * FORWARD),
        ("evaluate", {}, FORWARD),
        ("prefill", {}, FORWARD),
        ("decode", {"max_new_tokens": 128}, FORWARD),
        ("decode", {"max_new_tokens": 128, "padding": "free"}, 3 * FORWARD),
    ],
)
def test_passes_of_a_phase(phase: str, fields: dict[str, Any], flops: float) -> None:
    assert taken(phase, **fields) == pytest.approx(flops)


def test_ppo_trains_two_models_four_times_and_asks_four_of_them_once() -> None:
    value = build(value_run(run("ppo", max_new_tokens=128)))
    trained = 4 * (BOTH + value.flops(EXTENTS)[1])
    asked = 2 * FORWARD + 2 * value.flops(EXTENTS)[0]
    assert taken("ppo", max_new_tokens=128) == pytest.approx(trained + asked + FORWARD)


def test_a_reward_model_has_no_vocabulary() -> None:
    assert taken("reward") < BOTH
