"""NeMo Automodel's YAML, hidden defaults included.

What no key says but the framework does (read from NeMo Automodel's recipes, 2026): a model loaded in
bf16 and trained in it without autocast; adapters in the same; FSDP2 over what the other degrees leave
of the GPUs; micro-batches of 1; no packing (packed_sequence_size 0) and padding to the longest; the
whole logits unless the loss is a fused or chunked one. The accumulation follows from
global_batch_size and the GPUs: `--gpus 8`, or num_gpus=8, as --nproc-per-node is the launcher's.
"""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from finegauge.errors import FieldError, shown
from finegauge.formats import launcher_files, trainer_keys
from finegauge.formats.key_table import (
    Format,
    Reading,
    Row,
    always,
    fixed,
    key,
    model_key,
    read_degrees,
    switch,
)
from finegauge.formats.sheet import (
    LINEAR,
    Sheet,
    dataset_name,
    mapping_in,
    repository,
    require,
    targets,
    whole_number,
)
from finegauge.run.field import names, whole
from finegauge.run.run import Run

FILE = "nemo_automodel.yaml"
_MODEL = "model.pretrained_model_name_or_path"
_DEGREES = {
    "distributed.tp_size": "tensor_parallel",
    "distributed.pp_size": "pipeline_parallel",
    "distributed.cp_size": "context_parallel",
    "distributed.ep_size": "expert_parallel",
    "distributed.dp_replicate_size": "data_parallel_replicate",
}
_STRATEGIES = {**dict.fromkeys(("fsdp2", "fsdp", "megatron_fsdp", "nvfsdp"), "fsdp"), "ddp": "none"}
_QUANTIZED = ("quantization.load_in_4bit", "quantization.load_in_8bit")
_RANKS = ("peft.dim", "peft.alpha", "peft.dropout")
_PACK, _ACROSS = "packed_sequence.packed_sequence_size", "packed_sequence.split_across_pack"
_LENGTHS = ("dataset.seq_length", "dataset.max_seq_length", "dataset.seq_len")
_SOURCES = ("dataset.path_or_dataset_id", "dataset.path_or_dataset", "dataset.dataset_name")
_LIMITS = ("dataset.limit_dataset_samples", "dataset.num_samples_limit")
_STRATEGY = ("distributed.strategy", "distributed._target_")
_LOSSES = {
    "full_logits": "masked_ce.MaskedCrossEntropy",
    "chunked": "chunked_ce.ChunkedCrossEntropy",
    "fused": "linear_ce.FusedLinearCrossEntropy",
}


def _read_method(reading: Reading) -> None:
    if "teacher_model" in reading.keys:
        reading.warn("teacher_model is not modelled: its weights and its pass come on top.")
    quantized = any(map(reading.flag, _QUANTIZED))
    if not reading.stated("peft"):
        if quantized:
            raise FieldError("quantization is stated, but no peft: only adapters train on quantised weights.")
        reading.set("method", "full", "peft")
        return
    reading.set("method", "qlora" if quantized else "lora", "peft", *_QUANTIZED)
    trainer_keys.read_ranks(reading, _RANKS, (8, 32, 0.0))
    adapted: list[str] = []
    for pattern in names("peft.target_modules", reading.get("peft.target_modules") or ()):
        last = pattern.rpartition(".")[2]
        adapted += [name for name in LINEAR if fnmatchcase(name, last[:100])] or [last.strip("*")]
    adapted = [name for name in dict.fromkeys(adapted) if name]
    if reading.flag("peft.match_all_linear") or not adapted:
        adapted = ["all-linear"]
    reading.set("lora_targets", adapted, "peft.target_modules", "peft.match_all_linear")
    if reading.flag("peft.use_dora"):
        reading.set("adapter", "dora", "peft.use_dora")


def _method(run: Run) -> dict[str, Any]:
    if run.method == "full":
        return {}
    adapted = targets(run)
    everything, four = adapted == ("all-linear",), run.weights_dtype != "int8"
    quantized = {
        _QUANTIZED[0 if four else 1]: True,
        "quantization.bnb_4bit_quant_type": "nf4" if four else None,
        "quantization.bnb_4bit_use_double_quant": run.weights_dtype == "nf4_dq" if four else None,
    }
    return {
        **(quantized if run.method == "qlora" else {}),
        "peft._target_": "nemo_automodel.components._peft.lora.PeftConfig",
        "peft.match_all_linear": True if everything else None,
        "peft.target_modules": None if everything else [f"*.{name}" for name in adapted],
        **dict(zip(_RANKS, trainer_keys.ranks(run), strict=True)),
    }


def _read_freezing(reading: Reading) -> None:
    """Read what of a model that sees stays as it is: its tower, where a section of it says nothing else."""
    section = mapping_in(reading.keys, "freeze_config")
    for name, unasked in (("vision_tower", True), ("language_model", False)):
        if section:
            reading.set(f"freeze_{name}", section.get(f"freeze_{name}", unasked), "freeze_config")
    if section.get("freeze_embeddings", True) is True and section and reading.fields["method"] == "full":
        reading.warn("freeze_config.freeze_embeddings is not modelled: embeddings are taken to train.")


def _read_precision(reading: Reading) -> None:
    stated = reading.text("model.torch_dtype", "bfloat16").removeprefix("torch.")
    dtype = reading.checkpoint_dtype() if stated == "auto" else stated
    if reading.fields["method"] == "qlora":
        weights = trainer_keys.bitsandbytes(
            eight=not reading.flag(_QUANTIZED[0]),
            double=reading.flag("quantization.bnb_4bit_use_double_quant"),
        )
        reading.set("weights_dtype", weights, *_QUANTIZED)
    else:
        reading.set("weights_dtype", dtype, "model.torch_dtype")
    if reading.fields["method"] != "full":
        reading.set("adapter_dtype", dtype, "model.torch_dtype")


def _read_autocast(reading: Reading) -> None:
    dtype = reading.text("autocast.dtype", "bfloat16") if reading.flag("autocast.enabled") else "none"
    narrow = {"bfloat16": "bf16", "float16": "fp16"}.get(dtype.removeprefix("torch."), dtype)
    reading.set("autocast", narrow, "autocast.enabled", "autocast.dtype")


def _model(run: Run) -> dict[str, Any]:
    low = run.adapter_dtype if run.method == "qlora" else run.weights_dtype
    return {
        "model._target_": "nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained",
        _MODEL: repository(run),
        "model.torch_dtype": trainer_keys.dtype_word(low),
    }


def _read_attention(reading: Reading) -> None:
    backend = reading.text("model.backend.attn")
    if reading.stated("model.attn_implementation") or not backend:
        trainer_keys.read_attention(reading, "model.attn_implementation")
    else:
        reading.set("attention", "sdpa" if backend in ("sdpa", "eager") else "flash", "model.backend")


def _read_kernels(reading: Reading) -> None:
    liger = reading.flag("model.use_liger_kernel")
    reading.set("kernels", ["liger"] if liger else [], "model.use_liger_kernel")
    loss = reading.text("loss_fn._target_").rpartition(".")[2]
    kind = "fused" if "linear" in loss else "chunked" if "chunked" in loss else "full_logits"
    reading.set("loss", kind, "loss_fn._target_")


def _kernels(run: Run) -> dict[str, Any]:
    loss = _LOSSES.get(run.loss, _LOSSES["full_logits"])
    return {
        "model.use_liger_kernel": "liger" in run.kernels,
        "loss_fn._target_": f"nemo_automodel.components.loss.{loss}",
    }


def _read_data(reading: Reading) -> None:
    packed = reading.whole(_PACK, 0, 10**8, 0)
    reading.set("packing", packed > 0, _PACK)
    reading.set("padding", "free" if packed else "longest", _PACK)
    wraps = packed and reading.flag(_ACROSS)
    reading.set("packing_strategy", "wrapped" if wraps else "first_fit", _ACROSS)
    length = packed or reading.first(_LENGTHS)
    reading.set("seq_len", length, _PACK, *_LENGTHS)
    if length is None:
        reading.warn("Nothing states where samples are cut: state seq_len=… of the longest sample.")
    limit = reading.first(_LIMITS)
    trainer_keys.read_dataset(reading, reading.first(_SOURCES), *_SOURCES, *_LIMITS, num_samples=limit)


def _data(run: Run) -> dict[str, Any]:
    named = dataset_name(run)
    wraps = run.packing and run.packing_strategy == "wrapped"
    return {
        "dataset._target_": "nemo_automodel.components.datasets.llm.chat_dataset.ChatDataset",
        _SOURCES[0]: named,
        _LENGTHS[0]: run.seq_len,
        _LIMITS[0]: run.num_samples if named else None,
        _PACK: run.seq_len if run.packing else 0,
        _ACROSS: True if wraps else None,
    }


def _read_parallelism(reading: Reading) -> None:
    """Read the degrees and the strategy; "none" leaves a degree open."""
    read_degrees(reading, _DEGREES)
    strategy = reading.text(_STRATEGY[0]) or reading.text(_STRATEGY[1], "fsdp2")
    strategy = strategy.rpartition(".")[2].removesuffix("manager").removesuffix("config")
    if strategy not in _STRATEGIES:
        raise FieldError(
            f"distributed.strategy={shown(strategy)} is unknown; use fsdp2, megatron_fsdp or ddp."
        )
    kind = _STRATEGIES[strategy]
    kind = "hybrid" if kind == "fsdp" and "data_parallel_replicate" in reading.fields else kind
    reading.set("sharding", kind, *_STRATEGY)
    if reading.flag("distributed.sequence_parallel") and "tensor_parallel" in reading.fields:
        reading.set("sequence_parallel", True, "distributed.sequence_parallel")
    offloads = "CPUOffload" in str(reading.get("distributed.offload_policy", ""))[:500]
    if reading.flag("distributed.cpu_offload") or offloads:
        reading.set("cpu_offload", "params", "distributed.cpu_offload", "distributed.offload_policy")


def _parallelism(run: Run) -> dict[str, Any]:
    """Return the strategy and the degrees; DDP goes with no other division of the model."""
    whole_model = launcher_files.degrees_beyond_data(run) == 1
    return {
        _STRATEGY[0]: "ddp" if run.sharding == "none" and whole_model else "fsdp2",
        "distributed.dp_size": "none",
        **{key: getattr(run, field) for key, field in _DEGREES.items()},
        "distributed.dp_replicate_size": run.data_parallel_replicate if run.sharding != "none" else 1,
        "distributed.sequence_parallel": run.sequence_parallel,
        "distributed.cpu_offload": run.cpu_offload != "none",
    }


def _read_accumulation(reading: Reading) -> None:
    ranks = reading.data_ranks(reading.launched_gpus)
    size = reading.get("distributed.dp_size")
    if str(size).lower() not in ("none", "null"):
        stated = whole(1, 10**6)("dp_size", size)
        if ranks is None:
            ranks, sharded = stated, reading.fields["sharding"] != "none"
            field = "data_parallel_shard" if sharded else "data_parallel_replicate"
            reading.set(field, ranks, "distributed.dp_size")
    if reading.stated("step_scheduler.global_batch_size"):
        reading.set_accumulation("step_scheduler.global_batch_size", data_parallel=ranks)


def _joined(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys with `distributed_config`, a component of its own since 2026, inside `distributed`."""
    found, apart = dict(keys), keys.get("distributed_config")
    if isinstance(apart, Mapping):
        within = keys.get("distributed")
        found["distributed"] = {**apart, **(within if isinstance(within, Mapping) else {})}
        del found["distributed_config"]
    return found


FORMAT = Format(
    "NeMo Automodel",
    (
        always(recipe="TrainFinetuneRecipeForNextTokenPrediction"),
        key("step_scheduler.local_batch_size", "micro_batch_size", 1),
        key("step_scheduler.num_epochs", "epochs", 1.0, write=lambda run: whole_number(run.epochs)),
        key("step_scheduler.max_steps", "max_steps"),
        always(dist_env={"backend": "nccl"}),
        model_key(_MODEL, "model.config.pretrained_model_name_or_path")._replace(write=_model),
        Row("model.config model.backend model.num_labels", lambda _: None),
        fixed(phase="sft", checkpointing_reentrant=False, pad_to_multiple_of=1),
        Row("autocast.enabled autocast.dtype", _read_autocast),
        Row(
            f"{' '.join((*_QUANTIZED, *_RANKS))} peft._target_ peft.target_modules peft.match_all_linear "
            "peft.use_dora peft.exclude_modules quantization.bnb_4bit_use_double_quant "
            "quantization.bnb_4bit_quant_type fp8.enabled",
            _read_method,
            _method,
        ),
        Row("freeze_config", _read_freezing),
        Row("model.torch_dtype", _read_precision),
        switch("distributed.activation_checkpointing", "activation_checkpointing", "full"),
        Row(
            "model.attn_implementation",
            _read_attention,
            trainer_keys.attention_row("model.attn_implementation").write,
        ),
        Row("model.use_liger_kernel loss_fn._target_", _read_kernels, _kernels),
        Row(
            "optimizer._target_",
            lambda reading: trainer_keys.read_optimizer(reading, "optimizer._target_", "adamw"),
            lambda run: {"optimizer._target_": trainer_keys.optimizer_class(run, "NeMo Automodel")},
        ),
        key("compile.enabled", "compile", False, write=lambda run: run.compile or None),
        Row(" ".join((_PACK, _ACROSS, *_LENGTHS, *_SOURCES, *_LIMITS)), _read_data, _data),
        Row(
            f"{' '.join((*_DEGREES, *_STRATEGY))} distributed.sequence_parallel distributed.cpu_offload "
            "distributed.offload_policy "
            "distributed.defer_fsdp_grad_sync",
            _read_parallelism,
            _parallelism,
        ),
        key(
            "step_scheduler.global_batch_size",
            "global_batch_size",
            read=_read_accumulation,
            older="distributed.dp_size",
        ),
    ),
    adapt=_joined,
    model_key=_MODEL,
    not_modelled="fp8.enabled qat.enabled",
    lasting={"learning_rate": "optimizer.lr", "weight_decay": "optimizer.weight_decay"},
    data_keys=_SOURCES,
)


def sheet(run: Run) -> Sheet:
    """Return the file of NeMo Automodel for `run`.

    Raises: InputError for a phase or a method that its recipe for fine-tuning does not have.
    """
    instead = "its recipe fine-tunes, whole or by LoRA."
    require(run, FORMAT.name, instead, phase=("sft",), method=("full", "lora", "qlora"))
    command = f"automodel {FILE} --nproc-per-node {launcher_files.per_node(run)}"
    if run.num_nodes > 1:
        command = launcher_files.torchrun(run, f"-m nemo_automodel.cli.app {FILE}")
    return Sheet(FILE, FORMAT.written(run), command, "nemo-automodel")
