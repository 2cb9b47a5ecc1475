"""torchtune's YAML: method and model both stand in the name of the model's builder.

What no key says but the framework does (read from torchtune 0.6): weights and adapters in `dtype`,
without autocast; a micro-batch of 2 in every recipe; SDPA; samples padded to the longest, or packed to
max_seq_len and kept apart; a loss in chunks where its class says so. A builder's name does not tell
which repository the weights come from: where the catalogue cannot, `model=` must.
"""

import re
from collections.abc import Collection, Mapping

from finegauge.errors import FieldError, UnknownNameError, shown
from finegauge.workload.readers import hf_trainer
from finegauge.workload.readers.framework import Framework, Reading

_KEYS = """
model._component_ model.lora_attn_modules model.apply_lora_to_mlp model.apply_lora_to_output
model.lora_rank model.lora_alpha model.lora_dropout model.use_dora model.quantize_base
tokenizer.max_seq_len dataset._component_ dataset.packed dataset.source dataset.data_files batch_size
gradient_accumulation_steps epochs max_steps_per_epoch optimizer._component_ optimizer.fused
optimizer_in_bwd loss._component_ compile dtype enable_activation_checkpointing
enable_activation_offloading fsdp_cpu_offload fsdp_reshard_after_forward tensor_parallel_dim
context_parallel_dim data_parallel_shard_dim data_parallel_replicate_dim
"""
KEYS = frozenset(_KEYS.split())
_KNOWN = """
output_dir seed shuffle device log_every_n_steps log_peak_memory_stats log_level
resume_from_checkpoint
dataloader.* datasets fsdp.* teacher_model.* teacher_checkpointer.* kd_loss.* kd_ratio
memory_efficient_fsdp_wrap save_adapter_weights_only clip_grad_norm custom_sharded_layers
ac_mode ac_option save_last_epoch_only
ac_frequency recipe tokenizer.* dataset.* dataset_val.* optimizer.* loss.* lr_scheduler.* checkpointer.*
metric_logger.* profiler.* ref_checkpointer.* tensor_parallel_plan.* collate_fn
low_cpu_ram keep_last_n_checkpoints async_checkpointing enable_async_checkpointing
run_val_every_n_steps batch_size_val max_validation_batches cudnn_deterministic_mode epochs_to_train
model.decoder_trainable model.encoder_trainable model.fusion_trainable model.image_size
model.quantizer_config float8_recipe_name enable_fp8_training fp8_recipe_name parallelize_plan model_cfg
optimizer_in_bwd lr_warmup_steps minimize_all_reduces enable_kv_cache quantizer
"""
_BUILDER = re.compile(r"(?:\w+\.)*(?P<family>\w+)\.(?P<method>lora_|qlora_|dora_|qdora_)?(?P<name>\w+)$")
_FAMILIES = {"code_llama2": "codellama", "phi3": "phi-3", "phi4": "phi-4"}
_NAMES = {"output_proj": "o_proj"}
_MLP = ("gate_proj", "up_proj", "down_proj")


def state(reading: Reading) -> None:
    """State the fields of a torchtune file."""
    kind = _read_model(reading)
    _read_method(reading, kind)
    _read_precision(reading)
    reading.set("micro_batch_size", reading.get("batch_size", 2), "batch_size")
    reading.direct(
        {"gradient_accumulation_steps": ("gradient_accumulation_steps", 1), "epochs": ("epochs", 1)}
    )
    reading.set("max_steps", _max_steps(reading), "max_steps_per_epoch")
    _read_implementation(reading)
    _read_data(reading)
    _read_parallelism(reading)


def known_keys() -> Collection[str]:
    """Return the keys that torchtune knows and nothing here depends on."""
    return _KNOWN.split()


def _builder(reading: Reading, key: str) -> str:
    """Return the last part of the dotted name that a component has."""
    return reading.text(key).rpartition(".")[2]


def _read_model(reading: Reading) -> str:
    """Read the model out of the builder's name; return the name's prefix: lora_, qlora_ or nothing."""
    written = reading.keys.get("model")
    component = str(written.get("_component_", "")) if isinstance(written, Mapping) else ""
    parts = _BUILDER.match(component[:200].lower())
    stated = reading.overrides.get("model._component_")
    if stated:
        reading.set("model", stated, "model._component_")
    elif parts is None:
        raise FieldError(
            f"model._component_={shown(component)} does not name a builder of torchtune; add model=NAME."
        )
    else:
        size = parts["name"].removeprefix(parts["family"]).strip("_")
        reading.set("model", _in_catalogue(reading, parts["family"], size), "model._component_")
    return (parts["method"] or "") if parts else ""


def _in_catalogue(reading: Reading, family: str, size: str) -> str:
    """Return the catalogue's model of a builder: llama3_1 and 8b are llama-3.1-8b."""
    from finegauge.workload.run import figures

    name = _FAMILIES.get(family, family.replace("_", "."))
    size, instructed, _ = size.replace("_", ".").partition(".instruct")
    size = (
        size.removesuffix(".base").removesuffix(".reward").replace(".", "-") if "." not in size[:2] else size
    )
    dashed = re.sub(r"^([a-z]+)(\d)", r"\1-\2", name)
    endings = ("-instruct", "") if instructed else ("", "-instruct")
    guesses = [f"{stem}-{size}{ending}" for ending in endings for stem in (name, dashed)]
    for guess in (*guesses, name, dashed):
        try:
            return figures(guess).name
        except UnknownNameError:
            continue
    reading.warn(
        f"{shown(guesses[0])} is no name of the catalogue; add model=NAME, as 'finegauge models' has it."
    )
    return guesses[0]


def _read_method(reading: Reading, prefix: str) -> None:
    """Read whether adapters train, and which."""
    quantized = prefix.startswith("q") or reading.flag("model.quantize_base")
    method = "full" if not prefix else "qlora" if quantized else "lora"
    reading.set("method", method, "model._component_", "model.quantize_base")
    phase = {"dpo": "dpo", "grpo": "grpo", "ppo": "ppo"}.get(reading.text("recipe")[:4].strip("_"), "sft")
    reading.set("phase", "dpo" if "dpo" in _builder(reading, "loss._component_") else phase)
    if not prefix:
        return
    reading.set("lora_rank", reading.get("model.lora_rank", 8), "model.lora_rank")
    reading.set("lora_alpha", reading.get("model.lora_alpha", 16), "model.lora_alpha")
    reading.set("lora_dropout", reading.get("model.lora_dropout", 0.0), "model.lora_dropout")
    stated = reading.get("model.lora_attn_modules", ("q_proj", "v_proj"))
    stated = stated if isinstance(stated, list | tuple) else str(stated).split(",")
    targets = [_NAMES.get(str(name), str(name)) for name in stated]
    targets += _MLP if reading.flag("model.apply_lora_to_mlp") else ()
    targets += ["lm_head"] if reading.flag("model.apply_lora_to_output") else []
    reading.set("lora_targets", targets, "model.lora_attn_modules", "model.apply_lora_to_mlp")
    if prefix in ("dora_", "qdora_") or reading.flag("model.use_dora"):
        reading.warn("DoRA is not modelled: the run is taken as LoRA.")


def _read_precision(reading: Reading) -> None:
    """Read the one number format of weights, adapters and arithmetic."""
    dtype, method = reading.get("dtype", "bf16"), reading.fields["method"]
    reading.set("weights_dtype", "nf4_dq" if method == "qlora" else dtype, "dtype")
    reading.set("autocast", "none", "dtype")
    if method != "full":
        reading.set("adapter_dtype", dtype, "dtype")


def _max_steps(reading: Reading) -> int | None:
    """Return the optimizer steps of all epochs, where an epoch's are limited."""
    from finegauge.workload.field import number, whole

    limit = reading.get("max_steps_per_epoch")
    if limit in (None, -1, "null", "-1"):
        return None
    epochs = number(1e-6, 1e6)("epochs", reading.get("epochs", 1))
    return max(1, int(whole(1, 10**9)("max_steps_per_epoch", limit) * epochs))


def _read_implementation(reading: Reading) -> None:
    """Read checkpointing, loss, optimizer and compilation."""
    full, offload = (
        reading.flag("enable_activation_checkpointing"),
        reading.flag("enable_activation_offloading"),
    )
    kind = "offload" if full and offload else "full" if full else "none"
    if offload and not full:
        reading.warn("enable_activation_offloading has no effect without enable_activation_checkpointing.")
    reading.set(
        "activation_checkpointing", kind, "enable_activation_checkpointing", "enable_activation_offloading"
    )
    reading.set("checkpointing_reentrant", False)
    loss = _builder(reading, "loss._component_")
    chunked = "linearcrossentropy" in loss or "chunked" in loss
    reading.set("loss", "chunked" if chunked else "full_logits", "loss._component_")
    reading.set("compile", reading.flag("compile"), "compile")
    hf_trainer.read_optimizer(reading, "optimizer._component_", "adamw")
    if reading.flag("optimizer_in_bwd"):
        reading.set("optimizer_implementation", "in_backward", "optimizer_in_bwd")
    else:
        fused = reading.flag("optimizer.fused")
        reading.set("optimizer_implementation", "fused" if fused else "foreach", "optimizer.fused")
    reading.set("attention", "sdpa")


def _read_data(reading: Reading) -> None:
    """Read the data set and how it is batched."""
    packed = reading.flag("dataset.packed")
    length = reading.get("tokenizer.max_seq_len")
    if length is None:
        if packed:
            raise FieldError("dataset.packed needs tokenizer.max_seq_len; add it.")
        reading.warn(
            "tokenizer.max_seq_len is null, so nothing is cut: state seq_len=… of the longest sample."
        )
    reading.set("seq_len", length, "tokenizer.max_seq_len")
    reading.set("packing", packed, "dataset.packed")
    reading.set("padding", "free" if packed else "longest", "dataset.packed")
    texts = "text_completion" in reading.text("dataset._component_")
    wraps = packed and reading.flag("dataset.split_across_pack", default=texts)
    reading.set("packing_strategy", "wrapped" if wraps else "first_fit", "dataset.split_across_pack")
    reading.set("over_length", "truncate")
    reading.set("pad_to_multiple_of", 1)
    source = str(reading.get("dataset.source") or "")
    source = (
        str(reading.get("dataset.data_files", source)) if source in ("json", "csv", "parquet") else source
    )
    source = source or _builder(reading, "dataset._component_").removesuffix("_dataset")
    hf_trainer.read_dataset(reading, [source] if source else (), "dataset.source", "dataset._component_")


def _read_parallelism(reading: Reading) -> None:
    """Read the degrees and FSDP; a recipe is distributed if its keys say so, else its name and launcher."""
    for key, field in (
        ("tensor_parallel_dim", "tensor_parallel"),
        ("context_parallel_dim", "context_parallel"),
        ("data_parallel_replicate_dim", "data_parallel_replicate"),
    ):
        if reading.get(key) not in (None, 1, "1"):
            reading.set(field, reading.get(key), key)
    shard = reading.get("data_parallel_shard_dim", -1)
    distributed = "distributed" in reading.text("recipe") or reading.stated(
        "fsdp_cpu_offload", "custom_sharded_layers", "tensor_parallel_dim", "data_parallel_shard_dim"
    )
    distributed = distributed or (reading.launched_gpus or 1) > 1
    if str(shard) not in ("-1", "1"):
        reading.set("data_parallel_shard", shard, "data_parallel_shard_dim")
    if distributed:
        stays = not reading.flag("fsdp_reshard_after_forward", default=True)
        kind = "fsdp_shard_grad_op" if stays else "fsdp"
        kind = "hybrid" if "data_parallel_replicate" in reading.fields else kind
        reading.set("sharding", kind, "data_parallel_shard_dim", "fsdp_reshard_after_forward")
        reading.set(
            "cpu_offload", "params" if reading.flag("fsdp_cpu_offload") else "none", "fsdp_cpu_offload"
        )
    else:
        reading.set("num_gpus", 1)


FORMAT = Framework("torchtune", KEYS, "model._component_", state, known_keys)
