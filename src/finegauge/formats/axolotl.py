"""Axolotl's YAML, hidden defaults included.

What no key says but the framework does (read from Axolotl 0.19): a cut-off of 512; micro-batches of
1; one epoch; bf16 arithmetic on bf16 weights; no gradient checkpointing; padding to a multiple of
64, and to the cut-off as soon as samples are packed, which keeps them apart; adapters in fp32; 4 bits
mean NF4, double quantised; no adapter means every weight trains.
"""

import re
from collections.abc import Mapping
from typing import Any

from finegauge.errors import FieldError, shown
from finegauge.formats import launcher_files, model_keys, rollout_keys, trainer_keys
from finegauge.formats.key_table import Format, Reading, Row, always, degrees, key, model_key, read_degrees
from finegauge.formats.sheet import DEEPSPEED, Sheet, dataset_name, file_kind, targets, whole_number, without
from finegauge.run.field import flag, names, number
from finegauge.run.rules import PAIRED
from finegauge.run.run import Run

FILE = "axolotl.yaml"
_ADAPTERS = trainer_keys.Adapters(
    "lora_r lora_alpha lora_dropout lora_target_modules lora_modules_to_save peft_use_dora", all_unasked=False
)
_DATA_DEGREES = {"dp_replicate_size": "data_parallel_replicate", "dp_shard_size": "data_parallel_shard"}
_DEGREES = {
    "tensor_parallel_size": "tensor_parallel",
    "context_parallel_size": "context_parallel",
    "sequence_parallel_degree": "context_parallel",
    "expert_parallel_size": "expert_parallel",
}
_ATTENTION_FLAGS = {
    "xformers_attention": "sdpa",
    "sage_attention": "flash",
    "flex_attention": "flash",
    "flash_attention": "flash",
    "sdp_attention": "sdpa",
    "eager_attention": "eager",
}  # in the order in which they are asked
_JUDGES = ("reward_model", "process_reward_model")  # the latter of every step of an answer
_LIGER = ("liger_rope", "liger_rms_norm", "liger_layer_norm", "liger_glu_activation", "liger_swiglu")
_LOSS = ("plugins", "cut_cross_entropy", "liger_fused_linear_cross_entropy", "chunked_cross_entropy")
_LIGER_PLUGIN = "axolotl.integrations.liger.LigerPlugin"
_CUT_PLUGIN = "axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin"
_PRECISION = ("bf16", "bfloat16", "fp16", "float16")
_LEARNT = {"dpo": "dpo", "ipo": "dpo", "kto": "dpo", "orpo": "dpo", "simpo": "dpo", "grpo": "grpo"}


def _read_phase(reading: Reading) -> None:
    method = reading.text("rl")
    if method in ("", "false"):
        phase = "reward" if any(map(reading.flag, _JUDGES)) else "sft"
        phase = "pretrain" if reading.stated("pretraining_dataset") else phase
        reading.not_modelled(_JUDGES[1])
        reading.set("phase", phase, *_JUDGES, "pretraining_dataset")
        return
    if method not in _LEARNT:
        raise FieldError(f"rl={shown(method)} is not supported; use dpo or grpo.")
    rollout_keys.read_preference(reading, method, "rl")
    reading.set("phase", _LEARNT[method], "rl")


def _phase(run: Run) -> dict[str, Any]:
    return {
        "rl": run.phase if run.phase in ("dpo", "grpo") else None,
        "reward_model": True if run.phase == "reward" else None,
    }


def _read_method(reading: Reading) -> None:
    adapter, four, eight = reading.text("adapter"), reading.flag("load_in_4bit"), reading.flag("load_in_8bit")
    if four and eight:
        raise FieldError("load_in_4bit and load_in_8bit are both true; keep one.")
    if adapter in ("", "none", "null"):
        if four or eight:
            raise FieldError("load_in_4bit and load_in_8bit need an adapter; add 'adapter: qlora'.")
        reading.set("method", "full", "adapter")
        reading.ignored(
            (*_ADAPTERS.names[:3], "lora_target_linear", "lora_target_modules"), "no adapter is stated"
        )
        return
    if adapter not in ("lora", "qlora"):
        raise FieldError(f"adapter={shown(adapter)} is not supported; use lora or qlora.")
    gptq = reading.flag("gptq")
    if adapter == "qlora" and not (four or gptq):
        raise FieldError("adapter qlora needs 'load_in_4bit: true'; add it, or use 'adapter: lora'.")
    method = "gptq_lora" if gptq else "qlora" if four or eight else "lora"
    reading.set("method", method, "adapter", "load_in_4bit", "load_in_8bit", "gptq")
    _ADAPTERS.read(reading)
    if reading.flag("lora_target_linear"):
        reading.set("lora_targets", "all-linear", "lora_target_linear")


def _method(run: Run) -> dict[str, Any]:
    if not run.trains_adapters:
        return {}
    everything = targets(run) == ("all-linear",)
    four = run.weights_dtype in ("nf4", "nf4_dq")
    keys = {
        "adapter": "qlora" if four or run.method == "gptq_lora" else "lora",
        "gptq": True if run.method == "gptq_lora" else None,
        "load_in_4bit": True if four else None,
        "load_in_8bit": True if run.weights_dtype == "int8" else None,
        "bnb_config_kwargs": {"bnb_4bit_use_double_quant": False} if run.weights_dtype == "nf4" else None,
        "lora_target_linear": True if everything else None,
        "peft_autocast_adapter_dtype": None if run.adapter_dtype == "fp32" else False,
    }
    keys |= _ADAPTERS.written(run)
    return keys | ({"lora_target_modules": None} if everything else {})


def _read_precision(reading: Reading) -> None:
    word, fp16 = reading.text("bf16", "auto"), reading.flag("fp16")
    mixed_bf16 = word == "auto" and not fp16
    mixed_bf16 |= word not in ("auto", "full") and flag("bf16", word)
    pure = "bf16" if word == "full" else "fp16" if reading.flag("float16") and not mixed_bf16 else None
    mixed_bf16 |= reading.flag("bfloat16") or word == "full"  # the former asks for both, too
    if mixed_bf16 and fp16 and not reading.flag("bfloat16"):
        raise FieldError("bf16 and fp16 are both true; keep one.")
    mixed = "bf16" if mixed_bf16 else "fp16" if fp16 else "none"
    reading.set("autocast", "none" if pure else mixed, *_PRECISION)
    by_gpu = word == "auto" and mixed_bf16 and not reading.flag("bfloat16")
    if by_gpu:
        reading.set_by_gpu("autocast")
    low = pure or ("fp32" if mixed == "none" else mixed)
    method = reading.fields["method"]
    if method in ("qlora", "gptq_lora"):
        reading.set("weights_dtype", _quantized(reading), "load_in_4bit", "load_in_8bit", "bnb_config_kwargs")
    else:
        reading.set("weights_dtype", low, *_PRECISION)
        if by_gpu:
            reading.set_by_gpu("weights_dtype")
    if method != "full":
        upcast = reading.flag("peft_autocast_adapter_dtype", default=True)
        reading.set("adapter_dtype", "fp32" if upcast else low, "peft_autocast_adapter_dtype")


def _quantized(reading: Reading) -> str:
    if reading.flag("gptq"):
        return "gptq4"
    options = reading.get("bnb_config_kwargs")
    double = options.get("bnb_4bit_use_double_quant", True) if isinstance(options, Mapping) else True
    eight = reading.flag("load_in_8bit")
    return trainer_keys.bitsandbytes(eight=eight, double=eight or flag("bnb_4bit_use_double_quant", double))


def _precision(run: Run) -> dict[str, Any]:
    """Return mixed precision, or one format for everything."""
    if run.autocast == "none" and (run.trains_adapters or run.weights_dtype != "fp32"):
        trained = run.adapter_dtype if run.weights_dtype not in trainer_keys.DTYPES else run.weights_dtype
        pure = {"bf16": "bfloat16", "fp16": "float16"}.get(trained)
        return {"bf16": False, pure: True} if pure else {"bf16": False}
    return trainer_keys.precision(run)


def _read_batches(reading: Reading) -> None:
    """Read the rows of an evaluation, which are those of training unless stated (`normalize_config`)."""
    reading.ignored(("batch_size",), "gradient_accumulation_steps is taken, which is 1 unless stated")
    rows = reading.get("eval_batch_size") or reading.get("micro_batch_size", 1)
    reading.set("eval_batch_size", rows, "eval_batch_size", "micro_batch_size")


def _read_checkpointing(reading: Reading) -> None:
    trainer_keys.read_checkpointing(reading, default=False, reentrant=True)
    if reading.get("selective_checkpointing") not in (None, False):
        reading.set("activation_checkpointing", "selective", "selective_checkpointing")
    if reading.text("activation_offloading", "false") not in ("false", "no", "off", "0"):
        reading.set("activation_checkpointing", "offload", "activation_offloading")


def _checkpointing(run: Run) -> dict[str, Any]:
    kind = run.activation_checkpointing
    return {
        **trainer_keys.checkpointing(run),
        "selective_checkpointing": True if kind == "selective" else None,
        "activation_offloading": True if kind == "offload" else None,
    }


def _read_attention(reading: Reading) -> None:
    asked = [key for key in _ATTENTION_FLAGS if reading.flag(key)]
    if len({_ATTENTION_FLAGS[key] for key in asked}) > 1:
        reading.warn(f"{' and '.join(asked)} are both true, of which Axolotl takes {asked[0]}.")
    legacy = next(iter(asked), None)
    if legacy is not None and not reading.stated("attn_implementation"):
        reading.set("attention", _ATTENTION_FLAGS[legacy], legacy)
    else:
        trainer_keys.read_attention(reading, "attn_implementation", "attention")


def _read_kernels(reading: Reading) -> None:
    """Read the plugins: Liger's kernels, cut cross-entropy, a loss in chunks."""
    listed = [name.rpartition(".")[2] for name in names("plugins", reading.get("plugins") or ())]
    for name in listed:
        if not re.search("(?i)liger|cutcrossentropy", name):
            reading.warn(f"The plugin {shown(name)} is not modelled: the run is taken as without it.")
    plugins = " ".join(listed).lower()
    liger = "liger" in plugins
    reading.set("kernels", ["liger"] if liger and any(map(reading.flag, _LIGER)) else [], "plugins", *_LIGER)
    cut = "cutcrossentropy" in plugins and reading.flag("cut_cross_entropy", default=True)
    if cut or (liger and reading.flag("liger_fused_linear_cross_entropy")):
        loss = "fused"
    else:
        loss = "chunked" if reading.flag("chunked_cross_entropy") else "full_logits"
    reading.set("loss", loss, *_LOSS)


def _kernels(run: Run) -> dict[str, Any]:
    liger, fused = "liger" in run.kernels, run.loss == "fused"
    plugins = ([_LIGER_PLUGIN] if liger else []) + ([_CUT_PLUGIN] if fused and not liger else [])
    return {
        "plugins": plugins or None,
        "liger_rope": True if liger else None,
        "liger_rms_norm": True if liger else None,
        "liger_glu_activation": True if liger else None,
        "liger_fused_linear_cross_entropy": fused if liger else None,
        "chunked_cross_entropy": True if run.loss == "chunked" else None,
    }


def _read_batching(reading: Reading) -> None:
    packed = reading.flag("sample_packing") or reading.stated("max_packed_sequence_len")  # of 0.3
    padded = reading.flag("pad_to_sequence_len", default=reading.fields["phase"] == "reward")
    flattens = reading.text("batch_flattening", "false")
    varlen = reading.fields["attention"] == "flash" and str(reading.fields["micro_batch_size"]) != "1"
    flat = not packed and (varlen if flattens == "auto" else flag("batch_flattening", flattens))
    if (packed or flat) and reading.fields["phase"] in PAIRED:
        reading.warn("sample_packing or batch_flattening of pairs is not modelled: they are taken as padded.")
        packed = flat = False
    reading.set("packing", packed, "sample_packing", "max_packed_sequence_len")
    padding = "free" if packed or flat else "max" if padded else "longest"
    reading.set("padding", padding, "sample_packing", "pad_to_sequence_len", "batch_flattening")
    strategy = reading.text("excess_length_strategy", "drop")  # "raise": there is none, or there is no run
    reading.set("over_length", "drop" if strategy == "drop" else "truncate", "excess_length_strategy")


def _batching(run: Run) -> dict[str, Any]:
    return {
        "excess_length_strategy": run.over_length if run.over_length != "split" else "truncate",
        "sample_packing": run.packing,
        "pad_to_sequence_len": run.packing or run.padding == "max",
        "batch_flattening": True if run.padding == "free" and not run.packing else None,
    }


def _read_data(reading: Reading) -> None:
    listed = reading.get("datasets") or reading.get("pretraining_dataset") or ()
    listed = listed if isinstance(listed, list) else [listed]
    paths = [entry.get("path") if isinstance(entry, Mapping) else entry for entry in listed]
    key = "datasets" if reading.stated("datasets") else "pretraining_dataset"
    split = str(listed[0].get("split", "")) if len(listed) == 1 and isinstance(listed[0], Mapping) else ""
    trainer_keys.read_dataset(reading, [path for path in paths if path], key, split=split)
    total = reading.fields.get("num_samples") or trainer_keys.in_all([reading.fields.get("dataset") or ""])
    trainer_keys.read_validation(reading, reading.get("val_set_size"), "val_set_size", total=total)
    each = number(0, 1e6)("evals_per_epoch", reading.get("evals_per_epoch", 0))
    if each and not reading.stated("eval_steps"):
        epochs = number(1e-6, 1e6)("num_epochs", reading.fields["epochs"])
        reading.set("eval_steps", 1 / each / epochs, "evals_per_epoch")


def _data(run: Run) -> dict[str, Any]:
    named = dataset_name(run)
    kind = file_kind(named) if named else None
    listed = [without({"path": named, "ds_type": kind, "type": "chat_template"})] if named else None
    pretrain = run.phase == "pretrain"
    return {
        "datasets": None if pretrain else listed,
        "pretraining_dataset": (listed or [{"path": "pretraining"}]) if pretrain else None,
        "val_set_size": run.validation_fraction or None,
    }


def _read_sharding(reading: Reading) -> None:
    trainer_keys.read_sharding(reading, by_config=True)
    read_degrees(reading, _DATA_DEGREES)
    experts = reading.whole("expert_parallel_size", 1, 10**4)
    if experts > 1 and reading.stated("dp_shard_size"):  # which counts the ranks of one expert's copies
        shard = reading.whole("dp_shard_size", most=10**5)
        reading.set("data_parallel_shard", shard * experts, "dp_shard_size", "expert_parallel_size")
    if reading.fields.get("sharding") == "fsdp" and "data_parallel_replicate" in reading.fields:
        reading.set("sharding", "hybrid", "dp_replicate_size")


def _sharding(run: Run) -> dict[str, Any]:
    if launcher_files.uses_deepspeed(run):
        return {"deepspeed": DEEPSPEED}
    if not launcher_files.uses_fsdp(run):
        return {}
    replicas = run.data_parallel_replicate
    return {
        "fsdp_version": 2,
        "fsdp_config": launcher_files.fsdp_options(run),
        "dp_shard_size": run.data_parallel_shard,
        "dp_replicate_size": replicas if replicas > 1 else None,
    }


FORMAT = Format(
    "Axolotl",
    (
        model_key("base_model"),
        Row(f"rl {' '.join(_JUDGES)} pretraining_dataset", _read_phase, _phase),
        Row(
            f"adapter load_in_4bit load_in_8bit gptq lora_target_linear {_ADAPTERS.keys}",
            _read_method,
            _method,
        ),
        Row(
            f"{' '.join(_PRECISION)} bnb_config_kwargs peft_autocast_adapter_dtype",
            _read_precision,
            _precision,
        ),
        Row("datasets val_set_size", write=_data),
        key("sequence_len", "seq_len", 512),
        key("micro_batch_size", "micro_batch_size", 1),
        key("gradient_accumulation_steps", "gradient_accumulation_steps", 1),
        trainer_keys.epochs_row("num_epochs", 1.0),
        key("saves_per_epoch", "saves_per_epoch", write=lambda run: whole_number(run.saves_per_epoch)),
        Row("eval_batch_size batch_size", _read_batches),
        trainer_keys.DURATION._replace(write=lambda run: {"max_steps": run.max_steps}),
        Row(
            f"{trainer_keys.CHECKPOINTING_KEYS} selective_checkpointing activation_offloading "
            "layer_offloading",
            _read_checkpointing,
            _checkpointing,
        ),
        Row(
            f"attn_implementation attention {' '.join(_ATTENTION_FLAGS)}",
            _read_attention,
            trainer_keys.attention_row("attn_implementation").write,
        ),
        Row(" ".join((*_LIGER, *_LOSS)), _read_kernels, _kernels),
        trainer_keys.optimizer_row("optimizer", "adamw_torch_fused", {"adamw_8bit": "adamw_bnb_8bit"}),
        model_keys.RAY,
        model_keys.experts_row(lambda run: "eager" if run.experts_implementation == "eager" else None),
        key("quantize_moe_experts", "quantize_experts", writes=False),
        trainer_keys.FP8,
        key("torch_compile", "compile", False, more={"auto": True}, write=lambda run: run.compile or None),
        Row(
            "sample_packing pad_to_sequence_len batch_flattening excess_length_strategy",
            _read_batching,
            _batching,
        ),
        key(
            "pad_to_multiple_of",
            "pad_to_multiple_of",
            64,
            write=lambda run: None if run.packing else run.pad_to_multiple_of,
        ),
        rollout_keys.generation_row("trl.", server="vllm."),
        trainer_keys.GROUPING._replace(
            write=lambda run: {"group_by_length": True if run.group_by_length else None}
        ),
        Row("datasets val_set_size evals_per_epoch", _read_data),
        trainer_keys.EVALUATION_OF_PART,
        Row(
            f"{trainer_keys.SHARDING.keys} fsdp_version {' '.join(_DATA_DEGREES)}", _read_sharding, _sharding
        ),
        degrees(_DEGREES),
        always(output_dir="output"),
    ),
    model_key="base_model",
    methods={
        "full": {"adapter": "none", "load_in_4bit": "false", "load_in_8bit": "false"},
        "lora": {"adapter": "lora", "load_in_4bit": "false", "load_in_8bit": "false"},
        "qlora": {"adapter": "qlora", "load_in_4bit": "true", "load_in_8bit": "false"},
    },
    not_modelled="relora lisa_n_layers unfrozen_parameters tiled_mlp layer_offloading use_onebitllms "
    "auto_find_batch_size optim_target_modules lora_rank_pattern peft_layers_to_transform "
    "spectrum_top_fraction kd_trainer model_quantization_config qat nonexpert_quantization "
    "overrides_of_model_config dpo_use_liger_kernel lora_mlp_kernel lora_qkv_kernel lora_o_kernel "
    "flash_attn_cross_entropy flash_attn_fuse_mlp flash_attn_fuse_qkv unsloth_cross_entropy_loss "
    "label_smoothing_factor dataset_shard_num deepcompile dpo_padding_free diffusion freeze_mm_modules "
    "use_mora use_scattermoe use_sonicmoe ple_cpu_offload s2_attention",
    lasting=trainer_keys.LASTING | {"lr_scheduler_type": "lr_scheduler"},
    data_keys=("datasets",),
)


def sheet(run: Run) -> Sheet:
    """Return the files of Axolotl for `run`."""
    beside = {DEEPSPEED: launcher_files.deepspeed(run)} if launcher_files.uses_deepspeed(run) else {}
    command = f"axolotl train {FILE}"
    if run.num_gpus > 1:
        command = f"{command} --launcher torchrun -- {launcher_files.torchrun_words(run)}"
    packages = "axolotl[deepspeed]" if beside else "axolotl"
    return Sheet(FILE, FORMAT.written(run), command, packages, beside)
