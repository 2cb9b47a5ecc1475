"""TRL's and transformers' files and scripts: stated, hidden, by version, never run."""

import json
from pathlib import Path
from typing import Any

import pytest

from finegauge.errors import FieldError, FileFormatError
from finegauge.formats.reading import read
from finegauge.run.run import Run

MODEL = "model_name_or_path: Qwen/Qwen3-8B\ndataset_name: math_14k\n"


def trl(folder: Path, text: str = "", *words: str, name: str = "sft.yaml") -> Run:
    path = folder / name
    path.write_text(text if name.endswith(".py") else MODEL + text, encoding="utf-8")
    return read(path, words)


def values(run: Run, expected: dict[str, Any]) -> dict[str, Any]:
    return {name: getattr(run, name) for name in expected}


def test_hidden_defaults_by_version(tmp_path: Path) -> None:
    newest = {
        "method": "full", "weights_dtype": "fp32", "autocast": "bf16", "loss": "chunked", "seq_len": 1024,
        "activation_checkpointing": "full", "checkpointing_reentrant": False, "micro_batch_size": 8,
        "epochs": 3.0, "padding": "longest", "pad_to_multiple_of": 1, "optimizer_implementation": "fused",
    }  # fmt: skip
    run = trl(tmp_path)
    assert values(run, newest) == newest
    assert run.origins["loss"] == "framework default: TRL"
    assert run.dataset == "math_14k"
    old = {
        "weights_dtype": "bf16",
        "autocast": "none",
        "loss": "full_logits",
        "activation_checkpointing": "none",
    }
    assert values(trl(tmp_path, "", "framework_version=0.18"), old) == old
    middle = {"weights_dtype": "bf16", "autocast": "bf16", "loss": "full_logits"}
    middle |= {"activation_checkpointing": "full"}
    assert values(trl(tmp_path, "finegauge: {framework_version: '0.23'}\n"), middle) == middle


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("use_peft: true", {"method": "lora", "lora_rank": 16, "lora_alpha": 32.0, "lora_dropout": 0.05}),
        ("use_peft: true", {"lora_targets": ("q_proj", "v_proj"), "adapter_dtype": "fp32"}),
        ("save_total_limit: -1\nsave_strategy: epoch", {"saves_kept": None, "saves_per_epoch": 1.0}),
        ("torch_compile: false\ntorch_compile_backend: inductor", {"compile": True}),
        ("fsdp: ''\nfsdp_config: {reshard_after_forward: true}", {"sharding": "none"}),
        (
            "fsdp: full_shard offload\nfsdp_config: {reshard_after_forward: false}",
            {"sharding": "fsdp_shard_grad_op", "cpu_offload": "params", "loading": "host"},
        ),
        (
            "datasets: [{path: tatsu-lab/alpaca, split: 'train[:1000]'}]\ntest_split_size: 0.1",
            {"dataset": "tatsu-lab/alpaca", "num_samples": 1000, "validation_fraction": 0.1},
        ),
        ('model_init_kwargs: \'{"dtype": "bfloat16"}\'\ndtype: float32', {"weights_dtype": "bf16"}),
        ("no_gradient_checkpointing: true", {"activation_checkpointing": "none"}),
        ("use_peft: true\nload_in_4bit: true", {"method": "qlora", "weights_dtype": "nf4"}),
        ("use_peft: true\nload_in_4bit: true\nuse_bnb_nested_quant: true", {"weights_dtype": "nf4_dq"}),
        ("use_peft: true\nload_in_4bit: true", {"adapter_dtype": "bf16"}),
        ("use_peft: true\nload_in_8bit: true", {"weights_dtype": "int8"}),
        ("dtype: bfloat16", {"weights_dtype": "bf16"}),
        ("dtype: auto", {"weights_dtype": "bf16"}),
        ("bf16: no", {"autocast": "none"}),
        ("fp16: true", {"autocast": "fp16"}),
        ("packing: true", {"packing": True, "padding": "free"}),
        ("packing: true\npacking_strategy: wrapped", {"padding": "max"}),
        ("padding_free: true", {"packing": False, "padding": "free"}),
        ("pad_to_multiple_of: 8", {"pad_to_multiple_of": 8}),
        ("use_liger_kernel: true", {"kernels": ("liger",), "loss": "chunked"}),
        ("use_liger_kernel: true\nfinegauge: {framework_version: '1.14'}", {"loss": "fused"}),
        (
            "accelerator_config: {gradient_accumulation_kwargs: {sync_each_batch: true}}",
            {"sync_each_batch": True},
        ),
        ("trainer: dpo", {"phase": "dpo", "loss": "chunked"}),
        ("trainer: dpo\nfinegauge: {framework_version: '1.14'}", {"loss": "full_logits"}),
        ("trainer: orpo", {"phase": "dpo", "loss": "full_logits"}),
        ("gradient_checkpointing: false", {"activation_checkpointing": "none"}),
        ("activation_offloading: true", {"activation_checkpointing": "offload"}),
        ("attn_implementation: kernels-community/flash-attn2", {"attention": "flash"}),
        ("optim: paged_adamw_8bit\nlearning_rate: 2e-4", {"optimizer": "paged_adamw_8bit"}),
        ("max_steps: '100'", {"max_steps": 100}),
        ("num_generations: 4", {"phase": "grpo"}),
        ("deepspeed: ds_z3_config.json", {"sharding": "zero3"}),
    ],
)
def test_keys(tmp_path: Path, text: str, expected: dict[str, Any]) -> None:
    assert values(trl(tmp_path, text), expected) == expected


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("load_in_4bit: true", "needs adapters"),
        ("bf16: true\nfp16: true", "both true"),
        ("deepspeed: x.json\nfsdp: full_shard", "both stated"),
    ],
)
def test_contradictions_are_refused(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(FieldError, match=sentence):
        trl(tmp_path, text)


def test_bare_training_arguments_are_transformers_own(tmp_path: Path) -> None:
    path = tmp_path / "args.json"
    path.write_text(
        json.dumps({"model_name_or_path": "Qwen/Qwen3-8B", "output_dir": "out", "optim": "adafactor"})
    )
    expected = {"activation_checkpointing": "none", "autocast": "none", "loss": "full_logits"}
    expected |= {"weights_dtype": "bf16", "optimizer": "adafactor", "framework": "transformers"}
    assert values(read(path), expected) == expected


def test_adapter_config(tmp_path: Path) -> None:
    path = tmp_path / "adapter_config.json"
    keys = {
        "peft_type": "LORA",
        "base_model_name_or_path": "Qwen/Qwen3-8B",
        "r": 4,
        "target_modules": ["q_proj"],
    }
    path.write_text(json.dumps(keys))
    run = read(path)
    assert (run.method, run.lora_rank, run.lora_alpha, run.lora_targets) == ("lora", 4, 8.0, ("q_proj",))
    path.write_text(json.dumps({**keys, "peft_type": "XLORA"}))
    with pytest.raises(FieldError, match="'XLORA' is not supported"):
        read(path)


SCRIPT = """
import os, torch
from peft import LoraConfig
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from trl import SFTConfig, SFTTrainer
os.system("touch {marker}")
NAME, RANK = "Qwen/Qwen3-8B", 8
rank = 32
length = 2**11
bnb = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.bfloat16)
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-8B", quantization_config=bnb, dtype="auto")
args = SFTConfig(per_device_train_batch_size=2, max_length=512, learning_rate=compute(), num_train_epochs=1,
                 gradient_accumulation_steps=int(os.environ["STEPS"]), bf16=True, **dict(packing=True))
SFTTrainer(model=model, args=args, peft_config=LoraConfig(r=rank, target_modules=["q_proj", "o_proj"]))
"""


def test_script_is_read_and_never_run(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    run = trl(tmp_path, SCRIPT.replace("{marker}", str(marker)), name="train.py")
    assert not marker.exists()
    expected = {
        "model": "Qwen/Qwen3-8B", "method": "qlora", "weights_dtype": "nf4", "lora_rank": 32,
        "lora_alpha": 8.0, "lora_dropout": 0.0, "lora_targets": ("q_proj", "o_proj"), "seq_len": 512,
        "micro_batch_size": 2, "gradient_accumulation_steps": 1, "packing": True, "autocast": "bf16",
        "epochs": 1.0, "framework": "TRL",
    }  # fmt: skip
    assert values(run, expected) == expected
    assert any("gradient_accumulation_steps is computed" in warning for warning in run.warnings)


def test_script_whose_model_is_computed_says_so(tmp_path: Path) -> None:
    text = "from trl import SFTConfig\nSFTConfig(output_dir='x', max_length=len(x))\n"
    with pytest.raises(FieldError, match="does not state its model"):
        trl(tmp_path, text, name="train.py")
    run = trl(tmp_path, text, "model=qwen3-8b", name="train.py")
    assert "max_length is computed" in run.warnings[0]
    with pytest.raises(FileFormatError, match="starts no training"):
        trl(tmp_path, "print('hello')\n", name="train.py")


def test_script_of_the_plain_trainer(tmp_path: Path) -> None:
    text = (
        "m = AutoModelForCausalLM.from_pretrained('Qwen/Qwen3-8B', torch_dtype=torch.float16)\n"
        "Trainer(model=m, args=TrainingArguments(output_dir='o', per_device_train_batch_size=3))\n"
    )
    run = trl(tmp_path, text, name="train.py")
    assert (run.framework, run.micro_batch_size, run.weights_dtype) == ("transformers", 3, "fp16")
    assert (run.activation_checkpointing, run.loss) == ("none", "full_logits")
