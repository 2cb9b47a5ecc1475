"""How the passes of a model run: in this process alone, or divided among several.

A phase says what a micro-batch computes and when the optimizer steps; whoever divides the model
among processes (measure/ranks) stands between, so that one phase runs under all of them.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch


class Alone:
    """One process does everything."""

    def forward(self, function: Callable[..., torch.Tensor], *given: Any) -> torch.Tensor:
        """Return `function(*given)`, the forward pass of one micro-batch."""
        return function(*given)

    def infer(self, function: Callable[..., Any], *given: Any) -> Any:
        """Return `function(*given)`, forward passes without gradients; nothing stays gathered after them."""
        return function(*given)

    def backward(self, loss: torch.Tensor) -> None:
        """Take gradients of `loss`, added to those that are there."""
        loss.backward()

    def step(self, trained: Iterable[torch.nn.Parameter], update: Callable[[], None]) -> None:
        """End a step of the optimizer: `update` clips the gradients of `trained` and uses them up."""
        del trained
        update()


ALONE = Alone()
