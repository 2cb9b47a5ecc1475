"""Ludwig's YAML of language models (`ludwig train --config`), hidden defaults included.

What no key says but the framework does (read from its schema, 0.8 to 0.10): without `adapter` every weight
trains; LoRA of rank 8, alpha 16, dropout 0.05 on PEFT's choice of layers; `quantization` of 4 bits is NF4,
double quantised, of 8 bits LLM.int8; weights in the half precision that bitsandbytes computes in, else fp32,
without autocast; no checkpointing, reentrant where it is on; `batch_size: auto` means the largest that fits.
A file is read, and none is written.
"""

from typing import Any

from finegauge.errors import FieldError, shown
from finegauge.formats import launcher_files, trainer_keys
from finegauge.formats.key_table import Format, Reading, Row, fixed, key, model_key, switch
from finegauge.run.field import number, whole

_ADAPTERS = trainer_keys.Adapters(
    "adapter.r adapter.alpha adapter.dropout adapter.target_modules adapter.modules_to_save adapter.use_dora",
    defaults=(8, None, 0.05),
    all_unasked=False,
)
_BITS = "quantization.bits"
_OPTIMIZERS = {"adam": "adamw", "adam8bit": "adamw_8bit", "paged_adam": "paged_adamw"}


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
    if quantized:
        eight = trainer_keys.bits_of(reading, _BITS) == 8 if reading.stated(_BITS) else False
        double = reading.flag("quantization.bnb_4bit_use_double_quant", default=True)
        reading.set("weights_dtype", trainer_keys.bitsandbytes(eight=eight, double=double), _BITS)
    else:
        reading.set("weights_dtype", "fp32")
    reading.set("autocast", "bf16" if reading.flag("trainer.use_mixed_precision") else "none")


def _read_batch(reading: Reading) -> None:
    """Read the batch, which Ludwig may be asked to choose by itself."""
    for name, field in (("batch_size", "micro_batch_size"), ("gradient_accumulation_steps",) * 2):
        stated = reading.text(f"trainer.{name}", "auto")
        if stated == "auto":
            reading.warn(
                f"trainer.{name} is chosen by Ludwig (auto): taken as 1; 'finegauge max-batch' tells more."
            )
        reading.set(field, 1 if stated == "auto" else stated, f"trainer.{name}")


def _read_length(reading: Reading) -> None:
    key, length, images = "preprocessing.global_max_sequence_length", 0, 0
    for name in ("input_features", "output_features"):
        listed: Any = reading.get(name)
        for feature in listed if isinstance(listed, list) else ():
            inside = feature.get("preprocessing") if isinstance(feature, dict) else None
            stated = inside.get("max_sequence_length") if isinstance(inside, dict) else None
            length += int(whole(0, 10**7)("max_sequence_length", stated or 0))
            images += isinstance(feature, dict) and feature.get("type") == "image"
    reading.set("images_per_sample", images or None, "input_features")
    stated = reading.get(key, length or None)
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
    keys = reading.get("backend")
    inside = keys.get("trainer") if isinstance(keys, dict) else None
    if isinstance(inside, dict) and isinstance(inside.get("strategy"), dict):
        keys = inside["strategy"]
    if isinstance(keys, dict) and "zero_optimization" in keys:
        for field, value in launcher_files.deepspeed_fields(keys).items():
            reading.set(field, value, "backend")
    elif reading.text("backend.type", "local") not in ("local", "ray"):
        reading.not_modelled("backend.type")


FORMAT = Format(
    "Ludwig",
    (
        Row("model_type trainer.type", _read_kind),
        model_key("base_model"),
        Row(
            f"adapter {_ADAPTERS.keys} adapter.type quantization {_BITS} "
            "quantization.bnb_4bit_use_double_quant trainer.use_mixed_precision",
            _read_method,
        ),
        Row("trainer.batch_size trainer.gradient_accumulation_steps", _read_batch),
        Row("input_features output_features preprocessing.global_max_sequence_length", _read_length),
        key("trainer.epochs", "epochs", 100),
        key("trainer.train_steps", "max_steps"),
        key("trainer.optimizer.type", "optimizer", "adamw", more=_OPTIMIZERS),
        Row("trainer.optimizer", lambda _: None),
        key("trainer.compile", "compile", False),
        Row("dataset preprocessing.sample_size preprocessing.sample_ratio", _read_data),
        switch("trainer.enable_gradient_checkpointing", "activation_checkpointing", "full"),
        Row("backend backend.type", _read_backend),
        fixed(loss="full_logits", padding="longest"),
    ),
    model_key="base_model",
    lists_its_keys=False,
)
