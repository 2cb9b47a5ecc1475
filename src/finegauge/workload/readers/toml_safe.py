"""TOML text into plain values, within the limits that YAML has."""

from typing import Any

from finegauge.errors import FileFormatError
from finegauge.workload.readers.yaml_safe import MAX_DEPTH, MAX_VALUES


def load(text: str, name: str) -> Any:
    """Return the tables that TOML `text` holds; `name` is how messages call the file.

    Raises: FileFormatError for text that is none, or that is nested or long beyond reason.
    """
    import tomllib

    if max(map(str.count, (text, text), "[{"), default=0) > MAX_VALUES:
        raise FileFormatError(f"{name}: more than {MAX_VALUES:,} values are refused.")
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise FileFormatError(f"{name} is not valid TOML ({error}).") from None
    except (RecursionError, ValueError):
        raise FileFormatError(f"{name} is not valid TOML: it is nested too deep.") from None
    _refuse_too_deep(tables, name)
    return tables


def _refuse_too_deep(tables: Any, name: str) -> None:
    """Raise where tables hold too many values, or nest too deep."""
    level, total = [tables], 0
    for _ in range(MAX_DEPTH):
        below = [value for one in level for value in (one.values() if isinstance(one, dict) else one)]
        total += len(below)
        level = [value for value in below if isinstance(value, dict | list)]
        if not level:
            break
    if level or total > MAX_VALUES:
        raise FileFormatError(f"{name}: more than {MAX_DEPTH} levels or {MAX_VALUES:,} values are refused.")
