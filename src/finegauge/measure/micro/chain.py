"""Seconds of one operator as a step of training meets it: many uses forward, then all of them backward.

A single call in a loop finds its weights in cache and its memory at hand. A step does not: it runs
every layer forward, keeps what they return, and comes back through all of them. So a reading takes
several uses with weights of their own (`Bench`), all forward, then one backward through all, and
divides by their number. What a pass differentiates decides its direction: inputs and weights, inputs
alone (frozen weights), weights alone (the first operator that trains).

Neglected: what a neighbour leaves in the smallest caches.
"""

from collections.abc import Callable, Iterable, Mapping
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor

from finegauge.measure.micro.bench import Bench, Use

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
    sizes = [float(sum(map(_num_bytes, tensors))) for tensors in (first.inputs, first.weights, (output,))]
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
    """Return the seconds of one forward and one backward through all uses."""
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
    """Say which of the leaves of `use` need gradients."""
    for leaves, wanted in ((use.inputs, inputs), (use.weights, weights)):
        for leaf in leaves:
            leaf.requires_grad_(wanted)


def _num_bytes(tensor: Tensor) -> int:
    """Return the bytes of a tensor's values."""
    return int(tensor.numel() * tensor.element_size())
