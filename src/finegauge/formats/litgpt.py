"""LitGPT's YAML and the arguments of `litgpt finetune...` and `litgpt pretrain`, hidden defaults included.

What no key says but the framework does (read from its finetune scripts, 0.4 to 0.5): bf16 autocast over fp32
weights, unless `precision` says bf16-true; LoRA of rank 8, alpha 16, dropout 0.05 on queries and values; five
epochs of Alpaca; 16 sequences a step (512 in pre-training, as long as the model takes, for 3e12 tokens), 1
at a time (4); one device, more than one by FSDP with every block checkpointed; head and loss in chunks
of 128 tokens under LoRA. Its own models.
"""

from finegauge.errors import FieldError, shown
from finegauge.formats import trainer_keys
from finegauge.formats.key_table import Format, Reading, Row, fixed, key
from finegauge.formats.sheet import known_model, value_at
from finegauge.run.field import whole
from finegauge.run.run import positions_of

_PARTS = {
    "query": ("q_proj", True),
    "key": ("k_proj", False),
    "value": ("v_proj", True),
    "projection": ("o_proj", False),
    "mlp": ("gate_proj up_proj down_proj", False),
    "head": ("lm_head", False),
}
_TARGETS = tuple(f"lora_{part}" for part in _PARTS)
_OPTIMIZERS = ("optimizer.class_path", "optim.optimizer", "optimizer")  # a class; older; a name
_QUANTIZED = {"bnb.nf4": "nf4", "bnb.nf4-dq": "nf4_dq", "bnb.fp4": "nf4", "bnb.fp4-dq": "nf4_dq"}


def _read_model(reading: Reading) -> None:
    name = str(reading.first(("checkpoint_dir", "model_name"), "")).rstrip("/")
    parts = name.split("/")
    guesses = ["/".join(parts[-2:]), parts[-1]]
    if name:
        reading.set_catalogue_model(guesses, "checkpoint_dir", "model_name")
    reading.need_model()


def _read_method(reading: Reading) -> None:
    adapts = reading.stated("lora_r", *_TARGETS)
    unasked = "finetune_full" if reading.stated("checkpoint_dir") else "pretrain"
    command = reading.text("command", "finetune_lora" if adapts else unasked)
    if command not in ("finetune_lora", "finetune_full", "pretrain"):
        raise FieldError(
            f"litgpt's {shown(command)} is not supported; finetune_lora, finetune_full and pretrain are."
        )
    adapts, quantized = command == "finetune_lora", reading.text("quantize", "none")
    quantized = "" if quantized in ("none", "null") else quantized
    if quantized and (not adapts or quantized not in _QUANTIZED):
        raise FieldError(
            f"quantize={shown(quantized)} with {command} is not supported; use bnb.nf4 with finetune_lora."
        )
    reading.set("phase", "pretrain" if command == "pretrain" else "sft")
    reading.set("method", "qlora" if quantized else "lora" if adapts else "full", "quantize")
    precision = reading.text("precision", "bf16-true" if quantized else "bf16-mixed").removeprefix(
        "transformer-engine-"
    )
    low = "fp16" if precision.startswith("16") else "fp32" if precision.startswith("32") else "bf16"
    true = precision.endswith("true") or low == "fp32"
    reading.set("autocast", "none" if true else low, "precision")
    reading.set("weights_dtype", _QUANTIZED.get(quantized, low if true else "fp32"), "quantize", "precision")
    if adapts:
        trainer_keys.read_ranks(reading, ("lora_r", "lora_alpha", "lora_dropout"), (8, 16, 0.05))
        on = [
            names
            for part, (names, default) in _PARTS.items()
            if reading.flag(f"lora_{part}", default=default)
        ]
        reading.set("lora_targets", " ".join(on).split(), *_TARGETS)
        reading.set("adapter_dtype", low if true else "fp32", "precision")
    reading.set("loss", "chunked" if adapts else "full_logits")


def _read_batch(reading: Reading) -> None:
    pretrains = reading.fields["phase"] == "pretrain"
    nodes = reading.whole("num_nodes", 1)
    devices = reading.text("devices", "auto" if pretrains else "1")
    gpus = reading.launched_gpus
    if devices.isdecimal():
        gpus = nodes * int(whole(1, 10**6)("devices", devices))
        reading.set("num_gpus", gpus, "devices", "num_nodes")
    if nodes > 1:
        reading.set("num_nodes", nodes, "num_nodes")
    several = (gpus or 1) > 1
    divided = "hybrid" if pretrains and nodes > 1 else "fsdp"
    reading.set("sharding", divided if several else "none", "devices")
    reading.set("activation_checkpointing", "full" if several and not pretrains else "none", "devices")
    micro = reading.get("train.micro_batch_size", 4 if pretrains else 1)
    reading.set("micro_batch_size", micro, "train.micro_batch_size")
    whole_batch = reading.whole("train.global_batch_size", 512 if pretrains else 16, 10**9)
    steps = whole_batch // (gpus or 1) // whole(1, 10**6)("train.micro_batch_size", micro)
    if not steps:
        raise FieldError(
            f"train.global_batch_size={whole_batch} is less than train.micro_batch_size={micro} on each of "
            f"{gpus or 1} GPUs, where LitGPT stops; raise it."
        )
    reading.set("gradient_accumulation_steps", steps, "train.global_batch_size")
    known = known_model(str(reading.fields["model"])) if pretrains else None
    length = reading.get("train.max_seq_length", positions_of(known.config) if known else None)
    if length is None:
        reading.warn(
            "train.max_seq_length is unstated, so nothing is cut: state seq_len=… of the longest sample."
        )
    reading.set("seq_len", length, "train.max_seq_length")
    reading.set("packing", pretrains)
    if pretrains and length:
        a_step = whole_batch * whole(1, 10**7)("train.max_seq_length", length)
        tokens = reading.whole("train.max_tokens", 3 * 10**12, 10**15)
        reading.set("max_steps", max(1, tokens // a_step), "train.max_tokens")


def _read_data(reading: Reading) -> None:
    """Read the data, Alpaca's where fine-tuning names none."""
    data = reading.get("data", "alpaca" if reading.fields["phase"] == "sft" else "")
    data = data.get("class_path") if isinstance(data, dict) else data
    named = str(data or "").rpartition(".")[2].lower()
    path = value_at(reading.keys, "data.init_args.json_path") or value_at(reading.keys, "data.json_path")
    named = str(path or "") if named in ("json", "textfiles") else named
    trainer_keys.read_dataset(reading, [named] if named else (), "data")


FORMAT = Format(
    "litgpt",
    (
        Row("checkpoint_dir model_name", _read_model),
        Row(f"command quantize precision lora_r lora_alpha lora_dropout {' '.join(_TARGETS)}", _read_method),
        Row(
            "devices num_nodes train.micro_batch_size train.global_batch_size train.max_seq_length "
            "train.max_tokens",
            _read_batch,
        ),
        key("train.epochs", "epochs", 5),
        key("train.max_steps", "max_steps"),
        Row("data", _read_data),
        fixed(attention="sdpa", checkpointing_reentrant=False, pad_to_multiple_of=1),
        Row(" ".join(_OPTIMIZERS), lambda r: trainer_keys.read_optimizer(r, r.which(*_OPTIMIZERS), "adamw")),
    ),
    model_key="checkpoint_dir",
    lists_its_keys=False,
)
