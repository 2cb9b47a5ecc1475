"""The Run that a trainer is about to carry out, from what it holds: model, arguments, adapters, data.

What TrainingArguments and TRL's configurations state is read by the reader of their files, so that a
script and its YAML mean the same. What is really in memory stands over it: number formats, adapters
and their layers, the lengths of the tokenised data, the number of processes and of steps.
"""

import os
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from finegauge.catalogue.documents import write_document
from finegauge.catalogue.offers import cache_path
from finegauge.errors import FineGaugeError, UnsupportedError
from finegauge.integrations.live_data import LiveData, data_of
from finegauge.integrations.live_model import adapter_keys, config_of, method_fields
from finegauge.workload.data import shape
from finegauge.workload.readers import framework, hf_trainer, trl
from finegauge.workload.run import FROM_FILE, Run, figures

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
        max_steps: Optimizer steps from start to end; 0 where nobody knows.

    Raises: FineGaugeError in one sentence for what is not described.
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
    run = framework.read(format_, {**keys, framework.BLOCK: block}, ORIGIN)
    origins = {name: ORIGIN if said == FROM_FILE else said for name, said in run.origins.items()}
    told = Run.from_fields(run.stated_fields(), origins, run.warnings + data.notes)
    told.check_names()
    shape(told)  # batches that cannot be are told before the training starts
    return told


def phase_of(args: Any, model: Any) -> str:
    """Return what is learnt, as the class of the arguments tells.

    Raises: UnsupportedError for a trainer that is not described.
    """
    names = [kind.__name__ for kind in type(args).__mro__]
    phase = next((_TRL_PHASES[name] for name in names if name in _TRL_PHASES), None)
    if phase is None and _is_trl(args):
        described = ", ".join(_TRL_PHASES)
        raise UnsupportedError(f"training under TRL's {names[0]} is not described; {described} are.")
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    if phase is None and hasattr(base, "can_generate") and not base.can_generate():
        raise UnsupportedError(f"{type(base).__name__} writes no text, and training it is not described.")
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
    import json
    from hashlib import sha256

    text = json.dumps(document, sort_keys=True, ensure_ascii=True)
    path = os.path.join(
        os.path.dirname(cache_path()), kind, f"{name}-{sha256(text.encode()).hexdigest()[:12]}.json"
    )
    if not os.path.isfile(path):
        write_document(document, path)
    return path


def _agrees(known: Mapping[str, Any], live: Mapping[str, Any]) -> bool:
    """Return whether the figures that a catalogue row gives are those of the live model."""
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
    for key in {*hf_trainer.KEYS, *trl.KEYS} - _NOT_FROM_ARGUMENTS:
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
    """Return how the arguments shard, where they do."""
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
    """Return which versions of the libraries run."""
    found = {
        "transformers_version": _version("transformers"),
        "bitsandbytes_version": _version("bitsandbytes"),
    }
    found["framework_version"] = _version("trl" if _is_trl(args) else "transformers")
    return {name: said for name, said in found.items() if said}


def _version(package: str) -> str:
    """Return the numbers of an installed version; "" where it is not installed."""
    try:
        return ".".join([part for part in version(package).split(".") if part.isdecimal()][:3])
    except PackageNotFoundError:
        return ""


def _is_trl(args: Any) -> bool:
    """Return whether the arguments are TRL's, or of a class on top of TRL's."""
    return any(kind.__module__.partition(".")[0] == "trl" for kind in type(args).__mro__)


def _plain(value: Any) -> Any:
    """Return `value` with tuples as lists, as JSON has them."""
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
