"""LLaMA-Factory's YAML (the v0 format of `llamafactory-cli train`), hidden defaults included.

What no key says but the framework does (read from its source, v0.9.x): LoRA of rank 8 on all
linear layers; gradient checkpointing on; trained parameters kept in fp32 unless pure_bf16 or
unquantised ZeRO-3; the base model loaded in the training precision; 4 bits mean NF4, double
quantised; micro-batches of 8, padded to the longest and a multiple of 8; three epochs.

Data sets are looked up in the catalogue, then in the project's dataset_info.json; where neither has one,
every sequence is as long as the cut-off. The format has no tensor, pipeline or context parallelism; FSDP
stands in accelerate's file, ZeRO in DeepSpeed's.
"""

import os
from typing import Any

from finegauge.documents import parse_yaml, read_text
from finegauge.errors import FieldError, InputError, UnknownNameError, UnsupportedError, shown
from finegauge.formats import launcher_files, model_keys, trainer_keys
from finegauge.formats.key_table import Format, Reading, Row, always, key, model_key
from finegauge.formats.sheet import ACCELERATE, DEEPSPEED, Sheet, dataset_name, refuse
from finegauge.run.field import flag, names, number, whole
from finegauge.run.rules import PROJECTING
from finegauge.run.run import Run

FILE = "llamafactory.yaml"
_ADAPTERS = trainer_keys.Adapters(
    "lora_rank lora_alpha lora_dropout lora_target additional_target use_dora",
    defaults=(8, None, 0.0),
    everything="all",
    joined=True,
)
CHECKPOINTING = ("disable_gradient_checkpointing", "use_unsloth_gc", "gradient_checkpointing")
_PHASES = {"reward": "rm", "pretrain": "pt"}
_OPTIMIZERS = {
    "galore": "galore_adamw", "apollo": "apollo_adamw", "adam_mini": "adam_mini", "muon": "muon"
}  # fmt: skip


def _read_task(reading: Reading) -> None:
    """Refuse a file that merges, predicts or evaluates: it trains nothing."""
    does = [
        key
        for key in ("export_dir", "do_predict", "do_eval", "task")
        if reading.get(key) not in (None, False)
    ]
    trains = reading.flag("do_train", default=not does)
    if not trains and (does or reading.stated("do_train")):
        what = f"{does[0]} without do_train" if does else "do_train: false"
        raise FieldError(f"{reading.file_name} trains nothing ({what}); name the file of its training.")


def _read_sequence_parallel(reading: Reading) -> None:
    if reading.whole("sequence_parallel_size", 1) > 1:
        reading.take("context_parallel", "sequence_parallel_size")


def _read_method(reading: Reading) -> None:
    kind = str(reading.get("finetuning_type", "lora")).lower()
    bits = reading.get("quantization_bit")
    if kind == "oft":
        kind = "lora"
        reading.set("adapter", "oft", "finetuning_type")
        reading.take("adapter_size", "oft_block_size", 32)
        reading.take("lora_targets", "oft_target", "all")
        reading.set("method", "lora" if bits is None else "qlora", "finetuning_type", "quantization_bit")
        trainer_keys.read_extra(reading, "additional_target")
        return
    if kind not in ("lora", "full", "freeze"):
        raise FieldError(f"finetuning_type={shown(kind)} is not supported; use lora, oft, freeze or full.")
    if kind == "lora" and trainer_keys.is_quantized_copy(reading):
        bits = bits or 4
    if bits is None:
        method = kind
    elif kind == "lora":
        method = "qlora"
    else:
        raise FieldError(f"quantization_bit={shown(bits)} needs finetuning_type lora, not {shown(kind)}.")
    reading.set("method", method, "finetuning_type", "quantization_bit")
    if kind == "lora":
        _ADAPTERS.read(reading)
        if reading.flag("resize_vocab") and not reading.stated("additional_target"):
            reading.set("trainable_extra", ["embed_tokens", "lm_head"], "resize_vocab")
    else:
        reading.ignored(_ADAPTERS.names[:4], f"finetuning_type is {kind}")
        trainer_keys.read_extra(reading, "additional_target")
    if kind == "freeze":
        if reading.text("freeze_trainable_modules", "all") != "all":
            reading.not_modelled("freeze_trainable_modules")
        layers = number(-1e4, 1e4)("freeze_trainable_layers", reading.get("freeze_trainable_layers", 2))
        reading.set("freeze_trainable_layers", abs(int(layers)), "freeze_trainable_layers")


def _read_preference(reading: Reading) -> None:
    method = reading.text("pref_loss" if reading.text("stage") == "dpo" else "stage")
    if method not in ("", "sft", "pt") or reading.stated("ref_model"):
        from finegauge.formats import rollout_keys

        rollout_keys.other_model(reading, "reference_model", "ref_model")
        reading.not_modelled("ref_model_quantization_bit")
        rollout_keys.read_preference(reading, method, "pref_loss", "stage")


def _read_optimizer(reading: Reading) -> None:
    """Read `optim`, over which stand GaLore, APOLLO, Adam-mini and Muon where they are asked for."""
    trainer_keys.read_optimizer(reading, "optim", "adamw")
    for name, optimizer in _OPTIMIZERS.items():
        if not reading.flag(f"use_{name}"):
            continue
        stated = reading.text("optim", "adamw")  # GaLore's states are of the same kind
        kind = "_8bit" if "8bit" in stated or "bnb" in stated else ""
        projected = {"galore": "galore_adafactor" if stated == "adafactor" else optimizer + kind}
        reading.set("optimizer", projected.get(name, optimizer), f"use_{name}", "optim")
        if optimizer.startswith(PROJECTING):
            reading.take("optimizer_rank", f"{name}_rank", 16)
        if reading.flag(f"{name}_layerwise"):
            reading.set("optimizer_implementation", "in_backward", f"{name}_layerwise")


def _optimizer(run: Run) -> dict[str, Any]:
    own = next((name for name, optimizer in _OPTIMIZERS.items() if optimizer == run.optimizer), None)
    if own is None:
        return trainer_keys.optimizer(run, "optim")
    ranked = run.optimizer_rank is not None
    layerwise = True if ranked and run.optimizer_implementation == "in_backward" else None
    return {
        f"use_{own}": True,
        **({f"{own}_rank": run.optimizer_rank, f"{own}_layerwise": layerwise} if ranked else {}),
    }


def _method(run: Run) -> dict[str, Any]:
    if not run.trains_adapters:
        return {"finetuning_type": run.method, "freeze_trainable_layers": run.freeze_trainable_layers}
    quantized, four = run.method != "lora", run.weights_dtype != "int8"
    by_oft = run.adapter == "oft"
    oft = {"oft_block_size": run.adapter_size, "oft_target": _ADAPTERS.written(run)["lora_target"]}
    return {
        "finetuning_type": "oft" if by_oft else "lora",
        **(oft if by_oft else _ADAPTERS.written(run)),
        "additional_target": ",".join(trainer_keys.saved_modules(run) or ()) or None,
        "quantization_bit": (4 if four else 8) if quantized else None,
        "double_quantization": run.weights_dtype == "nf4_dq" if quantized and four else None,
        "upcast_layernorm": True if run.upcast_unquantized else None,
    }


def _read_precision(reading: Reading) -> None:
    pure, bf16, fp16 = (reading.flag(key) for key in ("pure_bf16", "bf16", "fp16"))
    if fp16 and (bf16 or pure):
        raise FieldError("bf16 and fp16 are both true; keep one.")
    low = "bf16" if bf16 or pure else "fp16" if fp16 else reading.checkpoint_dtype()
    keys = ("bf16", "fp16", "pure_bf16")
    reading.set("autocast", "none" if pure or not (bf16 or fp16) else low, *keys)
    method = reading.fields["method"]
    named = reading.get("deepspeed")
    zero3 = bool(named) and launcher_files.zero_of(named, reading.file).fields["sharding"] == "zero3"
    trained = low if pure or (zero3 and method != "qlora") else "fp32"
    if method == "qlora":
        reading.set("weights_dtype", _quantized(reading), "quantization_bit", "double_quantization")
    else:
        reading.set("weights_dtype", trained if method == "full" else low, *keys)
        if method != "full" and low == "bf16" and not (bf16 or pure):
            reading.set_by_gpu("weights_dtype")
    if method in ("lora", "qlora"):
        reading.set("adapter_dtype", trained, "pure_bf16")
    upcast = reading.flag("upcast_layernorm") and method == "qlora"
    reading.set("upcast_unquantized", upcast, "upcast_layernorm")


def _read_ppo(reading: Reading) -> None:
    if reading.fields["phase"] != "ppo":
        return
    reading.take("ppo_epochs", "ppo_epochs", 4)
    reading.take("num_mini_batches", "ppo_buffer_size", 1)  # each of a micro-batch times its accumulation
    reading.take("max_new_tokens", "max_new_tokens", 1024)
    kind = reading.text("reward_model_type", "lora")
    if kind == "full":
        from finegauge.formats import rollout_keys

        rollout_keys.other_model(reading, "reward_model", "reward_model")
    else:
        reading.warn(f"reward_model_type={shown(kind)} is not modelled: a whole model is taken to judge.")


def _quantized(reading: Reading) -> str:
    if (quantiser := reading.text("quantization_method", "bnb")) not in ("bnb", "bitsandbytes"):
        reading.warn(f"quantization_method={shown(quantiser)} is not modelled: taken as bitsandbytes'.")
    bits = trainer_keys.bits_of(reading, "quantization_bit") if reading.stated("quantization_bit") else 4
    if str(reading.get("quantization_type", "nf4")).lower() != "nf4":
        reading.warn("quantization_type is taken as nf4, which takes as much memory as fp4.")
    double = reading.flag("double_quantization", default=True)
    return trainer_keys.bitsandbytes(eight=bits == 8, double=double)


def _precision(run: Run) -> dict[str, Any]:
    """Return bf16 throughout, or mixed precision over fp32 trained weights."""
    trained = run.adapter_dtype if run.trains_adapters else run.weights_dtype
    if run.autocast == "none" and trained == "bf16":
        return {"pure_bf16": True}
    return trainer_keys.precision(run)


def _read_checkpointing(reading: Reading) -> None:
    off, offload, on = map(reading.flag, CHECKPOINTING)
    kind = ("full" if on else "none") if off else "offload" if offload else "full"  # or the Trainer's own
    reading.set("activation_checkpointing", kind, *CHECKPOINTING)


def _checkpointing(run: Run) -> dict[str, Any]:
    kind = run.activation_checkpointing
    if kind == "none":
        return {"disable_gradient_checkpointing": True}
    return {"disable_gradient_checkpointing": False, "use_unsloth_gc": True if kind == "offload" else None}


def _read_kernels(reading: Reading) -> None:
    keys = ("enable_liger_kernel", "use_liger_kernel")
    liger = any(map(reading.flag, keys))
    kernels = (["liger"] if liger else []) + (["unsloth"] if reading.flag("use_unsloth") else [])
    reading.set("kernels", kernels, *keys, "use_unsloth")
    reading.set("loss", "fused" if liger else "full_logits", *keys)


def _kernels(run: Run) -> dict[str, Any]:
    return {
        "enable_liger_kernel": True if "liger" in run.kernels else None,
        "use_unsloth": True if "unsloth" in run.kernels else None,
    }


def read_batching(reading: Reading) -> None:
    """Read whether samples are packed or padded, for either trainer."""
    packing = reading.get("packing")
    neat, pretrains = reading.flag("neat_packing"), reading.fields["phase"] in ("pt", "pretrain")
    packed = neat or (pretrains if packing is None else flag("packing", packing))
    if packed and reading.fields["phase"] not in ("sft", "pt", "pretrain"):
        reading.ignored(("packing", "neat_packing"), "only samples of pt and sft are packed")
        packed = neat = False
    reading.set("packing", packed, "packing", "neat_packing")
    wraps = packed and pretrains
    reading.set("packing_strategy", "wrapped" if wraps else "best_fit_decreasing", "stage")
    reading.set("over_length", "truncate")
    reading.set("padding", ("free" if neat else "max") if packed else "longest", "neat_packing")


def _read_data(reading: Reading) -> None:
    """Read the data sets, how many of their samples are used, and what is held out."""
    strict = "dataset" in reading.overrides  # must be in the catalogue
    named = names("dataset", reading.get("dataset") or ())
    limit = reading.get("max_samples")
    limit = whole(1, 10**10)("max_samples", limit) if limit else None
    known, total, unknown = None, 0, False
    for name in named:
        found, size = _look_up(name, reading, strict=strict)
        known = found or known
        unknown = unknown or found is None
        size = limit if size is None else min(size, limit or size)
        total = -1 if size is None or total < 0 else total + size
    if unknown or len(named) != 1:
        if named:
            reading.warn(trainer_keys.unknown_lengths(named, "cutoff_len"))
        known = None
    reading.set("dataset", known, "dataset")
    if reading.text("mix_strategy", "concat") != "concat":
        reading.not_modelled("mix_strategy")
    if total > 0 and (known is None or limit is not None):
        reading.set("num_samples", total, "max_samples", "dataset")
    evaluates = reading.get("eval_strategy") or reading.get("evaluation_strategy") or "no"
    reading.set("eval_samples", 0, "eval_strategy")
    trainer_keys.read_validation(
        reading,
        reading.get("val_size"),
        "val_size",
        total=max(0, total) or None,
        evaluates=str(evaluates).lower() != "no",
    )


def _look_up(name: str, reading: Reading, *, strict: bool) -> tuple[str | None, int | None]:
    """Return (name that a run may have, samples) of a data set; None where unknown.

    A file of texts that the command line names is one of its own; a tokenizer says how long they are.
    """
    from finegauge.catalogue.datasets import dataset, holds_texts, samples_in

    if strict and holds_texts(name, has_tokenizer=False):
        return name, None
    beside = os.path.join(os.path.dirname(reading.file), name)
    path_or_name = beside if os.path.isfile(beside) else name
    try:
        found = dataset(path_or_name)
    except (UnknownNameError, UnsupportedError):  # whose lengths nobody published
        if strict:
            raise
        return None, _listed_samples(name, reading) or samples_in(name)
    return path_or_name if found.lengths else None, found.num_samples


def _listed_samples(name: str, reading: Reading) -> int | None:
    """Return the num_samples that the project's dataset_info.json lists for `name`."""
    folder = str(reading.get("dataset_dir") or "data")
    for base in (os.path.realpath(os.path.dirname(reading.file)), os.path.realpath(os.curdir)):
        try:
            listing = os.path.realpath(os.path.join(base, folder, "dataset_info.json"))
            if listing.startswith(os.path.join(base, "")) and os.path.isfile(listing):
                entry = parse_yaml(read_text(listing), "dataset_info.json")[name]
                return int(whole()("num_samples", entry["num_samples"]))
        except (InputError, KeyError, TypeError, OSError, ValueError, RuntimeError):
            continue  # a listing that cannot be read tells nothing
    return None


def _data(run: Run) -> dict[str, Any]:
    named, held_out = dataset_name(run), run.validation_fraction > 0
    return {
        "dataset": named,
        "max_samples": run.num_samples if named else None,
        "val_size": run.validation_fraction if held_out else None,
    }


TASK = Row("do_train do_predict do_eval export_dir task use_mca", _read_task, lambda _: {"do_train": True})
DATA = Row("dataset dataset_dir max_samples val_size", _read_data, _data)
FORMAT = Format(
    "LLaMA-Factory",
    (
        model_key("model_name_or_path"),
        key(
            "stage", "phase", "sft", more={"kto": "dpo"}, write=lambda run: _PHASES.get(run.phase, run.phase)
        ),
        Row("pref_loss ref_model", _read_preference),
        TASK,
        model_keys.RAY,
        Row("sequence_parallel_size sequence_parallel_mode", _read_sequence_parallel),  # of forks
        Row(
            f"finetuning_type quantization_bit {_ADAPTERS.keys} resize_vocab oft_block_size "
            "oft_target freeze_trainable_layers",
            _read_method,
            _method,
        ),
        model_keys.freezing_row("freeze_language_model freeze_vision_tower freeze_multi_modal_projector"),
        model_keys.pixels_row("image_min_pixels image_max_pixels", at_most=768 * 768),
        key("cutoff_len", "seq_len", 2048),
        *trainer_keys.batch_rows(8),
        trainer_keys.epochs_row(),
        trainer_keys.COMPILE,
        trainer_keys.FP8,
        key(
            "use_reentrant_gc",
            "checkpointing_reentrant",
            True,
            write=lambda run: None if run.activation_checkpointing == "none" else run.checkpointing_reentrant,
        ),
        Row(
            "bf16 fp16 pure_bf16 upcast_layernorm quantization_type double_quantization",
            _read_precision,
            _precision,
        ),
        Row(" ".join(CHECKPOINTING), _read_checkpointing, _checkpointing),
        key(
            "flash_attn",
            "attention",
            "sdpa",
            words={"sdpa": "sdpa", "flash": "fa2", "eager": "disabled"},
            more={"auto": "sdpa", "fa3": "flash", "true": "flash", "false": "sdpa"},
        ),
        Row("enable_liger_kernel use_liger_kernel use_unsloth", _read_kernels, _kernels),
        Row(
            "optim use_galore galore_rank galore_layerwise use_apollo apollo_rank apollo_layerwise "
            "use_adam_mini use_muon",
            _read_optimizer,
            _optimizer,
        ),
        Row(
            "packing neat_packing",
            read_batching,
            lambda run: {
                "packing": run.packing,
                "neat_packing": (run.packing and run.padding == "free") or None,
            },
        ),
        trainer_keys.GROUPING,
        trainer_keys.DURATION,
        DATA,
        trainer_keys.EVALUATION_OF_PART,
        Row(
            "deepspeed fsdp",
            trainer_keys.read_sharding,
            lambda run: {"deepspeed": DEEPSPEED if launcher_files.uses_deepspeed(run) else None},
        ),
        Row("ppo_epochs ppo_buffer_size reward_model reward_model_type max_new_tokens", _read_ppo),
        always(output_dir="output"),
    ),
    model_key="model_name_or_path",
    methods={
        "full": {"finetuning_type": "full", "quantization_bit": ""},
        "freeze": {"finetuning_type": "freeze", "quantization_bit": ""},
        "lora": {"finetuning_type": "lora", "quantization_bit": ""},
        "qlora": {"finetuning_type": "lora", "quantization_bit": "4"},
    },
    not_modelled="use_badam mixture_of_depths freeze_extra_modules upcast_lmhead_output use_dft_loss "
    "use_eaft_loss use_asft_loss use_kt use_hyper_parallel reward_model_quantization_bit "
    "shift_attn use_llama_pro train_from_scratch auto_find_batch_size optim_target_modules "
    "label_smoothing_factor use_v1_kernels",
    lasting=trainer_keys.LASTING,
    data_keys=("dataset", "dataset_dir", "max_samples"),
    lists_data=True,
)


def sheet(run: Run) -> Sheet:
    """Return the files of LLaMA-Factory for `run`.

    Raises: InputError for a model or a sequence divided among GPUs.
    """
    keys, deepspeed = FORMAT.written(run), launcher_files.uses_deepspeed(run)
    for field in ("tensor_parallel", "context_parallel"):
        if getattr(run, field) > 1 and not (field == "tensor_parallel" and deepspeed):
            instead = "only DeepSpeed divides a model for it, up to ZeRO-2."
            raise refuse(FORMAT.name, field, getattr(run, field), instead)
    beside: dict[str, dict[str, Any]] = {DEEPSPEED: launcher_files.deepspeed(run)} if deepspeed else {}
    command = f"llamafactory-cli train {FILE}"
    if launcher_files.uses_fsdp(run):
        beside[ACCELERATE] = launcher_files.accelerate(run)
        command = launcher_files.accelerate_launch(run, f"-m llamafactory.launcher {FILE}")
    elif run.num_gpus > 1:
        command = f"FORCE_TORCHRUN=1 {launcher_files.environment(run)} {command}"
    notes = ("dataset_info.json has to list the data set.",) if "dataset" in keys else ()
    return Sheet(FILE, keys, command, trainer_keys.packages(run, "llamafactory"), beside, notes=notes)
