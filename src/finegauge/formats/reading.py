"""A file as a Run: recognised by its keys, overridden, checked against the catalogue."""

import os
import re
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from finegauge import documents
from finegauge.documents import read_text
from finegauge.errors import FileFormatError, shown
from finegauge.formats import framework as command_line
from finegauge.formats.launcher_files import ALONE, Alongside
from finegauge.formats.loaded import Loaded
from finegauge.formats.run_file import is_model_config, is_run_file, run_file_fields
from finegauge.run.run import FIELDS, FROM_FILE, Run

if TYPE_CHECKING:
    from finegauge.formats.framework import Framework

__all__ = ["read"]

MAX_LINES = 100
_REMARK = re.compile(r"#\s*finegauge:\s*(\{.*\})\s*$")


def inline_fields(text: str, name: str) -> Mapping[str, Any]:
    """Return the fields that the comment at the head of a file states; {} where there is none.

    Raises: FileFormatError where it holds no fields with values.
    """
    for line in text.splitlines()[:MAX_LINES]:
        if not line.startswith("#"):
            break
        found = _REMARK.match(line[:10_000])
        if found:
            fields = documents.parse_yaml(found.group(1), f"{name} (its comment)")
            if not isinstance(fields, dict):
                raise FileFormatError(
                    f"{name}: the comment finegauge: must hold fields, such as {{gpu: A40}}."
                )
            return fields
    return {}


_RUN_FILE = "run_file"
BLOCK = "finegauge"  # where a framework's file states fields that are ours
_HOUSE = "finegauge.formats"


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
    keys, reader, warnings, stated = _loaded(file, name)
    if not isinstance(keys, dict) or not keys:
        held = "no keys" if not keys else f"a {type(keys).__name__}, not keys with values"
        raise FileFormatError(f"{name} holds {held}; a run file is YAML such as 'model: llama-3-8b'.")
    reader = reader or recognise(keys)
    if reader not in (_RUN_FILE, ""):
        from finegauge.formats import framework

        return framework.read(
            _format(reader), _with_remark(_adapted(keys), stated), file, words, alongside, warnings
        )
    if reader == "" and is_model_config(keys):
        fields = {"model": str(path), "method": "full"}
        return _run(fields, {"model": FROM_FILE, "method": "FineGauge default"}, words, alongside)
    _refuse_others(keys, name)
    return _run(beside(run_file_fields(keys, name), file), {}, words, alongside)


def framework_of(path: str | os.PathLike[str]) -> "tuple[Framework, Mapping[str, Any]] | None":
    """Return whose file it is and what keys it holds; None of a run file, a script, a model's config.json.

    Raises: InputError in one sentence, whatever the file holds.
    """
    file = os.fspath(path)
    if os.path.isdir(file) or file.endswith((".py", ".sh", ".bash")):
        return None
    keys = _loaded(file, os.path.basename(file)).keys
    reader = recognise(keys) if isinstance(keys, dict) else ""
    return (_format(reader), _adapted(keys)) if reader not in (_RUN_FILE, "") else None


def _format(reader: str) -> "Framework":
    """Return the framework of "module" or "module:CONSTANT"."""
    module, _, constant = reader.partition(":")
    format_: Framework = getattr(import_module(f"{_HOUSE}.{module}"), constant or "FORMAT")
    return format_


def recognise(keys: Mapping[str, Any]) -> str:
    """Return which module reads a file of these keys ("" for none): by what only that format has."""
    if is_run_file(keys) and set(keys) <= set(FIELDS):
        return _RUN_FILE
    from finegauge.catalogue.frameworks import frameworks

    found = (row.module for row in frameworks() for signature in row.signatures if signature.fits(keys))
    return next(found, _RUN_FILE if is_run_file(keys) else "")


def no_training(path: str) -> str:
    """Return why a file counts as none that describes a training, right or wrong; "" where it does.

    Raises: InputError where it cannot be opened.
    """
    name = os.path.basename(path)
    try:
        keys, reader, *_ = _loaded(path, name)
    except FileFormatError as error:
        return "" if _looks_like_training(path) else str(error)
    if not isinstance(keys, dict) or not keys:
        return "it holds no keys with values."
    reader = reader or recognise(keys)
    if reader == _RUN_FILE and "method" not in keys and not set(keys) <= set(FIELDS):
        reader = ""  # a `model` among keys that are none of ours
    return "" if reader else "it has the keys of no training framework."


def _looks_like_training(path: str) -> bool:
    """Return whether a file that cannot be read has lines of a training file."""
    try:
        text = read_text(path)
    except FileFormatError:
        return False
    words = "base_model|model_name_or_path|finetuning_type|tuner_type|per_device_train_batch_size|lora_rank"
    return re.search(rf"^(?:{words})\s*:", text, re.MULTILINE) is not None


def companion_fields(path: str) -> tuple[str, dict[str, Any]] | None:
    """Return ("accelerate" or "deepspeed", the fields it states) of a launcher's file; None of any other."""
    from finegauge.formats import launcher_files

    name = os.path.basename(path)
    if os.path.isdir(path) or os.path.splitext(name)[1].lower() not in (".yaml", ".yml", ".json"):
        return None
    keys = documents.parse_yaml(read_text(path), name)
    if not isinstance(keys, dict):
        return None
    if launcher_files.is_accelerate(keys):
        return "accelerate", launcher_files.accelerate_fields(keys, path)
    if launcher_files.is_deepspeed(keys):
        return "deepspeed", launcher_files.deepspeed_fields(keys)
    return None


def _loaded(file: str, name: str) -> Loaded:
    """Return what a file holds, by its kind."""
    text, kind = read_text(file), os.path.splitext(name)[1].lower()
    if kind == ".py":
        from finegauge.formats import scripts

        return scripts.load_python(text, name)
    if kind in (".sh", ".bash"):
        from finegauge.formats import scripts

        return scripts.load_shell(text, name)
    if kind == ".toml":
        return Loaded(documents.parse_toml(text, name), remark=inline_fields(text, name))
    return Loaded(documents.parse_yaml(text, name), remark=inline_fields(text, name))


def _with_remark(keys: Mapping[str, Any], stated: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return `keys` with what a comment states in the block `finegauge:`, whose own fields win."""
    block = keys.get(BLOCK) or {}
    return {**keys, BLOCK: {**stated, **block}} if stated and isinstance(block, Mapping) else keys


def _adapted(keys: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return `keys` with PEFT's own names of an adapter_config.json under TRL's."""
    from finegauge.formats import trl

    return trl.of_adapter(keys) if trl.is_adapter(keys) else keys


def _run(
    fields: dict[str, Any], origins: dict[str, str], words: tuple[str, ...], alongside: Alongside
) -> Run:
    """Return the run of stated fields under what is given alongside and the command line's overrides."""
    warnings: list[str] = []
    if alongside != ALONE:
        origins = dict.fromkeys(fields, FROM_FILE) | origins
        alongside.lay_over(fields, origins, warnings)
    command_line.lay_over(fields, origins, command_line.parse(words, FIELDS))
    return Run.from_fields(fields, origins, tuple(warnings))


def beside(fields: dict[str, Any], file: str) -> dict[str, Any]:
    """Return `fields` with files that lie beside the run file named by their path."""
    for key in ("model", "gpu", "dataset", "tokenizer"):
        named = fields.get(key)
        beside = os.path.join(os.path.dirname(file), named) if isinstance(named, str) and named else ""
        if os.path.exists(beside):
            fields[key] = beside
    return fields


def _refuse_others(keys: Mapping[str, Any], name: str) -> None:
    """Raise for a launcher's file, which describes no run by itself, and for a format that is not read."""
    from finegauge.formats import launcher_files

    launchers = (("accelerate", launcher_files.is_accelerate), ("DeepSpeed", launcher_files.is_deepspeed))
    for framework, recognises in launchers:
        if recognises(keys):
            raise FileFormatError(
                f"{name} looks like a file of {framework}, which states no model; name the training file "
                f"and add --{framework.lower()} {shown(name)}."
            )
