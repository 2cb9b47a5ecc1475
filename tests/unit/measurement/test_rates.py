"""What a step computes and a device can do, as a measured profile states them."""

from typing import Any

import pytest
import torch

from finegauge.measurement.device import capacity_bytes, model_flops, peaks_of
from finegauge.measurement.options import Options
from finegauge.prediction.predictor import predict
from finegauge.run.run import Run

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("phase", "fields"),
    [
        ("sft", {"gradient_accumulation_steps": 2}),
        ("reward", {}),
        ("dpo", {}),
        ("ppo", {"max_new_tokens": 64}),
        ("grpo", {"max_new_tokens": 64, "num_generations": 2}),
        ("evaluate", {}),
        ("prefill", {}),
        ("decode", {"max_new_tokens": 64}),
    ],
)
def test_a_measured_step_computes_what_is_predicted(phase: str, fields: dict[str, Any]) -> None:
    asked = Run(
        model="llama-2-7b", method="lora", phase=phase, seq_len=128, micro_batch_size=2, gpu="H100", **fields
    )
    assert model_flops(asked) == pytest.approx(predict(asked).step_flops)
    assert model_flops(asked) > 0


def test_without_a_device_profile_the_peak_is_not_known(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FINEGAUGE_CACHE_DIR", str(tmp_path))
    assert peaks_of(CPU) is None


def test_a_limit_is_what_a_trial_may_allocate() -> None:
    assert capacity_bytes(Options(memory_limit_bytes=5e8), CPU) == 5e8
    assert capacity_bytes(Options(), CPU) > 1e9
