"""torchtitan's TOML job file (releases that read one; newer ones take the same fields from Python).

What no key says but the framework does (its job configuration, 2025): every weight trains in fp32
shards, computed in bf16; FSDP over what the other degrees leave of the GPUs; sequences of 2048 filled
to the end from a stream of text; micro-batches of 8 (1 before local_batch_size was the name); 10,000
steps; selective checkpointing; AdamW, fused.
"""

from collections.abc import Collection
from math import prod
from typing import TYPE_CHECKING, Any

from finegauge.errors import FieldError, UnknownNameError, shown
from finegauge.formats import launcher_files, trainer_keys
from finegauge.formats.framework import Framework, Reading
from finegauge.formats.sheet import Sheet, dataset_name, refuse, repository, without
from finegauge.run.field import whole

if TYPE_CHECKING:
    from finegauge.run.run import Run

_DEGREES = {
    "parallelism.data_parallel_replicate_degree": "data_parallel_replicate",
    "parallelism.tensor_parallel_degree": "tensor_parallel",
    "parallelism.pipeline_parallel_degree": "pipeline_parallel",
    "parallelism.context_parallel_degree": "context_parallel",
    "parallelism.expert_parallel_degree": "expert_parallel",
}
_SHARD = "parallelism.data_parallel_shard_degree"
_KEYS = """
model.name model.flavor model.hf_assets_path model.tokenizer_path training.local_batch_size
training.batch_size training.global_batch_size training.seq_len training.max_context_length
training.steps training.dataset training.mixed_precision_param training.compile training.dtype
training.enable_cpu_offload optimizer.name optimizer.implementation activation_checkpoint.mode
compile.enable parallelism.fsdp_reshard_after_forward parallelism.pipeline_parallel_schedule
"""
KEYS = frozenset((*_KEYS.split(), *_DEGREES, _SHARD))
_MODES = {"none": "none", "full": "full", "selective": "selective", "memory_budget": "selective"}
_SCHEDULES = {"1f1b": "1f1b", "gpipe": "gpipe"}
_CATALOGUE_NAME = {"llama3": "llama-3.1"}
_KNOWN = """
job.* profiling.* metrics.* lr_scheduler.* checkpoint.* comm.* memory_estimation.* fault_tolerance.*
experimental.* float8.* quantize.* validation.* debug.* training.warmup_steps training.max_norm
training.seed training.deterministic training.gc_freq training.gc_debug training.dataset_path
training.mixed_precision_reduce model.print_after_conversion model.converters model.norm_type
model.tokenizer_path optimizer.lr optimizer.beta1 optimizer.beta2 optimizer.eps optimizer.weight_decay
optimizer.early_step_in_backward activation_checkpoint.selective_ac_option
activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns activation_checkpoint.early_stop
compile.components compile.backend parallelism.disable_loss_parallel parallelism.enable_async_tensor_parallel
parallelism.pipeline_parallel_split_points parallelism.pipeline_parallel_layers_per_stage
parallelism.pipeline_parallel_microbatch_size parallelism.pipeline_parallel_schedule_csv
parallelism.enable_compiled_autograd parallelism.context_parallel_rotate_method
parallelism.expert_tensor_parallel_degree parallelism.module_fqns_per_model_part
parallelism.pipeline_parallel_first_stage_less_layers parallelism.pipeline_parallel_last_stage_less_layers
"""


def state(reading: Reading) -> None:
    """State the fields of a torchtitan job."""
    _read_model(reading)
    reading.set("method", "full")
    reading.set("phase", "pretrain")
    _read_precision(reading)
    reading.set("seq_len", _first(reading, ("training.seq_len", "training.max_context_length"), 2048))
    micro = ("training.local_batch_size", "training.batch_size")
    reading.set("micro_batch_size", _first(reading, micro, 8), *micro)
    reading.set("seq_len", reading.fields["seq_len"], "training.seq_len", "training.max_context_length")
    reading.set("packing", True)
    reading.set("padding", "max")
    reading.set("max_steps", reading.get("training.steps", 10_000), "training.steps")
    _read_implementation(reading)
    _read_degrees(reading)


def known_keys() -> Collection[str]:
    """Return the keys that torchtitan knows and nothing here depends on."""
    return _KNOWN.split()


def _first(reading: Reading, keys: tuple[str, ...], default: object) -> object:
    """Return the value of the first of `keys` that is there."""
    return next((reading.get(key) for key in keys if reading.stated(key)), default)


def _read_model(reading: Reading) -> None:
    """Read the model: the folder of its assets is named as it is on the hub, else name and flavour."""
    from finegauge.run.run import figures

    folder = str(reading.get("model.hf_assets_path", reading.get("model.tokenizer_path", "")))
    flavour = reading.text("model.flavor")
    guesses = [part for part in reversed(folder.replace("\\", "/").split("/")) if part not in ("", ".", "..")]
    family = reading.text("model.name")
    guesses.append(f"{_CATALOGUE_NAME.get(family, family)}-{flavour}")
    stated = reading.overrides.get("model.flavor")
    for guess in [stated] if stated else guesses:
        try:
            reading.set("model", figures(guess).name, "model.flavor", "model.hf_assets_path")
            return
        except UnknownNameError:
            continue
    reading.set("model", (stated or guesses[-1]), "model.flavor")
    reading.warn(
        f"{shown(guesses[-1])} is no name of the catalogue; add model=NAME, as 'finegauge models' has it."
    )


def _read_precision(reading: Reading) -> None:
    """Read the number formats: fp32 shards, cast to mixed_precision_param where they are gathered."""
    param = reading.text("training.mixed_precision_param", "bfloat16").removeprefix("torch.")
    shards = reading.text("training.dtype", "float32").removeprefix("torch.")
    reading.set("weights_dtype", shards, "training.dtype")
    mixed = {"bfloat16": "bf16", "float16": "fp16"}.get(param, "none")
    reading.set("autocast", mixed if shards == "float32" else "none", "training.mixed_precision_param")


def _read_implementation(reading: Reading) -> None:
    """Read checkpointing, compilation and optimizer."""
    mode = reading.text("activation_checkpoint.mode", "selective")
    if mode not in _MODES:
        raise FieldError(f"activation_checkpoint.mode={shown(mode)} is unknown; use none, selective or full.")
    reading.set("activation_checkpointing", _MODES[mode], "activation_checkpoint.mode")
    reading.set("checkpointing_reentrant", False)
    compiled = ("compile.enable", "training.compile")
    reading.set("compile", any(map(reading.flag, compiled)), *compiled)
    reading.set("optimizer", reading.text("optimizer.name", "adamw"), "optimizer.name")
    implementation = reading.text("optimizer.implementation", "fused")
    implementation = {"for-loop": "loop"}.get(implementation, implementation)
    reading.set("optimizer_implementation", implementation, "optimizer.implementation")
    reading.set("attention", "sdpa")


def _read_degrees(reading: Reading) -> None:
    """Read the degrees; a shard degree of -1 takes what the others leave of the GPUs."""
    for key, field in _DEGREES.items():
        if reading.get(key) not in (None, 1, "1"):
            reading.set(field, reading.get(key), key)
    if "tensor_parallel" in reading.fields:  # its tensor parallelism always divides norms too
        reading.set("sequence_parallel", True)
    shard = reading.get(_SHARD, -1)
    if str(shard) != "-1":
        reading.set("data_parallel_shard", shard, _SHARD)
    replicated = "data_parallel_replicate" in reading.fields
    stays = reading.text("parallelism.fsdp_reshard_after_forward", "default") == "never"
    kind = "hybrid" if replicated else "fsdp_shard_grad_op" if stays else "fsdp"
    kind = "none" if str(shard) == "1" and "context_parallel" not in reading.fields else kind  # DDP
    reading.set("sharding", kind, _SHARD, "parallelism.fsdp_reshard_after_forward")
    if reading.flag("training.enable_cpu_offload"):
        reading.set("cpu_offload", "params", "training.enable_cpu_offload")
    schedule = reading.text("parallelism.pipeline_parallel_schedule", "1f1b")
    if "pipeline_parallel" in reading.fields:
        kind = _SCHEDULES.get(schedule, "1f1b")
        reading.set("pipeline_schedule", kind, "parallelism.pipeline_parallel_schedule")
    batch = reading.get("training.global_batch_size", -1)
    if str(batch) != "-1":
        reading.set_accumulation(batch, "training.global_batch_size", data_parallel=_data_parallel(reading))


def _data_parallel(reading: Reading) -> int | None:
    """Return how many ranks read different sequences; None where nobody says how many GPUs there are."""
    fields = reading.fields
    if reading.launched_gpus is not None:
        degrees = ("tensor_parallel", "pipeline_parallel", "context_parallel")
        taken = prod(int(whole(1, 10**6)(name, fields.get(name, 1))) for name in degrees)
        return max(1, reading.launched_gpus // taken)
    if "data_parallel_shard" not in fields:
        return None
    ranks = ("data_parallel_shard", "data_parallel_replicate")
    return prod(int(whole(1, 10**6)(name, fields.get(name, 1))) for name in ranks)


FORMAT = Framework("torchtitan", KEYS, "model.flavor", state, known_keys)

NAME = "torchtitan"
FILE = "torchtitan.toml"
_SCHEDULE_WORDS = {"1f1b": "1F1B", "gpipe": "GPipe"}
_OPTIMIZERS = {"adamw": "AdamW"}
_MODE_WORDS = {"none": "none", "full": "full", "selective": "selective", "offload": "full"}


def sheet(run: "Run") -> Sheet:
    """Return the job file of torchtitan for `run`.

    Raises: InputError for what it does not train.
    """
    if run.method != "full" or run.phase != "pretrain":
        field = "method" if run.method != "full" else "phase"
        raise refuse(NAME, field, getattr(run, field), "it pre-trains every weight.")
    model = repository(run)
    low = {"bf16": "bfloat16", "fp16": "float16"}.get(run.autocast, "float32")
    in_fp32 = run.weights_dtype == "fp32"
    keys: dict[str, Any] = {
        "model": _model(model),
        "optimizer": {
            "name": _OPTIMIZERS.get(run.optimizer, run.optimizer),
            "implementation": _implementation(run),
        },
        "training": without(
            {
                "local_batch_size": run.micro_batch_size,
                "global_batch_size": run.global_batch_size,
                "seq_len": run.seq_len,
                "steps": run.max_steps,
                "dataset": dataset_name(run) or "c4",
                "dtype": trainer_keys.DTYPES.get(run.weights_dtype, run.weights_dtype),
                "mixed_precision_param": low if in_fp32 else trainer_keys.DTYPES.get(run.weights_dtype),
                "enable_cpu_offload": True if run.cpu_offload != "none" else None,
            }
        ),
        "parallelism": {
            "data_parallel_replicate_degree": run.data_parallel_replicate,
            "data_parallel_shard_degree": _shard_degree(run),
            "fsdp_reshard_after_forward": _reshard(run),
            "tensor_parallel_degree": run.tensor_parallel,
            "pipeline_parallel_degree": run.pipeline_parallel,
            "pipeline_parallel_schedule": _SCHEDULE_WORDS.get(run.pipeline_schedule, "1F1B"),
            "context_parallel_degree": run.context_parallel,
            "expert_parallel_degree": run.expert_parallel,
        },
        "activation_checkpoint": {"mode": _MODE_WORDS[run.activation_checkpointing]},
        "compile": {"enable": run.compile},
    }
    program = f"-m torchtitan.train --job.config_file {FILE}"
    return Sheet(FILE, keys, launcher_files.torchrun(run, program), "torchtitan")


def _model(repository_id: str) -> dict[str, str]:
    """Return torchtitan's name and flavour, and the folder that its assets are downloaded to."""
    name = repository_id.rpartition("/")[2]
    family, _, size = name.rpartition("-")
    plain = family.lower().removeprefix("meta-")
    return {
        "name": {"llama-3.1": "llama3", "llama-3": "llama3"}.get(plain, plain),
        "flavor": size,
        "hf_assets_path": f"./assets/hf/{name}",
    }


def _implementation(run: "Run") -> str:
    """Return how the optimizer is carried out."""
    return {"loop": "for-loop"}.get(run.optimizer_implementation, run.optimizer_implementation)


def _reshard(run: "Run") -> str:
    """Return whether gathered weights are given up after the forward pass."""
    return "never" if run.sharding in ("zero1", "zero2", "fsdp_shard_grad_op") else "default"


def _shard_degree(run: "Run") -> int:
    """Return the shards; 1 is no FSDP at all, -1 whatever the other degrees leave of the GPUs."""
    return -1 if run.data_parallel_shard == 1 and run.sharding != "none" else run.data_parallel_shard
