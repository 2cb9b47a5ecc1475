"""`key=value` words of the command line, laid over the fields of a file."""

from collections.abc import Collection, Iterable
from typing import Any

from finegauge.errors import FieldError, UnknownKeyError, shown
from finegauge.workload import method
from finegauge.workload.run import FROM_COMMAND_LINE

_NOTHING = ("", "null", "~")
_NONE_IS_NOTHING = frozenset(("dataset", "num_samples", "max_steps", "gpu", "provider", "region"))


def parse(words: Iterable[str], known: Collection[str]) -> dict[str, str]:
    """Return {key: value} of `key=value` words.

    Raises: FieldError for a word without "=", UnknownKeyError for a key not in `known`.
    """
    overrides: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        key = key.strip().removeprefix("--").replace("-", "_")
        if not equals or not key:
            raise FieldError(
                f"The override {shown(word)} is not of the form key=value, such as micro_batch_size=4."
            )
        if key not in known:
            raise UnknownKeyError("command line", key, known=known)
        overrides[key] = value.strip()
    return overrides


def lay_over(fields: dict[str, Any], origins: dict[str, str], overrides: dict[str, str]) -> None:
    """Put `overrides` over `fields`, dropping what only the overridden values had needed."""
    asked = overrides.get("method")
    if asked is not None and str(fields.get("method")).lower() != asked.lower():
        method.forget(fields, asked.lower())
    if overrides.get("packing", "").lower() in ("true", "yes", "on", "1"):
        fields.pop("padding", None)
    for key, value in overrides.items():
        unstated = value.lower() in _NOTHING or (value.lower() == "none" and key in _NONE_IS_NOTHING)
        fields[key] = None if unstated else value
        if unstated:
            origins.pop(key, None)
        else:
            origins[key] = FROM_COMMAND_LINE
