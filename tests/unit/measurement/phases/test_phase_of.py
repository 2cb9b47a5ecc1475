"""Every phase, under every method, takes a step and tells the clock its stages."""

from pathlib import Path
from typing import Any

import pytest
import torch

from finegauge.errors import FieldError, UnsupportedError
from finegauge.measurement.options import Options
from finegauge.measurement.phases.choice import phase_of
from tests.unit.measurement.phases.tiny import CPU, LLAMA, MIXTRAL, WIDE, Stages, tiny_run
from tests.unit.measurement.processors import set_avx512_bf16

TRAINED = ["data", "forward", "backward", "optimizer"]
SCORED = ["data", "scoring", "forward", "backward", "optimizer"]
WRITTEN = ["data", "generation", "scoring", "forward", "backward", "optimizer"]
STAGES = [
    ({"phase": "sft"}, TRAINED, {"policy"}),
    ({"phase": "pretrain"}, TRAINED, {"policy"}),
    ({"phase": "reward"}, TRAINED, {"reward"}),
    ({"phase": "dpo"}, SCORED, {"policy", "reference"}),
    ({"phase": "ppo", "max_new_tokens": 4}, WRITTEN, {"policy", "reference", "value", "reward"}),
    ({"phase": "grpo", "max_new_tokens": 4, "num_generations": 2}, WRITTEN, {"policy", "reference"}),
    ({"phase": "evaluate"}, ["data", "forward"], {"policy"}),
    ({"phase": "prefill"}, ["data", "prefill"], {"policy"}),
    ({"phase": "decode", "max_new_tokens": 4}, ["data", "prefill", "decode"], {"policy"}),
]
METHODS: list[tuple[dict[str, Any], bool, bool]] = [
    ({"method": "full"}, False, False),
    ({"method": "lora"}, True, False),
    ({"method": "qlora", "weights_dtype": "nf4_dq"}, True, False),
    ({"method": "qlora", "weights_dtype": "nf4_dq"}, True, True),
]


@pytest.mark.parametrize(("method", "adapters", "avx512_bf16"), METHODS)
@pytest.mark.parametrize(("fields", "stages", "models"), STAGES)
def test_a_step_passes_its_stages(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    method: dict[str, Any],
    adapters: bool,
    fields: dict[str, Any],
    stages: list[str],
    models: set[str],
    avx512_bf16: bool,
) -> None:
    set_avx512_bf16(monkeypatch, avx512_bf16)
    run = tiny_run(tmp_path, WIDE, micro_batch_size=2, **method, **fields)
    phase, clock = phase_of(run, Options(), CPU), Stages()
    facts = phase.step(clock)
    assert list(dict.fromkeys(clock.names)) == stages
    assert set(phase.models) == (models - {"reference"} if adapters else models)
    sequences = 4 if run.phase in ("reward", "dpo") else 2
    assert facts.tokens == sequences * run.seq_len
    assert facts.sequences == 2


def test_a_mixture_of_experts_serves_and_learns(tmp_path: Path) -> None:
    fields = {"micro_batch_size": 2, "max_new_tokens": 4}
    served = phase_of(tiny_run(tmp_path, MIXTRAL, phase="decode", **fields), Options(), CPU).step(Stages())
    tuned = phase_of(tiny_run(tmp_path, MIXTRAL, phase="ppo", **fields), Options(), CPU).step(Stages())
    assert served.details["ttft_s"] > 0 < served.details["time_per_output_token_s"]
    assert tuned.loss is not None


def test_continuous_batching_answers_every_request(tmp_path: Path) -> None:
    run = tiny_run(tmp_path, phase="decode", padding="free", max_new_tokens=4, micro_batch_size=2)
    facts = phase_of(run, Options(), CPU).step(Stages())
    assert facts.sequences == 3 * 2
    assert facts.tokens == 3 * 2 * run.seq_len
    assert {"ttft_s", "time_per_output_token_s", "written_tokens_per_s"} <= set(facts.details)


def test_accumulation_and_chunks_change_no_loss(tmp_path: Path) -> None:
    losses = []
    for loss in ("full_logits", "chunked"):
        run = tiny_run(tmp_path, micro_batch_size=2, gradient_accumulation_steps=2, loss=loss)
        phase = phase_of(run, Options(), CPU)
        losses.append([phase.step(Stages()).loss for _ in range(3)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="loss=fused"):
        phase_of(tiny_run(tmp_path, loss="fused"), Options(), CPU)
    with pytest.raises(FieldError, match="num_generations=8"):
        phase_of(tiny_run(tmp_path, phase="grpo", micro_batch_size=6), Options(), CPU)
    answers: dict[str, Any] = {"phase": "grpo", "micro_batch_size": 8, "gradient_accumulation_steps": 1}
    with pytest.raises(UnsupportedError, match="set inference_engine=hf"):
        phase_of(tiny_run(tmp_path, **answers, inference_engine="vllm"), Options(), CPU)
    with pytest.raises(UnsupportedError, match="padding=free is predicted alone"):
        phase_of(tiny_run(tmp_path, **answers, padding="free"), Options(), CPU)
    with pytest.raises(FieldError, match="phase=dpo compares whole sequences"):
        tiny_run(tmp_path, phase="dpo", packing=True)
    with pytest.raises(FieldError, match="gradient_accumulation_steps=2"):
        tiny_run(tmp_path, phase="prefill", gradient_accumulation_steps=2)


def test_evaluation_keeps_no_gradient_and_changes_nothing(tmp_path: Path) -> None:
    phase = phase_of(tiny_run(tmp_path, LLAMA, phase="evaluate"), Options(), CPU)
    before = [parameter.clone() for parameter in phase.subject.model.parameters()]
    phase.step(Stages())
    assert all(p.grad is None for p in phase.subject.model.parameters())
    assert all(torch.equal(a, b) for a, b in zip(before, phase.subject.model.parameters(), strict=True))
