"""Batches as the arguments of a model, and two of them as one."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch.nn.functional import pad

from finegauge.measure.batches import Batch
from finegauge.measure.phases.token_losses import IGNORED


class Pairs(NamedTuple):
    """Preferred sequences and, in the second half of the rows, those that are not."""

    inputs: dict[str, Any]
    labels: torch.Tensor
    pairs: float
    tokens: float
    real_tokens: float

    @classmethod
    def next(cls, data: Iterator[Batch]) -> "Pairs":
        """Return the next two batches, the first of them preferred, padded to the longer."""
        chosen, rejected = next(data), next(data)
        length = max(chosen.input_ids.shape[1], rejected.input_ids.shape[1])
        ids = torch.cat([_padded(batch.input_ids, length, 0) for batch in (chosen, rejected)])
        labels = torch.cat([_padded(batch.labels, length, IGNORED) for batch in (chosen, rejected)])
        mask = torch.cat([_padded(mask_of(batch), length, 0) for batch in (chosen, rejected)])
        inputs = {"input_ids": ids} if bool(mask.all()) else {"input_ids": ids, "attention_mask": mask}
        return cls(inputs, labels, chosen.samples, ids.numel(), chosen.real_tokens + rejected.real_tokens)


def inputs_of(batch: Batch) -> dict[str, Any]:
    """Return the arguments of a forward pass; what nothing needs is left out."""
    known = {
        "input_ids": batch.input_ids,
        "attention_mask": batch.attention_mask,
        "position_ids": batch.position_ids,
    }
    return {name: value for name, value in known.items() if value is not None}


def mask_of(batch: Batch) -> torch.Tensor:
    """Return which tokens of a batch are real, as integers."""
    return torch.ones_like(batch.input_ids) if batch.attention_mask is None else batch.attention_mask


def _padded(rows: torch.Tensor, length: int, value: int) -> torch.Tensor:
    """Return `rows` filled up on the right to `length`."""
    return pad(rows, (0, length - rows.shape[1]), value=value)
