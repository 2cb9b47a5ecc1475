"""What one framework's writer hands over: keys and values, not yet text, and how to start the training."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from finegauge.errors import FineGaugeError, InputError

if TYPE_CHECKING:
    from finegauge.workload.run import Run

ACCELERATE = "accelerate.yaml"
DEEPSPEED = "deepspeed.json"
TEXTS = (".jsonl", ".json", ".parquet", ".arrow", ".csv")
LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
# Model types whose attention is the first four of LINEAR, and whose only linear layers are all seven.
_NAMED = """
llama mistral mixtral qwen2 qwen2_moe qwen3 qwen3_moe gemma gemma2 gemma3 gemma3_text olmo2 granite
"""
NAMED_PROJECTIONS = frozenset(_NAMED.split())
DENSE = NAMED_PROJECTIONS - {"mixtral", "qwen2_moe", "qwen3_moe"}


class Sheet(NamedTuple):
    """The files of one framework, as keys and values."""

    file: str  # the training file's name
    keys: Mapping[str, Any]
    command: str  # starts the training, in the folder of the files
    packages: str  # what pip has to install for it
    beside: Mapping[str, Mapping[str, Any]] = {}  # launcher's files by name
    spoken: tuple[str, ...] = ()  # fields that the command says, not the file: a comment repeats them
    notes: tuple[str, ...] = ()  # what the user has to know or to fill in


def refuse(framework: str, field: str, value: Any, instead: str) -> InputError:
    """Return the error for a run that a framework cannot carry out."""
    return InputError(f"{framework} cannot say {field}={plain(value)}; {instead}")


def plain(value: Any) -> str:
    """Return a field's value for a message."""
    if isinstance(value, tuple | list):
        return ",".join(map(str, value)) or "none"
    if isinstance(value, bool):
        return str(value).lower()
    return "none" if value is None else str(value)


def repository(run: "Run") -> str:
    """Return the model as frameworks load it: the hub's id of a name, a config.json's folder."""
    if os.path.basename(run.model) == "config.json":
        return os.path.dirname(run.model) or "."
    if "/" in run.model or os.path.exists(run.model):
        return run.model
    from finegauge.workload.run import figures

    try:
        return figures(run.model).name
    except FineGaugeError:
        return run.model


def model_type(run: "Run") -> str:
    """Return Hugging Face's name of the model's architecture, "" where it is not known."""
    try:
        config = run.config
    except FineGaugeError:
        return ""
    text = config.get("text_config")
    inner = text if isinstance(text, Mapping) else config
    return str(inner.get("model_type") or config.get("model_type") or "")


def targets(run: "Run") -> tuple[str, ...]:
    """Return the adapted layers by names that PEFT knows; all-linear stays itself.

    Raises: InputError for "attention" of a model whose projections are named otherwise.
    """
    if "attention" not in run.lora_targets:
        return run.lora_targets
    if model_type(run) not in NAMED_PROJECTIONS:
        raise InputError(
            f"lora_targets=attention means other layers in {run.model} than in most models; name them, "
            "such as lora_targets=q_proj,v_proj."
        )
    others = [name for name in run.lora_targets if name != "attention"]
    return tuple(dict.fromkeys((*LINEAR[:4], *others)))


def whole_number(value: float) -> int | float:
    """Return 16.0 as 16, as people write it."""
    return int(value) if value == int(value) else value


def dataset_name(run: "Run") -> str | None:
    """Return the data set as a framework can load it; None for none, and for a table of lengths."""
    if run.dataset is None or (run.dataset.endswith(".csv") and run.tokenizer is None):
        return None
    return run.dataset


def file_kind(named: str) -> str | None:
    """Return what `datasets` reads a file of that name as: json, csv, ...; None of a name on a hub."""
    ending = "." + named.rpartition(".")[2].lower()
    return {".jsonl": "json"}.get(ending, ending[1:]) if ending in TEXTS else None


def without(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return `keys` without those that are None."""
    return {key: value for key, value in keys.items() if value is not None}
