"""LLaMA-Factory's other engines: its v1 YAML (`USE_V1=1 llamafactory-cli sft`), hidden defaults included.

What no key says but the framework does (read from its v1 package, 0.9.5): no `peft_config` means every
weight trains; LoRA of rank 8, alpha 16 and dropout 0.05 on all linear layers, adapters in fp32; weights
in the checkpoint's own format, without autocast but for FSDP's casts; activation checkpointing on, not
reentrant; micro-batches of 1, one to a step; samples cut at 2048 and padded to the longest; AdamW, not
fused; the whole logits, with Liger's kernels too; 4 bits mean NF4, double quantised; three epochs.
`llamafactory-cli dpo` and `rm` read the same file: phase=dpo, phase=reward say so.

With USE_MCA=1 Megatron-Core trains, by Megatron-LM's arguments beside v0's keys (train/mca/workflow.py and
mcore_adapter's training_args.py, read 2026-11-28): every weight, whatever finetuning_type says; micro-batches
and their number as without it, over the ranks that the degrees leave; gradients added up in fp32 under bf16;
rows padded to the cut-off where experts are divided, else to a multiple of 64; DeepSpeed's file is ignored.
"""

from collections.abc import Mapping
from typing import Any

from finegauge.errors import FieldError, shown
from finegauge.formats import launcher_files, llamafactory, megatron_lm, trainer_keys
from finegauge.formats.key_table import Format, Reading, Row, always, fixed, key, model_key, switch
from finegauge.formats.sheet import DEEPSPEED, Sheet, dataset_name, refuse, whole_number
from finegauge.run.field import number, whole
from finegauge.run.run import Run

FILE = "llamafactory_v1.yaml"
_COMMANDS = {"sft": "sft", "dpo": "dpo", "reward": "rm"}
_ADAPTERS = trainer_keys.Adapters(
    "peft_config.r peft_config.lora_alpha peft_config.lora_dropout peft_config.target_modules "
    "peft_config.modules_to_save peft_config.use_dora",
    defaults=(8, 16, 0.05),
    everything="all",
)
_BITS, _DOUBLE = "quant_config.quantization_bit", "quant_config.double_quantization"
_FROZEN = "peft_config.freeze_trainable_layers"
_CONTEXT = ("cp_size", "dist_config.cp_size")
_BATCHING = {  # (packs, joins)
    "normal": (False, False),
    "dynamic_batching": (False, False),
    "padding_free": (False, True),
    "dynamic_padding_free": (True, True),
}
_DEGREE = 10**6
_TO_MEGATRON = {"per_device_train_batch_size": "micro_batch_size", "max_steps": "train_iters"}


def _read_method(reading: Reading) -> None:
    kind, bits = reading.text("peft_config.name"), reading.get(_BITS)
    if kind not in ("", "lora", "freeze"):
        raise FieldError(f"peft_config.name={shown(kind)} is not supported; use lora or freeze.")
    if kind != "lora" and bits is not None:
        raise FieldError("quant_config needs adapters; add 'peft_config: {name: lora}'.")
    if kind == "freeze":
        layers = abs(reading.whole(_FROZEN, 2, 10_000, -10_000))
        reading.set("freeze_trainable_layers", layers, _FROZEN)
    reading.set("method", "qlora" if bits is not None else kind or "full", "peft_config.name", _BITS)
    if kind == "lora":
        _ADAPTERS.read(reading)


def _method(run: Run) -> dict[str, Any]:
    if run.method == "freeze":
        return {"peft_config.name": "freeze", _FROZEN: run.freeze_trainable_layers}
    quantized, eight = run.method == "qlora", run.weights_dtype == "int8"
    return {
        "peft_config.name": "lora" if run.trains_adapters else None,
        **_ADAPTERS.written(run),
        "quant_config.name": "bnb" if quantized else None,
        _BITS: (8 if eight else 4) if quantized else None,
        _DOUBLE: run.weights_dtype == "nf4_dq" if quantized and not eight else None,
    }


def _read_sharding(reading: Reading) -> None:
    """Read who shards, the degrees, and what is offloaded."""
    kind = reading.text("dist_config.name")
    if kind == "deepspeed":
        trainer_keys.read_zero(reading, "dist_config.config_file", "dist_config.name")
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
    for keys, field in ((_CONTEXT, "context_parallel"), (("dist_config.ep_size",), "expert_parallel")):
        key = reading.which(*keys)
        if str(reading.get(key, 1)) != "1":
            reading.take(field, key)


def _sharding(run: Run) -> dict[str, Any]:
    if launcher_files.uses_deepspeed(run):
        return {"dist_config.name": "deepspeed", "dist_config.config_file": DEEPSPEED}
    if not launcher_files.uses_fsdp(run):
        return {}
    degrees = {
        "mp_replicate_size": run.data_parallel_replicate,
        "cp_size": run.context_parallel,
        "ep_size": run.expert_parallel,
    }
    return {
        "dist_config.name": "fsdp2",
        "dist_config.reshard_after_forward": False if run.sharding == "fsdp_shard_grad_op" else None,
        "dist_config.offload_params": True if run.cpu_offload != "none" else None,
        **{f"dist_config.{name}": degree for name, degree in degrees.items() if degree > 1},
    }


def _read_precision(reading: Reading) -> None:
    """Read the number formats: the checkpoint's own, cast to bf16 by FSDP and DeepSpeed alone."""
    low = reading.checkpoint_dtype()
    casts = low == "fp32" and reading.flag("bf16", default=True) and bool(reading.text("dist_config.name"))
    reading.set("autocast", "bf16" if casts else "none", "bf16")
    if reading.fields["method"] == "qlora":
        eight = trainer_keys.bits_of(reading, _BITS) == 8
        double = reading.flag(_DOUBLE, default=True)
        reading.set("weights_dtype", trainer_keys.bitsandbytes(eight=eight, double=double), _BITS, _DOUBLE)
    else:
        reading.set("weights_dtype", low)
    if reading.fields["method"] in ("lora", "qlora"):
        reading.set("adapter_dtype", "fp32")


def _read_kernels(reading: Reading) -> None:
    kernels = reading.text("kernel_config.name")
    if kernels not in ("", "auto", "none", "liger_kernel"):
        reading.warn(f"kernel_config.name={shown(kernels)} is not modelled: the run is taken as without it.")
    reading.set("kernels", ["liger"] if kernels == "liger_kernel" else [], "kernel_config.name")


def _read_batching(reading: Reading) -> None:
    packs, joins = reading.word("batching_strategy", "normal", _BATCHING, "normal or padding_free")
    if reading.text("batching_strategy") == "dynamic_batching":
        reading.warn("batching_strategy=dynamic_batching is not modelled: batches are taken as normal ones.")
    reading.set("packing", packs, "batching_strategy")
    reading.set("packing_strategy", "first_fit", "batching_strategy")
    reading.set("padding", "free" if joins else "longest", "batching_strategy")


def _batching(run: Run) -> dict[str, Any]:
    free = "dynamic_padding_free" if run.packing else "padding_free"
    return {"batching_strategy": free if run.packing or run.padding == "free" else "normal"}


def _read_accumulation(reading: Reading) -> None:
    if reading.stated("save_epochs"):
        every = number(1e-6, 1e6)("save_epochs", reading.get("save_epochs"))
        reading.set("saves_per_epoch", 1.0 / every, "save_epochs")
    if not reading.stated("global_batch_size"):
        return
    divided = whole(1, _DEGREE)("cp_size", reading.first(_CONTEXT, 1))
    ranks = reading.launched_gpus // divided if reading.launched_gpus else None
    if reading.stated("dist_config.dp_size"):
        ranks = reading.whole("dist_config.dp_size", most=_DEGREE)
    reading.set_accumulation("global_batch_size", data_parallel=ranks or None)


FORMAT = Format(
    "LLaMA-Factory v1",
    (
        model_key("model"),
        fixed(phase="sft", over_length="truncate", pad_to_multiple_of=1, loss="full_logits"),
        Row(
            f"peft_config.name {_FROZEN} {_ADAPTERS.keys} quant_config.name {_BITS} {_DOUBLE} "
            "quant_config.quantization_type",
            _read_method,
            _method,
        ),
        Row(
            f"{' '.join(_CONTEXT)} dist_config.name dist_config.config_file dist_config.ep_size "
            "dist_config.reshard_after_forward dist_config.offload_params dist_config.mp_replicate_size "
            "dist_config.mp_shard_size dist_config.dp_size",
            _read_sharding,
            _sharding,
        ),
        Row(
            "bf16",
            _read_precision,
            lambda run: {"bf16": run.weights_dtype != "fp32" or run.autocast == "bf16"},
        ),
        switch("enable_activation_checkpointing", "activation_checkpointing", "full", default=True),
        fixed(checkpointing_reentrant=False),
        trainer_keys.attention_row("flash_attn"),
        Row(
            "kernel_config.name",
            _read_kernels,
            lambda run: {"kernel_config.name": "liger_kernel" if "liger" in run.kernels else None},
        ),
        trainer_keys.optimizer_row("optim_config.name", "adamw")._replace(write=None),
        fixed(optimizer_implementation="foreach"),
        key("cutoff_len", "seq_len", 2048),
        Row("batching_strategy", _read_batching, _batching),
        trainer_keys.dataset_row("train_dataset", lambda run: {"train_dataset": dataset_name(run)}),
        key("micro_batch_size", "micro_batch_size", 1),
        key("num_train_epochs", "epochs", 3.0, write=lambda run: whole_number(run.epochs)),
        key("max_steps", "max_steps"),
        key("global_batch_size", "global_batch_size", read=_read_accumulation, older="save_epochs"),
        always(output_dir="output"),
    ),
    model_key="model",
    methods={
        "full": {"peft_config.name": "", _BITS: ""},
        "freeze": {"peft_config.name": "freeze", _BITS: ""},
        "lora": {"peft_config.name": "lora", _BITS: ""},
        "qlora": {"peft_config.name": "lora", _BITS: "4"},
    },
    lasting={name: name for name in ("learning_rate", "max_grad_norm", "seed", "output_dir")},
    data_keys=("train_dataset",),
    lists_data=True,
)


def _of_megatron(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a file for the Megatron backend, those that are Megatron-LM's under its names."""
    known = llamafactory.FORMAT.known
    found = {_TO_MEGATRON.get(name, name): value for name, value in keys.items() if name != "deepspeed"}
    found.setdefault("micro_batch_size", 8)
    stage = str(found.pop("stage", "sft"))
    found["command"] = {"pt": "pretrain", "rm": "reward"}.get(stage, stage)
    return {name: value for name, value in found.items() if name in MEGATRON.keys or name not in known}


def _read_rows(reading: Reading) -> None:
    """Read how samples lie in rows that Megatron-Core trains on, and what it does not act on."""
    llamafactory.read_batching(reading)
    if "expert_parallel" in reading.fields and not reading.fields["packing"]:
        reading.set("padding", "max", "expert_model_parallel_size")
    reading.set("pad_to_multiple_of", 64)
    if (kind := reading.text("finetuning_type", "lora")) != "full":
        reading.warn(
            f"finetuning_type={shown(kind)} has no effect: the Megatron backend trains every weight."
        )
    reading.ignored(("quantization_bit",), "the Megatron backend quantises nothing")


MEGATRON = Format(
    "Megatron-LM",
    (
        model_key("model_name_or_path"),
        llamafactory.TASK,
        Row("moe_grouped_gemm moe_token_dispatcher_type variable_seq_lengths", lambda _: None),
        *(megatron_lm.METHOD, megatron_lm.MICRO_BATCH, trainer_keys.batch_rows(8)[1]),
        *(megatron_lm.ITERATIONS, megatron_lm.PARALLELISM, megatron_lm.OPTIMIZER),
        *(megatron_lm.ATTENTION, megatron_lm.KERNELS, key("cutoff_len", "seq_len", 2048)),
        Row("packing neat_packing finetuning_type quantization_bit", _read_rows),
        trainer_keys.epochs_row(),
        llamafactory.DATA,
        trainer_keys.EVALUATION,
    ),
    model_key="model_name_or_path",
    not_modelled="moe_layer_recompute mtp_num_layers additional_configs optimizer_offload_fraction",
    lists_its_keys=False,
    lists_data=True,
    adapt=_of_megatron,
)


def sheet(run: Run) -> Sheet:
    """Return the files of LLaMA-Factory v1 for `run`.

    Raises: InputError for a method or a phase that it does not have.
    """
    divided = [name for name in ("tensor_parallel", "pipeline_parallel") if getattr(run, name) > 1]
    if run.method == "gptq_lora" or run.phase not in _COMMANDS or divided:
        field = divided[0] if divided else "phase" if run.phase not in _COMMANDS else "method"
        instead = "it divides no layers" if divided else "it trains in full, by LoRA, QLoRA or freezing"
        raise refuse(FORMAT.name, field, getattr(run, field), f"{instead}.")
    beside = {DEEPSPEED: launcher_files.deepspeed(run)} if launcher_files.uses_deepspeed(run) else {}
    command = f"USE_V1=1 llamafactory-cli {_COMMANDS[run.phase]} {FILE}"
    if run.num_gpus > 1:
        command = f"FORCE_TORCHRUN=1 {launcher_files.environment(run)} {command}"
    return Sheet(FILE, FORMAT.written(run), command, "llamafactory", beside, spoken=("phase",))
