"""A real TRL fine-tune with the callback: TensorBoard has the figures, the journal has the profile."""

from pathlib import Path
from typing import Any

import pytest
from peft import LoraConfig
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

from finegauge.data.batch_shape import shape
from finegauge.integrations import TrainerCallback
from finegauge.store.journal import Trials
from tests.unit.callbacks.tiny import QUIET, VOCABULARY, model, silent, texts, tokenizer

LOGGED = {
    "tokens_per_s",
    "eta_s",
    "cost_usd",
    "cost_at_completion_usd",
    "memory_peak_bytes",
    "memory_device_bytes",
}
ADAPTER = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")


@pytest.fixture(autouse=True)
def _own_cache_and_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY", True)  # of TRL's trainers
    monkeypatch.setenv("FINEGAUGE_CACHE_DIR", str(tmp_path / "cache"))


def sft(folder: Path, callback: TrainerCallback, **changes: Any) -> None:
    asked = SFTConfig(
        output_dir=str(folder),
        **{
            **QUIET,
            "bf16": False,
            "max_length": 32,
            "per_device_train_batch_size": 4,
            "gradient_accumulation_steps": 2,
            "num_train_epochs": 1,
            "logging_steps": 2,
            **changes,
        },
    )
    SFTTrainer(
        model=model(),
        args=asked,
        train_dataset=texts(64),
        processing_class=tokenizer(),
        peft_config=ADAPTER,
        callbacks=[callback],
    ).train()


def test_sft_with_adapters_and_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "board"))
    said: list[str] = []
    callback = TrainerCallback(usd_per_hour=2.0, say=said.append)
    sft(tmp_path, callback, report_to="tensorboard")
    board = EventAccumulator(str(tmp_path / "board"))
    board.Reload()
    tags = set(board.Tags()["scalars"])
    assert {f"train/finegauge/{name}" for name in LOGGED} <= tags
    (kept,) = Trials(str(tmp_path / "finegauge.jsonl")).profiles()
    assert (kept.outcome, len(kept.step_times_s)) == ("completed", 7)
    run = kept.run
    assert (run.method, run.lora_rank, run.framework, run.loss) == ("lora", 4, "TRL", "chunked")
    assert (run.micro_batch_size, run.gradient_accumulation_steps, run.max_steps) == (4, 2, 8)
    assert shape(run).steps_per_epoch == 8
    assert kept.step_tokens == pytest.approx(2 * shape(run).tokens, rel=0.1)
    assert "lora rank 4" in said[0]
    assert "Measured" in said[1]


def test_packed_rows_are_packed_in_the_run(tmp_path: Path) -> None:
    callback = TrainerCallback(say=silent)
    sft(tmp_path, callback, packing=True, gradient_accumulation_steps=1)
    assert callback.run is not None
    assert (callback.run.packing, callback.run.padding) == (True, "free")
    assert shape(callback.run).num_samples == 64
    assert shape(callback.run).steps_per_epoch == pytest.approx(callback.run.max_steps, abs=1)


def test_dpo(tmp_path: Path) -> None:
    callback = TrainerCallback(say=silent)
    sides = {"prompt": texts(16, 8), "chosen": texts(16, 20), "rejected": texts(16, 20)}
    pairs = sides["prompt"].rename_column("text", "prompt")
    for name in ("chosen", "rejected"):
        pairs = pairs.add_column(name, list(sides[name]["text"]))
    asked = DPOConfig(
        output_dir=str(tmp_path),
        **QUIET,
        bf16=False,
        max_length=32,
        per_device_train_batch_size=2,
        num_train_epochs=1,
    )
    DPOTrainer(
        model=model(),
        args=asked,
        train_dataset=pairs,
        processing_class=tokenizer(),
        peft_config=ADAPTER,
        callbacks=[callback],
    ).train()
    assert callback.run is not None
    assert callback.profile is not None
    assert (callback.run.phase, callback.run.num_samples, callback.run.max_steps) == ("dpo", 16, 8)
    assert callback.profile.outcome == "completed"
    assert callback.profile.step_tokens == pytest.approx(shape(callback.run).tokens, rel=0.15)
    assert callback.run.config["vocab_size"] == VOCABULARY
