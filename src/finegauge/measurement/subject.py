"""What is measured: the real model of a run, its optimizer, and how to take one step of it."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import torch

from finegauge.run.run import Run


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


class Subject(NamedTuple):
    """A model with its weights on a device, ready to train."""

    run: Run
    model: Any  # torch.nn.Module; PEFT's wrapper where adapters train
    device: torch.device
    notes: tuple[str, ...] = ()  # what was built differently from what the run's words would suggest
    division: Alone = ALONE  # who runs its passes

    @property
    def base(self) -> Any:
        """Return the transformers model inside, without PEFT's wrapper."""
        return self.model.get_base_model() if hasattr(self.model, "get_base_model") else self.model

    @property
    def trained(self) -> list[torch.nn.Parameter]:
        """Return the parameters that train."""
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]


class Clock(Protocol):
    """Who is told which stage of a step the work belongs to."""

    def stage(self, name: str) -> AbstractContextManager[None]:
        """Count what runs inside as stage `name` of the step; stages do not nest."""
        ...


class Phase(Protocol):
    """One way of using a model: fine-tuning, a preference loss, reinforcement learning, serving.

    Stages are named as predictions name them: data, forward, backward, optimizer; and
    generation, scoring, prefill, decode where a phase has them.
    """

    subject: Subject  # the model whose layers are clocked
    models: Mapping[str, Any]  # every model in memory by role: policy, reference, reward, value
    optimizer: Any  # torch.optim.Optimizer; None where nothing trains

    def step(self, clock: Clock) -> "StepFacts":
        """Take one whole step: an optimizer step with its accumulation, or one served batch."""
        ...


class StepFacts(NamedTuple):
    """What one step worked on and what came out."""

    tokens: float  # computed, padding included
    sequences: float
    loss: float | None  # None where there is none
    real_tokens: float  # without padding
    details: Mapping[str, float] = {}  # e.g. ttft_s, time_per_output_token_s, reward, kl
