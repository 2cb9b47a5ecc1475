"""Unsloth's YAML (`unsloth train`) and, under the same keys, its notebooks.

What no key says but the framework does (read from Unsloth 2026): weights in 4 bits, NF4 double
quantised; LoRA of rank 64 and alpha 16 in the YAML (16 and 16 in a notebook) on all linear layers;
checkpoints offloaded to the host ("unsloth"); its own kernels and a loss that never holds the whole
logits; bf16 arithmetic, fp32 adapters; one GPU.
"""

from collections.abc import Collection

from finegauge.errors import FieldError, shown
from finegauge.workload.readers import hf_trainer
from finegauge.workload.readers.framework import Framework, Reading

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
    hf_trainer.read_optimizer(reading, "training.optim", "adamw_8bit")
    packed, free = reading.flag("training.packing"), reading.flag("training.padding_free")
    reading.set("packing", packed, "training.packing")
    padding = "free" if packed or free else "longest"
    reading.set("padding", padding, "training.packing", "training.padding_free")
    reading.set("over_length", "truncate")
    hf_trainer.read_dataset(reading, reading.get("data.dataset"), "data.dataset")
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
    hf_trainer.read_extra(reading, "lora.modules_to_save")
    reading.not_modelled("lora.use_dora")


FORMAT = Framework("Unsloth", KEYS, "model", state, known_keys)
