"""What a run does not know and a training needs: the learning rate, the template, the data set's name.

Taken from the file that the run was read from. For the same framework, that is every key which neither
memory nor time depends on; for another, the few that both have under some name. Secrets stay behind.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from finegauge.formats.sheet import Sheet

_SECRET = re.compile(r"(hub|hf|auth|access|api|bearer|git)_?token$|secret|passw|api_?key|webhook|credential")
_HUGGING_FACE = ("LLaMA-Factory", "Axolotl", "TRL", "transformers", "ms-swift")
# One thing, and each framework's key for it.
_SHARED: tuple[dict[str, str], ...] = (
    {
        **dict.fromkeys((*_HUGGING_FACE, "LLaMA-Factory v1"), "learning_rate"),
        **dict.fromkeys(("torchtune", "NeMo Automodel", "torchtitan"), "optimizer.lr"),
        "Unsloth": "training.learning_rate",
    },
    {
        **dict.fromkeys(_HUGGING_FACE, "lr_scheduler_type"),
        "Axolotl": "lr_scheduler",
        "Unsloth": "training.lr_scheduler_type",
    },
    {
        **dict.fromkeys(_HUGGING_FACE, "weight_decay"),
        **dict.fromkeys(("torchtune", "NeMo Automodel", "torchtitan"), "optimizer.weight_decay"),
        "Unsloth": "training.weight_decay",
    },
    {**dict.fromkeys(_HUGGING_FACE, "warmup_steps"), "Unsloth": "training.warmup_steps"},
    {**dict.fromkeys((*_HUGGING_FACE, "LLaMA-Factory v1"), "max_grad_norm"), "torchtune": "clip_grad_norm"},
    {
        **dict.fromkeys((*_HUGGING_FACE, "LLaMA-Factory v1"), "seed"),
        "torchtune": "seed",
        "Unsloth": "training.seed",
    },
    {
        **dict.fromkeys((*_HUGGING_FACE, "LLaMA-Factory v1"), "output_dir"),
        "torchtune": "output_dir",
        "Unsloth": "training.output_dir",
    },
)
# Where each framework names its data; the first is where one name of a hub is written.
_DATA: dict[str, tuple[str, ...]] = {
    "LLaMA-Factory": ("dataset", "dataset_dir", "max_samples"),
    "LLaMA-Factory v1": ("train_dataset",),
    "Axolotl": ("datasets",),
    "TRL": ("dataset_name", "datasets"),
    "transformers": ("dataset_name", "datasets"),
    "DeepSpeed": ("dataset_name", "datasets"),
    "torchtune": ("dataset.source", "dataset.data_files", "dataset._component_"),
    "NeMo Automodel": ("dataset.path_or_dataset_id", "dataset.path_or_dataset", "dataset.dataset_name"),
    "ms-swift": ("dataset", "val_dataset"),
    "Unsloth": ("data.dataset", "data.local_dataset"),
    "torchtitan": ("training.dataset",),
}

_OWN_NAMES = {"LLaMA-Factory", "LLaMA-Factory v1", "torchtitan"}  # of a listing of data sets, not of a hub
_OF_DATA = ("_component_", "_dir", "max_samples")  # about the data, no name of it
_WHEN = ("eval_strategy", "evaluation_strategy", "save_strategy")  # how often, which no field says


class Recipe(NamedTuple):
    """The keys of the file that a run was read from."""

    framework: str  # the reader's name
    keys: Mapping[str, Any]
    read: Collection[str]  # what the reader states fields from, "section.key" where there are sections
    known: Collection[str]  # what the framework knows besides; "section.*" is a whole section


def taken_from(recipe: Recipe, sheet: Sheet, framework: str) -> Sheet:
    """Return `sheet`, of the framework of that name, with what the recipe has beside the run's fields."""
    same = {recipe.framework, framework} <= {
        "TRL",
        "transformers",
        "DeepSpeed",
    } or recipe.framework == framework
    found = dict(_of_the_same(recipe) if same else _of_another(recipe, framework))
    if not names_data(framework, sheet.keys):
        found |= _data(recipe, framework) if same else _one_data_set(recipe, framework)
    keys: dict[str, Any] = {key: dict(v) if isinstance(v, Mapping) else v for key, v in sheet.keys.items()}
    found |= {key: recipe.keys[key] for key in _WHEN if same and key in recipe.keys and key in keys}
    for path, value in found.items():
        _put(keys, path, value)
    secrets = sorted(key for key in recipe.keys if _is_secret(key)) if same else []
    notes = sheet.notes
    if secrets:
        notes += (f"Not carried over, for they may be secrets: {', '.join(secrets[:8])}.",)
    return sheet._replace(keys=keys, notes=notes)


def names_data(framework: str, keys: Mapping[str, Any]) -> bool:
    """Return whether the training file of a framework names the data that it trains on."""
    names = [key for key in _DATA.get(framework, ()) if not key.endswith(_OF_DATA)]
    return any(_at(keys, key) not in (None, "", [], {}) for key in names)


def _of_the_same(recipe: Recipe) -> Iterator[tuple[str, Any]]:
    """Return the known keys that no field is read from, "section.key" in sections."""
    whole = {key.removesuffix(".*") for key in recipe.known if key.endswith(".*")}
    sections = {key.partition(".")[0] for key in (*recipe.read, *recipe.known) if "." in key}
    for key, value in recipe.keys.items():
        inside = value.items() if key in sections and isinstance(value, Mapping) else None
        for path, held in ((key, value),) if inside is None else ((f"{key}.{k}", v) for k, v in inside):
            known = path in recipe.known or key in whole
            if (
                known
                and path not in recipe.read
                and not _is_secret(path)
                and not path.startswith("finegauge")
            ):
                yield path, held


def _of_another(recipe: Recipe, framework: str) -> Iterator[tuple[str, Any]]:
    """Return what both frameworks have a key for, under the other's key."""
    for names in _SHARED:
        if recipe.framework in names and framework in names:
            value = _at(recipe.keys, names[recipe.framework])
            if isinstance(value, str | int | float) and not isinstance(value, bool):
                yield names[framework], value


def _data(recipe: Recipe, framework: str) -> dict[str, Any]:
    """Return what names the data, as the file of the same framework has it."""
    found = {key: _at(recipe.keys, key) for key in _DATA.get(framework, ())}
    return {key: value for key, value in found.items() if value is not None}


def _one_data_set(recipe: Recipe, framework: str) -> dict[str, Any]:
    """Return the data set under another framework's key, where the file names one of a hub, or a file."""
    if {recipe.framework, framework} & _OWN_NAMES:
        return {}
    for key in _DATA.get(recipe.framework, ()):
        named = _at(recipe.keys, key)
        named = named[0] if isinstance(named, list) and len(named) == 1 else named
        named = named.get("path") if isinstance(named, Mapping) else named
        if isinstance(named, str) and named and not key.endswith("_component_"):
            plain = named.partition("#")[0]
            target = _DATA[framework][0]
            value: Any = {"datasets": [{"path": plain, "type": "chat_template"}], "dataset": [plain]}.get(
                target, plain
            )
            return {target: value}
    return {}


def _at(keys: Mapping[str, Any], path: str) -> Any:
    """Return the value at "section.key", None where there is none."""
    value: Any = keys
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _put(keys: dict[str, Any], path: str, value: Any) -> None:
    """Put a value at "section.key"."""
    section, dot, key = path.partition(".")
    if not dot:
        keys[section] = value
    elif isinstance(keys.setdefault(section, {}), dict):
        keys[section][key] = value


def _is_secret(key: str) -> bool:
    """Return whether a key's name says that its value may be a secret."""
    return _SECRET.search(key.casefold()) is not None
