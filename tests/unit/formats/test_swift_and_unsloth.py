"""ms-swift's files and shell lines, Unsloth's files and notebooks."""

from pathlib import Path
from typing import Any

import pytest

from finegauge.errors import FieldError
from finegauge.formats.reading import read
from finegauge.run.run import Run

SWIFT = "model: Qwen/Qwen3-8B\ntuner_type: lora\nmax_length: 1024\n"
UNSLOTH = "model: Qwen/Qwen3-8B\ntraining: {max_seq_length: 1024}\n"


def written(folder: Path, text: str, *words: str, name: str = "job.yaml") -> Run:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return read(path, words)


def values(run: Run, expected: dict[str, Any]) -> dict[str, Any]:
    return {name: getattr(run, name) for name in expected}


def test_swift_hidden_defaults(tmp_path: Path) -> None:
    run = written(tmp_path, SWIFT)
    expected = {
        "method": "lora", "lora_rank": 8, "lora_alpha": 32.0, "lora_dropout": 0.05, "epochs": 3.0,
        "lora_targets": ("all-linear",), "activation_checkpointing": "full", "micro_batch_size": 1,
        "gradient_accumulation_steps": 16, "weights_dtype": "bf16", "autocast": "bf16",
        "adapter_dtype": "fp32",
    }  # fmt: skip
    assert values(run, expected) == expected
    assert run.origins["gradient_accumulation_steps"] == "framework default: ms-swift"
    assert written(tmp_path, SWIFT, "num_gpus=8").gradient_accumulation_steps == 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("deepspeed: zero3_offload", {"sharding": "zero3", "cpu_offload": "all"}),
        ("deepspeed: zero2", {"sharding": "zero2", "cpu_offload": "none"}),
        ("deepspeed: zero2\ndeepspeed_autotp_size: 2", {"tensor_parallel": 2, "num_gpus": 2}),
        ("deepspeed: zero3\nzero_hpz_partition_size: 8", {"zero_hpz_partition_size": 8}),
        ("fsdp: fsdp2", {"sharding": "fsdp", "loading": "rank0", "save_state": "sharded"}),
        ("rlhf_type: ppo\nnum_ppo_epochs: 2\nreward_model: Qwen/Qwen3-8B",
         {"seq_len": 1536, "max_new_tokens": 512, "ppo_epochs": 2, "reward_model": "Qwen/Qwen3-8B"}),
        ("split_dataset_ratio: 0.1\neval_strategy: 'no'", {"validation_fraction": 0.0}),
        ("quant_bits: 4", {"method": "qlora", "weights_dtype": "nf4_dq"}),
        ("packing: true\npacking_length: 4096", {"packing": True, "seq_len": 4096, "padding": "free"}),
        ("dataset: ['a/b#500', 'c/d#700']\nsplit_dataset_ratio: 0.1",
         {"num_samples": 1200, "validation_fraction": 0.1, "eval_samples": 120}),
        ("sequence_parallel_size: 2", {"context_parallel": 2}),
        ("use_liger_kernel: true\nattn_impl: flash_attn", {"loss": "fused", "attention": "flash"}),
        ("torch_dtype: float16", {"autocast": "fp16", "weights_dtype": "fp16"}),
        ("rlhf_type: dpo", {"phase": "dpo"}),
    ],
)  # fmt: skip
def test_swift_keys(tmp_path: Path, text: str, expected: dict[str, Any]) -> None:
    assert values(written(tmp_path, SWIFT + text), expected) == expected


def test_swift_refusals_and_typos(tmp_path: Path) -> None:
    assert "Did you mean 'lora_rank'" in " ".join(written(tmp_path, SWIFT + "lora_rnak: 4").warnings)
    old = written(tmp_path, "model: Qwen/Qwen3-8B\ntrain_type: full\nmax_length: 512\n")
    assert (old.method, old.warnings) == ("full", ())
    for text, sentence in (
        ("quant_bits: 3", "is not supported"),
        ("deepspeed: zero2\nfsdp: fsdp2", "both stated"),
    ):
        with pytest.raises(FieldError, match=sentence):
            written(tmp_path, SWIFT + text)
    with pytest.raises(FieldError, match="only adapters train"):
        written(tmp_path, SWIFT.replace("lora", "full") + "quant_bits: 4")


SHELL = """#!/bin/bash
# comment with 'quotes'
MODEL=Qwen/Qwen3-8B
touch {marker}
NPROC_PER_NODE=4 CUDA_VISIBLE_DEVICES=0,1,2,3 swift sft \\
    --model $MODEL --tuner_type lora --lora_rank=16 \\
    --dataset 'a/b#100' 'c/d#200' --max_length 2048 --output_dir "$OUT" \\
    --torch_dtype bfloat16 --padding_free --deepspeed zero2 > log.txt
"""


def test_shell_line_is_read_and_never_run(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    run = written(tmp_path, SHELL.replace("{marker}", str(marker)), name="train.sh")
    assert not marker.exists()
    expected = {
        "model": "Qwen/Qwen3-8B", "lora_rank": 16, "num_samples": 300, "seq_len": 2048, "num_gpus": 4,
        "padding": "free", "sharding": "zero2", "gradient_accumulation_steps": 4, "framework": "ms-swift",
    }  # fmt: skip
    assert values(run, expected) == expected
    assert not any("output_dir" in warning for warning in run.warnings)  # of which nothing depends


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("swift pt --model Qwen/Qwen3-8B --max_length 64", {"method": "lora", "phase": "pretrain"}),
        ("trl sft --model_name_or_path Qwen/Qwen3-8B --use_peft", {"method": "lora", "framework": "TRL"}),
        (
            "accelerate launch --num_processes 8 train.py --model_name_or_path Qwen/Qwen3-8B --max_length 64",
            {"num_gpus": 8, "seq_len": 64, "framework": "TRL"},
        ),
        (
            "torchrun --nproc_per_node=4 --nnodes 2 run.py --model_name_or_path Qwen/Qwen3-8B --output_dir o",
            {"num_gpus": 8, "framework": "transformers"},
        ),
    ],
)
def test_other_launchers(tmp_path: Path, line: str, expected: dict[str, Any]) -> None:
    assert values(written(tmp_path, line + "\n", name="train.sh"), expected) == expected


def test_unsloth_hidden_defaults(tmp_path: Path) -> None:
    run = written(tmp_path, UNSLOTH)
    expected = {
        "method": "qlora", "weights_dtype": "nf4_dq", "lora_rank": 64, "lora_alpha": 16.0, "num_gpus": 1,
        "activation_checkpointing": "offload", "kernels": ("unsloth",), "loss": "fused", "seq_len": 1024,
        "optimizer": "adamw_8bit", "micro_batch_size": 2,
    }  # fmt: skip
    assert values(run, expected) == expected
    full = written(tmp_path, "model: Qwen/Qwen3-8B\ntraining: {max_seq_length: 9, training_type: full}\n")
    assert (full.method, full.weights_dtype) == ("full", "bf16")
    text = UNSLOTH.replace("Qwen/Qwen3-8B", "unsloth/Qwen3-8B-unsloth-bnb-4bit").replace(
        "1024", "9, maxsteps: 1"
    )
    copy = written(tmp_path, text)
    assert (copy.method, copy.config["model_type"]) == ("qlora", "qwen3")
    assert "'training.maxsteps'" in copy.warnings[0]


def test_unsloth_notebook(tmp_path: Path) -> None:
    text = (
        "model, tok = FastLanguageModel.from_pretrained(model_name='Qwen/Qwen3-8B', max_seq_length=n)\n"
        "model = FastLanguageModel.get_peft_model(model, r=4, use_gradient_checkpointing=True)\n"
        "SFTTrainer(model=model, args=SFTConfig(max_steps=30, per_device_train_batch_size=3))\n"
    )
    run = written(tmp_path, text, name="nb.py")
    expected = {
        "framework": "Unsloth", "method": "qlora", "lora_rank": 4, "max_steps": 30, "micro_batch_size": 3,
        "activation_checkpointing": "full", "gradient_accumulation_steps": 1,
    }  # fmt: skip
    assert values(run, expected) == expected
    assert "max_seq_length is computed" in run.warnings[0]
