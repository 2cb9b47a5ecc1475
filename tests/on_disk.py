"""Files of tests that outlive one test: in one folder, which is removed when the process ends."""

import atexit
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_FOLDER = tempfile.TemporaryDirectory(prefix="finegauge-tests-")
atexit.register(_FOLDER.cleanup)


def new_folder() -> Path:
    """Return a new, empty folder."""
    return Path(tempfile.mkdtemp(dir=_FOLDER.name))


def config_file(figures: Mapping[str, Any]) -> str:
    """Return the path of a new config.json that holds `figures`."""
    path = new_folder() / "config.json"
    path.write_text(json.dumps(figures), "utf-8")
    return str(path)
