"""ms-swift's YAML and the arguments of `swift sft`, `swift pt` and `swift rlhf`, hidden defaults included.

What no key says but the framework does (read from ms-swift 4.6): LoRA of rank 8, alpha 32 and dropout
0.05 on all linear layers, adapters in fp32; gradient checkpointing on; micro-batches of 1, and as many
of them as make 16 sequences a step over all GPUs; three epochs; samples longer than the cut-off
dropped; 4 bits mean NF4, double quantised; the checkpoint's own number format.

Megatron-SWIFT's arguments (`megatron sft`, `megatron pt`, `megatron rlhf`) are Megatron-LM's for the layers
and ms-swift's for model, adapters, data and answers. What no argument says but it does (from swift/megatron/
arguments/megatron_args.py of commit 006938b, read 2026-11-23): steps of 16 sequences; full tuning; adapters
of rank 8, alpha 32 on all linear layers; attention computed anew in the backward pass; the distributed
optimizer; samples side by side without padding; the checkpoint's format.
"""

import re
from collections.abc import Mapping
from math import ceil
from typing import Any

from finegauge.errors import FieldError, shown
from finegauge.formats import launcher_files, megatron_lm, model_keys, rollout_keys, trainer_keys
from finegauge.formats.key_table import Format, Reading, Row, always, degrees, fixed, key, model_key
from finegauge.formats.sheet import DEEPSPEED, Sheet, dataset_name, require
from finegauge.run.field import names, number, whole
from finegauge.run.run import Run

FILE = "ms_swift.yaml"
_ADAPTERS = trainer_keys.Adapters(
    "lora_rank lora_alpha lora_dropout target_modules modules_to_save use_dora",
    defaults=(8, 32, 0.05),
    everything="",
)
# Its other tuners: the field of their size, the key that states it, and its default (tuners' arguments, 3.x).
_SIZES = {
    **{"adalora": ("lora_rank", "adalora_init_r", 12), "vera": ("lora_rank", "vera_rank", 256)},
    **{"boft": ("adapter_size", "boft_block_size", 4), "ia3": ("", "", 0)},
    "fourierft": ("adapter_size", "fourier_n_frequency", 2000),
    "bone": ("lora_rank", "lora_rank", 8),
}
_TUNED = "adalora_init_r vera_rank boft_block_size fourier_n_frequency"
_OLDER = {  # before 3.0
    **{"model_id_or_path": "model", "batch_size": "per_device_train_batch_size", "dtype": "torch_dtype"},
    **{"quantization_bit": "quant_bits", "lora_target_modules": "target_modules"},
    **{
        "lora_dropout_p": "lora_dropout",
        "deepspeed_config_path": "deepspeed",
        "template_type": "template",
        "eval_batch_size": "per_device_eval_batch_size",
    },
}
_BITS = {
    "load_in_4bit": 4,
    "load_in_8bit": 8,
}  # no arguments of ms-swift, which stops at what it does not know
TUNERS = ("tuner_type", "train_type", "sft_type")
_TASKS = {
    **{"causal_lm": "causal_lm", "seq_cls": "sequence_classification", "embedding": "embedding"},
    **dict.fromkeys(("reranker", "generative_reranker"), "reranker"),
}
LEARNT = {"rm": "reward", **dict.fromkeys(("kto", "orpo", "simpo", "cpo"), "dpo")}
_RLHF = {"dpo": "dpo", "grpo": "grpo", "ppo": "ppo", "reward": "rm"}
_ATTENTION = {"sdpa": "sdpa", "flash": "flash_attn", "eager": "eager"}
_OVER_LENGTH = {"delete": "drop", "raise": "drop", "left": "truncate", "right": "truncate"}
_TRUNCATION = {"drop": "delete", "truncate": "right", "split": "split"}
_BUILT_IN = {  # (sharding, cpu_offload) of the names that `deepspeed` may have in place of a file
    **{"zero0": ("none", "none"), **{name: (name, "none") for name in ("zero1", "zero2", "zero3")}},
    **{"zero2_offload": ("zero2", "optimizer"), "zero3_offload": ("zero3", "all")},
}
_OF_DEEPSPEED = {
    "tensor_parallel": "deepspeed_autotp_size",
    "zero_hpz_partition_size": "zero_hpz_partition_size",
}
_OF_FSDP2 = {
    "loading": "rank0",
    "save_state": "sharded",
    "activation_checkpointing": "full",
}  # its fsdp2.json
_FSDP = {"fsdp": "full_shard", "fsdp_shard_grad_op": "shard_grad_op", "hybrid": "hybrid_shard"}
_UNASKED_OF_MEGATRON = {
    "global_batch_size": 16,
    "recompute_granularity": "selective",
    "padding_free": True,
    "use_vllm": True,
    "use_distributed_optimizer": True,
    "expert_tensor_parallel_size": 1,
}
_CONVERTED = ("load", "mcore_model")  # folders of weights that were converted: Qwen3-8B-mcore
_OF_MEGATRON = {"lora_rank": "peft_dim", "lora_alpha": "peft_alpha", "lora_dropout": "peft_dropout",
            "max_epochs": "num_train_epochs", "target_modules": "peft_target_modules",
            "eval_interval": "eval_steps", "save_interval": "save_steps"}  # fmt: skip


def _adapt(keys: Mapping[str, Any]) -> dict[str, Any]:
    if keys.get("rlhf_type") == "gkd":
        raise FieldError("rlhf_type=gkd distils a teacher, which is not supported.")
    found = {_OLDER.get(name, name): value for name, value in _of_engine(keys).items()}
    if "model" not in found and "model_type" in found:  # which named the model, polylm-13b
        found["model"] = found["model_type"]
    if str(found.get("torch_dtype")).upper() == "AUTO":
        del found["torch_dtype"]
    if str(found.pop("use_flash_attn", "")).lower() == "true":
        found.setdefault("attn_impl", "flash_attn")
    targets = found.get("target_modules")
    if str(targets).upper() in ("ALL", "DEFAULT"):
        found["target_modules"] = (
            "all-linear" if str(targets).upper() == "ALL" else ["q_proj", "k_proj", "v_proj"]
        )
    return found


def _of_engine(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys with vLLM's own arguments as one text, but for what a key of ms-swift's says too."""
    own = keys.get("vllm_engine_kwargs")
    if not isinstance(own, Mapping):
        return dict(keys)
    most = {"vllm_max_num_seqs": own["max_num_seqs"]} if "max_num_seqs" in own else {}
    return {**most, **keys, "vllm_engine_kwargs": str(dict(own))}


def _of_megatron(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments under the names of Megatron-LM and of `swift sft`."""
    unasked = {**_UNASKED_OF_MEGATRON, **_of_engine(keys)}
    found = {_OF_MEGATRON.get(name, name): value for name, value in unasked.items()}
    converted = next((found.pop(name) for name in _CONVERTED if found.get(name)), None)
    if converted is not None:
        found.setdefault("model", str(converted).rstrip("/").rpartition("/")[2].removesuffix("-mcore"))
    if "model" in found:  # which Megatron reads into weights of its own
        found["model"] = re.sub(r"(?i)-fp8$", "", str(found["model"]))
    tuner = next((str(found.pop(name)) for name in TUNERS if name in found), "full")
    found["peft_scheme"] = "none" if tuner == "full" else tuner
    if tuner == "lora":
        found = {"peft_dim": 8, "peft_alpha": 32, "peft_dropout": 0.05, **found}
        if str(found.get("peft_target_modules")) in ("all-linear", "['all-linear']"):
            del found["peft_target_modules"]
    learnt = str(found.pop("rlhf_type", found.get("command", "sft")))
    found["command"] = LEARNT.get(learnt, {"pt": "pretrain"}.get(learnt, learnt))
    low = str(found.pop("torch_dtype", "bfloat16")).removeprefix("torch.")
    return {"bf16": low in ("bfloat16", "bf16"), "fp16": low in ("float16", "fp16")} | found


def _bits(reading: Reading) -> Any:
    """Return into how many bits weights are quantised, by names of other programs too; None for none."""
    for name, bits in _BITS.items():
        if reading.flag(name) and not reading.stated("quant_bits"):
            stops = "ignores" if reading.flag("ignore_args_error") else "stops at"
            reading.warn(f"ms-swift has no {name} and {stops} it: taken as quant_bits: {bits}, which it has.")
            return bits
    return reading.get("quant_bits")


def _read_preference(reading: Reading) -> None:
    rollout_keys.read_preference(reading, reading.text("rlhf_type"), "rlhf_type")
    rollout_keys.other_model(reading, "reference_model", "ref_model")


def _read_task(reading: Reading) -> None:
    """Read the head; a generative reranker scores by the likelihood of a word of its causal model."""
    task = reading.text("task_type", "causal_lm")
    if task not in _TASKS:
        raise FieldError(f"task_type={shown(task)} is not supported; {', '.join(_TASKS)} are.")
    if task == "causal_lm" or reading.fields.get("phase") != "sft":
        return
    reading.set("task", _TASKS[task], "task_type")
    if task == "seq_cls":
        reading.take("num_labels", "num_labels", 2)
    elif task != "causal_lm":
        reading.warn(
            f"task_type={shown(task)}: each text of a sample is a sequence of its own, with a batch as many "
            "times as large as a sample has texts; micro_batch_size=… says how many sequences there are."
        )


def _read_method(reading: Reading) -> None:
    _read_task(reading)
    key = reading.which(*TUNERS)
    tuner = reading.text(key, "lora")
    if tuner not in ("lora", "full", *_SIZES):
        others = ", ".join(_SIZES)
        raise FieldError(f"{key}={shown(tuner)} is not supported; use lora, full, {others}.")
    quantized = _bits(reading) not in (None, 0, "0")
    if tuner == "full":
        if quantized:
            raise FieldError(
                f"quant_bits needs {key} lora, not full: only adapters train on quantised weights."
            )
        reading.set("method", "full", *TUNERS)
        reading.ignored(_ADAPTERS.names[:4], f"{key} is full")
        return
    reading.set("method", "qlora" if quantized else "lora", *TUNERS, "quant_bits")
    _ADAPTERS.read(reading)
    if tuner in _SIZES:
        field, named, unasked = _SIZES[tuner]
        reading.set("adapter", tuner, *TUNERS)
        reading.fields.pop("lora_rank", None)
        if field:
            reading.take(field, named, unasked)


def _size(run: Run) -> dict[str, Any]:
    field, named, _ = _SIZES.get({"miss": "bone"}.get(run.adapter, run.adapter), ("", "", 0))
    return {named: getattr(run, field)} if field else {}


def _method(run: Run) -> dict[str, Any]:
    if run.method == "full":
        return {"tuner_type": "full"}
    quantized, four = run.method == "qlora", run.weights_dtype != "int8"
    return {
        "tuner_type": {"miss": "bone"}.get(run.adapter, run.adapter) if run.adapter != "dora" else "lora",
        **_ADAPTERS.written(run),
        **_size(run),
        "lora_dtype": trainer_keys.DTYPES[run.adapter_dtype],
        "quant_method": "bnb" if quantized else None,
        "quant_bits": (4 if four else 8) if quantized else None,
        "bnb_4bit_quant_type": "nf4" if quantized and four else None,
        "bnb_4bit_use_double_quant": run.weights_dtype == "nf4_dq" if quantized and four else None,
    }


def _read_precision(reading: Reading) -> None:
    weights = reading.text("torch_dtype").removeprefix("torch.") or reading.checkpoint_dtype()
    low = "bf16" if weights in ("bf16", "bfloat16") else "fp16"
    asked = [kind for kind in ("bf16", "fp16") if reading.flag(kind, default=kind == low)]
    if len(asked) > 1:  # the one that is not stated follows from the model's format
        raise FieldError(f"bf16 and fp16 are both true, {low} as the model's format; add '{low}: false'.")
    reading.set("autocast", asked[0] if asked else "none", "bf16", "fp16", "torch_dtype")
    by_gpu = low == "bf16" and not reading.stated("bf16", "fp16", "torch_dtype")
    if by_gpu:
        reading.set_by_gpu("autocast")
    method = reading.fields["method"]
    if method == "qlora":
        reading.set("weights_dtype", _quantized(reading), "quant_bits", "bnb_4bit_use_double_quant")
    else:
        reading.set("weights_dtype", "fp32" if method == "full" and low == "fp16" else weights, "torch_dtype")
        if by_gpu and method != "full":
            reading.set_by_gpu("weights_dtype")
    if method != "full":
        reading.take("adapter_dtype", "lora_dtype", "fp32")


def _quantized(reading: Reading) -> str:
    stated = next((bits for name, bits in _BITS.items() if reading.flag(name)), None)
    bits = reading.whole("quant_bits", stated, 64)
    kind = reading.text("quant_method", "bnb")
    if kind != "bnb" or bits not in (4, 8):
        raise FieldError(
            f"quant_method={shown(kind)} with {bits} bits is not supported; use bnb with 4 or 8."
        )
    double = reading.flag("bnb_4bit_use_double_quant", default=True)
    return trainer_keys.bitsandbytes(eight=bits == 8, double=double)


def _read_accumulation(reading: Reading) -> None:
    """Read the micro-batches of a step; unstated, they make 16 sequences over all GPUs."""
    stated = reading.get("gradient_accumulation_steps")
    if stated is None:
        micro = whole(1, 10**6)("per_device_train_batch_size", reading.fields["micro_batch_size"])
        stated = max(1, ceil(16 / micro / (reading.launched_gpus or 1)))
    reading.set("gradient_accumulation_steps", stated, "gradient_accumulation_steps")


def _read_length(reading: Reading) -> None:
    length = reading.get("packing_length") if reading.flag("packing") else None
    length = length if length is not None else reading.get("max_length")
    if length is None:
        reading.warn("max_length is unstated, so nothing is cut: state seq_len=… of the longest sample.")
    reading.set("seq_len", length, "max_length", "packing_length")
    strategy = reading.text(
        "truncation_strategy", "delete" if reading.fields["phase"] in ("sft", "pt") else "left"
    )
    reading.set("over_length", _OVER_LENGTH.get(strategy, strategy), "truncation_strategy")


def _length(run: Run) -> dict[str, Any]:
    return {
        "max_length": run.seq_len,
        "truncation_strategy": _TRUNCATION[run.over_length],
        "packing_length": run.seq_len if run.packing else None,
    }


def _read_data(reading: Reading) -> None:
    """Read the data sets, "name#1000" with how many of their samples, and what is held out."""
    listed = reading.get("dataset") or ()
    listed = listed.split() if isinstance(listed, str) else listed
    named = [name.partition("#") for name in names("dataset", listed)]
    counts = [int(count) if count.isdecimal() and len(count) < 11 else None for _, _, count in named]
    total = sum(count or 0 for count in counts) if counts and all(counts) else None
    never = reading.text("eval_strategy", reading.text("save_strategy")) in ("no", "false")
    held_out = 0.0 if never else reading.get("split_dataset_ratio", 0.0)
    ratio = number(0, 1)("split_dataset_ratio", held_out)
    repositories = [(name.partition("::")[2] or name).partition(":")[0] for name, _, _ in named]
    trainer_keys.read_dataset(reading, repositories, "dataset", num_samples=total)
    if not reading.stated("val_dataset"):
        trainer_keys.read_validation(reading, ratio, "split_dataset_ratio", total=total)
    if reading.text("eval_strategy", "steps") == "steps":  # as often as it saves, where nobody says
        every = ("eval_steps", "save_steps")
        reading.set("eval_steps", reading.first(every, 500) if ratio else None, *every)


def _data(run: Run) -> dict[str, Any]:
    named = dataset_name(run)
    counted = named if run.num_samples is None else f"{named}#{run.num_samples}"
    held_out = run.validation_fraction > 0
    return {
        "dataset": [counted] if named else None,
        "split_dataset_ratio": run.validation_fraction or None,
        **(
            {"eval_strategy": "epoch"}
            if held_out and run.eval_steps is None
            else {"eval_steps": run.eval_steps}
        ),
    }


def _read_galore(reading: Reading) -> None:
    """Read GaLore, which stands over `optim`, whose states are of the same kind."""
    if reading.flag("use_galore"):
        reading.not_modelled("galore_quantization")
        states = str(reading.fields["optimizer"]).replace("adamw_torch_fused", "adamw")
        kind = "adafactor" if "adafactor" in states else "adamw_8bit" if "8bit" in states else "adamw"
        reading.set("optimizer", f"galore_{kind}", "use_galore", "optim")
        reading.take("optimizer_rank", "galore_rank", 128)


def _read_sharding(reading: Reading) -> None:
    """Read DeepSpeed by one of the built-in names or its file, or FSDP."""
    for field, named in _OF_DEEPSPEED.items():
        reading.take(field, named)
    for field, value in _OF_FSDP2.items() if reading.text("fsdp") == "fsdp2" else ():
        reading.set(field, value, "fsdp")
    built_in = _BUILT_IN.get(reading.text("deepspeed").removeprefix("default-"))  # before 3.0
    if built_in is None:
        trainer_keys.read_sharding(reading)
        return
    if reading.stated("fsdp"):
        raise FieldError("deepspeed and fsdp are both stated; keep one.")
    reading.set("sharding", built_in[0], "deepspeed")
    reading.set("cpu_offload", built_in[1], "deepspeed")
    if built_in[1] != "none":  # as its zero2_offload.json and zero3_offload.json say
        reading.set("offload_pinned", True, "deepspeed")


def _sharding(run: Run) -> dict[str, Any]:
    if launcher_files.uses_fsdp(run):
        offload = " offload" if run.cpu_offload != "none" else ""
        return {"fsdp": f"{_FSDP[run.sharding]} auto_wrap{offload}"}
    return {"deepspeed": (_built_in(run) or DEEPSPEED) if launcher_files.uses_deepspeed(run) else None}


def _built_in(run: Run) -> str | None:
    """Return the built-in name of the run's sharding; None where a file has to say it."""
    as_built = run.tensor_parallel == 1 and (run.offload_pinned or run.cpu_offload == "none")
    asked = (run.sharding, run.cpu_offload) if as_built else None
    return next((name for name, kind in _BUILT_IN.items() if kind == asked), None)


LENGTH = Row(
    "max_length packing_length truncation_strategy experts_impl use_logits_to_keep", _read_length, _length
)
FREEZING = model_keys.freezing_row("freeze_llm freeze_vit freeze_aligner")
PACKING = trainer_keys.packing_row("packing", "padding_free")
GENERATION = rollout_keys.generation_row(prompt=0, answer=512, beta=0.04, share=0.9)
PPO = rollout_keys.ppo_row("reward_model", 512, "max_completion_length", "max_new_tokens")
DATA = Row("dataset val_dataset split_dataset_ratio eval_strategy eval_steps", _read_data, _data)
FORMAT = Format(
    "ms-swift",
    (
        model_key("model"),
        key("rlhf_type", "phase", "sft", more=LEARNT, write=lambda run: _RLHF.get(run.phase)),
        Row("ref_model", _read_preference),
        Row(
            f"{' '.join(TUNERS)} {_ADAPTERS.keys} {_TUNED} quant_bits task_type num_labels {' '.join(_BITS)}",
            _read_method,
            _method,
        ),
        Row(
            "bf16 fp16 torch_dtype lora_dtype quant_method bnb_4bit_use_double_quant bnb_4bit_quant_type",
            _read_precision,
            lambda run: {
                "torch_dtype": trainer_keys.DTYPES.get(run.weights_dtype, "bfloat16"),
                **trainer_keys.precision(run),
            },
        ),
        key("per_device_train_batch_size", "micro_batch_size", 1),
        key("per_device_eval_batch_size", "eval_batch_size", 1, writes=False),
        key("gradient_accumulation_steps", "gradient_accumulation_steps", read=_read_accumulation),
        trainer_keys.epochs_row(),
        trainer_keys.COMPILE,
        trainer_keys.checkpointing_row("activation_cpu_offload", default=True, reentrant=True),
        trainer_keys.attention_row("attn_impl", words=_ATTENTION),
        trainer_keys.liger_row(),
        trainer_keys.optimizer_row("optim", "adamw_torch_fused"),
        Row("use_galore galore_rank galore_quantization", _read_galore),
        fixed(pad_to_multiple_of=1),
        *(PACKING, LENGTH, GENERATION, PPO, trainer_keys.GROUPING, DATA),
        trainer_keys.DURATION,
        Row(f"{trainer_keys.SHARDING.keys} {' '.join(_OF_DEEPSPEED.values())}", _read_sharding, _sharding),
        degrees({"sequence_parallel_size": "context_parallel"}),
        *(FREEZING, model_keys.pixels_row("min_pixels max_pixels")),
        always(output_dir="output"),
    ),
    model_key="model",
    methods={
        "full": {"tuner_type": "full", "quant_bits": ""},
        "lora": {"tuner_type": "lora", "quant_bits": "0"},
        "qlora": {"tuner_type": "lora", "quant_bits": "4"},
    },
    not_modelled="freeze_parameters_ratio lisa_activated_layers "
    "freeze_parameters freeze_parameters_regex llamapro_num_new_blocks use_tiled_mlp optimizer "
    "auto_find_batch_size optim_target_modules label_smoothing_factor target_regex trainable_parameters "
    "trainable_parameters_regex device_groups interleave_prob chord_sft_dataset",
    lasting=trainer_keys.LASTING,
    data_keys=("dataset", "val_dataset"),
    adapt=_adapt,
)
MEGATRON = Format(
    "Megatron-LM",
    (
        model_key("model"),
        Row("streaming moe_grouped_gemm finetune", lambda _: None),
        *(megatron_lm.METHOD, megatron_lm.MICRO_BATCH, megatron_lm.ITERATIONS, megatron_lm.PARALLELISM),
        *(megatron_lm.OPTIMIZER, megatron_lm.ATTENTION, megatron_lm.KERNELS),
        *(trainer_keys.epochs_row(), PACKING, LENGTH, GENERATION, DATA, FREEZING, trainer_keys.DURATION),
    ),
    model_key="model",
    not_modelled="freeze_parameters freeze_parameters_ratio freeze_parameters_regex "
    "mtp_num_layers modules_to_save fp4_format optimizer_offload_fraction",
    lists_its_keys=False,
    adapt=_of_megatron,
)


def sheet(run: Run) -> Sheet:
    """Return the files of ms-swift for `run`."""
    require(run, FORMAT.name, "use method=full, lora or qlora.", method=("full", "lora", "qlora"))
    keys = FORMAT.written(run)
    named = keys.get("deepspeed") == DEEPSPEED
    beside = {DEEPSPEED: launcher_files.deepspeed(run)} if named else {}
    verb = {"sft": "sft", "pretrain": "pt"}.get(run.phase, "rlhf")
    command = f"swift {verb} {FILE}"
    if run.num_gpus > 1:
        command = f"{launcher_files.environment(run)} {command}"
    packages = "ms-swift deepspeed" if "deepspeed" in keys else "ms-swift"
    return Sheet(FILE, keys, command, packages, beside, spoken=("phase",) if verb == "pt" else ())
