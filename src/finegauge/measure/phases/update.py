"""From losses to an optimizer step: autocast, loss scaling, clipping, the update."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from finegauge.measure.division import ALONE, Alone
from finegauge.measure.models import autocasting
from finegauge.workload.run import Run

MAX_GRADIENT_NORM = 1.0  # the default of transformers' and TRL's trainers


class Update:
    """An optimizer with what stands around it in a trainer."""

    def __init__(
        self,
        run: Run,
        optimizer: Any,
        trained: Sequence[torch.nn.Parameter],
        device: torch.device,
        division: Alone = ALONE,
    ) -> None:
        """Prepare the updates of `trained`; fp16 over fp32 weights gets a loss scale."""
        self.division = division
        self.run, self.optimizer, self.trained, self.device = run, optimizer, trained, device
        self.clips = run.optimizer_implementation != "in_backward"  # else gradients are gone by then
        scales = run.autocast == "fp16" and all(p.dtype == torch.float32 for p in trained)
        self.scaler = torch.amp.GradScaler(device.type, enabled=scales)

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the precision that forward passes run under."""
        return autocasting(self.run, self.device)

    def backward(self, loss: torch.Tensor) -> None:
        """Take gradients of `loss`, added to those that are there."""
        self.division.backward(self.scaler.scale(loss))

    def step(self) -> None:
        """Clip the gradients to a norm of 1, update the parameters, drop the gradients."""
        self.division.step(self.trained, self._update)

    def _update(self) -> None:
        """Do so in this process."""
        if self.clips:
            self.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.trained, MAX_GRADIENT_NORM)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
