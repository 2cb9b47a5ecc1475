"""NeMo of every age: recipes of NeMo 2 and of Megatron-Bridge as Megatron-LM's arguments, and NeMo 1's YAML.

A recipe's function (`llm.llama31_8b.finetune_recipe`, `llama3_8b_pretrain_config`) has defaults of its own
(read from NeMo 2.0 to 2.4 and Megatron-Bridge 0.2): 512 sequences of 8,192 a step on one node of 8 GPUs to
pre-train; to fine-tune 128 of 2,048, or 8 rows of 4,096 where `packed_sequence` is set (`performance_mode`
sets it), by LoRA of rank 8 unless `peft_scheme` is none: on all linear layers, on the fused projection alone
in `performance_mode` and in Megatron-Bridge. Gradients are added up in fp32, in `performance_mode` in bf16.
Degrees differ from model to model: where neither script nor `bridge_recipes.json` (of NeMo 2; of
Megatron-Bridge 0.6, where a recipe's name tells its GPUs too) states them, they count as 1, said.

NeMo 1's YAML (megatron_gpt_finetuning_config) is superseded but still found on clusters. What no key of it
says but the framework does (NeMo 1.23): bf16 weights with fp32 master copies sharded by the distributed
optimizer; selective checkpointing recomputes the core of attention; adapters of rank 32 on the fused
attention projection; the accumulation follows from global_batch_size and the GPUs that the file itself
states; steps, not epochs, end a run.
"""

import re
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from finegauge.errors import FieldError, shown
from finegauge.formats import megatron_lm, shipped_data, trainer_keys
from finegauge.formats.key_table import Format, Reading, Row, fixed, key, read_degrees
from finegauge.formats.megatron_lm import DEGREES, TARGETS
from finegauge.formats.model_names import narrow
from finegauge.formats.sheet import dotted
from finegauge.run.field import names, whole

_UNASKED: Mapping[str, Mapping[str, Any]] = {
    "pretrain": {"seq_length": 8192, "global_batch_size": 512, "train_iters": 1_168_251},
    "finetune": {"seq_length": 2048, "global_batch_size": 128, "train_iters": 1000, "peft_scheme": "lora"},
}
_OF_LORA = {"peft_dim": 8, "peft_alpha": 16, "use_distributed_optimizer": False}
RENAMED = {
    "max_steps": "train_iters",
    "sequence_length": "seq_length",
    "peft": "peft_scheme",
    "hf_path": "model",
    **{f"{of}_parallelism": f"{of}_model_parallel_size" for of in ("tensor", "pipeline", "expert")},
    **{"context_parallelism": "context_parallel_size", "sequence_parallelism": "sequence_parallel"},
}
_SHIPPED = shipped_data("bridge_recipes.json")
BASES: Mapping[str, Mapping[str, Any]] = _SHIPPED["bases"]  # of flat recipes, which set the rest
_COMMAND = re.compile(
    r"(\w+?)_(pretrain|finetune|sft|peft)_(?:\d+gpu_\w+?_)?(?:((?:mx|nv)?fp[48]\w*?|bf16\w*?)_)?"
    r"(?:\d+k_|deterministic_)?(?:config|recipe)"
)
_OF_BRIDGE = (*DEGREES, "seq_length", "global_batch_size", "micro_batch_size", "train_iters")


def of_recipe(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a recipe's function does unasked and what is stated over it, under Megatron-LM's names."""
    flat: dict[str, Any] = {}
    for path, value in dotted(keys).items():
        section, _, name = path.rpartition(".")
        prefixed = f"peft_{name}" if section.rpartition(".")[2] == "peft" else name
        flat[RENAMED.get(prefixed, prefixed)] = value
    command, model = str(flat.get("command", "pretrain")), str(flat.get("recipe_model", ""))
    fast = str(flat.pop("performance_mode", "")).lower() == "true"
    in_fp32 = str(flat.pop("grad_reduce_in_fp32", not fast)).lower() == "true"
    flat.setdefault("grad_reduce_in_bf16", not in_fp32)
    if command == "finetune":
        flat.setdefault("packed_sequence", fast)
    if model and (maker := flat.pop("from_recipe", False)):
        found = {"num_gpus_per_node": 8, "bf16": True, **_UNASKED.get(command, _UNASKED["finetune"])}
        if str(flat.get("packed_sequence", "")).lower() == "true":
            found |= {"seq_length": 4096, "global_batch_size": 8}
        if longer := re.fullmatch(r"(.+)_(16|32|64|128)k", model):
            model = flat["recipe_model"] = longer[1]
            found["seq_length"] = 1024 * int(longer[2])
        if fast or maker == "bridge":
            found["peft_target_modules"] = ["linear_qkv"]
        stated, degrees = str(flat.get("global_batch_size", 8)), [flat.get(name) for name in DEGREES]
        shared = prod(int(str(one)) for one in degrees if str(one).isdecimal())
        if maker == "bridge" and ((stated.isdecimal() and int(stated) % 8) or shared > 8):
            del found["num_gpus_per_node"]  # it is torchrun's, and not 8 then
        scheme = str(flat.get("peft_scheme", found.get("peft_scheme", "none"))).lower()
        kind = "pretrain" if command == "pretrain" else "lora" if scheme in ("lora", "dora") else "full"
        known = _SHIPPED["nemo"].get(f"{kind} {model}")
        flat = {**found, **(_OF_LORA if kind == "lora" else {}), **(known or {}), **flat}
        if known is None and "tensor_model_parallel_size" not in flat:
            flat["recipe_degrees"] = "unknown"
        if "devices" in flat:
            flat["num_gpus_per_node"] = flat.pop("devices")
    return {"bf16": True, **flat}


def recipe_of(function: str, module: str) -> dict[str, Any]:
    """Return the model and the command of a recipe's function; {} of any other function."""
    named = _COMMAND.fullmatch(_SHIPPED["older"].get(function, function))
    if named:
        kind = "pretrain" if named[2] == "pretrain" else "finetune"
        made = {"recipe_model": named[1], "command": kind, "from_recipe": "bridge", **narrow(named[3] or "")}
        return made | ({"peft_scheme": "none"} if named[2] == "sft" else {})
    functions = ("pretrain_recipe", "finetune_recipe", "pretrain_config", "finetune_config")
    if function in functions and module != "llm":  # the package, of none alone
        return {"recipe_model": module, "command": function.partition("_")[0], "from_recipe": True}
    return {}


def shipped_recipe(function: str) -> dict[str, Any]:
    """Return what a recipe of Megatron-Bridge's own states; {} of any other."""
    row = _SHIPPED["functions"].get(_SHIPPED["older"].get(function, function))
    if row is None:
        return {}
    packs = {} if "_pretrain_" in function else {"packed_sequence": True}
    degrees: dict[str, Any] = dict(zip(_OF_BRIDGE, row, strict=False))
    return {**packs, "peft_target_modules": [*TARGETS], **degrees, **row[-1]}


def recipe_of_command(named: str, options: dict[str, Any], loose: Sequence[str]) -> dict[str, Any]:
    """Return the recipe of a command: of NeMo 2's, or of a script of Megatron-Bridge's by option or name."""
    if named == "nemo":
        model, _, given = str(options.pop("factory", "")).partition("(")
        from finegauge.formats.launchers import options_of

        more = options_of([word.strip() for word in given.rstrip(")").split(",")], hydra=True)[0]
        return (
            {"command": loose[0], "recipe_model": model, "from_recipe": bool(model), **more} if loose else {}
        )
    script = re.search(r"(pretrain|finetune)_(\w+)\.py$", named[-200:])
    function = str(options.pop("recipe", f"{script[2]}_{script[1]}_config" if script else ""))
    return recipe_of(function, "") | shipped_recipe(function)


NEMO = megatron_lm.FORMAT._replace(
    name="NeMo", adapt=of_recipe, not_modelled=f"{megatron_lm.FORMAT.not_modelled} val_check_interval"
)

_ITS_DEGREES = {f"model.{name}": field for name, field in DEGREES.items()}
_MODEL, _GRANULARITY = "model.restore_from_path", "model.activations_checkpoint_granularity"
_METHOD, _NUM_LAYERS = "model.activations_checkpoint_method", "model.activations_checkpoint_num_layers"
_MODULES = "model.recompute_modules"
_CHECKPOINTING = {"selective": "selective", "full": "full", "none": "none", "null": "none", "": "none"}
_CHUNKS = "model.virtual_pipeline_model_parallel_size"
_LINEARS = {
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
    targets = [target for name in stated for target in _LINEARS.get(name, (name,))]
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
    read_degrees(reading, _ITS_DEGREES)
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
            f"trainer.devices trainer.num_nodes {' '.join(_ITS_DEGREES)} model.sequence_parallel {_CHUNKS} "
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
