"""Training frameworks' own files, read as a Run and written from one."""

import os
from functools import cache
from typing import Any

MAX_SCRIPT = 400_000  # characters, of Python or a shell


@cache
def shipped_data(name: str) -> dict[str, Any]:
    """Return what a file of `formats/data` holds, of facts that are many."""
    import json

    with open(os.path.join(os.path.dirname(__file__), "data", name), encoding="utf-8") as file:
        return dict(json.load(file))
