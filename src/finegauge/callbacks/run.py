"""The Run that a trainer is about to carry out, from what it holds: model, arguments, adapters, data.

What TrainingArguments and TRL's configurations state is read by the reader of their files, so that a
script and its YAML mean the same. What is really in memory stands over it: number formats, adapters
and their layers, the lengths of the tokenised data, the number of processes and of steps.
"""

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

from finegauge.data.batch_shape import shape
from finegauge.documents import cache_path, installed_version, write_document
from finegauge.errors import FieldError, FineGaugeError, UnsupportedError
from finegauge.formats import key_table, trl
from finegauge.formats.model_keys import peft_keys
from finegauge.measurement.instruments.module_roles import layer_number
from finegauge.run.run import FROM_FILE, Run, figures

MAX_LISTED = 20_000  # rows of a plain list that are looked at one by one

UNKNOWN = "The lengths of the data set are not at hand: every sequence is taken as seq_len long."
_PACKED = "seq_lengths"
_COLUMNS = {"dpo": (("prompt_ids", "chosen_ids"), ("prompt_ids", "rejected_ids")),
            "reward": (("chosen_ids",), ("rejected_ids",))}  # fmt: skip


class LiveData(NamedTuple):
    """What the data set in memory tells."""

    pairs: tuple[tuple[int, int], ...] = ()  # (tokens, how many sequences), shortest first
    num_samples: int | None = None  # rows that the trainer draws; None: as the lengths say, or not known
    pad_to_multiple_of: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def longest(self) -> int:
        """Return the tokens of the longest sequence; 0 where no length is known."""
        return self.pairs[-1][0] if self.pairs else 0


def data_of(loader: Any, phase: str) -> LiveData:
    """Return what the batches' data set tells of a phase's sequences."""
    dataset = getattr(loader, "dataset", None)
    if dataset is None:
        return LiveData()
    collator = getattr(loader, "collate_fn", None)
    collator = getattr(collator, "data_collator", collator)
    multiple = getattr(collator, "pad_to_multiple_of", None)
    rows = _rows(dataset)
    pairs, packed = _pairs(dataset, phase)
    notes = () if pairs else (UNKNOWN,)
    return LiveData(pairs, None if packed else rows, multiple if isinstance(multiple, int) else None, notes)


def _pairs(dataset: Any, phase: str) -> tuple[tuple[tuple[int, int], ...], bool]:
    """Return the lengths with their counts, and whether they are those of samples inside packed rows."""
    columns = set(getattr(dataset, "column_names", None) or ())
    sequences = _COLUMNS.get(phase, (("input_ids",),))
    if hasattr(dataset, "data") and columns:
        if _PACKED in columns:
            return _of_arrow(dataset, ((_PACKED,),), inside=True), True
        known = all(columns.issuperset(parts) for parts in sequences)
        return _of_arrow(dataset, sequences, inside=False) if known else (), False
    if isinstance(dataset, Sequence) and len(dataset) <= MAX_LISTED:
        counts = Counter(length for parts in sequences for length in _of_rows(dataset, parts))
        return _sorted(counts), False
    return (), False


def _of_arrow(
    dataset: Any, sequences: Iterable[tuple[str, ...]], *, inside: bool
) -> tuple[tuple[int, int], ...]:
    """Return the lengths of sequences that columns of lists make up, with their counts; () of other columns.

    Chosen and shuffled rows count as chosen. `sequences` are the columns whose lists are joined into each
    sequence; `inside` says that the lists themselves hold the lengths.
    """
    import pyarrow
    import pyarrow.compute as arrow

    chosen = getattr(dataset, "_indices", None)
    counts: Counter[int] = Counter()
    try:
        for parts in sequences:
            columns = [dataset.data.column(part) for part in parts]
            columns = columns if inside else [arrow.list_value_length(column) for column in columns]
            if chosen is not None:
                columns = [column.take(chosen.column(0)) for column in columns]
            total = arrow.list_flatten(columns[0]) if inside else reduce(arrow.add, columns)
            for pair in arrow.value_counts(total).to_pylist():
                counts[int(pair["values"] or 0)] += pair["counts"]
    except pyarrow.ArrowException:
        return ()
    return _sorted(counts)


def _of_rows(dataset: Iterable[Any], parts: Iterable[str]) -> list[int]:
    lengths = []
    for row in dataset:
        try:
            lengths.append(sum(len(row[part]) for part in parts))
        except (KeyError, TypeError, IndexError):
            return []
    return lengths


def _sorted(counts: Mapping[int, int]) -> tuple[tuple[int, int], ...]:
    """Return (length, count), shortest first; empty sequences are no samples."""
    return tuple(sorted((length, count) for length, count in counts.items() if length > 0))


def _rows(dataset: Any) -> int | None:
    try:
        return len(dataset) or None
    except TypeError:
        return None


_DTYPES = {"torch.float32": "fp32", "torch.bfloat16": "bf16", "torch.float16": "fp16"}
_OF_LORA = {
    "r": "lora_r", "lora_alpha": "lora_alpha", "lora_dropout": "lora_dropout", "use_dora": "use_dora",
    "rank_pattern": "rank_pattern", "target_parameters": "target_parameters",
}  # fmt: skip


def config_of(model: Any) -> dict[str, Any]:
    """Return the configuration of the model in memory as JSON values."""
    config = model.config
    whole: dict[str, Any] = json.loads(config.to_json_string(use_diff=False))
    whole["_name_or_path"] = getattr(config, "_name_or_path", "")
    whole.pop("quantization_config", None)  # how it is stored, which `method_fields` says
    return whole


def adapter_keys(model: Any) -> dict[str, Any]:
    """Return PEFT's adapters, the quantiser and the attention of a model, under the keys of a TRL file.

    Raises: UnsupportedError for an adapter that is not supported.
    """
    keys: dict[str, Any] = {}
    for key, attribute in (
        ("attn_implementation", "_attn_implementation"),
        ("experts_implementation", "_experts_implementation"),
    ):
        word = getattr(model.config, attribute, None)
        if isinstance(word, str) and word:
            keys[key] = word
    if keys.get("experts_implementation") not in (None, "eager", "grouped_mm"):
        keys.pop("experts_implementation")
    keys |= _quantiser_keys(model)
    adapters = getattr(model, "peft_config", None)
    if not adapters:
        return keys | {"use_peft": False}
    adapter = next(iter(adapters.values()))
    kind = str(getattr(adapter.peft_type, "value", adapter.peft_type))
    if kind != "LORA":
        try:
            return keys | {"use_peft": True, "peft": peft_keys(kind, adapter.to_dict())}
        except FieldError as error:
            raise UnsupportedError(str(error)) from None
    adapted = {part.rpartition(".")[2] for part, module in model.named_modules() if hasattr(module, "lora_A")}
    keys |= {"use_peft": True, "lora_target_modules": sorted(adapted)}
    keys |= {
        theirs: getattr(adapter, name) for name, theirs in _OF_LORA.items() if getattr(adapter, name, None)
    }
    keys.setdefault("lora_dropout", 0.0)
    if adapter.modules_to_save:
        keys["lora_modules_to_save"] = sorted(adapter.modules_to_save)
    return keys


def method_fields(model: Any) -> dict[str, Any]:
    """Return the fields of method and number formats that only the weights in memory tell.

    Raises: UnsupportedError for a choice of parameters that no method describes.
    """
    fields: dict[str, Any] = {}
    bits = _gptq_bits(model)
    if bits:
        fields |= {"method": "gptq_lora", "weights_dtype": f"gptq{bits}"}
    elif not _quantiser_keys(model):
        dtype = _most_common(model, adapters=False)
        fields |= {"weights_dtype": dtype} if dtype else {}
    if getattr(model, "peft_config", None):
        dtype = _most_common(model, adapters=True)
        return fields | ({"adapter_dtype": dtype} if dtype else {})
    trained = _trained_last_layers(model)
    if trained:
        fields |= {"method": "freeze", "freeze_trainable_layers": trained}
    return fields


def _quantiser(model: Any) -> Mapping[str, Any]:
    stated = getattr(model.config, "quantization_config", None)
    return stated if isinstance(stated, Mapping) else stated.to_dict() if stated is not None else {}


def _quantiser_keys(model: Any) -> dict[str, Any]:
    options = _quantiser(model)
    if options.get("load_in_4bit"):
        return {
            "load_in_4bit": True,
            "use_bnb_nested_quant": bool(options.get("bnb_4bit_use_double_quant")),
            "bnb_4bit_quant_type": options.get("bnb_4bit_quant_type", "nf4"),
        }
    return {"load_in_8bit": True} if options.get("load_in_8bit") else {}


def _gptq_bits(model: Any) -> int:
    options = _quantiser(model)
    method = str(getattr(options.get("quant_method"), "value", options.get("quant_method")))
    return int(options.get("bits") or 0) if method == "gptq" else 0


def _most_common(model: Any, *, adapters: bool) -> str | None:
    """Return the float format of most of the weights: of the adapters', or of the others."""
    sizes: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point() and ("lora_" in name) == adapters:
            dtype = str(parameter.dtype)
            sizes[dtype] = sizes.get(dtype, 0) + parameter.numel()
    if not sizes:
        return None
    dtype = max(sizes, key=lambda name: sizes[name])
    if dtype not in _DTYPES:
        raise UnsupportedError(f"weights in {dtype} are not supported; fp32, bf16 and fp16 are.")
    return _DTYPES[dtype]


def _trained_last_layers(model: Any) -> int:
    """Return how many of the last layers train alone; 0 where everything trains.

    Raises: UnsupportedError where something else trains.
    """
    trained = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    if all(trained.values()):
        return 0
    of_layer: dict[int, set[bool]] = {}
    for name, trains in trained.items():
        of_layer.setdefault(layer_number(name), set()).add(trains)
    outside = of_layer.pop(-1, {False})
    numbers = [number for number, flags in sorted(of_layer.items()) if flags == {True}]
    last = list(range(max(of_layer, default=-1) + 1))[-len(numbers) :] if numbers else []
    mixed = any(len(flags) > 1 for flags in of_layer.values())
    if outside != {False} or not numbers or numbers != last or mixed:
        count = sum(trained.values())
        raise UnsupportedError(
            f"{count} of the model's {len(trained)} weight tensors train, which is neither all of them, "
            "adapters, nor the last layers alone."
        )
    return len(numbers)


ORIGIN = "the trainer"
# What the shapes of a model do not follow from, so that a catalogue row need not agree on it.
_NO_SHAPE = frozenset(("architectures", "dtype", "torch_dtype", "transformers_version", "_name_or_path"))
_NOT_FROM_ARGUMENTS = frozenset(("fsdp", "fsdp_config", "deepspeed", "max_steps", "model_init_kwargs"))
_TRL_PHASES = {
    "SFTConfig": "sft",
    "DPOConfig": "dpo",
    "RewardConfig": "reward",
    "GRPOConfig": "grpo",
    "PPOConfig": "ppo",
}
_SHAPED_BY_MAX_LENGTH = ("sft", "dpo", "reward")


def live_run(model: Any, args: Any, *, loader: Any = None, max_steps: int = 0) -> Run:
    """Return the run that a trainer is about to carry out.

    Args:
        model: What trains, PEFT's wrapper included.
        args: TrainingArguments, or TRL's configuration on top of them.
        loader: Of the training batches; its data set's lengths are used where they are at hand.
        max_steps: Optimizer steps from start to end; 0: not known.

    Raises: FineGaugeError in one sentence for what is not supported.
    """
    phase = phase_of(args, model)
    data = data_of(loader, phase)
    keys = {**_argument_keys(args), **adapter_keys(model), "model_name_or_path": model_name(model)}
    keys.pop("max_length", None)  # under `seq_len` in the block
    block = {
        "phase": phase,
        **method_fields(model),
        **_data_fields(args, data, phase),
        "num_gpus": num_devices(args),
        "num_nodes": machines(args)[1],
        **({"max_steps": max_steps} if max_steps > 0 else {}),
        **_versions(args),
    }
    if data.pad_to_multiple_of:
        keys["pad_to_multiple_of"] = data.pad_to_multiple_of
    format_ = trl.FORMAT if _is_trl(args) else trl.TRAINER
    run = key_table.read(format_, {**keys, "finegauge": block}, ORIGIN)
    origins = {name: ORIGIN if said == FROM_FILE else said for name, said in run.origins.items()}
    told = Run.from_fields(run.stated_fields(), origins, run.warnings + data.notes)
    told.check_names()
    shape(told)  # batches that cannot be are told before the training starts
    return told


def phase_of(args: Any, model: Any) -> str:
    """Return what is learnt, as the class of the arguments tells.

    Raises: UnsupportedError for a trainer that is not supported.
    """
    names = [kind.__name__ for kind in type(args).__mro__]
    phase = next((_TRL_PHASES[name] for name in names if name in _TRL_PHASES), None)
    if phase is None and _is_trl(args):
        described = ", ".join(_TRL_PHASES)
        raise UnsupportedError(f"training under TRL's {names[0]} is not supported; {described} are.")
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    if phase is None and hasattr(base, "can_generate") and not base.can_generate():
        raise UnsupportedError(f"{type(base).__name__} writes no text, and training it is not supported.")
    return phase or "sft"


def model_name(model: Any) -> str:
    """Return the catalogue's name of the model where its figures agree, else a file of its configuration."""
    config = config_of(model)
    name = str(config.get("_name_or_path") or "")
    if name:
        try:
            known = figures(name)
        except FineGaugeError:
            known = None
        if known is not None and _agrees(known.config, config):
            return name
    figures_alone = {key: value for key, value in config.items() if key != "_name_or_path"}
    return kept("models", str(config.get("model_type") or "model"), figures_alone)


def kept(kind: str, name: str, document: Mapping[str, Any]) -> str:
    """Return a file in the cache folder, its name ending in its content's hash, that holds `document`."""
    from hashlib import sha256

    text = json.dumps(document, sort_keys=True, ensure_ascii=True)
    path = cache_path(kind, f"{name}-{sha256(text.encode()).hexdigest()[:12]}.json")
    if not os.path.isfile(path):
        write_document(document, path)
    return path


def _agrees(known: Mapping[str, Any], live: Mapping[str, Any]) -> bool:
    for key, value in known.items():
        if key in _NO_SHAPE or key not in live:
            continue
        if isinstance(value, Mapping) and isinstance(live[key], Mapping):
            if not _agrees(value, live[key]):
                return False
        elif _plain(value) != _plain(live[key]):
            return False
    return True


def _argument_keys(args: Any) -> dict[str, Any]:
    """Return what the arguments state, under the keys of a training file; None is nothing stated."""
    keys = {}
    for key in trl.FORMAT.keys - _NOT_FROM_ARGUMENTS:
        value = getattr(args, key, None)
        value = getattr(value, "value", value)  # of an enumeration
        if isinstance(value, bool | int | float | str | Mapping) and value != "":
            keys[key] = value
    keys.pop("parallelism_config", None)
    keys.update(_sharding_keys(args))
    if not (keys.get("bf16") or keys.get("fp16")):
        launcher = os.environ.get("ACCELERATE_MIXED_PRECISION", "")
        keys |= {launcher: True} if launcher in ("bf16", "fp16") else {}
    return keys


def _sharding_keys(args: Any) -> dict[str, Any]:
    deepspeed = getattr(args, "hf_deepspeed_config", None)
    if deepspeed is not None:
        return {"deepspeed": dict(deepspeed.config)}
    words = getattr(args, "fsdp", None)
    if not words:
        return {}
    stated = words if isinstance(words, bool | str) else [str(getattr(w, "value", w)) for w in words]
    return {"fsdp": stated, "fsdp_config": dict(getattr(args, "fsdp_config", None) or {})}


def _data_fields(args: Any, data: LiveData, phase: str) -> dict[str, Any]:
    """Return the fields of the data.

    Raises: UnsupportedError where nothing tells how long the sequences are.
    """
    fields: dict[str, Any] = {}
    cut_off = getattr(args, "max_length", None) if phase in _SHAPED_BY_MAX_LENGTH else None
    if phase in ("grpo", "ppo"):
        raise UnsupportedError(
            f"{type(args).__name__} does not say how long the prompts are, which decides what a step takes."
        )
    seq_len = cut_off or data.longest
    if not seq_len:
        raise UnsupportedError(
            "how long the sequences are is not known: the arguments have no max_length, and the data set in "
            "memory has no column of token ids."
        )
    fields["seq_len"] = seq_len
    if data.pairs:
        lengths = {"name": "data in memory", "lengths": [list(pair) for pair in data.pairs]}
        fields["dataset"] = kept("lengths", "data", lengths)
    if data.num_samples:
        fields["num_samples"] = data.num_samples
    return fields


def machines(args: Any) -> tuple[int, int]:
    """Return how many processes train together, and on how many machines."""
    processes = int(getattr(args, "world_size", 1) or 1)
    on_node = int(os.environ.get("LOCAL_WORLD_SIZE") or processes)
    return processes, max(1, processes // on_node)


def num_devices(args: Any) -> int:
    """Return how many devices train together; a process alone may have several (DataParallel)."""
    processes, _ = machines(args)
    return processes if processes > 1 else max(1, int(getattr(args, "n_gpu", 1) or 1))


def _versions(args: Any) -> dict[str, str]:
    found = {
        "transformers_version": _version("transformers"),
        "bitsandbytes_version": _version("bitsandbytes"),
    }
    found["framework_version"] = _version("trl" if _is_trl(args) else "transformers")
    return {name: said for name, said in found.items() if said}


def _version(package: str) -> str:
    return ".".join([part for part in installed_version(package).split(".") if part.isdecimal()][:3])


def _is_trl(args: Any) -> bool:
    return any(kind.__module__.partition(".")[0] == "trl" for kind in type(args).__mro__)


def _plain(value: Any) -> Any:
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
