"""Ludwig's YAML of language models (`ludwig train --config`), hidden defaults included.

What no key says but the framework does (read from its schema, 0.8 to 0.10): without `adapter` every weight
trains; LoRA of rank 8, alpha 16, dropout 0.05 on PEFT's choice of layers; `quantization` of 4 bits is NF4,
double quantised, of 8 bits LLM.int8, under eager attention, its other weights cast to fp32; else weights in
fp32, without autocast; no checkpointing, reentrant where it is on; one sample at a time.
A file is read, and none is written.
"""

from collections.abc import Mapping
from typing import Any

from finegauge.errors import FieldError, shown
from finegauge.formats import launcher_files, trainer_keys
from finegauge.formats.key_table import Format, Reading, Row, fixed, key, model_key, switch
from finegauge.formats.sheet import mapping_in, value_at
from finegauge.run.field import number, whole

_ADAPTERS = trainer_keys.Adapters(
    "adapter.r adapter.alpha adapter.dropout adapter.target_modules adapter.modules_to_save adapter.use_dora",
    defaults=(8, None, 0.05),
    all_unasked=False,
)
_BITS = "quantization.bits"
_OPTIMIZERS = {  # Adam's kinds are as large as those that decay weights
    **{f"{paged}adam{bits}": f"{paged}adamw{bits}" for paged in ("", "paged_") for bits in ("", "_8bit")},
    "adam8bit": "adamw_8bit",
}
_MERGES = "adapter.postprocessor.merge_adapter_into_base_model"
_SIZES = {"batch_size": "1", "gradient_accumulation_steps": "auto", "effective_batch_size": "auto"}


def _read_kind(reading: Reading) -> None:
    """Refuse what is no fine-tuning of a language model."""
    kind, trainer = reading.text("model_type", "ecd"), reading.text("trainer.type", "none")
    if kind != "llm":
        raise FieldError(f"model_type={shown(kind)} is no language model of Ludwig; only llm is described.")
    if trainer == "dpo":  # its newest trainer: probabilities under the policy stand for the reference's
        reading.set("reference_model", "none", "trainer.type")
    elif trainer != "finetune":
        why = "trains nothing" if trainer == "none" else "is not supported"
        raise FieldError(f"trainer.type={shown(trainer)} {why}; use trainer: {{type: finetune}} or dpo.")
    reading.set("phase", "dpo" if trainer == "dpo" else "sft", "trainer.type")


def _read_method(reading: Reading) -> None:
    adapter = reading.text("adapter.type", "lora" if reading.stated("adapter") else "")
    quantized = reading.stated("quantization", _BITS)
    if adapter not in ("", "lora"):
        raise FieldError(f"adapter.type={shown(adapter)} is not supported; only lora is.")
    if quantized and not adapter:
        raise FieldError("quantization needs adapters; add 'adapter: {type: lora}'.")
    method = "qlora" if quantized else "lora" if adapter else "full"
    reading.set("method", method, "adapter.type", "adapter", _BITS)
    if adapter:
        _ADAPTERS.read(reading)
        if not reading.stated("adapter.alpha"):
            reading.set("lora_alpha", 2 * reading.whole("adapter.r", 8, 65_536))
        reading.set("adapter_dtype", "fp32")
        reading.set("merge_adapters", reading.flag(_MERGES), _MERGES)
    if quantized:
        eight = trainer_keys.bits_of(reading, _BITS) == 8 if reading.stated(_BITS) else False
        double = reading.flag("quantization.bnb_4bit_use_double_quant", default=True)
        reading.set("weights_dtype", trainer_keys.bitsandbytes(eight=eight, double=double), _BITS)
        reading.set("upcast_unquantized", True, _BITS)
        reading.set("attention", "eager")
    else:
        reading.set("weights_dtype", "fp32")
    reading.set("autocast", "bf16" if reading.flag("trainer.use_mixed_precision") else "none")


def _read_batch(reading: Reading) -> None:
    """Read the batch, which may follow from that of all workers, or be Ludwig's to choose."""
    stated = {name: reading.text(f"trainer.{name}", unasked) for name, unasked in _SIZES.items()}
    sizes = {name: int(whole(1, 10**9)(name, value)) for name, value in stated.items() if value != "auto"}
    whole_batch, keys = sizes.pop("effective_batch_size", 0), tuple(f"trainer.{name}" for name in _SIZES)
    for name, size in sizes.items():
        if whole_batch % size:
            raise FieldError(f"trainer.effective_batch_size={whole_batch} is no multiple of {name}={size}.")
    each = whole_batch // int(reading.fields.get("num_gpus", 1))
    micro, steps = map(sizes.get, ("batch_size", "gradient_accumulation_steps"))
    if micro is None and not (each and steps):
        reading.warn(
            "trainer.batch_size is chosen by Ludwig (auto): taken as 1; 'finegauge max-batch' tells more."
        )
    micro = micro or max(1, each // steps if steps else 1)
    reading.set("micro_batch_size", micro, *keys)
    reading.set("gradient_accumulation_steps", steps or max(1, each // micro), *keys)


def _read_length(reading: Reading) -> None:
    key, length, images = "preprocessing.global_max_sequence_length", 0, 0
    usual = value_at(reading.keys, "defaults.text.preprocessing.max_sequence_length")
    for name in ("input_features", "output_features"):
        listed: Any = reading.get(name)
        for feature in listed if isinstance(listed, list) else ():
            inside = feature.get("preprocessing") if isinstance(feature, dict) else None
            stated = inside.get("max_sequence_length", usual) if isinstance(inside, dict) else usual
            length += int(whole(0, 10**7)("max_sequence_length", stated or 0))
            images += isinstance(feature, dict) and feature.get("type") == "image"
    reading.set("images_per_sample", images or None, "input_features")
    stated = reading.get(key, length or None)
    stated = min(int(whole(1, 10**7)(key, stated)), length) if stated and length else stated
    if stated is None:
        reading.warn(f"{key} is unstated, so nothing is cut: state seq_len=… of the longest sample.")
    reading.set("seq_len", stated, key, "input_features")


def _read_data(reading: Reading) -> None:
    named = str(reading.get("dataset", "")).removeprefix("ludwig://")
    ratio = number(0, 1)("sample_ratio", reading.get("preprocessing.sample_ratio", 1))
    total = trainer_keys.in_all([named])
    if ratio < 1 and not total:
        reading.warn("preprocessing.sample_ratio of data of unknown size is not modelled: all is taken.")
    taken = reading.get("preprocessing.sample_size", int(ratio * total) if ratio < 1 and total else None)
    keys = ("dataset", "preprocessing.sample_size", "preprocessing.sample_ratio")
    trainer_keys.read_dataset(reading, [named] if named else (), *keys, num_samples=taken)


def _read_backend(reading: Reading) -> None:
    """Read the workers, and how they divide the model: of Ray's trainer, or of the backend itself."""
    backend = mapping_in(reading.keys, "backend")
    trainer = mapping_in(backend, "trainer")
    if trainer.get("num_workers"):
        reading.set("num_gpus", whole(1, 10**5)("num_workers", trainer["num_workers"]), "backend")
    told = trainer.get("strategy", backend)
    keys: Mapping[str, Any] = told if isinstance(told, Mapping) else {"type": told}
    kind = str(keys.get("type", "local")).lower()
    if "zero_optimization" in keys:
        for field, value in launcher_files.deepspeed_fields(keys).items():
            reading.set(field, value, "backend")
    elif kind == "fsdp":
        reading.set("sharding", "fsdp", "backend")
    elif kind not in ("local", "ray", "ddp", "none"):
        reading.warn(f"backend {shown(kind)} is not modelled: the model is taken as not divided.")


FORMAT = Format(
    "Ludwig",
    (
        Row("model_type trainer.type", _read_kind),
        model_key("base_model"),
        Row(
            f"adapter {_ADAPTERS.keys} {_MERGES} adapter.type quantization {_BITS} "
            "quantization.bnb_4bit_use_double_quant trainer.use_mixed_precision",
            _read_method,
        ),
        Row("backend backend.type", _read_backend),
        Row(" ".join(f"trainer.{name}" for name in _SIZES), _read_batch),
        Row("input_features output_features preprocessing.global_max_sequence_length", _read_length),
        key("trainer.epochs", "epochs", 100),
        key("trainer.train_steps", "max_steps"),
        key("trainer.optimizer.type", "optimizer", "adamw", more=_OPTIMIZERS),
        Row("trainer.optimizer", lambda _: None),
        key("trainer.compile", "compile", False),
        Row("dataset preprocessing.sample_size preprocessing.sample_ratio", _read_data),
        switch("trainer.enable_gradient_checkpointing", "activation_checkpointing", "full"),
        fixed(loss="full_logits", padding="longest"),
    ),
    model_key="base_model",
    lists_its_keys=False,
)
