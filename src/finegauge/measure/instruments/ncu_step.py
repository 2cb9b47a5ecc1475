"""The process that Nsight Compute watches: one step, with one layer of it in a range.

    ncu … python -m finegauge.measure.instruments.ncu_step TRIAL.json

The layer in the middle stands for all; its forward pass, and its backward pass by markers
on what goes in and comes out, lie in a range that is open across threads, since autograd
works in a thread of its own.
"""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from finegauge.measure.instruments.ncu import RANGE
from finegauge.measure.options import Options


class LayerRange:
    """Opens and closes one range around the forward and the backward pass of a layer."""

    def __init__(self, nvtx: Any) -> None:
        """Mark with `nvtx`: torch.cuda.nvtx."""
        self._nvtx = nvtx
        self._open: int | None = None

    def begin(self) -> None:
        """Open the range, unless it is open."""
        if self._open is None:
            self._open = self._nvtx.range_start(RANGE)

    def end(self) -> None:
        """Close the range, if it is open."""
        if self._open is not None:
            self._nvtx.range_end(self._open)
            self._open = None

    @contextmanager
    def around(self, layer: torch.nn.Module) -> Iterator[None]:
        """Mark every pass through `layer`."""

        def before(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
            """Close the backward range where the gradient of the input is ready; open the forward one."""
            marked = tuple(_marked(value, self.end) for value in args)
            named = {key: _marked(value, self.end) for key, value in kwargs.items()}
            self.begin()
            return marked, named

        def after(_: Any, __: Any, output: Any) -> Any:
            """Close the forward range; open the backward one where the gradient of the output arrives."""
            self.end()
            if isinstance(output, tuple):
                return tuple(_marked(value, self.begin) for value in output)
            return _marked(output, self.begin)

        handles = [
            layer.register_forward_pre_hook(before, with_kwargs=True),
            layer.register_forward_hook(after),
        ]
        try:
            yield
        finally:
            self.end()
            for handle in handles:
                handle.remove()


class _Mark(torch.autograd.Function):
    """The identity, which calls back when the gradient passes."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, call: Any) -> torch.Tensor:
        """Return the value as it is."""
        ctx.call = call
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        """Call back, and pass the gradient on."""
        ctx.call()
        return gradient, None


def _marked(value: Any, call: Any) -> Any:
    """Return a tensor that calls back when its gradient passes; anything else as it is."""
    if isinstance(value, torch.Tensor) and value.requires_grad:
        return _Mark.apply(value, call)
    return value


def middle_layer(model: torch.nn.Module) -> torch.nn.Module:
    """Return the layer in the middle of a model: of its longest list of modules."""
    lists = [module for module in model.modules() if isinstance(module, torch.nn.ModuleList)]
    layers = max(lists, key=lambda found: (sum(p.numel() for p in found.parameters()), len(found)))
    middle: torch.nn.Module = layers[len(layers) // 2]
    return middle


def main() -> None:
    """Take the warm-up steps, then one step with the profiler let in."""
    from finegauge.measure.instruments.stage_clock import NoClock
    from finegauge.measure.phases import phase_of
    from finegauge.store.document import run_of

    trial = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    run, options = run_of(trial["run"]), Options(**trial["options"])
    device = torch.device(options.device)
    torch.manual_seed(options.seed)
    phase = phase_of(run, options, device)
    for _ in range(max(1, options.warmup_steps)):
        phase.step(NoClock())
    torch.cuda.synchronize(device)
    with LayerRange(torch.cuda.nvtx).around(middle_layer(phase.subject.model)):
        torch.cuda.profiler.start()
        phase.step(NoClock())
        torch.cuda.synchronize(device)
        torch.cuda.profiler.stop()


if __name__ == "__main__":
    main()
