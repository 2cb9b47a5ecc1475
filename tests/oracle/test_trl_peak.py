"""The peak of a real step of TRL's own trainers, by the allocator's events, beside the prediction."""

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from torch.profiler import ProfilerActivity, profile
from transformers import AutoModelForCausalLM
from transformers import TrainerCallback as Callback
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

from finegauge.model.layers import TILE_WORDS
from finegauge.prediction.predictor import prediction_for
from finegauge.run.run import Run
from tests.oracle.real_step import most_allocated
from tests.unit.callbacks.tiny import QUIET, model, tokenizer

FIGURES = {"vocab_size": 8192, "hidden_size": 128, "intermediate_size": 256}
ADAPTER = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")


class Peak(Callback):
    """Counts what is alive when the second step begins, and what it allocates at most."""

    def on_step_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Begin to listen."""
        if state.global_step == 1:
            alive = [one.untyped_storage() for one in gc.get_objects() if type(one) in TENSORS]
            self.before = sum({one.data_ptr(): one.nbytes() for one in alive}.values())
            self.profiled = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
            self.profiled.__enter__()

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Keep the peak, and the largest piece."""
        if state.global_step != 2:
            return
        self.profiled.__exit__(None, None, None)
        self.peak_bytes = self.before + most_allocated(self.profiled)
        events = self.profiled.profiler.kineto_results.events()
        self.largest_bytes = max(one.nbytes() for one in events if one.name() == "[memory]")


TENSORS = (torch.Tensor, torch.nn.Parameter)


def trainer(phase: str, folder: Path, peak: Peak, *, lora: bool) -> Any:
    """Return TRL's own trainer of `phase` over four sequences of 64 tokens, or a little more."""
    model(**FIGURES).save_pretrained(folder / "model")
    words = ["w5 " * 80, "w6 " * 20, "w7 " * 60]
    asked = {**QUIET, "output_dir": str(folder), "bf16": False, "max_steps": 2, "optim": "adamw_torch"}
    asked["gradient_checkpointing"] = False
    common = {
        "model": AutoModelForCausalLM.from_pretrained(folder / "model"),
        "processing_class": tokenizer(),
        "peft_config": ADAPTER if lora else None,
        "callbacks": [peak],
    }
    if phase == "sft":
        data = Dataset.from_list([{"text": words[0]}] * 8)
        args = SFTConfig(**asked, max_length=64, per_device_train_batch_size=4)
        return SFTTrainer(args=args, train_dataset=data, **common)
    if phase == "dpo":
        data = Dataset.from_list([{"prompt": words[1], "chosen": words[2], "rejected": words[2]}] * 8)
        args = DPOConfig(**asked, max_length=64, per_device_train_batch_size=2)
        return DPOTrainer(args=args, train_dataset=data, **common)
    data = Dataset.from_list([{"prompt": words[1]}] * 8)
    args = GRPOConfig(**asked, per_device_train_batch_size=4, num_generations=4, max_completion_length=32)
    return GRPOTrainer(
        reward_funcs=lambda completions, **_: [float(len(one)) for one in completions],
        args=args, train_dataset=data, **common,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("phase", ["sft", "dpo", "grpo"])
def test_the_peak_of_trls_own_step_is_predicted(
    phase: str, lora: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FINEGAUGE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY", True)
    peak, threads = Peak(), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        trainer(phase, tmp_path, peak, lora=lora).train()
    finally:
        torch.set_num_threads(threads)
    rows = peak.largest_bytes / (
        4 * TILE_WORDS
    )  # of the tile, whose width is given: how long the answers were
    fields: dict[str, Any] = {"max_new_tokens": 32, "num_generations": 4, "reference_model": "none"}
    adapters: dict[str, Any] = {"lora_rank": 4, "lora_targets": "all-linear", "adapter_dtype": "fp32"}
    run = Run(
        model=str(tmp_path / "model"), method="lora" if lora else "full", phase=phase,
        weights_dtype="fp32", autocast="none", attention="sdpa", activation_checkpointing="none",
        micro_batch_size=2 if phase == "dpo" else 4, seq_len=round(rows / 4) + 1, loss="chunked",
        framework="TRL", framework_version="1.16", optimizer_implementation="foreach",
        **(fields if phase == "grpo" else {}), **(adapters if lora else {}),
    )  # fmt: skip
    predicted = prediction_for(run, "cpu").profile
    assert predicted is not None
    assert predicted.peak_memory_bytes.total == pytest.approx(peak.peak_bytes, rel=0.02)
