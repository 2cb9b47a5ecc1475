"""What an optimizer keeps for each tensor that it trains, and what it needs while it updates.

PyTorch's AdamW keeps two values as wide as the parameter. bitsandbytes keeps fp32 values
(AdamW two, Lion one) or, of tensors of at least 4,096 elements, 8-bit ones with an fp32
scale per block of 256; its paged variants leave tensors under 100,000 elements where they
are. Adafactor keeps fp32 row and column means of every matrix, all of a vector.

Sources: bitsandbytes 0.50.2, optim/optimizer.py; transformers 5.23, optimization.py;
torch 2.13, optim/adam.py (all run, 2026-11-21).
"""

from collections.abc import Iterable
from math import ceil, prod
from typing import NamedTuple

WIDE_STATES = {"adamw": 2, "paged_adamw": 2, "lion": 1}
NARROW_STATES = {"adamw_8bit": 2, "paged_adamw_8bit": 2, "lion_8bit": 1}
LEAST_NARROW, NARROW_BLOCK = 4096, 256
LEAST_PAGED = 100_000
ADAFACTOR_VALUES = 2  # the update and a step towards it, in fp32; beside copies of what is narrower


class Trained(NamedTuple):
    """A tensor that trains: its shape, bytes per element, and how many of it there are."""

    shape: tuple[int, ...]
    element_bytes: int
    num_alike: float = 1

    @property
    def size(self) -> int:
        """Return the elements of one."""
        return prod(self.shape)


def state_bytes(optimizer: str, tensor: Trained) -> float:
    """Return the bytes that `optimizer` keeps for one such tensor."""
    size = tensor.size
    if optimizer == "adafactor":
        *rows, columns = tensor.shape
        return 4.0 * (prod(rows) + prod(rows[:-1]) * columns) if rows else 4.0 * size
    if values := NARROW_STATES.get(optimizer, 0):
        narrow = size >= LEAST_NARROW
        return values * (size + 4.0 * ceil(size / NARROW_BLOCK)) if narrow else values * 4.0 * size
    element = tensor.element_bytes if optimizer == "adamw" else 4
    return float(WIDE_STATES.get(optimizer, 0) * element * size)


def paged_bytes(optimizer: str, tensors: Iterable[Trained]) -> float:
    """Return the bytes of state that may leave the GPU under pressure."""
    if not optimizer.startswith("paged"):
        return 0.0
    return sum(t.num_alike * state_bytes(optimizer, t) for t in tensors if t.size >= LEAST_PAGED)


def temporary_bytes(optimizer: str, tensors: Iterable[Trained]) -> float:
    """Return what an update of one tensor after the other needs beside the states, at its worst.

    AdamW: the root of the second moment, that divided by its bias correction, and the last
    tensor's, not yet dropped. Adafactor: fp32 copies of gradient and parameter if these
    are narrower, the update and a step towards it.
    """
    worst = before = 0.0
    for tensor in tensors:
        now = float(tensor.size * tensor.element_bytes)
        if optimizer == "adafactor":
            copies = 2 if tensor.element_bytes < 4 else 0
            worst = max(worst, 4.0 * tensor.size * (ADAFACTOR_VALUES + copies))
        elif optimizer == "adamw":
            worst = max(worst, 2 * now + before)
            before = now
    return worst
