"""What is measured: the real model of a run, its optimizer, and how to take one step of it."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import torch

from finegauge.measure.division import ALONE, Alone
from finegauge.workload.run import Run


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
