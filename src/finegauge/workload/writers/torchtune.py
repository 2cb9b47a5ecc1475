"""torchtune's recipe YAML (`tune run`): the reverse of `readers.torchtune`.

Method and model stand in the name of a builder, so only models that torchtune 0.6 builds can be
said. Its distributed recipes shard by FSDP; ZeRO becomes the FSDP that shards the same.
"""

from typing import TYPE_CHECKING, Any

from finegauge.errors import FineGaugeError, InputError
from finegauge.workload.writers import launcher
from finegauge.workload.writers.sheet import (
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
    from finegauge.workload.run import Run

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
    where = launcher.torchrun(run, "").removeprefix("torchrun ").strip() + " " if distributed else ""
    command = f"tune run {where}{recipe} --config {FILE}"
    notes = (f"Download the weights with 'tune download' to {folder}, and name its checkpoint_files.",)
    newer = module == "qwen3" or run.context_parallel > 1
    return Sheet(FILE, keys, command, f"{_FROM_SOURCE if newer else 'torchtune'} torchao", notes=notes)


def _plain_name(run: "Run") -> str:
    """Return the last part of the model's name in the catalogue, in lower case."""
    from finegauge.workload.run import figures

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
