"""Unsloth's YAML (`unsloth train`) and, under the same keys, its notebooks.

What no key says but the framework does (read from Unsloth 2026): weights in 4 bits, NF4 double
quantised; LoRA of rank 64 and alpha 16 in the YAML (16 and 16 in a notebook) on all linear layers;
checkpoints offloaded to the host ("unsloth"); its own kernels and a loss that never holds the whole
logits; bf16 arithmetic, fp32 adapters; one GPU.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from finegauge.errors import FieldError, shown
from finegauge.formats import trainer_keys
from finegauge.formats.framework import Framework, Reading
from finegauge.formats.sheet import (
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
    from finegauge.run.run import Run

_KEYS = """
model data.dataset data.local_dataset training.training_type training.load_in_4bit
training.load_in_8bit training.max_seq_length training.num_epochs training.max_steps
training.batch_size training.gradient_accumulation_steps training.packing training.padding_free
training.gradient_checkpointing training.optim training.fp16 lora.lora_r lora.lora_alpha
lora.lora_dropout lora.target_modules lora.modules_to_save
"""
KEYS = frozenset(_KEYS.split())
_KNOWN = """
data.format_type data.train_split data.subset data.dataset_split data.eval_split data.dataset_text_field
training.learning_rate training.output_dir training.warmup_steps training.warmup_ratio
training.save_steps training.weight_decay training.random_seed training.train_on_completions
training.eval_steps training.lr_scheduler_type training.seed training.bf16 training.logging_steps
lora.use_rslora lora.use_loftq lora.init_lora_weights lora.bias lora.random_state lora.vision_all_linear
lora.finetune_vision_layers lora.finetune_language_layers lora.finetune_attention_modules
lora.finetune_mlp_modules lora.use_dora logging.* training.embedding_learning_rate
"""


def state(reading: Reading) -> None:
    """State the fields of an Unsloth file."""
    reading.set("model", reading.get("model"), "model")
    model = reading.need_model().lower()
    reading.set("phase", "sft")
    _read_method(reading, quantized_copy=model.endswith("-bnb-4bit"))
    reading.direct(
        {
            "training.max_seq_length": ("seq_len", 2048),
            "training.num_epochs": ("epochs", 3.0),
            "training.batch_size": ("micro_batch_size", 2),
            "training.gradient_accumulation_steps": ("gradient_accumulation_steps", 4),
        }
    )
    steps = reading.get("training.max_steps")
    reading.set("max_steps", None if str(steps) in ("0", "-1") else steps, "training.max_steps")
    word = reading.text("training.gradient_checkpointing", "unsloth")
    kinds = {
        "unsloth": "offload",
        "true": "full",
        "mlx": "full",
        "false": "none",
        "none": "none",
        "no": "none",
    }
    if word not in kinds:
        raise FieldError(f"gradient_checkpointing={shown(word)} is unknown; use unsloth, true or false.")
    reading.set("activation_checkpointing", kinds[word], "training.gradient_checkpointing")
    reading.set("kernels", ["unsloth"])
    reading.set("loss", "fused")
    reading.set("attention", "flash")
    trainer_keys.read_optimizer(reading, "training.optim", "adamw_8bit")
    packed, free = reading.flag("training.packing"), reading.flag("training.padding_free")
    reading.set("packing", packed, "training.packing")
    padding = "free" if packed or free else "longest"
    reading.set("padding", padding, "training.packing", "training.padding_free")
    reading.set("over_length", "truncate")
    trainer_keys.read_dataset(reading, reading.get("data.dataset"), "data.dataset")
    reading.set("num_gpus", 1)


def known_keys() -> Collection[str]:
    """Return the keys that Unsloth knows and nothing here depends on."""
    return _KNOWN.split()


def _read_method(reading: Reading, *, quantized_copy: bool) -> None:
    """Read whether adapters train, which, and every number format.

    Args:
        reading: Of an Unsloth file.
        quantized_copy: Whether the checkpoint's name says that it holds 4-bit weights already.
    """
    kind = reading.text("training.training_type", "lora")
    if kind not in ("lora", "qlora", "full"):
        raise FieldError(f"training_type={shown(kind)} is not described; use lora or full.")
    autocast = "fp16" if reading.flag("training.fp16") else "bf16"
    reading.set("autocast", autocast, "training.fp16")
    quantized = ("training.load_in_4bit", "training.load_in_8bit")
    eight = reading.flag("training.load_in_8bit")
    four = not eight and (quantized_copy or reading.flag(quantized[0], default=kind != "full"))
    if kind == "full":
        reading.set("method", "full", "training.training_type")
        reading.set("weights_dtype", autocast)
        reading.ignored(quantized, "training_type is full")
        return
    method = "qlora" if four or eight else "lora"
    reading.set("method", method, "training.training_type", *quantized)
    weights = "nf4_dq" if four else "int8" if eight else autocast
    reading.set("weights_dtype", weights, *quantized)
    reading.set("adapter_dtype", "fp32")
    rank = reading.get("lora.lora_r", 64)
    reading.set("lora_rank", rank, "lora.lora_r")
    reading.set("lora_alpha", reading.get("lora.lora_alpha", 16), "lora.lora_alpha")
    reading.set("lora_dropout", reading.get("lora.lora_dropout", 0.0), "lora.lora_dropout")
    reading.set("lora_targets", reading.get("lora.target_modules", "all-linear"), "lora.target_modules")
    trainer_keys.read_extra(reading, "lora.modules_to_save")
    reading.not_modelled("lora.use_dora")


FORMAT = Framework("Unsloth", KEYS, "model", state, known_keys)

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
                "optim": trainer_keys.optimizer(run),
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
            "modules_to_save": trainer_keys.saved_modules(run),
        }
    )
