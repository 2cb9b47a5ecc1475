"""Axolotl's YAML: the reverse of `readers.axolotl`."""

from typing import TYPE_CHECKING, Any

from finegauge.workload.writers import launcher, trainer
from finegauge.workload.writers.sheet import (
    DEEPSPEED,
    Sheet,
    dataset_name,
    file_kind,
    repository,
    targets,
    whole_number,
    without,
)

if TYPE_CHECKING:
    from finegauge.workload.run import Run

NAME = "Axolotl"
FILE = "axolotl.yaml"
_RL = {"dpo": "dpo", "grpo": "grpo"}
_OPTIMIZERS = {"adamw_8bit": "adamw_bnb_8bit"}
_LIGER = "axolotl.integrations.liger.LigerPlugin"
_CUT = "axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin"


def sheet(run: "Run") -> Sheet:
    """Return the files of Axolotl for `run`."""
    name = trainer.optimizer(run)
    keys = {
        "base_model": repository(run),
        "rl": _RL.get(run.phase),
        "reward_model": True if run.phase == "reward" else None,
        **_method(run),
        **_data(run),
        "micro_batch_size": run.micro_batch_size,
        "gradient_accumulation_steps": run.gradient_accumulation_steps,
        "num_epochs": float(run.epochs),
        "max_steps": run.max_steps,
        "saves_per_epoch": whole_number(run.saves_per_epoch),
        **_precision(run),
        **_checkpointing(run),
        "attn_implementation": trainer.ATTENTION[run.attention],
        **_kernels(run),
        "optimizer": _OPTIMIZERS.get(name, name),
        "experts_implementation": "eager" if run.experts_implementation == "eager" else None,
        **trainer.compiled(run),
        **_parallelism(run),
        "output_dir": "output",
    }
    beside = {DEEPSPEED: launcher.deepspeed(run)} if launcher.uses_deepspeed(run) else {}
    command = f"axolotl train {FILE}"
    if run.num_gpus > 1:
        command = f"{command} --launcher torchrun -- {_torchrun_words(run)}"
    packages = "axolotl[deepspeed]" if beside else "axolotl"
    return Sheet(FILE, without(keys), command, packages, beside)


def _torchrun_words(run: "Run") -> str:
    """Return what torchrun is told."""
    return launcher.torchrun(run, "").removeprefix("torchrun ").strip()


def _method(run: "Run") -> dict[str, Any]:
    """Return which parameters train, and how the others rest."""
    if not run.trains_adapters:
        return {}
    adapted = targets(run)
    everything = adapted == ("all-linear",)
    four = run.weights_dtype in ("nf4", "nf4_dq")
    return {
        "adapter": "qlora" if four or run.method == "gptq_lora" else "lora",
        "gptq": True if run.method == "gptq_lora" else None,
        "load_in_4bit": True if four else None,
        "load_in_8bit": True if run.weights_dtype == "int8" else None,
        "bnb_config_kwargs": {"bnb_4bit_use_double_quant": False} if run.weights_dtype == "nf4" else None,
        "lora_r": run.lora_rank,
        "lora_alpha": whole_number(run.lora_alpha),
        "lora_dropout": run.lora_dropout,
        "lora_target_linear": True if everything else None,
        "lora_target_modules": None if everything else list(adapted),
        "lora_modules_to_save": trainer.saved_modules(run),
        "peft_autocast_adapter_dtype": None if run.adapter_dtype == "fp32" else False,
    }


def _precision(run: "Run") -> dict[str, Any]:
    """Return the number formats: mixed precision, or one format for everything."""
    if run.autocast == "none" and (run.trains_adapters or run.weights_dtype != "fp32"):
        trained = run.adapter_dtype if run.weights_dtype not in trainer.DTYPES else run.weights_dtype
        pure = {"bf16": "bfloat16", "fp16": "float16"}.get(trained)
        return {"bf16": False, pure: True} if pure else {"bf16": False}
    return trainer.precision(run)


def _checkpointing(run: "Run") -> dict[str, Any]:
    """Return gradient checkpointing, selective and offloaded by keys of their own."""
    kind = run.activation_checkpointing
    return {
        **trainer.checkpointing(run),
        "selective_checkpointing": True if kind == "selective" else None,
        "activation_offloading": True if kind == "offload" else None,
    }


def _kernels(run: "Run") -> dict[str, Any]:
    """Return the plugins that bring fused kernels and a loss without whole logits."""
    liger, fused = "liger" in run.kernels, run.loss == "fused"
    plugins = ([_LIGER] if liger else []) + ([_CUT] if fused and not liger else [])
    return {
        "plugins": plugins or None,
        "liger_rope": True if liger else None,
        "liger_rms_norm": True if liger else None,
        "liger_glu_activation": True if liger else None,
        "liger_fused_linear_cross_entropy": fused if liger else None,
        "chunked_cross_entropy": True if run.loss == "chunked" else None,
    }


def _data(run: "Run") -> dict[str, Any]:
    """Return the data sets, the cut-off and the batching."""
    named = dataset_name(run)
    kind = file_kind(named) if named else None
    entry = without({"path": named, "ds_type": kind, "type": "chat_template"})
    listed = [entry] if named else None
    pretrain = run.phase == "pretrain"
    free = run.padding == "free"
    return {
        "datasets": None if pretrain else listed,
        "pretraining_dataset": (listed or [{"path": "pretraining"}]) if pretrain else None,
        "val_set_size": run.validation_fraction or None,
        "sequence_len": run.seq_len,
        "excess_length_strategy": run.over_length if run.over_length != "split" else "truncate",
        "sample_packing": run.packing,
        "pad_to_sequence_len": run.packing or run.padding == "max",
        "batch_flattening": True if free and not run.packing else None,
        "pad_to_multiple_of": None if run.packing else run.pad_to_multiple_of,
        "group_by_length": True if run.group_by_length else None,
    }


def _parallelism(run: "Run") -> dict[str, Any]:
    """Return sharding and degrees."""
    keys: dict[str, Any] = {}
    if launcher.uses_deepspeed(run):
        keys["deepspeed"] = DEEPSPEED
    elif launcher.uses_fsdp(run):
        keys |= {"fsdp_version": 2, "fsdp_config": launcher.fsdp_options(run)}
        keys["dp_shard_size"] = run.data_parallel_shard
    if launcher.uses_fsdp(run) and run.data_parallel_replicate > 1:
        keys["dp_replicate_size"] = run.data_parallel_replicate
    for key, field in (
        ("tensor_parallel_size", "tensor_parallel"),
        ("context_parallel_size", "context_parallel"),
    ):
        if getattr(run, field) > 1:
            keys[key] = getattr(run, field)
    return keys
