"""ms-swift's YAML and the arguments of `swift sft`, hidden defaults included.

What no key says but the framework does (read from ms-swift 4.6): LoRA of rank 8, alpha 32 and dropout
0.05 on all linear layers, adapters in fp32; gradient checkpointing on; micro-batches of 1, and as many
of them as make 16 sequences a step over all GPUs; three epochs; samples longer than the cut-off
dropped; 4 bits mean NF4, double quantised; the checkpoint's own number format.
"""

from collections.abc import Collection
from math import ceil
from typing import Any

from finegauge.errors import FieldError, shown
from finegauge.workload.field import names, number, whole
from finegauge.workload.readers import hf_trainer
from finegauge.workload.readers.framework import Framework, Reading

_OF_LORA: dict[str, tuple[str, Any]] = {
    "lora_rank": ("lora_rank", 8),
    "lora_alpha": ("lora_alpha", 32),
    "lora_dropout": ("lora_dropout", 0.05),
    "target_modules": ("lora_targets", "all-linear"),
}
_OTHERS = """
model tuner_type train_type sft_type modules_to_save lora_dtype torch_dtype quant_bits quant_method
bnb_4bit_use_double_quant bnb_4bit_quant_type max_length packing packing_length padding_free attn_impl
truncation_strategy experts_impl use_logits_to_keep
dataset val_dataset split_dataset_ratio sequence_parallel_size rlhf_type
"""
KEYS = frozenset((*hf_trainer.KEYS, *_OF_LORA, *_OTHERS.split()))
_TUNERS = ("tuner_type", "train_type", "sft_type")
_PHASES = {
    "dpo": "dpo",
    "grpo": "grpo",
    "ppo": "ppo",
    "rm": "reward",
    "kto": "dpo",
    "orpo": "dpo",
    "simpo": "dpo",
}
_NOT_MODELLED = (
    "use_dora",
    "use_galore",
    "target_parameters",
    "freeze_parameters_ratio",
    "lisa_activated_layers",
)
_OVER_LENGTH = {"delete": "drop", "raise": "drop", "left": "truncate", "right": "truncate"}
_BUILT_IN = {
    "zero0": ("none", "none"),
    "zero1": ("zero1", "none"),
    "zero2": ("zero2", "none"),
    "zero3": ("zero3", "none"),
    "zero2_offload": ("zero2", "optimizer"),
    "zero3_offload": ("zero3", "all"),
}


def state(reading: Reading) -> None:
    """State the fields of an ms-swift file."""
    reading.set("model", reading.get("model"), "model")
    reading.need_model()
    phase = reading.text("rlhf_type", "sft")
    reading.set("phase", _PHASES.get(phase, phase), "rlhf_type")
    _read_method(reading)
    _read_precision(reading)
    reading.direct(
        {
            "per_device_train_batch_size": ("micro_batch_size", 1),
            "num_train_epochs": ("epochs", 3.0),
            "torch_compile": ("compile", False),
        }
    )
    _read_accumulation(reading)
    hf_trainer.read_checkpointing(reading, default=True, reentrant=True)
    hf_trainer.read_attention(reading, "attn_impl")
    hf_trainer.read_liger(reading, "full_logits")
    hf_trainer.read_optimizer(reading, "optim", "adamw_torch_fused")
    _read_batching(reading)
    _read_data(reading)
    hf_trainer.read_duration(reading)
    _read_sharding(reading)
    reading.not_modelled(*_NOT_MODELLED)
    if reading.text("freeze_vit") in ("false", "no", "0"):
        reading.warn("freeze_vit=false is not modelled: the vision tower is taken as frozen.")


def known_keys() -> Collection[str]:
    """Return the keys that ms-swift and transformers' trainer know and nothing here depends on."""
    from finegauge.workload.readers import ms_swift_keys

    return ms_swift_keys.known_keys()


def _read_method(reading: Reading) -> None:
    """Read whether adapters train, and which."""
    key = next((key for key in _TUNERS if reading.stated(key)), _TUNERS[0])
    tuner = reading.text(key, "lora")
    if tuner not in ("lora", "full"):
        raise FieldError(f"{key}={shown(tuner)} is not described; use lora or full.")
    bits = reading.get("quant_bits")
    quantized = bits not in (None, 0, "0")
    if tuner == "full":
        if quantized:
            raise FieldError(
                f"quant_bits needs {key} lora, not full: only adapters train on quantised weights."
            )
        reading.set("method", "full", *_TUNERS)
        reading.ignored(_OF_LORA, f"{key} is full")
        return
    reading.set("method", "qlora" if quantized else "lora", *_TUNERS, "quant_bits")
    reading.direct(_OF_LORA)
    hf_trainer.read_extra(reading, "modules_to_save")


def _read_precision(reading: Reading) -> None:
    """Read the number formats of weights, adapters and arithmetic."""
    stated = reading.text("torch_dtype")
    weights = stated.removeprefix("torch.") or reading.checkpoint_dtype()
    low = "bf16" if weights in ("bf16", "bfloat16") else "fp16"
    if reading.stated("bf16", "fp16"):
        hf_trainer.read_precision(reading, bf16_default=False)
    else:
        reading.set("autocast", low, "torch_dtype")
    method = reading.fields["method"]
    if method == "qlora":
        reading.set("weights_dtype", _quantized(reading), "quant_bits", "bnb_4bit_use_double_quant")
    else:
        loaded = "fp32" if method == "full" and low == "fp16" else weights
        reading.set("weights_dtype", loaded, "torch_dtype")
    if method != "full":
        reading.set("adapter_dtype", reading.get("lora_dtype", "fp32"), "lora_dtype")


def _quantized(reading: Reading) -> str:
    """Return the format of the quantised weights."""
    bits, kind = whole(1, 64)("quant_bits", reading.get("quant_bits")), reading.text("quant_method", "bnb")
    if kind != "bnb" or bits not in (4, 8):
        raise FieldError(
            f"quant_method={shown(kind)} with {bits} bits is not described; use bnb with 4 or 8."
        )
    double = reading.flag("bnb_4bit_use_double_quant", default=True)
    return "int8" if bits == 8 else "nf4_dq" if double else "nf4"


def _read_accumulation(reading: Reading) -> None:
    """Read the micro-batches of a step; unstated, they make 16 sequences over all GPUs."""
    stated = reading.get("gradient_accumulation_steps")
    if stated is None:
        micro = whole(1, 10**6)("per_device_train_batch_size", reading.fields["micro_batch_size"])
        stated = max(1, ceil(16 / micro / (reading.launched_gpus or 1)))
    reading.set("gradient_accumulation_steps", stated, "gradient_accumulation_steps")


def _read_batching(reading: Reading) -> None:
    """Read the cut-off, packing and padding."""
    packed, free = reading.flag("packing"), reading.flag("padding_free")
    length = reading.get("packing_length") if packed else None
    length = length if length is not None else reading.get("max_length")
    if length is None:
        reading.warn("max_length is unstated, so nothing is cut: state seq_len=… of the longest sample.")
    reading.set("seq_len", length, "max_length", "packing_length")
    reading.set("packing", packed, "packing")
    reading.set("padding", "free" if packed or free else "longest", "packing", "padding_free")
    reading.set("pad_to_multiple_of", 1)
    strategy = reading.text("truncation_strategy", "delete" if reading.fields["phase"] == "sft" else "left")
    reading.set("over_length", _OVER_LENGTH.get(strategy, strategy), "truncation_strategy")
    hf_trainer.read_grouping(reading, packs=packed)


def _read_data(reading: Reading) -> None:
    """Read the data sets, "name#1000" with how many of their samples, and what is held out."""
    listed = reading.get("dataset") or ()
    listed = listed.split() if isinstance(listed, str) else listed
    named = [name.partition("#") for name in names("dataset", listed)]
    counts = [int(count) if count.isdecimal() and len(count) < 11 else None for _, _, count in named]
    total = sum(count or 0 for count in counts) if counts and all(counts) else None
    ratio = number(0, 1)("split_dataset_ratio", reading.get("split_dataset_ratio", 0.0))
    repositories = [name.partition("::")[2] or name for name, _, _ in named]
    hf_trainer.read_dataset(
        reading, [n.partition(":")[0] for n in repositories], "dataset", num_samples=total
    )
    if not reading.stated("val_dataset"):
        hf_trainer.read_validation(reading, ratio, "split_dataset_ratio", total=total)


def _read_sharding(reading: Reading) -> None:
    """Read DeepSpeed by one of the built-in names or its file, FSDP, and the sequences' division."""
    built_in = _BUILT_IN.get(reading.text("deepspeed"))
    if built_in is None:
        hf_trainer.read_sharding(reading)
    else:
        if reading.stated("fsdp"):
            raise FieldError("deepspeed and fsdp are both stated; keep one.")
        reading.set("sharding", built_in[0], "deepspeed")
        reading.set("cpu_offload", built_in[1], "deepspeed")
    degree = reading.get("sequence_parallel_size")
    if degree not in (None, 1, "1"):
        reading.set("context_parallel", degree, "sequence_parallel_size")


FORMAT = Framework(
    "ms-swift",
    KEYS,
    "model",
    state,
    known_keys,
    {
        "full": {"tuner_type": "full", "quant_bits": ""},
        "lora": {"tuner_type": "lora", "quant_bits": "0"},
        "qlora": {"tuner_type": "lora", "quant_bits": "4"},
    },
)
