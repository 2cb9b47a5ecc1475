"""Operators that are no modules: attention kernels, products of fused experts, dequantisation.

While a layer clock runs, a few functions of torch are replaced by ones that tell the clock
where they begin and end, if an attention, a router or experts call them; whoever else calls
them gets the original at once. The originals come back when the clock stops.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from finegauge.measure.instruments.roles import ADAPTER, CHOSEN, CONVOLUTION, KERNEL, Place

if TYPE_CHECKING:
    from finegauge.measure.instruments.layer_clock import LayerClock

PRODUCTS = ((torch.nn.functional, "linear"), (torch.nn.functional, "grouped_mm"), (torch, "_grouped_mm"),
            (torch, "bmm"))  # fmt: skip
FUSED = ("gate_up_proj", "up_proj", "w1", "v1", "w3", "down_proj", "w2")  # in the order of use


@contextmanager
def told_functions(clock: "LayerClock") -> Iterator[None]:
    """Let torch's functions tell `clock` when they run inside a module that it watches."""
    with ExitStack() as stack:
        for owner, name in PRODUCTS:
            if hasattr(owner, name):
                stack.enter_context(replaced(owner, name, _product(clock, getattr(owner, name))))
        for owner, name in ((torch.nn.functional, "scaled_dot_product_attention"), (torch, "matmul")):
            stack.enter_context(replaced(owner, name, _kernel(clock, getattr(owner, name))))
        convolve = torch.nn.functional.conv1d
        stack.enter_context(replaced(torch.nn.functional, "conv1d", _convolution(clock, convolve)))
        stack.enter_context(replaced(torch, "baddbmm", _addition(clock, torch.baddbmm)))
        stack.enter_context(replaced(torch.Tensor, CHOSEN, _written(clock, torch.Tensor.index_add_)))
        for overload in _dequantisation():
            stack.enter_context(replaced(overload, "default", _beside(clock, overload.default)))
        yield


@contextmanager
def replaced(owner: Any, name: str, new: Any) -> Iterator[None]:
    """Let `owner.name` be `new` for as long as the block runs."""
    own = name in vars(owner)
    old = getattr(owner, name)
    setattr(owner, name, new)
    try:
        yield
    finally:
        if own:
            setattr(owner, name, old)
        else:
            delattr(owner, name)


def _product(clock: "LayerClock", original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a product that tells the clock whose it is."""

    @wraps(original)
    def product(*args: Any, **kwargs: Any) -> Any:
        item = clock.frame.module
        if item is None or item.kind not in ("experts", "router"):
            return original(*args, **kwargs)
        path, last = clock.frame.place
        if last.startswith("("):  # inside another product
            return original(*args, **kwargs)
        if item.kind == "router":
            return _told(clock, original, args, kwargs, (path, "(linear)"), (path, "linear"), states=1)
        name = _projection(item.module, last)
        return _told(clock, original, args, kwargs, (path, f"({name})"), (path, name), states=1)

    return product


def _kernel(clock: "LayerClock", original: Callable[..., Any]) -> Callable[..., Any]:
    """Return an attention kernel, or a product that begins one, that tells the clock."""

    @wraps(original)
    def attend(*args: Any, **kwargs: Any) -> Any:
        item = clock.frame.module
        if item is None or item.kind != "attention" or clock.frame.place[1] == KERNEL:
            return original(*args, **kwargs)
        place = (item.path, KERNEL)
        return _told(clock, original, args, kwargs, place, place, states=len(args))

    return attend


def _convolution(clock: "LayerClock", original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a convolution that tells the clock when a state-space mixer calls it past its module."""

    @wraps(original)
    def convolve(*args: Any, **kwargs: Any) -> Any:
        item = clock.frame.module
        if item is None or item.kind not in ("mamba", "linear_attention"):
            return original(*args, **kwargs)
        path, last = clock.frame.place
        return _told(clock, original, args, kwargs, (path, CONVOLUTION), (path, last), states=1)

    return convolve


def _addition(clock: "LayerClock", original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the sum of fused experts' weights and their adapters, which tells the clock."""

    @wraps(original)
    def add(*args: Any, **kwargs: Any) -> Any:
        item = clock.frame.module
        if item is None or item.kind != "experts":
            return original(*args, **kwargs)
        return _told(clock, original, args, kwargs, (item.path, ADAPTER), clock.frame.place, states=0)

    return add


def _written(clock: "LayerClock", original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the addition of one expert's answers, after which the next expert's turn comes."""

    @wraps(original)
    def index_add_(*args: Any, **kwargs: Any) -> Any:
        out = original(*args, **kwargs)
        item = clock.frame.module
        if item is not None and item.kind == "experts":
            if torch.is_grad_enabled():
                clock.leaving(out, clock.frame.place)
            clock.go_on((item.path, CHOSEN))
        return out

    return index_add_


def _beside(clock: "LayerClock", original: Any) -> Callable[..., Any]:
    """Return a dequantisation that tells the clock."""

    @wraps(original)
    def dequantise(*args: Any, **kwargs: Any) -> Any:
        with clock.beside("dequantise"):
            return original(*args, **kwargs)

    return dequantise


def _told(
    clock: "LayerClock",
    original: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    inside: Place,
    after: Place,
    *,
    states: int,
) -> Any:
    """Run a function as the place `inside` and go on at `after`; backward goes the same way back.

    The first `states` arguments were made here; what made the others (a slice of the
    experts' weights, an adapter) belongs to the function.
    """
    graph = torch.is_grad_enabled()
    if graph:
        clock.leaving(args[states:], inside)
        args = (*map(clock.entering, args[:states]), *args[states:])
    clock.go_on(inside)
    out = original(*args, **kwargs)
    if graph:
        clock.leaving(out, inside)
    clock.go_on(after)
    return out


def _projection(experts: nn.Module, last: str) -> str:
    """Return which projection of fused experts comes after `last`."""
    adapted = getattr(experts, "parametrizations", {})  # asking for such a weight would compute it
    names = [name for name in FUSED if name in experts._parameters or name in adapted]
    return names[(names.index(last) + 1) % len(names)] if last in names else names[0]


def _dequantisation() -> list[Any]:
    """Return bitsandbytes' operator that widens 4-bit weights, if bitsandbytes is loaded."""
    if "bitsandbytes" not in sys.modules:
        return []
    return [torch.ops.bitsandbytes.dequantize_4bit]
