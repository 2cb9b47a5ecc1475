"""Seconds of one operator as a step of training meets it: many uses forward, then all of them backward.

A single call in a loop finds its weights in cache. A step does not: it runs every layer forward, keeps what
they return, and comes back through all of them. So a reading takes several uses with weights of their own,
all forward, then one backward through all, and divides by their number. Activations are views of one pool
of about a cache's size, since the operator before has just written them. Updates and copies are timed
likewise.

Neglects: what a neighbour leaves in the smallest caches.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from math import prod
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor

from finegauge.measurement.models.classes import DTYPES

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


CHAIN_BYTES = 64 * 2**20  # more than the caches hold
CHAIN_S = 0.02  # a pass over the chain need not take longer
MIN_USES, MAX_USES = 2, 64
REPEATS = 3

DIFFERENTIATED = {  # direction: are inputs, are weights
    "backward": (True, True),
    "backward_frozen": (True, False),
    "backward_first": (False, True),
    "": (False, False),  # what has no backward
}


class Timing(NamedTuple):
    """Seconds of one use, the quickest repeat, and how far the median lies above it."""

    seconds: float
    spread_fraction: float

    @classmethod
    def of(cls, repeats: Iterable[float]) -> "Timing":
        """Return what repeats of the same work say."""
        times = list(repeats)
        return cls(min(times), median(times) / min(times) - 1.0)


class Timed(NamedTuple):
    """An operator in every direction asked for, and the bytes of what it reads and returns."""

    directions: Mapping[str, Timing]  # "forward" and the backward ones
    input_bytes: float
    weight_bytes: float
    output_bytes: float


def timed(
    make: Callable[[], Use], bench: Bench, directions: tuple[str, ...], repeats: int = REPEATS
) -> Timed:
    """Return the seconds of the operator that `make` makes one more use of."""
    first = make()
    _differentiate(first, inputs=True, weights=True)
    output = first.forward()
    gradient = torch.ones_like(output)
    sizes = [float(sum(t.nbytes for t in found)) for found in (first.inputs, first.weights, (output,))]
    kept = sizes[1] + sizes[2]
    del output
    pass_s = min(sum(_pass([first], [gradient], bench)) for _ in range(2))
    num_uses = min(CHAIN_BYTES / max(kept, 1), max(CHAIN_S / pass_s, MIN_USES), MAX_USES)
    uses = [first, *(make() for _ in range(max(MIN_USES, int(num_uses)) - 1))]
    gradients = [gradient] * len(uses)
    forwards: list[float] = []
    found: dict[str, Timing] = {}
    for direction in directions or ("",):
        inputs, weights = DIFFERENTIATED[direction]
        for use in uses:
            _differentiate(use, inputs=inputs, weights=weights)
        _pass(uses, gradients, bench)
        passes = [_pass(uses, gradients, bench) for _ in range(repeats)]
        forwards += [forward / len(uses) for forward, _ in passes]
        if direction:
            found[direction] = Timing.of(backward / len(uses) for _, backward in passes)
    return Timed({"forward": Timing.of(forwards), **found}, *sizes)


def _pass(uses: list[Use], gradients: list[Tensor], bench: Bench) -> tuple[float, float]:
    outputs: list[Any] = []

    def forward() -> None:
        outputs.extend(use.forward() for use in uses)

    def backward() -> None:
        if outputs[0].requires_grad:
            torch.autograd.backward(outputs, gradients)

    forward_s, backward_s = bench.seconds(forward, backward)
    for use in uses:
        for leaf in (*use.inputs, *use.weights):
            leaf.grad = None
    return forward_s, backward_s


def _differentiate(use: Use, *, inputs: bool, weights: bool) -> None:
    for leaves, wanted in ((use.inputs, inputs), (use.weights, weights)):
        for leaf in leaves:
            leaf.requires_grad_(wanted)


def update_timing(bench: Bench, operator: str, *, params: int, tensors: int) -> Timing:
    """Return the seconds of one update of `params` parameters in `tensors` tensors of equal size.

    `operator` is adamw_fused, adamw_foreach, adamw_loop or clip.
    """
    state_bytes = 4 * bench.dtype.itemsize * params
    copies = int(min(max(CHAIN_BYTES / state_bytes, 1), MAX_USES))
    calls = [_call(operator, _parameters(bench, params, tensors)) for _ in range(copies)]

    def update_all() -> None:
        for call in calls:
            call()

    bench.seconds(update_all)
    return Timing.of(bench.seconds(update_all)[0] / copies for _ in range(REPEATS))


def _parameters(bench: Bench, params: int, tensors: int) -> list[Any]:
    parameters = [torch.nn.Parameter(bench.weight(max(1, params // tensors))) for _ in range(tensors)]
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, 1e-3)
    return parameters


def _call(operator: str, parameters: list[Any]) -> Callable[[], Any]:
    if operator == "clip":
        return lambda: torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    kind = operator.removeprefix("adamw_")
    chosen: Mapping[str, bool] = {"fused": kind == "fused", "foreach": kind == "foreach"}
    step: Callable[[], Any] = torch.optim.AdamW(parameters, lr=1e-5, **chosen).step
    return step


def copy_timing(bench: Bench, operator: str, *, num_bytes: int) -> Timing:
    """Return the seconds of copying `num_bytes` within the device, to it or from it, memory pinned."""
    cuda = bench.device.type == "cuda"
    source_device = bench.device if operator != "to_device" else torch.device("cpu")
    target_device = bench.device if operator != "to_host" else torch.device("cpu")
    source, target = (
        torch.zeros(num_bytes, dtype=torch.uint8, device=device, pin_memory=cuda and device.type == "cpu")
        for device in (source_device, target_device)
    )

    def copy() -> None:
        target.copy_(source, non_blocking=cuda)

    bench.seconds(copy)
    return Timing.of(bench.seconds(copy)[0] for _ in range(2 * REPEATS))
