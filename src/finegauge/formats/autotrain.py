"""AutoTrain Advanced's YAML of language models (`autotrain --config`), hidden defaults included.

What no key says but the framework does (read from its source, 0.8): without `peft` every weight trains, in
fp32 unless `mixed_precision` says otherwise; with it LoRA of rank 16, alpha 32, dropout 0.05 on all linear
layers over NF4 weights, singly quantised, unless `quantization` is none; adapters in fp32; checkpointing on,
reentrant where quantised; samples one row after the other, cut at 1,024 unless `block_size` says otherwise,
and at the `model_max_length` of 2,048; preference and reward pairs padded to the longest; micro-batches of 2,
four to a step; one epoch; no saves before the end. A file is read, and none is written.
"""

import re
from collections.abc import Mapping
from typing import Any

from finegauge.errors import FieldError, shown
from finegauge.formats import rollout_keys, trainer_keys
from finegauge.formats.key_table import Format, Reading, Row, fixed, key, model_key, switch
from finegauge.formats.launchers import of_hub
from finegauge.formats.sheet import known_model, mapping_in
from finegauge.run.field import whole
from finegauge.run.run import positions_of

_PHASES = {"default": "sft", "sft": "sft", "generic": "sft", "dpo": "dpo", "orpo": "dpo", "reward": "reward"}
_DEFAULT_BLOCK = 1024
_TOKENIZER, _DISTRIBUTED = "params.model_max_length", "params.distributed_backend"
_ADAPTERS = trainer_keys.Adapters(
    "params.lora_r params.lora_alpha params.lora_dropout params.target_modules params.modules_to_save",
    defaults=(16, 32, 0.05),
)

_OF_OPTIONS = {  # other names of its options, and those that its file has in other sections
    **{"model": "base_model", "data_path": "data.path", "task": "task", "use_peft": "params.peft"},
    **{name: name for name in ("project_name", "log", "backend")},
    **{"learning_rate": "params.lr", "num_train_epochs": "params.epochs"},
    **{"train_batch_size": "params.batch_size"},
    **{"gradient_accumulation_steps": "params.gradient_accumulation", "int4": "use_int4", "int8": "use_int8"},
    **{"use_int4": "use_int4", "use_int8": "use_int8", "use_fa2": "params.use_flash_attention_2"},
    **{name: f"hub.{name}" for name in ("push_to_hub", "token", "username", "repo_id")},
}


def of_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of `autotrain llm` under the keys of its file."""
    found = {
        _OF_OPTIONS.get(key, f"params.{key}"): value
        for key, value in options.items()
        if key != "train" and not key.endswith("_column")
    }
    bits = [bits for bits in ("int4", "int8") if found.pop(f"use_{bits}", None)]
    return {**found, **({"params.quantization": bits[0]} if bits else {})}


def _read_task(reading: Reading) -> None:
    """Read what is trained: the trainer, or the second half of the task, as in llm-dpo."""
    task, _, half = reading.text("task").replace(":", "-").partition("-")
    trainer = reading.text("params.trainer", half or "default")
    if task not in ("llm", "lm") or trainer not in _PHASES:
        what = f"params.trainer={shown(trainer)}"
        if task not in ("llm", "lm"):
            what = f"task={shown(reading.text('task'))}"
        raise FieldError(f"{what} is not supported; use task llm with trainer sft, dpo, orpo or reward.")
    phase = _PHASES[trainer]
    reading.set("phase", phase, "params.trainer", "task")
    rollout_keys.read_preference(reading, trainer, "params.trainer", "task")
    reading.set("packing", phase == "sft")
    reading.set("packing_strategy", "wrapped")
    reading.set("padding", None if phase == "sft" else "longest")


def _read_method(reading: Reading) -> None:
    adapts = reading.flag("params.peft")
    is_null = mapping_in(reading.keys, "params").get("quantization", "") is None
    bits = reading.text("params.quantization", "none" if is_null else "int4") if adapts else "none"
    if bits not in ("int4", "int8", "none", ""):
        raise FieldError(f"params.quantization={shown(bits)} is not supported; use int4, int8 or none.")
    quantized = bits in ("int4", "int8")
    keys = ("params.peft", "params.quantization")
    reading.set("method", "qlora" if quantized else "lora" if adapts else "full", *keys)
    reading.set("weights_dtype", {"int4": "nf4", "int8": "int8"}.get(bits, "fp32"), *keys)
    if adapts:
        reading.set("adapter_dtype", "fp32")
        _ADAPTERS.read(reading)
    reading.set("checkpointing_reentrant", quantized)


def _read_length(reading: Reading) -> None:
    stated = reading.get("params.block_size")
    first = stated[0] if isinstance(stated, list) and stated else stated
    usual = first is None or str(first) == "-1"
    length = whole(1, 10**8)("block_size", _DEFAULT_BLOCK if usual else first)
    length = min(length, reading.whole(_TOKENIZER, 2 * _DEFAULT_BLOCK, 10**8))  # which cuts what is longer
    known = known_model(str(reading.fields["model"]))
    length = min(length, positions_of(known.config) or length) if known else length
    reading.set("seq_len", length, "params.block_size", _TOKENIZER)


def _read_backend(reading: Reading) -> None:
    """Read the cards that train (spaces-l4x4, nvcf-h100x2, dgx-8a100; "local" says none), and ZeRO."""
    machine = re.sub(r"^(spaces|nvcf|dgx)-", "", reading.text("backend"))
    machine = re.sub(r"^(\d?)(a100)$", lambda found: f"{found[2]}x{found[1] or 1}", machine)
    told = of_hub(machine)
    for field, value in told.items():
        reading.set(field, value, "backend")
    if reading.text(_DISTRIBUTED) == "deepspeed" and told.get("num_gpus", reading.launched_gpus) != 1:
        reading.set("sharding", "zero3", _DISTRIBUTED)


FORMAT = Format(
    "AutoTrain",
    (
        model_key("base_model"),
        Row(f"backend {_DISTRIBUTED}", _read_backend),
        Row("task params.trainer", _read_task),
        Row(f"params.peft params.quantization {_ADAPTERS.keys}", _read_method),
        switch("params.disable_gradient_checkpointing", "activation_checkpointing", "none", off="full"),
        key("params.mixed_precision", "autocast", "none"),
        switch("params.use_flash_attention_2", "attention", "flash", off="sdpa"),
        Row(f"params.block_size {_TOKENIZER}", _read_length),
        trainer_keys.dataset_row("data.path"),
        trainer_keys.optimizer_row("params.optimizer", "adamw_torch"),
        key("params.batch_size", "micro_batch_size", 2),
        key("params.gradient_accumulation", "gradient_accumulation_steps", 4),
        key("params.epochs", "epochs", 1),
        key("params.merge_adapter", "merge_adapters", False),
        fixed(loss="full_logits", saves_per_epoch=0.0),
    ),
    model_key="base_model",
    data_keys=("data.path",),
    not_modelled="params.auto_find_batch_size params.unsloth",
)
