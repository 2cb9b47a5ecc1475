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
from typing import TYPE_CHECKING, Any, NamedTuple

from finegauge.errors import FieldError
from finegauge.formats import launcher_files, trainer_keys
from finegauge.formats.framework import Framework, Reading
from finegauge.formats.sheet import (
    ACCELERATE,
    Sheet,
    dataset_name,
    file_kind,
    refuse,
    repository,
    targets,
    whole_number,
    without,
)

if TYPE_CHECKING:
    from finegauge.run.run import Run

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
        *trainer_keys.KEYS,
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
    trainer_keys.read_duration(reading)
    trainer_keys.read_sharding(reading)


def known_keys() -> Collection[str]:
    """Return the keys that TRL, PEFT and transformers' trainer know and nothing here depends on."""
    return _schema_keys()


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
    reading.set("lora_targets", targets or trainer_keys.peft_choice(reading), "lora_target_modules")
    trainer_keys.read_extra(reading, "lora_modules_to_save")
    reading.not_modelled(*_NOT_MODELLED)


def _read_precision(reading: Reading) -> None:
    """Read the number formats of weights, adapters and arithmetic."""
    defaults = _defaults(reading)
    trainer_keys.read_precision(reading, bf16_default=defaults.bf16)
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
    trainer_keys.read_checkpointing(reading, default=defaults.checkpointing, reentrant=defaults.reentrant)
    if reading.flag("activation_offloading"):
        reading.set("activation_checkpointing", "offload", "activation_offloading")
    trainer_keys.read_attention(reading, "attn_implementation")
    loss = "chunked" if reading.text("loss_type") == "chunked_nll" else defaults.loss
    trainer_keys.read_liger(reading, loss, "loss_type")
    trainer_keys.read_optimizer(reading, "optim", "adamw_torch_fused")
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
    trainer_keys.read_grouping(reading, packs=packing)
    trainer_keys.read_dataset(reading, reading.get("dataset_name"), "dataset_name")


_METHODS = {
    "full": {"use_peft": "false", "load_in_4bit": "false", "load_in_8bit": "false"},
    "lora": {"use_peft": "true", "load_in_4bit": "false", "load_in_8bit": "false"},
    "qlora": {"use_peft": "true", "load_in_4bit": "true", "load_in_8bit": "false"},
}
FORMAT = Framework("TRL", KEYS, "model_name_or_path", state, known_keys, _METHODS)
TRAINER = FORMAT._replace(name="transformers")

_TRL = """
activation_offloading assistant_only_loss attn_implementation beta bf16 bnb_4bit_quant_storage
bnb_4bit_quant_type cache_implementation cast_lm_head_to_fp32 center_rewards_coefficient
chars_per_token chat_template_kwargs chat_template_path columns completion_only_loss data_dir
data_files dataset_batch_size dataset_config dataset_kwargs dataset_name dataset_num_proc
dataset_streaming dataset_test_split dataset_text_field dataset_train_split datasets delta
desirable_weight disable_dropout discopop_tau ds3_gather_for_generation dtype entropy_coef
entropy_coef_delta entropy_coef_max entropy_coef_min entropy_target eos_token epsilon epsilon_high
eval_packing f_alpha_divergence_coef f_divergence_type fraction generation_batch_size
generation_kwargs gradient_checkpointing ignore_bias_buffers importance_sampling_level
label_smoothing ld_alpha learning_rate load_in_4bit load_in_8bit log_completions
log_completions_hub_repo log_multimodal log_unique_prompts logging_steps lora_alpha lora_dropout
lora_modules_to_save lora_r lora_target_modules lora_target_parameters lora_task_type loss_type
loss_weights lr_scheduler_kwargs mask_truncated_completions max_completion_length max_length
max_seq_length max_tool_calling_iterations min_p model_init_kwargs model_name_or_path model_revision
multi_objective_aggregation name num_completions_to_print num_generations num_generations_eval
num_iterations num_of_sequences off_policy_mask_threshold packing packing_strategy
pad_to_multiple_of pad_token padding_free path precompute_ref_batch_size precompute_ref_log_probs
ref_model_mixup_alpha ref_model_sync_steps remove_unused_columns repetition_penalty reward_weights
router_aux_loss_coef sapo_temperature_neg sapo_temperature_pos scale_rewards shuffle_dataset split
steps_per_generation streaming sync_ref_model temperature test_split_size top_entropy_quantile top_k
top_p torch_dtype torch_empty_cache_steps train_sampling_strategy
transformers_continuous_batching_config truncation_mode trust_remote_code undesirable_weight
use_adaptive_entropy use_bias_correction_kl use_bnb_nested_quant use_dora use_liger use_liger_kernel
use_peft use_rslora use_transformers_continuous_batching use_transformers_paged use_vllm
use_weighting vespo_k_neg vespo_k_pos vespo_lambda_neg vespo_lambda_pos vllm_enable_sleep_mode
vllm_gpu_memory_utilization vllm_group_port vllm_importance_sampling_cap
vllm_importance_sampling_clip_max vllm_importance_sampling_clip_min
vllm_importance_sampling_correction vllm_importance_sampling_mode vllm_max_model_length vllm_mode
vllm_model_impl vllm_server_base_url vllm_server_host vllm_server_port vllm_server_timeout
vllm_structured_outputs_regex vllm_tensor_parallel_size
"""
_PEFT = """
alora_invocation_tokens alpha_pattern arrow_config auto_mapping base_model_name_or_path bias
corda_config ensure_weight_tying eva_config exclude_modules fan_in_fan_out inference_mode
init_lora_weights layer_replication layers_pattern layers_to_transform loftq_config lora_bias
lora_ga_config megatron_config megatron_core modules_to_save parent_library peft_type peft_version
qalora_group_size r rank_pattern revision runtime_config target_modules target_parameters task_type
trainable_token_indices use_dora use_qalora use_rslora
"""


def _schema_keys() -> set[str]:
    """Return every key that TRL, PEFT or the trainer below them knows."""
    from finegauge.formats.trainer_keys import TRAINER

    return {*_TRL.split(), *_PEFT.split(), *TRAINER.split()}


NAME = "TRL"
FILE = "trl.yaml"
COMMANDS = {"sft": "sft", "dpo": "dpo"}


def sheet(run: "Run") -> Sheet:
    """Return the files of TRL for `run`.

    Raises: InputError for a phase whose trainer a file does not tell.
    """
    keys = training_keys(run)
    beside: dict[str, dict[str, Any]] = {}
    program = f"trl {COMMANDS[run.phase]} --config {FILE}"
    if run.num_gpus > 1 or launcher_files.uses_deepspeed(run) or launcher_files.uses_fsdp(run):
        beside[ACCELERATE] = launcher_files.accelerate(run)
        where = ' --machine_rank "$NODE_RANK" --main_process_ip "$MASTER_ADDR"' if run.num_nodes > 1 else ""
        program += f" --accelerate_config {ACCELERATE}{where}"
    return Sheet(FILE, keys, program, packages_of(run), beside)


def training_keys(run: "Run") -> dict[str, Any]:
    """Return the keys of TRL's configuration, of its trainer and of PEFT.

    Raises: InputError for a phase whose trainer a file does not tell.
    """
    if run.phase not in COMMANDS:
        raise refuse(NAME, "phase", run.phase, f"its files tell {' and '.join(COMMANDS)} apart, no more.")
    return without(
        {
            "model_name_or_path": repository(run),
            **_method(run),
            "attn_implementation": trainer_keys.ATTENTION[run.attention],
            **_dataset(dataset_name(run)),
            **_phase(run),
            **trainer_keys.batch(run),
            **trainer_keys.duration(run),
            **trainer_keys.evaluation(run),
            **trainer_keys.grouping(run),
            **trainer_keys.precision(run),
            **_checkpointing(run),
            "use_liger_kernel": True if "liger" in run.kernels else None,
            "optim": trainer_keys.optimizer(run),
            **trainer_keys.compiled(run),
            "output_dir": "output",
        }
    )


def packages_of(run: "Run") -> str:
    """Return what pip has to install."""
    words = ["trl"]
    words += ["peft"] if run.trains_adapters else []
    words += ["bitsandbytes"] if run.method == "qlora" or "8bit" in run.optimizer else []
    words += ["liger-kernel"] if "liger" in run.kernels else []
    words += ["deepspeed"] if launcher_files.uses_deepspeed(run) else []
    return " ".join(words)


def _method(run: "Run") -> dict[str, Any]:
    """Return how the model is loaded, and which parameters train."""
    if run.method == "full":
        return {"dtype": trainer_keys.DTYPES.get(run.weights_dtype, run.weights_dtype)}
    if run.method == "gptq_lora":
        raise refuse(NAME, "method", run.method, "its files do not tell that a checkpoint is GPTQ's.")
    adapted = targets(run)
    quantized = run.method == "qlora"
    four = quantized and run.weights_dtype != "int8"
    return {
        "dtype": None if quantized else trainer_keys.DTYPES.get(run.weights_dtype, run.weights_dtype),
        "load_in_4bit": True if four else None,
        "load_in_8bit": True if quantized and not four else None,
        "bnb_4bit_quant_type": "nf4" if four else None,
        "use_bnb_nested_quant": run.weights_dtype == "nf4_dq" if four else None,
        "use_peft": run.trains_adapters,
        "lora_r": run.lora_rank,
        "lora_alpha": whole_number(run.lora_alpha),
        "lora_dropout": run.lora_dropout,
        "lora_target_modules": "all-linear" if adapted == ("all-linear",) else list(adapted),
        "lora_modules_to_save": trainer_keys.saved_modules(run),
    }


def _dataset(named: str | None) -> dict[str, Any]:
    """Return the data set: of a hub by its name, a file as what reads it."""
    kind = file_kind(named) if named else None
    return {"datasets": [{"path": kind, "data_files": named}]} if kind else {"dataset_name": named}


def _checkpointing(run: "Run") -> dict[str, Any]:
    """Return gradient checkpointing; TRL keeps activations on the host by a key of its own."""
    if run.activation_checkpointing == "offload":
        return {**trainer_keys.checkpointing(run), "activation_offloading": True}
    return trainer_keys.checkpointing(run)


def _phase(run: "Run") -> dict[str, Any]:
    """Return the keys of one trainer: the cut-off, packing and loss of SFT, DPO's beta."""
    multiple = {"pad_to_multiple_of": run.pad_to_multiple_of if run.pad_to_multiple_of > 1 else None}
    if run.phase == "dpo":
        return {"max_length": run.seq_len, "beta": 0.1, **multiple}
    joined = run.padding == "free"
    experts = {"experts_implementation": run.experts_implementation}
    return {
        "max_length": run.seq_len,
        "packing": run.packing,
        "packing_strategy": _strategy(run) if run.packing else None,
        "padding_free": True if joined and not run.packing else None,
        **multiple,
        "loss_type": "chunked_nll" if run.loss == "chunked" and _is_old(run) else None,
        **({} if run.experts_implementation == "grouped_mm" else {"model_init_kwargs": experts}),
    }


def _strategy(run: "Run") -> str:
    """Return how samples are packed: joined and cut anywhere, or whole, kept apart."""
    if run.packing_strategy == "wrapped":
        return "wrapped"
    return "bfd_split" if run.over_length == "split" else "bfd"


def _is_old(run: "Run") -> bool:
    """Return whether the run is TRL's of a stated version: before 1.8, whole logits are the default."""
    return run.framework == NAME and bool(run.framework_version)
