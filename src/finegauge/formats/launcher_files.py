"""Files of the launcher beside a training file: accelerate's YAML and DeepSpeed's JSON, read and written.

The training file wins where both speak of the number format, as in transformers' Trainer; where two files
state different batches or two ways to shard, the contradiction is said. A DeepSpeed file that a config names
is read only inside the project: below the working folder, or below the folder above the config's. Where it is
not there, its name often tells the stage (ds_z3_config.json). "auto" leaves a value to the training file.
Names and defaults of accelerate are those of `accelerate config` (accelerate 1.10, both FSDP generations).
"""

import os
import re
from collections.abc import Collection, Mapping
from math import prod
from typing import Any

from finegauge import documents
from finegauge.documents import read_text
from finegauge.errors import FieldError, FileFormatError, shown
from finegauge.formats.sheet import ACCELERATE, mapping_in, value_at, without
from finegauge.records import NamedTuple
from finegauge.run.field import flag, whole
from finegauge.run.rules import DATA_DEGREES, FSDP, MODEL_DEGREES, STATED
from finegauge.run.run import FROM_COMMAND_LINE, FROM_DEFAULT, Run

BATCH = ("micro_batch_size", "gradient_accumulation_steps")
_TRAINING_FILE_WINS = ("autocast",)
_STAGES = ("none", "zero1", "zero2", "zero3")  # of ZeRO, by number
GATHERS = "stage3_gather_16bit_weights_on_model_save"
_GATHERED = "stage3_gather_fp16_weights_on_model_save"  # its older name
_OLDER = {"optimizer": "cpu_offload", "param": "cpu_offload_params"}  # switches of DeepSpeed before 0.3.16
# Blocks of DeepSpeed's file that are read, or that neither memory nor time hangs on.
_BLOCKS = re.compile(
    r"bf16|fp16|amp|optimizer|scheduler|zero_optimization|activation_checkpointing|aio|tensor_parallel|comet"
    r"|data_types|checkpoint|comms_logger|flops_profiler|tensorboard|wandb|csv_monitor|monitor_config"
    r"|autotuning|elasticity|hybrid_engine|torch_autocast|offload_(optimizer|param)"
)
# Its optimizers, of which a training file's gives way to.
_OPTIMIZERS = {
    **dict.fromkeys(("adam", "adamw", "fusedadam", "cpuadam", "torchadam"), "adamw"),
    **{name: name for name in ("lion", "sgd", "adagrad", "muon")},
}
ZERO_PLUS_PLUS = ("zero_hpz_partition_size", "zero_quantized_weights", "zero_quantized_gradients")
_UNSHARDED: Mapping[str, Any] = {"sharding": "none", "cpu_offload": "none"}
STAGE = r"(?:z|zero[_-]?|stage[_-]?|(?<![a-z0-9])s)([0-3])"  # in a file's name, such as ds_z3_config.json
_DEEPSPEED_KEYS = frozenset(("zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size"))
_ACCELERATE_KEYS = frozenset(("compute_environment", "distributed_type", "num_processes", "machine_rank"))
_STRATEGIES = {
    "1": "fsdp", "full_shard": "fsdp", "true": "fsdp",
    "2": "fsdp_shard_grad_op", "shard_grad_op": "fsdp_shard_grad_op", "false": "fsdp_shard_grad_op",
    "3": "none", "no_shard": "none",
    "4": "hybrid", "hybrid_shard": "hybrid", "5": "hybrid", "hybrid_shard_zero2": "hybrid",
}  # fmt: skip
_DEGREES = {
    "dp_replicate_size": "data_parallel_replicate",
    "dp_shard_size": "data_parallel_shard",
    "tp_size": "tensor_parallel",
    "cp_size": "context_parallel",
    "sp_size": "context_parallel",
}
_PRECISIONS: Mapping[str, Mapping[str, Any]] = {
    **{name: {"autocast": name} for name in ("bf16", "fp16")},
    "fp8": {"autocast": "bf16", "fp8": True},
}
_MEGATRON = {
    **{"tp_degree": "tensor_parallel", "pp_degree": "pipeline_parallel"},
    "num_micro_batches": "gradient_accumulation_steps",
}


class Alongside(NamedTuple):
    """What is given beside the training file; None where nothing is."""

    accelerate: str | Mapping[str, Any] | None = None  # a file, or its keys as a command line states them
    deepspeed: str | None = None
    num_gpus: int | None = None
    beside: str = ""  # the file beside which those lie that accelerate's keys name

    def fields(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the fields that each file states, with the origin they get."""
        stated = []
        if self.accelerate is not None:
            if isinstance(self.accelerate, str):
                origin = f"accelerate file {os.path.basename(self.accelerate)}"
            else:
                origin = "accelerate file of the launch line"
            stated.append((origin, self._of_accelerate()))
        if self.deepspeed is not None:
            found = deepspeed_fields(keys_of_file(self.deepspeed, "DeepSpeed"))
            stated.append((f"DeepSpeed file {os.path.basename(self.deepspeed)}", found))
        return stated

    def launched_gpus(self) -> int | None:
        """Return how many GPUs the run is launched on, if this tells."""
        if self.num_gpus is not None or self.accelerate is None:
            return self.num_gpus
        count = self._of_accelerate().get("num_gpus")
        return int(count) if count is not None else None

    def _keys_of_deepspeed(self) -> Mapping[str, Any]:
        """Return the keys of DeepSpeed's file, or of that which accelerate's file names."""
        if self.deepspeed is not None:
            return keys_of_file(self.deepspeed, "DeepSpeed")
        keys, file = self._keys_of_accelerate()
        named = mapping_in(keys, "deepspeed_config").get("deepspeed_config_file")
        return zero_of(named, file).keys or {} if named else {}

    def _keys_of_accelerate(self) -> tuple[Mapping[str, Any], str]:
        """Return accelerate's keys, and the file beside which those lie that they name."""
        if isinstance(self.accelerate, str):
            return keys_of_file(self.accelerate, "accelerate"), self.accelerate
        return self.accelerate or {}, self.beside

    def _of_accelerate(self) -> dict[str, Any]:
        return accelerate_fields(*self._keys_of_accelerate())

    def lay_over(self, fields: dict[str, Any], origins: dict[str, str], warnings: list[str]) -> None:
        """Put what stands alongside over the training file's `fields`.

        Raises: FieldError where the two contradict each other.
        """
        keys = self._keys_of_deepspeed()
        warnings += filter(None, (unmodelled(keys), other_precision(keys, fields)))
        for origin, found in self.fields():
            _refuse_contradictions(origin, found, fields, origins)
            for field, value in found.items():
                keeps = field in _TRAINING_FILE_WINS and _is_stated(field, origins)
                if keeps and str(fields.get(field)) != str(value):
                    warnings.append(
                        f"{field}={value} of the {origin} has no effect: the training file states "
                        f"{field}={fields[field]}."
                    )
                unsharded = field in ("sharding", "cpu_offload") and value == "none" and field in fields
                if not keeps and not unsharded:
                    fields[field] = value
                    origins[field] = origin
        divided = any(str(fields.get(name, 1)) != "1" for name in MODEL_DEGREES)
        refuse_other_batch(keys, fields, None if divided else self.launched_gpus())
        if self.num_gpus is not None:
            fields["num_gpus"], origins["num_gpus"] = self.num_gpus, FROM_COMMAND_LINE


def _is_stated(field: str, origins: Mapping[str, str]) -> bool:
    origin = origins.get(field, FROM_DEFAULT)
    return origin in STATED or " file " in origin


def _refuse_contradictions(
    origin: str, found: Mapping[str, Any], fields: Mapping[str, Any], origins: Mapping[str, str]
) -> None:
    """Raise where `found` and `fields` cannot both hold."""
    for field in BATCH:
        known = fields.get(field)
        if field in found and _is_stated(field, origins) and str(known) != str(found[field]):
            raise FieldError(
                f"{field}={known} of the training file contradicts {field}={found[field]} of the {origin}; "
                "make them equal, or set the latter to auto."
            )
    ours, theirs = str(fields.get("sharding") or "none"), str(found.get("sharding") or "none")
    if "none" not in (ours, theirs) and ours != theirs and _is_stated("sharding", origins):
        raise FieldError(
            f"sharding={ours} of the training file contradicts sharding={theirs} of the {origin}; keep one."
        )


ALONE = Alongside()


def is_deepspeed(keys: Mapping[str, Any]) -> bool:
    """Return whether `keys` are those of a DeepSpeed file."""
    return not _DEEPSPEED_KEYS.isdisjoint(keys)


def keys_of_file(path: str, launcher: str) -> Mapping[str, Any]:
    """Return the keys of a file of "accelerate" or "DeepSpeed".

    Raises: FileFormatError if it is none.
    """
    name = os.path.basename(path)
    keys = documents.parse_yaml(read_text(path), name)
    is_theirs = {"accelerate": is_accelerate, "DeepSpeed": is_deepspeed}[launcher]
    if not isinstance(keys, dict) or not is_theirs(keys):
        lacks = "neither distributed_type nor …" if launcher == "accelerate" else "no zero_optimization"
        raise FileFormatError(f"{name} is no {launcher} file: it has {lacks}.")
    return keys


def deepspeed_fields(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that DeepSpeed's keys state; what is "auto" is not among them."""
    fields: dict[str, Any] = dict(_zero_fields(keys))
    keys_of_batch = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    for key, field in zip(keys_of_batch, BATCH, strict=True):
        if keys.get(key) not in (None, "auto"):
            fields[field] = whole(1, 10**6)(key, keys[key])
    for dtype in ("bf16", "fp16"):
        enabled = mapping_in(keys, dtype).get("enabled")
        if enabled not in (None, "auto") and flag(f"{dtype}.enabled", enabled):
            fields["autocast"] = dtype
    named = str(mapping_in(keys, "optimizer").get("type")).lower()
    fields |= {"optimizer": _OPTIMIZERS[named]} if named in _OPTIMIZERS else {}
    tensor = mapping_in(keys, "tensor_parallel").get("autotp_size")
    if tensor not in (None, 0, 1):
        fields["tensor_parallel"] = whole(1, 10**6)("autotp_size", tensor)
    return fields


def _whole_batch(keys: Mapping[str, Any]) -> int:
    """Return the sequences of a step that DeepSpeed's keys state; 0 where they leave them open."""
    stated = keys.get("train_batch_size")
    return 0 if stated in (None, "auto") else int(whole(1, 10**9)("train_batch_size", stated))


def batch_by_engine(keys: Mapping[str, Any], told: Mapping[str, Any], ranks: int | None) -> dict[str, int]:
    """Return micro-batch and accumulation that DeepSpeed's file leaves open to the loop of its engine."""
    left, batch = [field for field in BATCH if field not in told], _whole_batch(keys)
    shares = {left[0]: max(1, batch // (prod(told.get(f, 1) for f in BATCH) * (ranks or 1)))} if left else {}
    return dict.fromkeys(left, 1) | (shares if batch else {})


def refuse_other_batch(keys: Mapping[str, Any], fields: Mapping[str, Any], ranks: int | None) -> None:
    """Raise where DeepSpeed's train_batch_size is not what batch, accumulation and ranks come to."""
    parts, batch = [str(fields.get(field, 1)) for field in BATCH], _whole_batch(keys)
    if not batch or not all(part.isdecimal() for part in parts):
        return
    share = prod(map(int, parts)) * (ranks or 1)
    if batch % share or (ranks and batch != share):
        raise FieldError(
            f"train_batch_size={batch} of the DeepSpeed file contradicts the training file's {share}: "
            f"micro_batch_size={parts[0]} x gradient_accumulation_steps={parts[1]} x {ranks or 1} "
            "data-parallel ranks; make them equal, or set the former to auto."
        )


def other_precision(keys: Mapping[str, Any], fields: Mapping[str, Any]) -> str:
    """Return the warning of a 16-bit format that DeepSpeed's keys and a training file do not share, or ""."""
    for dtype in ("bf16", "fp16"):
        enabled, asked = mapping_in(keys, dtype).get("enabled", "auto"), fields.get("autocast")
        if asked and enabled != "auto" and flag(f"{dtype}.enabled", enabled) != (asked == dtype):
            said = f"{dtype}.enabled={str(enabled).lower()} of the DeepSpeed file contradicts"
            return f"{said} autocast={asked}, where transformers stops; make them equal, or the former auto."
    return ""


class Zero(NamedTuple):
    """What a DeepSpeed file shards and offloads, as fields."""

    fields: Mapping[str, Any]  # sharding and cpu_offload, and whether what is offloaded is page-locked
    keys: Mapping[str, Any] | None = None  # of the file, where it could be read
    warning: str = ""


def unmodelled(keys: Mapping[str, Any]) -> str:
    """Return the warning of what DeepSpeed's keys ask that is not predicted; "" of nothing."""
    zero: Mapping[str, Any] = mapping_in(keys, "zero_optimization")
    off: tuple[Any, ...] = (None, False, "false", {})
    asked = [
        str(key)
        for key, one in [*keys.items(), *zero.items()]
        if isinstance(one, Mapping) and not _BLOCKS.fullmatch(str(key)) and one.get("enabled", one) not in off
    ]
    switches = ("zero_quantized_nontrainable_weights", "offload_optimizer.super_offload")
    asked += [path for path in switches if value_at(zero, path) not in off]
    ratio = value_at(zero, "offload_optimizer.ratio")  # of Twin-Flow
    asked += ["offload_optimizer.ratio"] if isinstance(ratio, int | float) and ratio < 1 else []
    named = str(mapping_in(keys, "optimizer").get("type", "adamw"))
    asked += [] if named.lower() in _OPTIMIZERS else [f"optimizer {shown(named)}"]
    return f"DeepSpeed's {', '.join(asked)}: not predicted; the run is taken as without." if asked else ""


def zero_of(named: Any, config_file: str) -> Zero:
    """Return what a DeepSpeed file that a config names, or an inline mapping, shards and offloads."""
    if isinstance(named, Mapping):
        return Zero(_zero_fields(named), named, unmodelled(named))
    path, outside = find_inside(str(named), config_file)
    if path is not None:
        try:
            keys = documents.parse_yaml(read_text(path), os.path.basename(path))
        except FileFormatError as error:
            return Zero(_UNSHARDED, None, f"deepspeed: {error} The run is taken as not sharded.")
        if isinstance(keys, dict):
            return Zero(_zero_fields(keys), keys, unmodelled(keys))
    reason = "lies outside the project folder and is not read" if outside else "was not found"
    reason, name = f"deepspeed: {shown(named)} {reason}", os.path.basename(str(named)).lower()
    stages = set(re.findall(STAGE, name))
    if len(stages) != 1:
        return Zero(_UNSHARDED, None, f"{reason}; state sharding=zero2 or zero3 if it shards.")
    stage = int(stages.pop())
    offloads = re.search(r"(?<!no)(?<!no[_-])(?<!without[_-])offload", name)
    of_params = stage == 3 and re.search(r"offload_params?(?![a-z])", name)
    offload = "none" if not offloads else "params" if of_params else "all" if stage == 3 else "optimizer"
    fields = {"sharding": _STAGES[stage], "cpu_offload": offload}
    also = " How many GPUs divide a layer is in it too: state tensor_parallel=…." if "autotp" in name else ""
    return Zero(fields, None, f"{reason}; ZeRO stage {stage} is taken from its name.{also}")


def find_inside(
    named: str, config_file: str, endings: tuple[str, ...] = (".json",)
) -> tuple[str | None, bool]:
    """Return the file if it lies inside the project and has one of `endings`, and whether it lies outside."""
    working, beside = os.path.realpath(os.curdir), os.path.dirname(os.path.realpath(config_file))
    above = os.path.dirname(beside)
    roots = [os.path.join(root, "") for root in (working, beside, above) if len(root) > 1]
    outside = False
    for base in (working, beside):
        try:
            path = os.path.realpath(os.path.join(base, named))
        except (OSError, ValueError):
            continue
        if not any(path.startswith(root) for root in roots):
            outside = True
        elif path.endswith(endings) and os.path.isfile(path):
            return path, False
    return None, outside


def _zero_fields(keys: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what DeepSpeed's keys shard, offload, and page-lock of what they offload."""
    zero = keys.get("zero_optimization")
    if not isinstance(zero, Mapping):
        return _UNSHARDED
    stage = zero.get("stage")
    stage = int(stage) if isinstance(stage, str) and stage in ("0", "1", "2", "3") else stage
    parts = {what: mapping_in(zero, f"offload_{what}") for what in _OLDER}
    parts |= {what: {"device": "cpu"} for what, older in _OLDER.items() if zero.get(older) is True}
    parts = {what: part for what, part in parts.items() if part.get("device") in ("cpu", "nvme")}
    offload = (
        "none" if not parts else "all" if len(parts) == 2 else "params" if "param" in parts else "optimizer"
    )
    if stage == 3 and offload == "all" and all(part["device"] == "nvme" for part in parts.values()):
        offload = "nvme"
    stage = 0 if stage is None else stage
    if not (isinstance(stage, int) and 0 <= stage < len(_STAGES)):
        raise FieldError(f"ZeRO has no stage {shown(stage)}; use 0, 1, 2 or 3.")
    sharding = _STAGES[stage]
    if not stage:
        return _UNSHARDED
    pinned = {"offload_pinned": all(part.get("pin_memory") is True for part in parts.values())}
    bucket = {"reduce_bucket_size": zero.get("reduce_bucket_size")}
    fields = {"sharding": sharding, "cpu_offload": offload, **without(bucket), **(pinned if parts else {})}
    if stage == 3:  # 0 GPUs to share a copy are as good as 1
        fields |= {
            key: zero[key] or 1 for key in ZERO_PLUS_PLUS if zero.get(key) not in (None, False, "auto")
        }
        if str(zero.get(GATHERS, zero.get(_GATHERED))).lower() != "true":  # "auto" is DeepSpeed's default
            fields["save_state"] = "sharded"
    return fields


def is_accelerate(keys: Mapping[str, Any]) -> bool:
    """Return whether `keys` are those of an accelerate file."""
    return len(_ACCELERATE_KEYS & set(keys)) > 1


def accelerate_fields(keys: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Return the fields that accelerate's keys state."""
    fields: dict[str, Any] = {}
    kind = str(keys.get("distributed_type") or "NO").upper()
    if keys.get("num_processes") is not None:
        fields["num_gpus"] = whole(1, 10**6)("num_processes", keys["num_processes"])
    if keys.get("num_machines") not in (None, 1):
        fields["num_nodes"] = whole(1, 10**6)("num_machines", keys["num_machines"])
    precision = str(keys.get("mixed_precision") or "no").lower()
    fields |= _PRECISIONS.get(precision, {})
    if kind == "FSDP":
        options = mapping_in(keys, "fsdp_config")
        newer = str(options.get("fsdp_version")) == "2"
        unasked = {"fsdp_state_dict_type": "SHARDED_STATE_DICT"} if newer else {}
        fields |= fsdp_fields({"fsdp_cpu_ram_efficient_loading": True, **unasked, **options})
    elif kind == "DEEPSPEED":
        fields |= _deepspeed(mapping_in(keys, "deepspeed_config"), path)
    elif kind == "MEGATRON_LM":
        fields |= _megatron(mapping_in(keys, "megatron_lm_config"))
    dynamo = mapping_in(keys, "dynamo_config")
    backend = str(dynamo.get("dynamo_backend") or dynamo.get("dynamo_config_dynamo_backend") or "NO")
    if backend.upper() not in ("NO", "FALSE") and kind != "DEEPSPEED":  # whose launcher hands none on
        fields["compile"] = True
    fields |= degrees_of(keys)
    if fields.get("sharding") == "fsdp" and fields.get("data_parallel_replicate", 1) > 1:
        fields["sharding"] = "hybrid"
    return fields


def _megatron(section: Mapping[str, Any]) -> dict[str, Any]:
    named = {str(key).removeprefix("megatron_lm_"): value for key, value in section.items()}
    fields = without({field: named.get(key) for key, field in _MEGATRON.items()})
    for name, field, value in (
        ("sequence_parallelism", "sequence_parallel", True),
        ("recompute_activations", "activation_checkpointing", "selective"),
        ("use_distributed_optimizer", "sharding", "zero1"),
    ):
        if flag(f"megatron_lm_{name}", named.get(name) or False):
            fields[field] = value
    return fields


def fsdp_fields(section: Mapping[str, Any], asked: Collection[str] = ()) -> dict[str, Any]:
    """Return what FSDP's keys state, with or without their prefix, under the words of a Trainer's `fsdp`."""
    named = {str(key).removeprefix("fsdp_"): value for key, value in section.items()}
    unasked = next((word for word in asked if word in _STRATEGIES), "full_shard")
    strategy = named.get("reshard_after_forward", named.get("sharding_strategy", unasked))
    word = "no_shard" if "no_shard" in asked else str(strategy).lower()
    if word not in _STRATEGIES:
        raise FieldError(f"fsdp_sharding_strategy={shown(word)} is unknown; use FULL_SHARD or SHARD_GRAD_OP.")
    fields: dict[str, Any] = {"sharding": _STRATEGIES[word]}
    for key, field, value in (
        ("cpu_ram_efficient_loading", "loading", "rank0"),
        ("offload_params", "cpu_offload", "params"),
        ("cpu_offload", "cpu_offload", "params"),
        ("activation_checkpointing", "activation_checkpointing", "full"),
    ):
        if flag(key, named.get(key) or (field == "cpu_offload" and "offload" in asked)):
            fields[field] = value
    if "sharded" in str(named.get("state_dict_type")).lower():
        fields["save_state"] = "sharded"
    return fields


def _deepspeed(section: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Return the fields of deepspeed_config: a file named in it, or its own few keys."""
    named = section.get("deepspeed_config_file")
    if named:
        found = zero_of(named, path)
        if found.keys is None and found.fields["sharding"] == "none":
            reason = found.warning.removeprefix(f"deepspeed: {shown(named)} ").partition("; state")[0]
            raise FieldError(
                f"deepspeed_config_file {shown(str(named))} {reason}; copy it beside the project."
            )
        return dict(found.fields) if found.keys is None else deepspeed_fields(found.keys)
    zero: dict[str, Any] = {"stage": section.get("zero_stage", 2)}
    zero[GATHERS] = section.get("zero3_save_16bit_model")
    for what in ("optimizer", "param"):
        zero[f"offload_{what}"] = {"device": section.get(f"offload_{what}_device")}
    steps = section.get("gradient_accumulation_steps", "auto")
    return deepspeed_fields({"zero_optimization": zero, "gradient_accumulation_steps": steps})


def degrees_of(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return the degrees of parallelism_config, whose keys may carry its name as a prefix."""
    fields = {}
    for key, value in mapping_in(keys, "parallelism_config").items():
        field = _DEGREES.get(str(key).removeprefix("parallelism_config_"))
        if field is not None and value not in (None, 0, 1):
            fields[field] = whole(1, 10**6)(str(key), value)
    return fields


def uses_deepspeed(run: Run) -> bool:
    """Return whether DeepSpeed shards or offloads."""
    return run.sharding in ("zero1", "zero2", "zero3") or (
        run.sharding == "none" and run.cpu_offload != "none"
    )


def uses_fsdp(run: Run) -> bool:
    """Return whether FSDP shards."""
    return run.sharding in FSDP


def zero_stage(run: Run) -> int:
    """Return the ZeRO stage; what is offloaded has to be sharded, on one GPU too."""
    needed = {"none": 0, "optimizer": 2}.get(run.cpu_offload, 3)
    return _STAGES.index(run.sharding) if run.sharding != "none" else needed


def unsaid_gpus(fields: Mapping[str, Any]) -> list[str]:
    """Return the warning of a file that shards and does not say how many GPUs there are."""
    degrees = {*MODEL_DEGREES, "expert_parallel"} & {*fields}
    alone = fields.get("sharding", "none") == "none" and "expert_parallel" not in degrees
    if alone or {"num_gpus", *DATA_DEGREES} & {*fields}:
        return []
    least = "the smallest that the degrees allow" if degrees else "1"
    return [f"How many GPUs is the launcher's to say: taken as {least}; add num_gpus=8 for eight."]


def per_node(run: Run) -> int:
    """Return the GPUs of one node."""
    return run.num_gpus // run.num_nodes


def accelerate(run: Run) -> dict[str, Any]:
    """Return accelerate's YAML for a run on several GPUs, or one that is sharded or offloaded."""
    kind = "DEEPSPEED" if uses_deepspeed(run) else "FSDP" if uses_fsdp(run) else "MULTI_GPU"
    keys: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": kind if run.num_gpus > 1 or kind != "MULTI_GPU" else "NO",
        "mixed_precision": "no" if run.autocast == "none" else run.autocast,
        "num_machines": run.num_nodes,
        "num_processes": run.num_gpus,
        "machine_rank": 0,
        "rdzv_backend": "static",
        "same_network": True,
        "use_cpu": False,
        "main_training_function": "main",
    }
    if kind == "DEEPSPEED":
        keys["deepspeed_config"] = _inline_deepspeed(run)
    elif kind == "FSDP":
        keys["fsdp_config"] = fsdp_options(run, prefix="fsdp_") | {"fsdp_version": 2}
    degrees = {key: getattr(run, field) for key, field in _DEGREES.items() if key != "sp_size"}
    if kind == "FSDP" and (degrees_beyond_data(run) > 1 or run.data_parallel_replicate > 1):
        keys["parallelism_config"] = {f"parallelism_config_{key}": n for key, n in degrees.items()}
    return keys


def _inline_deepspeed(run: Run) -> dict[str, Any]:
    stage, devices = zero_stage(run), offload_devices(run)
    return without(
        {
            "zero_stage": stage,
            "offload_optimizer_device": devices["optimizer"] or "none",
            "offload_param_device": devices["param"] or "none",
            "gradient_accumulation_steps": run.gradient_accumulation_steps,
            "zero3_init_flag": stage == 3,
            "zero3_save_16bit_model": stage == 3 and run.save_state == "full",
            "deepspeed_multinode_launcher": "standard" if run.num_nodes > 1 else None,
        }
    )


def offload_devices(run: Run) -> dict[str, str | None]:
    """Return where DeepSpeed keeps the optimizer's state and the parameters, None: on the GPU."""
    place = "nvme" if run.cpu_offload == "nvme" else "cpu"
    return {
        "optimizer": place if run.cpu_offload in ("optimizer", "all", "nvme") else None,
        "param": place if run.cpu_offload in ("params", "all", "nvme") else None,
    }


def fsdp_options(run: Run, prefix: str = "") -> dict[str, Any]:
    """Return the keys of `fsdp_config`, as accelerate (with its prefix) and Axolotl (without) have them."""
    keys = {
        "reshard_after_forward": run.sharding != "fsdp_shard_grad_op",
        "offload_params": run.cpu_offload != "none",
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "state_dict_type": "SHARDED_STATE_DICT" if run.save_state == "sharded" else "FULL_STATE_DICT",
        "cpu_ram_efficient_loading": run.loading == "rank0",
    }
    return {f"{prefix}{key}": value for key, value in keys.items()}


def deepspeed(run: Run, *, explicit: bool = False) -> dict[str, Any]:
    """Return DeepSpeed's JSON; what the trainer knows too is "auto", unless `explicit`."""
    stage, devices = zero_stage(run), offload_devices(run)
    zero: dict[str, Any] = {"stage": stage, "overlap_comm": True, "contiguous_gradients": True}
    for what, device in devices.items():
        if device is not None:
            zero[f"offload_{what}"] = {"device": device, "pin_memory": run.offload_pinned}
            if device == "nvme":
                zero[f"offload_{what}"]["nvme_path"] = "/local_nvme"
    zero["reduce_bucket_size"] = run.reduce_bucket_size
    if stage == 3:
        zero |= {
            "stage3_prefetch_bucket_size": "auto",
            "stage3_param_persistence_threshold": "auto",
            GATHERS: run.save_state == "full",
            **{key: value for key in ZERO_PLUS_PLUS if (value := getattr(run, key)) is True or value > 1},
        }
    keys: dict[str, Any] = {
        "train_batch_size": run.global_batch_size if explicit else "auto",
        "train_micro_batch_size_per_gpu": run.micro_batch_size if explicit else "auto",
        "gradient_accumulation_steps": run.gradient_accumulation_steps if explicit else "auto",
        "gradient_clipping": "auto",
        "bf16": {"enabled": run.autocast == "bf16" if explicit else "auto"},
        "fp16": {"enabled": run.autocast == "fp16" if explicit else "auto"},
        "zero_optimization": zero,
    }
    if run.tensor_parallel > 1 and stage < 3:  # AutoTP does not go with ZeRO-3
        keys["tensor_parallel"] = {"autotp_size": run.tensor_parallel}
    return keys


def degrees_beyond_data(run: Run) -> int:
    """Return the GPUs that read the same sequences."""
    return prod(getattr(run, name) for name in MODEL_DEGREES)


def accelerate_launch(run: Run, program: str) -> str:
    """Return the command that starts `program` under accelerate's file."""
    where = ' --machine_rank "$NODE_RANK" --main_process_ip "$MASTER_ADDR" --main_process_port 29500'
    return f"accelerate launch --config_file {ACCELERATE}{where if run.num_nodes > 1 else ''} {program}"


def torchrun(run: Run, program: str) -> str:
    """Return the command that starts `program` on every GPU by torchrun."""
    return f"torchrun {torchrun_words(run)} {program}"


def torchrun_words(run: Run) -> str:
    """Return what torchrun is told of the machines."""
    where = f"--nnodes {run.num_nodes} --nproc_per_node {per_node(run)}"
    if run.num_nodes > 1:
        where += ' --node_rank "$NODE_RANK" --master_addr "$MASTER_ADDR" --master_port 29500'
    return where


def environment(run: Run) -> str:
    """Return the variables that frameworks with a launcher of their own read, before the command."""
    words = f"NNODES={run.num_nodes} NPROC_PER_NODE={per_node(run)}"
    where = ' NODE_RANK="$NODE_RANK" MASTER_ADDR="$MASTER_ADDR" MASTER_PORT=29500'
    return f"{words}{where}" if run.num_nodes > 1 else words
