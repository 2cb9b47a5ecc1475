"""The model as it was before tuning, which preference losses compare with.

Where adapters train, it is the model itself with its adapters switched off; else a frozen
copy of it lies in memory too.
"""

import copy
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch

from finegauge.measure.phases.token_losses import token_losses
from finegauge.measure.subject import Subject


class Reference(NamedTuple):
    """Answers as a policy did before its training."""

    subject: Subject  # a frozen copy, or the policy with its adapters
    copied: bool

    @property
    def models(self) -> dict[str, Any]:
        """Return what lies in memory beside the policy, by role."""
        return {"reference": self.subject.model} if self.copied else {}

    def token_losses(self, inputs: dict[str, Any], labels: torch.Tensor, *, chunked: bool) -> torch.Tensor:
        """Return the loss of every next token, [B, S], without gradients."""
        with torch.no_grad(), self._untuned():
            found: torch.Tensor = self.subject.division.infer(
                partial(token_losses, chunked=chunked), self.subject, inputs, labels
            )
            return found

    def _untuned(self) -> AbstractContextManager[Any]:
        """Return the surroundings in which the model is the reference."""
        adapters_off: AbstractContextManager[Any] = (
            nullcontext() if self.copied else self.subject.model.disable_adapter()
        )
        return adapters_off


def copied_before(policy: Subject) -> Subject | None:
    """Return a frozen copy of `policy`, before it trains; None where switching adapters off will do."""
    if policy.run.trains_adapters:
        return None
    return policy._replace(model=frozen(copy.deepcopy(policy.model)))


def reference_of(policy: Subject, before: Subject | None) -> Reference:
    """Return the reference that `policy` is compared with: the copy of `before`, or itself."""
    return Reference(policy, copied=False) if before is None else Reference(before, copied=True)


def frozen(model: Any) -> Any:
    """Return `model` out of training, with no parameter that trains."""
    return model.eval().requires_grad_(False)
