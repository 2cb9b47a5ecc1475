"""The place where operators are timed: a device, a dtype, its stopwatch and where tensors come from.

In a step of training an operator finds its input in cache, because the operator before it has just
written that, and finds its weights wherever the caches left them after all other layers. `rows` hands
out views of one pool of about a cache's size in turn; `weight` makes a tensor of its own each time.
"""

import time
from collections.abc import Callable
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
POOL_BYTES = 2**24
ALIGNMENT = 256  # values
WEIGHT_SCALE = 0.02
CYCLES_PER_S = 2e9  # of a GPU's clock, rather too many
AHEAD_S, MOST_AHEAD_S = 0.005, 0.5  # in which the host fills the queue of a GPU


class Use(NamedTuple):
    """One use of an operator, ready to be called once per pass."""

    forward: Callable[[], Tensor]
    inputs: tuple[Tensor, ...]  # leaves that the rest of the model would differentiate
    weights: tuple[Tensor, ...] = ()  # leaves that are the operator's own


class Bench:
    """A device and a dtype on which uses of operators are made and timed."""

    def __init__(self, device: torch.device, dtype: str) -> None:
        """Fill the pool, the same on every call."""
        self.device, self.dtype = device, DTYPES[dtype]
        self.random = torch.Generator(device="cpu").manual_seed(0)
        pool = torch.randn(POOL_BYTES // self.dtype.itemsize, generator=self.random)
        self.pool = pool.to(device, self.dtype)
        self.next = 0
        self.ahead_s = AHEAD_S

    def rows(self, *shape: int) -> Tensor:
        """Return an activation: a leaf over the next stretch of the pool, or of its own if it is larger."""
        size = prod(shape)
        if size > self.pool.numel():
            return self.weight(*shape)
        if self.next + size > self.pool.numel():
            self.next = 0
        view = self.pool[self.next : self.next + size].view(shape)
        self.next += -(-size // ALIGNMENT) * ALIGNMENT
        return view.detach()

    def weight(self, *shape: int) -> Tensor:
        """Return a leaf over memory of its own, with values as small as weights have."""
        made = torch.empty(shape, device=self.device, dtype=self.dtype)
        for part in made.view(-1).split(self.pool.numel()):
            torch.mul(self.pool[: part.numel()], WEIGHT_SCALE, out=part)
        return made

    def integers(self, high: int, *shape: int) -> Tensor:
        """Return uniform int64 values below `high`."""
        return torch.randint(high, shape, generator=self.random).to(self.device)

    def seconds(self, *calls: Callable[[], Any]) -> list[float]:
        """Return the seconds of each call, one after another.

        On a GPU they are device seconds between two events; the device is kept waiting until the host
        has put all of them into its queue (as long as it took the last time), so that no gap between
        kernels is counted.
        """
        if self.device.type != "cuda":
            return [self._own_seconds(call) for call in calls]
        events = [torch.cuda.Event(enable_timing=True) for _ in range(len(calls) + 1)]
        torch.cuda.synchronize(self.device)
        torch.cuda._sleep(int(self.ahead_s * CYCLES_PER_S))
        start = time.perf_counter()
        events[0].record()
        for call, event in zip(calls, events[1:], strict=True):
            call()
            event.record()
        self.ahead_s = min(max(self.ahead_s, 1.5 * (time.perf_counter() - start)), MOST_AHEAD_S)
        torch.cuda.synchronize(self.device)
        return [float(before.elapsed_time(after)) / 1e3 for before, after in pairwise(events)]

    def _own_seconds(self, call: Callable[[], Any]) -> float:
        """Return the seconds of `call` on the processor."""
        start = self.now()
        call()
        return self.now() - start

    def now(self) -> float:
        """Return the time of a clock.

        Where one thread does all the work it is the process's own, which stands still while other
        programs have the processor; else it is the wall's.
        """
        alone = self.device.type == "cpu" and torch.get_num_threads() == 1
        return time.process_time() if alone else time.perf_counter()
