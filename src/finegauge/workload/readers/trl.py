"""TRL's YAML and JSON, bare TrainingArguments, and PEFT's adapter_config.json, hidden defaults included.

What no key says but the framework does, by its version (read from TRL 0.15, 0.18 to 0.26, 1.0, 1.8
and 1.16): a cut-off of 1024; micro-batches of 8; three epochs; bf16 arithmetic from 0.19 on and
gradient checkpointing from 0.23 on; a model given by name loaded in float32 from 1.0 on; the loss in
chunks, never the whole logits, from 1.8 on. With `use_peft`: rank 16, alpha 32, dropout 0.05, and
PEFT's own choice of layers. In 4 bits: NF4, once quantised, adapters in bf16.

Bare TrainingArguments (a file without a key of TRL's own) are transformers': nothing of this holds,
fp32 arithmetic, no checkpointing, the whole logits.

A script is read by `python_script`, which hands its literal arguments to `state` under these keys.
"""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from finegauge.errors import FieldError
from finegauge.workload.readers import hf_trainer
from finegauge.workload.readers.framework import Framework, Reading

_DIRECT: dict[str, tuple[str, Any]] = {
    "per_device_train_batch_size": ("micro_batch_size", 8),
    "gradient_accumulation_steps": ("gradient_accumulation_steps", 1),
    "num_train_epochs": ("epochs", 3.0),
    "torch_compile": ("compile", False),
}
_OF_LORA: dict[str, tuple[str, Any]] = {
    "lora_r": ("lora_rank", 16),
    "lora_alpha": ("lora_alpha", 32),
    "lora_dropout": ("lora_dropout", 0.05),
}
_QUANTIZED = ("load_in_4bit", "load_in_8bit")
_OTHERS = """
model_name_or_path use_peft lora_target_modules lora_modules_to_save bnb_4bit_quant_type
use_bnb_nested_quant dtype torch_dtype attn_implementation max_length max_seq_length packing
packing_strategy padding_free pad_to_multiple_of loss_type activation_offloading dataset_name use_liger
model_init_kwargs experts_implementation
"""
KEYS = frozenset(
    (
        *hf_trainer.KEYS,
        *_DIRECT,
        *_OF_LORA,
        *_QUANTIZED,
        *_OTHERS.split(),
    )
)
_NOT_MODELLED = ("use_dora", "rank_pattern", "alpha_pattern", "lora_target_parameters", "target_parameters")
_PHASES = {"dpo": "dpo", "grpo": "grpo", "reward": "reward", "ppo": "ppo"}
_STRATEGIES = {
    "bfd": "best_fit_decreasing",
    "bfd_split": "best_fit_decreasing",
    "bfd-requeue": "best_fit_decreasing",
    "ffd": "first_fit",
}
# PEFT's own names: ours.
_OF_ADAPTER = {
    "base_model_name_or_path": "model_name_or_path",
    "r": "lora_r",
    "target_modules": "lora_target_modules",
    "modules_to_save": "lora_modules_to_save",
}
_PEFT_DEFAULTS = {"lora_r": 8, "lora_alpha": 8, "lora_dropout": 0.0}


class _Defaults(NamedTuple):
    """What the framework does unasked."""

    bf16: bool
    checkpointing: bool
    reentrant: bool
    loss: str
    loads_fp32: bool
    low_precision_adapters: bool  # of a quantised model


def _defaults(reading: Reading) -> _Defaults:
    """Return what TRL or transformers does unasked, by its version."""
    if reading.framework.name != FORMAT.name:
        old = reading.before(5, 0)  # from_pretrained took float32 where nothing was said
        return _Defaults(False, False, old, "full_logits", old, False)
    return _Defaults(
        bf16=not reading.before(0, 19),
        checkpointing=not reading.before(0, 23),
        reentrant=reading.before(0, 23),
        loss="full_logits" if reading.before(1, 8) else "chunked",
        loads_fp32=not reading.before(1, 0),
        low_precision_adapters=not reading.before(0, 26),
    )


def is_adapter(keys: Mapping[str, Any]) -> bool:
    """Return whether `keys` are those of PEFT's adapter_config.json."""
    return "peft_type" in keys and "r" in keys


def of_adapter(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return PEFT's keys under the names of TRL's, with PEFT's defaults.

    Raises: FieldError for an adapter that is not LoRA.
    """
    kind = str(keys.get("peft_type") or "LORA").upper()
    if kind != "LORA":
        raise FieldError(f"peft_type={kind[:30]} is not described; only LORA is.")
    return {"use_peft": True, **_PEFT_DEFAULTS, **{_OF_ADAPTER.get(k, k): v for k, v in keys.items()}}


def state(reading: Reading) -> None:
    """State the fields of a TRL file."""
    reading.set("model", reading.get("model_name_or_path"), "model_name_or_path")
    reading.need_model()
    _read_phase(reading)
    _read_method(reading)
    _read_precision(reading)
    reading.direct(_DIRECT)
    _read_implementation(reading)
    _read_data(reading)
    hf_trainer.read_duration(reading)
    hf_trainer.read_sharding(reading)


def known_keys() -> Collection[str]:
    """Return the keys that TRL, PEFT and transformers' trainer know and nothing here depends on."""
    from finegauge.workload.readers import trl_keys

    return trl_keys.known_keys()


def _read_phase(reading: Reading) -> None:
    """Read what is learnt from keys that only one trainer has."""
    for word, keys in (
        ("grpo", ("num_generations", "max_completion_length")),
        ("dpo", ("precompute_ref_log_probs", "rpo_alpha", "beta")),
    ):
        if reading.stated(*keys):
            reading.set("phase", _PHASES[word], *keys)
            return
    reading.set("phase", "sft")


def _read_method(reading: Reading) -> None:
    """Read whether adapters train, and which."""
    quantized = [key for key in _QUANTIZED if reading.flag(key)]
    if len(quantized) > 1:
        raise FieldError("load_in_4bit and load_in_8bit are both true; keep one.")
    if not reading.flag("use_peft"):
        if quantized:
            raise FieldError(f"{quantized[0]} needs adapters; add 'use_peft: true'.")
        reading.set("method", "full", "use_peft")
        reading.ignored((*_OF_LORA, "lora_target_modules"), "use_peft is false")
        return
    reading.set("method", "qlora" if quantized else "lora", "use_peft", *_QUANTIZED)
    reading.direct(_OF_LORA)
    targets = reading.get("lora_target_modules")
    reading.set("lora_targets", targets or hf_trainer.peft_choice(reading), "lora_target_modules")
    hf_trainer.read_extra(reading, "lora_modules_to_save")
    reading.not_modelled(*_NOT_MODELLED)


def _read_precision(reading: Reading) -> None:
    """Read the number formats of weights, adapters and arithmetic."""
    defaults = _defaults(reading)
    hf_trainer.read_precision(reading, bf16_default=defaults.bf16)
    method = reading.fields["method"]
    if method == "qlora":
        double = reading.flag("use_bnb_nested_quant")
        four_bit = "nf4_dq" if double else "nf4"
        reading.set("weights_dtype", four_bit if reading.flag("load_in_4bit") else "int8", *_QUANTIZED)
        if reading.text("bnb_4bit_quant_type", "nf4") != "nf4":
            reading.warn("bnb_4bit_quant_type is taken as nf4, which takes as much memory as fp4.")
        reading.set("adapter_dtype", "bf16" if defaults.low_precision_adapters else "fp32")
        return
    options = reading.get("model_init_kwargs")
    options = options if isinstance(options, Mapping) else {}
    keys = ("dtype", "torch_dtype", "model_init_kwargs")
    dtype = reading.get("dtype", reading.get("torch_dtype", options.get("dtype", options.get("torch_dtype"))))
    loaded = str(dtype).removeprefix("torch.") if dtype is not None else None
    if loaded is None:
        reading.set("weights_dtype", "float32" if defaults.loads_fp32 else reading.checkpoint_dtype())
    else:
        reading.set("weights_dtype", reading.checkpoint_dtype() if loaded == "auto" else loaded, *keys)
    if method == "lora":
        reading.set("adapter_dtype", "fp32")


def _read_implementation(reading: Reading) -> None:
    """Read checkpointing, attention, kernels, loss and optimizer."""
    defaults = _defaults(reading)
    hf_trainer.read_checkpointing(reading, default=defaults.checkpointing, reentrant=defaults.reentrant)
    if reading.flag("activation_offloading"):
        reading.set("activation_checkpointing", "offload", "activation_offloading")
    hf_trainer.read_attention(reading, "attn_implementation")
    loss = "chunked" if reading.text("loss_type") == "chunked_nll" else defaults.loss
    hf_trainer.read_liger(reading, loss, "loss_type")
    hf_trainer.read_optimizer(reading, "optim", "adamw_torch_fused")
    reading.set("experts_implementation", reading.get("experts_implementation"), "experts_implementation")


def _read_data(reading: Reading) -> None:
    """Read the data set and how it is batched."""
    cut_off = reading.get("max_length", reading.get("max_seq_length", 1024))
    if reading.keys.get("max_length", 0) is None and not reading.stated("max_length", "max_seq_length"):
        cut_off = None
        reading.warn("max_length is null, so nothing is cut: state seq_len=… of the longest sample.")
    reading.set("seq_len", cut_off, "max_length", "max_seq_length")
    packing, free = reading.flag("packing"), reading.flag("padding_free")
    strategy = reading.text("packing_strategy", "bfd")
    reading.set("packing", packing, "packing")
    reading.set("packing_strategy", _STRATEGIES.get(strategy, strategy), "packing_strategy")
    splits = packing and strategy in ("bfd_split", "bfd-requeue")
    reading.set("over_length", "split" if splits else "truncate", "packing_strategy")
    padding_free = free or (packing and strategy != "wrapped")
    padding = "free" if padding_free else "max" if packing else "longest"
    reading.set("padding", padding, "packing", "padding_free", "packing_strategy")
    multiple = reading.get("pad_to_multiple_of")
    multiple = 1 if multiple is None or str(multiple).lower() in ("auto", "none") else multiple
    reading.set("pad_to_multiple_of", multiple, "pad_to_multiple_of")
    hf_trainer.read_grouping(reading, packs=packing)
    hf_trainer.read_dataset(reading, reading.get("dataset_name"), "dataset_name")


_METHODS = {
    "full": {"use_peft": "false", "load_in_4bit": "false", "load_in_8bit": "false"},
    "lora": {"use_peft": "true", "load_in_4bit": "false", "load_in_8bit": "false"},
    "qlora": {"use_peft": "true", "load_in_4bit": "true", "load_in_8bit": "false"},
}
FORMAT = Framework("TRL", KEYS, "model_name_or_path", state, known_keys, _METHODS)
TRAINER = FORMAT._replace(name="transformers")
