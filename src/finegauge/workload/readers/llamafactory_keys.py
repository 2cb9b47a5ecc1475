"""Keys that LLaMA-Factory and transformers' trainer know and that FineGauge need not read.

Listed so that a typing error (lora_rnak) is told from a key that is merely irrelevant. From the
argument classes of LLaMA-Factory v0.9.x and transformers 4.40 to 5.23; loaded only when a file
holds a key that the reader itself does not use.
"""

from collections.abc import Collection, Iterable

from finegauge.errors import did_you_mean, shown

MAX_WARNINGS = 20

_MODEL = """
adapter_name_or_path adapter_folder cache_dir use_fast_tokenizer resize_vocab split_special_tokens
add_tokens add_special_tokens new_special_tokens_config init_special_tokens model_revision
low_cpu_mem_usage rope_scaling shift_attn mixture_of_depths moe_aux_loss_coef use_reentrant_gc
upcast_lmhead_output train_from_scratch infer_backend offload_folder use_cache use_kv_cache
use_v1_kernels infer_dtype hf_hub_token ms_hub_token om_hub_token print_param_status
trust_remote_code quantization_method quantization_device_map fp8 fp8_backend
fp8_enable_fsdp_float8_all_gather image_max_pixels image_min_pixels image_do_pan_and_scan
crop_to_patches image_resolution video_max_pixels video_min_pixels video_resolution video_fps
video_maxlen use_audio_in_video audio_sampling_rate export_dir export_size export_device
export_quantization_bit export_quantization_dataset export_quantization_nsamples
export_quantization_maxlen export_legacy_format export_hub_model_id vllm_maxlen vllm_gpu_util
vllm_enforce_eager vllm_max_lora_rank vllm_config sglang_maxlen sglang_mem_fraction sglang_tp_size
sglang_config sglang_lora_backend
"""
_DATA = """
template eval_dataset media_dir train_on_prompt mask_history streaming buffer_size mix_strategy
interleave_probs overwrite_cache preprocessing_batch_size preprocessing_num_workers eval_num_beams
ignore_pad_token_for_loss eval_on_each_dataset tool_format tokenized_path default_system
enable_thinking data_shared_file_system reserved_label_len max_new_tokens max_length do_sample
temperature top_p top_k num_beams repetition_penalty length_penalty skip_special_tokens
"""
_FINETUNING = """
freeze_trainable_modules freeze_extra_modules loraplus_lr_ratio loraplus_lr_embedding use_rslora
use_dora pissa_init pissa_iter pissa_convert create_new_adapter module_dropout oft_rank
oft_block_size oft_target pref_beta pref_ftx pref_bco_weight pref_loss dpo_label_smoothing
kto_chosen_weight kto_rejected_weight simpo_gamma ppo_buffer_size ppo_epochs ppo_score_norm
ppo_target ppo_whiten_rewards ref_model ref_model_adapters ref_model_quantization_bit reward_model
reward_model_adapters reward_model_quantization_bit reward_model_type ld_alpha use_galore
galore_target galore_rank galore_update_interval galore_scale galore_proj_type galore_layerwise
use_apollo apollo_target apollo_rank apollo_update_interval apollo_scale apollo_proj
apollo_proj_type apollo_scale_type apollo_layerwise apollo_scale_front use_badam badam_mode
badam_start_block badam_switch_mode badam_switch_interval badam_update_ratio badam_mask_mode
badam_verbose use_swanlab swanlab_project swanlab_workspace swanlab_run_name swanlab_mode
swanlab_api_key swanlab_logdir swanlab_lark_webhook_url swanlab_lark_secret use_llama_pro
use_adam_mini use_mca use_muon use_dft_loss use_asft_loss use_eaft_loss asft_alpha eaft_alpha
freeze_vision_tower freeze_multi_modal_projector freeze_language_model compute_accuracy
disable_shuffling early_stopping_steps plot_loss include_effective_tokens_per_second ray_run_name
ray_storage_path ray_storage_filesystem ray_num_workers resources_per_worker placement_strategy
ray_init_kwargs
"""
_TRAINER = """
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


def unknown_key_warnings(keys: Iterable[str], name: str, read: Collection[str]) -> list[str]:
    """Return a warning for every key that is neither `read` nor known to the framework."""
    known = {*_MODEL.split(), *_DATA.split(), *_FINETUNING.split(), *_TRAINER.split()}
    unknown = [key for key in keys if key not in known]
    warnings = [
        f"{name}: LLaMA-Factory knows no key {shown(key)}, which is ignored."
        f"{did_you_mean(key, {*known, *read})}"
        for key in unknown[:MAX_WARNINGS]
    ]
    if len(unknown) > MAX_WARNINGS:
        warnings.append(f"{name}: {len(unknown) - MAX_WARNINGS:,} more unknown keys are ignored.")
    return warnings
