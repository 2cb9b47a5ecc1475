"""NeMo Automodel's YAML, hidden defaults included.

What no key says but the framework does (read from NeMo Automodel's recipes, 2026): a model loaded in
bf16 and trained in it without autocast; adapters in the same; FSDP2 over what the other degrees leave
of the GPUs; micro-batches of 1; no packing (packed_sequence_size 0) and padding to the longest; the
whole logits unless the loss is a fused or chunked one. The accumulation follows from
global_batch_size and the GPUs: `--gpus 8`, or num_gpus=8, as --nproc-per-node is the launcher's.
"""

from collections.abc import Collection
from fnmatch import fnmatchcase
from math import prod
from typing import TYPE_CHECKING, Any

from finegauge.errors import FieldError, shown
from finegauge.formats import launcher_files, trainer_keys
from finegauge.formats.framework import Framework, Reading
from finegauge.formats.sheet import Sheet, dataset_name, refuse, repository, targets, whole_number, without
from finegauge.run.field import names, whole

if TYPE_CHECKING:
    from finegauge.run.run import Run

_DEGREES = {
    "distributed.tp_size": "tensor_parallel",
    "distributed.pp_size": "pipeline_parallel",
    "distributed.cp_size": "context_parallel",
    "distributed.ep_size": "expert_parallel",
    "distributed.dp_replicate_size": "data_parallel_replicate",
}
_KEYS = """
model.pretrained_model_name_or_path model.config model.torch_dtype model.attn_implementation
model.backend model.use_liger_kernel model.num_labels
step_scheduler.global_batch_size step_scheduler.local_batch_size step_scheduler.num_epochs
step_scheduler.max_steps peft._target_ peft.target_modules peft.match_all_linear peft.dim peft.alpha
peft.dropout peft.use_dora peft.exclude_modules distributed._target_ distributed.strategy
distributed.dp_size distributed.activation_checkpointing distributed.sequence_parallel
distributed.cpu_offload distributed.defer_fsdp_grad_sync loss_fn._target_ dataset.path_or_dataset_id
dataset.path_or_dataset dataset.dataset_name dataset.seq_length dataset.max_seq_length
dataset.limit_dataset_samples dataset.num_samples_limit packed_sequence.packed_sequence_size
packed_sequence.split_across_pack
optimizer._target_ compile.enabled quantization.load_in_4bit quantization.load_in_8bit
quantization.bnb_4bit_use_double_quant quantization.bnb_4bit_quant_type fp8.enabled
"""
KEYS = frozenset((*_KEYS.split(), *_DEGREES))
_KNOWN = """
recipe seed rng.* dist_env.* checkpoint.* lr_scheduler.* dataloader.* validation_dataset.*
validation_dataloader.* tokenizer.* wandb.* mlflow.* comet.* ci.* model.* dataset.* optimizer.* loss_fn.*
compile.* quantization.* fp8.* qat.* freeze_config.* benchmark.* profiling.* nvtx parallelizer.*
teacher_model.* kd_ratio autopipeline.* slurm.* clip_grad_norm.* processor.* moe_metrics.* auto_mp
step_scheduler.ckpt_every_steps step_scheduler.val_every_steps step_scheduler.gc_every_steps
step_scheduler.save_checkpoint_every_epoch step_scheduler.log_remote_every_steps
peft.use_triton peft.dropout_position peft.lora_A_init peft.lora_dtype peft.moe_rank_scaling
peft.use_memory_efficient_lora distributed.moe distributed.mp_policy distributed.backend
distributed.world_size distributed.offload_policy distributed.tp_plan distributed.use_hf_tp_plan
distributed.enable_fsdp2_prefetch distributed.pipeline distributed.enable_async_tensor_parallel
packed_sequence.max_packs packed_sequence.packing_strategy
"""
_STRATEGIES = {"fsdp2": "fsdp", "fsdp": "fsdp", "megatron_fsdp": "fsdp", "nvfsdp": "fsdp", "ddp": "none"}
_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def state(reading: Reading) -> None:
    """State the fields of a NeMo Automodel file."""
    model = reading.get("model.pretrained_model_name_or_path") or reading.get(
        "model.config.pretrained_model_name_or_path"
    )
    reading.set("model", model, "model.pretrained_model_name_or_path", "model.config")
    reading.need_model()
    reading.set("phase", "sft")
    _read_method(reading)
    _read_precision(reading)
    _read_implementation(reading)
    _read_batching(reading)
    _read_degrees(reading)
    _read_batch(reading)


def known_keys() -> Collection[str]:
    """Return the keys that NeMo Automodel knows and nothing here depends on."""
    return _KNOWN.split()


def _read_method(reading: Reading) -> None:
    """Read whether adapters train, and which."""
    four, eight = reading.flag("quantization.load_in_4bit"), reading.flag("quantization.load_in_8bit")
    if not reading.stated("peft"):
        if four or eight:
            raise FieldError("quantization is stated, but no peft: only adapters train on quantised weights.")
        reading.set("method", "full", "peft")
        return
    quantized = ("quantization.load_in_4bit", "quantization.load_in_8bit")
    reading.set("method", "qlora" if four or eight else "lora", "peft", *quantized)
    reading.direct(
        {
            "peft.dim": ("lora_rank", 8),
            "peft.alpha": ("lora_alpha", 32),
            "peft.dropout": ("lora_dropout", 0.0),
        }
    )
    targets = _targets(reading.get("peft.target_modules"))
    if reading.flag("peft.match_all_linear") or not targets:
        targets = ["all-linear"]
    reading.set("lora_targets", targets, "peft.target_modules", "peft.match_all_linear")
    reading.not_modelled("peft.use_dora")


def _targets(patterns: Any) -> list[str]:
    """Return the layers that patterns such as "*_proj" name."""
    targets: list[str] = []
    for pattern in names("peft.target_modules", patterns or ()):
        last = pattern.rpartition(".")[2]
        targets += [name for name in _LINEAR if fnmatchcase(name, last[:100])] or [last.strip("*")]
    return [name for name in dict.fromkeys(targets) if name]


def _read_precision(reading: Reading) -> None:
    """Read the number formats of weights, adapters and arithmetic."""
    stated = reading.text("model.torch_dtype", "bfloat16").removeprefix("torch.")
    dtype = reading.checkpoint_dtype() if stated == "auto" else stated
    keys = ("model.torch_dtype",)
    if reading.fields["method"] == "qlora":
        double = reading.flag("quantization.bnb_4bit_use_double_quant")
        four = "nf4_dq" if double else "nf4"
        weights = four if reading.flag("quantization.load_in_4bit") else "int8"
        reading.set("weights_dtype", weights, "quantization.load_in_4bit", "quantization.load_in_8bit")
    else:
        reading.set("weights_dtype", dtype, *keys)
    if reading.fields["method"] != "full":
        reading.set("adapter_dtype", dtype, *keys)
    reading.set("autocast", "none")
    reading.not_modelled("fp8.enabled")


def _read_implementation(reading: Reading) -> None:
    """Read checkpointing, attention, loss, optimizer and compilation."""
    recomputes = reading.flag("distributed.activation_checkpointing")
    checkpointing = "full" if recomputes else "none"
    reading.set("activation_checkpointing", checkpointing, "distributed.activation_checkpointing")
    reading.set("checkpointing_reentrant", False)
    backend = reading.text("model.backend.attn")
    if reading.stated("model.attn_implementation") or not backend:
        trainer_keys.read_attention(reading, "model.attn_implementation")
    else:
        reading.set("attention", "sdpa" if backend in ("sdpa", "eager") else "flash", "model.backend")
    liger = reading.flag("model.use_liger_kernel")
    reading.set("kernels", ["liger"] if liger else [], "model.use_liger_kernel")
    loss = reading.text("loss_fn._target_").rpartition(".")[2]
    kind = "fused" if "linear" in loss else "chunked" if "chunked" in loss else "full_logits"
    reading.set("loss", kind, "loss_fn._target_")
    trainer_keys.read_optimizer(reading, "optimizer._target_", "adamw")
    reading.set("compile", reading.flag("compile.enabled"), "compile.enabled")


def _read_batching(reading: Reading) -> None:
    """Read the data set, packing and padding."""
    packed = whole(0, 10**8)("packed_sequence_size", reading.get("packed_sequence.packed_sequence_size", 0))
    key = "packed_sequence.packed_sequence_size"
    reading.set("packing", packed > 0, key)
    reading.set("padding", "free" if packed else "longest", key)
    across = "packed_sequence.split_across_pack"
    reading.set("packing_strategy", "wrapped" if packed and reading.flag(across) else "first_fit", across)
    lengths = ("dataset.seq_length", "dataset.max_seq_length")
    length = packed or next((reading.get(name) for name in lengths if reading.stated(name)), None)
    reading.set("seq_len", length, key, *lengths)
    if length is None:
        reading.warn("Nothing states where samples are cut: state seq_len=… of the longest sample.")
    reading.set("pad_to_multiple_of", 1)
    sources = ("dataset.path_or_dataset_id", "dataset.path_or_dataset", "dataset.dataset_name")
    source = next((reading.get(name) for name in sources if reading.stated(name)), None)
    limits = ("dataset.limit_dataset_samples", "dataset.num_samples_limit")
    limit = next((reading.get(name) for name in limits if reading.stated(name)), None)
    trainer_keys.read_dataset(reading, source, *sources, *limits, num_samples=limit)


def _read_degrees(reading: Reading) -> None:
    """Read the degrees of parallelism and the strategy; "none" leaves a degree open."""
    for key, field in _DEGREES.items():
        if str(reading.get(key)).lower() not in ("none", "null", "1", "0"):
            reading.set(field, reading.get(key), key)
    strategy = reading.text("distributed.strategy") or reading.text("distributed._target_", "fsdp2")
    strategy = strategy.rpartition(".")[2].removesuffix("manager").removesuffix("config")
    if strategy not in _STRATEGIES:
        raise FieldError(
            f"distributed.strategy={shown(strategy)} is unknown; use fsdp2, megatron_fsdp or ddp."
        )
    kind = _STRATEGIES[strategy]
    kind = "hybrid" if kind == "fsdp" and "data_parallel_replicate" in reading.fields else kind
    reading.set("sharding", kind, "distributed.strategy", "distributed._target_")
    if reading.flag("distributed.sequence_parallel") and "tensor_parallel" in reading.fields:
        reading.set("sequence_parallel", True, "distributed.sequence_parallel")
    if reading.flag("distributed.cpu_offload"):
        reading.set("cpu_offload", "params", "distributed.cpu_offload")


def _read_batch(reading: Reading) -> None:
    """Read the micro-batch, the accumulation and the duration."""
    reading.direct(
        {
            "step_scheduler.local_batch_size": ("micro_batch_size", 1),
            "step_scheduler.num_epochs": ("epochs", 1.0),
            "step_scheduler.max_steps": ("max_steps", None),
        }
    )
    size = reading.get("distributed.dp_size")
    ranks: int | None = None if str(size).lower() in ("none", "null") else whole(1, 10**6)("dp_size", size)
    if reading.launched_gpus is not None:
        degrees = ("tensor_parallel", "pipeline_parallel", "context_parallel")
        taken = prod(whole(1, 10**6)(name, reading.fields.get(name, 1)) for name in degrees)
        ranks = max(1, reading.launched_gpus // taken)
    elif ranks is not None:
        field = "data_parallel_shard" if reading.fields["sharding"] != "none" else "data_parallel_replicate"
        reading.set(field, ranks, "distributed.dp_size")
    batch = reading.get("step_scheduler.global_batch_size")
    if batch is not None:
        reading.set_accumulation(batch, "step_scheduler.global_batch_size", data_parallel=ranks)


FORMAT = Framework("NeMo Automodel", KEYS, "model.pretrained_model_name_or_path", state, known_keys)

NAME = "NeMo Automodel"
FILE = "nemo_automodel.yaml"
_LOSSES = {
    "full_logits": "masked_ce.MaskedCrossEntropy",
    "chunked": "chunked_ce.ChunkedCrossEntropy",
    "fused": "linear_ce.FusedLinearCrossEntropy",
}
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


def sheet(run: "Run") -> Sheet:
    """Return the file of NeMo Automodel for `run`.

    Raises: InputError for a phase or a method that its recipe for fine-tuning does not have.
    """
    if run.phase != "sft" or run.method not in ("full", "lora", "qlora"):
        field = "phase" if run.phase != "sft" else "method"
        raise refuse(NAME, field, getattr(run, field), "its recipe fine-tunes, whole or by LoRA.")
    keys = {
        "recipe": "TrainFinetuneRecipeForNextTokenPrediction",
        "step_scheduler": without(
            {
                "global_batch_size": run.global_batch_size,
                "local_batch_size": run.micro_batch_size,
                "num_epochs": whole_number(run.epochs),
                "max_steps": run.max_steps,
            }
        ),
        "dist_env": {"backend": "nccl"},
        "model": _model(run),
        "compile": {"enabled": True} if run.compile else None,
        "quantization": _quantization(run),
        "peft": _peft(run),
        "distributed": _distributed(run),
        "loss_fn": {"_target_": f"nemo_automodel.components.loss.{_LOSSES[run.loss]}"},
        "dataset": _dataset(run),
        "packed_sequence": without(
            {
                "packed_sequence_size": run.seq_len if run.packing else 0,
                "split_across_pack": True if run.packing and run.packing_strategy == "wrapped" else None,
            }
        ),
        "optimizer": {"_target_": _OPTIMIZERS[run.optimizer]},
    }
    where = f"--nproc-per-node {launcher_files.per_node(run)}"
    command = f"automodel {FILE} {where}"
    if run.num_nodes > 1:
        command = launcher_files.torchrun(run, f"-m nemo_automodel.cli.app {FILE}")
    return Sheet(FILE, without(keys), command, "nemo-automodel")


def _model(run: "Run") -> dict[str, Any]:
    """Return the model, the format of its weights and its kernels."""
    low = run.adapter_dtype if run.method == "qlora" else run.weights_dtype
    return without(
        {
            "_target_": "nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained",
            "pretrained_model_name_or_path": repository(run),
            "torch_dtype": trainer_keys.DTYPES.get(low, low),
            "attn_implementation": trainer_keys.ATTENTION[run.attention],
            "use_liger_kernel": "liger" in run.kernels,
        }
    )


def _quantization(run: "Run") -> dict[str, Any] | None:
    """Return how the frozen weights are quantised."""
    if run.method != "qlora":
        return None
    if run.weights_dtype == "int8":
        return {"load_in_8bit": True}
    double = run.weights_dtype == "nf4_dq"
    return {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": double}


def _peft(run: "Run") -> dict[str, Any] | None:
    """Return the adapters."""
    if run.method == "full":
        return None
    adapted = targets(run)
    everything = adapted == ("all-linear",)
    return without(
        {
            "_target_": "nemo_automodel.components._peft.lora.PeftConfig",
            "match_all_linear": True if everything else None,
            "target_modules": None if everything else [f"*.{name}" for name in adapted],
            "dim": run.lora_rank,
            "alpha": whole_number(run.lora_alpha),
            "dropout": run.lora_dropout,
        }
    )


def _distributed(run: "Run") -> dict[str, Any]:
    """Return the strategy, the degrees and checkpointing; DDP goes with no other division of the model."""
    whole = launcher_files.degrees_beyond_data(run) == 1
    return {
        "strategy": "ddp" if run.sharding == "none" and whole else "fsdp2",
        "dp_size": "none",
        "dp_replicate_size": run.data_parallel_replicate if run.sharding != "none" else 1,
        "tp_size": run.tensor_parallel,
        "pp_size": run.pipeline_parallel,
        "cp_size": run.context_parallel,
        "ep_size": run.expert_parallel,
        "sequence_parallel": run.sequence_parallel,
        "cpu_offload": run.cpu_offload != "none",
        "activation_checkpointing": run.activation_checkpointing != "none",
    }


def _dataset(run: "Run") -> dict[str, Any]:
    """Return the data set and where its samples are cut."""
    named = dataset_name(run)
    return without(
        {
            "_target_": "nemo_automodel.components.datasets.llm.chat_dataset.ChatDataset",
            "path_or_dataset_id": named,
            "seq_length": run.seq_len,
            "limit_dataset_samples": run.num_samples if named else None,
        }
    )
