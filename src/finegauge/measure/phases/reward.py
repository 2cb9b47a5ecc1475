"""A reward model: which of two answers is better.

The reward of a sequence is the scalar at its last token.
[Ouyang et al. 2022, eq. 1, arXiv:2203.02155]
"""

from collections.abc import Iterator
from typing import Any

import torch

from finegauge.measure.batches import Batch
from finegauge.measure.phases.inputs import Pairs
from finegauge.measure.phases.pairwise import Pairwise
from finegauge.measure.phases.update import Update
from finegauge.measure.subject import Clock, Subject


def reward_model(subject: Subject, optimizer: Any, data: Iterator[Batch]) -> Pairwise:
    """Return the phase that trains `subject`, a model with a scalar head, on pairs of batches."""

    def rewards(batch: Pairs, clock: Clock, update: Update) -> torch.Tensor:
        with clock.stage("forward"), update.autocast():
            return subject.division.forward(last_scores, subject, batch.inputs)

    return Pairwise(subject, {"reward": subject.model}, optimizer, data, rewards)


def last_scores(subject: Subject, inputs: dict[str, Any]) -> torch.Tensor:
    """Return the scalar at the last real token of every row, fp32."""
    scores = subject.model(**inputs).scores.float()
    mask = inputs.get("attention_mask")
    if mask is None:
        found: torch.Tensor = scores[:, -1]
        return found
    positions = torch.arange(mask.shape[1], device=mask.device)
    last = (positions * mask).argmax(1)
    found = scores.gather(1, last[:, None]).squeeze(1)
    return found
