"""Reading one file as a Run: recognised by its keys, overridden, checked against the catalogue."""

import os
from collections.abc import Iterable, Mapping
from typing import Any

from finegauge.errors import FileFormatError
from finegauge.workload.readers import command_line, llamafactory, run_file, yaml_safe
from finegauge.workload.readers.text_file import read_text
from finegauge.workload.run import CHECKS, FROM_FILE, Run

# Keys by which a file of a framework that is not read yet is told, so that it can be named.
_OTHER_FRAMEWORKS = (
    ("Axolotl", ("base_model",)),
    ("LLaMA-Factory v1", ("train_dataset", "peft_config", "dist_config")),
    ("torchtune", ("checkpointer", "tokenizer", "recipe")),
    ("TRL", ("dataset_name", "use_peft", "lora_r", "load_in_4bit", "loss_type")),
    ("ms-swift", ("tuner_type", "train_type", "swift_version")),
    ("DeepSpeed", ("zero_optimization", "train_micro_batch_size_per_gpu")),
    ("accelerate", ("compute_environment", "distributed_type", "mixed_precision")),
)


def read(path: str | os.PathLike[str], overrides: Iterable[str] = ()) -> Run:
    """Return the run that a file describes, with `key=value` overrides laid over it.

    Args:
        path: A run file, a LLaMA-Factory YAML, a Hugging Face config.json or its folder.
        overrides: Words such as "micro_batch_size=4"; for a LLaMA-Factory file its own keys too.

    Raises: InputError in one sentence, whatever the file holds.
    """
    file, words = os.fspath(path), tuple(overrides)
    if os.path.isdir(file):
        file = os.path.join(file, "config.json")
        if not os.path.isfile(file):
            raise FileFormatError(
                f"The folder '{path}' holds no config.json; name a run file or a model's folder."
            )
    name = os.path.basename(file)
    keys = yaml_safe.load(read_text(file), name)
    if not isinstance(keys, dict) or not keys:
        held = "no keys" if not keys else f"a {type(keys).__name__}, not keys with values"
        raise FileFormatError(f"{name} holds {held}; a run file is YAML such as 'model: llama-3-8b'.")
    if llamafactory.recognises(keys):
        run = llamafactory.read(keys, file, words)
    elif run_file.is_model_config(keys) and not run_file.recognises(keys):
        run = _run(
            {"model": str(path), "method": "full"}, {"model": FROM_FILE, "method": "FineGauge default"}, words
        )
    else:
        _refuse_other_frameworks(keys, name)
        run = _run(_beside(run_file.fields(keys, name), file), {}, words)
    run.check_names()
    return run


def _run(fields: dict[str, Any], origins: dict[str, str], words: tuple[str, ...]) -> Run:
    """Return the run of stated fields under the command line's overrides."""
    command_line.lay_over(fields, origins, command_line.parse(words, CHECKS))
    return Run.from_fields(fields, origins)


def _beside(fields: dict[str, Any], file: str) -> dict[str, Any]:
    """Return `fields` with files that lie beside the run file named by their path."""
    for key in ("model", "gpu", "dataset", "tokenizer"):
        named = fields.get(key)
        beside = os.path.join(os.path.dirname(file), named) if isinstance(named, str) and named else ""
        if os.path.exists(beside):
            fields[key] = beside
    return fields


def _refuse_other_frameworks(keys: Mapping[str, Any], name: str) -> None:
    """Raise for a file that another framework's keys give away, or that states no model."""
    if run_file.recognises(keys) and set(keys) <= set(CHECKS):
        return
    for framework, telling in _OTHER_FRAMEWORKS:
        if any(key in keys for key in telling):
            raise FileFormatError(
                f"{name} looks like a file of {framework}, which is not read yet; "
                "FineGauge reads its own run files, LLaMA-Factory YAML and config.json."
            )
