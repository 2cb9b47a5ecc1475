"""What a file held before anyone knew what it means."""

from typing import Any, NamedTuple


class Loaded(NamedTuple):
    """Keys and values; the reader, where the kind of file alone decides it; what could not be read."""

    keys: Any
    reader: str = ""
    warnings: tuple[str, ...] = ()
