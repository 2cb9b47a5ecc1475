"""TRL's YAML and JSON, bare TrainingArguments, and PEFT's adapter_config.json, hidden defaults included.

What no key says but the framework does, by its version (read from TRL 0.15, 0.18 to 0.26, 1.0, 1.8
and 1.16): a cut-off of 1024; micro-batches of 8; three epochs; bf16 arithmetic from 0.19 on and
gradient checkpointing from 0.23 on; a model given by name loaded in float32 from 1.0 on; the loss in
chunks, never the whole logits, from 1.8 on. With `use_peft`: rank 16, alpha 32, dropout 0.05, and
PEFT's own choice of layers. In 4 bits: NF4, once quantised, adapters in bf16.

Bare TrainingArguments (a file without a key of TRL's own) are transformers': nothing of this holds,
fp32 arithmetic, no checkpointing, the whole logits.

A script is read by `scripts`, which hands its literal arguments to TRL's rows.
"""

import re
from collections.abc import Mapping
from typing import Any

from finegauge.errors import FieldError, shown
from finegauge.formats import launcher_files, model_keys, rollout_keys, trainer_keys
from finegauge.formats.key_table import Format, Reading, Row, always, model_key
from finegauge.formats.sheet import (
    ACCELERATE,
    BLOCK,
    DEEPSPEED,
    YES,
    Sheet,
    dataset_name,
    file_kind,
    known_model,
    listed,
    mapping_in,
    refuse,
)
from finegauge.run.field import whole
from finegauge.run.rules import COMPARING, FSDP
from finegauge.run.run import Run, positions_of

FILE = "trl.yaml"
COMMANDS = {"sft": "sft", "dpo": "dpo", "grpo": "grpo"}
_ADAPTERS = trainer_keys.Adapters(
    "lora_r lora_alpha lora_dropout lora_target_modules lora_modules_to_save use_dora",
    defaults=(16, 32, 0.05),
    all_unasked=False,
)
_AS_DPO, _AS_GRPO = ("kto", "orpo", "cpo", "simpo"), ("rloo", "online_dpo")
_WHOLE_LOGITS = ("orpo", "cpo", "simpo", "online_dpo")  # to this day (1.16)
_NAMED = re.compile(r"(?:^|[^a-z])(sft|dpo|grpo|kto|orpo|cpo|simpo)(?![a-z])")
_QUANTIZED = ("load_in_4bit", "load_in_8bit")
_DATA = ("dataset_name", "datasets", "dataset_train_split", "max_train_samples", "test_split_size")
_STRATEGIES = {
    **dict.fromkeys(("bfd", "bfd_split", "bfd-requeue"), "best_fit_decreasing"),
    "ffd": "first_fit",
}
# PEFT's own names: ours.
_OF_ADAPTER = {
    "base_model_name_or_path": "model_name_or_path",
    "r": "lora_r",
    "target_modules": "lora_target_modules",
    "modules_to_save": "lora_modules_to_save",
}
OF_SCRIPT = {
    **dict.fromkeys(("model_max_length", "block_size", "max_seq_len", "cutoff_len"), "max_seq_length"),
    **dict.fromkeys(("use_lora", "lora_enable", "is_peft_model", "use_peft_lora"), "use_peft"),
    **{f"use_{bits}bit_quantization": f"load_in_{bits}bit" for bits in (4, 8)},
    "use_nested_quant": "use_bnb_nested_quant",
    **{"lora_rank": "lora_r", "use_qlora": "q_lora", "use_4bit": "load_in_4bit"},
    **dict.fromkeys(("lora_target", "target_modules", "lora_modules"), "lora_target_modules"),
    **{"lora_dim": "lora_r", "lora_dimension": "lora_r", "attn_impl": "attn_implementation"},
    "use_flash_attention": "use_flash_attn",
    **dict.fromkeys(("pretrained_model_name_or_path", "model_id"), "model_name_or_path"),
    "attention_implementation": "attn_implementation",
}
_OF_LMFLOW = {"save_aggregated_lora", "disable_group_texts", "use_lisa", "lisa_activated_layers"}
_BITS = ("bits", "load_in_bits", "quantization_bit")
_OF_LLAVA = (
    "pretrain_mm_mlp_adapter",
    "freeze_mm_mlp_adapter",
    "mm_projector_type",
    "tune_mm_mlp_adapter",
    "mm_vision_tower",
    "mm_vision_select_layer",
)
_AS_ZERO = {"fsdp": "zero3", "fsdp_shard_grad_op": "zero2", "hybrid": "zero3"}
_PEFT_DEFAULTS = {"lora_r": 8, "lora_alpha": 8, "lora_dropout": 0.0}


def _since(reading: Reading, *version: int) -> bool:
    """Return whether it is TRL that reads the file, of this version or a later one."""
    return reading.format is not TRAINER and not reading.before(*version)


def of_adapter(keys: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the keys of PEFT's adapter_config.json under TRL's names, with PEFT's defaults; others as is.

    Raises: FieldError for an adapter that is not supported.
    """
    kind = str(keys.get("peft_type") or "LORA").upper()
    if "peft_type" not in keys or (kind == "LORA" and "r" not in keys):
        return keys
    if kind != "LORA":
        kept = ("base_model_name_or_path", "modules_to_save")
        saved = {_OF_ADAPTER[key]: keys[key] for key in kept if key in keys}
        return {"use_peft": True, **saved, "peft": model_keys.peft_keys(kind, keys)}
    return {"use_peft": True, **_PEFT_DEFAULTS, **{_OF_ADAPTER.get(k, k): v for k, v in keys.items()}}


def _of_lmflow(keys: dict[str, Any]) -> dict[str, Any]:
    """Return keys with what LMFlow does by its own options: texts fill blocks, or are padded to one each."""
    if not _OF_LMFLOW & {*keys}:
        return keys
    if str(keys.get("use_lisa", "false")).lower() in YES:
        raise FieldError(
            "use_lisa trains a few layers at a time, which is not supported; without it all train."
        )
    if str(keys.get("q_lora")).lower() in YES:
        keys = {"gradient_checkpointing": True, **keys}
    fills = str(keys.get("disable_group_texts", "true")).lower() not in YES
    return {
        **keys,
        **({"packing": True, "packing_strategy": "wrapped"} if fills else {"pad_to_max_length": True}),
    }


def of_script(keys: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the keys of scripts around transformers' Trainer (FastChat's, Alpaca's) under TRL's names."""
    if alien := next((key for key in _OF_LLAVA if key in keys), None):
        raise FieldError(
            f"{alien} is an option of LLaVA, whose vision tower and projector are not supported."
        )
    found = _of_lmflow({OF_SCRIPT.get(key, key): value for key, value in of_adapter(keys).items()})
    if isinstance(found.get("dataset"), str):
        found.setdefault("dataset_name", found.pop("dataset"))
    if found.get("lora_target_modules") == "all":
        found["lora_target_modules"] = "all-linear"
    both = ("max_source_length", "max_target_length") if found.get("auto_class") != "seq2seq_lm" else ()
    lengths = [str(found.pop(name)) for name in both if name in found]
    if len(lengths) == 2 and all(length.isdecimal() for length in lengths):
        found.setdefault("max_seq_length", sum(map(int, lengths)))
    if str(found.pop("q_lora", "false")).lower() in YES:
        found |= {"load_in_4bit": True, "use_bnb_nested_quant": True, "use_peft": True}
    bits = {str(found.pop(name)) for name in _BITS if name in found}
    found |= {f"load_in_{bit}bit": True for bit in bits & {"4", "8"}}
    asked = found.pop("use_flash_attn", "false"), found.pop("disable_flash_attn2", "true")
    if [str(one).lower() for one in asked] != ["false", "true"]:
        found.setdefault("attn_implementation", "flash_attention_2")
    if mixed := {"bf16": "bf16", "bfloat16": "bf16", "fp16": "fp16"}.get(
        str(found.pop("mixed_precision", ""))
    ):
        found.setdefault(mixed, True)
    if str(prefix := found.pop("pre_seq_len", "")).isdecimal():  # ChatGLM's P-tuning v2: PEFT's prefixes
        held = {"num_virtual_tokens": int(prefix)}
        found |= {"use_peft": True, "peft": model_keys.peft_keys("PREFIX_TUNING", held)}
        found.setdefault("gradient_checkpointing", False)
    if "lora_r" in found or str(found.pop("peft_type", "")).lower() == "lora":
        found.setdefault("use_peft", True)  # no switch of its own: adapters are what the script is for
    return found


def of_recipe(keys: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the keys of a recipe (alignment-handbook's, open-r1's mixture of data) under TRL's names."""
    if {"pretrained_model_name_or_path", "model_id"} & {*keys}:  # a script's own file
        return of_recipe(of_script(keys))
    found, mixture = dict(of_adapter(keys)), keys.get("dataset_mixture")
    if isinstance(mixed := found.pop("dataset_mixer", None), Mapping):  # the handbook's before 2025
        found.setdefault("dataset_name", [*map(str, mixed)])
    if str(found.pop("use_flash_attention_2", "")).lower() == "true":
        found.setdefault("attn_implementation", "flash_attention_2")
    if isinstance(gpus := found.pop("num_processes", None), int):  # accelerate's, which TRL hands on
        found[BLOCK] = {"num_gpus": gpus, **mapping_in(found, BLOCK)}
    listed = mixture.get("datasets") if isinstance(mixture, Mapping) else None
    if isinstance(listed, list) and "dataset_name" not in found:
        del found["dataset_mixture"]
        named = [one["id"] for one in listed if isinstance(one, Mapping) and isinstance(one.get("id"), str)]
        found["dataset_name"] = list(dict.fromkeys(named))
    return found


def named_trainer(*texts: str) -> str:
    """Return the trainer that names of files tell, as "zephyr-7b-orpo"; "" where none does, or several."""
    found = {word for text in texts for word in _NAMED.findall(text.lower()[-200:])}
    return found.pop() if len(found) == 1 else ""


def _read_phase(reading: Reading) -> None:
    """Read what is learnt: by the command or class of the trainer, else by keys that only one trainer has."""
    trainer = reading.text("trainer")
    if not trainer and reading.stated("beta", "max_prompt_length"):
        *_, folder, name = ("", *reading.file.split("/"))
        trainer = named_trainer(folder, name, *(reading.text(key) for key in ("output_dir", "hub_model_id")))
    rollout_keys.read_preference(reading, trainer, "trainer", "beta")
    if reading.flag("reference_free"):
        reading.set("reference_model", "none", "reference_free")
    if trainer in _AS_GRPO:
        reading.warn(f"{trainer} is taken as grpo, whose passes it shares.")
    phase = "dpo" if trainer in _AS_DPO else "grpo" if trainer in _AS_GRPO else trainer
    for one, keys in (
        ("grpo", ("num_generations", "max_completion_length", "log_completions")),
        ("dpo", ("precompute_ref_log_probs", "rpo_alpha", "beta")),
        ("reward", ("center_rewards_coefficient",)),
        *([("reward", ("lora_task_type",))] if reading.text("lora_task_type") == "seq_cls" else []),
    ):
        if reading.stated(*keys) and not phase:
            reading.set("phase", one, *keys)
            return
    if phase and phase not in ("sft", "dpo", "grpo", "reward", "ppo"):
        raise FieldError(f"TRL's trainer {shown(trainer)} is not supported; sft, dpo, grpo and reward are.")
    reading.set("phase", phase or "sft", "trainer")


def _read_method(reading: Reading) -> None:
    quantized = [key for key in _QUANTIZED if reading.flag(key)]
    if not quantized and reading.flag("use_peft") and trainer_keys.is_quantized_copy(reading):
        quantized = ["model_name_or_path"]
    if len(quantized) > 1:
        raise FieldError("load_in_4bit and load_in_8bit are both true; keep one.")
    if not reading.flag("use_peft"):
        if quantized:
            raise FieldError(f"{quantized[0]} needs adapters; add 'use_peft: true'.")
        reading.set("method", "full", "use_peft")
        reading.ignored(_ADAPTERS.names[:4], "use_peft is false")
        return
    reading.set("method", "qlora" if quantized else "lora", "use_peft", *_QUANTIZED)
    peft = reading.get("peft")
    if isinstance(peft, Mapping):  # of a configuration that is not LoRA's
        for field, value in peft.items():
            reading.set(field, value, "peft")
        trainer_keys.read_extra(reading, _ADAPTERS.names[4])
        return
    _ADAPTERS.read(reading)
    reading.not_modelled(
        "rank_pattern", "alpha_pattern", "layers_to_transform", "use_qalora", "exclude_modules", "bias"
    )


def _method(run: Run) -> dict[str, Any]:
    dtype = {"dtype": trainer_keys.dtype_word(run.weights_dtype)}
    if run.method == "full":
        return dtype
    if run.method == "gptq_lora":
        raise refuse(FORMAT.name, "method", run.method, "its files do not tell that a checkpoint is GPTQ's.")
    four = run.method == "qlora" and run.weights_dtype != "int8"
    quantized = {
        "load_in_4bit": True if four else None,
        "load_in_8bit": None if four else True,
        "bnb_4bit_quant_type": "nf4" if four else None,
        "use_bnb_nested_quant": run.weights_dtype == "nf4_dq" if four else None,
    }
    adapters = _ADAPTERS.written(run) if run.trains_adapters else {}
    return {**(quantized if run.method == "qlora" else dtype), "use_peft": run.trains_adapters, **adapters}


def _read_precision(reading: Reading) -> None:
    trainer_keys.read_precision(reading, bf16_default=_since(reading, 0, 19))
    method = reading.fields["method"]
    if method == "qlora":
        copy = trainer_keys.is_quantized_copy(reading)  # double quantised
        four, double = (
            reading.flag("load_in_4bit", default=copy),
            reading.flag("use_bnb_nested_quant", default=copy),
        )
        weights = trainer_keys.bitsandbytes(eight=not four, double=double)
        reading.set("weights_dtype", weights, *_QUANTIZED)
        if reading.text("bnb_4bit_quant_type", "nf4") != "nf4":
            reading.warn("bnb_4bit_quant_type is taken as nf4, which takes as much memory as fp4.")
        reading.set("adapter_dtype", "bf16" if _since(reading, 0, 26) else "fp32")
        return
    options = mapping_in(reading.get("model_init_kwargs"))
    keys = ("dtype", "torch_dtype", "model_init_kwargs")
    dtype = options.get("dtype", options.get("torch_dtype")) or reading.first(keys[:2])
    loaded = str(dtype).removeprefix("torch.") if dtype is not None else None
    if loaded is None:  # transformers before 5 took float32, and TRL from 1.0 on
        wide = reading.before(5, 0) if reading.format is TRAINER else not reading.before(1, 0)
        reading.set("weights_dtype", "float32" if wide else reading.checkpoint_dtype())
    else:
        reading.set("weights_dtype", reading.checkpoint_dtype() if loaded == "auto" else loaded, *keys)
    if method == "lora":
        reading.set("adapter_dtype", "fp32")


def _read_checkpointing(reading: Reading) -> None:
    reentrant = reading.before(5, 0) if reading.format is TRAINER else reading.before(0, 23)
    default = _since(reading, 0, 23)
    trainer_keys.read_checkpointing(reading, "activation_offloading", default=default, reentrant=reentrant)


def _checkpointing(run: Run) -> dict[str, Any]:
    offloads = True if run.activation_checkpointing == "offload" else None
    return {**trainer_keys.checkpointing(run), "activation_offloading": offloads}


def _read_loss(reading: Reading) -> None:
    """Read whether logits are whole: SFT's are not from 1.8 on; from 1.15 on few are, Liger or not."""
    phase, trainer = reading.fields["phase"], reading.text("trainer")
    tiles = _since(reading, 1, 15) and phase in ("sft", "dpo", "grpo") and trainer not in _WHOLE_LOGITS
    chunked = phase == "sft" and (
        reading.text("loss_type") == "chunked_nll"
        or (_since(reading, 1, 8) and reading.text("loss_type") != "nll")
    )
    loss = "chunked" if tiles or chunked else "full_logits"
    trainer_keys.read_liger(reading, loss, "loss_type", fuses_loss=not tiles)


def _read_accumulation(reading: Reading) -> None:
    """Read whether FSDP reduces gradients after every micro-batch."""
    how = mapping_in(reading.get("accelerator_config"), "gradient_accumulation_kwargs")
    if "sync_each_batch" in how:
        reading.set("sync_each_batch", how["sync_each_batch"], "accelerator_config")


def _accumulation(run: Run) -> dict[str, Any]:
    every = run.sharding in FSDP and run.gradient_accumulation_steps > 1 and run.sync_each_batch
    return {
        "accelerator_config": {"gradient_accumulation_kwargs": {"sync_each_batch": True}} if every else None
    }


def _read_batching(reading: Reading) -> None:
    cut_off = reading.first(("max_length", "max_seq_length"), 1024)
    if reading.keys.get("max_length", 0) is None and not reading.stated("max_length", "max_seq_length"):
        cut_off = None
        reading.warn("max_length is null, so nothing is cut: state seq_len=… of the longest sample.")
    if reading.format is TRAINER and not reading.stated("max_length", "max_seq_length"):
        known = known_model(str(reading.fields.get("model")))
        cut_off = min(cut_off, positions_of(known.config) or cut_off) if known else cut_off
        reading.warn(
            f"Nothing states where samples are cut: taken as {cut_off:,} tokens; seq_len=… says another."
        )
    reading.set("seq_len", cut_off, "max_length", "max_seq_length")
    compares = reading.fields["phase"] in COMPARING  # whole sequences
    packing, free = (reading.flag(key) and not compares for key in ("packing", "padding_free"))
    if compares and reading.flag("padding_free"):
        reading.warn("padding_free of pairs is not modelled: they are taken as padded.")
    strategy = reading.text("packing_strategy", "bfd")
    reading.set("packing", packing, "packing")
    reading.set("packing_strategy", _STRATEGIES.get(strategy, strategy), "packing_strategy")
    splits = packing and strategy in ("bfd_split", "bfd-requeue")
    reading.set("over_length", "split" if splits else "truncate", "packing_strategy")
    padding_free = free or (packing and strategy != "wrapped")
    whole = packing or reading.flag("pad_to_max_length")
    padding = "free" if padding_free else "max" if whole else "longest"
    reading.set("padding", padding, "packing", "padding_free", "packing_strategy", "pad_to_max_length")
    multiple = reading.get("pad_to_multiple_of")
    multiple = 1 if multiple is None or str(multiple).lower() in ("auto", "none") else multiple
    reading.set("pad_to_multiple_of", multiple, "pad_to_multiple_of")


def _read_data(reading: Reading) -> None:
    """Read the data: of `datasets`, a mixture over which `dataset_name` does not stand, or of that name."""
    most = reading.get("max_train_samples")
    mixed = [one for one in listed(reading.get("datasets")) if isinstance(one, Mapping)]
    split = reading.get("dataset_train_split", "") if not mixed else mixed[0].get("split", "")
    trainer_keys.read_dataset(
        reading,
        [str(one.get("data_files") or one.get("path")) for one in mixed] or reading.get("dataset_name"),
        *_DATA,
        num_samples=None if most is None else int(whole(1, 10**12)("max_train_samples", most)),
        split=str(split) if len(mixed) < 2 else "",
    )
    total = reading.fields.get("num_samples") or trainer_keys.in_all([reading.fields.get("dataset") or ""])
    evaluates = reading.text("eval_strategy", "no") not in ("no", "false")
    held_out = reading.get("test_split_size") if mixed else None
    trainer_keys.read_validation(reading, held_out, "test_split_size", total=total, evaluates=evaluates)


def _data(run: Run) -> dict[str, Any]:
    """Return the data set: of a hub by its name, a file as what reads it."""
    named = dataset_name(run)
    kind = file_kind(named) if named else None
    return {"datasets": [{"path": kind, "data_files": named}]} if kind else {"dataset_name": named}


def _batching(run: Run) -> dict[str, Any]:
    """Return the keys of one trainer: the cut-off, packing and loss of SFT, DPO's beta."""
    if run.phase == "grpo":  # lengths of prompts and answers stand beside the engine
        return {}
    multiple = run.pad_to_multiple_of
    keys = {"max_length": run.seq_len, "pad_to_multiple_of": multiple if multiple > 1 else None}
    if run.phase == "dpo":
        return {**keys, "beta": 0.1}
    # Before 1.8, whole logits are the default.
    old = run.framework == FORMAT.name and bool(run.framework_version)
    experts = {"experts_implementation": run.experts_implementation}
    return {
        **keys,
        "packing": run.packing,
        "packing_strategy": _strategy(run) if run.packing else None,
        "padding_free": True if run.padding == "free" and not run.packing else None,
        "loss_type": "chunked_nll" if run.loss == "chunked" and old else None,
        "model_init_kwargs": None if run.experts_implementation == "grouped_mm" else experts,
    }


def _strategy(run: Run) -> str:
    """Return how samples are packed: joined and cut anywhere, or whole, kept apart."""
    if run.packing_strategy == "wrapped":
        return "wrapped"
    return "bfd_split" if run.over_length == "split" else "bfd"


FORMAT = Format(
    "TRL",
    (
        model_key("model_name_or_path"),
        Row("trainer", _read_phase),
        Row(f"use_peft {' '.join(_QUANTIZED)} {_ADAPTERS.keys} peft", _read_method, _method),
        Row(
            "bf16 fp16 bnb_4bit_quant_type use_bnb_nested_quant dtype torch_dtype model_init_kwargs",
            _read_precision,
            trainer_keys.precision,
        ),
        *trainer_keys.batch_rows(8),
        trainer_keys.epochs_row(),
        trainer_keys.COMPILE,
        Row("accelerator_config", _read_accumulation, _accumulation),
        Row(f"{trainer_keys.CHECKPOINTING_KEYS} activation_offloading", _read_checkpointing, _checkpointing),
        trainer_keys.attention_row("attn_implementation"),
        Row("use_liger_kernel use_liger loss_type", _read_loss, trainer_keys.liger),
        trainer_keys.optimizer_row("optim", "adamw_torch_fused"),
        model_keys.experts_row(),
        Row("", write=_data),
        Row(
            "max_length max_seq_length packing packing_strategy padding_free pad_to_multiple_of "
            "pad_to_max_length",
            _read_batching,
            _batching,
        ),
        model_keys.TASK,
        rollout_keys.generation_row(),
        rollout_keys.ppo_row(),
        trainer_keys.GROUPING,
        Row(" ".join(_DATA), _read_data),
        trainer_keys.DURATION,
        trainer_keys.SHARDING,
        trainer_keys.EVALUATION,
        always(output_dir="output"),
    ),
    model_key="model_name_or_path",
    methods={
        "full": {"use_peft": "false", "load_in_4bit": "false", "load_in_8bit": "false"},
        "lora": {"use_peft": "true", "load_in_4bit": "false", "load_in_8bit": "false"},
        "qlora": {"use_peft": "true", "load_in_4bit": "true", "load_in_8bit": "false"},
    },
    not_modelled="accelerate_config label_smoothing_factor auto_find_batch_size optim_target_modules "
    "cast_lm_head_to_fp32",
    adapt=of_recipe,
    family="transformers",
    lasting=trainer_keys.LASTING,
    data_keys=("dataset_name", "datasets"),
)
TRAINER = FORMAT._replace(name="transformers", adapt=of_script, lists_its_keys=False)
SCRIPT = FORMAT._replace(  # of TRL's trainers, with options of its own
    adapt=lambda keys: of_recipe(of_script(keys)), lists_its_keys=False
)


def sheet(run: Run) -> Sheet:
    """Return the files of TRL for `run`.

    Raises: InputError for a phase whose trainer a file does not tell.
    """
    keys = training_keys(run)
    beside: dict[str, dict[str, Any]] = {}
    program = f"trl {COMMANDS[run.phase]} --config {FILE}"
    if run.num_gpus > 1 or launcher_files.uses_deepspeed(run) or launcher_files.uses_fsdp(run):
        beside[ACCELERATE] = launcher_files.accelerate(run)
        if launcher_files.uses_deepspeed(run) and run.cpu_offload != "none" and run.offload_pinned:
            beside[DEEPSPEED] = launcher_files.deepspeed(run)  # accelerate has no key of its own for that
            beside[ACCELERATE]["deepspeed_config"] = {
                "deepspeed_config_file": DEEPSPEED, "zero3_init_flag": launcher_files.zero_stage(run) == 3
            }  # fmt: skip
        where = ' --machine_rank "$NODE_RANK" --main_process_ip "$MASTER_ADDR"' if run.num_nodes > 1 else ""
        program += f" --accelerate_config {ACCELERATE}{where}"
    return Sheet(FILE, keys, program, packages(run), beside)


def deepspeed_sheet(run: Run) -> Sheet:
    """Return DeepSpeed's JSON and the training file that names it; FSDP becomes the ZeRO that shards alike.

    The JSON states batch and number format in full, so that it serves other scripts too.
    """
    file, sharded = "train.yaml", run.replace(sharding=_AS_ZERO.get(run.sharding, run.sharding))
    keys = {**training_keys(sharded), "deepspeed": DEEPSPEED}
    program = f"-m trl.scripts.{COMMANDS[run.phase]} --config {file}"
    json = launcher_files.deepspeed(sharded, explicit=True)
    names = " ".join(dict.fromkeys([*packages(sharded).split(), "deepspeed"]))
    return Sheet(file, keys, launcher_files.torchrun(run, program), names, {DEEPSPEED: json})


def training_keys(run: Run) -> dict[str, Any]:
    """Return the keys of TRL's configuration, of its trainer and of PEFT.

    Raises: InputError for a phase whose trainer a file does not tell.
    """
    if run.phase not in COMMANDS:
        told = " and ".join(COMMANDS)
        raise refuse(FORMAT.name, "phase", run.phase, f"its files tell {told} apart, no more.")
    return FORMAT.written(run)


def packages(run: Run) -> str:
    """Return what pip has to install."""
    return trainer_keys.packages(run, "trl", *(["peft"] if run.trains_adapters else []))
