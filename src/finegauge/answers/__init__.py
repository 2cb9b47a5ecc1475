"""One typed answer per question, worked out once, without text.

Exceptions from the rule that an answer's JSON mirrors its type; for `render.json` and `render.schema`.
"""

from collections.abc import Collection, Mapping
from typing import TypeVar

from finegauge.records import NamedTuple

T = TypeVar("T")
_NAME = "json_rules"


class Rules(NamedTuple):
    """Exceptions of one type, each by names of its fields; decorates that type."""

    hidden: Collection[str] = ()  # for layouts alone
    absent: Collection[str] = ()  # left out where None
    most: Mapping[str, int] = {}  # only the first so many are written
    signed: Collection[str] = ()  # may be negative, or fractions above 1
    flat: Collection[str] = ()  # their own fields stand in their place

    def __call__(self, kind: type[T]) -> type[T]:
        """Return `kind`, which has these exceptions from now on."""
        setattr(kind, _NAME, self)
        return kind


_NONE = Rules()


def rules_of(kind: type) -> Rules:
    """Return the exceptions of a type."""
    found: Rules = getattr(kind, _NAME, _NONE)
    return found
