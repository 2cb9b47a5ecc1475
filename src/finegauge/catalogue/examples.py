"""The examples that come with FineGauge: training files to ask about, with the small models that they name.

In a checkout they are its folder `examples`; pip puts them under `share/finegauge/examples`.
"""

import os
import re
from collections.abc import Mapping

from finegauge.errors import InputError, UnknownNameError, shown

SHARE = ("share", "finegauge", "examples")
_MODELS = "models/"  # not asked about by themselves


def examples() -> Mapping[str, str]:
    """Return the path of every example, by name: `tiny_moe`, `plans/llama2_7b_lora`."""
    found = {name: path for name, path in _files().items() if not name.startswith(_MODELS)}
    return {name.rpartition(".")[0]: path for name, path in sorted(found.items())}


def example_text(name: str) -> str:
    """Return the text of an example.

    Raises: UnknownNameError.
    """
    known = examples()
    if name not in known:
        raise UnknownNameError("example", name, known=known, listing="finegauge examples")
    with open(known[name], encoding="utf-8") as file:
        return file.read()


def about(name: str) -> str:
    """Return what an example shows: its first line."""
    return example_text(name).lstrip().partition("\n")[0].strip('#" ').rstrip(":")


def copy(name: str, folder: str) -> tuple[str, ...]:
    """Write an example, and the small models that it names, into `folder`; return the paths.

    Raises: InputError where a file of that name is there, or the folder cannot be written.
    """
    text, files = example_text(name), _files()
    wanted = {_MODELS + model for model in re.findall(rf"{_MODELS}(\w+)", text)}
    chosen = [
        other for other in files if other.rpartition(".")[0] == name or os.path.dirname(other) in wanted
    ]
    written = []
    for other in sorted(chosen):
        path = os.path.join(folder, *other.split("/"))
        try:
            with open(files[other], "rb") as source:
                data = source.read()
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
            with open(path, "xb") as target:
                target.write(data)
        except FileExistsError:
            if other.startswith(_MODELS):  # of an example copied before
                continue
            raise InputError(f"{shown(path)} is there already; name another folder.") from None
        except OSError as error:
            raise InputError(f"Cannot write {shown(path)}: {error.strerror or error}.") from None
        written.append(path)
    return tuple(written)


def _files() -> Mapping[str, str]:
    """Return the path of every file of the examples, by its path among them."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    checkout = os.path.join(os.path.dirname(os.path.dirname(package)), SHARE[-1])
    if os.path.basename(os.path.dirname(package)) == "src" and os.path.isdir(checkout):
        paths = [os.path.join(at, name) for at, _, names in os.walk(checkout) for name in names]
        found = {os.path.relpath(path, checkout).replace(os.sep, "/"): path for path in paths}
    else:
        from importlib.metadata import PackageNotFoundError, files

        try:
            installed = files("finegauge") or []
        except PackageNotFoundError:
            installed = []
        found = {}
        for one in installed:
            parts = tuple(part for part in one.parts if part != "..")
            if parts[: len(SHARE)] == SHARE:
                found["/".join(parts[len(SHARE) :])] = str(one.locate())
    return {name: path for name, path in found.items() if name.endswith((".yaml", ".json", ".py"))}
