"""NeMo 1's YAML (megatron_gpt_finetuning_config), superseded but still found on clusters.

What no key says but the framework does (NeMo 1.23): bf16 weights with fp32 master copies sharded by
the distributed optimizer; selective checkpointing recomputes the core of attention; adapters of rank 32
on the fused attention projection; the accumulation follows from global_batch_size and the GPUs that the
file itself states; steps, not epochs, end a run.
"""

from finegauge.errors import FieldError, shown
from finegauge.formats import megatron_lm, trainer_keys
from finegauge.formats.key_table import Format, Reading, Row, fixed, key, read_degrees
from finegauge.run.field import names, whole

_DEGREES = {f"model.{name}": field for name, field in megatron_lm.DEGREES.items()}
_MODEL, _GRANULARITY = "model.restore_from_path", "model.activations_checkpoint_granularity"
_METHOD, _NUM_LAYERS = "model.activations_checkpoint_method", "model.activations_checkpoint_num_layers"
_MODULES = "model.recompute_modules"
_CHECKPOINTING = {"selective": "selective", "full": "full", "none": "none", "null": "none", "": "none"}
_CHUNKS = "model.virtual_pipeline_model_parallel_size"
_TARGETS = {
    "attention_qkv": ("q_proj", "k_proj", "v_proj"),
    "attention_dense": ("o_proj",),
    "attention_all": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "mlp_fc1": ("gate_proj", "up_proj"),
    "mlp_fc2": ("down_proj",),
    "mlp_all": ("gate_proj", "up_proj", "down_proj"),
    "all": ("all-linear",),
}


def _read_model(reading: Reading) -> None:
    path = str(reading.get(_MODEL, ""))
    name = path.replace("\\", "/").rstrip("/").rpartition("/")[2].removesuffix(".nemo")
    if name:
        guess = path if _MODEL in reading.overrides else name
        reading.set_catalogue_model([guess], _MODEL)
    reading.need_model()


def _read_method(reading: Reading) -> None:
    scheme = reading.text("model.peft.peft_scheme", "none")
    if scheme in ("none", "null", "false"):
        reading.set("method", "full", "model.peft")
        return
    if scheme not in ("lora", "qlora"):
        raise FieldError(f"model.peft.peft_scheme={shown(scheme)} is not supported; use lora, qlora or null.")
    reading.set("method", scheme, "model.peft")
    tuning = "model.peft.lora_tuning"
    rank = reading.get(f"{tuning}.adapter_dim", 32)
    reading.set("lora_rank", rank, "model.peft")
    reading.set("lora_alpha", reading.get(f"{tuning}.alpha", rank), "model.peft")
    reading.set("lora_dropout", reading.get(f"{tuning}.adapter_dropout", 0.0), "model.peft")
    stated = names("target_modules", reading.get(f"{tuning}.target_modules") or ("attention_qkv",))
    targets = [target for name in stated for target in _TARGETS.get(name, (name,))]
    reading.set("lora_targets", targets, "model.peft")


def _read_precision(reading: Reading) -> None:
    precision = reading.text("trainer.precision", "32").removesuffix("-mixed")
    dtype = {"bf16": "bf16", "16": "fp16", "32": "fp32"}.get(precision)
    if dtype is None:
        raise FieldError(f"trainer.precision={shown(precision)} is unknown; use bf16, 16 or 32.")
    pure = reading.flag("model.megatron_amp_O2") or dtype == "fp32"
    reading.set("autocast", "none" if pure else dtype, "trainer.precision", "model.megatron_amp_O2")
    method, weights = reading.fields["method"], dtype if pure else "fp32"
    reading.set("weights_dtype", "nf4" if method == "qlora" else weights, "trainer.precision", "model.peft")
    if method != "full":
        reading.set("adapter_dtype", weights, "trainer.precision")


def _read_implementation(reading: Reading) -> None:
    kind = reading.word(_GRANULARITY, "", _CHECKPOINTING, "selective, full or null")
    reading.set("activation_checkpointing", kind, _GRANULARITY)
    if kind == "selective":
        reading.take("recompute_modules", _MODULES)
    if kind == "full":
        reading.take("recompute_num_layers", _NUM_LAYERS)
        reading.set("recompute_method", reading.text(_METHOD, "uniform"), _METHOD)
    reading.set("attention", "flash", "model.use_flash_attention")
    optimizer = reading.text("model.optim.name", "fused_adam")
    adam = optimizer in ("fused_adam", "distributed_fused_adam", "megatron_fused_adam", "adam", "adamw")
    if not adam:
        reading.warn(f"model.optim.name={shown(optimizer)} is not modelled: it is taken as AdamW.")
    reading.set("optimizer", "adamw", "model.optim")
    reading.set("optimizer_implementation", "fused", "model.optim")


def _read_data(reading: Reading) -> None:
    train = "model.data.train_ds"
    packed = reading.flag(f"{train}.packed_sequence")
    reading.set("seq_len", reading.get(f"{train}.max_seq_length", 2048), "model.data")
    reading.set("packing", packed, "model.data")
    reading.set("padding", "free" if packed else "longest", "model.data")
    trainer_keys.read_dataset(reading, reading.get(f"{train}.file_names") or (), "model.data")


def _read_parallelism(reading: Reading) -> None:
    """Read the GPUs, the degrees, and whether the optimizer or FSDP shards."""
    devices = reading.get("trainer.devices", 1)
    nodes = reading.whole("trainer.num_nodes", 1)
    if str(devices) not in ("-1", "auto"):
        total = nodes * whole(1, 10**6)("trainer.devices", devices)
        reading.set("num_gpus", total, "trainer.devices", "trainer.num_nodes")
    if nodes > 1:
        reading.set("num_nodes", nodes, "trainer.num_nodes")
    read_degrees(reading, _DEGREES)
    if reading.flag("model.sequence_parallel") and "tensor_parallel" in reading.fields:
        reading.set("sequence_parallel", True, "model.sequence_parallel")
    if "pipeline_parallel" in reading.fields:
        read_degrees(reading, {_CHUNKS: "virtual_pipeline_stages"})
        counts = {f"model.account_for_{end}_in_pipeline_split": end for end in ("embedding", "loss")}
        reading.set("counted_as_layers", [end for key, end in counts.items() if reading.flag(key)], *counts)
        for end in ("first", "last"):
            key = f"model.num_layers_in_{end}_pipeline_stage"
            reading.take(f"{end}_stage_layers", key)
    shards = "zero1" if "distributed" in reading.text("model.optim.name") else "none"
    reading.set("sharding", "fsdp" if reading.flag("model.fsdp") else shards, "model.optim", "model.fsdp")
    if reading.flag("model.fsdp_cpu_offload"):
        reading.set("cpu_offload", "params", "model.fsdp_cpu_offload")


def _read_duration(reading: Reading) -> None:
    steps = reading.whole("trainer.max_steps", -1, 10**10, -1)
    if steps > 0:
        reading.set("max_steps", steps, "trainer.max_steps")
    if str(reading.get("trainer.max_epochs", -1)) != "-1":
        reading.take("epochs", "trainer.max_epochs")
    if reading.stated("model.global_batch_size"):
        gpus = reading.launched_gpus or reading.fields.get("num_gpus")
        reading.set_accumulation("model.global_batch_size", data_parallel=reading.data_ranks(gpus))


FORMAT = Format(
    "NeMo 1",
    (
        Row(_MODEL, _read_model),
        fixed(phase="sft"),
        Row("model.peft", _read_method),
        Row("trainer.precision model.megatron_amp_O2", _read_precision),
        Row(
            f"{_GRANULARITY} {_METHOD} {_NUM_LAYERS} {_MODULES} model.use_flash_attention model.optim",
            _read_implementation,
        ),
        Row("model.data", _read_data),
        Row(
            f"trainer.devices trainer.num_nodes {' '.join(_DEGREES)} model.sequence_parallel {_CHUNKS} "
            "model.fsdp model.fsdp_cpu_offload model.fsdp_sharding_strategy",
            _read_parallelism,
        ),
        key("model.micro_batch_size", "micro_batch_size", 1),
        Row(
            "trainer.max_steps trainer.max_epochs trainer.accumulate_grad_batches model.global_batch_size",
            _read_duration,
        ),
    ),
    model_key=_MODEL,
)
