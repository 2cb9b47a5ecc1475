"""Unsloth's YAML (`unsloth train`) and, under the same keys, its notebooks.

What no key says but the framework does (read from Unsloth 2026): weights in 4 bits, NF4 double
quantised; LoRA of rank 64 and alpha 16 in the YAML (16 and 16 in a notebook) on all linear layers;
checkpoints offloaded to the host ("unsloth"); its own kernels and a loss that never holds the whole
logits; bf16 arithmetic, fp32 adapters; one GPU.
"""

from math import prod
from typing import Any

from finegauge.errors import FieldError, shown
from finegauge.formats import model_keys, rollout_keys, trainer_keys
from finegauge.formats.key_table import Format, Reading, Row, always, fixed, key, model_key
from finegauge.formats.sheet import LINEAR, Sheet, dataset_name, file_kind, require, whole_number
from finegauge.run.field import names
from finegauge.run.rules import COMPARING
from finegauge.run.run import Run

FILE = "unsloth.yaml"
_ADAPTERS = trainer_keys.Adapters(
    "lora.lora_r lora.lora_alpha lora.lora_dropout lora.target_modules lora.modules_to_save lora.use_dora",
    defaults=(64, 16, 0.0),
    everything="",
    joined=True,
)
_TUNED = {
    "finetune_language_layers": "freeze_language_model",
    "finetune_vision_layers": "freeze_vision_tower",
}
_PACKING = trainer_keys.packing_row("training.packing", "training.padding_free")
_KIND = "training.training_type"
_QUANTIZED = ("training.load_in_4bit", "training.load_in_8bit")
_CHECKPOINTING_KEY = "training.gradient_checkpointing"
_CHECKPOINTING = {
    "unsloth": "offload",
    **dict.fromkeys(("true", "1", "yes", "mlx"), "full"),
    **dict.fromkeys(("false", "none", "no", "0", "off"), "none"),
}
_CHECKPOINTING_WORDS = {"none": "none", "full": "true", "selective": "true", "offload": "unsloth"}


def _read_phase(reading: Reading) -> None:
    trainer = reading.text("training.trainer", "sft")
    phase = "dpo" if trainer in ("orpo", "cpo", "simpo", "kto") else trainer
    if phase == "dpo":
        rollout_keys.read_preference(reading, trainer, "training.trainer")
    if phase not in ("sft", "dpo", "grpo", "reward"):
        raise FieldError(f"The trainer {shown(phase)} is not supported under Unsloth; sft, dpo and grpo are.")
    reading.set("phase", phase, "training.trainer")


def _read_packing(reading: Reading) -> None:
    if reading.fields["phase"] in COMPARING:  # whole sequences
        reading.set("packing", False)
        reading.set("padding", "longest")
    elif _PACKING.read is not None:
        _PACKING.read(reading)


def _read_method(reading: Reading) -> None:
    """Read whether adapters train, which, and every number format."""
    kind = reading.text(_KIND, "lora")
    if kind not in ("lora", "qlora", "full"):
        raise FieldError(f"training_type={shown(kind)} is not supported; use lora or full.")
    autocast = "fp16" if reading.flag("training.fp16") else "bf16"
    reading.set("autocast", autocast, "training.fp16")
    if autocast == "bf16" and kind != "full":
        reading.set_by_gpu("autocast")
    quantized_copy = trainer_keys.is_quantized_copy(reading)
    eight = reading.flag(_QUANTIZED[1])
    four = not eight and (quantized_copy or reading.flag(_QUANTIZED[0], default=kind != "full"))
    if kind == "full":
        reading.set("method", "full", _KIND)
        reading.set("weights_dtype", "fp32" if autocast == "fp16" else "bf16")  # float16 is upcast
        reading.ignored(_QUANTIZED, "training_type is full")
        return
    reading.set("method", "qlora" if four or eight else "lora", _KIND, *_QUANTIZED)
    reading.set("weights_dtype", "nf4_dq" if four else "int8" if eight else autocast, *_QUANTIZED)
    if not (four or eight) and autocast == "bf16":
        reading.set_by_gpu("weights_dtype")
    reading.set("adapter_dtype", "fp32")
    _ADAPTERS.read(reading)
    asked = names("lora.target_modules", reading.fields["lora_targets"])
    if whole := [name for name in asked if name in ("embed_tokens", "lm_head")]:  # which train whole
        reading.set("lora_targets", [name for name in asked if name not in whole], "lora.target_modules")
        extra = [*whole, *reading.fields.get("trainable_extra", ())]
        reading.set("trainable_extra", list(dict.fromkeys(extra)), "lora.target_modules")
    tuned = {field: reading.flag(f"lora.{key}", default=True) for key, field in _TUNED.items()}
    if reading.flag("lora.finetune_vision_layers"):
        model_keys.warn_of_images(reading, "finetune_vision_layers")
    if not all(tuned.values()):
        for field, trains in tuned.items():
            reading.set(field, not trains, *(f"lora.{key}" for key in _TUNED))
    within = [f"lora.finetune_{part}_modules" for part in ("attention", "mlp")]
    parts = [
        part
        for key, part in zip(within, (LINEAR[:4], LINEAR[4:]), strict=True)
        if reading.flag(key, default=True)
    ]
    if len(parts) == 1:
        reading.set("lora_targets", parts[0], *within)


def _method(run: Run) -> dict[str, Any]:
    return {
        _KIND: "full" if run.method == "full" else "lora",
        _QUANTIZED[0]: run.weights_dtype in ("nf4", "nf4_dq"),
        _QUANTIZED[1]: True if run.weights_dtype == "int8" else None,
        "training.fp16": True if run.autocast == "fp16" else None,
        **_ADAPTERS.written(run),
    }


def _read_checkpointing(reading: Reading) -> None:
    word = reading.text(_CHECKPOINTING_KEY, "unsloth")
    if word not in _CHECKPOINTING:
        raise FieldError(f"gradient_checkpointing={shown(word)} is unknown; use unsloth, true or false.")
    reading.set("activation_checkpointing", _CHECKPOINTING[word], _CHECKPOINTING_KEY)


def _hold_a_group(reading: Reading) -> None:
    """Raise the micro-batch to the answers of a prompt where it holds a part of them, as Unsloth does."""
    answers, sizes = (
        reading.fields.get("num_generations"),
        ("micro_batch_size", "gradient_accumulation_steps"),
    )
    if answers and prod(int(reading.fields[size]) for size in sizes) % int(answers):
        reading.set("micro_batch_size", answers)
        reading.warn(f"Unsloth raises the micro-batch to num_generations, {answers}.")


def _data(run: Run) -> dict[str, Any]:
    """Return the data set: of a hub by its name, or a file."""
    named = dataset_name(run)
    is_file = named is not None and file_kind(named) is not None
    return {"data.local_dataset": [named]} if is_file else {"data.dataset": named}


FORMAT = Format(
    "Unsloth",
    (
        model_key("model"),
        Row("training.trainer", _read_phase),
        fixed(kernels=["unsloth"], loss="fused", attention="flash", over_length="truncate"),
        trainer_keys.dataset_row("data.dataset", _data, beside="data.local_dataset"),
        Row(f"{_KIND} {' '.join(_QUANTIZED)} training.fp16 {_ADAPTERS.keys}", _read_method, _method),
        key("training.max_seq_length", "seq_len", 2048),
        key("training.num_epochs", "epochs", 3.0, write=lambda run: whole_number(run.epochs)),
        key("training.max_steps", "max_steps", more={"0": None, "-1": None}),
        key("training.batch_size", "micro_batch_size", 2),
        key("training.gradient_accumulation_steps", "gradient_accumulation_steps", 4),
        Row("training.packing training.padding_free", _read_packing, _PACKING.write),
        rollout_keys.generation_row("training.", share=0.5),
        Row("", _hold_a_group),
        Row(
            _CHECKPOINTING_KEY,
            _read_checkpointing,
            lambda run: {_CHECKPOINTING_KEY: _CHECKPOINTING_WORDS[run.activation_checkpointing]},
        ),
        trainer_keys.optimizer_row("training.optim", "adamw_8bit"),
        fixed(num_gpus=1),
        always(**{"training.output_dir": "output"}),
    ),
    model_key="model",
    lasting={name: f"training.{name}" for name in trainer_keys.LASTING if name != "max_grad_norm"},
    data_keys=("data.dataset", "data.local_dataset"),
)


def sheet(run: Run) -> Sheet:
    """Return the file of Unsloth for `run`.

    Raises: InputError for several GPUs, and for what its command does not train.
    """
    require(run, FORMAT.name, "it trains on one GPU here.", num_gpus=(1,))
    instead = "it fine-tunes in full, by LoRA or by QLoRA."
    require(run, FORMAT.name, instead, phase=("sft",), method=("full", "lora", "qlora"))
    return Sheet(FILE, FORMAT.written(run), f"unsloth train --config {FILE}", "unsloth")
