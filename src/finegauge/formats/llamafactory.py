"""LLaMA-Factory's YAML (the v0 format of `llamafactory-cli train`), hidden defaults included.

What no key says but the framework does (read from its source, v0.9.x): LoRA of rank 8 on all
linear layers; gradient checkpointing on; trained parameters kept in fp32 unless pure_bf16 or
unquantised ZeRO-3; the base model loaded in the training precision; 4 bits mean NF4, double
quantised; micro-batches of 8, padded to the longest and a multiple of 8; three epochs.

A block `finegauge:` states fields that the framework cannot express, such as the GPU.
Secrets, paths and everything that touches neither memory nor time are left unread.
"""

import os
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from finegauge import documents
from finegauge.documents import read_text
from finegauge.errors import FieldError, InputError, UnknownNameError, shown
from finegauge.formats import launcher_files, trainer_keys
from finegauge.formats.framework import Framework, Reading
from finegauge.formats.sheet import (
    ACCELERATE,
    DEEPSPEED,
    Sheet,
    dataset_name,
    refuse,
    repository,
    targets,
    whole_number,
    without,
)
from finegauge.run.field import flag, names, number, whole

if TYPE_CHECKING:
    from finegauge.run.run import Run

FRAMEWORK = "LLaMA-Factory"
FROM_FRAMEWORK = f"framework default: {FRAMEWORK}"

# LLaMA-Factory's key: the field it states, and the framework's default.
_DIRECT: dict[str, tuple[str, Any]] = {
    "model_name_or_path": ("model", None),
    "stage": ("phase", "sft"),
    "cutoff_len": ("seq_len", 2048),
    "per_device_train_batch_size": ("micro_batch_size", 8),
    "gradient_accumulation_steps": ("gradient_accumulation_steps", 1),
    "num_train_epochs": ("epochs", 3.0),
    "torch_compile": ("compile", False),
    "use_reentrant_gc": ("checkpointing_reentrant", True),
}
_OF_LORA: dict[str, tuple[str, Any]] = {
    "lora_rank": ("lora_rank", 8),
    "lora_alpha": ("lora_alpha", None),
    "lora_dropout": ("lora_dropout", 0.0),
    "lora_target": ("lora_targets", "all-linear"),
}
_DERIVED = """
finetuning_type quantization_bit quantization_type double_quantization pure_bf16 bf16 fp16
upcast_layernorm additional_target freeze_trainable_layers disable_gradient_checkpointing
use_unsloth_gc flash_attn enable_liger_kernel use_liger_kernel use_unsloth optim dataset dataset_dir
max_samples val_size packing neat_packing max_steps deepspeed fsdp eval_strategy evaluation_strategy
save_strategy group_by_length train_sampling_strategy
"""
KEYS = frozenset((*_DIRECT, *_OF_LORA, *_DERIVED.split()))
_TELLING = frozenset(
    (
        "stage",
        "finetuning_type",
        "template",
        "cutoff_len",
        "dataset",
        "dataset_dir",
        "lora_target",
        "quantization_bit",
    )
)
_ATTENTION = {
    "auto": "sdpa",
    "fa2": "flash",
    "fa3": "flash",
    "true": "flash",
    "disabled": "eager",
    "false": "sdpa",
}
_NOT_MODELLED = (
    "use_galore",
    "use_apollo",
    "use_badam",
    "use_dora",
    "use_adam_mini",
    "use_muon",
    "mixture_of_depths",
)


def recognises(keys: Mapping[str, Any]) -> bool:
    """Return whether `keys` are those of a LLaMA-Factory training file."""
    return "model_name_or_path" in keys and not _TELLING.isdisjoint(keys)


def state(reading: Reading) -> None:
    """State the fields of a LLaMA-Factory file."""
    _read_model_and_method(reading)
    _read_precision(reading)
    _read_implementation(reading)
    _read_data(reading)
    trainer_keys.read_sharding(reading)


def known_keys() -> Collection[str]:
    """Return the keys that LLaMA-Factory and transformers' trainer know and nothing here depends on."""
    return _schema_keys()


def _read_model_and_method(reading: Reading) -> None:
    """Read which model trains, and how."""
    reading.direct(_DIRECT)
    reading.need_model()
    kind = str(reading.get("finetuning_type", "lora")).lower()
    bits = reading.get("quantization_bit")
    if bits in (None, ""):
        method = kind
    elif kind == "lora":
        method = "qlora"
    else:
        raise FieldError(f"quantization_bit={shown(bits)} needs finetuning_type lora, not {shown(kind)}.")
    reading.set("method", method, "finetuning_type", "quantization_bit")
    if kind == "lora":
        reading.direct(_OF_LORA)
    else:
        reading.ignored(_OF_LORA, f"finetuning_type is {kind}")
    if kind == "freeze":
        layers = number(-1e4, 1e4)("freeze_trainable_layers", reading.get("freeze_trainable_layers", 2))
        reading.set("freeze_trainable_layers", abs(int(layers)), "freeze_trainable_layers")
    trainer_keys.read_extra(reading, "additional_target")


def _read_precision(reading: Reading) -> None:
    """Read the number formats of weights, adapters and arithmetic."""
    pure, bf16, fp16 = (reading.flag(key) for key in ("pure_bf16", "bf16", "fp16"))
    if fp16 and (bf16 or pure):
        raise FieldError("bf16 and fp16 are both true; keep one.")
    low = "bf16" if bf16 or pure else "fp16" if fp16 else reading.checkpoint_dtype()
    reading.set("autocast", "none" if pure or not (bf16 or fp16) else low, "bf16", "fp16", "pure_bf16")
    method, kept_low = (
        reading.fields["method"],
        pure or (_zero3(reading) and reading.fields["method"] != "qlora"),
    )
    trained = low if kept_low else "fp32"
    if method == "qlora":
        reading.set("weights_dtype", _quantized(reading), "quantization_bit", "double_quantization")
    else:
        reading.set("weights_dtype", trained if method == "full" else low, "bf16", "fp16", "pure_bf16")
    if method in ("lora", "qlora"):
        reading.set("adapter_dtype", trained, "pure_bf16")
    upcast = reading.flag("upcast_layernorm") and method == "qlora"
    reading.set("upcast_unquantized", upcast, "upcast_layernorm")


def _read_implementation(reading: Reading) -> None:
    """Read checkpointing, attention, kernels and optimizer."""
    off, offload = reading.flag("disable_gradient_checkpointing"), reading.flag("use_unsloth_gc")
    checkpointing = "none" if off else "offload" if offload else "full"
    reading.set("activation_checkpointing", checkpointing, "disable_gradient_checkpointing", "use_unsloth_gc")
    attention = str(reading.get("flash_attn", "auto")).lower()
    reading.set("attention", _ATTENTION.get(attention, attention), "flash_attn")
    liger = reading.flag("enable_liger_kernel") or reading.flag("use_liger_kernel")
    kernels = (["liger"] if liger else []) + (["unsloth"] if reading.flag("use_unsloth") else [])
    reading.set("kernels", kernels, "enable_liger_kernel", "use_liger_kernel", "use_unsloth")
    reading.set("loss", "fused" if liger else "full_logits", "enable_liger_kernel", "use_liger_kernel")
    trainer_keys.read_optimizer(reading, "optim", "adamw")
    reading.not_modelled(*_NOT_MODELLED)


def _read_data(reading: Reading) -> None:
    """Read the data set, how it is batched, and for how long."""
    packing = reading.get("packing")
    neat = reading.flag("neat_packing")
    packed = neat or (
        flag("packing", packing) if packing not in (None, "") else reading.fields["phase"] == "pt"
    )
    trainer_keys.read_grouping(reading, packs=packed)
    wraps = packed and reading.fields["phase"] == "pt"
    reading.set("packing", packed, "packing", "neat_packing")
    reading.set("packing_strategy", "wrapped" if wraps else "best_fit_decreasing", "stage")
    reading.set("over_length", "truncate")
    reading.set("padding", ("free" if neat else "max") if packed else "longest", "neat_packing")
    trainer_keys.read_duration(reading)
    samples = read_samples(
        {**reading.keys, **reading.overrides}, reading.file, strict="dataset" in reading.overrides
    )
    reading.warnings += samples.warnings
    reading.set("dataset", samples.dataset, "dataset")
    reading.set("num_samples", samples.num_samples, "max_samples", "dataset")
    evaluates = (
        str(reading.get("eval_strategy") or reading.get("evaluation_strategy") or "no").lower() != "no"
    )
    total = samples.num_samples or samples.num_in_catalogue
    reading.set("eval_samples", 0, "eval_strategy")
    trainer_keys.read_validation(
        reading, reading.get("val_size"), "val_size", total=total, evaluates=evaluates
    )


def _zero3(reading: Reading) -> bool:
    """Return whether DeepSpeed shards the weights."""
    named = reading.get("deepspeed")
    if not named:
        return False
    from finegauge.formats.launcher_files import sharding

    return sharding(named, reading.file)[0] == "zero3"


def _quantized(reading: Reading) -> str:
    """Return the format of the quantised weights."""
    bits = whole(1, 64)("quantization_bit", reading.get("quantization_bit"))
    if bits not in (4, 8):
        raise FieldError(f"quantization_bit={bits} is not described; use 4 (NF4) or 8.")
    if str(reading.get("quantization_type", "nf4")).lower() != "nf4":
        reading.warnings.append("quantization_type is taken as nf4, which takes as much memory as fp4.")
    double = flag("double_quantization", reading.get("double_quantization", True))
    return "int8" if bits == 8 else "nf4_dq" if double else "nf4"


FORMAT = Framework(
    FRAMEWORK,
    KEYS,
    "model_name_or_path",
    state,
    known_keys,
    {
        "full": {"finetuning_type": "full", "quantization_bit": ""},
        "freeze": {"finetuning_type": "freeze", "quantization_bit": ""},
        "lora": {"finetuning_type": "lora", "quantization_bit": ""},
        "qlora": {"finetuning_type": "lora", "quantization_bit": "4"},
    },
)

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


def _schema_keys() -> set[str]:
    """Return every key that the framework or the trainer below it knows."""
    from finegauge.formats.trainer_keys import TRAINER

    return {*_MODEL.split(), *_DATA.split(), *_FINETUNING.split(), *TRAINER.split()}


class Samples(NamedTuple):
    """The catalogue's data set, if it is one, and how many samples of all data sets are used."""

    dataset: str | None
    num_samples: int | None  # None: not known, or all of the catalogue's
    num_in_catalogue: int | None
    warnings: list[str]


def read_samples(keys: Mapping[str, Any], file: str, *, strict: bool) -> Samples:
    """Return the data that `keys` name; a `strict` name must be in the catalogue."""
    named = names("dataset", keys.get("dataset") or ())
    warnings: list[str] = []
    known, total, unknown = None, 0, False
    limit = whole(1, 10**10)("max_samples", keys["max_samples"]) if keys.get("max_samples") else None
    for name in named:
        found, size = _look_up(name, keys, file, strict=strict)
        known = found or known
        unknown = unknown or found is None
        size = limit if size is None else min(size, limit or size)
        total = -1 if size is None or total < 0 else total + size
    if unknown or len(named) != 1:
        shown_names = ", ".join(shown(name) for name in named)
        if named:
            warnings.append(
                f"The lengths of {shown_names} are not in the catalogue: "
                "every sequence is taken as cutoff_len long."
            )
        known = None
    if total <= 0:
        return Samples(known, None, None, warnings)
    as_catalogued = known is not None and limit is None
    return Samples(known, None if as_catalogued else total, total if as_catalogued else None, warnings)


def _look_up(name: str, keys: Mapping[str, Any], file: str, *, strict: bool) -> tuple[str | None, int | None]:
    """Return (name that a run may have, samples) of a data set; None where unknown.

    A file of texts that the command line names is one of its own; a tokenizer says how long they are.
    """
    from finegauge.catalogue.datasets import dataset, holds_texts

    if strict and holds_texts(name, has_tokenizer=False):
        return name, None

    beside = os.path.join(os.path.dirname(file), name)
    path_or_name = beside if os.path.isfile(beside) else name
    try:
        found = dataset(path_or_name)
    except UnknownNameError:
        if strict:
            raise
        return None, _listed_samples(name, keys, file)
    return path_or_name if found.lengths else None, found.num_samples


def _listed_samples(name: str, keys: Mapping[str, Any], file: str) -> int | None:
    """Return the num_samples that the project's dataset_info.json lists for `name`."""
    folder = str(keys.get("dataset_dir") or "data")
    for base in (os.path.realpath(os.path.dirname(file)), os.path.realpath(os.curdir)):
        try:
            listing = os.path.realpath(os.path.join(base, folder, "dataset_info.json"))
            if listing.startswith(os.path.join(base, "")) and os.path.isfile(listing):
                entry = documents.parse_yaml(read_text(listing), "dataset_info.json")[name]
                return int(whole()("num_samples", entry["num_samples"]))
        except (InputError, KeyError, TypeError, OSError, ValueError, RuntimeError):
            continue  # a listing that cannot be read tells nothing
    return None


NAME = "LLaMA-Factory"
FILE = "llamafactory.yaml"
_ATTENTION_WORDS = {"sdpa": "sdpa", "flash": "fa2", "eager": "disabled"}


def sheet(run: "Run") -> Sheet:
    """Return the files of LLaMA-Factory for `run`.

    Raises: InputError for a model or a sequence divided among GPUs.
    """
    keys: dict[str, Any] = {
        "model_name_or_path": repository(run),
        "stage": trainer_keys.PHASES.get(run.phase, run.phase),
        "do_train": True,
        **_method(run),
        **_data(run),
        **trainer_keys.batch(run),
        **trainer_keys.duration(run),
        **_precision(run),
        "flash_attn": _ATTENTION_WORDS[run.attention],
        **_checkpointing(run),
        "enable_liger_kernel": True if "liger" in run.kernels else None,
        "use_unsloth": True if "unsloth" in run.kernels else None,
        "optim": trainer_keys.optimizer(run),
        **trainer_keys.compiled(run),
        "output_dir": "output",
    }
    for field in ("tensor_parallel", "context_parallel"):
        if getattr(run, field) > 1 and not (
            field == "tensor_parallel" and launcher_files.uses_deepspeed(run)
        ):
            raise refuse(
                NAME, field, getattr(run, field), "only DeepSpeed divides a model for it, up to ZeRO-2."
            )
    beside: dict[str, dict[str, Any]] = {}
    command = f"llamafactory-cli train {FILE}"
    if launcher_files.uses_fsdp(run):
        beside[ACCELERATE] = launcher_files.accelerate(run)
        command = launcher_files.accelerate_launch(run, f"-m llamafactory.launcher {FILE}")
    else:
        if launcher_files.uses_deepspeed(run):
            keys["deepspeed"] = DEEPSPEED
            beside[DEEPSPEED] = launcher_files.deepspeed(run)
        if run.num_gpus > 1:
            command = f"FORCE_TORCHRUN=1 {launcher_files.environment(run)} {command}"
    notes = () if keys.get("dataset") is None else ("dataset_info.json has to list the data set.",)
    return Sheet(FILE, without(keys), command, _packages(run, beside), beside, notes)


def _packages(run: "Run", beside: dict[str, Any]) -> str:
    """Return what pip has to install."""
    extras = ["llamafactory"]
    extras += ["deepspeed"] if DEEPSPEED in beside else []
    extras += ["bitsandbytes"] if run.method == "qlora" or "8bit" in run.optimizer else []
    extras += ["liger-kernel"] if "liger" in run.kernels else []
    return " ".join(extras)


def _method(run: "Run") -> dict[str, Any]:
    """Return which parameters train."""
    if not run.trains_adapters:
        return without(
            {"finetuning_type": run.method, "freeze_trainable_layers": run.freeze_trainable_layers}
        )
    adapted = targets(run)
    quantized = run.method != "lora"
    four = run.weights_dtype != "int8"
    return without(
        {
            "finetuning_type": "lora",
            "lora_rank": run.lora_rank,
            "lora_alpha": whole_number(run.lora_alpha),
            "lora_dropout": run.lora_dropout,
            "lora_target": "all" if adapted == ("all-linear",) else ",".join(adapted),
            "additional_target": ",".join(trainer_keys.saved_modules(run) or ()) or None,
            "quantization_bit": (4 if four else 8) if quantized else None,
            "double_quantization": run.weights_dtype == "nf4_dq" if quantized and four else None,
            "upcast_layernorm": True if run.upcast_unquantized else None,
        }
    )


def _precision(run: "Run") -> dict[str, Any]:
    """Return the number formats: bf16 throughout, or mixed precision over fp32 trained weights."""
    trained = run.adapter_dtype if run.trains_adapters else run.weights_dtype
    if run.autocast == "none" and trained == "bf16":
        return {"pure_bf16": True}
    return trainer_keys.precision(run)


def _checkpointing(run: "Run") -> dict[str, Any]:
    """Return gradient checkpointing, which is on where nothing is said."""
    kind = run.activation_checkpointing
    if kind == "none":
        return {"disable_gradient_checkpointing": True}
    return {
        "disable_gradient_checkpointing": False,
        "use_unsloth_gc": True if kind == "offload" else None,
        "use_reentrant_gc": run.checkpointing_reentrant,
    }


def _data(run: "Run") -> dict[str, Any]:
    """Return the data set, its cut-off and its batching."""
    named = dataset_name(run)
    held_out = run.validation_fraction > 0
    return {
        "dataset": named,
        "cutoff_len": run.seq_len,
        "max_samples": run.num_samples if named else None,
        "val_size": run.validation_fraction if held_out else None,
        **(trainer_keys.evaluation(run) if held_out else {}),
        "packing": run.packing,
        "neat_packing": True if run.packing and run.padding == "free" else None,
        **trainer_keys.grouping(run),
    }
