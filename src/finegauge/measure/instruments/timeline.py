"""When one thing ends and the next begins: instants of a step, and the seconds between them.

A timeline is one list of marks. Each mark says what runs from its instant to the next
mark's, so that the parts add up to the whole exactly, whatever is marked and however often.
On a CPU an instant is the clock's; on CUDA it is an event in the stream, which costs the
host a microsecond and the device nothing: the device is waited for once, at the end.
"""

from collections.abc import Hashable
from time import perf_counter_ns
from typing import Any, Protocol

import torch


class Instants(Protocol):
    """How instants are taken on one kind of device."""

    def now(self) -> Any:
        """Return this instant, in the order of the work that was asked for so far."""
        ...

    def seconds(self, begin: Any, end: Any) -> float:
        """Return the seconds from one instant to another, both settled."""
        ...

    def settle(self) -> None:
        """Wait until every instant taken has come."""
        ...

    def forget(self) -> None:
        """Drop all instants taken so far: they are not asked about again."""
        ...


class HostInstants:
    """Instants of the host's clock, for work that is done when its call returns."""

    now = staticmethod(perf_counter_ns)

    def seconds(self, begin: int, end: int) -> float:
        """Return the seconds between two readings of the clock."""
        return (end - begin) / 1e9

    def settle(self) -> None:
        """Return at once: the work is done."""

    def forget(self) -> None:
        """Return at once: nothing is held."""


class CudaInstants:
    """Events in the current CUDA stream; they are used again from step to step."""

    def __init__(self) -> None:
        """Begin with no events."""
        self._events: list[Any] = []
        self._used = 0

    def now(self) -> Any:
        """Record an event behind the work that was launched so far."""
        if self._used == len(self._events):
            self._events.append(torch.cuda.Event(enable_timing=True))
        event = self._events[self._used]
        self._used += 1
        event.record()
        return event

    def seconds(self, begin: Any, end: Any) -> float:
        """Return the seconds between two events that have come."""
        return float(begin.elapsed_time(end)) / 1e3

    def settle(self) -> None:
        """Wait for the device."""
        torch.cuda.synchronize()

    def forget(self) -> None:
        """Make all events free for the next step."""
        self._used = 0


def instants_of(device: torch.device) -> Instants:
    """Return how instants are taken on `device`."""
    return CudaInstants() if device.type == "cuda" else HostInstants()


class Timeline:
    """Marks of one step: what runs from each instant on."""

    def __init__(self, instants: Instants) -> None:
        """Take instants by `instants`."""
        self.instants = instants
        self._marks: list[tuple[Any, Hashable]] = []
        self._now = instants.now

    def mark(self, what: Hashable) -> None:
        """Say that `what` runs from now on."""
        self._marks.append((self._now(), what))

    def close(self) -> dict[Any, float]:
        """End the step; return the seconds of each thing that ran, in the order of first appearance."""
        self.mark(None)
        self.instants.settle()
        spent: dict[Any, float] = {}
        seconds = self.instants.seconds
        for (begin, what), (end, _) in zip(self._marks, self._marks[1:], strict=False):
            spent[what] = spent.get(what, 0.0) + seconds(begin, end)
        self.discard()
        return spent

    def discard(self) -> None:
        """Forget the marks of a step that is over or did not end."""
        self._marks.clear()
        self.instants.forget()
