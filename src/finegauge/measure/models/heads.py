"""Models that return one number per token instead of a distribution over words: reward and value.

The head of the language model is replaced by a linear to one value that always trains;
everything below stays as the run says, adapters and quantisation included. What a family
does to its logits (a scale, a soft cap) it does to the values too.
"""

import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from finegauge.measure.models.build import base_model, checked, finish, seeded
from finegauge.measure.subject import Subject
from finegauge.workload.run import Run


class Scores(NamedTuple):
    """What a scalar model returns."""

    scores: Tensor  # [batch, length]; of a reward model the one of the last real token counts


class ScalarModel(nn.Module):
    """A model whose head has one output."""

    def __init__(self, model: Any) -> None:
        """Wrap a language model whose head is scalar, or PEFT's wrapper around one."""
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **kwargs: Any) -> Scores:
        """Return a score for every token."""
        logits = self.model(
            input_ids=input_ids, attention_mask=attention_mask, use_cache=False, **kwargs
        ).logits
        return Scores(logits.squeeze(-1))

    def get_base_model(self) -> Any:
        """Return the transformers model inside."""
        return Subject(None, self.model, None).base  # type: ignore[arg-type]


def scalar_subject_of(run: Run, device: torch.device | str, *, seed: int = 0) -> Subject:
    """Return the model of `run` with a scalar head, which trains whatever else does.

    Raises: UnsupportedError, FieldError as `subject_of`.
    """
    place = torch.device(device)
    checked(run, place)
    with warnings.catch_warnings(), seeded(seed, place):
        warnings.simplefilter("ignore")
        model, notes = base_model(run, place, scalar=True)
        subject = finish(model, run, place, notes)
        model.get_output_embeddings().requires_grad_(True)
    return subject._replace(model=ScalarModel(subject.model))
