"""What a rank hands to torch.distributed in a step: how often, how many bytes, how many seconds, by kind.

Whoever sends, DDP's reducer in C++, FSDP2 or DeepSpeed, goes through the operators of c10d, which a
dispatch mode sees. The payload is the whole tensor: gathered, or before it is reduced
(as `predict.exchange` counts it). What is smaller than 64 bytes is a scalar, a loss or a norm, and
stands apart. Every message is waited for, so that its seconds are its own, with nothing beside it; they
include the time until the slowest rank takes part.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

LEAST_BYTES = 64
SCALARS = "scalars"
WHOLE: Mapping[str, tuple[str, int]] = {  # operator: its kind, and which argument is the whole tensor
    "c10d::allreduce_": ("all_reduce", 0),
    "c10d::allreduce_coalesced_": ("all_reduce", 0),
    "c10d::allgather_": ("all_gather", 0),
    "c10d::_allgather_base_": ("all_gather", 0),
    "c10d::allgather_into_tensor_coalesced_": ("all_gather", 0),
    "c10d::reduce_scatter_": ("reduce_scatter", 1),
    "c10d::_reduce_scatter_base_": ("reduce_scatter", 1),
    "c10d::reduce_scatter_tensor_coalesced_": ("reduce_scatter", 1),
    "c10d::broadcast_": ("broadcast", 0),
    "c10d::reduce_": ("reduce", 0),
    "c10d::alltoall_": ("all_to_all", 1),
    "c10d::alltoall_base_": ("all_to_all", 1),
    "c10d::send": ("send", 0),
}


class Sent(NamedTuple):
    """Messages of one kind in one step."""

    kind: str
    messages: int
    bytes: int
    seconds: float


class Collectives(TorchDispatchMode):  # type: ignore[misc]
    """Notes every message of this rank, and waits for it, while it is entered."""

    def __init__(self) -> None:
        """Begin with nothing noted."""
        super().__init__()
        self.messages: list[tuple[str, int, float]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Note `func` if it sends, and run it."""
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it comes again, with local tensors
        found = WHOLE.get(func.name().partition(".")[0])
        if found is None:
            return func(*args, **(kwargs or {}))
        kind, place = found
        size = sum(map(_bytes, _tensors(args[place])))
        _settle()
        began_s = time.perf_counter()
        result = self.run(func, args, dict(kwargs or {}))
        self.messages.append((kind, size, time.perf_counter() - began_s))
        return result

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Send, and wait until it is done."""
        found = func(*args, **kwargs)
        if torch.cuda.is_available():
            _settle()
            return found
        for work in found if isinstance(found, tuple | list) else (found,):
            if isinstance(work, torch.ScriptObject):
                torch.distributed.Work.unbox(work).wait()
        return found

    @property
    def sent(self) -> list[Sent]:
        """Return what was sent by kind, scalars as a kind of their own."""
        totals: dict[str, Sent] = {}
        for sort, size, seconds in self.messages:
            kind = sort if size >= LEAST_BYTES else SCALARS
            _, messages, total, spent = totals.get(kind, Sent(kind, 0, 0, 0.0))
            totals[kind] = Sent(kind, messages + 1, total + size, spent + seconds)
        return [totals[kind] for kind in sorted(totals)]


def sent_in(step: Callable[[], object]) -> list[Sent]:
    """Return what this rank sends while `step` runs."""
    with Collectives() as seen:
        step()
    found: list[Sent] = seen.sent
    return found


def _settle() -> None:
    """Wait for what a GPU has been given to do."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _tensors(value: Any) -> Iterable[torch.Tensor]:
    """Yield the tensors of an argument: one, a list, a list of lists."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def _bytes(tensor: torch.Tensor) -> int:
    """Return the bytes of a tensor's values."""
    return int(tensor.numel() * tensor.element_size())
