"""LLM Foundry's YAML (`composer train.py`), alone or as the parameters of a run of MosaicML's platform.

What no key says but the framework does (read from its source, 0.21, and Composer's): weights in fp32 under
bf16 autocast; every weight trains without `peft_config`; the accumulation follows from
global_train_batch_size and the GPUs, and a micro-batch is never more than a GPU's share of it; texts are
joined and cut to max_seq_len, samples padded up to it unless they are packed or `allow_pad_trimming`;
transformers' models under eager attention; without `fsdp_config`, and on one GPU, the model is replicated and
no block checkpointed; LoRA as PEFT has it, in the weights' format.
A file is read, and none is written.
"""

import re
from collections.abc import Mapping
from typing import Any

from finegauge.errors import FieldError, shown
from finegauge.formats import trainer_keys
from finegauge.formats.key_table import Format, Reading, Row, fixed, key
from finegauge.formats.launchers import known_card
from finegauge.formats.sheet import dotted, mapping_in
from finegauge.run.field import whole

_PATH, _NAME = "model.pretrained_model_name_or_path", "model.name"
_GPUS, _CARD = "compute.gpus", "compute.gpu_type"
_PEFT, _DTYPE = "model.peft_config", "model.config_overrides.torch_dtype"
_ADAPTERS = trainer_keys.Adapters(
    f"{_PEFT}.r {_PEFT}.lora_alpha {_PEFT}.lora_dropout {_PEFT}.target_modules {_PEFT}.modules_to_save",
    defaults=(8, 8, 0.0),
    all_unasked=False,
)
_MPT = (
    "d_model n_heads n_layers expansion_ratio mlp_ratio max_seq_len vocab_size no_bias norm_type "
    "tie_word_embeddings"
)
_IMPLEMENTATIONS = (
    "model.attn_config.attn_impl",
    "model.attn_impl",  # of its first releases
    "model.config_overrides.attn_config.attn_impl",
    "model.attention_patch_type",  # of Llama, before transformers had flash attention
    "model.attn_implementation",
)
_FLASH = "model.use_flash_attention_2"
_MICRO, _BATCH = "device_train_microbatch_size", "global_train_batch_size"
_DATA = "train_loader.dataset"
_FSDP = "fsdp_config"
_SHARDINGS = {
    "full_shard": "fsdp",
    "shard_grad_op": "fsdp_shard_grad_op",
    "hybrid_shard": "hybrid",
    "no_shard": "none",
}
_OPTIMIZERS = {
    "decoupled_adamw": "adamw",
    "decoupled_lionw": "lion",
    "decoupled_lionw_8b": "lion_8bit",
    **dict.fromkeys(("clip_lion", "adalr_lion"), "lion"),
}
_PRECISIONS = {"amp_bf16": "bf16", "amp_fp16": "fp16", "amp_fp8": "bf16", "fp32": "none"}


def _adapt(keys: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the keys dotted, those of a run of the platform without its own."""
    if "parameters" in keys:
        keys = {**mapping_in(keys, "parameters"), "compute": mapping_in(keys, "compute")}
    return dotted(keys)


def _read_model(reading: Reading) -> None:
    """Read the model by its name, or one of MPT's shape by its sizes."""
    if reading.stated(_PATH):
        reading.set("model", reading.get(_PATH), _PATH)
    elif reading.text(_NAME) in ("mpt_causal_lm", "mosaic_gpt"):
        from finegauge.formats.megatron_lm import written_config

        if reading.text("model.attn_config.attn_type", "multihead_attention") != "multihead_attention" or any(
            name.startswith("model.ffn_config.") for name in reading.keys
        ):
            raise FieldError(
                "model.attn_config.attn_type and model.ffn_config describe a model of its own; add "
                "model=PATH of its config.json."
            )
        sizes = {name: reading.get(f"model.{name}") for name in _MPT.split()}
        sizes["expansion_ratio"] = sizes.pop("mlp_ratio") or sizes["expansion_ratio"]
        stated = {name: value for name, value in sizes.items() if value is not None}
        config = {"architectures": ["MptForCausalLM"], "model_type": "mpt", **stated}
        reading.set("model", written_config(config, "d_model"), _NAME)
    reading.need_model(_PATH)


def _read_method(reading: Reading) -> None:
    kind = reading.text(f"{_PEFT}.peft_type", "lora")
    adapts = any(name.startswith(f"{_PEFT}.") for name in reading.keys)
    if kind != "lora":
        raise FieldError(f"{_PEFT}.peft_type={shown(kind)} is not supported; only LORA is.")
    eight = reading.flag("model.load_in_8bit")
    reading.set("method", "qlora" if eight else "lora" if adapts else "full", f"{_PEFT}.r")
    precision = reading.word("precision", "amp_bf16", _PRECISIONS, "amp_bf16, amp_fp16, amp_fp8 or fp32")
    reading.set("autocast", precision, "precision")
    reading.set("fp8", reading.text("precision") == "amp_fp8", "precision")
    built = reading.text(_DTYPE).removeprefix("torch.")  # of a model that is not loaded
    dtype = "fp32" if reading.flag("model.pretrained", default=True) or not built else built
    reading.set("weights_dtype", "int8" if eight else dtype, "model.load_in_8bit", _DTYPE)
    if adapts:
        _ADAPTERS.read(reading)
        reading.set("adapter_dtype", "fp32")


def _read_batch(reading: Reading) -> None:
    """Read the micro-batch, which Composer may be asked to find, and how many of them make a batch."""
    gpus = reading.launched_gpus or (reading.whole(_GPUS, most=10**5) if reading.stated(_GPUS) else None)
    reading.set("num_gpus", gpus, _GPUS)
    for field, card in known_card(reading.text(_CARD)).items():
        reading.set(field, card, _CARD)
    micro = reading.get(_MICRO, "auto")
    if micro == "auto":
        reading.warn(f"{_MICRO} is found by Composer (auto): taken as 1; 'finegauge max-batch' tells more.")
    micro = 1 if micro == "auto" else whole(1, 10**6)(_MICRO, micro)
    share = reading.whole(_BATCH, micro, 10**9) // (gpus or 1)
    taken = max(1, min(micro, share))
    reading.set("micro_batch_size", taken, _MICRO)
    if reading.stated(_BATCH) and share % taken:  # the last of a step's micro-batches is smaller
        reading.warn(
            f"{_MICRO}={micro} does not divide a GPU's {share} samples: taken as that many each time."
        )
        reading.set("gradient_accumulation_steps", -(-share // taken), _BATCH)
    elif reading.stated(_BATCH):
        reading.set_accumulation(_BATCH, data_parallel=gpus)


def _read_data(reading: Reading) -> None:
    texts = reading.text("train_loader.name", "text") != "finetuning"
    packed = texts or reading.text(f"{_DATA}.packing_ratio", "none") not in ("none", "null", "1", "1.0")
    reading.set("phase", "pretrain" if texts else "sft", "train_loader.name")
    reading.set("seq_len", reading.get("max_seq_len", reading.get(f"{_DATA}.max_seq_len")), "max_seq_len")
    reading.set("packing", packed, f"{_DATA}.packing_ratio", "train_loader.name")
    reading.set("packing_strategy", "wrapped" if texts else "first_fit", "train_loader.name")
    trims = reading.flag(f"{_DATA}.allow_pad_trimming")
    reading.set("padding", "free" if packed else "longest" if trims else "max", f"{_DATA}.allow_pad_trimming")
    named = reading.get(f"{_DATA}.hf_name")
    trainer_keys.read_dataset(reading, [named] if named else (), f"{_DATA}.hf_name")


def _read_duration(reading: Reading) -> None:
    """Read how long it trains: 2ep, 500ba, 10000sp or 1e9tok."""
    stated = reading.text("max_duration", "1ep").replace("_", "")
    found = re.fullmatch(r"(\d[\d.e+]*)(ep|ba|sp|tok|)", stated)
    if found is None:
        raise FieldError(f"max_duration={shown(stated)} is not read; state epochs=… or max_steps=….")
    amount, unit = float(found[1]), found[2]
    if unit in ("ep", ""):
        reading.set("epochs", amount, "max_duration")
        return
    of_step = reading.whole(_BATCH, 1, 10**9) * (1 if unit == "sp" else int(reading.fields["seq_len"] or 1))
    reading.set("max_steps", max(1, int(amount if unit == "ba" else amount / of_step)), "max_duration")


def _read_implementation(reading: Reading) -> None:
    attention = reading.text(
        reading.which(*_IMPLEMENTATIONS), "flash" if re.search("mpt|mosaic", reading.text(_NAME)) else ""
    )
    flash = reading.flag(_FLASH) or attention in ("flash", "triton", "flash_attention_2")
    eager = attention in ("", "torch", "eager")
    reading.set("attention", "flash" if flash else "eager" if eager else "sdpa", *_IMPLEMENTATIONS, _FLASH)
    told = [name for name, value in reading.keys.items() if name.startswith(_FSDP) and value is not None]
    shards = bool(told) and reading.fields.get("num_gpus") != 1
    if told and not shards:
        reading.ignored(told[:1], "on one GPU LLM Foundry leaves out fsdp_config")
    recomputes, moves = (
        shards and reading.flag(f"{_FSDP}.activation_{name}") for name in ("checkpointing", "cpu_offload")
    )
    kind = "offload" if recomputes and moves else "full" if recomputes else "none"
    if moves and not recomputes:
        reading.warn(f"{_FSDP}.activation_cpu_offload alone is not modelled: activations are taken to stay.")
    reading.set("activation_checkpointing", kind, f"{_FSDP}.activation_checkpointing")
    reentrant = reading.flag(f"{_FSDP}.activation_checkpointing_reentrant", default=True)
    reading.set("checkpointing_reentrant", reentrant, f"{_FSDP}.activation_checkpointing_reentrant")
    if shards:
        names = "FULL_SHARD, SHARD_GRAD_OP, HYBRID_SHARD or NO_SHARD"
        kind = reading.word(f"{_FSDP}.sharding_strategy", "full_shard", _SHARDINGS, names)
        reading.set("sharding", kind, f"{_FSDP}.sharding_strategy")
    reading.not_modelled("tp_config.tensor_parallel_degree", "tp_config.strategy")


FORMAT = Format(
    "llm-foundry",
    (
        Row(f"{_PATH} {_NAME} {' '.join(f'model.{name}' for name in _MPT.split())}", _read_model),
        Row(f"{_ADAPTERS.keys} {_PEFT}.peft_type precision model.load_in_8bit {_DTYPE}", _read_method),
        Row(f"{_MICRO} {_BATCH} {_GPUS} {_CARD}", _read_batch),
        Row(
            f"max_seq_len train_loader.name {_DATA}.max_seq_len {_DATA}.packing_ratio "
            f"{_DATA}.allow_pad_trimming {_DATA}.hf_name",
            _read_data,
        ),
        Row("max_duration", _read_duration),
        key("optimizer.name", "optimizer", "adamw", more=_OPTIMIZERS),
        Row(
            f"{' '.join(_IMPLEMENTATIONS)} {_FLASH} {_FSDP}.activation_checkpointing "
            f"{_FSDP}.sharding_strategy {_FSDP}.activation_cpu_offload "
            f"{_FSDP}.activation_checkpointing_reentrant",
            _read_implementation,
        ),
        fixed(loss="full_logits", optimizer_implementation="foreach"),
    ),
    model_key=_PATH,
    lists_its_keys=False,
    adapt=_adapt,
    data_keys=(f"{_DATA}.hf_name",),
)
