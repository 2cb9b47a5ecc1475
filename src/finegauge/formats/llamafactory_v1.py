"""LLaMA-Factory's v1 YAML (`USE_V1=1 llamafactory-cli sft`), hidden defaults included.

What no key says but the framework does (read from its v1 package, 0.9.5): no `peft_config` means every
weight trains; LoRA of rank 8, alpha 16 and dropout 0.05 on all linear layers, adapters in fp32; weights
in the checkpoint's own format, without autocast but for FSDP's casts; activation checkpointing on, not
reentrant; micro-batches of 1, one to a step; samples cut at 2048 and padded to the longest; AdamW, not
fused; the whole logits, with Liger's kernels too; 4 bits mean NF4, double quantised; three epochs.
`llamafactory-cli dpo` and `rm` read the same file: phase=dpo, phase=reward say so.
"""

from collections.abc import Collection
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
from finegauge.run.field import number, whole

if TYPE_CHECKING:
    from finegauge.run.run import Run

_KEYS = """
model flash_attn train_dataset micro_batch_size global_batch_size cutoff_len num_train_epochs max_steps
bf16 batching_strategy enable_activation_checkpointing cp_size optim_config.name kernel_config.name
peft_config.name peft_config.r peft_config.lora_alpha peft_config.lora_dropout peft_config.use_dora
peft_config.target_modules peft_config.modules_to_save peft_config.freeze_trainable_layers
quant_config.name quant_config.quantization_bit quant_config.double_quantization
quant_config.quantization_type dist_config.name dist_config.config_file dist_config.reshard_after_forward
dist_config.offload_params dist_config.mp_replicate_size dist_config.mp_shard_size dist_config.dp_size
dist_config.cp_size dist_config.ep_size save_epochs
"""
KEYS = frozenset(_KEYS.split())
_KNOWN = """
template trust_remote_code model_class init_config.* eval_dataset output_dir learning_rate max_grad_norm
batching_workers lr_scheduler_config.* seed full_determinism resume_from_checkpoint save_steps
save_ckpt_as_hf save_total_limit logging_steps sample_backend max_new_tokens cp_mode kernel_config.*
optim_config.* dist_config.* quant_config.* peft_config.*
"""
_NO_KERNELS = ("", "auto", "none")
_DEGREE = 10**6


def state(reading: Reading) -> None:
    """State the fields of a LLaMA-Factory v1 file."""
    reading.set("model", reading.get("model"), "model")
    reading.need_model()
    reading.set("phase", "sft")
    _read_method(reading)
    _read_sharding(reading)
    _read_precision(reading)
    _read_implementation(reading)
    _read_batching(reading)
    _read_batch(reading)


def known_keys() -> Collection[str]:
    """Return the keys that LLaMA-Factory v1 knows and nothing here depends on."""
    return _KNOWN.split()


def _read_method(reading: Reading) -> None:
    """Read which parameters train."""
    kind = reading.text("peft_config.name")
    bits = reading.get("quant_config.quantization_bit")
    if kind not in ("", "lora", "freeze"):
        raise FieldError(f"peft_config.name={shown(kind)} is not described; use lora or freeze.")
    if kind != "lora" and bits is not None:
        raise FieldError("quant_config needs adapters; add 'peft_config: {name: lora}'.")
    if kind == "freeze":
        layers = abs(whole(-10_000, 10_000)("layers", reading.get("peft_config.freeze_trainable_layers", 2)))
        reading.set("freeze_trainable_layers", layers, "peft_config.freeze_trainable_layers")
    method = "qlora" if bits is not None else kind or "full"
    reading.set("method", method, "peft_config.name", "quant_config.quantization_bit")
    if kind == "lora":
        reading.direct(
            {
                "peft_config.r": ("lora_rank", 8),
                "peft_config.lora_alpha": ("lora_alpha", 16),
                "peft_config.lora_dropout": ("lora_dropout", 0.05),
                "peft_config.target_modules": ("lora_targets", "all-linear"),
            }
        )
        trainer_keys.read_extra(reading, "peft_config.modules_to_save")
    reading.not_modelled("peft_config.use_dora")


def _read_sharding(reading: Reading) -> None:
    """Read who shards, the degrees, and what is offloaded."""
    kind = reading.text("dist_config.name")
    if kind == "deepspeed":
        sharding, offload, warning = launcher_files.sharding(
            reading.get("dist_config.config_file", ""), reading.file
        )
        reading.warnings += [warning] if warning else []
        reading.set("sharding", sharding, "dist_config.config_file", "dist_config.name")
        reading.set("cpu_offload", offload, "dist_config.config_file")
    elif kind:
        replicas = reading.get("dist_config.mp_replicate_size", 1)
        stays = not reading.flag("dist_config.reshard_after_forward", default=True)
        several = whole(1, _DEGREE)("mp_replicate_size", replicas) > 1
        if several:
            reading.set("data_parallel_replicate", replicas, "dist_config.mp_replicate_size")
        sharding = "hybrid" if several else "fsdp_shard_grad_op" if stays else "fsdp"
        reading.set("sharding", sharding, "dist_config.name", "dist_config.reshard_after_forward")
        offload = "params" if reading.flag("dist_config.offload_params") else "none"
        reading.set("cpu_offload", offload, "dist_config.offload_params")
    for keys, field in (
        (("cp_size", "dist_config.cp_size"), "context_parallel"),
        (("dist_config.ep_size",), "expert_parallel"),
    ):
        key = next((key for key in keys if reading.stated(key)), keys[0])
        if str(reading.get(key, 1)) != "1":
            reading.set(field, reading.get(key), key)


def _read_precision(reading: Reading) -> None:
    """Read the number formats: the checkpoint's own, cast to bf16 by FSDP and DeepSpeed alone."""
    low = reading.checkpoint_dtype()
    casts = low == "fp32" and reading.flag("bf16", default=True) and bool(reading.text("dist_config.name"))
    reading.set("autocast", "bf16" if casts else "none", "bf16")
    if reading.fields["method"] == "qlora":
        bits = whole(1, 64)("quantization_bit", reading.get("quant_config.quantization_bit"))
        if bits not in (4, 8):
            raise FieldError(f"quantization_bit={bits} is not described; use 4 (NF4) or 8.")
        double = reading.flag("quant_config.double_quantization", default=True)
        four = "nf4_dq" if double else "nf4"
        keys = ("quant_config.quantization_bit", "quant_config.double_quantization")
        reading.set("weights_dtype", "int8" if bits == 8 else four, *keys)
    else:
        reading.set("weights_dtype", low)
    if reading.fields["method"] in ("lora", "qlora"):
        reading.set("adapter_dtype", "fp32")


def _read_implementation(reading: Reading) -> None:
    """Read checkpointing, attention, kernels and optimizer."""
    recomputes = reading.flag("enable_activation_checkpointing", default=True)
    kind = "full" if recomputes else "none"
    reading.set("activation_checkpointing", kind, "enable_activation_checkpointing")
    reading.set("checkpointing_reentrant", False)
    trainer_keys.read_attention(reading, "flash_attn")
    kernels = reading.text("kernel_config.name")
    if kernels not in (*_NO_KERNELS, "liger_kernel"):
        reading.warn(f"kernel_config.name={shown(kernels)} is not modelled: the run is taken as without it.")
    reading.set("kernels", ["liger"] if kernels == "liger_kernel" else [], "kernel_config.name")
    reading.set("loss", "full_logits")
    trainer_keys.read_optimizer(reading, "optim_config.name", "adamw")
    reading.set("optimizer_implementation", "foreach")


def _read_batching(reading: Reading) -> None:
    """Read the data set, its cut-off and how samples share a batch."""
    reading.set("seq_len", reading.get("cutoff_len", 2048), "cutoff_len")
    strategy = reading.text("batching_strategy", "normal")
    if strategy not in ("normal", "padding_free", "dynamic_batching", "dynamic_padding_free"):
        raise FieldError(f"batching_strategy={shown(strategy)} is unknown; use normal or padding_free.")
    if strategy == "dynamic_batching":
        reading.warn("batching_strategy=dynamic_batching is not modelled: batches are taken as normal ones.")
    packs = strategy == "dynamic_padding_free"
    reading.set("packing", packs, "batching_strategy")
    reading.set("packing_strategy", "first_fit", "batching_strategy")
    reading.set("over_length", "truncate")
    padding = "free" if packs or strategy == "padding_free" else "longest"
    reading.set("padding", padding, "batching_strategy")
    reading.set("pad_to_multiple_of", 1)
    trainer_keys.read_dataset(reading, reading.get("train_dataset"), "train_dataset")


def _read_batch(reading: Reading) -> None:
    """Read the micro-batch, the accumulation and the duration."""
    reading.direct(
        {
            "micro_batch_size": ("micro_batch_size", 1),
            "num_train_epochs": ("epochs", 3.0),
            "max_steps": ("max_steps", None),
        }
    )
    if reading.stated("save_epochs"):
        every = number(1e-6, 1e6)("save_epochs", reading.get("save_epochs"))
        reading.set("saves_per_epoch", 1.0 / every, "save_epochs")
    batch = reading.get("global_batch_size")
    if batch is None:
        return
    sizes = [reading.get(key) for key in ("cp_size", "dist_config.cp_size") if reading.stated(key)]
    divided = whole(1, _DEGREE)("cp_size", sizes[0] if sizes else 1)
    ranks = reading.launched_gpus // divided if reading.launched_gpus else None
    if reading.stated("dist_config.dp_size"):
        ranks = whole(1, _DEGREE)("dp_size", reading.get("dist_config.dp_size"))
    reading.set_accumulation(batch, "global_batch_size", data_parallel=ranks or None)


FORMAT = Framework(
    "LLaMA-Factory v1",
    KEYS,
    "model",
    state,
    known_keys,
    {
        "full": {"peft_config.name": "", "quant_config.quantization_bit": ""},
        "freeze": {"peft_config.name": "freeze", "quant_config.quantization_bit": ""},
        "lora": {"peft_config.name": "lora", "quant_config.quantization_bit": ""},
        "qlora": {"peft_config.name": "lora", "quant_config.quantization_bit": "4"},
    },
)

NAME = "LLaMA-Factory v1"
FILE = "llamafactory_v1.yaml"
_COMMANDS = {"sft": "sft", "dpo": "dpo", "reward": "rm"}


def sheet(run: "Run") -> Sheet:
    """Return the files of LLaMA-Factory v1 for `run`.

    Raises: InputError for a method or a phase that it does not have.
    """
    divided = [name for name in ("tensor_parallel", "pipeline_parallel") if getattr(run, name) > 1]
    if run.method == "gptq_lora" or run.phase not in _COMMANDS or divided:
        field = divided[0] if divided else "phase" if run.phase not in _COMMANDS else "method"
        instead = "it divides no layers" if divided else "it trains in full, by LoRA, QLoRA or freezing"
        raise refuse(NAME, field, getattr(run, field), f"{instead}.")
    free = "dynamic_padding_free" if run.packing else "padding_free"
    keys = {
        "model": repository(run),
        "flash_attn": trainer_keys.ATTENTION[run.attention],
        "peft_config": _peft(run),
        "quant_config": _quantization(run),
        "kernel_config": {"name": "liger_kernel"} if "liger" in run.kernels else None,
        "dist_config": _distribution(run),
        "train_dataset": dataset_name(run),
        "micro_batch_size": run.micro_batch_size,
        "global_batch_size": run.global_batch_size,
        "cutoff_len": run.seq_len,
        "batching_strategy": free if run.packing or run.padding == "free" else "normal",
        "num_train_epochs": whole_number(run.epochs),
        "max_steps": run.max_steps,
        "bf16": run.weights_dtype != "fp32" or run.autocast == "bf16",
        "enable_activation_checkpointing": run.activation_checkpointing != "none",
        "output_dir": "output",
    }
    beside = {DEEPSPEED: launcher_files.deepspeed(run)} if launcher_files.uses_deepspeed(run) else {}
    command = f"USE_V1=1 llamafactory-cli {_COMMANDS[run.phase]} {FILE}"
    if run.num_gpus > 1:
        command = f"FORCE_TORCHRUN=1 {launcher_files.environment(run)} {command}"
    return Sheet(FILE, without(keys), command, "llamafactory", beside, spoken=("phase",))


def _peft(run: "Run") -> dict[str, Any] | None:
    """Return which parameters train; None for all."""
    if run.method == "freeze":
        return {"name": "freeze", "freeze_trainable_layers": run.freeze_trainable_layers}
    if not run.trains_adapters:
        return None
    adapted = targets(run)
    return without(
        {
            "name": "lora",
            "r": run.lora_rank,
            "lora_alpha": whole_number(run.lora_alpha),
            "lora_dropout": run.lora_dropout,
            "target_modules": "all" if adapted == ("all-linear",) else list(adapted),
            "modules_to_save": trainer_keys.saved_modules(run),
        }
    )


def _quantization(run: "Run") -> dict[str, Any] | None:
    """Return how the frozen weights are quantised."""
    if run.method != "qlora":
        return None
    if run.weights_dtype == "int8":
        return {"name": "bnb", "quantization_bit": 8}
    return {"name": "bnb", "quantization_bit": 4, "double_quantization": run.weights_dtype == "nf4_dq"}


def _distribution(run: "Run") -> dict[str, Any] | None:
    """Return who shards; None for nobody."""
    if launcher_files.uses_deepspeed(run):
        return {"name": "deepspeed", "config_file": DEEPSPEED}
    if not launcher_files.uses_fsdp(run):
        return None
    replicas = run.data_parallel_replicate
    return without(
        {
            "name": "fsdp2",
            "reshard_after_forward": False if run.sharding == "fsdp_shard_grad_op" else None,
            "offload_params": True if run.cpu_offload != "none" else None,
            "mp_replicate_size": replicas if replicas > 1 else None,
            "cp_size": run.context_parallel if run.context_parallel > 1 else None,
            "ep_size": run.expert_parallel if run.expert_parallel > 1 else None,
        }
    )
