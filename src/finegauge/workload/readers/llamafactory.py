"""LLaMA-Factory's YAML (the v0 format of `llamafactory-cli train`), hidden defaults included.

What no key says but the framework does (read from its source, v0.9.x): LoRA of rank 8 on all
linear layers; gradient checkpointing on; trained parameters kept in fp32 unless pure_bf16 or
unquantised ZeRO-3; the base model loaded in the training precision; 4 bits mean NF4, double
quantised; micro-batches of 8, padded to the longest and a multiple of 8; three epochs.

A block `finegauge:` states fields that the framework cannot express, such as the GPU.
Secrets, paths and everything that touches neither memory nor time are left unread.
"""

from collections.abc import Collection, Mapping
from typing import Any

from finegauge.errors import FieldError, shown
from finegauge.workload.field import flag, number, whole
from finegauge.workload.readers import hf_trainer
from finegauge.workload.readers.framework import Framework, Reading

FRAMEWORK = "LLaMA-Factory"
FROM_FRAMEWORK = f"framework default: {FRAMEWORK}"

# LLaMA-Factory's key: the field it states, and the framework's default.
_DIRECT: dict[str, tuple[str, Any]] = {
    "model_name_or_path": ("model", None),
    "stage": ("phase", "sft"),
    "cutoff_len": ("seq_len", 2048),
    "per_device_train_batch_size": ("micro_batch_size", 8),
    "gradient_accumulation_steps": ("gradient_accumulation_steps", 1),
    "num_train_epochs": ("epochs", 3.0),
    "torch_compile": ("compile", False),
    "use_reentrant_gc": ("checkpointing_reentrant", True),
}
_OF_LORA: dict[str, tuple[str, Any]] = {
    "lora_rank": ("lora_rank", 8),
    "lora_alpha": ("lora_alpha", None),
    "lora_dropout": ("lora_dropout", 0.0),
    "lora_target": ("lora_targets", "all-linear"),
}
_DERIVED = """
finetuning_type quantization_bit quantization_type double_quantization pure_bf16 bf16 fp16
upcast_layernorm additional_target freeze_trainable_layers disable_gradient_checkpointing
use_unsloth_gc flash_attn enable_liger_kernel use_liger_kernel use_unsloth optim dataset dataset_dir
max_samples val_size packing neat_packing max_steps deepspeed fsdp eval_strategy evaluation_strategy
save_strategy group_by_length train_sampling_strategy
"""
KEYS = frozenset((*_DIRECT, *_OF_LORA, *_DERIVED.split()))
_TELLING = frozenset(
    (
        "stage",
        "finetuning_type",
        "template",
        "cutoff_len",
        "dataset",
        "dataset_dir",
        "lora_target",
        "quantization_bit",
    )
)
_ATTENTION = {
    "auto": "sdpa",
    "fa2": "flash",
    "fa3": "flash",
    "true": "flash",
    "disabled": "eager",
    "false": "sdpa",
}
_NOT_MODELLED = (
    "use_galore",
    "use_apollo",
    "use_badam",
    "use_dora",
    "use_adam_mini",
    "use_muon",
    "mixture_of_depths",
)


def recognises(keys: Mapping[str, Any]) -> bool:
    """Return whether `keys` are those of a LLaMA-Factory training file."""
    return "model_name_or_path" in keys and not _TELLING.isdisjoint(keys)


def state(reading: Reading) -> None:
    """State the fields of a LLaMA-Factory file."""
    _read_model_and_method(reading)
    _read_precision(reading)
    _read_implementation(reading)
    _read_data(reading)
    hf_trainer.read_sharding(reading)


def known_keys() -> Collection[str]:
    """Return the keys that LLaMA-Factory and transformers' trainer know and nothing here depends on."""
    from finegauge.workload.readers import llamafactory_keys

    return llamafactory_keys.known_keys()


def _read_model_and_method(reading: Reading) -> None:
    """Read which model trains, and how."""
    reading.direct(_DIRECT)
    reading.need_model()
    kind = str(reading.get("finetuning_type", "lora")).lower()
    bits = reading.get("quantization_bit")
    if bits in (None, ""):
        method = kind
    elif kind == "lora":
        method = "qlora"
    else:
        raise FieldError(f"quantization_bit={shown(bits)} needs finetuning_type lora, not {shown(kind)}.")
    reading.set("method", method, "finetuning_type", "quantization_bit")
    if kind == "lora":
        reading.direct(_OF_LORA)
    else:
        reading.ignored(_OF_LORA, f"finetuning_type is {kind}")
    if kind == "freeze":
        layers = number(-1e4, 1e4)("freeze_trainable_layers", reading.get("freeze_trainable_layers", 2))
        reading.set("freeze_trainable_layers", abs(int(layers)), "freeze_trainable_layers")
    hf_trainer.read_extra(reading, "additional_target")


def _read_precision(reading: Reading) -> None:
    """Read the number formats of weights, adapters and arithmetic."""
    pure, bf16, fp16 = (reading.flag(key) for key in ("pure_bf16", "bf16", "fp16"))
    if fp16 and (bf16 or pure):
        raise FieldError("bf16 and fp16 are both true; keep one.")
    low = "bf16" if bf16 or pure else "fp16" if fp16 else reading.checkpoint_dtype()
    reading.set("autocast", "none" if pure or not (bf16 or fp16) else low, "bf16", "fp16", "pure_bf16")
    method, kept_low = (
        reading.fields["method"],
        pure or (_zero3(reading) and reading.fields["method"] != "qlora"),
    )
    trained = low if kept_low else "fp32"
    if method == "qlora":
        reading.set("weights_dtype", _quantized(reading), "quantization_bit", "double_quantization")
    else:
        reading.set("weights_dtype", trained if method == "full" else low, "bf16", "fp16", "pure_bf16")
    if method in ("lora", "qlora"):
        reading.set("adapter_dtype", trained, "pure_bf16")
    upcast = reading.flag("upcast_layernorm") and method == "qlora"
    reading.set("upcast_unquantized", upcast, "upcast_layernorm")


def _read_implementation(reading: Reading) -> None:
    """Read checkpointing, attention, kernels and optimizer."""
    off, offload = reading.flag("disable_gradient_checkpointing"), reading.flag("use_unsloth_gc")
    checkpointing = "none" if off else "offload" if offload else "full"
    reading.set("activation_checkpointing", checkpointing, "disable_gradient_checkpointing", "use_unsloth_gc")
    attention = str(reading.get("flash_attn", "auto")).lower()
    reading.set("attention", _ATTENTION.get(attention, attention), "flash_attn")
    liger = reading.flag("enable_liger_kernel") or reading.flag("use_liger_kernel")
    kernels = (["liger"] if liger else []) + (["unsloth"] if reading.flag("use_unsloth") else [])
    reading.set("kernels", kernels, "enable_liger_kernel", "use_liger_kernel", "use_unsloth")
    reading.set("loss", "fused" if liger else "full_logits", "enable_liger_kernel", "use_liger_kernel")
    hf_trainer.read_optimizer(reading, "optim", "adamw")
    reading.not_modelled(*_NOT_MODELLED)


def _read_data(reading: Reading) -> None:
    """Read the data set, how it is batched, and for how long."""
    from finegauge.workload.readers.llamafactory_data import read_samples

    packing = reading.get("packing")
    neat = reading.flag("neat_packing")
    packed = neat or (
        flag("packing", packing) if packing not in (None, "") else reading.fields["phase"] == "pt"
    )
    hf_trainer.read_grouping(reading, packs=packed)
    wraps = packed and reading.fields["phase"] == "pt"
    reading.set("packing", packed, "packing", "neat_packing")
    reading.set("packing_strategy", "wrapped" if wraps else "best_fit_decreasing", "stage")
    reading.set("over_length", "truncate")
    reading.set("padding", ("free" if neat else "max") if packed else "longest", "neat_packing")
    hf_trainer.read_duration(reading)
    samples = read_samples(
        {**reading.keys, **reading.overrides}, reading.file, strict="dataset" in reading.overrides
    )
    reading.warnings += samples.warnings
    reading.set("dataset", samples.dataset, "dataset")
    reading.set("num_samples", samples.num_samples, "max_samples", "dataset")
    evaluates = (
        str(reading.get("eval_strategy") or reading.get("evaluation_strategy") or "no").lower() != "no"
    )
    total = samples.num_samples or samples.num_in_catalogue
    reading.set("eval_samples", 0, "eval_strategy")
    hf_trainer.read_validation(reading, reading.get("val_size"), "val_size", total=total, evaluates=evaluates)


def _zero3(reading: Reading) -> bool:
    """Return whether DeepSpeed shards the weights."""
    named = reading.get("deepspeed")
    if not named:
        return False
    from finegauge.workload.readers.deepspeed import sharding

    return sharding(named, reading.file)[0] == "zero3"


def _quantized(reading: Reading) -> str:
    """Return the format of the quantised weights."""
    bits = whole(1, 64)("quantization_bit", reading.get("quantization_bit"))
    if bits not in (4, 8):
        raise FieldError(f"quantization_bit={bits} is not described; use 4 (NF4) or 8.")
    if str(reading.get("quantization_type", "nf4")).lower() != "nf4":
        reading.warnings.append("quantization_type is taken as nf4, which takes as much memory as fp4.")
    double = flag("double_quantization", reading.get("double_quantization", True))
    return "int8" if bits == 8 else "nf4_dq" if double else "nf4"


FORMAT = Framework(
    FRAMEWORK,
    KEYS,
    "model_name_or_path",
    state,
    known_keys,
    {
        "full": {"finetuning_type": "full", "quantization_bit": ""},
        "freeze": {"finetuning_type": "freeze", "quantization_bit": ""},
        "lora": {"finetuning_type": "lora", "quantization_bit": ""},
        "qlora": {"finetuning_type": "lora", "quantization_bit": "4"},
    },
)
