r"""Direct preference optimisation: raise the likelihood of the better answer over the worse one.

The reward of a sequence is $\beta(\log p - \log p_{reference})$ [Rafailov et al. 2023,
eq. 7, arXiv:2305.18290], summed over all its tokens.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from finegauge.measure.batches import Batch
from finegauge.measure.phases.inputs import Pairs
from finegauge.measure.phases.pairwise import Pairwise
from finegauge.measure.phases.reference import Reference
from finegauge.measure.phases.token_losses import refuse_fused, token_losses
from finegauge.measure.phases.update import Update
from finegauge.measure.subject import Clock, Subject

BETA = 0.1  # the paper's, and TRL's default


def preference_optimisation(
    subject: Subject, reference: Reference, optimizer: Any, data: Iterator[Batch]
) -> Pairwise:
    """Return the phase that trains `subject` on pairs of batches against `reference`."""
    refuse_fused(subject.run)
    chunked = subject.run.loss == "chunked"

    def rewards(batch: Pairs, clock: Clock, update: Update) -> torch.Tensor:
        with clock.stage("scoring"), update.autocast():
            before = reference.token_losses(batch.inputs, batch.labels, chunked=chunked).sum(1)
        with clock.stage("forward"), update.autocast():
            after = subject.division.forward(
                partial(token_losses, chunked=chunked), subject, batch.inputs, batch.labels
            )
            return BETA * (before - after.sum(1))

    return Pairwise(subject, {"policy": subject.model, **reference.models}, optimizer, data, rewards)
