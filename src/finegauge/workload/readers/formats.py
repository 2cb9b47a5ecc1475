"""Which reader a file belongs to, told by keys that only one format has."""

from collections.abc import Callable, Mapping
from typing import Any

Keys = Mapping[str, Any]

_LLAMAFACTORY = """
stage finetuning_type template cutoff_len dataset dataset_dir lora_target quantization_bit
"""
_TRL = """
dataset_name use_peft lora_r load_in_4bit load_in_8bit loss_type max_length max_seq_length packing
dtype attn_implementation lora_target_modules padding_free torch_dtype
"""
_TRAINER = """
output_dir per_device_train_batch_size gradient_accumulation_steps num_train_epochs learning_rate
bf16 gradient_checkpointing optim max_steps
"""
_LLAMAFACTORY_V1 = """
train_dataset peft_config quant_config kernel_config dist_config batching_strategy sample_backend
init_config enable_activation_checkpointing
"""
_MS_SWIFT = """
tuner_type train_type sft_type swift_version per_device_train_batch_size freeze_vit attn_impl
"""


def reader_of(keys: Keys) -> str:
    """Return "module" or "module:CONSTANT" of the reader; "" where no format is recognised."""
    return next((reader for reader, recognises in _FORMATS if recognises(keys)), "")


def _any_of(words: str, keys: Keys) -> bool:
    return not set(words.split()).isdisjoint(keys)


def _llamafactory(keys: Keys) -> bool:
    return "model_name_or_path" in keys and _any_of(_LLAMAFACTORY, keys)


def _axolotl(keys: Keys) -> bool:
    return "base_model" in keys


def _adapter(keys: Keys) -> bool:
    return "peft_type" in keys and "r" in keys


def _trl(keys: Keys) -> bool:
    return "model_name_or_path" in keys and _any_of(_TRL, keys)


def _trainer(keys: Keys) -> bool:
    return "model_name_or_path" in keys and _any_of(_TRAINER, keys)


def _torchtune(keys: Keys) -> bool:
    model = keys.get("model")
    return isinstance(model, Mapping) and "_component_" in model


def _nemo_automodel(keys: Keys) -> bool:
    model = keys.get("model")
    if not isinstance(model, Mapping):
        return False
    return "step_scheduler" in keys or "pretrained_model_name_or_path" in model


def _nemo_legacy(keys: Keys) -> bool:
    model, trainer = keys.get("model"), keys.get("trainer")
    return isinstance(model, Mapping) and isinstance(trainer, Mapping) and "devices" in trainer


def _llamafactory_v1(keys: Keys) -> bool:
    named = isinstance(keys.get("model"), str)
    return named and _any_of(_LLAMAFACTORY_V1, keys) and not _any_of(_MS_SWIFT, keys)


def _ms_swift(keys: Keys) -> bool:
    return "model" in keys and not isinstance(keys["model"], Mapping) and _any_of(_MS_SWIFT, keys)


def _unsloth(keys: Keys) -> bool:
    training = keys.get("training")
    return (
        isinstance(keys.get("model"), str) and isinstance(training, Mapping) and "max_seq_length" in training
    )


def _torchtitan(keys: Keys) -> bool:
    model = keys.get("model")
    return isinstance(model, Mapping) and "flavor" in model and "training" in keys


_FORMATS: tuple[tuple[str, Callable[[Keys], bool]], ...] = (
    ("llamafactory", _llamafactory),
    ("axolotl", _axolotl),
    ("trl", _adapter),
    ("trl", _trl),
    ("trl:TRAINER", _trainer),
    ("torchtune", _torchtune),
    ("nemo_automodel", _nemo_automodel),
    ("nemo_legacy", _nemo_legacy),
    ("unsloth", _unsloth),
    ("llamafactory_v1", _llamafactory_v1),
    ("ms_swift", _ms_swift),
    ("torchtitan", _torchtitan),
)
