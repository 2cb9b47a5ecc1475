"""What a run does not know and a training needs: the learning rate, the template, the data set's name.

Taken from the file that the run was read from. For the same framework, that is every key which neither
memory nor time depends on; for another, the few that both have under some name. Secrets stay behind.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from finegauge.formats.key_table import Format, flattened, value_at
from finegauge.formats.sheet import Sheet

_SECRET = re.compile(r"(hub|hf|auth|access|api|bearer|git)_?token$|secret|passw|api_?key|webhook|credential")
_OF_DATA = ("_component_", "_dir", "max_samples")  # about the data, no name of it
_WHEN = ("eval_strategy", "evaluation_strategy", "save_strategy")  # how often, which no field says


class Recipe(NamedTuple):
    """The file that a run was read from."""

    format: Format
    keys: Mapping[str, Any]


def taken_from(recipe: Recipe, sheet: Sheet, target: Format) -> Sheet:
    """Return `sheet`, of the framework `target`, with what the recipe has beside the run's fields."""
    same = recipe.format.shares_keys_with(target)
    found = dict(_of_the_same(recipe) if same else _of_another(recipe, target))
    if same:
        found |= _data(recipe, target, sheet.keys)
    elif not names_data(target, sheet.keys):
        found |= _one_data_set(recipe, target)
    keys: dict[str, Any] = {key: dict(v) if isinstance(v, Mapping) else v for key, v in sheet.keys.items()}
    found |= {key: recipe.keys[key] for key in _WHEN if same and key in recipe.keys and key in keys}
    for path, value in found.items():
        section, dot, key = path.partition(".")
        if not dot:
            keys[section] = value
        elif isinstance(keys.setdefault(section, {}), dict):
            keys[section][key] = value
    secrets = sorted(key for key in recipe.keys if _is_secret(key)) if same else []
    notes = sheet.notes
    if secrets:
        notes += (f"Not carried over, for they may be secrets: {', '.join(secrets[:8])}.",)
    return sheet._replace(keys=keys, notes=notes)


def names_data(format_: Format, keys: Mapping[str, Any]) -> bool:
    """Return whether the training file of a framework names the data that it trains on."""
    names = [key for key in format_.data_keys if not key.endswith(_OF_DATA)]
    return any(value_at(keys, key) not in (None, "", [], {}) for key in names)


def _of_the_same(recipe: Recipe) -> Iterator[tuple[str, Any]]:
    """Return the known keys that no field is read from, "section.key" in sections."""
    read, known = recipe.format.keys, recipe.format.known
    sections = {key.partition(".")[0] for key in (*read, *known) if "." in key}
    for path, held in flattened(recipe.keys, sections):
        carried = (path in known or f"{path.partition('.')[0]}.*" in known) and path not in read
        if carried and not _is_secret(path) and not path.startswith("finegauge"):
            yield path, held


def _of_another(recipe: Recipe, target: Format) -> Iterator[tuple[str, Any]]:
    """Return what both frameworks have a key for, under the other's key."""
    for setting, key in recipe.format.lasting.items():
        value = value_at(recipe.keys, key)
        plain = isinstance(value, str | int | float) and not isinstance(value, bool)
        if plain and setting in target.lasting:
            yield target.lasting[setting], value


def _data(recipe: Recipe, target: Format, written: Mapping[str, Any]) -> dict[str, Any]:
    """Return what names the data, as the file of the same framework has it, where no other data is named."""
    found = {key: value_at(recipe.keys, key) for key in target.data_keys}
    if names_data(target, written):
        found = {key: one for key, one in found.items() if _paths(one) == _paths(value_at(written, key))}
    return {key: value for key, value in found.items() if value is not None}


def _paths(named: Any) -> list[Any]:
    """Return the data sets that a list of them names."""
    listed = named if isinstance(named, list) else [named]
    return [one.get("path") if isinstance(one, Mapping) else one for one in listed]


def _one_data_set(recipe: Recipe, target: Format) -> dict[str, Any]:
    """Return the data set under another framework's key, where the file names one of a hub, or a file."""
    if recipe.format.lists_data or target.lists_data:
        return {}
    for key in recipe.format.data_keys:
        named = value_at(recipe.keys, key)
        named = named[0] if isinstance(named, list) and len(named) == 1 else named
        named = named.get("path") if isinstance(named, Mapping) else named
        if isinstance(named, str) and named and not key.endswith("_component_"):
            plain, theirs = named.partition("#")[0], target.data_keys[0]
            shapes = {"datasets": [{"path": plain, "type": "chat_template"}], "dataset": [plain]}
            return {theirs: shapes.get(theirs, plain)}
    return {}


def _is_secret(key: str) -> bool:
    return _SECRET.search(key.casefold()) is not None
