"""torchtune's YAML: method and model both stand in the name of the model's builder.

What no key says but the framework does (read from torchtune 0.6): weights and adapters in `dtype`,
without autocast; a micro-batch of 2 in every recipe; SDPA; samples padded to the longest, or packed to
max_seq_len and kept apart; a loss in chunks where its class says so. A builder's name does not tell
which repository the weights come from: where the catalogue cannot, `model=` must.
"""

import re
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from finegauge.errors import FieldError, FineGaugeError, InputError, UnknownNameError, shown
from finegauge.formats import launcher_files, trainer_keys
from finegauge.formats.framework import Framework, Reading
from finegauge.formats.sheet import (
    LINEAR,
    Sheet,
    dataset_name,
    file_kind,
    refuse,
    targets,
    whole_number,
    without,
)

if TYPE_CHECKING:
    from finegauge.run.run import Run

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
_MODEL_NAMES = {"code_llama2": "codellama", "phi3": "phi-3", "phi4": "phi-4"}
_PROJECTIONS = {"output_proj": "o_proj"}
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


def _builder_of(reading: Reading, key: str) -> str:
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
    from finegauge.run.run import figures

    name = _MODEL_NAMES.get(family, family.replace("_", "."))
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
    reading.set("phase", "dpo" if "dpo" in _builder_of(reading, "loss._component_") else phase)
    if not prefix:
        return
    reading.set("lora_rank", reading.get("model.lora_rank", 8), "model.lora_rank")
    reading.set("lora_alpha", reading.get("model.lora_alpha", 16), "model.lora_alpha")
    reading.set("lora_dropout", reading.get("model.lora_dropout", 0.0), "model.lora_dropout")
    stated = reading.get("model.lora_attn_modules", ("q_proj", "v_proj"))
    stated = stated if isinstance(stated, list | tuple) else str(stated).split(",")
    targets = [_PROJECTIONS.get(str(name), str(name)) for name in stated]
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
    from finegauge.run.field import number, whole

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
    loss = _builder_of(reading, "loss._component_")
    chunked = "linearcrossentropy" in loss or "chunked" in loss
    reading.set("loss", "chunked" if chunked else "full_logits", "loss._component_")
    reading.set("compile", reading.flag("compile"), "compile")
    trainer_keys.read_optimizer(reading, "optimizer._component_", "adamw")
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
    source = source or _builder_of(reading, "dataset._component_").removesuffix("_dataset")
    trainer_keys.read_dataset(reading, [source] if source else (), "dataset.source", "dataset._component_")


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

NAME = "torchtune"
FILE = "torchtune.yaml"
# The beginning of a catalogue name's last part: torchtune's module, the sizes it builds, what follows them.
_FAMILIES = (
    ("llama-2-", "llama2", "7b 13b 70b", ""),
    ("meta-llama-3-", "llama3", "8b 70b", ""),
    ("meta-llama-3.1-", "llama3_1", "8b 70b 405b", ""),
    ("llama-3.1-", "llama3_1", "8b 70b 405b", ""),
    ("llama-3.2-", "llama3_2", "1b 3b", ""),
    ("llama-3.3-", "llama3_3", "70b", ""),
    ("gemma-", "gemma", "2b 7b", ""),
    ("gemma-2-", "gemma2", "2b 9b 27b", ""),
    ("codellama-", "code_llama2", "7b 13b 70b", ""),
    ("qwen2-", "qwen2", "0.5b 1.5b 7b", ""),
    ("qwen2.5-", "qwen2_5", "0.5b 3b", ""),
    ("qwen2.5-", "qwen2_5", "1.5b 7b 14b 32b 72b", "_base"),
    ("qwen3-", "qwen3", "32b", ""),
    ("qwen3-", "qwen3", "0.6b 1.7b 4b 8b 14b", "_base"),
)
_BUILDERS = {
    f"{stem}{size}": (module, f"{size.replace('.', '_')}{ending}")
    for stem, module, sizes, ending in _FAMILIES
    for size in sizes.split()
} | {"mistral-7b-v0.1": ("mistral", "7b"), "phi-3-mini-4k": ("phi3", "mini"), "phi-4": ("phi4", "14b")}
_OPTIMIZERS = {
    "adamw": "torch.optim.AdamW",
    "sgd": "torch.optim.SGD",
    "adafactor": "torch.optim.Adafactor",
    "adamw_8bit": "bitsandbytes.optim.AdamW8bit",
    "paged_adamw": "bitsandbytes.optim.PagedAdamW",
    "paged_adamw_8bit": "bitsandbytes.optim.PagedAdamW8bit",
    "lion": "bitsandbytes.optim.Lion",
    "lion_8bit": "bitsandbytes.optim.Lion8bit",
}
_TOKENIZERS = {
    **dict.fromkeys(
        ("llama3", "llama3_1", "llama3_2", "llama3_3"), ("llama3.llama3", "original/tokenizer.model")
    ),
    "code_llama2": ("llama2.llama2", "tokenizer.model"),
    "gemma2": ("gemma.gemma", "tokenizer.model"),
    "phi3": ("phi3.phi3_mini", "tokenizer.model"),
    **{name: (f"{name}.{name}", "vocab.json") for name in ("qwen2", "qwen2_5", "qwen3", "phi4")},
}
_MODEL_TYPES = {
    **dict.fromkeys(("llama3_1", "llama3_3"), "llama3"),
    "code_llama2": "llama2",
    "phi3": "phi3_mini",
    "qwen2_5": "qwen2",
}
_WITHOUT_QLORA = ("qwen2", "qwen2_5", "qwen3")  # their builders of LoRA quantise where they are told
_PLAN = "torchtune.models.llama3.base_llama_tp_plan"
_FROM_SOURCE = "git+https://github.com/pytorch/torchtune"  # what came after the last release, 0.6.1
_PREFIX = {"full": "", "lora": "lora_", "qlora": "qlora_"}
_NAMES = {"o_proj": "output_proj"}


def sheet(run: "Run") -> Sheet:
    """Return the recipe's file of torchtune for `run`.

    Raises: InputError for a model, a phase or a method that it does not have.
    """
    if run.phase != "sft" or run.method not in _PREFIX:
        field = "phase" if run.phase != "sft" else "method"
        raise refuse(
            NAME, field, getattr(run, field), "its recipes here are full, LoRA and QLoRA fine-tuning."
        )
    module, size = _builder(run)
    folder = f"models/{_plain_name(run)}"
    distributed = run.num_gpus > 1 or run.sharding != "none"
    if run.tensor_parallel > 1 and (run.method != "full" or not module.startswith("llama3")):
        raise refuse(
            NAME, "tensor_parallel", run.tensor_parallel, "it divides Llama 3 in full fine-tuning only."
        )
    recipe = "full_finetune" if run.method == "full" else "lora_finetune"
    recipe += "_distributed" if distributed else "_single_device"
    keys = {
        "output_dir": "output",
        "model": _model(run, module, size),
        "tokenizer": _tokenizer(run, module, folder),
        "checkpointer": _checkpointer(module, folder),
        "resume_from_checkpoint": False,
        **({"save_adapter_weights_only": False} if run.trains_adapters else {}),
        "dataset": _dataset(run),
        "seed": 42,
        "shuffle": True,
        "batch_size": run.micro_batch_size,
        "gradient_accumulation_steps": run.gradient_accumulation_steps,
        **_duration(run),
        **_optimizer(run),
        "lr_scheduler": {
            "_component_": "torchtune.training.lr_schedulers.get_cosine_schedule_with_warmup",
            "num_warmup_steps": 100,
        },
        "loss": {"_component_": _loss(run)},
        "clip_grad_norm": None,
        "device": "cuda",
        "dtype": _dtype(run),
        "compile": run.compile,
        "enable_activation_checkpointing": run.activation_checkpointing != "none",
        "enable_activation_offloading": run.activation_checkpointing == "offload",
        **(_distributed(run) if distributed else {}),
        "metric_logger": {
            "_component_": "torchtune.training.metric_logging.DiskLogger",
            "log_dir": "output/logs",
        },
        "log_every_n_steps": 1,
        "log_peak_memory_stats": True,
    }
    where = launcher_files.torchrun(run, "").removeprefix("torchrun ").strip() + " " if distributed else ""
    command = f"tune run {where}{recipe} --config {FILE}"
    notes = (f"Download the weights with 'tune download' to {folder}, and name its checkpoint_files.",)
    newer = module == "qwen3" or run.context_parallel > 1
    return Sheet(FILE, keys, command, f"{_FROM_SOURCE if newer else 'torchtune'} torchao", notes=notes)


def _plain_name(run: "Run") -> str:
    """Return the last part of the model's name in the catalogue, in lower case."""
    from finegauge.run.run import figures

    try:
        name = figures(run.model).name
    except FineGaugeError:
        name = run.model
    return name.rpartition("/")[2].lower()


def _builder(run: "Run") -> tuple[str, str]:
    """Return torchtune's module and size of the model.

    Raises: InputError where it has none.
    """
    name = _plain_name(run)
    stem = name.removesuffix("-hf").removesuffix("-instruct").removesuffix("-it").removesuffix("-chat")
    found = _BUILDERS.get(stem)
    if found is None:
        raise InputError(
            f"torchtune has no builder for {run.model}; export to another framework, such as trl."
        )
    module, size = found
    if name.endswith("-instruct") and module == "qwen2_5":
        size = size.replace("_base", "_instruct")
    return module, size


def _tokenizer(run: "Run", module: str, folder: str) -> dict[str, Any]:
    """Return the tokenizer, which cuts samples."""
    family, file = _TOKENIZERS.get(module, (f"{module}.{module}", "tokenizer.model"))
    in_two = {"merges_file": f"{folder}/merges.txt"} if file == "vocab.json" else {}
    component = f"torchtune.models.{family}_tokenizer"
    return {"_component_": component, "path": f"{folder}/{file}", **in_two, "max_seq_len": run.seq_len}


def _checkpointer(module: str, folder: str) -> dict[str, Any]:
    """Return where the weights lie, as Hugging Face has them."""
    kind = _MODEL_TYPES.get(module, module).upper()
    return {
        "_component_": "torchtune.training.FullModelHFCheckpointer",
        "checkpoint_dir": folder,
        "checkpoint_files": [],
        "recipe_checkpoint": None,
        "output_dir": "output",
        "model_type": kind,
    }


def _model(run: "Run", module: str, size: str) -> dict[str, Any]:
    """Return the builder and its adapters."""
    if run.method == "full":
        return {"_component_": f"torchtune.models.{module}.{module}_{size}"}
    quantized = run.method == "qlora"
    prefix = "lora_" if module in _WITHOUT_QLORA else _PREFIX[run.method]
    component = f"torchtune.models.{module}.{prefix}{module}_{size}"
    adapted = targets(run)
    adapted = LINEAR if adapted == ("all-linear",) else adapted
    rest = set(adapted) - {*LINEAR, "lm_head"}
    in_mlp = set(adapted) & set(LINEAR[4:])
    if rest or (in_mlp and len(in_mlp) < 3):
        named = ",".join(sorted(rest or in_mlp))
        raise refuse(NAME, "lora_targets", named, "it adapts the attention's projections and the whole MLP.")
    return {
        "_component_": component,
        "lora_attn_modules": [_NAMES.get(name, name) for name in adapted if name in LINEAR[:4]],
        "apply_lora_to_mlp": bool(in_mlp),
        "apply_lora_to_output": "lm_head" in adapted,
        "lora_rank": run.lora_rank,
        "lora_alpha": whole_number(run.lora_alpha),
        "lora_dropout": run.lora_dropout,
        **({"quantize_base": True} if quantized and prefix == "lora_" else {}),
    }


def _dtype(run: "Run") -> str:
    """Return the one number format of everything that is not quantised."""
    return run.adapter_dtype if run.method == "qlora" else run.weights_dtype


def _dataset(run: "Run") -> dict[str, Any]:
    """Return the data set; packed samples are kept apart."""
    named = dataset_name(run)
    kind = file_kind(named) if named else None
    return without(
        {
            "_component_": "torchtune.datasets.chat_dataset",
            "source": kind or named,
            "data_files": named if kind else None,
            "conversation_column": "messages",
            "conversation_style": "openai",
            "packed": run.packing,
            "split_across_pack": True if run.packing and run.packing_strategy == "wrapped" else None,
            "split": "train",
        }
    )


def _duration(run: "Run") -> dict[str, Any]:
    """Return epochs, and the steps of each: a limit on all of them is divided among whole epochs."""
    epochs = whole_number(run.epochs)
    if run.max_steps is None:
        return {"epochs": epochs, "max_steps_per_epoch": None}
    if run.max_steps % max(1, int(epochs)) or epochs != int(epochs):
        return {"epochs": 1, "max_steps_per_epoch": run.max_steps}
    return {"epochs": epochs, "max_steps_per_epoch": run.max_steps // int(epochs)}


def _optimizer(run: "Run") -> dict[str, Any]:
    """Return the optimizer, in the backward pass where the run has it there."""
    keys: dict[str, Any] = {"_component_": _OPTIMIZERS[run.optimizer]}
    if run.optimizer == "adamw" and run.optimizer_implementation != "in_backward":
        keys["fused"] = run.optimizer_implementation == "fused" and run.tensor_parallel == 1
    return {"optimizer": keys, "optimizer_in_bwd": run.optimizer_implementation == "in_backward"}


def _loss(run: "Run") -> str:
    """Return the class of the loss."""
    if run.loss == "full_logits":
        return "torch.nn.CrossEntropyLoss"
    return "torchtune.modules.loss.CEWithChunkedOutputLoss"


def _distributed(run: "Run") -> dict[str, Any]:
    """Return FSDP and the degrees."""
    replicas = run.data_parallel_replicate
    return without(
        {
            "fsdp_cpu_offload": run.cpu_offload != "none",
            "fsdp_reshard_after_forward": run.sharding not in ("zero1", "zero2", "fsdp_shard_grad_op"),
            "tensor_parallel_dim": run.tensor_parallel,
            "tensor_parallel_plan": {"_component_": _PLAN} if run.tensor_parallel > 1 else None,
            "context_parallel_dim": run.context_parallel if run.context_parallel > 1 else None,
            "data_parallel_shard_dim": run.data_parallel_shard if run.data_parallel_shard > 1 else -1,
            "data_parallel_replicate_dim": replicas if replicas > 1 and run.data_parallel_shard > 1 else None,
        }
    )
