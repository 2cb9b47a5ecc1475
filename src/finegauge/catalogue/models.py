"""The figures of a model, under Hugging Face's field names, enough to build its shapes.

A row is not the file of the model repository: keys that touch neither shapes nor cost (token ids,
rotary scaling, generation defaults) are left out. `parameters` is what the transformers class
counts, `published_parameters` what the publisher prints (some count a tied head twice, or
multi-token prediction that the class does not build).
"""

import os
import re
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

from finegauge.catalogue.tables import checked_row, line_of, lines_of, positive, refusal, user_rows
from finegauge.documents import by_state, home, read_document
from finegauge.errors import FieldError, FileFormatError, UnknownNameError, shown
from finegauge.records import NamedTuple

FILE = "models.jsonl"
_COPIED = r"(-(hf|bf16|fp16|sharded|unsloth|bnb-4bit))+$"  # of copies whose shapes are the model's own
_OF_MANY = r"(bert|roberta|electra|bart|t5)-(small|base|large)"  # which others name theirs of other sizes


class ModelFigures(NamedTuple):
    """One model: its configuration figures, its size, and where both come from."""

    name: str  # the Hugging Face id, or the path of the user's file
    aliases: tuple[str, ...]
    config: Mapping[str, Any]
    parameters: int | None
    parameters_from: str  # who counted `parameters`
    published_parameters: int | None
    source: str
    checked: str


def model(name_or_path: str) -> ModelFigures:
    """Return the model of that name, alias, Hugging Face id, `config.json` or folder holding one.

    An id of another repository (a mirror, a quantised copy of the same name) is known by its last part; one
    that the catalogue lacks, by the config.json in the Hub's cache on disk.

    Raises: UnknownNameError naming its neighbours, FileFormatError for a file that is no configuration.
    """
    path = os.path.expanduser(name_or_path)
    if os.path.isdir(path) and os.path.isfile(os.path.join(path, "config.json")):
        return _from_file(os.path.join(path, "config.json"), name_or_path)
    if path.startswith(("/", "./", "../")) and not path.endswith(".json") and not os.path.exists(path):
        raise FileFormatError(
            f"The model's folder {shown(name_or_path)} is not here, and its last part names no model of the "
            "catalogue; add model=NAME, of the catalogue or a Hub id."
        )
    if os.path.isfile(path) or path.endswith(".json") or path.startswith(("/", "./", "../")):
        return _from_file(path, name_or_path)
    wanted = name_or_path.casefold()
    last = wanted.rpartition("/")[2]
    found = _known(wanted)
    if found is None and (last == wanted or not re.fullmatch(_OF_MANY, last)):
        found = _known(last) or _known(re.sub(_COPIED, "", last))
    if found is not None:
        return found
    from finegauge.catalogue.hub import cached_config

    if (cached := cached_config(name_or_path)) is not None:
        return _from_file(cached, name_or_path)
    if reason := not_here(name_or_path):
        raise FieldError(f"{shown(name_or_path)} {reason}.")
    like = named_like(last)
    known = [key for figures in models().values() for key in (figures.name, *figures.aliases)]
    raise UnknownNameError("model", name_or_path, known=[like] if like else known, listing="finegauge models")


def file_version(name_or_path: str) -> tuple[int, ...] | None:
    """Return what changes when the file that describes a model does; None where no file has that name."""
    path = os.path.expanduser(name_or_path)
    for file in (os.path.join(path, "config.json"), path):
        try:
            found = os.stat(file)
        except (OSError, ValueError):
            continue
        return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size
    return None


def not_here(name: str) -> str:
    """Return why nobody can fine-tune the model of that name here: "" of any other."""
    owner, _, last = name.casefold().rpartition("/")
    return refusal("model", last[:100], owner)


def named_like(name: str) -> str | None:
    """Return the model that is called so but for signs: llama31_8b, Llama31Config8B, phi4, qwen25_1p5b."""
    if (known := _known(name.casefold())) is not None:
        return called(known, name)
    plain = re.sub(r"ModelProvider|Provider|Config", "", name)
    plain = re.sub(r"(?<=\d)p(?=\d+b)", "", re.sub(r"(?<=_)(\d)00m\b", r"0\1b", plain))  # 1p5b, 500m
    wanted, whole = _squeezed(plain), re.sub(r"[^a-z0-9]", "", plain.casefold())
    ours = [
        called(row, next(key for key in (row.name, *row.aliases) if _squeezed(key) == wanted))
        for row in models().values()
        if wanted in map(_squeezed, (row.name, *row.aliases))
    ]
    if not ours or not wanted:
        return _of_size(plain.casefold())
    return min(ours, key=lambda one: (not re.sub(r"[^a-z0-9]", "", one.casefold()).endswith(whole), len(one)))


def called(row: ModelFigures, name: str) -> str:
    """Return the name of a row, or `name` where that is another model of its shapes (llama-3.3-70b)."""
    return row.name if _squeezed(name) in _squeezed(row.name) else name


def _of_size(name: str) -> str | None:
    """Return the model called so but for its size, which is stated and its own (Ollama's devstral:24b)."""
    stated = re.fullmatch(r"(.+)-(\d{1,4}(?:\.\d+)?)([bt])", name)
    found = _known(stated[1]) if stated else None
    if stated is None or found is None or not found.parameters:
        return None
    size = float(stated[2]) * (1e9 if stated[3] == "b" else 1e12)
    return found.name if abs(size / found.parameters - 1) < 0.06 else None


def _squeezed(name: str) -> str:
    plain = re.sub(r"[^a-z0-9]", "", name.lower().rpartition("/")[2])
    return re.sub(r"^meta|(hf|instruct|base|it|chat|v01|v03|v1)+$", "", plain)


def models() -> Mapping[str, ModelFigures]:
    """Return every model of the catalogue and the user's own, by name."""
    return _models(home())


@cache
def _models(folder: str) -> Mapping[str, ModelFigures]:
    rows = {figures.name: figures for figures in map(_figures, lines_of(FILE))}
    rows |= {figures.name: figures for figures in _user_models(folder).values()}
    return MappingProxyType(rows)


def _known(key: str) -> ModelFigures | None:
    return _user_models(home()).get(key) or _shipped(key)


@cache
def _shipped(key: str) -> ModelFigures | None:
    line = line_of(FILE, key, before="parameters", fold=str.casefold)
    return None if line is None else _figures(line)


def _figures(line: str) -> ModelFigures:
    import json

    row = json.loads(line)
    row["config"] = MappingProxyType(row["config"])
    row["aliases"] = tuple(row["aliases"])
    return ModelFigures(**row)


@cache
def _user_models(folder: str) -> Mapping[str, ModelFigures]:
    found: dict[str, ModelFigures] = {}
    for path, row in user_rows(folder, "models"):
        given = checked_row(row, path, ModelFigures.__annotations__, required=("name", "config"))
        given["config"] = _checked_config(given["config"], path)
        counted = "user" if "parameters" in given else ""
        figures = _read_here(path)._replace(**{"parameters_from": counted, **given})
        found |= dict.fromkeys(map(str.casefold, (figures.name, *figures.aliases)), figures)
    return found


def _from_file(path: str, name: str) -> ModelFigures:
    """Return the model that a `config.json` on disk describes; nothing beside it is read or run."""
    return _read_here(path)._replace(name=name, config=_config_of(path))


@by_state
def _config_of(path: str) -> Mapping[str, Any]:
    return _checked_config(read_document(path), path)


def _read_here(path: str) -> ModelFigures:
    return ModelFigures(path, (), {}, None, "", None, source=path, checked="")


def _checked_config(config: object, path: str) -> Mapping[str, Any]:
    if not isinstance(config, dict) or not all(isinstance(key, str) for key in config):
        raise FileFormatError(f"{path} is not a model configuration: expected one JSON object of fields.")
    if not {"model_type", "architectures", "hidden_size"} & set(config):
        raise FileFormatError(
            f"{path} has no model_type and no hidden_size, so it is no Hugging Face config.json; "
            "add 'model_type'."
        )
    for key in ("hidden_size", "num_hidden_layers", "vocab_size"):
        if config.get(key) is not None and positive(config[key], f"{path}: '{key}'") % 1:
            raise FieldError(f"{path}: '{key}' should be a whole number, not {shown(config[key])}.")
    return MappingProxyType(config)
