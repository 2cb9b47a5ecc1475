"""Seconds of what happens once a step: the optimizer's update, gradient clipping; and of moving bytes.

Several models' worth of parameters are updated in turn, so that none finds its own in cache.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from finegauge.measure.micro.bench import Bench
from finegauge.measure.micro.chain import CHAIN_BYTES, MAX_USES, REPEATS, Timing


def update_timing(bench: Bench, operator: str, *, params: int, tensors: int) -> Timing:
    """Return the seconds of one update of `params` parameters in `tensors` tensors of equal size.

    Args:
        bench: Where.
        operator: adamw_fused, adamw_foreach, adamw_loop or clip.
        params: In all tensors together.
        tensors: How many.
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
    """Return `params` parameters in tensors of equal size, with gradients."""
    parameters = [torch.nn.Parameter(bench.weight(max(1, params // tensors))) for _ in range(tensors)]
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, 1e-3)
    return parameters


def _call(operator: str, parameters: list[Any]) -> Callable[[], Any]:
    """Return the update as a call."""
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
