"""Where laws are kept by name: one JSON file each in the user's configuration folder."""

import os
import re

from finegauge.catalogue.documents import home, read_document, write_document
from finegauge.errors import FieldError, InputError, UnknownNameError, shown
from finegauge.laws.law import Law, law_from_json

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def check_name(name: str) -> str:
    """Return `name` if it can be a law's; it becomes a file name."""
    if not _NAME.fullmatch(name):
        raise FieldError(
            f"{shown(name)} cannot name a law; use letters, digits, '.', '_' and '-', at most 64 of them."
        )
    return name


def stored() -> dict[str, str]:
    """Return the path of every stored law by name."""
    folder = _folder()
    files = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    return {
        name.removesuffix(".json"): os.path.join(folder, name) for name in files if name.endswith(".json")
    }


def load(name_or_path: str) -> Law:
    """Return the law of that name, or that a .json file holds.

    Raises: UnknownNameError naming its neighbours, FileFormatError.
    """
    if name_or_path.endswith(".json"):
        return law_from_json(read_document(name_or_path), name_or_path)
    known = stored()
    if name_or_path not in known:
        have = (
            f" Stored are {', '.join(known)}."
            if known
            else " None is stored yet: 'finegauge calibrate --law'."
        )
        raise InputError(f"{UnknownNameError('stored law', name_or_path, known=known)}{have}")
    return law_from_json(read_document(known[name_or_path]), known[name_or_path])


def store(law: Law) -> str:
    """Write `law` under its name, whole or not at all, and return the path."""
    path = os.path.join(_folder(), f"{check_name(law.name)}.json")
    write_document(law.to_json(), path)
    return path


def _folder() -> str:
    return os.path.join(home(), "laws")
