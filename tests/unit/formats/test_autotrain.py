"""AutoTrain's files: hidden defaults, each key that changes a run, refusals; none is taken for Axolotl's."""

from pathlib import Path
from typing import Any

import pytest

from finegauge.errors import FieldError
from finegauge.formats.reading import read
from finegauge.run.run import Run

SMALLEST = """\
task: llm-sft
base_model: llama-3-8b
project_name: mine
data: {path: commonsense_15k, train_split: train, column_mapping: {text_column: text}}
params:
  lr: 1e-5
"""


def run_of(tmp_path: Path, *params: str, text: str = SMALLEST) -> Run:
    path = tmp_path / "autotrain.yaml"
    path.write_text(text + "".join(f"  {one}\n" for one in params), "utf-8")
    return read(path)


def test_hidden_defaults(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    expected = {
        "framework": "AutoTrain", "phase": "sft", "method": "full", "weights_dtype": "fp32",
        "autocast": "none", "seq_len": 1024, "packing": True, "micro_batch_size": 2,
        "gradient_accumulation_steps": 4, "epochs": 1,
        "activation_checkpointing": "full", "checkpointing_reentrant": False, "attention": "sdpa",
        "optimizer": "adamw", "dataset": "commonsense_15k",
    }  # fmt: skip
    assert {name: getattr(run, name) for name in expected} == expected
    assert run.origins["micro_batch_size"] == "framework default: AutoTrain"
    assert not [warning for warning in run.warnings if "known" in warning or "key" in warning]


def test_adapters_are_quantised_unasked(tmp_path: Path) -> None:
    run = run_of(tmp_path, "peft: true")
    assert (run.method, run.weights_dtype, run.adapter_dtype) == ("qlora", "nf4", "fp32")
    assert (run.lora_rank, run.lora_alpha, run.lora_dropout) == (16, 32, 0.05)
    assert run.lora_targets == ("all-linear",)
    assert run.checkpointing_reentrant


@pytest.mark.parametrize(
    ("params", "fields"),
    [
        (("peft: true", "quantization: int8"), {"method": "qlora", "weights_dtype": "int8"}),
        (("peft: true", "quantization: none"), {"method": "lora", "weights_dtype": "fp32"}),
        (("quantization: int4",), {"method": "full"}),
        (("peft: true", "lora_r: 8", "target_modules: q_proj,v_proj"),
         {"lora_rank": 8, "lora_targets": ("q_proj", "v_proj")}),
        (("mixed_precision: bf16",), {"autocast": "bf16"}),
        (("block_size: 4096",), {"seq_len": 2048}),  # its tokenizer cuts there unasked
        (("block_size: 4096", "model_max_length: 4096"), {"seq_len": 4096}),
        (("distributed_backend: deepspeed",), {"sharding": "zero3"}),
        (("block_size: [512, 256]",), {"seq_len": 512}),
        (("disable_gradient_checkpointing: true",), {"activation_checkpointing": "none"}),
        (("use_flash_attention_2: true",), {"attention": "flash"}),
        (("optimizer: paged_adamw_8bit",), {"optimizer": "paged_adamw_8bit"}),
        (("batch_size: 8", "gradient_accumulation: 2", "epochs: 3"),
         {"micro_batch_size": 8, "gradient_accumulation_steps": 2, "epochs": 3}),
        (("trainer: dpo",), {"phase": "dpo", "packing": False, "padding": "longest"}),
    ],
)  # fmt: skip
def test_what_each_key_states(tmp_path: Path, params: tuple[str, ...], fields: dict[str, Any]) -> None:
    run = run_of(tmp_path, *params)
    assert {name: getattr(run, name) for name in fields} == fields


def test_the_task_names_the_trainer(tmp_path: Path) -> None:
    assert run_of(tmp_path, text=SMALLEST.replace("llm-sft", "llm:reward")).phase == "reward"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (SMALLEST.replace("llm-sft", "text-classification"), "task='text-classification' is not supported"),
        (SMALLEST + "  trainer: ppo\n", "params.trainer='ppo' is not supported"),
        (SMALLEST + "  peft: true\n  quantization: int2\n", "params.quantization='int2' is not supported"),
    ],
)
def test_what_is_not_described_is_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(FieldError, match=sentence):
        run_of(tmp_path, text=text)
