"""What training phases share: inputs, token losses, the optimizer step, the reference model."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch.nn.functional import cross_entropy, pad
from torch.utils.checkpoint import checkpoint

from finegauge.errors import UnsupportedError
from finegauge.measurement.batches import Batch, batches
from finegauge.measurement.models.build import autocasting
from finegauge.measurement.models.optimizers import optimizer_of
from finegauge.measurement.options import Options
from finegauge.measurement.subject import ALONE, Alone, Subject
from finegauge.run.run import Run

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


MAX_GRADIENT_NORM = 1.0  # the default of transformers' and TRL's trainers


class Update:
    """An optimizer with what stands around it in a trainer."""

    def __init__(
        self,
        run: Run,
        optimizer: Any,
        trained: Sequence[torch.nn.Parameter],
        device: torch.device,
        division: Alone = ALONE,
    ) -> None:
        """Prepare the updates of `trained`; fp16 over fp32 weights gets a loss scale."""
        self.division = division
        self.run, self.optimizer, self.trained, self.device = run, optimizer, trained, device
        self.clips = run.optimizer_implementation != "in_backward"  # else gradients are gone by then
        scales = run.autocast == "fp16" and all(p.dtype == torch.float32 for p in trained)
        self.scaler = torch.amp.GradScaler(device.type, enabled=scales)

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the precision that forward passes run under."""
        return autocasting(self.run, self.device)

    def backward(self, loss: torch.Tensor) -> None:
        """Take gradients of `loss`, added to those that are there."""
        self.division.backward(self.scaler.scale(loss))

    def step(self) -> None:
        """Clip the gradients to a norm of 1, update the parameters, drop the gradients."""
        self.division.step(self.trained, self._update)

    def _update(self) -> None:
        """Do so in this process."""
        if self.clips:
            self.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.trained, MAX_GRADIENT_NORM)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)


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


class Trained(NamedTuple):
    """A model where it runs, and the optimizer that trains it."""

    subject: Subject
    optimizer: Any


class Here:
    """This process holds every model whole."""

    rank = 0

    def trained(self, *subjects: Subject) -> tuple[Trained, ...]:
        """Return `subjects`, all of which train in one phase, with one optimizer for all of them."""
        parameters = chain.from_iterable(subject.trained for subject in subjects)
        optimizer = optimizer_of(subjects[0].run, parameters)
        return tuple(Trained(subject, optimizer) for subject in subjects)

    def frozen(self, subject: Subject) -> Subject:
        """Return a model that is only asked."""
        return subject

    def data(self, run: Run, options: Options) -> Iterator[Batch]:
        """Return the batches of `run` for this process."""
        vocabulary = int(run.config["vocab_size"])
        return batches(run, vocabulary, options.device, options.seed, rank=self.rank)
