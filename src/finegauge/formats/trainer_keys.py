"""What every framework on top of transformers' Trainer reads alike: optimizer, attention, sharding, data.

The keys are those of TrainingArguments (transformers 4.40 to 5.23).
"""

from collections.abc import Mapping
from typing import Any

from finegauge.errors import FieldError, FineGaugeError, shown
from finegauge.formats.framework import Reading
from finegauge.formats.sheet import without
from finegauge.run.field import flag, names, number, version_numbers
from finegauge.run.rules import TRAINABLE_EXTRAS, num_held_out
from finegauge.run.run import FROM_DEFAULT, Run

_KEYS = """
optim max_steps save_strategy deepspeed fsdp fsdp_config torch_compile bf16 fp16
gradient_accumulation_steps per_device_train_batch_size num_train_epochs gradient_checkpointing
gradient_checkpointing_kwargs activation_checkpointing activation_checkpointing_kwargs
use_liger_kernel eval_strategy evaluation_strategy group_by_length
train_sampling_strategy parallelism_config
"""
KEYS = frozenset(_KEYS.split())
_CHECKPOINTING = ("activation_checkpointing", "gradient_checkpointing")  # renamed in transformers 5.23
_ATTENTION = {
    "sdpa": "sdpa",
    "sdp": "sdpa",
    "auto": "sdpa",
    "true": "flash",
    "xformers": "sdpa",
    "torch": "sdpa",
    "eager": "eager",
}
# Optimizer classes that a dotted name ends in.
_CLASSES = {
    "pagedadamw": "paged_adamw",
    "pagedadamw8bit": "paged_adamw_8bit",
    "adamw8bit": "adamw_8bit",
    "adam8bit": "adamw_8bit",
    "fusedadam": "adamw",
    "fused_adam": "adamw",
    "distributed_fused_adam": "adamw",
    "megatron_fused_adam": "adamw",
}
_FSDP = (("hybrid_shard", "hybrid"), ("shard_grad_op", "fsdp_shard_grad_op"), ("full_shard", "fsdp"))

# Which layers PEFT adapts where nobody says, for the families named; others: query and value.
_PEFT_CHOICE = (
    (("gpt_neox", "bloom", "falcon"), ("query_key_value",)),
    (("gpt2",), ("c_attn",)),
    (("phi3",), ("qkv_proj",)),
)


def read_optimizer(reading: Reading, key: str, default: str) -> None:
    """Read the optimizer; one that is not described counts as AdamW, and that is said."""
    from finegauge.run.run import FIELDS

    optimizer = reading.text(key, default).rpartition(".")[2]
    optimizer = _CLASSES.get(optimizer, optimizer)
    try:
        FIELDS["optimizer"]("optimizer", optimizer)
    except FieldError:
        reading.warn(f"{key}={shown(optimizer)} is not modelled: it is taken as AdamW with 32-bit states.")
        optimizer = "adamw"
    reading.set("optimizer", optimizer, key)
    if optimizer in ("adamw_torch", "adamw_torch_fused"):
        implementation = "fused" if optimizer == "adamw_torch_fused" else "foreach"
        reading.set("optimizer_implementation", implementation, key)


def read_attention(reading: Reading, *keys: str) -> None:
    """Read the attention kernel that the first of `keys` names."""
    key = next((key for key in keys if reading.stated(key)), keys[0])
    word = reading.text(key, "sdpa").replace("-", "_")
    kind = "flash" if "flash" in word or word in ("flex_attention", "flex", "sage") else _ATTENTION.get(word)
    reading.set("attention", kind or word, key)


def read_precision(reading: Reading, *, bf16_default: bool) -> tuple[str, str]:
    """Read the arithmetic's format; return it and what a reader compares weights with ("bf16" or "fp16").

    Args:
        reading: With `bf16` and `fp16`.
        bf16_default: Whether the framework sets bf16 where neither is stated.

    Raises: FieldError where both are true.
    """
    fp16 = reading.flag("fp16")
    stated = reading.get("bf16")
    bf16 = (bf16_default and not fp16) if stated in (None, "auto") else flag("bf16", stated)
    if bf16 and fp16:
        raise FieldError("bf16 and fp16 are both true; keep one.")
    autocast = "bf16" if bf16 else "fp16" if fp16 else "none"
    reading.set("autocast", autocast, "bf16", "fp16")
    return autocast, "fp16" if fp16 else "bf16"


def read_checkpointing(reading: Reading, *, default: bool, reentrant: bool) -> None:
    """Read gradient checkpointing, unsloth's and Axolotl's words for offloading included."""
    key = next((key for key in _CHECKPOINTING if reading.stated(key)), _CHECKPOINTING[0])
    word = reading.text(key, str(default))
    offloads = word in ("unsloth", "offload", "offload_disk")
    on = offloads or flag(key, word)
    kind = "offload" if offloads else "full" if on else "none"
    reading.set("activation_checkpointing", kind, key)
    named = next((f"{name}_kwargs" for name in _CHECKPOINTING if reading.stated(f"{name}_kwargs")), "")
    options = reading.get(named) if named else None
    stated = options.get("use_reentrant") if isinstance(options, Mapping) else None
    if stated is not None or on:
        value = reentrant if stated is None else flag("use_reentrant", stated)
        reading.set("checkpointing_reentrant", value, *((named,) if named else ()))


def read_duration(reading: Reading) -> None:
    """Read for how many steps it trains and how often it saves."""
    steps = number(-1, 1e10)("max_steps", reading.get("max_steps", -1))
    if steps > 0:
        reading.set("max_steps", int(steps), "max_steps")
    saves = {"epoch": 1.0, "no": 0.0, "false": 0.0}.get(reading.text("save_strategy"))
    if saves is not None:
        reading.set("saves_per_epoch", saves, "save_strategy")


def read_liger(reading: Reading, loss: str, *loss_keys: str) -> None:
    """Read the fused kernels and, where they do not say, how the loss is computed."""
    liger = reading.flag("use_liger_kernel")
    reading.set("kernels", ["liger"] if liger else [], "use_liger_kernel")
    reading.set("loss", "fused" if liger else loss, "use_liger_kernel", *loss_keys)


def read_sharding(reading: Reading) -> None:
    """Read DeepSpeed's or FSDP's sharding; the number of GPUs is the launcher's.

    Raises: FieldError where both are asked for.
    """
    fsdp = reading.get("fsdp")
    fsdp = None if fsdp in (False, []) or reading.text("fsdp") == "false" else fsdp
    if reading.get("deepspeed") and fsdp:
        raise FieldError("deepspeed and fsdp are both stated; keep one.")
    if reading.get("deepspeed"):
        _read_deepspeed(reading)
    elif fsdp or reading.get("fsdp_config"):
        _read_fsdp(reading, fsdp)


def _read_deepspeed(reading: Reading) -> None:
    """Read the file that `deepspeed` names, and hold its batch against the training file's."""
    from finegauge.formats import launcher_files

    named = reading.get("deepspeed")
    kind, offload, warning = launcher_files.sharding(named, reading.file)
    reading.warnings += [warning] if warning else []
    reading.set("sharding", kind, "deepspeed")
    reading.set("cpu_offload", offload, "deepspeed")
    keys, _ = launcher_files.load(named, reading.file)
    for field, value in launcher_files.deepspeed_fields(keys).items() if keys is not None else ():
        known = reading.fields.get(field)
        if field in ("micro_batch_size", "gradient_accumulation_steps") and str(known) != str(value):
            raise FieldError(
                f"{field}={known} of {reading.file_name} contradicts {field}={value} of its DeepSpeed file; "
                "make them equal, or set the latter to auto."
            )
        if field == "tensor_parallel":
            reading.set(field, value, "deepspeed")


def _read_fsdp(reading: Reading, fsdp: Any) -> None:
    """Read `fsdp` (words, a list of them, or true) and `fsdp_config`."""
    words = " ".join(map(str, fsdp)) if isinstance(fsdp, list) else str(fsdp or "")
    options = reading.get("fsdp_config")
    options = options if isinstance(options, Mapping) else {}
    named = {str(key).removeprefix("fsdp_"): value for key, value in options.items()}
    strategy = named.get("reshard_after_forward", named.get("sharding_strategy"))
    words = f"{words} {strategy}".lower()
    kind = "fsdp_shard_grad_op" if strategy is False else None
    kind = kind or next((kind for word, kind in _FSDP if word in words), "fsdp")
    if "no_shard" in words:
        kind = "none"
    reading.set("sharding", kind, "fsdp", "fsdp_config")
    offloads = "offload" in words or flag(
        "offload_params", named.get("offload_params") or named.get("cpu_offload") or False
    )
    reading.set("cpu_offload", "params" if offloads else "none", "fsdp", "fsdp_config")
    if flag("activation_checkpointing", named.get("activation_checkpointing") or False):
        reading.set("activation_checkpointing", "full", "fsdp_config")


def read_dataset(reading: Reading, value: Any, *keys: str, num_samples: int | None = None) -> None:
    """Read the data set: one of the catalogue, else every sequence is taken as long as the cut-off."""
    named = names(keys[0], value or ())
    known: str | None = None
    for name in named:
        known = in_catalogue(name) or _own_file(reading, name, keys)
    if named and (len(named) > 1 or known is None):
        known = None
    if named and known is None and not reading.replaces("dataset"):
        listed = ", ".join(shown(name) for name in named[:8])
        reading.warn(
            f"The lengths of {listed} are not in the catalogue: every sequence is taken as seq_len long."
        )
    reading.set("dataset", known, *keys)
    reading.set("num_samples", num_samples, *keys)


def read_validation(
    reading: Reading, size: Any, *keys: str, total: int | None = None, evaluates: bool = True
) -> None:
    """Read what is held out of training: a share below 1, a number of samples from 1 on.

    Args:
        reading: Of the file.
        size: As the file has it; None or 0 for nothing.
        keys: Who states it, the framework's own first.
        total: The samples that there are, where known.
        evaluates: Whether the samples held out are evaluated on.
    """
    held_out = number(0, 1e10)(keys[0], size or 0)
    if held_out >= 1 and not total:
        reading.warn(f"{keys[0]}={held_out:g} samples of a data set of unknown size: none is held out.")
        return
    fraction = held_out if held_out < 1 else min(held_out, (total or 1) - 1) / (total or 1)
    if fraction:
        reading.set("validation_fraction", fraction, *keys)
    if fraction and total and evaluates:
        reading.set("eval_samples", num_held_out(total, fraction), *keys)


def read_grouping(reading: Reading, *, packs: bool) -> None:
    """Read whether batches are made of samples of similar length.

    Raises: FieldError where they are packed too.
    """
    keys = ("group_by_length", "train_sampling_strategy")
    grouped = reading.flag(keys[0]) or reading.text(keys[1]) == "group_by_length"
    if grouped and packs:
        raise FieldError("packing fills every sequence, so grouping by length cannot hold; remove one.")
    reading.set("group_by_length", grouped, *keys)


def _own_file(reading: Reading, name: str, keys: tuple[str, ...]) -> str | None:
    """Return `name` if it is a file of texts that the command line names in place of the file's data set."""
    from finegauge.catalogue.datasets import holds_texts

    stated = any(key in reading.overrides for key in keys)
    return name if stated and holds_texts(name, has_tokenizer=False) else None


def in_catalogue(name: str) -> str | None:
    """Return `name` if the catalogue has the lengths of that data set; no file is opened."""
    from finegauge.catalogue.datasets import dataset

    if name.endswith((".csv", ".yaml", ".yml", ".json")):
        return None
    try:
        return name if dataset(name).lengths else None
    except FineGaugeError:
        return None


def peft_choice(reading: Reading) -> tuple[str, ...]:
    """Return the layers that PEFT adapts by itself in the model's family."""
    from finegauge.errors import UnknownNameError
    from finegauge.run.run import figures

    try:
        family = str(figures(str(reading.fields["model"])).config.get("model_type", ""))
    except UnknownNameError:
        family = ""
    return next((targets for families, targets in _PEFT_CHOICE if family in families), ("q_proj", "v_proj"))


def read_extra(reading: Reading, key: str) -> None:
    """Read which whole modules train beside the adapters."""
    saved = names(key, reading.get(key) or ())
    extra = ["norms" if name.endswith("norm") else name for name in saved]
    reading.set("trainable_extra", [n for n in dict.fromkeys(extra) if n in TRAINABLE_EXTRAS], key)


TRAINER = """
output_dir overwrite_output_dir learning_rate lr_scheduler_type lr_scheduler_kwargs warmup_steps
warmup_ratio optim_args weight_decay adam_beta1 adam_beta2 adam_epsilon adafactor
optim_target_modules average_tokens_across_devices max_grad_norm label_smoothing_factor
bf16_full_eval fp16_full_eval fp16_opt_level half_precision_backend tf32 activation_checkpointing
activation_checkpointing_kwargs gradient_checkpointing gradient_checkpointing_kwargs
torch_compile_backend torch_compile_mode liger_kernel_config neftune_noise_alpha
torch_empty_cache_steps auto_find_batch_size logging_dir logging_strategy logging_steps
logging_first_step log_on_each_node logging_nan_inf_filter include_num_input_tokens_seen
include_tokens_per_second log_level log_level_replica disable_tqdm report_to run_name project
trackio_space_id trackio_bucket_id trackio_static_space_id eval_steps eval_delay
per_device_eval_batch_size prediction_loss_only eval_on_start eval_do_concat_batches
eval_use_gather_object eval_accumulation_steps include_for_metrics include_inputs_for_metrics
batch_eval_metrics save_only_model save_steps save_on_each_node save_total_limit save_safetensors
enable_jit_checkpoint push_to_hub hub_token hub_private_repo hub_model_id hub_strategy
hub_always_push hub_revision load_best_model_at_end metric_for_best_model greater_is_better
ignore_data_skip restore_callback_states_from_checkpoint full_determinism seed data_seed use_cpu
no_cuda use_mps_device accelerator_config parallelism_config dataloader_drop_last
dataloader_num_workers dataloader_pin_memory dataloader_persistent_workers
dataloader_prefetch_factor dataloader_multiprocessing_context dataloader_in_order
remove_unused_columns label_names train_sampling_strategy group_by_length length_column_name
ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers ddp_static_graph ddp_backend
ddp_timeout fsdp_config fsdp_min_num_params fsdp_transformer_layer_cls_to_wrap debug
skip_memory_metrics do_train do_eval do_predict resume_from_checkpoint local_rank past_index
jit_mode_eval use_ipex torchdynamo sortish_sampler predict_with_generate generation_max_length
generation_num_beams generation_config mp_parameters
"""

_OPTIMIZERS = {
    "paged_adamw": "paged_adamw_32bit",
    "lion": "lion_32bit",
}
ATTENTION = {"sdpa": "sdpa", "flash": "flash_attention_2", "eager": "eager"}
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
PHASES = {"sft": "sft", "pretrain": "pt", "reward": "rm", "dpo": "dpo", "ppo": "ppo", "grpo": "grpo"}


def optimizer(run: "Run") -> str:
    """Return the optimizer under transformers' name; how AdamW is carried out is part of it."""
    if run.optimizer == "adamw":
        return "adamw_torch_fused" if run.optimizer_implementation == "fused" else "adamw_torch"
    return _OPTIMIZERS.get(run.optimizer, run.optimizer)


def duration(run: "Run", epochs: str = "num_train_epochs") -> dict[str, Any]:
    """Return for how long it trains, and when it saves."""
    stated = run.origins["saves_per_epoch"] != FROM_DEFAULT
    saves = {0.0: "no", 1.0: "epoch"}.get(run.saves_per_epoch) if stated else None
    return without({epochs: float(run.epochs), "max_steps": run.max_steps, "save_strategy": saves})


def precision(run: "Run") -> dict[str, Any]:
    """Return the arithmetic's format; both keys, for the frameworks' defaults differ."""
    return {"bf16": run.autocast == "bf16"} | ({"fp16": True} if run.autocast == "fp16" else {})


def checkpointing(run: "Run") -> dict[str, Any]:
    """Return gradient checkpointing and its kind; offloading is each framework's own."""
    if run.activation_checkpointing == "none":
        return {"gradient_checkpointing": False}
    return {
        "gradient_checkpointing": True,
        "gradient_checkpointing_kwargs": {"use_reentrant": run.checkpointing_reentrant},
    }


def batch(run: "Run") -> dict[str, Any]:
    """Return the micro-batch and how many of them make a step."""
    return {
        "per_device_train_batch_size": run.micro_batch_size,
        "gradient_accumulation_steps": run.gradient_accumulation_steps,
    }


def grouping(run: "Run") -> dict[str, Any]:
    """Return that samples of similar length share a batch, under transformers' key of the run's version."""
    if not run.group_by_length:
        return {}
    if version_numbers(run.transformers_version) < (5, 0):
        return {"group_by_length": True}
    return {"train_sampling_strategy": "group_by_length"}


def compiled(run: "Run") -> dict[str, Any]:
    """Return torch.compile, where it is on."""
    return {"torch_compile": True} if run.compile else {}


def evaluation(run: "Run") -> dict[str, Any]:
    """Return when it evaluates, where it does."""
    return {"eval_strategy": "epoch"} if run.eval_samples else {}


def saved_modules(run: "Run") -> list[str] | None:
    """Return the modules that train whole beside adapters, by the ends of their names."""
    return [{"norms": "norm"}.get(name, name) for name in run.trainable_extra] or None
