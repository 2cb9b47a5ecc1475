"""Axolotl's YAML, hidden defaults included.

What no key says but the framework does (read from Axolotl 0.19): a cut-off of 512; micro-batches of
1; one epoch; bf16 arithmetic on bf16 weights; no gradient checkpointing; padding to a multiple of
64, and to the cut-off as soon as samples are packed, which keeps them apart; adapters in fp32; 4 bits
mean NF4, double quantised; no adapter means every weight trains.
"""

from collections.abc import Collection, Mapping
from typing import Any

from finegauge.errors import FieldError, shown
from finegauge.workload.field import flag, names, whole
from finegauge.workload.readers import hf_trainer
from finegauge.workload.readers.framework import Framework, Reading

_DIRECT: dict[str, tuple[str, Any]] = {
    "sequence_len": ("seq_len", 512),
    "micro_batch_size": ("micro_batch_size", 1),
    "num_epochs": ("epochs", 1.0),
    "saves_per_epoch": ("saves_per_epoch", None),
    "experts_implementation": ("experts_implementation", None),
}
_OF_LORA: dict[str, tuple[str, Any]] = {
    "lora_r": ("lora_rank", None),
    "lora_alpha": ("lora_alpha", None),
    "lora_dropout": ("lora_dropout", 0.0),
}
_DEGREES = {
    "dp_replicate_size": "data_parallel_replicate",
    "dp_shard_size": "data_parallel_shard",
    "tensor_parallel_size": "tensor_parallel",
    "context_parallel_size": "context_parallel",
    "sequence_parallel_degree": "context_parallel",
}
_ATTENTION_FLAGS = {
    "flash_attention": "flash",
    "flex_attention": "flash",
    "sdp_attention": "sdpa",
    "xformers_attention": "sdpa",
    "eager_attention": "eager",
}
_LIGER = ("liger_rope", "liger_rms_norm", "liger_layer_norm", "liger_glu_activation", "liger_swiglu")
_LOSS = ("plugins", "cut_cross_entropy", "liger_fused_linear_cross_entropy", "chunked_cross_entropy")
_PRECISION = ("bf16", "bfloat16", "fp16", "float16")
_OTHERS = """
attention base_model adapter load_in_4bit load_in_8bit gptq lora_target_linear lora_target_modules
lora_modules_to_save peft_autocast_adapter_dtype rl reward_model pretraining_dataset optimizer batch_size
attn_implementation selective_checkpointing activation_offloading layer_offloading sample_packing
pad_to_sequence_len pad_to_multiple_of batch_flattening datasets val_set_size excess_length_strategy
fsdp_version bnb_config_kwargs
"""
KEYS = frozenset(
    (
        *hf_trainer.KEYS - {"per_device_train_batch_size", "num_train_epochs", "optim", "use_liger_kernel"},
        *_DIRECT,
        *_OF_LORA,
        *_DEGREES,
        *_ATTENTION_FLAGS,
        *_LIGER,
        *_LOSS,
        *_PRECISION,
        *_OTHERS.split(),
    )
)
_NOT_MODELLED = (
    "peft_use_dora",
    "relora",
    "lisa_n_layers",
    "unfrozen_parameters",
    "lora_target_parameters",
    "fp8",
    "tiled_mlp",
    "layer_offloading",
)
_PHASES = {"dpo": "dpo", "ipo": "dpo", "kto": "dpo", "orpo": "dpo", "simpo": "dpo", "grpo": "grpo"}


def state(reading: Reading) -> None:
    """State the fields of an Axolotl file."""
    reading.set("model", reading.get("base_model"), "base_model")
    reading.need_model()
    _read_phase(reading)
    _read_method(reading)
    _read_precision(reading)
    reading.direct(_DIRECT)
    _read_accumulation(reading)
    _read_implementation(reading)
    _read_batching(reading)
    _read_data(reading)
    hf_trainer.read_duration(reading)
    hf_trainer.read_sharding(reading)
    _read_degrees(reading)
    reading.not_modelled(*_NOT_MODELLED)


def known_keys() -> Collection[str]:
    """Return the keys that Axolotl knows and nothing here depends on."""
    from finegauge.workload.readers import axolotl_keys

    return axolotl_keys.known_keys()


def _read_phase(reading: Reading) -> None:
    """Read what is learnt."""
    method = reading.text("rl")
    if method in ("", "false"):
        phase = "reward" if reading.flag("reward_model") else "sft"
        phase = "pretrain" if reading.stated("pretraining_dataset") else phase
        reading.set("phase", phase, "reward_model", "pretraining_dataset")
        return
    if method not in _PHASES:
        raise FieldError(f"rl={shown(method)} is not described; use dpo or grpo.")
    if method not in ("dpo", "grpo"):
        reading.warn(
            f"rl={method} is taken as dpo, whose passes it shares; a reference model may be too many."
        )
    reading.set("phase", _PHASES[method], "rl")


def _read_method(reading: Reading) -> None:
    """Read whether adapters train, and which."""
    adapter, four, eight = reading.text("adapter"), reading.flag("load_in_4bit"), reading.flag("load_in_8bit")
    if four and eight:
        raise FieldError("load_in_4bit and load_in_8bit are both true; keep one.")
    if adapter in ("", "none", "null"):
        if four or eight:
            raise FieldError("load_in_4bit and load_in_8bit need an adapter; add 'adapter: qlora'.")
        reading.set("method", "full", "adapter")
        reading.ignored((*_OF_LORA, "lora_target_linear", "lora_target_modules"), "no adapter is stated")
        return
    if adapter not in ("lora", "qlora"):
        raise FieldError(f"adapter={shown(adapter)} is not described; use lora or qlora.")
    gptq = reading.flag("gptq")
    if adapter == "qlora" and not (four or gptq):
        raise FieldError("adapter qlora needs 'load_in_4bit: true'; add it, or use 'adapter: lora'.")
    method = "gptq_lora" if gptq else "qlora" if four or eight else "lora"
    reading.set("method", method, "adapter", "load_in_4bit", "load_in_8bit", "gptq")
    reading.direct(_OF_LORA)
    if reading.flag("lora_target_linear"):
        reading.set("lora_targets", "all-linear", "lora_target_linear")
    else:
        targets = reading.get("lora_target_modules") or hf_trainer.peft_choice(reading)
        reading.set("lora_targets", targets, "lora_target_modules")
    hf_trainer.read_extra(reading, "lora_modules_to_save")


def _read_precision(reading: Reading) -> None:
    """Read the number formats of weights, adapters and arithmetic."""
    pure = "bf16" if reading.flag("bfloat16") else "fp16" if reading.flag("float16") else None
    word, fp16 = reading.text("bf16", "auto"), reading.flag("fp16")
    if word == "full":
        pure = "bf16"
    mixed_bf16 = not fp16 and not pure if word == "auto" else word == "full" or flag("bf16", word)
    if mixed_bf16 and fp16:
        raise FieldError("bf16 and fp16 are both true; keep one.")
    mixed = "bf16" if mixed_bf16 else "fp16" if fp16 else "none"
    reading.set("autocast", "none" if pure else mixed, *_PRECISION)
    low = pure or ("fp32" if mixed == "none" else mixed)
    method = reading.fields["method"]
    if method in ("qlora", "gptq_lora"):
        reading.set("weights_dtype", _quantized(reading), "load_in_4bit", "load_in_8bit", "bnb_config_kwargs")
    else:
        reading.set("weights_dtype", low, *_PRECISION)
    if method != "full":
        upcast = reading.flag("peft_autocast_adapter_dtype", default=True)
        reading.set("adapter_dtype", "fp32" if upcast else low, "peft_autocast_adapter_dtype")


def _quantized(reading: Reading) -> str:
    """Return the format of the quantised weights."""
    if reading.flag("gptq"):
        return "gptq4"
    if reading.flag("load_in_8bit"):
        return "int8"
    options = reading.get("bnb_config_kwargs")
    double = options.get("bnb_4bit_use_double_quant", True) if isinstance(options, Mapping) else True
    return "nf4_dq" if flag("bnb_4bit_use_double_quant", double) else "nf4"


def _read_accumulation(reading: Reading) -> None:
    """Read the micro-batches of a step: stated, or what a GPU's `batch_size` holds of them."""
    per_gpu = reading.get("batch_size")
    if per_gpu is None or reading.stated("gradient_accumulation_steps"):
        steps = reading.get("gradient_accumulation_steps", 1)
        reading.set("gradient_accumulation_steps", steps, "gradient_accumulation_steps")
        return
    micro = whole(1, 10**6)("micro_batch_size", reading.fields["micro_batch_size"])
    steps = whole(1, 10**9)("batch_size", per_gpu) // micro
    reading.set("gradient_accumulation_steps", max(1, steps), "batch_size")


def _read_implementation(reading: Reading) -> None:
    """Read checkpointing, attention, kernels, loss and optimizer."""
    hf_trainer.read_checkpointing(reading, default=False, reentrant=True)
    if reading.get("selective_checkpointing") not in (None, False):
        reading.set("activation_checkpointing", "selective", "selective_checkpointing")
    if reading.text("activation_offloading", "false") not in ("false", "no", "off", "0"):
        reading.set("activation_checkpointing", "offload", "activation_offloading")
    legacy = next((key for key in _ATTENTION_FLAGS if reading.flag(key)), None)
    if legacy is not None and not reading.stated("attn_implementation"):
        reading.set("attention", _ATTENTION_FLAGS[legacy], legacy)
    else:
        hf_trainer.read_attention(reading, "attn_implementation", "attention")
    _read_kernels(reading)
    hf_trainer.read_optimizer(reading, "optimizer", "adamw_torch_fused")
    compiled = reading.text("torch_compile", "false")
    reading.set("compile", compiled == "auto" or flag("torch_compile", compiled), "torch_compile")


def _read_kernels(reading: Reading) -> None:
    """Read the plugins: Liger's kernels, cut cross-entropy, a loss in chunks."""
    plugins = " ".join(names("plugins", reading.get("plugins") or ())).lower()
    liger = "liger" in plugins
    reading.set("kernels", ["liger"] if liger and any(map(reading.flag, _LIGER)) else [], "plugins", *_LIGER)
    cut = "cutcrossentropy" in plugins and reading.flag("cut_cross_entropy", default=True)
    if cut or (liger and reading.flag("liger_fused_linear_cross_entropy")):
        loss = "fused"
    else:
        loss = "chunked" if reading.flag("chunked_cross_entropy") else "full_logits"
    reading.set("loss", loss, *_LOSS)


def _read_batching(reading: Reading) -> None:
    """Read packing and padding."""
    packed = reading.flag("sample_packing")
    padded = reading.flag("pad_to_sequence_len")
    flat = not packed and reading.text("batch_flattening", "false") in ("auto", "true", "yes", "on", "1")
    reading.set("packing", packed, "sample_packing")
    padding = "free" if packed or flat else "max" if padded else "longest"
    reading.set("padding", padding, "sample_packing", "pad_to_sequence_len", "batch_flattening")
    reading.set("pad_to_multiple_of", reading.get("pad_to_multiple_of", 64), "pad_to_multiple_of")
    strategy = reading.text("excess_length_strategy", "drop")  # "raise": there is none, or there is no run
    reading.set("over_length", "drop" if strategy == "drop" else "truncate", "excess_length_strategy")
    if reading.flag("group_by_length") and packed:
        raise FieldError("sample_packing and group_by_length are both true; keep one.")
    hf_trainer.read_grouping(reading, packs=packed)


def _read_data(reading: Reading) -> None:
    """Read the data sets and what of them is held out."""
    listed = reading.get("datasets") or reading.get("pretraining_dataset") or ()
    listed = listed if isinstance(listed, list) else [listed]
    paths = [entry.get("path") if isinstance(entry, Mapping) else entry for entry in listed]
    key = "datasets" if reading.stated("datasets") else "pretraining_dataset"
    hf_trainer.read_dataset(reading, [path for path in paths if path], key)
    total = None
    if reading.fields.get("dataset"):
        from finegauge.catalogue.datasets import dataset

        total = dataset(reading.fields["dataset"]).num_samples
    hf_trainer.read_validation(reading, reading.get("val_set_size"), "val_set_size", total=total)


def _read_degrees(reading: Reading) -> None:
    """Read the degrees of parallelism."""
    for key, field in _DEGREES.items():
        value = reading.get(key)
        if value not in (None, 0, 1, "1"):
            reading.set(field, value, key)
    if reading.fields.get("sharding") == "fsdp" and "data_parallel_replicate" in reading.fields:
        reading.set("sharding", "hybrid", "dp_replicate_size")


FORMAT = Framework(
    "Axolotl",
    KEYS,
    "base_model",
    state,
    known_keys,
    {
        "full": {"adapter": "none", "load_in_4bit": "false", "load_in_8bit": "false"},
        "lora": {"adapter": "lora", "load_in_4bit": "false", "load_in_8bit": "false"},
        "qlora": {"adapter": "qlora", "load_in_4bit": "true", "load_in_8bit": "false"},
    },
)
