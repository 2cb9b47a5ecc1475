"""LLaMA-Factory's v1 YAML (`USE_V1=1 llamafactory-cli sft`): the reverse of `readers.llamafactory_v1`."""

from typing import TYPE_CHECKING, Any

from finegauge.workload.writers import launcher, trainer
from finegauge.workload.writers.sheet import (
    DEEPSPEED,
    Sheet,
    dataset_name,
    refuse,
    repository,
    targets,
    whole_number,
    without,
)

if TYPE_CHECKING:
    from finegauge.workload.run import Run

NAME = "LLaMA-Factory v1"
FILE = "llamafactory_v1.yaml"
_COMMANDS = {"sft": "sft", "dpo": "dpo", "reward": "rm"}


def sheet(run: "Run") -> Sheet:
    """Return the files of LLaMA-Factory v1 for `run`.

    Raises: InputError for a method or a phase that it does not have.
    """
    divided = [name for name in ("tensor_parallel", "pipeline_parallel") if getattr(run, name) > 1]
    if run.method == "gptq_lora" or run.phase not in _COMMANDS or divided:
        field = divided[0] if divided else "phase" if run.phase not in _COMMANDS else "method"
        instead = "it divides no layers" if divided else "it trains in full, by LoRA, QLoRA or freezing"
        raise refuse(NAME, field, getattr(run, field), f"{instead}.")
    free = "dynamic_padding_free" if run.packing else "padding_free"
    keys = {
        "model": repository(run),
        "flash_attn": trainer.ATTENTION[run.attention],
        "peft_config": _peft(run),
        "quant_config": _quantization(run),
        "kernel_config": {"name": "liger_kernel"} if "liger" in run.kernels else None,
        "dist_config": _distribution(run),
        "train_dataset": dataset_name(run),
        "micro_batch_size": run.micro_batch_size,
        "global_batch_size": run.global_batch_size,
        "cutoff_len": run.seq_len,
        "batching_strategy": free if run.packing or run.padding == "free" else "normal",
        "num_train_epochs": whole_number(run.epochs),
        "max_steps": run.max_steps,
        "bf16": run.weights_dtype != "fp32" or run.autocast == "bf16",
        "enable_activation_checkpointing": run.activation_checkpointing != "none",
        "output_dir": "output",
    }
    beside = {DEEPSPEED: launcher.deepspeed(run)} if launcher.uses_deepspeed(run) else {}
    command = f"USE_V1=1 llamafactory-cli {_COMMANDS[run.phase]} {FILE}"
    if run.num_gpus > 1:
        command = f"FORCE_TORCHRUN=1 {launcher.environment(run)} {command}"
    return Sheet(FILE, without(keys), command, "llamafactory", beside, spoken=("phase",))


def _peft(run: "Run") -> dict[str, Any] | None:
    """Return which parameters train; None for all."""
    if run.method == "freeze":
        return {"name": "freeze", "freeze_trainable_layers": run.freeze_trainable_layers}
    if not run.trains_adapters:
        return None
    adapted = targets(run)
    return without(
        {
            "name": "lora",
            "r": run.lora_rank,
            "lora_alpha": whole_number(run.lora_alpha),
            "lora_dropout": run.lora_dropout,
            "target_modules": "all" if adapted == ("all-linear",) else list(adapted),
            "modules_to_save": trainer.saved_modules(run),
        }
    )


def _quantization(run: "Run") -> dict[str, Any] | None:
    """Return how the frozen weights are quantised."""
    if run.method != "qlora":
        return None
    if run.weights_dtype == "int8":
        return {"name": "bnb", "quantization_bit": 8}
    return {"name": "bnb", "quantization_bit": 4, "double_quantization": run.weights_dtype == "nf4_dq"}


def _distribution(run: "Run") -> dict[str, Any] | None:
    """Return who shards; None for nobody."""
    if launcher.uses_deepspeed(run):
        return {"name": "deepspeed", "config_file": DEEPSPEED}
    if not launcher.uses_fsdp(run):
        return None
    replicas = run.data_parallel_replicate
    return without(
        {
            "name": "fsdp2",
            "reshard_after_forward": False if run.sharding == "fsdp_shard_grad_op" else None,
            "offload_params": True if run.cpu_offload != "none" else None,
            "mp_replicate_size": replicas if replicas > 1 else None,
            "cp_size": run.context_parallel if run.context_parallel > 1 else None,
            "ep_size": run.expert_parallel if run.expert_parallel > 1 else None,
        }
    )
