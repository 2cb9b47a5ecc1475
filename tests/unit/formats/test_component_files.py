"""Files that name their parts by dotted paths: torchtune's, NeMo's; and torchtitan's TOML."""

from pathlib import Path
from typing import Any

import pytest

from finegauge.errors import FieldError, FileFormatError
from finegauge.formats.reading import read
from finegauge.run.run import Run

TUNE = """
model: {_component_: torchtune.models.%s, lora_rank: 8}
tokenizer: {max_seq_len: 1024}
"""
AUTOMODEL = """
recipe: TrainFinetuneRecipeForNextTokenPrediction
model: {_target_: a.from_pretrained, pretrained_model_name_or_path: Qwen/Qwen3-8B}
dataset: {seq_length: 1024}
"""
NEMO_1 = """
trainer: {devices: 8, num_nodes: 2, precision: bf16, max_steps: 100}
model:
  restore_from_path: /models/llama2-13b.nemo
  micro_batch_size: 2
  global_batch_size: 64
  tensor_model_parallel_size: 4
"""
TITAN = """
[model]
name = "qwen3"
flavor = "8B"
[training]
seq_len = 1024
"""


def written(folder: Path, text: str, *words: str, name: str = "job.yaml") -> Run:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return read(path, words)


def values(run: Run, expected: dict[str, Any]) -> dict[str, Any]:
    return {name: getattr(run, name) for name in expected}


@pytest.mark.parametrize(
    ("builder", "model", "method"),
    [
        ("llama3_1.lora_llama3_1_8b", "meta-llama/Meta-Llama-3.1-8B", "lora"),
        ("llama2.llama2_13b", "meta-llama/Llama-2-13b-hf", "full"),
        ("qwen2_5.qlora_qwen2_5_1_5b_instruct", "Qwen/Qwen2.5-1.5B-Instruct", "qlora"),
        ("qwen2.lora_qwen2_0_5b", "Qwen/Qwen2-0.5B-Instruct", "lora"),
    ],
)
def test_torchtune_builder_names_model_and_method(
    tmp_path: Path, builder: str, model: str, method: str
) -> None:
    run = written(tmp_path, TUNE % builder)
    assert (run.model, run.method, run.weights_dtype) == (
        model,
        method,
        "nf4_dq" if method == "qlora" else "bf16",
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {"micro_batch_size": 2, "adapter_dtype": "bf16", "autocast": "none", "num_gpus": 1}),
        ("dataset: {packed: true}", {"packing": True, "padding": "free"}),
        ("loss: {_component_: a.CEWithChunkedOutputLoss}", {"loss": "chunked"}),
        ("optimizer: {_component_: bitsandbytes.optim.PagedAdamW8bit}", {"optimizer": "paged_adamw_8bit"}),
        ("optimizer_in_bwd: true", {"optimizer_implementation": "in_backward"}),
        ("enable_activation_checkpointing: true\nenable_activation_offloading: true",
         {"activation_checkpointing": "offload"}),
        ("fsdp_cpu_offload: true", {"sharding": "fsdp", "cpu_offload": "params"}),
        ("max_steps_per_epoch: 50\nepochs: 3", {"max_steps": 150}),
    ],
)  # fmt: skip
def test_torchtune_keys(tmp_path: Path, text: str, expected: dict[str, Any]) -> None:
    run = written(tmp_path, TUNE % "llama3_1.lora_llama3_1_8b" + text)
    assert values(run, expected) == expected


def test_torchtune_overrides_typos_and_launcher(tmp_path: Path) -> None:
    text = TUNE % "llama3_1.lora_llama3_1_8b" + "bacth_size: 3\n"
    run = written(tmp_path, text, "num_gpus=8", "model.lora_rank=4", "batch_size=1")
    assert (run.sharding, run.data_parallel_shard, run.lora_rank, run.micro_batch_size) == ("fsdp", 8, 4, 1)
    assert "'bacth_size', which is ignored. Did you mean 'batch_size'" in " ".join(run.warnings)
    assert written(tmp_path, text, "model=qwen3-8b").model == "qwen3-8b"
    with pytest.raises(FieldError, match="does not name a builder"):
        written(tmp_path, "model: {_component_: nonsense}\n")


def test_automodel(tmp_path: Path) -> None:
    expected = {
        "method": "full", "weights_dtype": "bf16", "autocast": "none", "sharding": "fsdp", "seq_len": 1024,
        "activation_checkpointing": "none", "loss": "full_logits", "micro_batch_size": 1,
    }  # fmt: skip
    assert values(written(tmp_path, AUTOMODEL, "num_gpus=2"), expected) == expected
    text = AUTOMODEL + (
        "peft: {target_modules: ['*_proj'], dim: 4, dimm: 3}\nquantization: {load_in_4bit: true}\n"
        "distributed: {strategy: ddp, tp_size: 2, dp_size: none}\n"
        "step_scheduler: {global_batch_size: 32, local_batch_size: 2}\n"
        "loss_fn: {_target_: nemo.FusedLinearCrossEntropy}\n"
    )
    run = written(tmp_path, text, "num_gpus=8")
    expected = {
        "method": "qlora", "weights_dtype": "nf4", "lora_rank": 4, "sharding": "none", "loss": "fused",
        "data_parallel_replicate": 4, "gradient_accumulation_steps": 4, "global_batch_size": 32,
    }  # fmt: skip
    assert values(run, expected) == expected
    assert "'peft.dimm'" in run.warnings[-1]
    with pytest.raises(FieldError, match="is not a multiple of micro_batch_size=2 on 5 data-parallel"):
        written(tmp_path, text, "num_gpus=10")
    with pytest.raises(FieldError, match="only adapters train"):
        written(tmp_path, AUTOMODEL + "quantization: {load_in_4bit: true}\n")


def test_nemo_1(tmp_path: Path) -> None:
    run = written(tmp_path, NEMO_1)
    expected = {
        "model": "meta-llama/Llama-2-13b-hf", "method": "full", "num_gpus": 16, "num_nodes": 2,
        "tensor_parallel": 4, "data_parallel": 4, "gradient_accumulation_steps": 8, "max_steps": 100,
        "weights_dtype": "fp32", "autocast": "bf16", "sharding": "none",
    }  # fmt: skip
    assert values(run, expected) == expected
    text = (
        NEMO_1
        + "  peft: {peft_scheme: lora, lora_tuning: {target_modules: [mlp_all]}}\n  megatron_amp_O2: true\n"
    )
    lora = written(tmp_path, text)
    assert (lora.lora_rank, lora.lora_targets) == (32, ("gate_proj", "up_proj", "down_proj"))
    assert (lora.weights_dtype, lora.autocast) == ("bf16", "none")
    with pytest.raises(FieldError, match="is not supported"):
        written(tmp_path, NEMO_1 + "  peft: {peft_scheme: ia3}\n")


def test_torchtitan(tmp_path: Path) -> None:
    run = written(tmp_path, TITAN, "num_gpus=8", name="job.toml")
    expected = {
        "model": "Qwen/Qwen3-8B", "method": "full", "phase": "pretrain", "weights_dtype": "fp32",
        "autocast": "bf16", "sharding": "fsdp", "data_parallel_shard": 8, "micro_batch_size": 8,
        "activation_checkpointing": "full", "recompute_num_layers": 2, "recompute_method": "every",
        "packing": True, "max_steps": 10_000,
    }  # fmt: skip
    assert values(run, expected) == expected
    text = TITAN + (
        "steps = 5\nbatchsize = 3\nglobal_batch_size = 64\nlocal_batch_size = 4\n"
        "[parallelism]\npipeline_parallel_degree = 2\ndata_parallel_replicate_degree = 2\n"
        '[activation_checkpoint]\nmode = "full"\n'
    )
    run = written(tmp_path, text, "num_gpus=8", name="job.toml")
    expected = {"pipeline_parallel": 2, "sharding": "hybrid", "data_parallel": 4, "max_steps": 5}
    expected |= {"activation_checkpointing": "full", "gradient_accumulation_steps": 16}
    assert values(run, expected) == expected
    assert "'training.batchsize'" in run.warnings[-1]
    with pytest.raises(FieldError, match="is unknown; use none, selective or full"):
        written(tmp_path, TITAN + '[activation_checkpoint]\nmode = "half"\n', name="job.toml")


def test_toml_beyond_reason_is_refused(tmp_path: Path) -> None:
    nested = "x = " + "[" * 60 + "]" * 60
    for text in (nested, "x = " + "[" * 3000 + "]" * 3000, "x = [" + "[]," * 21_000 + "]"):
        with pytest.raises(FileFormatError, match=r"refused|too deep"):
            written(tmp_path, text, name="job.toml")


MEGATRON = (
    "torchrun --nnodes 2 --nproc-per-node 8 pretrain_gpt.py --num-layers 61 --hidden-size 2048"
    " --seq-length 4096 --num-attention-heads 16 --max-position-embeddings 4096"
    " --padded-vocab-size 32000 --micro-batch-size 1 --bf16 --pipeline-model-parallel-size 16"
    " --pipeline-model-parallel-layout '%s'"
)


def test_megatrons_layout_of_a_pipeline(tmp_path: Path) -> None:
    run = written(tmp_path, MEGATRON % "Et*3|(tt|)*29,m|L", name="job.sh")
    assert (run.virtual_pipeline_stages, run.first_stage_layers, run.last_stage_layers) == (2, 5, 2)


@pytest.mark.parametrize("layout", ["Et*3|(tt|)*28,m|L", "Ex|t", "((t*999)*999)*999"])
def test_a_layout_that_is_none_is_refused(layout: str, tmp_path: Path) -> None:
    with pytest.raises(FieldError, match="pipeline_model_parallel_layout"):
        written(tmp_path, MEGATRON % layout, name="job.sh")
