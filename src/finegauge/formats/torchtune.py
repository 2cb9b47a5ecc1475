"""torchtune's recipe YAML (`tune run`): method and model both stand in the name of the model's builder.

What no key says but the framework does (read from torchtune 0.6): weights and adapters in `dtype`,
without autocast; a micro-batch of 2 in every recipe; SDPA; samples padded to the longest, or packed to
max_seq_len and kept apart; a loss in chunks where its class says so. A builder's name does not tell
which repository the weights come from: where the catalogue cannot, `model=` must. Only models that it
builds can be written; its distributed recipes shard by FSDP, and ZeRO becomes the FSDP that shards the same.
"""

import os
import re
from typing import Any

from finegauge.documents import read_text
from finegauge.errors import FieldError, FineGaugeError, InputError, shown
from finegauge.formats import launcher_files, trainer_keys
from finegauge.formats.key_table import NULL, Format, Reading, Row, always, degrees, fixed, key
from finegauge.formats.sheet import (
    LINEAR,
    Sheet,
    dataset_name,
    file_kind,
    mapping_in,
    refuse,
    require,
    targets,
    whole_number,
)
from finegauge.run.field import number, whole
from finegauge.run.run import Run, figures

FILE = "torchtune.yaml"
_BUILDER = re.compile(r"(?:\w+\.)*(?P<family>\w+)\.(?P<method>lora_|qlora_|dora_|qdora_)?(?P<name>\w+)$")
_WHOLE, _CHUNKED = "torch.nn.CrossEntropyLoss", "torchtune.modules.loss.CEWithChunkedOutputLoss"
_SHIPPED = re.compile(
    r"(?P<family>[a-z]\w*)/(?P<size>[\d.]+B|mini)(?:_(?P<kind>full|lora|qlora|dora|qdora))?(?P<dpo>_dpo)?"
    r"(?:_single_device|_multi_node|_distributed|_low_memory)*"
)
_COMPONENT = "model._component_"
_RANKS = ("model.lora_rank", "model.lora_alpha", "model.lora_dropout")
_ADAPTED = ("model.lora_attn_modules", "model.apply_lora_to_mlp", "model.apply_lora_to_output")
_MODEL_NAMES = {"code_llama2": "codellama", "phi3": "phi-3", "phi4": "phi-4"}
_CHECKPOINTING = ("enable_activation_checkpointing", "enable_activation_offloading")
_PROJECTIONS = {"output_proj": "o_proj"}
_MLP = LINEAR[4:]
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
_TENSOR_PLAN = {"_component_": "torchtune.models.llama3.base_llama_tp_plan"}
_FROM_SOURCE = "git+https://github.com/pytorch/torchtune"  # what came after the last release, 0.6.1
_PREFIX = {"full": "", "lora": "lora_", "qlora": "qlora_"}
_DEGREES = {
    "tensor_parallel_dim": "tensor_parallel",
    "context_parallel_dim": "context_parallel",
    "data_parallel_replicate_dim": "data_parallel_replicate",
}


def _class(reading: Reading, key: str) -> str:
    """Return the last part of the dotted name that a component has."""
    return reading.text(key).rpartition(".")[2]


def _read_model(reading: Reading) -> None:
    """Read the model and the method out of the builder's name, whose prefix is lora_, qlora_ or nothing."""
    if "policy_model" in reading.keys:
        raise FieldError(
            f"{reading.file_name} is torchtune's PPO, which is not supported; write a run file of phase ppo."
        )
    if "teacher_model" in reading.keys or "distillation" in reading.text("recipe"):
        raise FieldError(
            f"{reading.file_name} distils a teacher into a student, which is not supported: both models "
            "are held; write a run file of the student for a lower bound."
        )
    if "optimizer" not in reading.keys and {"tasks", "prompt", "enable_kv_cache"} & {*reading.keys}:
        raise FieldError(
            f"{reading.file_name} is a file of torchtune that evaluates or generates, not trains."
        )
    _warn_of_parts(reading)
    component = str(mapping_in(reading.keys, "model").get("_component_", ""))
    parts = _BUILDER.match(component[:200].lower())
    stated = reading.overrides.get(_COMPONENT)
    if stated:
        reading.set("model", stated, _COMPONENT)
    elif parts is None:
        raise FieldError(
            f"model._component_={shown(component)} does not name a builder of torchtune; add model=NAME."
        )
    else:
        size = parts["name"].removeprefix(parts["family"]).strip("_")
        guesses = _catalogue_names(parts["family"], size)
        reading.set_catalogue_model(guesses, _COMPONENT)
    prefix = (parts["method"] or "") if parts else ""
    quantized = prefix.startswith("q") or reading.flag("model.quantize_base")
    method = "full" if not prefix else "qlora" if quantized else "lora"
    reading.set("method", method, _COMPONENT, "model.quantize_base")
    phase = {"dpo": "dpo", "grpo": "grpo", "ppo": "ppo"}.get(reading.text("recipe")[:4].strip("_"), "sft")
    reading.set("phase", "dpo" if "dpo" in _class(reading, "loss._component_") else phase)
    if prefix:
        _read_adapters(reading)
    if reading.text("recipe").startswith("qat") or reading.stated(
        "quantizer.groupsize", "quantizer._component_"
    ):
        reading.warn("Quantisation-aware training is not modelled: the run is taken as without it.")
    if prefix in ("dora_", "qdora_") or (prefix and reading.flag("model.use_dora")):
        reading.set("adapter", "dora", _COMPONENT, "model.use_dora")


def _warn_of_parts(reading: Reading) -> None:
    if "teacher_model" in reading.keys:
        reading.warn("teacher_model is not modelled: its weights and its pass come on top.")
    for part in ("decoder", "encoder"):  # of a model that sees
        kind = reading.text(name := f"model.{part}_trainable")
        if kind and (kind == "frozen") == (part == "decoder"):
            reading.warn(
                f"{name}={shown(kind)} is not modelled: the language model's layers are taken to train."
            )
    if "quantizer" in reading.keys:
        reading.warn("quantizer is not modelled: fake quantisation takes memory and time on top.")


def _catalogue_names(family: str, size: str) -> list[str]:
    """Return what the catalogue may call the model of a builder: llama3_1 and 8b are llama-3.1-8b."""
    name = _MODEL_NAMES.get(family, family.replace("_", "."))
    size, instructed, _ = size.replace("_", ".").partition(".instruct")
    name, vision = name.removesuffix(".vision"), "-vision" if name.endswith(".vision") else ""
    if "." not in size[:2]:
        size = size.removesuffix(".base").removesuffix(".reward").replace(".", "-")
    dashed = re.sub(r"^([a-z]+)(\d)", r"\1-\2", name)
    endings = ("-instruct", "") if instructed else ("", "-instruct")
    guesses = [f"{stem}-{size}{vision}{ending}" for ending in endings for stem in (name, dashed)]
    return [*guesses, name, dashed]


def _read_adapters(reading: Reading) -> None:
    trainer_keys.read_ranks(reading, _RANKS, (8, 16, 0.0))
    stated = reading.get(_ADAPTED[0], ("q_proj", "v_proj"))
    stated = stated if isinstance(stated, list | tuple) else str(stated).split(",")
    adapted = [_PROJECTIONS.get(str(name), str(name)) for name in stated]
    adapted += _MLP if reading.flag(_ADAPTED[1]) else ()
    adapted += ["lm_head"] if reading.flag(_ADAPTED[2]) else []
    reading.set("lora_targets", adapted, *_ADAPTED[:2])


def _model(run: Run) -> dict[str, Any]:
    """Return the builder and its adapters."""
    module, size = _builder(run)
    if run.method == "full":
        return {_COMPONENT: f"torchtune.models.{module}.{module}_{size}"}
    prefix = "lora_" if module in _WITHOUT_QLORA else _PREFIX[run.method]
    adapted = targets(run)
    adapted = LINEAR if adapted == ("all-linear",) else adapted
    rest = set(adapted) - {*LINEAR, "lm_head"}
    in_mlp = set(adapted) & set(_MLP)
    if rest or (in_mlp and len(in_mlp) < len(_MLP)):
        named = ",".join(sorted(rest or in_mlp))
        instead = "it adapts the attention's projections and the whole MLP."
        raise refuse(FORMAT.name, "lora_targets", named, instead)
    theirs = {ours: name for name, ours in _PROJECTIONS.items()}
    return {
        _COMPONENT: f"torchtune.models.{module}.{prefix}{module}_{size}",
        "model.lora_attn_modules": [theirs.get(name, name) for name in adapted if name in LINEAR[:4]],
        "model.apply_lora_to_mlp": bool(in_mlp),
        "model.apply_lora_to_output": "lm_head" in adapted,
        **dict(zip(_RANKS, trainer_keys.ranks(run), strict=True)),
        "model.quantize_base": True if run.method == "qlora" and prefix == "lora_" else None,
        "save_adapter_weights_only": False,
    }


def _builder(run: Run) -> tuple[str, str]:
    """Return torchtune's module and size of the model; raise InputError where it has none."""
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


def _plain_name(run: Run) -> str:
    """Return the last part of the model's name in the catalogue, in lower case."""
    try:
        name = figures(run.model).name
    except FineGaugeError:
        name = run.model
    return name.rpartition("/")[2].lower()


def _files(run: Run) -> dict[str, Any]:
    """Return the tokenizer, which cuts samples, and where the weights lie, as Hugging Face has them."""
    module, folder = _builder(run)[0], f"models/{_plain_name(run)}"
    family, file = _TOKENIZERS.get(module, (f"{module}.{module}", "tokenizer.model"))
    return {
        "tokenizer._component_": f"torchtune.models.{family}_tokenizer",
        "tokenizer.path": f"{folder}/{file}",
        "tokenizer.merges_file": f"{folder}/merges.txt" if file == "vocab.json" else None,
        "checkpointer": {
            "_component_": "torchtune.training.FullModelHFCheckpointer",
            "checkpoint_dir": folder,
            "checkpoint_files": [],
            "recipe_checkpoint": None,
            "output_dir": "output",
            "model_type": _MODEL_TYPES.get(module, module).upper(),
        },
        "resume_from_checkpoint": False,
    }


def _read_precision(reading: Reading) -> None:
    """Read the one number format of weights, adapters and arithmetic."""
    dtype, method = reading.get("dtype", "bf16"), reading.fields["method"]
    reading.set("weights_dtype", "nf4_dq" if method == "qlora" else dtype, "dtype")
    reading.set("autocast", "none", "dtype")
    if method != "full":
        reading.set("adapter_dtype", dtype, "dtype")


def _read_duration(reading: Reading) -> None:
    """Read the epochs, and the optimizer steps of all of them where an epoch's are limited."""
    reading.take("epochs", "epochs", 1)
    limit = reading.get("max_steps_per_epoch")
    if limit not in (None, -1, "null", "-1"):
        epochs = number(1e-6, 1e6)("epochs", reading.get("epochs", 1))
        steps = whole(1, 10**9)("max_steps_per_epoch", limit) * epochs
        reading.set("max_steps", max(1, int(steps)), "max_steps_per_epoch")


def _duration(run: Run) -> dict[str, Any]:
    """Return epochs, and the steps of each: a limit on all of them is divided among whole epochs."""
    epochs = whole_number(run.epochs)
    if run.max_steps is None:
        return {"epochs": epochs, "max_steps_per_epoch": NULL}
    if run.max_steps % max(1, int(epochs)) or epochs != int(epochs):
        return {"epochs": 1, "max_steps_per_epoch": run.max_steps}
    return {"epochs": epochs, "max_steps_per_epoch": run.max_steps // int(epochs)}


def _read_checkpointing(reading: Reading) -> None:
    full, offload = map(reading.flag, _CHECKPOINTING)
    if offload and not full:
        reading.warn(f"{_CHECKPOINTING[1]} has no effect without {_CHECKPOINTING[0]}.")
    kind = "offload" if full and offload else "full" if full else "none"
    reading.set("activation_checkpointing", kind, *_CHECKPOINTING)
    if reading.text("ac_mode") == "selective":  # stands over both
        from finegauge.formats.torchtitan import read_selective

        read_selective(reading, "ac_mode", "ac_option")


def _read_fp8(reading: Reading) -> None:
    if reading.flag("enable_fp8_training"):
        reading.set("fp8", True, "enable_fp8_training")
        reading.take("fp8_recipe", "fp8_recipe_name", "tensorwise")


def _checkpointing(run: Run) -> dict[str, Any]:
    kind = run.activation_checkpointing
    return dict(zip(_CHECKPOINTING, (kind != "none", kind == "offload"), strict=True))


def _read_compile(reading: Reading) -> None:
    """Read whether the model is compiled: a flag, or one for each part."""
    parts = reading.get("compile")
    compiles = parts.get("model", False) if isinstance(parts, dict) else reading.flag("compile")
    reading.set("compile", compiles, "compile")


def _read_loss(reading: Reading) -> None:
    loss = _class(reading, "loss._component_")
    chunked = "linearcrossentropy" in loss or "chunked" in loss
    reading.set("loss", "chunked" if chunked else "full_logits", "loss._component_")


def _read_optimizer(reading: Reading) -> None:
    trainer_keys.read_optimizer(reading, "optimizer._component_", "adamw")
    if reading.flag("optimizer_in_bwd"):
        reading.set("optimizer_implementation", "in_backward", "optimizer_in_bwd")
    else:
        fused = reading.flag("optimizer.fused")
        reading.set("optimizer_implementation", "fused" if fused else "foreach", "optimizer.fused")


def _optimizer(run: Run) -> dict[str, Any]:
    in_backward = run.optimizer_implementation == "in_backward"
    fused = run.optimizer_implementation == "fused" and run.tensor_parallel == 1
    return {
        "optimizer._component_": trainer_keys.optimizer_class(run, FORMAT.name),
        "optimizer.fused": fused if run.optimizer == "adamw" and not in_backward else None,
        "optimizer_in_bwd": in_backward,
    }


def _read_data(reading: Reading) -> None:
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
    source = str(reading.get("dataset.source") or "")
    if source in ("json", "csv", "parquet"):
        source = str(reading.get("dataset.data_files", source))
    source = source or _class(reading, "dataset._component_").removesuffix("_dataset")
    trainer_keys.read_dataset(
        reading,
        [source] if source else (),
        *("dataset.source", "dataset._component_", "dataset.split"),
        split=str(reading.get("dataset.split", "")),
    )


def _data(run: Run) -> dict[str, Any]:
    """Return the data set; packed samples are kept apart."""
    named = dataset_name(run)
    kind = file_kind(named) if named else None
    return {
        "tokenizer.max_seq_len": run.seq_len,
        "dataset._component_": "torchtune.datasets.chat_dataset",
        "dataset.source": kind or named,
        "dataset.data_files": named if kind else None,
        "dataset.conversation_column": "messages",
        "dataset.conversation_style": "openai",
        "dataset.packed": run.packing,
        "dataset.split_across_pack": True if run.packing and run.packing_strategy == "wrapped" else None,
        "dataset.split": "train",
    }


def _in_comments(reading: Reading) -> str:
    """Return the `tune run` of a distributed recipe that the comments of the file show; "" for none."""
    if not os.path.isfile(reading.file):
        return ""
    comments = " ".join(re.findall(r"^\s*#(.*)", read_text(reading.file), re.MULTILINE))[:20_000]
    shown_runs = re.findall(r"tune run\b[^#]{0,80}?\s\w+_(?:distributed|fsdp2|single_device)\b", comments)
    return shown_runs[0] if shown_runs else ""


def _read_sharding(reading: Reading) -> None:
    """Read FSDP; a recipe is distributed if its keys say so, else its name and launcher."""
    shard = reading.get("data_parallel_shard_dim", -1)
    distributed = "distributed" in reading.text("recipe") or reading.stated(
        "fsdp_cpu_offload", "custom_sharded_layers", "tensor_parallel_dim", "data_parallel_shard_dim"
    )
    fields = reading.fields  # of the whole model there is no other recipe for pairs
    distributed |= fields.get("phase") == "dpo" and fields.get("method") == "full"
    if reading.text("device", "cuda") not in ("cuda", "xpu", "npu"):
        device = shown(reading.text("device"))
        raise FieldError(f"device={device} trains on no GPU, which is not predicted; use device=cuda.")
    if str(shard) not in ("-1", "1"):
        reading.set("data_parallel_shard", shard, "data_parallel_shard_dim")
    told = "" if reading.launched_gpus or reading.stated("recipe") else _in_comments(reading)
    if told and "single_device" not in told:
        distributed, gpus = True, re.search(r"nproc[-_]per[-_]node[ =]+(\d{1,4})", told)
        reading.set("num_gpus", int(gpus[1]) if gpus else None)
        reading.warn(f"Its comments start it by {shown(told)}; add num_gpus=8 for eight.")
    if not distributed and (reading.launched_gpus or 1) == 1:
        reading.set("num_gpus", 1)
        return
    stays = not reading.flag("fsdp_reshard_after_forward", default=True)
    kind = "fsdp_shard_grad_op" if stays else "fsdp"
    kind = "hybrid" if "data_parallel_replicate" in reading.fields else kind
    reading.set("sharding", kind, "data_parallel_shard_dim", "fsdp_reshard_after_forward")
    offload = "params" if reading.flag("fsdp_cpu_offload") else "none"
    reading.set("cpu_offload", offload, "fsdp_cpu_offload")


def _is_distributed(run: Run) -> bool:
    return run.num_gpus > 1 or run.sharding != "none"


def _sharding(run: Run) -> dict[str, Any]:
    if not _is_distributed(run):
        return {}
    replicas, shards = run.data_parallel_replicate, run.data_parallel_shard
    return {
        "fsdp_cpu_offload": run.cpu_offload != "none",
        "fsdp_reshard_after_forward": run.sharding not in ("zero1", "zero2", "fsdp_shard_grad_op"),
        "tensor_parallel_dim": run.tensor_parallel,
        "tensor_parallel_plan": _TENSOR_PLAN if run.tensor_parallel > 1 else None,
        "context_parallel_dim": run.context_parallel if run.context_parallel > 1 else None,
        "data_parallel_shard_dim": shards if shards > 1 else -1,
        "data_parallel_replicate_dim": replicas if replicas > 1 and shards > 1 else None,
    }


FORMAT = Format(
    "torchtune",
    (
        always(output_dir="output"),
        Row(
            f"{_COMPONENT} {' '.join((*_RANKS, *_ADAPTED))} model.use_dora model.quantize_base",
            _read_model,
            _model,
        ),
        Row("", write=_files),
        Row(
            "dtype",
            _read_precision,
            lambda run: {"dtype": run.adapter_dtype if run.method == "qlora" else run.weights_dtype},
        ),
        key("batch_size", "micro_batch_size", 2),
        key("gradient_accumulation_steps", "gradient_accumulation_steps", 1),
        Row("epochs max_steps_per_epoch", _read_duration, _duration),
        Row(f"{' '.join(_CHECKPOINTING)} ac_mode ac_option", _read_checkpointing, _checkpointing),
        Row("enable_fp8_training fp8_recipe_name", _read_fp8),
        fixed(checkpointing_reentrant=False),
        Row(
            "loss._component_",
            _read_loss,
            lambda run: {"loss._component_": _WHOLE if run.loss == "full_logits" else _CHUNKED},
        ),
        key("compile", "compile", False, read=_read_compile),
        Row("optimizer._component_ optimizer.fused optimizer_in_bwd", _read_optimizer, _optimizer),
        fixed(attention="sdpa", over_length="truncate", pad_to_multiple_of=1),
        Row(
            "tokenizer.max_seq_len dataset._component_ dataset.packed dataset.source dataset.data_files "
            "dataset.split",
            _read_data,
            _data,
        ),
        degrees(_DEGREES)._replace(write=None),
        Row("fsdp_cpu_offload fsdp_reshard_after_forward data_parallel_shard_dim", _read_sharding, _sharding),
        always(
            seed=42,
            shuffle=True,
            clip_grad_norm=NULL,
            lr_scheduler={
                "_component_": "torchtune.training.lr_schedulers.get_cosine_schedule_with_warmup",
                "num_warmup_steps": 100,
            },
            device="cuda",
            metric_logger={
                "_component_": "torchtune.training.metric_logging.DiskLogger",
                "log_dir": "output/logs",
            },
            log_every_n_steps=1,
            log_peak_memory_stats=True,
        ),
    ),
    model_key=_COMPONENT,
    lasting={
        "learning_rate": "optimizer.lr",
        "weight_decay": "optimizer.weight_decay",
        "max_grad_norm": "clip_grad_norm",
        "seed": "seed",
        "output_dir": "output_dir",
    },
    data_keys=("dataset.source", "dataset.data_files", "dataset._component_"),
)


def shipped(recipe: str, config: str) -> dict[str, Any]:
    """Return what torchtune's own file of that name holds, such as llama3_1/8B_lora_single_device.

    What a file of 0.6.1 says otherwise than most stands in data/torchtune_recipes.json; one that is newer is
    taken as most are.

    Raises: FieldError for a name of another shape.
    """
    import json

    found = _SHIPPED.fullmatch(config)
    with open(os.path.join(os.path.dirname(__file__), "data", "torchtune_recipes.json"), "rb") as file:
        differs = json.load(file).get(config)
    if differs is not None and found is None:
        found = _SHIPPED.match(config)
    if found is None:
        raise FieldError(
            f"{shown(config or recipe)} is no file that is here, nor one that torchtune ships; name the file."
        )
    kind, module = (found["kind"] or "full"), found["family"]
    size = found["size"].lower().replace(".", "_")
    prefix = "" if kind == "full" else f"{kind}_"
    single, adapts = "single_device" in config, kind != "full"
    model: dict[str, Any] = {"_component_": f"torchtune.models.{module}.{prefix}{module}_{size}"}
    if adapts:
        model |= {"lora_attn_modules": ["q_proj", "v_proj", "output_proj"], "apply_lora_to_mlp": True}
        model |= {"lora_rank": 8, "lora_alpha": 16}
    eight_bit = single and not adapts
    optimizer = "bitsandbytes.optim.PagedAdamW8bit" if eight_bit else "torch.optim.AdamW"
    usual: dict[str, Any] = {
        "model": model,
        "tokenizer": {"max_seq_len": None},
        "dataset": {"_component_": "torchtune.datasets.alpaca_cleaned_dataset", "packed": False},
        "batch_size": 2,
        "gradient_accumulation_steps": 8 if adapts else 1,
        "epochs": 1,
        "optimizer": {"_component_": optimizer} | ({} if eight_bit else {"fused": True}),
        "optimizer_in_bwd": eight_bit,
        "loss": {"_component_": "torchtune.rlhf.loss.DPOLoss" if found["dpo"] else _CHUNKED},
        "enable_activation_checkpointing": True,
        "dtype": "bf16",
    }
    for path, value in (differs or {}).items():
        section, dot, name = path.rpartition(".")
        place = usual.setdefault(section, {}) if dot else usual
        place[name] = value
    return usual


def sheet(run: Run) -> Sheet:
    """Return the recipe's file of torchtune for `run`.

    Raises: InputError for a model, a phase or a method that it does not have.
    """
    instead = "its recipes here are full, LoRA and QLoRA fine-tuning."
    require(run, FORMAT.name, instead, phase=("sft",), method=_PREFIX)
    module, _ = _builder(run)
    if run.tensor_parallel > 1 and (run.method != "full" or not module.startswith("llama3")):
        instead = "it divides Llama 3 in full fine-tuning only."
        raise refuse(FORMAT.name, "tensor_parallel", run.tensor_parallel, instead)
    distributed = _is_distributed(run)
    recipe = "full_finetune" if run.method == "full" else "lora_finetune"
    recipe += "_distributed" if distributed else "_single_device"
    where = f"{launcher_files.torchrun_words(run)} " if distributed else ""
    command = f"tune run {where}{recipe} --config {FILE}"
    folder = f"models/{_plain_name(run)}"
    notes = (f"Download the weights with 'tune download' to {folder}, and name its checkpoint_files.",)
    newer = module == "qwen3" or run.context_parallel > 1
    packages = f"{_FROM_SOURCE if newer else 'torchtune'} torchao"
    return Sheet(FILE, FORMAT.written(run), command, packages, notes=notes)
