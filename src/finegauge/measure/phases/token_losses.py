"""The negative log-probability of every next token, with whole logits or chunk by chunk.

Whole logits are what transformers computes: [B, S, V] values, their fp32 copy and their
log-softmax. In chunks, the head runs on 256 tokens at a time, and again in backward.
"""

from typing import Any

import torch
from torch.nn.functional import cross_entropy, pad
from torch.utils.checkpoint import checkpoint

from finegauge.errors import UnsupportedError
from finegauge.measure.subject import Subject
from finegauge.workload.run import Run

CHUNK_TOKENS = 256
IGNORED = -100


def refuse_fused(run: Run) -> None:
    """Refuse a loss that is a GPU kernel of another package."""
    if run.loss == "fused":
        raise UnsupportedError(
            "loss=fused is a Triton kernel that is not measured; use loss=chunked or full_logits."
        )


def token_losses(
    subject: Subject, inputs: dict[str, Any], labels: torch.Tensor, *, chunked: bool
) -> torch.Tensor:
    """Return the loss of predicting each token's successor, shape [B, S], fp32.

    Args:
        subject: The model.
        inputs: Its arguments: input_ids, attention_mask, position_ids.
        labels: Token ids, -100 where no loss is taken; the loss there is 0.
        chunked: Never hold all logits at once.
    """
    targets = pad(labels, (0, 1), value=IGNORED)[:, 1:]
    if chunked:
        hidden = decoder_of(subject)(**inputs, use_cache=False).last_hidden_state
        return _in_chunks(subject.base.get_output_embeddings(), hidden, targets)
    logits = subject.model(**inputs, use_cache=False).logits
    return losses_of(logits.flatten(0, 1), targets.flatten()).view_as(targets)


def decoder_of(subject: Subject) -> Any:
    """Return the model without its head, adapters included."""
    return subject.base.get_decoder()


def losses_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the loss of each row of `logits`, computed in fp32."""
    return cross_entropy(logits.float(), targets, ignore_index=IGNORED, reduction="none")


def _in_chunks(head: Any, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the losses, with the logits of a chunk computed again in backward."""
    states, wanted = hidden.flatten(0, 1).split(CHUNK_TOKENS), targets.flatten().split(CHUNK_TOKENS)

    def part(some: torch.Tensor, of: torch.Tensor) -> torch.Tensor:
        return losses_of(head(some), of)

    found = [checkpoint(part, *pair, use_reentrant=False) for pair in zip(states, wanted, strict=True)]
    return torch.cat(found).view_as(targets)
