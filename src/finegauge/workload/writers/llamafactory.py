"""LLaMA-Factory's YAML (v0, `llamafactory-cli train`): the reverse of `readers.llamafactory`.

The framework has no tensor, pipeline or context parallelism in this format, and its trained weights
are fp32 unless `pure_bf16`. FSDP stands in accelerate's file, ZeRO in DeepSpeed's.
"""

from typing import TYPE_CHECKING, Any

from finegauge.workload.writers import launcher, trainer
from finegauge.workload.writers.sheet import (
    ACCELERATE,
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

NAME = "LLaMA-Factory"
FILE = "llamafactory.yaml"
_ATTENTION = {"sdpa": "sdpa", "flash": "fa2", "eager": "disabled"}


def sheet(run: "Run") -> Sheet:
    """Return the files of LLaMA-Factory for `run`.

    Raises: InputError for a model or a sequence divided among GPUs.
    """
    keys: dict[str, Any] = {
        "model_name_or_path": repository(run),
        "stage": trainer.PHASES.get(run.phase, run.phase),
        "do_train": True,
        **_method(run),
        **_data(run),
        **trainer.batch(run),
        **trainer.duration(run),
        **_precision(run),
        "flash_attn": _ATTENTION[run.attention],
        **_checkpointing(run),
        "enable_liger_kernel": True if "liger" in run.kernels else None,
        "use_unsloth": True if "unsloth" in run.kernels else None,
        "optim": trainer.optimizer(run),
        **trainer.compiled(run),
        "output_dir": "output",
    }
    for field in ("tensor_parallel", "context_parallel"):
        if getattr(run, field) > 1 and not (field == "tensor_parallel" and launcher.uses_deepspeed(run)):
            raise refuse(
                NAME, field, getattr(run, field), "only DeepSpeed divides a model for it, up to ZeRO-2."
            )
    beside: dict[str, dict[str, Any]] = {}
    command = f"llamafactory-cli train {FILE}"
    if launcher.uses_fsdp(run):
        beside[ACCELERATE] = launcher.accelerate(run)
        command = launcher.accelerate_launch(run, f"-m llamafactory.launcher {FILE}")
    else:
        if launcher.uses_deepspeed(run):
            keys["deepspeed"] = DEEPSPEED
            beside[DEEPSPEED] = launcher.deepspeed(run)
        if run.num_gpus > 1:
            command = f"FORCE_TORCHRUN=1 {launcher.environment(run)} {command}"
    notes = () if keys.get("dataset") is None else ("dataset_info.json has to list the data set.",)
    return Sheet(FILE, without(keys), command, _packages(run, beside), beside, notes)


def _packages(run: "Run", beside: dict[str, Any]) -> str:
    """Return what pip has to install."""
    extras = ["llamafactory"]
    extras += ["deepspeed"] if DEEPSPEED in beside else []
    extras += ["bitsandbytes"] if run.method == "qlora" or "8bit" in run.optimizer else []
    extras += ["liger-kernel"] if "liger" in run.kernels else []
    return " ".join(extras)


def _method(run: "Run") -> dict[str, Any]:
    """Return which parameters train."""
    if not run.trains_adapters:
        return without(
            {"finetuning_type": run.method, "freeze_trainable_layers": run.freeze_trainable_layers}
        )
    adapted = targets(run)
    quantized = run.method != "lora"
    four = run.weights_dtype != "int8"
    return without(
        {
            "finetuning_type": "lora",
            "lora_rank": run.lora_rank,
            "lora_alpha": whole_number(run.lora_alpha),
            "lora_dropout": run.lora_dropout,
            "lora_target": "all" if adapted == ("all-linear",) else ",".join(adapted),
            "additional_target": ",".join(trainer.saved_modules(run) or ()) or None,
            "quantization_bit": (4 if four else 8) if quantized else None,
            "double_quantization": run.weights_dtype == "nf4_dq" if quantized and four else None,
            "upcast_layernorm": True if run.upcast_unquantized else None,
        }
    )


def _precision(run: "Run") -> dict[str, Any]:
    """Return the number formats: bf16 throughout, or mixed precision over fp32 trained weights."""
    trained = run.adapter_dtype if run.trains_adapters else run.weights_dtype
    if run.autocast == "none" and trained == "bf16":
        return {"pure_bf16": True}
    return trainer.precision(run)


def _checkpointing(run: "Run") -> dict[str, Any]:
    """Return gradient checkpointing, which is on where nothing is said."""
    kind = run.activation_checkpointing
    if kind == "none":
        return {"disable_gradient_checkpointing": True}
    return {
        "disable_gradient_checkpointing": False,
        "use_unsloth_gc": True if kind == "offload" else None,
        "use_reentrant_gc": run.checkpointing_reentrant,
    }


def _data(run: "Run") -> dict[str, Any]:
    """Return the data set, its cut-off and its batching."""
    named = dataset_name(run)
    held_out = run.validation_fraction > 0
    return {
        "dataset": named,
        "cutoff_len": run.seq_len,
        "max_samples": run.num_samples if named else None,
        "val_size": run.validation_fraction if held_out else None,
        **(trainer.evaluation(run) if held_out else {}),
        "packing": run.packing,
        "neat_packing": True if run.packing and run.padding == "free" else None,
        **trainer.grouping(run),
    }
