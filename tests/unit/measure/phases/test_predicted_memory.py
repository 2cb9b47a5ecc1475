"""What each phase is predicted to hold is what it holds on this machine's CPU, by its live tensors."""

from pathlib import Path
from typing import Any

import pytest

from finegauge.measure.instruments.memory_meter import measure_memory
from finegauge.measure.instruments.stage_clock import NoClock
from finegauge.measure.options import Options
from finegauge.measure.phases import phase_of
from finegauge.plan.here import prediction_for
from tests.unit.measure.phases.tiny import CPU, LLAMA, tiny_run

FIGURES = {**LLAMA, "vocab_size": 1024, "hidden_size": 64, "intermediate_size": 176}
WRITTEN = {"ppo": {"max_new_tokens": 16}, "grpo": {"max_new_tokens": 16, "num_generations": 2},
           "decode": {"max_new_tokens": 16}}  # fmt: skip


@pytest.mark.parametrize("method", ["full", "lora"])
@pytest.mark.parametrize("phase", ["sft", "evaluate", "reward", "dpo", "ppo", "grpo", "prefill", "decode"])
def test_predicted_peak_is_the_measured_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: str, method: str
) -> None:
    monkeypatch.setenv("FINEGAUGE_CACHE_DIR", str(tmp_path))  # no device profile: memory alone
    fields: dict[str, Any] = {"adapter_dtype": "fp32"} if method == "lora" else {}
    fields |= WRITTEN.get(phase, {})
    run = tiny_run(tmp_path, FIGURES, phase=phase, method=method, seq_len=64, micro_batch_size=4, **fields)
    taken = phase_of(run, Options(), CPU)
    taken.step(NoClock())
    measured = measure_memory(taken, CPU)
    predicted = prediction_for(run, "cpu").profile
    assert predicted is not None
    assert predicted.peak_memory_bytes.total == pytest.approx(measured.peak_memory_bytes.total, rel=0.03)
