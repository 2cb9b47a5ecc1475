"""The model as it was before tuning, which preference losses compare with.

Where adapters train, it is the model itself with its adapters switched off; else a frozen
copy of it lies in memory too.
"""

import copy
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from finegauge.measure.phases.token_losses import token_losses
from finegauge.measure.subject import Subject


class Reference:
    """Answers as `subject` did when this was made."""

    def __init__(self, subject: Subject) -> None:
        """Copy the subject's model where switching adapters off will not do; before any training."""
        self.copied = not subject.run.trains_adapters
        model = frozen(copy.deepcopy(subject.model)) if self.copied else subject.model
        self.subject = subject._replace(model=model)

    @property
    def models(self) -> dict[str, Any]:
        """Return what lies in memory beside the subject, by role."""
        return {"reference": self.subject.model} if self.copied else {}

    @torch.no_grad()
    def token_losses(self, inputs: dict[str, Any], labels: torch.Tensor, *, chunked: bool) -> torch.Tensor:
        """Return the loss of every next token, [B, S], without gradients."""
        with self._untuned():
            return token_losses(self.subject, inputs, labels, chunked=chunked)

    def _untuned(self) -> AbstractContextManager[Any]:
        """Return the surroundings in which the model is the reference."""
        adapters_off: AbstractContextManager[Any] = (
            nullcontext() if self.copied else self.subject.model.disable_adapter()
        )
        return adapters_off


def frozen(model: Any) -> Any:
    """Return `model` out of training, with no parameter that trains."""
    return model.eval().requires_grad_(False)
