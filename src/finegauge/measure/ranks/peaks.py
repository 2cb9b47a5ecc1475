"""The most that a rank holds in each phase of a step, in bytes beyond what lies there between steps.

On CUDA that is the allocator's peak. On a CPU torch's profiler notes every block that its allocator gives
and takes, with its address: the largest running sum is the peak. Two things are left out. What gloo copies
for itself while it sends, for NCCL copies nothing; and blocks whose end the profiler has not seen (gloo's
threads free some, on which it does not look): so every message is waited for, and a moment longer.
"""

import time
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from finegauge.measure.ranks.collectives import Collectives
from finegauge.measure.subject import Phase

PHASE_OF_STAGE = {"data": "forward"}
MARK = "finegauge: "
SENDING = "sending"
SETTLE_S = 0.001  # for a thread of gloo to let go of what it has sent


class Span(NamedTuple):
    """When something ran, in nanoseconds."""

    name: str
    begin: int
    end: int


class Block(NamedTuple):
    """Memory that the allocator gave (positive) or took back, and where it lies."""

    at: int
    address: int
    bytes: int


def peaks(phase: Phase, between_steps_bytes: float, device: torch.device) -> dict[str, float]:
    """Return the peak of every phase of a step, in bytes; takes a step.

    Args:
        phase: What takes the step.
        between_steps_bytes: What is there before it.
        device: Of which the memory is.
    """
    if device.type == "cuda":
        from finegauge.measure.instruments.cuda_memory import cuda_memory

        return cuda_memory(phase, device).phase_peak_bytes
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen, _Settled():
        phase.step(_Marked())
    spans, blocks = _seen(seen)
    return {name: between_steps_bytes + most for name, most in running(spans, blocks).items()}


class _Marked:
    """A clock that leaves marks among what the profiler records."""

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Mark what runs inside."""
        with record_function(MARK + PHASE_OF_STAGE.get(name, name)):
            yield


class _Settled(Collectives):
    """Marks when a message was under way, and waits a moment longer."""

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Send, wait, and let the threads of gloo end their work."""
        with record_function(MARK + SENDING):
            found = super().run(func, args, kwargs)
            time.sleep(SETTLE_S)
        return found


def _seen(profiled: Any) -> tuple[list[Span], list[Block]]:
    """Return the marks and the blocks that a profiler has recorded."""
    from torch._C._profiler import _EventType

    spans: list[Span] = []
    blocks: list[Block] = []
    waiting = list(profiled.profiler.kineto_results.experimental_event_tree())
    while waiting:
        event = waiting.pop()
        waiting += event.children
        if event.tag == _EventType.Allocation:
            fields = event.extra_fields
            blocks.append(Block(event.start_time_ns, fields.ptr, fields.alloc_size))
        elif event.name.startswith(MARK):
            spans.append(Span(event.name.removeprefix(MARK), event.start_time_ns, event.end_time_ns))
    return sorted(spans, key=lambda span: span.begin), sorted(blocks)


def running(spans: list[Span], blocks: list[Block]) -> dict[str, float]:
    """Return the largest sum of blocks given and not yet taken back, by phase.

    Args:
        spans: The phases, and when messages were sent.
        blocks: In the order of time.
    """
    sending = [span for span in spans if span.name == SENDING]
    phases = [span for span in spans if span.name != SENDING]
    found = {span.name: 0.0 for span in phases}
    alive: dict[int, int] = {}
    total = 0
    for block in blocks:
        total -= alive.pop(block.address, 0)  # whether its end was seen or not
        if block.bytes > 0 and _around(block.at, sending) is None:
            alive[block.address] = block.bytes
            total += block.bytes
        span = _around(block.at, phases)
        if span is not None:
            found[span.name] = max(found[span.name], float(total))
    return found


def _around(at: int, spans: list[Span]) -> Span | None:
    """Return which of `spans`, one after the other, an instant lies in."""
    number = bisect_right(spans, at, key=lambda span: span.begin)
    return spans[number - 1] if number and at <= spans[number - 1].end else None
