"""Reading a file as a Run: recognised by its keys, overridden, checked against the catalogue."""

import os
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any

from finegauge.errors import FileFormatError, shown
from finegauge.workload.readers import command_line, run_file, yaml_safe
from finegauge.workload.readers.alongside import ALONE, Alongside
from finegauge.workload.readers.loaded import Loaded
from finegauge.workload.readers.text_file import read_text
from finegauge.workload.run import CHECKS, FROM_FILE, Run

_RUN_FILE = "run_file"
_HOUSE = "finegauge.workload.readers"


def read(path: str | os.PathLike[str], overrides: Iterable[str] = (), alongside: Alongside = ALONE) -> Run:
    """Return the run that a file describes, with `key=value` overrides laid over it.

    Args:
        path: A run file, a training framework's file (docs/run-file.md lists them), a Python or shell
            script that starts a training (read, never run), a Hugging Face config.json or its folder.
        overrides: Words such as "micro_batch_size=4"; for a framework's file its own keys too.
        alongside: Files and figures that the launcher gets beside it.

    Raises: InputError in one sentence, whatever the file holds.
    """
    run = describe(path, overrides, alongside)
    run.check_names()
    return run


def describe(
    path: str | os.PathLike[str], overrides: Iterable[str] = (), alongside: Alongside = ALONE
) -> Run:
    """Return the run that a file describes, whether or not the catalogue knows its model and GPU.

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
    keys, reader, warnings = _loaded(file, name)
    if not isinstance(keys, dict) or not keys:
        held = "no keys" if not keys else f"a {type(keys).__name__}, not keys with values"
        raise FileFormatError(f"{name} holds {held}; a run file is YAML such as 'model: llama-3-8b'.")
    reader = reader or recognise(keys)
    if reader not in (_RUN_FILE, ""):
        from finegauge.workload.readers import framework

        module, _, constant = reader.partition(":")
        format_ = getattr(import_module(f"{_HOUSE}.{module}"), constant or "FORMAT")
        return framework.read(format_, _adapted(keys), file, words, alongside, warnings)
    if reader == "" and run_file.is_model_config(keys):
        fields = {"model": str(path), "method": "full"}
        return _run(fields, {"model": FROM_FILE, "method": "FineGauge default"}, words, alongside)
    _refuse_others(keys, name)
    return _run(_beside(run_file.fields(keys, name), file), {}, words, alongside)


def recognise(keys: Mapping[str, Any]) -> str:
    """Return which module reads a file of these keys ("" for none): by what only that format has."""
    if run_file.recognises(keys) and set(keys) <= set(CHECKS):
        return _RUN_FILE
    from finegauge.workload.readers import formats

    return formats.reader_of(keys) or (_RUN_FILE if run_file.recognises(keys) else "")


def companion_fields(path: str) -> tuple[str, dict[str, Any]] | None:
    """Return ("accelerate" or "deepspeed", the fields it states) of a launcher's file; None of any other."""
    from finegauge.workload.readers import accelerate, deepspeed

    name = os.path.basename(path)
    if os.path.isdir(path) or os.path.splitext(name)[1].lower() not in (".yaml", ".yml", ".json"):
        return None
    keys = yaml_safe.load(read_text(path), name)
    if not isinstance(keys, dict):
        return None
    if accelerate.recognises(keys):
        return "accelerate", accelerate.fields_of(keys, path)
    if deepspeed.recognises(keys):
        return "deepspeed", deepspeed.fields_of(keys)
    return None


def _loaded(file: str, name: str) -> Loaded:
    """Return what a file holds, by its kind."""
    text, kind = read_text(file), os.path.splitext(name)[1].lower()
    if kind == ".py":
        from finegauge.workload.readers import python_script

        return python_script.load(text, name)
    if kind in (".sh", ".bash"):
        from finegauge.workload.readers import shell_script

        return shell_script.load(text, name)
    if kind == ".toml":
        from finegauge.workload.readers import toml_safe

        return Loaded(toml_safe.load(text, name))
    return Loaded(yaml_safe.load(text, name))


def _adapted(keys: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return `keys` with PEFT's own names of an adapter_config.json under TRL's."""
    from finegauge.workload.readers import trl

    return trl.of_adapter(keys) if trl.is_adapter(keys) else keys


def _run(
    fields: dict[str, Any], origins: dict[str, str], words: tuple[str, ...], alongside: Alongside
) -> Run:
    """Return the run of stated fields under what is given alongside and the command line's overrides."""
    warnings: list[str] = []
    if alongside != ALONE:
        origins = dict.fromkeys(fields, FROM_FILE) | origins
        alongside.lay_over(fields, origins, warnings)
    command_line.lay_over(fields, origins, command_line.parse(words, CHECKS))
    return Run.from_fields(fields, origins, tuple(warnings))


def _beside(fields: dict[str, Any], file: str) -> dict[str, Any]:
    """Return `fields` with files that lie beside the run file named by their path."""
    for key in ("model", "gpu", "dataset", "tokenizer"):
        named = fields.get(key)
        beside = os.path.join(os.path.dirname(file), named) if isinstance(named, str) and named else ""
        if os.path.exists(beside):
            fields[key] = beside
    return fields


def _refuse_others(keys: Mapping[str, Any], name: str) -> None:
    """Raise for a launcher's file, which describes no run by itself, and for a format that is not read."""
    if "train_dataset" in keys:
        raise FileFormatError(
            f"{name} looks like a file of LLaMA-Factory v1, which is not read; write a run file instead."
        )
    from finegauge.workload.readers import accelerate, deepspeed

    for framework, reader in (("accelerate", accelerate), ("DeepSpeed", deepspeed)):
        if reader.recognises(keys):
            raise FileFormatError(
                f"{name} looks like a file of {framework}, which states no model; name the training file "
                f"and add --{framework.lower()} {shown(name)}."
            )
