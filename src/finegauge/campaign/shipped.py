"""The sweeps that come with FineGauge, found by their bare names: `finegauge campaign xia2024`.

Each is a YAML file in `data`, with the models and GPUs that it needs beside it.
"""

import os
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from finegauge.errors import UnknownNameError

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data")
ENDINGS = (".yaml", ".yml", ".json")


@cache
def shipped() -> Mapping[str, str]:
    """Return the path of every shipped sweep by its name."""
    names = sorted(name for name in os.listdir(FOLDER) if name.endswith(".yaml"))
    return MappingProxyType({name.removesuffix(".yaml"): os.path.join(FOLDER, name) for name in names})


def sweep_path(name_or_path: str) -> str:
    """Return the path of the sweep that a user names: a file, or one that is shipped.

    A folder of that name does not stand in the way: it is where a campaign keeps its results.

    Raises: UnknownNameError for a bare word that is neither, naming its neighbours.
    """
    if os.path.isfile(name_or_path):
        return name_or_path
    bare = os.path.basename(name_or_path) == name_or_path and not name_or_path.endswith(ENDINGS)
    if not bare:
        return name_or_path
    known = shipped()
    wanted = name_or_path.strip().casefold().replace("-", "_")
    if wanted in known:
        return known[wanted]
    raise UnknownNameError("sweep", name_or_path, known=known, listing="finegauge campaign --list")
