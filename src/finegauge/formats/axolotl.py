"""Axolotl's YAML, hidden defaults included.

What no key says but the framework does (read from Axolotl 0.19): a cut-off of 512; micro-batches of
1; one epoch; bf16 arithmetic on bf16 weights; no gradient checkpointing; padding to a multiple of
64, and to the cut-off as soon as samples are packed, which keeps them apart; adapters in fp32; 4 bits
mean NF4, double quantised; no adapter means every weight trains.
"""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from finegauge.errors import FieldError, shown
from finegauge.formats import launcher_files, trainer_keys
from finegauge.formats.framework import Framework, Reading
from finegauge.formats.sheet import (
    DEEPSPEED,
    Sheet,
    dataset_name,
    file_kind,
    repository,
    targets,
    whole_number,
    without,
)
from finegauge.run.field import flag, names, whole

if TYPE_CHECKING:
    from finegauge.run.run import Run

_DIRECT: dict[str, tuple[str, Any]] = {
    "sequence_len": ("seq_len", 512),
    "micro_batch_size": ("micro_batch_size", 1),
    "num_epochs": ("epochs", 1.0),
    "saves_per_epoch": ("saves_per_epoch", None),
    "experts_implementation": ("experts_implementation", None),
}
_OF_LORA: dict[str, tuple[str, Any]] = {
    "lora_r": ("lora_rank", None),
    "lora_alpha": ("lora_alpha", None),
    "lora_dropout": ("lora_dropout", 0.0),
}
_DEGREES = {
    "dp_replicate_size": "data_parallel_replicate",
    "dp_shard_size": "data_parallel_shard",
    "tensor_parallel_size": "tensor_parallel",
    "context_parallel_size": "context_parallel",
    "sequence_parallel_degree": "context_parallel",
}
_ATTENTION_FLAGS = {
    "flash_attention": "flash",
    "flex_attention": "flash",
    "sdp_attention": "sdpa",
    "xformers_attention": "sdpa",
    "eager_attention": "eager",
}
_LIGER = ("liger_rope", "liger_rms_norm", "liger_layer_norm", "liger_glu_activation", "liger_swiglu")
_LOSS = ("plugins", "cut_cross_entropy", "liger_fused_linear_cross_entropy", "chunked_cross_entropy")
_PRECISION = ("bf16", "bfloat16", "fp16", "float16")
_OTHERS = """
attention base_model adapter load_in_4bit load_in_8bit gptq lora_target_linear lora_target_modules
lora_modules_to_save peft_autocast_adapter_dtype rl reward_model pretraining_dataset optimizer batch_size
attn_implementation selective_checkpointing activation_offloading layer_offloading sample_packing
pad_to_sequence_len pad_to_multiple_of batch_flattening datasets val_set_size excess_length_strategy
fsdp_version bnb_config_kwargs
"""
KEYS = frozenset(
    (
        *trainer_keys.KEYS - {"per_device_train_batch_size", "num_train_epochs", "optim", "use_liger_kernel"},
        *_DIRECT,
        *_OF_LORA,
        *_DEGREES,
        *_ATTENTION_FLAGS,
        *_LIGER,
        *_LOSS,
        *_PRECISION,
        *_OTHERS.split(),
    )
)
_NOT_MODELLED = (
    "peft_use_dora",
    "relora",
    "lisa_n_layers",
    "unfrozen_parameters",
    "lora_target_parameters",
    "fp8",
    "tiled_mlp",
    "layer_offloading",
)
_PHASES = {"dpo": "dpo", "ipo": "dpo", "kto": "dpo", "orpo": "dpo", "simpo": "dpo", "grpo": "grpo"}


def state(reading: Reading) -> None:
    """State the fields of an Axolotl file."""
    reading.set("model", reading.get("base_model"), "base_model")
    reading.need_model()
    _read_phase(reading)
    _read_method(reading)
    _read_precision(reading)
    reading.direct(_DIRECT)
    _read_accumulation(reading)
    _read_implementation(reading)
    _read_batching(reading)
    _read_data(reading)
    trainer_keys.read_duration(reading)
    trainer_keys.read_sharding(reading)
    _read_degrees(reading)
    reading.not_modelled(*_NOT_MODELLED)


def known_keys() -> Collection[str]:
    """Return the keys that Axolotl knows and nothing here depends on."""
    return _schema_keys()


def _read_phase(reading: Reading) -> None:
    """Read what is learnt."""
    method = reading.text("rl")
    if method in ("", "false"):
        phase = "reward" if reading.flag("reward_model") else "sft"
        phase = "pretrain" if reading.stated("pretraining_dataset") else phase
        reading.set("phase", phase, "reward_model", "pretraining_dataset")
        return
    if method not in _PHASES:
        raise FieldError(f"rl={shown(method)} is not described; use dpo or grpo.")
    if method not in ("dpo", "grpo"):
        reading.warn(
            f"rl={method} is taken as dpo, whose passes it shares; a reference model may be too many."
        )
    reading.set("phase", _PHASES[method], "rl")


def _read_method(reading: Reading) -> None:
    """Read whether adapters train, and which."""
    adapter, four, eight = reading.text("adapter"), reading.flag("load_in_4bit"), reading.flag("load_in_8bit")
    if four and eight:
        raise FieldError("load_in_4bit and load_in_8bit are both true; keep one.")
    if adapter in ("", "none", "null"):
        if four or eight:
            raise FieldError("load_in_4bit and load_in_8bit need an adapter; add 'adapter: qlora'.")
        reading.set("method", "full", "adapter")
        reading.ignored((*_OF_LORA, "lora_target_linear", "lora_target_modules"), "no adapter is stated")
        return
    if adapter not in ("lora", "qlora"):
        raise FieldError(f"adapter={shown(adapter)} is not described; use lora or qlora.")
    gptq = reading.flag("gptq")
    if adapter == "qlora" and not (four or gptq):
        raise FieldError("adapter qlora needs 'load_in_4bit: true'; add it, or use 'adapter: lora'.")
    method = "gptq_lora" if gptq else "qlora" if four or eight else "lora"
    reading.set("method", method, "adapter", "load_in_4bit", "load_in_8bit", "gptq")
    reading.direct(_OF_LORA)
    if reading.flag("lora_target_linear"):
        reading.set("lora_targets", "all-linear", "lora_target_linear")
    else:
        targets = reading.get("lora_target_modules") or trainer_keys.peft_choice(reading)
        reading.set("lora_targets", targets, "lora_target_modules")
    trainer_keys.read_extra(reading, "lora_modules_to_save")


def _read_precision(reading: Reading) -> None:
    """Read the number formats of weights, adapters and arithmetic."""
    pure = "bf16" if reading.flag("bfloat16") else "fp16" if reading.flag("float16") else None
    word, fp16 = reading.text("bf16", "auto"), reading.flag("fp16")
    if word == "full":
        pure = "bf16"
    mixed_bf16 = not fp16 and not pure if word == "auto" else word == "full" or flag("bf16", word)
    if mixed_bf16 and fp16:
        raise FieldError("bf16 and fp16 are both true; keep one.")
    mixed = "bf16" if mixed_bf16 else "fp16" if fp16 else "none"
    reading.set("autocast", "none" if pure else mixed, *_PRECISION)
    low = pure or ("fp32" if mixed == "none" else mixed)
    method = reading.fields["method"]
    if method in ("qlora", "gptq_lora"):
        reading.set("weights_dtype", _quantized(reading), "load_in_4bit", "load_in_8bit", "bnb_config_kwargs")
    else:
        reading.set("weights_dtype", low, *_PRECISION)
    if method != "full":
        upcast = reading.flag("peft_autocast_adapter_dtype", default=True)
        reading.set("adapter_dtype", "fp32" if upcast else low, "peft_autocast_adapter_dtype")


def _quantized(reading: Reading) -> str:
    """Return the format of the quantised weights."""
    if reading.flag("gptq"):
        return "gptq4"
    if reading.flag("load_in_8bit"):
        return "int8"
    options = reading.get("bnb_config_kwargs")
    double = options.get("bnb_4bit_use_double_quant", True) if isinstance(options, Mapping) else True
    return "nf4_dq" if flag("bnb_4bit_use_double_quant", double) else "nf4"


def _read_accumulation(reading: Reading) -> None:
    """Read the micro-batches of a step: stated, or what a GPU's `batch_size` holds of them."""
    per_gpu = reading.get("batch_size")
    if per_gpu is None or reading.stated("gradient_accumulation_steps"):
        steps = reading.get("gradient_accumulation_steps", 1)
        reading.set("gradient_accumulation_steps", steps, "gradient_accumulation_steps")
        return
    micro = whole(1, 10**6)("micro_batch_size", reading.fields["micro_batch_size"])
    steps = whole(1, 10**9)("batch_size", per_gpu) // micro
    reading.set("gradient_accumulation_steps", max(1, steps), "batch_size")


def _read_implementation(reading: Reading) -> None:
    """Read checkpointing, attention, kernels, loss and optimizer."""
    trainer_keys.read_checkpointing(reading, default=False, reentrant=True)
    if reading.get("selective_checkpointing") not in (None, False):
        reading.set("activation_checkpointing", "selective", "selective_checkpointing")
    if reading.text("activation_offloading", "false") not in ("false", "no", "off", "0"):
        reading.set("activation_checkpointing", "offload", "activation_offloading")
    legacy = next((key for key in _ATTENTION_FLAGS if reading.flag(key)), None)
    if legacy is not None and not reading.stated("attn_implementation"):
        reading.set("attention", _ATTENTION_FLAGS[legacy], legacy)
    else:
        trainer_keys.read_attention(reading, "attn_implementation", "attention")
    _read_kernels(reading)
    trainer_keys.read_optimizer(reading, "optimizer", "adamw_torch_fused")
    compiled = reading.text("torch_compile", "false")
    reading.set("compile", compiled == "auto" or flag("torch_compile", compiled), "torch_compile")


def _read_kernels(reading: Reading) -> None:
    """Read the plugins: Liger's kernels, cut cross-entropy, a loss in chunks."""
    plugins = " ".join(names("plugins", reading.get("plugins") or ())).lower()
    liger = "liger" in plugins
    reading.set("kernels", ["liger"] if liger and any(map(reading.flag, _LIGER)) else [], "plugins", *_LIGER)
    cut = "cutcrossentropy" in plugins and reading.flag("cut_cross_entropy", default=True)
    if cut or (liger and reading.flag("liger_fused_linear_cross_entropy")):
        loss = "fused"
    else:
        loss = "chunked" if reading.flag("chunked_cross_entropy") else "full_logits"
    reading.set("loss", loss, *_LOSS)


def _read_batching(reading: Reading) -> None:
    """Read packing and padding."""
    packed = reading.flag("sample_packing")
    padded = reading.flag("pad_to_sequence_len")
    flat = not packed and reading.text("batch_flattening", "false") in ("auto", "true", "yes", "on", "1")
    reading.set("packing", packed, "sample_packing")
    padding = "free" if packed or flat else "max" if padded else "longest"
    reading.set("padding", padding, "sample_packing", "pad_to_sequence_len", "batch_flattening")
    reading.set("pad_to_multiple_of", reading.get("pad_to_multiple_of", 64), "pad_to_multiple_of")
    strategy = reading.text("excess_length_strategy", "drop")  # "raise": there is none, or there is no run
    reading.set("over_length", "drop" if strategy == "drop" else "truncate", "excess_length_strategy")
    if reading.flag("group_by_length") and packed:
        raise FieldError("sample_packing and group_by_length are both true; keep one.")
    trainer_keys.read_grouping(reading, packs=packed)


def _read_data(reading: Reading) -> None:
    """Read the data sets and what of them is held out."""
    listed = reading.get("datasets") or reading.get("pretraining_dataset") or ()
    listed = listed if isinstance(listed, list) else [listed]
    paths = [entry.get("path") if isinstance(entry, Mapping) else entry for entry in listed]
    key = "datasets" if reading.stated("datasets") else "pretraining_dataset"
    trainer_keys.read_dataset(reading, [path for path in paths if path], key)
    total = None
    if reading.fields.get("dataset"):
        from finegauge.catalogue.datasets import dataset

        total = dataset(reading.fields["dataset"]).num_samples
    trainer_keys.read_validation(reading, reading.get("val_set_size"), "val_set_size", total=total)


def _read_degrees(reading: Reading) -> None:
    """Read the degrees of parallelism."""
    for key, field in _DEGREES.items():
        value = reading.get(key)
        if value not in (None, 0, 1, "1"):
            reading.set(field, value, key)
    if reading.fields.get("sharding") == "fsdp" and "data_parallel_replicate" in reading.fields:
        reading.set("sharding", "hybrid", "dp_replicate_size")


FORMAT = Framework(
    "Axolotl",
    KEYS,
    "base_model",
    state,
    known_keys,
    {
        "full": {"adapter": "none", "load_in_4bit": "false", "load_in_8bit": "false"},
        "lora": {"adapter": "lora", "load_in_4bit": "false", "load_in_8bit": "false"},
        "qlora": {"adapter": "qlora", "load_in_4bit": "true", "load_in_8bit": "false"},
    },
)

_KEYS = """
model_config model_kwargs model_revision model_type
accelerator_config activation_offloading adam_beta1 adam_beta2 adam_beta3 adam_epsilon adam_epsilon2
adapter added_tokens_overrides additional_special_tokens api_key attn_implementation
auto_find_batch_size auto_resume_from_checkpoints axolotl_config_path backend base_model
base_model_config base_model_ignore_patterns base_url batch_flattening batch_size bench_dataset
bench_split bf16 bfloat16 bnb_config_kwargs bos_token capabilities center_rewards_coefficient
chat_template chat_template_jinja chat_template_kwargs chunked_cross_entropy
chunked_cross_entropy_num_chunks cls_model_config comet_api_key comet_experiment_config
comet_experiment_key comet_mode comet_online comet_project_name comet_workspace
context_parallel_size cosine_constant_lr_ratio cosine_min_lr_ratio cpo_alpha curriculum_sampling
cut_cross_entropy dataloader_drop_last dataloader_num_workers dataloader_pin_memory
dataloader_prefetch_factor dataset_exact_deduplication dataset_keep_in_memory dataset_num_proc
dataset_prepared_path dataset_processes dataset_shard_idx dataset_shard_num datasets ddp
ddp_broadcast_buffers ddp_bucket_cap_mb ddp_find_unused_parameters ddp_timeout deepcompile deepspeed
default_system_message dense_mixer device device_map diffusion dion_lr dion_momentum
dion_rank_fraction dion_rank_multiple_of do_bench_eval do_causal_lm_eval dp_replicate_size
dp_shard_size dpo_beta dpo_generate_during_eval dpo_label_smoothing dpo_loss_type dpo_loss_weights
dpo_norm_loss dpo_padding_free dpo_use_liger_kernel dpo_use_logits_to_keep dpo_use_weighting
dsv4_bf16_all dsv4_fp4_grouped_mode dsv4_fp8_lora_kernel dsv4_fp8_nonexpert_mode
dsv4_shared_mlp_lora_kernel dynamic_checkpoint eaft_alpha eaft_k eager_attention
early_stopping_patience ebft embedding_lr embedding_lr_scale embeddings_skip_upcast env_capabilities
eos_token eot_tokens eps eval_batch_size eval_causal_lm_metrics eval_max_new_tokens
eval_sample_packing eval_sequence_len eval_steps eval_strategy eval_table_size evals_per_epoch
evaluation_strategy excess_length_strategy experimental_skip_move_to_device expert_backend
expert_parallel_backend expert_parallel_fallback_on_unsupported expert_parallel_num_nvl_bytes
expert_parallel_num_rdma_bytes expert_parallel_size expert_parallel_token_capacity
experts_implementation fix_untrained_tokens flash_attention flash_attn_cross_entropy flash_attn_d512
flash_attn_fuse_mlp flash_attn_rms_norm flash_optimum flex_attention flex_attn_compile_kwargs
float16 float32 fp16 fp32_norm_classes fp32_norms fp8 fp8_config fp8_enable_fsdp_float8_all_gather
freeze_mm_modules fsdp fsdp_config fsdp_final_state_dict_type fsdp_version fused_attn_kernel
future_timeout gc_collect_steps gc_steps gemma4_fp8_nonexpert gemma4_hybrid_attn_impl
gemma4_nf4_nonexpert generate_samples generation_do_sample generation_interval generation_max_length
generation_max_new_tokens generation_prompt_ratio generation_steps generation_temperature
generation_top_k generation_top_p gptq gpu_memory_limit gradient_accumulation_steps
gradient_checkpointing gradient_checkpointing_kwargs gradio_max_new_tokens gradio_server_name
gradio_server_port gradio_share gradio_temperature gradio_title greater_is_better grokfast_alpha
grokfast_lamb group_by_length hatchery heads_k_stride hf_mlflow_log_artifacts hf_use_auth_token
hub_model_id hub_revision hub_strategy hub_token image_resize_algorithm image_size
importance_weighting include_tkps include_tokens_per_second is_falcon_derived_model
is_llama_derived_model is_mistral_derived_model is_preprocess is_qwen_derived_model
jagged_restart_anneal_steps jagged_restart_steps jagged_restart_warmup_steps kd_alpha kd_beta
kd_ce_alpha kd_normalize_topk kd_online_server kd_online_server_base_url kd_online_timeout
kd_online_topk kd_temperature kd_temperature_min kd_trainer kto_desirable_weight
kto_undesirable_weight large_head_attention layer_offloading learning_rate liger_cross_entropy
liger_fused_linear_cross_entropy liger_glu_activation liger_kernel_impl liger_layer_norm
liger_rms_norm liger_rms_norm_gated liger_rope liger_swiglu liger_use_token_scaling
lisa_layers_attribute lisa_n_layers lisa_step_interval llama4_linearized_experts llmcompressor
lm_eval_batch_size lm_eval_model lm_eval_post_train lm_eval_tasks load_best_model_at_end
load_in_4bit load_in_8bit local_rank logging_steps lora_alpha lora_alpha_pattern lora_dropout
lora_embedding_kernel lora_fan_in_fan_out lora_mlp_kernel lora_model_dir lora_modules_to_save
lora_o_kernel lora_on_cpu lora_qkv_kernel lora_r lora_rank lora_rank_pattern lora_target_linear
lora_target_modules lora_target_parameters loraplus_lr_embedding loraplus_lr_ratio loss_fn
loss_fn_config loss_watchdog_patience loss_watchdog_threshold low_cpu_mem_usage lr_div_factor
lr_groups lr_quadratic_warmup lr_scheduler lr_scheduler_kwargs mask_token_id mask_token_str
max_grad_norm max_mask_ratio max_memory max_packed_sequence_len max_prompt_len max_sample_tokens
max_steps mean_resizing_embeddings merge_lora merge_method metric_for_best_model micro_batch_size
min_mask_ratio min_sample_len mlflow_experiment_name mlflow_run_name mlflow_tracking_uri
model_quantization_config model_quantization_config_kwargs moe_bnb_fast moe_dequant_chunk_size
moe_grouped_backend mora mora_type multipack_real_batches neftune_noise_alpha nemo_gym_auto_clone
nemo_gym_auto_start nemo_gym_config_paths nemo_gym_datasets nemo_gym_dir nemo_gym_enabled
nemo_gym_head_port nemo_gym_max_turns nemo_gym_model_name nemo_gym_multi_turn nemo_gym_run_timeout
nemo_gym_server_timeout nemo_gym_verify_timeout noise_schedule noisy_embedding_alpha
nonexpert_quantization num_dataset_shards_to_save num_diffusion_steps num_epochs
num_generation_samples num_labels num_samples nvfp4_merge_aware nvfp4_merge_aware_start_step
optim_args optim_target_modules optimizer orpo_alpha otel_metrics_host otel_metrics_port output_dir
overrides_of_model_config overrides_of_model_kwargs pad_to_multiple_of pad_to_sequence_len pad_token
peft peft_autocast_adapter_dtype peft_ensure_weight_tying peft_init_lora_weights
peft_layer_replication peft_layers_pattern peft_layers_to_transform peft_trainable_token_indices
peft_use_dora peft_use_rslora pipeline ple_cpu_offload plugins pose_max_context_len pose_num_chunks
pose_split_on_token_ids precompute_ref_log_probs preprocess_iterable pretrain_multipack_attn
pretrain_multipack_buffer_size pretraining_dataset pretraining_sample_concatenation
process_reward_model processor_kwargs processor_type profiler_steps profiler_steps_start project_id
push_dataset_to_hub qat qgalore_cos_threshold qgalore_gamma_proj qgalore_proj_bits
qgalore_proj_group_size qgalore_proj_quant qgalore_proj_type qgalore_queue_size qgalore_rank
qgalore_scale qgalore_update_proj_gap qlora_sharded_model_loading quantization quantize_moe_experts
ray_num_workers ray_run_name recipe reinit_weights relora relora_cpu_offload relora_prune_method
relora_prune_ratio remove_unused_columns resize_token_embeddings_to_32x resources_per_worker
resume_from_checkpoint revision_of_model reward_funcs reward_model ring_attn_func rl rl_beta
role_boundaries rope_scaling rpo_alpha s2_attention sage_attention sample_packing
sample_packing_bin_size sample_packing_eff_est sample_packing_group_size
sample_packing_mp_start_method sample_packing_sequentially sample_temperature save_compressed
save_first_step save_name_prefix save_only_model save_safetensors save_steps save_strategy
save_total_limit saves_per_epoch scaling_softmax scaling_softmax_bias scaling_softmax_factor
sdp_attention sdpa_varlen seed selective_checkpointing sequence_len sequence_parallel_degree
shrink_embeddings shuffle_before_merging_datasets shuffle_merged_datasets simpo_gamma
skip_prepare_dataset special_tokens spectrum_model_name spectrum_top_fraction streaming
streaming_multipack_buffer_size strict swanlab_api_host swanlab_api_key
swanlab_completion_log_interval swanlab_completion_max_buffer swanlab_description
swanlab_experiment_name swanlab_lark_secret swanlab_lark_webhook_url swanlab_log_completions
swanlab_log_model swanlab_mode swanlab_project swanlab_web_host swanlab_workspace
tensor_parallel_size test_datasets tf32 tiled_mlp tiled_mlp_num_shards tiled_mlp_use_original_mlp
tokenizer_config tokenizer_legacy tokenizer_save_jinja_files tokenizer_type tokenizer_use_fast
tokenizer_use_mistral_common tokens torch_compile torch_compile_backend torch_compile_mode
torch_compile_options torch_empty_cache_steps torchdistx_path total_num_tokens
total_supervised_tokens trackio_project_name trackio_run_name trackio_space_id train_attn train_mlp
train_on_inputs train_unembed trainer_cls trl trust_remote_code type_of_model unfrozen_parameters
unk_token unsloth_cross_entropy_loss use_comet use_dsv4_kernels use_eaft use_glm_dsa_kernels
use_kernels use_mlflow use_mora use_onebitllms use_otel_metrics use_pose use_ray use_scattermoe
use_sonicmoe use_swanlab use_tensorboard use_trackio use_wandb val_set_size vllm wandb_entity
wandb_log_model wandb_mode wandb_name wandb_project wandb_run_id wandb_watch warmup_ratio
warmup_steps weight_decay world_size xformers_attention
"""


def _schema_keys() -> set[str]:
    """Return every key that Axolotl knows."""
    return set(_KEYS.split())


NAME = "Axolotl"
FILE = "axolotl.yaml"
_RL = {"dpo": "dpo", "grpo": "grpo"}
_OPTIMIZERS = {"adamw_8bit": "adamw_bnb_8bit"}
_LIGER_PLUGIN = "axolotl.integrations.liger.LigerPlugin"
_CUT_PLUGIN = "axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin"


def sheet(run: "Run") -> Sheet:
    """Return the files of Axolotl for `run`."""
    name = trainer_keys.optimizer(run)
    keys = {
        "base_model": repository(run),
        "rl": _RL.get(run.phase),
        "reward_model": True if run.phase == "reward" else None,
        **_method(run),
        **_data(run),
        "micro_batch_size": run.micro_batch_size,
        "gradient_accumulation_steps": run.gradient_accumulation_steps,
        "num_epochs": float(run.epochs),
        "max_steps": run.max_steps,
        "saves_per_epoch": whole_number(run.saves_per_epoch),
        **_precision(run),
        **_checkpointing(run),
        "attn_implementation": trainer_keys.ATTENTION[run.attention],
        **_kernels(run),
        "optimizer": _OPTIMIZERS.get(name, name),
        "experts_implementation": "eager" if run.experts_implementation == "eager" else None,
        **trainer_keys.compiled(run),
        **_parallelism(run),
        "output_dir": "output",
    }
    beside = {DEEPSPEED: launcher_files.deepspeed(run)} if launcher_files.uses_deepspeed(run) else {}
    command = f"axolotl train {FILE}"
    if run.num_gpus > 1:
        command = f"{command} --launcher torchrun -- {_torchrun_words(run)}"
    packages = "axolotl[deepspeed]" if beside else "axolotl"
    return Sheet(FILE, without(keys), command, packages, beside)


def _torchrun_words(run: "Run") -> str:
    """Return what torchrun is told."""
    return launcher_files.torchrun(run, "").removeprefix("torchrun ").strip()


def _method(run: "Run") -> dict[str, Any]:
    """Return which parameters train, and how the others rest."""
    if not run.trains_adapters:
        return {}
    adapted = targets(run)
    everything = adapted == ("all-linear",)
    four = run.weights_dtype in ("nf4", "nf4_dq")
    return {
        "adapter": "qlora" if four or run.method == "gptq_lora" else "lora",
        "gptq": True if run.method == "gptq_lora" else None,
        "load_in_4bit": True if four else None,
        "load_in_8bit": True if run.weights_dtype == "int8" else None,
        "bnb_config_kwargs": {"bnb_4bit_use_double_quant": False} if run.weights_dtype == "nf4" else None,
        "lora_r": run.lora_rank,
        "lora_alpha": whole_number(run.lora_alpha),
        "lora_dropout": run.lora_dropout,
        "lora_target_linear": True if everything else None,
        "lora_target_modules": None if everything else list(adapted),
        "lora_modules_to_save": trainer_keys.saved_modules(run),
        "peft_autocast_adapter_dtype": None if run.adapter_dtype == "fp32" else False,
    }


def _precision(run: "Run") -> dict[str, Any]:
    """Return the number formats: mixed precision, or one format for everything."""
    if run.autocast == "none" and (run.trains_adapters or run.weights_dtype != "fp32"):
        trained = run.adapter_dtype if run.weights_dtype not in trainer_keys.DTYPES else run.weights_dtype
        pure = {"bf16": "bfloat16", "fp16": "float16"}.get(trained)
        return {"bf16": False, pure: True} if pure else {"bf16": False}
    return trainer_keys.precision(run)


def _checkpointing(run: "Run") -> dict[str, Any]:
    """Return gradient checkpointing, selective and offloaded by keys of their own."""
    kind = run.activation_checkpointing
    return {
        **trainer_keys.checkpointing(run),
        "selective_checkpointing": True if kind == "selective" else None,
        "activation_offloading": True if kind == "offload" else None,
    }


def _kernels(run: "Run") -> dict[str, Any]:
    """Return the plugins that bring fused kernels and a loss without whole logits."""
    liger, fused = "liger" in run.kernels, run.loss == "fused"
    plugins = ([_LIGER_PLUGIN] if liger else []) + ([_CUT_PLUGIN] if fused and not liger else [])
    return {
        "plugins": plugins or None,
        "liger_rope": True if liger else None,
        "liger_rms_norm": True if liger else None,
        "liger_glu_activation": True if liger else None,
        "liger_fused_linear_cross_entropy": fused if liger else None,
        "chunked_cross_entropy": True if run.loss == "chunked" else None,
    }


def _data(run: "Run") -> dict[str, Any]:
    """Return the data sets, the cut-off and the batching."""
    named = dataset_name(run)
    kind = file_kind(named) if named else None
    entry = without({"path": named, "ds_type": kind, "type": "chat_template"})
    listed = [entry] if named else None
    pretrain = run.phase == "pretrain"
    free = run.padding == "free"
    return {
        "datasets": None if pretrain else listed,
        "pretraining_dataset": (listed or [{"path": "pretraining"}]) if pretrain else None,
        "val_set_size": run.validation_fraction or None,
        "sequence_len": run.seq_len,
        "excess_length_strategy": run.over_length if run.over_length != "split" else "truncate",
        "sample_packing": run.packing,
        "pad_to_sequence_len": run.packing or run.padding == "max",
        "batch_flattening": True if free and not run.packing else None,
        "pad_to_multiple_of": None if run.packing else run.pad_to_multiple_of,
        "group_by_length": True if run.group_by_length else None,
    }


def _parallelism(run: "Run") -> dict[str, Any]:
    """Return sharding and degrees."""
    keys: dict[str, Any] = {}
    if launcher_files.uses_deepspeed(run):
        keys["deepspeed"] = DEEPSPEED
    elif launcher_files.uses_fsdp(run):
        keys |= {"fsdp_version": 2, "fsdp_config": launcher_files.fsdp_options(run)}
        keys["dp_shard_size"] = run.data_parallel_shard
    if launcher_files.uses_fsdp(run) and run.data_parallel_replicate > 1:
        keys["dp_replicate_size"] = run.data_parallel_replicate
    for key, field in (
        ("tensor_parallel_size", "tensor_parallel"),
        ("context_parallel_size", "context_parallel"),
    ):
        if getattr(run, field) > 1:
            keys[key] = getattr(run, field)
    return keys
