"""How far a long computation is: reported by the computation, shown by its caller."""

from collections.abc import Callable
from typing import NamedTuple


class Progress(NamedTuple):
    """How far a computation is."""

    what: str  # is being done, or has just ended
    done: int
    total: int
    left_s: float | None = None  # seconds until the end, where that is known


Heard = Callable[[Progress], None]
