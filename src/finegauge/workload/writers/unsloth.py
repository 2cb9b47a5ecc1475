"""Unsloth's YAML (`unsloth train --config`): the reverse of `readers.unsloth`. One GPU, its own kernels."""

from typing import TYPE_CHECKING, Any

from finegauge.workload.writers import trainer
from finegauge.workload.writers.sheet import (
    Sheet,
    dataset_name,
    file_kind,
    refuse,
    repository,
    targets,
    whole_number,
    without,
)

if TYPE_CHECKING:
    from finegauge.workload.run import Run

NAME = "Unsloth"
FILE = "unsloth.yaml"
_CHECKPOINTING: dict[str, Any] = {"none": "none", "full": "true", "selective": "true", "offload": "unsloth"}


def sheet(run: "Run") -> Sheet:
    """Return the file of Unsloth for `run`.

    Raises: InputError for several GPUs, and for what its command does not train.
    """
    if run.num_gpus > 1:
        raise refuse(NAME, "num_gpus", run.num_gpus, "it trains on one GPU here.")
    if run.phase != "sft" or run.method not in ("full", "lora", "qlora"):
        field = "phase" if run.phase != "sft" else "method"
        raise refuse(NAME, field, getattr(run, field), "it fine-tunes in full, by LoRA or by QLoRA.")
    named = dataset_name(run)
    four = run.weights_dtype in ("nf4", "nf4_dq")
    keys: dict[str, Any] = {
        "model": repository(run),
        "data": _data(named) if named else None,
        "training": without(
            {
                "training_type": "full" if run.method == "full" else "lora",
                "load_in_4bit": four,
                "load_in_8bit": True if run.weights_dtype == "int8" else None,
                "max_seq_length": run.seq_len,
                "num_epochs": whole_number(run.epochs),
                "max_steps": run.max_steps,
                "batch_size": run.micro_batch_size,
                "gradient_accumulation_steps": run.gradient_accumulation_steps,
                "packing": run.packing,
                "padding_free": True if run.padding == "free" and not run.packing else None,
                "gradient_checkpointing": _CHECKPOINTING[run.activation_checkpointing],
                "optim": trainer.optimizer(run),
                "fp16": True if run.autocast == "fp16" else None,
                "output_dir": "output",
            }
        ),
        "lora": _adapters(run),
    }
    return Sheet(FILE, without(keys), f"unsloth train --config {FILE}", "unsloth")


def _data(named: str) -> dict[str, Any]:
    """Return the data set: of a hub by its name, or a file."""
    return {"local_dataset": [named]} if file_kind(named) else {"dataset": named}


def _adapters(run: "Run") -> dict[str, Any] | None:
    """Return the adapters."""
    if not run.trains_adapters:
        return None
    return without(
        {
            "lora_r": run.lora_rank,
            "lora_alpha": whole_number(run.lora_alpha),
            "lora_dropout": run.lora_dropout,
            "target_modules": ",".join(targets(run)),
            "modules_to_save": trainer.saved_modules(run),
        }
    )
