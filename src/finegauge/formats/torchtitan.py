"""torchtitan's TOML job file (releases that read one; newer ones take the same fields from Python).

What no key says but the framework does (its job configuration, 2025): every weight trains in fp32
shards, computed in bf16; FSDP over what the other degrees leave of the GPUs; sequences of 2048 filled
to the end from a stream of text; micro-batches of 8 (1 before local_batch_size was the name); 10,000
steps; selective checkpointing, of every second layer unless the option says "op"; AdamW, fused.

The model is what name and flavour say (torchtitan's models/*/__init__.py, read 2026-11-23), for the folder
beside them holds the tokenizer alone. Until 2025 degrees stood under [training] and [experimental].
"""

import re
from collections.abc import Callable, Mapping
from math import prod
from typing import Any

from finegauge.errors import shown
from finegauge.formats import launcher_files, trainer_keys
from finegauge.formats.key_table import Format, Reading, Row, fixed, key, read_degrees
from finegauge.formats.recipes import FLOAT8, GATHERS, shipped
from finegauge.formats.sheet import Sheet, dataset_name, dotted, known_model, repository, require
from finegauge.run.field import names, number, whole
from finegauge.run.rules import NARROW_RECIPES, RECIPE_ALIASES
from finegauge.run.run import FIELDS, Run

FILE = "torchtitan.toml"
_REGISTRY = "config_registry.py"
_DEGREES = {"parallelism.data_parallel_replicate_degree": "data_parallel_replicate"} | {
    f"parallelism.{name}_parallel_degree": f"{name}_parallel"
    for name in ("tensor", "pipeline", "context", "expert")
}
_EXPERT_TENSOR = "parallelism.expert_tensor_parallel_degree"  # 1 or that of tensor parallelism
_SHARD, _RESHARD = "parallelism.data_parallel_shard_degree", "parallelism.fsdp_reshard_after_forward"
_SCHEDULE = "parallelism.pipeline_parallel_schedule"
_ASYNC = "parallelism.enable_async_tensor_parallel"
_OFFLOAD, _BATCH = "training.enable_cpu_offload", "training.global_batch_size"
_PIECE = "parallelism.pipeline_parallel_microbatch_size"  # of a rank's batch, what a stage takes at once
_TOKENS = "training.num_tokens_per_microbatch_per_dp_rank"
_COMPILE = ("compile.enable", "training.compile")
_VALIDATION = tuple(f"validation.{name}" for name in ("enable", "freq", "steps", "local_batch_size"))
_MODE, _OPTION = "activation_checkpoint.mode", "activation_checkpoint.selective_ac_option"
_MODES = {"none": "none", "full": "full", "selective": "selective", "memory_budget": "selective"}
_SCHEDULES = {
    **{"1f1b": "1F1B", "gpipe": "GPipe", "zb_v": "ZBVZeroBubble", "dualpipe_v": "DualPipeV"},
    **{"interleaved1f1b": "Interleaved1F1B", "zb_h1": "InterleavedZeroBubble"},
}
_LOOPED = ("interleaved1f1b", "interleavedzerobubble")
_ENDS = {
    "parallelism.pipeline_parallel_first_stage_less_layers": "embedding",
    "parallelism.pipeline_parallel_last_stage_less_layers": "loss",
}
_LAYERS = "parallelism.pipeline_parallel_layers_per_stage"
_OF_PARALLELISM = (*_DEGREES, *_ENDS, _EXPERT_TENSOR, _PIECE, _SHARD, _RESHARD, _SCHEDULE, _LAYERS)
_CATALOGUE_NAME = {"llama3": "llama-3.1", "llama3_ft": "llama-3.1", "llama2": "llama-2", "gpt_oss": "gpt-oss"}
_FLAVOURS = {
    **{"deepseek_v3-16b": "deepseek-v2-lite", "deepseek_v3-671b": "deepseek-v3"},
    **{"llama4-17bx16e": "llama-4-scout", "llama4-17bx128e": "llama-4-maverick"},
}
_ATTENDS = re.compile(r"[_-](flex|varlen)([_-](attn|flash))?$")  # a flavour's ending
_FLEX = ("llama4", "gpt_oss", "deepseek_v3")  # whose attention is flex in every release
_IMPLEMENTATION, _IN_BACKWARD = "optimizer.implementation", "optimizer.early_step_in_backward"


def _of_older(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys with the degrees of [training] and [experimental] where they have stood since 2025."""
    found = {name: dict(value) if isinstance(value, Mapping) else value for name, value in keys.items()}
    moved = dict[str, Any]()
    for section in ("training", "experimental"):
        inside = found.get(section)
        if not isinstance(inside, dict):
            continue
        for name in [*inside]:
            of_parallelism = ("pipeline_parallel_", "data_parallel_", "enable_async_tensor_parallel")
            if name.endswith("_parallel_degree") or name.startswith(of_parallelism):
                moved[name.replace("data_parallel_degree", "data_parallel_shard_degree")] = inside.pop(name)
    stated = found.get("parallelism")
    if moved:
        found["parallelism"] = moved | (stated if isinstance(stated, dict) else {})
    return found


def of_registry(
    options: Mapping[str, Any], variables: Mapping[str, str], read: Callable[[str], tuple[str, str] | None]
) -> tuple[dict[str, Any], str]:
    """Return the options over what `--module llama3 --config llama3_8b` says, and a warning.

    Of a registry that lies here the function is read, of torchtitan's own what `_SHIPPED` has.
    """
    found = {**{key.lower(): variables[key] for key in ("MODULE", "CONFIG") if key in variables}, **options}
    module, config = found.pop("module", None), found.pop("config", None)
    if not (isinstance(module, str) and isinstance(config, str)):
        return dict(options), ""
    folder = module.removesuffix(".config_registry").replace(".", "/")
    for path in (f"{folder}/{_REGISTRY}", f"torchtitan/models/{folder}/{_REGISTRY}", _REGISTRY):
        held = read(path)
        if held is not None and f"def {config}(" in held[0]:
            from finegauge.formats.scripts import load_python

            script = load_python(held[0], path, {"config": config})
            return {**script.keys, **found}, " ".join(script.warnings)
    known = shipped(module, config)
    warning = (
        f"{shown(config)} is Python of torchtitan's registry, of which the model alone is read: seq_len, "
        "micro_batch_size and checkpointing are torchtitan's defaults; state them."
    )
    return {**known, **found}, "" if len(known) > 2 else warning


def _read_model(reading: Reading) -> None:
    """Read the model: name and flavour; where the catalogue lacks that, the folder of its assets."""
    folder = str(reading.get("model.hf_assets_path", reading.get("model.tokenizer_path", "")))
    parts = [part for part in reversed(folder.replace("\\", "/").split("/")) if part not in ("", ".", "..")]
    family, flavour = reading.text("model.name"), re.sub(_ATTENDS, "", reading.text("model.flavor"))
    named = _FLAVOURS.get(f"{family}-{flavour}", f"{_CATALOGUE_NAME.get(family, family)}-{flavour}")
    stated = reading.overrides.get("model.flavor")
    guesses = [stated] if stated else [named, *([] if "debug" in flavour else parts)]
    reading.set_catalogue_model(guesses, "model.flavor", "model.hf_assets_path")


def _read_attention(reading: Reading) -> None:
    """Read the kernel: a flavour's ending or the registry's word; newer releases attend by flex unasked."""
    unasked = "flex" if reading.stated(_TOKENS) or reading.text("model.name") in _FLEX else "sdpa"
    ending = re.search(_ATTENDS, reading.text("model.flavor"))
    kind = reading.text("model.attn_backend", ending[1] if ending else unasked)
    reading.set("attention", "sdpa" if kind == "sdpa" else "flash", "model.attn_backend", "model.flavor")


def _read_batch(reading: Reading) -> None:
    """Read the sequences of a micro-batch, which newer releases state in tokens."""
    if reading.stated(_TOKENS):
        length = whole(1, 10**9)("seq_len", reading.fields["seq_len"])
        reading.set("micro_batch_size", max(1, reading.whole(_TOKENS, most=10**9) // length), _TOKENS)
        return
    sizes = ("training.local_batch_size", "training.batch_size")
    reading.set("micro_batch_size", reading.first(sizes, 8), *sizes)


def _read_validation(reading: Reading) -> None:
    """Read the evaluations, where so many steps of them are asked for rather than the whole set."""
    if not reading.flag(_VALIDATION[0]):
        return
    steps = int(number(-1, 10**9)(_VALIDATION[2], reading.get(_VALIDATION[2], -1)))
    if steps < 0:
        reading.not_modelled(_VALIDATION[0])
        return
    batch = reading.whole(_VALIDATION[3], int(reading.fields["micro_batch_size"]), 10**6)
    reading.take("eval_steps", _VALIDATION[1], 10)
    reading.set("eval_samples", steps * batch * (_data_parallel(reading) or 1), *_VALIDATION[2:])
    reading.set("eval_batch_size", batch, _VALIDATION[3])


def _read_compile(reading: Reading) -> None:
    """Read whether the model is compiled, not its loss alone."""
    parts = names("compile.components", reading.get("compile.components") or ("model",))
    reading.set("compile", any(map(reading.flag, _COMPILE)) and "model" in parts, *_COMPILE)


def _read_implementation(reading: Reading) -> None:
    word = reading.text(_IMPLEMENTATION, "fused")
    kind = "in_backward" if reading.flag(_IN_BACKWARD) else {"for-loop": "loop"}.get(word, word)
    reading.set("optimizer_implementation", kind, _IMPLEMENTATION, _IN_BACKWARD)


def _implementation(run: Run) -> dict[str, Any]:
    if run.optimizer_implementation == "in_backward":
        return {_IN_BACKWARD: True}
    return {
        _IMPLEMENTATION: {"loop": "for-loop"}.get(run.optimizer_implementation, run.optimizer_implementation)
    }


def _read_float8(reading: Reading) -> None:
    """Read torchao's float8, a converter of the model by its name ("quantize.linear.float8" for a time)."""
    converters = reading.get(FLOAT8) or ()
    asked = any("float8" in name or "mx" in name for name in names(FLOAT8, converters))
    if not (asked or reading.flag("float8.enable_float8_linear")):
        return
    recipe = next(
        (value for key, value in dotted(reading.keys).items() if key.endswith(".recipe_name")), None
    )
    reading.set("fp8", True, FLOAT8)
    named = str(recipe).lower()
    known = named if named in (*NARROW_RECIPES, *RECIPE_ALIASES) else None
    reading.set("fp8_recipe", "mxfp8" if "mx" in named else known, FLOAT8)
    reading.set("fp8_all_gather", reading.flag(GATHERS), GATHERS)


def _float8(run: Run) -> dict[str, Any]:
    if not run.fp8:
        return {}
    recipe = None if run.fp8_recipe == "tensorwise" else run.fp8_recipe
    return {FLOAT8: ["float8"], GATHERS: run.fp8_all_gather or None, "float8.recipe_name": recipe}


def _model(run: Run) -> dict[str, Any]:
    """Return torchtitan's name and flavour, and the folder that its assets are downloaded to."""
    name = repository(run).rpartition("/")[2]
    family, _, size = name.rpartition("-")
    plain = family.lower().removeprefix("meta-")
    return {
        "model.name": {"llama-3.1": "llama3", "llama-3": "llama3"}.get(plain, plain),
        "model.flavor": size,
        "model.hf_assets_path": f"./assets/hf/{name}",
    }


def _read_precision(reading: Reading) -> None:
    """Read the number formats: fp32 shards, cast to mixed_precision_param where they are gathered."""
    param = reading.text("training.mixed_precision_param", "bfloat16").removeprefix("torch.")
    shards = reading.text("training.dtype", "float32").removeprefix("torch.")
    reading.set("weights_dtype", shards, "training.dtype")
    mixed = {"bfloat16": "bf16", "float16": "fp16"}.get(param, "none")
    reading.set("autocast", mixed if shards == "float32" else "none", "training.mixed_precision_param")


def _precision(run: Run) -> dict[str, Any]:
    low = {"bf16": "bfloat16", "fp16": "float16"}.get(run.autocast, "float32")
    stored = trainer_keys.dtype_word(run.weights_dtype)
    param = low if run.weights_dtype == "fp32" else trainer_keys.DTYPES.get(run.weights_dtype)
    return {"training.dtype": stored, "training.mixed_precision_param": param}


def _read_checkpointing(reading: Reading) -> None:
    mode = reading.word(_MODE, "selective", _MODES, "none, selective or full")
    if mode == "selective" and reading.text(_MODE, "selective") == "selective":
        read_selective(reading, _MODE, _OPTION)
    else:
        reading.set("activation_checkpointing", mode, _MODE)


def read_selective(reading: Reading, mode: str, option: str) -> None:
    """Read which layers are computed anew: every second, as the option has it unasked, or some operations."""
    every = reading.text(option, "2")
    reading.set("activation_checkpointing", "full" if every.isdecimal() else "selective", mode, option)
    if every.isdecimal():
        reading.set("recompute_num_layers", max(1, int(every)), option)
        reading.set("recompute_method", "every", option)


def _checkpointing(run: Run) -> dict[str, Any]:
    kind = "full" if run.activation_checkpointing == "offload" else run.activation_checkpointing
    if kind == "full" and run.recompute_num_layers and run.recompute_method == "every":
        return {_MODE: "selective", _OPTION: str(run.recompute_num_layers)}
    return {_MODE: kind, _OPTION: "op" if kind == "selective" else None}


def _read_parallelism(reading: Reading) -> None:
    """Read the degrees; a shard degree of -1 takes what the others leave of the GPUs."""
    read_degrees(reading, _DEGREES)
    if "tensor_parallel" in reading.fields:  # its tensor parallelism always divides norms too
        reading.set("sequence_parallel", True)
        reading.set("tensor_parallel_overlap", reading.flag(_ASYNC), _ASYNC)
        if "expert_parallel" in reading.fields:
            reading.take("expert_tensor_parallel", _EXPERT_TENSOR, 1)
    shard = reading.get(_SHARD, -1)
    if str(shard) == "-1" and reading.launched_gpus is None and "expert_parallel" in reading.fields:
        experts, others = (
            prod(int(whole(1, 10**6)(name, reading.fields.get(name, 1))) for name in degrees)
            for degrees in (("expert_parallel",), ("context_parallel", "tensor_parallel"))
        )
        shard = max(1, -(-experts // others))
        reading.warn(
            "The number of GPUs is the launcher's and is taken as the smallest that expert_parallel allows; "
            "add num_gpus=64 for 64."
        )
    if str(shard) != "-1":
        reading.set("data_parallel_shard", shard, _SHARD)
    replicated = "data_parallel_replicate" in reading.fields
    stays = reading.text(_RESHARD, "default") == "never"
    kind = "hybrid" if replicated else "fsdp_shard_grad_op" if stays else "fsdp"
    kind = "none" if str(shard) == "1" and "context_parallel" not in reading.fields else kind  # DDP
    reading.set("sharding", kind, _SHARD, _RESHARD)
    if reading.flag(_OFFLOAD):
        reading.set("cpu_offload", "params", _OFFLOAD)
    if "pipeline_parallel" in reading.fields:
        _read_stages(reading)
        batch = int(whole(1, 10**6)("micro_batch_size", reading.fields["micro_batch_size"]))
        piece = min(batch, reading.whole(_PIECE, 1))
        reading.set("micro_batch_size", piece, _PIECE)
        reading.set("gradient_accumulation_steps", max(1, batch // piece), _PIECE)
    if str(reading.get(_BATCH, -1)) != "-1":
        reading.set_accumulation(_BATCH, data_parallel=_data_parallel(reading))


def _read_stages(reading: Reading) -> None:
    """Read the schedule, and how layers are divided: embedding and loss count as one of them each."""
    schedule = reading.text(_SCHEDULE, "1f1b")
    field = FIELDS["pipeline_schedule"]
    name = field.aliases.get(schedule, schedule)
    if name not in field.options:
        reading.warn(f"{_SCHEDULE}={shown(schedule)} is not modelled: it is taken as 1F1B.")
        name = "1f1b"
    reading.set("pipeline_schedule", name, _SCHEDULE)
    counted = []
    for name, end in _ENDS.items():
        less = reading.whole(name, 1, 10_000, 0)
        counted += [end] if less else []
        if less > 1:
            reading.warn(f"{name}={less} is not modelled: {end} counts as one layer.")
    reading.set("counted_as_layers", counted, *_ENDS)
    if schedule not in _LOOPED:
        return
    chunks, per_stage = 2, reading.get(_LAYERS)
    known = known_model(str(reading.fields["model"]))
    layers = int(known.config.get("num_hidden_layers", 0)) if known else 0
    if per_stage is not None and layers:
        places = -(-(layers + len(counted)) // int(whole(1, 10_000)(_LAYERS, per_stage)))
        stages = whole(1, 10_000)("pipeline_parallel", reading.fields["pipeline_parallel"])
        chunks = max(1, places // stages)
    reading.set("virtual_pipeline_stages", chunks, _SCHEDULE, _LAYERS)


def _stages(run: Run) -> dict[str, Any]:
    """Return what divides a pipeline: of a rank's batch, each stage takes a micro-batch at once."""
    chunks, name = run.virtual_pipeline_stages, run.pipeline_schedule
    name = "interleaved1f1b" if chunks > 1 and name == "1f1b" else name
    if run.pipeline_parallel == 1:
        return {_SCHEDULE: "1F1B"}
    places = run.pipeline_parallel * chunks
    layers = run.config.get("num_hidden_layers", 0) + len(run.counted_as_layers)
    return {
        _SCHEDULE: _SCHEDULES.get(name, "1F1B"),
        _LAYERS: -(-layers // places) if chunks > 2 else None,
        "training.local_batch_size": run.micro_batch_size * run.gradient_accumulation_steps,
        _PIECE: run.micro_batch_size,
        **{less: int(end in run.counted_as_layers) for less, end in _ENDS.items()},
    }


def _data_parallel(reading: Reading) -> int | None:
    """Return how many ranks read different sequences; None where nobody says how many GPUs there are."""
    if reading.launched_gpus is not None or "data_parallel_shard" not in reading.fields:
        return reading.data_ranks(reading.launched_gpus)
    ranks = ("data_parallel_shard", "data_parallel_replicate")
    return prod(int(whole(1, 10**6)(name, reading.fields.get(name, 1))) for name in ranks)


def _parallelism(run: Run) -> dict[str, Any]:
    # 1 is no FSDP at all unless a degree beside it shards, -1 whatever the other degrees leave of the GPUs.
    alone = run.data_parallel_replicate * run.data_parallel_shard * run.context_parallel == 1
    shards = -1 if alone and run.sharding != "none" else run.data_parallel_shard
    stays = run.sharding in ("zero1", "zero2", "fsdp_shard_grad_op")
    return {
        **{key: getattr(run, field) for key, field in _DEGREES.items()},
        _EXPERT_TENSOR: run.expert_tensor_parallel if run.expert_parallel > 1 else None,
        _SHARD: shards,
        _RESHARD: "never" if stays else "default",
        _ASYNC: True if run.tensor_parallel_overlap else None,
        **_stages(run),
        _OFFLOAD: True if run.cpu_offload != "none" else None,
        _BATCH: run.global_batch_size,
    }


FORMAT = Format(
    "torchtitan",
    (
        Row("model.name model.flavor model.hf_assets_path model.tokenizer_path", _read_model, _model),
        fixed(method="full", phase="pretrain", packing=True, padding="max"),
        Row("model.attn_backend", _read_attention),
        key("loss.kind", "loss", writes=False),  # of its Python
        key("optimizer.name", "optimizer", "adamw", words={"adamw": "AdamW"}),
        Row(f"{_IMPLEMENTATION} {_IN_BACKWARD}", _read_implementation, _implementation),
        Row(f"{FLOAT8} {GATHERS} float8.enable_float8_linear", _read_float8, _float8),
        Row("training.dtype training.mixed_precision_param", _read_precision, _precision),
        key("training.seq_len", "seq_len", 2048, older="training.max_context_length"),
        Row(
            f"training.local_batch_size training.batch_size {_TOKENS}",
            _read_batch,
            lambda run: {"training.local_batch_size": run.micro_batch_size},
        ),
        key("training.steps", "max_steps", 10_000),
        Row("training.dataset", lambda _: None, lambda run: {"training.dataset": dataset_name(run) or "c4"}),
        Row(f"{_MODE} {_OPTION}", _read_checkpointing, _checkpointing),
        fixed(checkpointing_reentrant=False),
        Row(
            f"{' '.join(_COMPILE)} compile.components", _read_compile, lambda run: {_COMPILE[0]: run.compile}
        ),
        Row(" ".join((*_OF_PARALLELISM, _OFFLOAD, _BATCH, _ASYNC)), _read_parallelism, _parallelism),
        Row(" ".join(_VALIDATION), _read_validation),
    ),
    model_key="model.flavor",
    not_modelled="parallelism.disable_loss_parallel parallelism.module_fqns_per_model_part "
    "parallelism.pipeline_parallel_split_points",
    lasting={"learning_rate": "optimizer.lr", "weight_decay": "optimizer.weight_decay"},
    data_keys=("training.dataset",),
    lists_data=True,
    adapt=_of_older,
)


def sheet(run: Run) -> Sheet:
    """Return the job file of torchtitan for `run`.

    Raises: InputError for what it does not train.
    """
    require(run, FORMAT.name, "it pre-trains every weight.", method=("full",), phase=("pretrain",))
    program = f"-m torchtitan.train --job.config_file {FILE}"
    return Sheet(FILE, FORMAT.written(run), launcher_files.torchrun(run, program), "torchtitan")
