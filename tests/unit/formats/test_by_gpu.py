"""A 16-bit format that a framework chooses by the GPU: bf16, or fp16 where the GPU has none."""

from pathlib import Path

import pytest

import finegauge
from finegauge.errors import UnsupportedError
from finegauge.prediction.moments import moments_of
from finegauge.prediction.predictor import predict
from finegauge.run.run import Run
from finegauge.units import GIB

UNSLOTH = """
from unsloth import FastLanguageModel
from trl import SFTConfig, SFTTrainer

model, _ = FastLanguageModel.from_pretrained("unsloth/{model}", max_seq_length=1024, load_in_4bit=True)
model = FastLanguageModel.get_peft_model(model, r=8, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"])
SFTTrainer(model=model, train_dataset=data, args=SFTConfig(per_device_train_batch_size=1)).train()
"""
ASKING = """
import torch
from peft import LoraConfig
from trl import SFTConfig, SFTTrainer

half = torch.cuda.is_bf16_supported()
SFTTrainer(model="Qwen/Qwen3-0.6B", train_dataset=data, peft_config=LoraConfig(r=8),
           args=SFTConfig(output_dir="x", bf16=half, fp16=not half)).train()
"""
AXOLOTL = """
base_model: Qwen/Qwen3-0.6B
adapter: lora
lora_r: 8
lora_alpha: 16
lora_target_linear: true
sequence_len: 512
micro_batch_size: 1
gradient_accumulation_steps: 1
num_epochs: 1
bf16: {bf16}
datasets: [{{path: tatsu-lab/alpaca, type: alpaca}}]
"""
LLAMA_FACTORY = """
model_name_or_path: Qwen/Qwen3-0.6B
stage: sft
finetuning_type: lora
dataset: alpaca_en_demo
template: qwen3
"""
SWIFT = "swift sft --model Qwen/Qwen3-0.6B --train_type lora --dataset x --max_length 512"


def asked(folder: Path, name: str, text: str, gpu: str = "T4") -> Run:
    """Return the run of a file on a GPU."""
    path = folder / name
    path.write_text(text, "utf-8")
    return finegauge.read(str(path), (f"gpu={gpu}",))


@pytest.mark.parametrize(
    ("name", "text", "field"),
    [
        ("unsloth.py", UNSLOTH.format(model="Qwen3-0.6B"), "autocast"),
        ("asking.py", ASKING, "autocast"),
        ("axolotl.yaml", AXOLOTL.format(bf16="auto"), "weights_dtype"),
        ("llamafactory.yaml", LLAMA_FACTORY, "weights_dtype"),
        ("swift.sh", SWIFT, "autocast"),
    ],
)
def test_the_framework_chooses_by_the_gpu(tmp_path: Path, name: str, text: str, field: str) -> None:
    run = asked(tmp_path, name, text)
    assert getattr(run, field) == "fp16"
    assert predict(run).step_time_s.total > 0
    assert getattr(run.replace(gpu="L4"), field) == "bf16"
    assert getattr(run.replace(gpu="L4").replace(gpu="V100-SXM2-16GB"), field) == "fp16"


def test_what_a_file_states_stands(tmp_path: Path) -> None:
    run = asked(tmp_path, "axolotl.yaml", AXOLOTL.format(bf16="true"))
    with pytest.raises(UnsupportedError, match="T4 has no bf16"):
        predict(run)


def test_experts_of_gpt_oss_are_quantised_by_unsloth_alone(tmp_path: Path) -> None:
    """Its publishers say that 14 GB are enough; transformers' own experts stay in 16 bits."""
    run = asked(tmp_path, "unsloth.py", UNSLOTH.format(model="gpt-oss-20b"))
    assert run.quantize_experts
    assert predict(run).device_memory_bytes.total < 14 * GIB
    load = next(one for one in moments_of(predict(run)) if one.moment == "load")
    assert load.device_bytes < predict(run).device_memory_bytes.total  # a copy in 4 bits is downloaded
    alone = Run(model="openai/gpt-oss-20b", method="qlora", gpu="H100", transformers_version="4.57")
    assert not alone.quantize_experts
    assert Run(model="unsloth/gpt-oss-20b-unsloth-bnb-4bit", method="qlora").quantize_experts
    assert Run(model="mixtral-8x7b", method="qlora", transformers_version="4.57").quantize_experts
