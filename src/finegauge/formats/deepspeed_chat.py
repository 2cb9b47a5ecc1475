"""Arguments of DeepSpeed-Chat's three steps (`deepspeed main.py`), hidden defaults included.

What no argument says but the framework does (read from DeepSpeedExamples, 2024): fp16; ZeRO-0; no
checkpointing; 16 sequences a GPU, cut at 512 and padded to it; one epoch; adapters on every layer of the
decoder where `lora_dim` is above 0, whose own weights then stay as they are (utils/module/lora.py);
embedding and head train beside them unless `only_optimize_lora`. Step 3 has prompts and answers of 256 tokens
and writes with its hybrid engine.
"""

from finegauge.formats import trainer_keys
from finegauge.formats.key_table import Format, Reading, Row, fixed, key
from finegauge.run.field import whole

_MODELS = ("model_name_or_path", "actor_model_name_or_path")
_BATCHES = ("per_device_train_batch_size", "per_device_training_batch_size")
_CHECKPOINTING = ("gradient_checkpointing", "actor_gradient_checkpointing")


def _read_model(reading: Reading) -> None:
    reading.set("model", reading.first(_MODELS), *_MODELS)
    reading.need_model()
    learns = (
        "ppo"
        if reading.stated(_MODELS[1])
        else "reward"
        if reading.stated("num_padding_at_beginning")
        else "sft"
    )
    reading.set("phase", learns, _MODELS[1], "num_padding_at_beginning")
    prompt, answer = "max_prompt_seq_len", "max_answer_seq_len"
    if learns == "ppo":
        new = whole(1, 10**6)(answer, reading.get(answer, 256))
        reading.set("seq_len", new + whole(1, 10**6)(prompt, reading.get(prompt, 256)), prompt, answer)
        reading.set("max_new_tokens", new, answer)
        if reading.stated("critic_model_name_or_path"):
            reading.warn(
                "critic_model_name_or_path is not modelled: value and reward model are as large as the actor."
            )
    else:
        reading.set("seq_len", reading.get("max_seq_len", 512), "max_seq_len")


def _read_method(reading: Reading) -> None:
    rank = whole(0, 65_536)("lora_dim", reading.first(("lora_dim", "actor_lora_dim"), 0))
    low = "bf16" if reading.text("dtype", "fp16").startswith("bf") else "fp16"
    reading.set("method", "lora" if rank else "full", "lora_dim", "actor_lora_dim", "only_optimize_lora")
    reading.set("weights_dtype", low, "dtype")
    reading.set("autocast", low, "dtype")
    if rank and not reading.flag("only_optimize_lora"):  # what has no adapter learns beside them
        reading.set("trainable_extra", ["embed_tokens", "lm_head"], "only_optimize_lora")
    if rank:
        reading.set("lora_rank", rank, "lora_dim", "actor_lora_dim")
        reading.set("lora_targets", ["all-linear"], "lora_module_name")
        reading.set("adapter_dtype", low, "dtype")


def _read_sharding(reading: Reading) -> None:
    stage = whole(0, 3)("zero_stage", reading.first(("zero_stage", "actor_zero_stage"), 0))
    reading.set("sharding", ("none", "zero1", "zero2", "zero3")[int(stage)], "zero_stage", "actor_zero_stage")
    offload = "all" if stage == 3 else "optimizer"
    reading.set("cpu_offload", offload if reading.flag("offload") and stage else "none", "offload")
    on = any(map(reading.flag, _CHECKPOINTING))
    reading.set("activation_checkpointing", "full" if on else "none", *_CHECKPOINTING)
    reading.set("micro_batch_size", reading.first(_BATCHES, 16), *_BATCHES)


FORMAT = Format(
    "DeepSpeed-Chat",
    (
        Row(
            f"{' '.join(_MODELS)} num_padding_at_beginning max_seq_len max_prompt_seq_len max_answer_seq_len "
            "critic_model_name_or_path",
            _read_model,
        ),
        Row("lora_dim actor_lora_dim only_optimize_lora lora_module_name dtype", _read_method),
        Row(f"zero_stage actor_zero_stage offload {' '.join((*_CHECKPOINTING, *_BATCHES))}", _read_sharding),
        key("gradient_accumulation_steps", "gradient_accumulation_steps", 1),
        key("num_train_epochs", "epochs", 1),
        trainer_keys.dataset_row("data_path"),
        fixed(padding="max", attention="eager", optimizer="adamw", loss="full_logits"),
    ),
    model_key="model_name_or_path",
    lists_its_keys=False,
    not_modelled="enable_ema enable_mixed_precision_lora",
)
