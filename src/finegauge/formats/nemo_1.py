"""NeMo 1's YAML (megatron_gpt_finetuning_config), superseded but still found on clusters.

What no key says but the framework does (NeMo 1.23): bf16 weights with fp32 master copies sharded by
the distributed optimizer; selective checkpointing recomputes attention, which flash attention does
anyway; adapters of rank 32 on the fused attention projection; the accumulation follows from
global_batch_size and the GPUs that the file itself states; steps, not epochs, end a run.
"""

from collections.abc import Collection
from math import prod

from finegauge.errors import FieldError, UnknownNameError, shown
from finegauge.formats import trainer_keys
from finegauge.formats.framework import Framework, Reading
from finegauge.run.field import names, whole

_DEGREES = {
    "model.tensor_model_parallel_size": "tensor_parallel",
    "model.pipeline_model_parallel_size": "pipeline_parallel",
    "model.context_parallel_size": "context_parallel",
    "model.expert_model_parallel_size": "expert_parallel",
}
_KEYS = """
trainer.devices trainer.num_nodes trainer.precision trainer.max_steps trainer.max_epochs
trainer.accumulate_grad_batches model.restore_from_path model.micro_batch_size model.global_batch_size
model.activations_checkpoint_granularity model.activations_checkpoint_method model.sequence_parallel
model.virtual_pipeline_model_parallel_size
model.megatron_amp_O2 model.peft model.data model.optim model.use_flash_attention model.fsdp
model.fsdp_cpu_offload model.fsdp_sharding_strategy
"""
KEYS = frozenset((*_KEYS.split(), *_DEGREES))
_KNOWN = "name exp_manager.* trainer.* model.* inference.* cluster_type restore_from_path seed run.* hydra.*"
_CHECKPOINTING = {"selective": "selective", "full": "full", "none": "none", "null": "none", "": "none"}
_TARGETS = {
    "attention_qkv": ("q_proj", "k_proj", "v_proj"),
    "attention_dense": ("o_proj",),
    "attention_all": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "mlp_fc1": ("gate_proj", "up_proj"),
    "mlp_fc2": ("down_proj",),
    "mlp_all": ("gate_proj", "up_proj", "down_proj"),
    "all": ("all-linear",),
}


def state(reading: Reading) -> None:
    """State the fields of a NeMo 1 file."""
    _read_model(reading)
    reading.set("phase", "sft")
    _read_method(reading)
    _read_precision(reading)
    _read_implementation(reading)
    train = "model.data.train_ds"
    packed = reading.flag(f"{train}.packed_sequence")
    reading.set("seq_len", reading.get(f"{train}.max_seq_length", 2048), "model.data")
    reading.set("packing", packed, "model.data")
    reading.set("padding", "free" if packed else "longest", "model.data")
    files = reading.get(f"{train}.file_names") or ()
    trainer_keys.read_dataset(reading, files, "model.data")
    _read_parallelism(reading)
    _read_batch(reading)


def known_keys() -> Collection[str]:
    """Return the keys that NeMo 1 knows and nothing here depends on."""
    return _KNOWN.split()


def _read_model(reading: Reading) -> None:
    """Read the model out of the name of its .nemo file."""
    from finegauge.run.run import figures

    path = str(reading.get("model.restore_from_path", ""))
    name = path.replace("\\", "/").rstrip("/").rpartition("/")[2].removesuffix(".nemo")
    stated = "model.restore_from_path" in reading.overrides
    try:
        found = figures(path if stated else name).name if name else None
    except UnknownNameError:
        found = path if stated else name
        reading.warn(
            f"{shown(name)} is no name of the catalogue; add model=NAME, as 'finegauge models' has it."
        )
    reading.set("model", found, "model.restore_from_path")
    reading.need_model()


def _read_method(reading: Reading) -> None:
    """Read whether adapters train, and which."""
    scheme = reading.text("model.peft.peft_scheme", "none")
    if scheme in ("none", "null", "false"):
        reading.set("method", "full", "model.peft")
        return
    if scheme not in ("lora", "qlora"):
        raise FieldError(f"model.peft.peft_scheme={shown(scheme)} is not described; use lora, qlora or null.")
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
    """Read the number formats of weights, adapters and arithmetic."""
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
    """Read checkpointing, attention and optimizer."""
    key = "model.activations_checkpoint_granularity"
    granularity = reading.text(key)
    if granularity not in _CHECKPOINTING:
        raise FieldError(f"{key}={shown(granularity)} is unknown; use selective, full or null.")
    reading.set("activation_checkpointing", _CHECKPOINTING[granularity], key)
    reading.set("attention", "flash", "model.use_flash_attention")
    optimizer = reading.text("model.optim.name", "fused_adam")
    adam = optimizer in ("fused_adam", "distributed_fused_adam", "megatron_fused_adam", "adam", "adamw")
    if not adam:
        reading.warn(f"model.optim.name={shown(optimizer)} is not modelled: it is taken as AdamW.")
    reading.set("optimizer", "adamw", "model.optim")
    reading.set("optimizer_implementation", "fused", "model.optim")


def _read_parallelism(reading: Reading) -> None:
    """Read the GPUs, the degrees, and whether the optimizer or FSDP shards."""
    devices = reading.get("trainer.devices", 1)
    nodes = whole(1, 10**6)("trainer.num_nodes", reading.get("trainer.num_nodes", 1))
    if str(devices) not in ("-1", "auto"):
        total = nodes * whole(1, 10**6)("trainer.devices", devices)
        reading.set("num_gpus", total, "trainer.devices", "trainer.num_nodes")
    if nodes > 1:
        reading.set("num_nodes", nodes, "trainer.num_nodes")
    for key, field in _DEGREES.items():
        if reading.get(key) not in (None, 1, "1"):
            reading.set(field, reading.get(key), key)
    if reading.flag("model.sequence_parallel") and "tensor_parallel" in reading.fields:
        reading.set("sequence_parallel", True, "model.sequence_parallel")
    chunks = reading.get("model.virtual_pipeline_model_parallel_size")
    if "pipeline_parallel" in reading.fields and chunks not in (None, 1, "1"):
        reading.set("virtual_pipeline_stages", chunks, "model.virtual_pipeline_model_parallel_size")
    shards = "zero1" if "distributed" in reading.text("model.optim.name") else "none"
    reading.set("sharding", "fsdp" if reading.flag("model.fsdp") else shards, "model.optim", "model.fsdp")
    if reading.flag("model.fsdp_cpu_offload"):
        reading.set("cpu_offload", "params", "model.fsdp_cpu_offload")


def _read_batch(reading: Reading) -> None:
    """Read the micro-batch, the accumulation and the duration."""
    reading.set("micro_batch_size", reading.get("model.micro_batch_size", 1), "model.micro_batch_size")
    steps = whole(-1, 10**10)("trainer.max_steps", reading.get("trainer.max_steps", -1))
    if steps > 0:
        reading.set("max_steps", steps, "trainer.max_steps")
    epochs = reading.get("trainer.max_epochs")
    if epochs not in (None, -1, "-1"):
        reading.set("epochs", epochs, "trainer.max_epochs")
    gpus = reading.launched_gpus or reading.fields.get("num_gpus")
    degrees = ("tensor_parallel", "pipeline_parallel", "context_parallel")
    taken = prod(whole(1, 10**6)(name, reading.fields.get(name, 1)) for name in degrees)
    ranks = None if gpus is None else max(1, int(gpus) // taken)
    batch = reading.get("model.global_batch_size")
    if batch is not None:
        reading.set_accumulation(batch, "model.global_batch_size", data_parallel=ranks)


FORMAT = Framework("NeMo 1", KEYS, "model.restore_from_path", state, known_keys)
