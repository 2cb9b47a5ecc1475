"""Arguments of DeepSpeed-Chat's three steps (`deepspeed main.py`), hidden defaults included.

What no argument says but the framework does (DeepSpeedExamples, applications/DeepSpeed-Chat, 2023 and 2024):
fp16 throughout, nothing under autocast; ZeRO-0; no checkpointing; 16 sequences a GPU, cut at 512 and padded
to it; one epoch; adapters on every layer of the decoder where `lora_dim` is above 0, whose own weights then
stay as they are (utils/module/lora.py); all else trains beside them unless `only_optimize_lora` is there.
Step 3 has prompts and answers of 256 tokens, one pass of updates, a reference that is a copy, a critic that
trains whole, and a reward model of the critic's size (rlhf_engine.py).
"""

from finegauge.formats import rollout_keys, trainer_keys
from finegauge.formats.key_table import Format, Reading, Row, fixed, key, model_key
from finegauge.run.field import whole

_MODELS = ("model_name_or_path", "actor_model_name_or_path")
_BATCH = "per_device_train_batch_size"  # of steps 1 and 2; of step 3 before summer 2023, of what it generates
_TRAINED = ("per_device_training_batch_size", "per_device_mini_train_batch_size")
_GENERATED = ("per_device_generation_batch_size", _BATCH)
_ROLLOUTS = ("generation_batches", "generation_batch_numbers")
_CHECKPOINTING = ("gradient_checkpointing", "actor_gradient_checkpointing")
_CRITIC = (
    "critic_model_name_or_path",
    "critic_zero_stage",
    "critic_lora_dim",
    "critic_gradient_checkpointing",
)
_count = whole(1, 10**6)
_rank = whole(0, 65_536)


def _read_model(reading: Reading) -> None:
    learns = "reward" if reading.stated("num_padding_at_beginning") else "sft"
    learns = "ppo" if reading.stated(_MODELS[1]) else learns
    reading.set("phase", learns, _MODELS[1], "num_padding_at_beginning")
    if learns != "ppo":
        reading.take("seq_len", "max_seq_len", 512)
        reading.take("micro_batch_size", _BATCH, 16)
        return
    prompt, answer = "max_prompt_seq_len", "max_answer_seq_len"
    new = _count(answer, reading.get(answer, 256))
    reading.set("seq_len", new + _count(prompt, reading.get(prompt, 256)), prompt, answer)
    reading.set("max_new_tokens", new, answer)
    _read_other_models(reading)
    _read_rollout(reading)
    _read_engine(reading)


def _read_other_models(reading: Reading) -> None:
    name, divided, adapted, checkpointed = _CRITIC
    rollout_keys.other_model(reading, "critic_model", name)
    rank, own = (_rank(of, reading.get(of, 0)) for of in (adapted, "actor_lora_dim"))
    reading.set("critic_method", "lora" if rank and own else "full", adapted)
    if rank != own and rank:
        reading.warn(f"{adapted}={rank} is not modelled beside actor_lora_dim={own}.")
    reading.set("critic_checkpointing", reading.flag(checkpointed), checkpointed)
    stage, actor = (whole(0, 3)(key, reading.get(key, 0)) for key in (divided, "actor_zero_stage"))
    if stage != actor:  # the actor's stage 0 is ZeRO-1 among one rank
        reading.set("critic_sharding", f"zero{stage}" if stage else "none", divided)
    offload = "offload_reference_model"  # without effect below ZeRO-3
    reading.set("reference_offload", reading.flag(offload) and actor == 3, offload)
    reading.set("ema", reading.flag("enable_ema"), "enable_ema")
    reading.take("ppo_epochs", "ppo_epochs", 1)


def _read_rollout(reading: Reading) -> None:
    written, trained = (_count(names[0], reading.first(names, 16)) for names in (_GENERATED, _TRAINED))
    accumulated = _count("gradient_accumulation_steps", reading.get("gradient_accumulation_steps", 1))
    trained = min(trained, written)  # batches are divided one by one, and never joined
    reading.set("micro_batch_size", trained, *_TRAINED, _BATCH)
    pieces = _count(_ROLLOUTS[0], reading.first(_ROLLOUTS, 1)) * -(-written // trained)
    updates, rest = divmod(pieces, accumulated)
    if updates and (rest or written % trained):
        reading.warn(f"Answers of a rollout are not whole updates of {trained} x {accumulated}.")
    reading.set("num_mini_batches", max(1, updates), *_ROLLOUTS)
    reading.set("generation_batch_size", written, *_GENERATED)


def _read_engine(reading: Reading) -> None:
    hybrid, pinned = reading.flag("enable_hybrid_engine"), not reading.flag("unpin_actor_parameters")
    reading.set("inference_engine", "deepspeed" if hybrid else "hf", "enable_hybrid_engine")
    reading.set("gather_for_generation", hybrid and pinned, "unpin_actor_parameters")
    reading.take("rollout_tensor_parallel", "inference_tp_size", 1)
    released = reading.flag("release_inference_cache")
    reading.set("rollout_sleep", 2 if released else 0, "release_inference_cache")
    if reading.stated("tp_gather_partition_size"):
        reading.take("gathered_layers", "tp_gather_partition_size")


def _read_method(reading: Reading) -> None:
    rank = _rank("lora_dim", reading.first(("lora_dim", "actor_lora_dim"), 0))
    low = "bf16" if reading.text("dtype", "fp16").startswith("bf") else "fp16"
    reading.set("method", "lora" if rank else "full", "lora_dim", "actor_lora_dim", "only_optimize_lora")
    reading.set("weights_dtype", low, "dtype")
    if rank and not reading.flag("only_optimize_lora"):  # what has no adapter learns beside them
        reading.set("trainable_extra", ["embed_tokens", "lm_head", "norms"], "only_optimize_lora")
    if rank:
        reading.set("lora_rank", rank, "lora_dim", "actor_lora_dim")
        reading.set("lora_targets", ["all-linear"], "lora_module_name", "actor_lora_module_name")
        reading.set("adapter_dtype", low, "dtype")


def _read_sharding(reading: Reading) -> None:
    stage = whole(0, 3)("zero_stage", reading.first(("zero_stage", "actor_zero_stage"), 0))
    keys = "zero_stage", "actor_zero_stage"
    reading.set("sharding", f"zero{stage or 1}", *keys)
    if not stage:  # 16-bit weights with fp32 copies and moments whole on every GPU: ZeRO-1 among one rank
        reading.set("data_parallel_shard", 1, *keys)
    offload = "all" if stage == 3 else "optimizer"
    reading.set("cpu_offload", offload if reading.flag("offload") and stage else "none", "offload")
    on = any(map(reading.flag, _CHECKPOINTING))
    reading.set("activation_checkpointing", "full" if on else "none", *_CHECKPOINTING)


FORMAT = Format(
    "DeepSpeed-Chat",
    (
        model_key(*_MODELS)._replace(write=None),
        Row(
            f"{' '.join((*_TRAINED, *_GENERATED, *_ROLLOUTS, *_CRITIC))} num_padding_at_beginning "
            "max_seq_len max_prompt_seq_len max_answer_seq_len offload_reference_model enable_ema ppo_epochs "
            "enable_hybrid_engine unpin_actor_parameters inference_tp_size release_inference_cache "
            "tp_gather_partition_size",
            _read_model,
        ),
        Row(
            "lora_dim actor_lora_dim only_optimize_lora lora_module_name actor_lora_module_name dtype",
            _read_method,
        ),
        Row(f"zero_stage actor_zero_stage offload {' '.join(_CHECKPOINTING)}", _read_sharding),
        Row("deepspeed", lambda _: None),  # the script's own switch
        key("gradient_accumulation_steps", "gradient_accumulation_steps", 1),
        key("num_train_epochs", "epochs", 1),
        trainer_keys.dataset_row("data_path"),
        fixed(padding="max", attention="eager", optimizer="adamw", loss="full_logits", autocast="none"),
    ),
    model_key="model_name_or_path",
    lists_its_keys=False,
    not_modelled="enable_mixed_precision_lora critic_lora_module_name unsupervised_dataset_name",
)
