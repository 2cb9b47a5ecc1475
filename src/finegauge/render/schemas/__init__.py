"""The JSON schemas of what commands print under `--json`, one file per command or family of commands."""

from importlib.resources import files
from typing import Any


def schema(name: str) -> dict[str, Any]:
    """Return a schema, such as "plan" or "run-commands" (estimate, explain, check, max-batch, max-length)."""
    import json

    content: dict[str, Any] = json.loads(files(__name__).joinpath(f"{name}.schema.json").read_text("utf-8"))
    return content
