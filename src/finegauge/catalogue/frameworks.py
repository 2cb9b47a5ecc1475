"""What a training framework does unasked, for rows of measurement tables that do not say.

Each default was read in the framework's own source or configuration files (date below). Only
what changes memory or time is listed, and only where the row leaves it open.

Read 2026-11-20: torchtune 0.1 to 0.4 recipes/configs, litgpt 0.5 litgpt/finetune and config_hub,
llm-foundry scripts/train/benchmarking, InternEvo configs, Qwen finetune.py with finetune/*.sh,
transformers 4.44 TrainingArguments. Read 2026-11-21: Megatron-LM megatron/training/arguments.py,
torchtitan config/job_config.py, NeMo Automodel recipes, Unsloth's command line.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

Cells = Mapping[str, str]


class FrameworkDefault(NamedTuple):
    """One field's value, and which framework sets it where."""

    value: Any
    framework: str
    why: str


def defaults_of(cells: Cells) -> dict[str, FrameworkDefault]:
    """Return the fields that the framework of a row sets unasked; {} for a framework not known here."""
    framework = cells["framework"].lower()
    for key, (name, why, values) in _FRAMEWORKS.items():
        if key in framework:
            return {field: FrameworkDefault(v, name, why) for field, v in values(cells).items()}
    return {}


def _torchtune(cells: Cells) -> dict[str, Any]:
    """Return the recipe's defaults: pure bf16 (adapters too), chunked loss since 0.3."""
    version = _minor(cells["framework_version"])
    single = cells["num_gpus"] in ("", "1")
    values: dict[str, Any] = {
        "autocast": "none",
        "compile": False,
        "activation_checkpointing": "full",
        "gradient_accumulation_steps": 1,
        "adapter_dtype": "bf16",
        "optimizer": "paged_adamw_8bit" if cells["method"] == "full" and single else "adamw",
        "optimizer_implementation": "fused" if version >= (0, 3) else "foreach",
        "attention": "sdpa",
        "checkpointing_reentrant": False,
        "lora_rank": 8,
        "lora_targets": ("q_proj", "v_proj"),
    }
    recipe_optimizer = values["optimizer"].startswith("paged") and not cells["optimizer"]
    if recipe_optimizer or "optimizer_in_bwd" in cells["notes"]:
        values["optimizer_implementation"] = "in_backward"
    if version >= (0, 3) and "cumulative techniques" not in cells["notes"]:  # its ladder starts without
        values["loss"] = "chunked"
    if version >= (0, 3):
        values["lora_targets"] = ("q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
        values["lora_rank"] = 64 if "3.2-3b" in cells["model"].lower() else 8
    return values


def _litgpt(cells: Cells) -> dict[str, Any]:
    """Return the defaults of litgpt's finetune scripts: bf16-true throughout, adapters too."""
    return {
        "autocast": "none",
        "adapter_dtype": "bf16",
        "optimizer": "adamw",
        "attention": "sdpa",
        "compile": False,
        "checkpointing_reentrant": False,
        "transformers_version": "4.44",
        "bitsandbytes_version": "0.42",  # pinned in its pyproject.toml
        **({"lora_dropout": 0.05} if "lora" in cells["method"] else {}),
    }


def _composer(cells: Cells) -> dict[str, Any]:
    """Return the defaults of llm-foundry's benchmark: AdamW, packed sequences, fp32 shards under FSDP."""
    pure = cells["autocast"] == "none"  # Composer's PURE: bf16 master weights and gradients
    return {
        "autocast": "none" if pure else "bf16",
        "optimizer": "adamw",
        "packing": True,
        "compile": False,
        "attention": "flash",
        "kernels": _composer_kernels(cells),
        "optimizer_implementation": "foreach",
        "transformers_version": "4.44",
    }


def _composer_kernels(cells: Cells) -> tuple[str, ...]:
    """Return low-precision norms, flash-attn's fused cross-entropy, and which attention kernel.

    The benchmarks' model files ask for attn_impl: triton; those on 128 GPUs and more, the last to be
    run, for flash-attn 2, but for 13B and 30B (scripts/train/benchmarking/sweep.py and sweep.sh).
    """
    many = cells["num_gpus"].isdigit() and int(cells["num_gpus"]) >= 128
    second = many and not re.search(r"mpt-?(13|30)b", cells["model"], re.IGNORECASE)
    return ("foak",) if second else ("foak", "triton")


def _internevo(cells: Cells) -> dict[str, Any]:
    """Return InternEvo's defaults: fused kernels, bf16 with fp32 master weights."""
    del cells
    return {
        "autocast": "none",
        "optimizer": "adamw",
        "attention": "flash",
        "compile": False,
        "kernels": ("liger",),  # its own, which fuse as much
        "loss": "full_logits",
        "optimizer_implementation": "fused",
        "transformers_version": "4.44",
    }


def _megatron(cells: Cells) -> dict[str, Any]:
    """Return Megatron-LM's: bf16 with fp32 master weights and gradients, fused Adam, its own kernels."""
    del cells
    return {
        "experts_implementation": "grouped_mm",
        "weights_dtype": "bf16",
        "autocast": "none",
        "optimizer": "adamw",
        "attention": "flash",
        "compile": False,
        "kernels": ("megatron",),
        "optimizer_implementation": "fused",
        "transformers_version": "4.44",
    }


def _nemo(cells: Cells) -> dict[str, Any]:
    """Return NeMo's: Megatron-LM's with its distributed optimizer, which its recipes ask for."""
    several = cells["num_gpus"] not in ("", "1")
    return _megatron(cells) | ({"sharding": "zero1"} if several else {})


def _torchtitan(cells: Cells) -> dict[str, Any]:
    """Return torchtitan's: fp32 shards computed in bf16, selective checkpointing, fused AdamW.

    Its tensor parallelism divides norms and streams by tokens too (parallelize_llama).
    """
    return {
        **({"sequence_parallel": True} if re.search(r"tp-?=?([2-9]|1\d)", cells["parallelism"]) else {}),
        "weights_dtype": "fp32",
        "autocast": "bf16",
        "optimizer": "adamw",
        "optimizer_implementation": "fused",
        "attention": "sdpa",
        "compile": False,
        "activation_checkpointing": "selective",
        "checkpointing_reentrant": False,
        "packing": True,
        "gradient_accumulation_steps": 1,
    }


def _automodel(cells: Cells) -> dict[str, Any]:
    """Return NeMo Automodel's: bf16 throughout, adapters too."""
    del cells
    return {
        "autocast": "none",
        "adapter_dtype": "bf16",
        "optimizer": "adamw",
        "attention": "flash",
        "compile": False,
        "activation_checkpointing": "none",
        "checkpointing_reentrant": False,
    }


def _unsloth(cells: Cells) -> dict[str, Any]:
    """Return Unsloth's: its kernels and loss, checkpoints on the host, fp32 adapters under autocast."""
    return _hf_trainer(cells) | {
        "kernels": ("unsloth",),
        "loss": "fused",
        "activation_checkpointing": "offload",
        "autocast": "bf16",
        "attention": "flash",
    }


def counts_memory_as(cells: Cells) -> str:
    """Return how the framework of a row counts the peak memory that it prints; "" where that is not known.

    torchtune's log_peak_memory_stats prints torch's (training/memory.py from 0.3 on).
    """
    torchtune = "torchtune" in cells["framework"].lower() and _minor(cells["framework_version"]) >= (0, 3)
    return "torch_allocated" if torchtune else ""


def _qwen(cells: Cells) -> dict[str, Any]:
    """Return the defaults of Qwen's finetune.py: HF Trainer with --bf16, or --fp16 over GPTQ weights.

    Full fine-tuning runs under DeepSpeed ZeRO-3 on any number of GPUs (finetune_ds.sh).
    """
    values: dict[str, Any] = {"sharding": "zero3"} if cells["method"] == "full" else {"lora_dropout": 0.05}
    return values | {
        "autocast": "fp16" if cells["method"] == "gptq_lora" else "bf16",
        "adapter_dtype": "fp32",
        "optimizer": "adamw",
        "compile": False,
        "packing": True,  # the README's inputs are filled to seq_len
        "attention": "flash",
        "transformers_version": "4.32",
        "optimizer_implementation": "foreach",
    }


def _fms(cells: Cells) -> dict[str, Any]:
    """Return what fms-hf-tuning adds to the HF Trainer: its liger option leaves the logits whole.

    Its published memory is that of whole logits with an in-place loss, to 0.3 % over 13 pairs of rows.
    """
    return _hf_trainer(cells) | ({"loss": "full_logits"} if "liger" in cells["kernels"].lower() else {})


def _hf_trainer(cells: Cells) -> dict[str, Any]:
    """Return what the HF Trainer and PEFT do: adapters in fp32, AdamW."""
    del cells
    return {
        "adapter_dtype": "fp32",
        "optimizer": "adamw",
        "compile": False,
        "gradient_accumulation_steps": 1,
    }


_FRAMEWORKS: dict[str, tuple[str, str, Callable[[Cells], dict[str, Any]]]] = {
    "torchtune": ("torchtune", "recipe defaults", _torchtune),
    "litgpt": ("litgpt", "finetune scripts", _litgpt),
    "foundry": ("llm-foundry", "benchmark scripts", _composer),
    "internevo": ("InternEvo", "benchmark configs", _internevo),
    "automodel": ("NeMo Automodel", "recipes", _automodel),
    "megatron": ("Megatron-LM", "training arguments", _megatron),
    "nemo": ("NeMo", "Megatron-LM's training arguments, distributed optimizer", _nemo),
    "primus": ("Primus", "Megatron-LM's training arguments", _megatron),
    "torchtitan": ("torchtitan", "job configuration", _torchtitan),
    "unsloth": ("Unsloth", "command line", _unsloth),
    "qwen": ("Qwen finetune.py", "finetune/*.sh", _qwen),
    "fms": ("fms-hf-tuning", "HF Trainer with PEFT", _fms),
    "llama-factory": ("LLaMA-Factory", "HF Trainer with PEFT", _hf_trainer),
    "llamafactory": ("LLaMA-Factory", "HF Trainer with PEFT", _hf_trainer),
    "axolotl": ("Axolotl", "HF Trainer with PEFT", _hf_trainer),
    "trl": ("TRL", "HF Trainer with PEFT", _hf_trainer),
    "swift": ("ms-swift", "HF Trainer with PEFT", _hf_trainer),
    "trainer": ("HF Trainer", "HF Trainer with PEFT", _hf_trainer),
    "transformers": ("HF Trainer", "HF Trainer with PEFT", _hf_trainer),
}


def _minor(version: str) -> tuple[int, int]:
    """Return (major, minor) of the first version in a text; (0, 0) without one."""
    found = re.search(r"(\d+)\.(\d+)", version)
    return (int(found.group(1)), int(found.group(2))) if found else (0, 0)
