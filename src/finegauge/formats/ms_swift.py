"""ms-swift's YAML and the arguments of `swift sft`, hidden defaults included.

What no key says but the framework does (read from ms-swift 4.6): LoRA of rank 8, alpha 32 and dropout
0.05 on all linear layers, adapters in fp32; gradient checkpointing on; micro-batches of 1, and as many
of them as make 16 sequences a step over all GPUs; three epochs; samples longer than the cut-off
dropped; 4 bits mean NF4, double quantised; the checkpoint's own number format.
"""

from collections.abc import Collection
from math import ceil
from typing import TYPE_CHECKING, Any

from finegauge.errors import FieldError, shown
from finegauge.formats import launcher_files, trainer_keys
from finegauge.formats.framework import Framework, Reading
from finegauge.formats.sheet import (
    DEEPSPEED,
    Sheet,
    dataset_name,
    refuse,
    repository,
    targets,
    whole_number,
    without,
)
from finegauge.run.field import names, number, whole

if TYPE_CHECKING:
    from finegauge.run.run import Run

_OF_LORA: dict[str, tuple[str, Any]] = {
    "lora_rank": ("lora_rank", 8),
    "lora_alpha": ("lora_alpha", 32),
    "lora_dropout": ("lora_dropout", 0.05),
    "target_modules": ("lora_targets", "all-linear"),
}
_OTHERS = """
model tuner_type train_type sft_type modules_to_save lora_dtype torch_dtype quant_bits quant_method
bnb_4bit_use_double_quant bnb_4bit_quant_type max_length packing packing_length padding_free attn_impl
truncation_strategy experts_impl use_logits_to_keep
dataset val_dataset split_dataset_ratio sequence_parallel_size rlhf_type
"""
KEYS = frozenset((*trainer_keys.KEYS, *_OF_LORA, *_OTHERS.split()))
_TUNERS = ("tuner_type", "train_type", "sft_type")
_PHASES = {
    "dpo": "dpo",
    "grpo": "grpo",
    "ppo": "ppo",
    "rm": "reward",
    "kto": "dpo",
    "orpo": "dpo",
    "simpo": "dpo",
}
_NOT_MODELLED = (
    "use_dora",
    "use_galore",
    "target_parameters",
    "freeze_parameters_ratio",
    "lisa_activated_layers",
)
_OVER_LENGTH = {"delete": "drop", "raise": "drop", "left": "truncate", "right": "truncate"}
_BUILT_IN = {
    "zero0": ("none", "none"),
    "zero1": ("zero1", "none"),
    "zero2": ("zero2", "none"),
    "zero3": ("zero3", "none"),
    "zero2_offload": ("zero2", "optimizer"),
    "zero3_offload": ("zero3", "all"),
}


def state(reading: Reading) -> None:
    """State the fields of an ms-swift file."""
    reading.set("model", reading.get("model"), "model")
    reading.need_model()
    phase = reading.text("rlhf_type", "sft")
    reading.set("phase", _PHASES.get(phase, phase), "rlhf_type")
    _read_method(reading)
    _read_precision(reading)
    reading.direct(
        {
            "per_device_train_batch_size": ("micro_batch_size", 1),
            "num_train_epochs": ("epochs", 3.0),
            "torch_compile": ("compile", False),
        }
    )
    _read_accumulation(reading)
    trainer_keys.read_checkpointing(reading, default=True, reentrant=True)
    trainer_keys.read_attention(reading, "attn_impl")
    trainer_keys.read_liger(reading, "full_logits")
    trainer_keys.read_optimizer(reading, "optim", "adamw_torch_fused")
    _read_batching(reading)
    _read_data(reading)
    trainer_keys.read_duration(reading)
    _read_sharding(reading)
    reading.not_modelled(*_NOT_MODELLED)
    if reading.text("freeze_vit") in ("false", "no", "0"):
        reading.warn("freeze_vit=false is not modelled: the vision tower is taken as frozen.")


def known_keys() -> Collection[str]:
    """Return the keys that ms-swift and transformers' trainer know and nothing here depends on."""
    return _schema_keys()


def _read_method(reading: Reading) -> None:
    """Read whether adapters train, and which."""
    key = next((key for key in _TUNERS if reading.stated(key)), _TUNERS[0])
    tuner = reading.text(key, "lora")
    if tuner not in ("lora", "full"):
        raise FieldError(f"{key}={shown(tuner)} is not described; use lora or full.")
    bits = reading.get("quant_bits")
    quantized = bits not in (None, 0, "0")
    if tuner == "full":
        if quantized:
            raise FieldError(
                f"quant_bits needs {key} lora, not full: only adapters train on quantised weights."
            )
        reading.set("method", "full", *_TUNERS)
        reading.ignored(_OF_LORA, f"{key} is full")
        return
    reading.set("method", "qlora" if quantized else "lora", *_TUNERS, "quant_bits")
    reading.direct(_OF_LORA)
    trainer_keys.read_extra(reading, "modules_to_save")


def _read_precision(reading: Reading) -> None:
    """Read the number formats of weights, adapters and arithmetic."""
    stated = reading.text("torch_dtype")
    weights = stated.removeprefix("torch.") or reading.checkpoint_dtype()
    low = "bf16" if weights in ("bf16", "bfloat16") else "fp16"
    if reading.stated("bf16", "fp16"):
        trainer_keys.read_precision(reading, bf16_default=False)
    else:
        reading.set("autocast", low, "torch_dtype")
    method = reading.fields["method"]
    if method == "qlora":
        reading.set("weights_dtype", _quantized(reading), "quant_bits", "bnb_4bit_use_double_quant")
    else:
        loaded = "fp32" if method == "full" and low == "fp16" else weights
        reading.set("weights_dtype", loaded, "torch_dtype")
    if method != "full":
        reading.set("adapter_dtype", reading.get("lora_dtype", "fp32"), "lora_dtype")


def _quantized(reading: Reading) -> str:
    """Return the format of the quantised weights."""
    bits, kind = whole(1, 64)("quant_bits", reading.get("quant_bits")), reading.text("quant_method", "bnb")
    if kind != "bnb" or bits not in (4, 8):
        raise FieldError(
            f"quant_method={shown(kind)} with {bits} bits is not described; use bnb with 4 or 8."
        )
    double = reading.flag("bnb_4bit_use_double_quant", default=True)
    return "int8" if bits == 8 else "nf4_dq" if double else "nf4"


def _read_accumulation(reading: Reading) -> None:
    """Read the micro-batches of a step; unstated, they make 16 sequences over all GPUs."""
    stated = reading.get("gradient_accumulation_steps")
    if stated is None:
        micro = whole(1, 10**6)("per_device_train_batch_size", reading.fields["micro_batch_size"])
        stated = max(1, ceil(16 / micro / (reading.launched_gpus or 1)))
    reading.set("gradient_accumulation_steps", stated, "gradient_accumulation_steps")


def _read_batching(reading: Reading) -> None:
    """Read the cut-off, packing and padding."""
    packed, free = reading.flag("packing"), reading.flag("padding_free")
    length = reading.get("packing_length") if packed else None
    length = length if length is not None else reading.get("max_length")
    if length is None:
        reading.warn("max_length is unstated, so nothing is cut: state seq_len=… of the longest sample.")
    reading.set("seq_len", length, "max_length", "packing_length")
    reading.set("packing", packed, "packing")
    reading.set("padding", "free" if packed or free else "longest", "packing", "padding_free")
    reading.set("pad_to_multiple_of", 1)
    strategy = reading.text("truncation_strategy", "delete" if reading.fields["phase"] == "sft" else "left")
    reading.set("over_length", _OVER_LENGTH.get(strategy, strategy), "truncation_strategy")
    trainer_keys.read_grouping(reading, packs=packed)


def _read_data(reading: Reading) -> None:
    """Read the data sets, "name#1000" with how many of their samples, and what is held out."""
    listed = reading.get("dataset") or ()
    listed = listed.split() if isinstance(listed, str) else listed
    named = [name.partition("#") for name in names("dataset", listed)]
    counts = [int(count) if count.isdecimal() and len(count) < 11 else None for _, _, count in named]
    total = sum(count or 0 for count in counts) if counts and all(counts) else None
    ratio = number(0, 1)("split_dataset_ratio", reading.get("split_dataset_ratio", 0.0))
    repositories = [name.partition("::")[2] or name for name, _, _ in named]
    trainer_keys.read_dataset(
        reading, [n.partition(":")[0] for n in repositories], "dataset", num_samples=total
    )
    if not reading.stated("val_dataset"):
        trainer_keys.read_validation(reading, ratio, "split_dataset_ratio", total=total)


def _read_sharding(reading: Reading) -> None:
    """Read DeepSpeed by one of the built-in names or its file, FSDP, and the sequences' division."""
    built_in = _BUILT_IN.get(reading.text("deepspeed"))
    if built_in is None:
        trainer_keys.read_sharding(reading)
    else:
        if reading.stated("fsdp"):
            raise FieldError("deepspeed and fsdp are both stated; keep one.")
        reading.set("sharding", built_in[0], "deepspeed")
        reading.set("cpu_offload", built_in[1], "deepspeed")
    degree = reading.get("sequence_parallel_size")
    if degree not in (None, 1, "1"):
        reading.set("context_parallel", degree, "sequence_parallel_size")


FORMAT = Framework(
    "ms-swift",
    KEYS,
    "model",
    state,
    known_keys,
    {
        "full": {"tuner_type": "full", "quant_bits": ""},
        "lora": {"tuner_type": "lora", "quant_bits": "0"},
        "qlora": {"tuner_type": "lora", "quant_bits": "4"},
    },
)

_KEYS = """
acc_strategy adalora_beta1 adalora_beta2 adalora_deltaT adalora_init_r adalora_orth_reg_weight
adalora_target_r adalora_tfinal adalora_tinit adam_beta2 adapter_act adapter_length adapters
add_non_thinking_prefix add_version advantage_estimator advantage_reweight agent_template aligner_lr
async_generate attn_impl beta bf16 bnb_4bit_compute_dtype bnb_4bit_quant_storage bnb_4bit_quant_type
bnb_4bit_use_double_quant boft_block_num boft_block_size boft_dropout boft_n_butterfly_factor
cached_dataset cached_val_dataset callbacks center_rewards_coefficient check_model
chord_enable_phi_function chord_mu_decay_steps chord_mu_peak chord_mu_valley chord_mu_warmup_steps
chord_sft_dataset chord_sft_per_device_train_batch_size cliprange cliprange_value columns
completion_length_limit_scope cosine_max_len cosine_max_len_value_correct cosine_max_len_value_wrong
cosine_min_len_value_correct cosine_min_len_value_wrong cpo_alpha create_checkpoint_symlink
custom_dataset_info custom_register_path data_seed dataloader_multiprocessing_context
dataloader_num_workers dataloader_persistent_workers dataloader_prefetch_factor dataset
dataset_num_proc dataset_shuffle ddp_backend ddp_timeout decision_drop_instructions
decision_shuffle_fields decision_state_as_text decision_subsample_options deepspeed_autotp_size
delta desirable_weight device_map disable_auto_column_mapping disable_ignore_empty_think
discopop_tau download_mode ds3_gather_for_generation dynamic_sample early_stop_interval
enable_channel_loss enable_dft_loss enable_flattened_weight_sync enable_npu_model_patch
enable_thinking epsilon epsilon_high eval_dataset eval_dataset_args eval_generation_config
eval_limit eval_metric eval_strategy eval_use_evalscope experts_impl external_plugins
extra_eval_args fipo_clip_high_only fipo_clip_range fipo_decay_rate fipo_safety_threshold
fourier_n_frequency fourier_scaling fp16 freeze_aligner freeze_llm freeze_parameters
freeze_parameters_ratio freeze_parameters_regex freeze_vit fsdp galore_cos_threshold
galore_gamma_proj galore_optim_per_parameter galore_proj_bits galore_proj_group_size
galore_proj_quant galore_proj_type galore_quantization galore_queue_size galore_rank galore_scale
galore_target_modules galore_update_proj_gap galore_with_embedding gamma generation_batch_size
gkd_logits_topk gradient_accumulation_steps gradient_checkpointing gradient_checkpointing_kwargs
group_by_length gym_env hqq_axis hub_token ignore_args_error importance_sampling_level init_strategy
init_weights interleave_prob is_binary_loss_scale kl_coef kl_in_reward label_smoothing lam
lazy_tokenize ld_alpha learning_rate lisa_activated_layers lisa_step_interval llamapro_num_groups
llamapro_num_new_blocks lmbda load_args load_data_args load_from_cache_file local_repo_path
local_rollout_forward_batch_size log_completions log_entropy log_rollout_offpolicy_metrics
logging_dir logging_first_step logging_steps logprobs lora_alpha lora_bias lora_dropout lora_dtype
lora_ga_batch_size lora_ga_direction lora_ga_iters lora_ga_max_length lora_ga_scale
lora_ga_stable_gamma lora_rank lorap_lr_ratio loss_scale loss_type loss_weights lr_scheduler_kwargs
lr_scheduler_type max_completion_length max_epochs max_length max_memory max_model_len
max_new_tokens max_pixels max_resample_times max_shard_size max_turns min_p missing_eos_penalty
model model_author model_kwargs model_name model_revision model_type modules_to_save
move_model_batches mrl_dims multi_turn_scheduler new_special_tokens norm_bbox num_beams
num_generations num_generations_eval num_iterations num_labels num_mini_batches num_ppo_epochs
num_sample_generations off_policy_sequence_mask_delta offload_model offload_optimizer
offload_teacher_model optimizer output_dir overlong_filter packing packing_length packing_num_proc
packing_strategy padding_free padding_side per_device_eval_batch_size per_device_train_batch_size
preserve_thinking problem_type quant_bits quant_method real_tau ref_adapters ref_model
ref_model_mixup_alpha ref_model_revision ref_model_sync_steps ref_model_type reft_args
reft_intervention_type reft_layer_key reft_layers reft_rank remove_unused_columns
repetition_max_penalty repetition_n_grams repetition_penalty report_to response_length
response_prefix resume_only_model reward_adapters reward_funcs reward_model reward_model_plugin
reward_model_revision reward_model_type reward_template reward_weights rlhf_type rlsd_lambda
rlsd_lambda_decay_steps rlsd_lambda_warmup_steps rlsd_negative_only rlsd_reweight_clip_range
rollout_importance_sampling_mode rollout_importance_sampling_threshold rope_scaling
router_aux_loss_coef rpo_alpha safe_serialization scale_rewards sdar_gate_beta sdar_loss_coef seed
seq_kd sequence_parallel_size sft_alpha shuffle_buffer_size simpo_gamma sleep_level
soft_cache_length soft_max_length split_dataset_ratio steps_per_generation stop_words
stopping_strategy stream streaming strict structured_outputs_regex swanlab_email_language
swanlab_exp_name swanlab_mode swanlab_notification_method swanlab_project swanlab_receiver_email
swanlab_secret swanlab_sender_email swanlab_smtp_port swanlab_smtp_server swanlab_token
swanlab_webhook_url swanlab_workspace swift_version sync_ref_model system target_modules
target_parameters target_regex task_type tau_neg tau_pos teacher_adapters teacher_deepspeed
teacher_kl_coef teacher_model teacher_model_revision teacher_model_server teacher_model_type
teacher_tag_key temperature template template_backend top_entropy_quantile top_k top_logprobs top_p
torch_dtype train_dataloader_shuffle train_type trainable_parameters trainable_parameters_regex
truncation_strategy tuner_backend tuner_type undesirable_weight use_chat_template use_dora
use_flash_ckpt use_galore use_gym_env use_hf use_liger_kernel use_logits_to_keep use_rslora
use_swift_lora use_vllm val_dataset val_dataset_shuffle vera_d_initial vera_dropout
vera_projection_prng_key vera_rank vf_coef vit_gradient_checkpointing vit_lr vllm_data_parallel_size
vllm_disable_cascade_attn vllm_disable_custom_all_reduce vllm_enable_expert_parallel
vllm_enable_lora vllm_enable_prefix_caching vllm_enforce_eager vllm_engine_kwargs
vllm_gpu_memory_utilization vllm_limit_mm_per_prompt vllm_max_lora_rank vllm_max_model_len
vllm_max_num_seqs vllm_mm_processor_cache_gb vllm_mode vllm_pipeline_parallel_size vllm_quantization
vllm_reasoning_parser vllm_server_base_url vllm_server_group_port vllm_server_host
vllm_server_pass_dataset vllm_server_port vllm_server_timeout vllm_speculative_config
vllm_tensor_parallel_size vllm_use_async_engine wandb_log_unique_prompts warmup_ratio weight_decay
whiten_rewards zero_hpz_partition_size
"""


def _schema_keys() -> set[str]:
    """Return every key that ms-swift or the trainer below it knows."""
    from finegauge.formats.trainer_keys import TRAINER

    return {*_KEYS.split(), *TRAINER.split()}


NAME = "ms-swift"
FILE = "ms_swift.yaml"
_RLHF = {"dpo": "dpo", "grpo": "grpo", "ppo": "ppo", "reward": "rm"}
_ATTENTION = {"sdpa": "sdpa", "flash": "flash_attn", "eager": "eager"}
_TRUNCATION = {"drop": "delete", "truncate": "right", "split": "split"}
_BUILT_IN_NAMES = {
    ("zero1", "none"): "zero1",
    ("zero2", "none"): "zero2",
    ("zero3", "none"): "zero3",
    ("zero2", "optimizer"): "zero2_offload",
    ("zero3", "all"): "zero3_offload",
}
_FSDP = {"fsdp": "full_shard", "fsdp_shard_grad_op": "shard_grad_op", "hybrid": "hybrid_shard"}


def sheet(run: "Run") -> Sheet:
    """Return the files of ms-swift for `run`."""
    if run.method not in ("full", "lora", "qlora"):
        raise refuse(NAME, "method", run.method, "use method=full, lora or qlora.")
    named = dataset_name(run)
    beside: dict[str, dict[str, Any]] = {}
    keys = {
        "model": repository(run),
        "rlhf_type": _RLHF.get(run.phase),
        **_method(run),
        "torch_dtype": trainer_keys.DTYPES.get(run.weights_dtype, "bfloat16"),
        **trainer_keys.precision(run),
        "dataset": [_counted(run, named)] if named else None,
        "split_dataset_ratio": run.validation_fraction or None,
        "max_length": run.seq_len,
        "truncation_strategy": _TRUNCATION[run.over_length],
        **trainer_keys.grouping(run),
        "packing": run.packing,
        "packing_length": run.seq_len if run.packing else None,
        "padding_free": True if run.padding == "free" and not run.packing else None,
        **trainer_keys.batch(run),
        **trainer_keys.duration(run),
        **trainer_keys.checkpointing(run),
        "attn_impl": _ATTENTION[run.attention],
        "use_liger_kernel": True if "liger" in run.kernels else None,
        "optim": trainer_keys.optimizer(run),
        **trainer_keys.compiled(run),
        **_sharding(run, beside),
        "sequence_parallel_size": run.context_parallel if run.context_parallel > 1 else None,
        "output_dir": "output",
    }
    verb = {"sft": "sft", "pretrain": "pt"}.get(run.phase, "rlhf")
    command = f"swift {verb} {FILE}"
    if run.num_gpus > 1:
        command = f"{launcher_files.environment(run)} {command}"
    packages = "ms-swift deepspeed" if "deepspeed" in keys else "ms-swift"
    return Sheet(FILE, without(keys), command, packages, beside, spoken=("phase",) if verb == "pt" else ())


def _counted(run: "Run", named: str) -> str:
    """Return the data set with how many of its samples are used."""
    return named if run.num_samples is None else f"{named}#{run.num_samples}"


def _method(run: "Run") -> dict[str, Any]:
    """Return which parameters train."""
    if run.method == "full":
        return {"tuner_type": "full"}
    quantized = run.method == "qlora"
    four = run.weights_dtype != "int8"
    return {
        "tuner_type": "lora",
        "lora_rank": run.lora_rank,
        "lora_alpha": whole_number(run.lora_alpha),
        "lora_dropout": run.lora_dropout,
        "lora_dtype": trainer_keys.DTYPES[run.adapter_dtype],
        "target_modules": list(targets(run)),
        "modules_to_save": trainer_keys.saved_modules(run),
        "quant_method": "bnb" if quantized else None,
        "quant_bits": (4 if four else 8) if quantized else None,
        "bnb_4bit_quant_type": "nf4" if quantized and four else None,
        "bnb_4bit_use_double_quant": run.weights_dtype == "nf4_dq" if quantized and four else None,
    }


def _sharding(run: "Run", beside: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return DeepSpeed by a built-in name or a file put `beside`, or FSDP."""
    if launcher_files.uses_fsdp(run):
        offload = " offload" if run.cpu_offload != "none" else ""
        return {"fsdp": f"{_FSDP[run.sharding]} auto_wrap{offload}"}
    if not launcher_files.uses_deepspeed(run):
        return {}
    built_in = _BUILT_IN_NAMES.get((run.sharding, run.cpu_offload)) if run.tensor_parallel == 1 else None
    if built_in is None:
        beside[DEEPSPEED] = launcher_files.deepspeed(run)
    return {"deepspeed": built_in or DEEPSPEED}
