"""What a file held before anyone knew what it means."""

from collections.abc import Mapping
from typing import Any, NamedTuple


class Loaded(NamedTuple):
    """Keys and values; the reader, where the kind of file alone decides it; what could not be read."""

    keys: Any
    reader: str = ""
    warnings: tuple[str, ...] = ()
    remark: Mapping[str, Any] = {}  # fields that a comment at its head states
