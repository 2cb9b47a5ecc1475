"""The files written for TRL and accelerate, parsed by TRL's and accelerate's own classes."""

import warnings
from pathlib import Path

import pytest
from accelerate.commands.config.config_args import load_config_from_file
from trl import DPOConfig, ModelConfig, ScriptArguments, SFTConfig, TrlParser

from finegauge.formats.writing import write
from finegauge.run.run import Run

LORA = Run(model="Qwen/Qwen3-8B", method="lora", dataset="math_14k", num_gpus=2, sharding="fsdp")
RUNS = {
    "lora": LORA,
    "lora, every key": LORA.replace(
        group_by_length=True,
        eval_samples=9,
        trainable_extra=("norms",),
        lora_targets=("q_proj",),
        compile=True,
    ),
    "full, ZeRO-3": LORA.replace(
        method="full",
        autocast="bf16",
        weights_dtype="fp32",
        sharding="zero3",
        cpu_offload="all",
        num_gpus=8,
    ),
    "qlora, packed": Run(
        model="Qwen/Qwen3-8B",
        method="qlora",
        packing=True,
        padding="free",
        activation_checkpointing="offload",
        kernels=("liger",),
        optimizer="paged_adamw_8bit",
        max_steps=7,
        attention="flash",
        saves_per_epoch=0.0,
    ),
    "dpo": LORA.replace(phase="dpo", num_gpus=1, sharding="none"),
    "five dimensions": LORA.replace(
        method="full",
        sharding="hybrid",
        num_gpus=16,
        num_nodes=2,
        data_parallel_replicate=2,
        tensor_parallel=2,
        context_parallel=2,
    ),
}


@pytest.mark.parametrize("name", RUNS)
def test_trl_takes_the_file(tmp_path: Path, name: str) -> None:
    run = RUNS[name]
    written = write(run, "trl", tmp_path)
    config = DPOConfig if run.phase == "dpo" else SFTConfig
    words = ["--config", written.paths[0], "--use_cpu", "true", "--output_dir", str(tmp_path / "out")]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        script, args, model = TrlParser((ScriptArguments, config, ModelConfig)).parse_args_and_config(words)
    assert (args.per_device_train_batch_size, args.max_length) == (run.micro_batch_size, run.seq_len)
    assert args.gradient_accumulation_steps == run.gradient_accumulation_steps
    assert args.bf16 == (run.autocast == "bf16")
    assert bool(args.gradient_checkpointing) == (run.activation_checkpointing != "none")
    assert (model.use_peft, model.load_in_4bit) == (run.trains_adapters, run.method == "qlora")
    assert (model.model_name_or_path, script.dataset_name) == (run.model, run.dataset)


@pytest.mark.parametrize("name", [name for name, run in RUNS.items() if run.num_gpus > 1])
def test_accelerate_takes_the_file(tmp_path: Path, name: str) -> None:
    run = RUNS[name]
    launcher = write(run, "trl", tmp_path).alongside.accelerate
    assert launcher is not None
    config = load_config_from_file(launcher)
    assert (config.num_processes, config.num_machines) == (run.num_gpus, run.num_nodes)
    sharded = config.deepspeed_config if run.sharding == "zero3" else config.fsdp_config
    assert sharded
