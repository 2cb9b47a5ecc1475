r"""Phases that take a loss on given sequences: SFT and pre-training, evaluation, reward model, DPO.

A reward model and DPO learn from pairs of sequences, of which the first should have the higher reward:

    loss = -log sigmoid(reward(chosen) - reward(rejected))

Both of a pair go through the model together; a pair is one sample. The reward of a sequence is the scalar at
its last token [1, eq. 1], in DPO $\beta(\log p - \log p_{reference})$ summed over all its tokens [2, eq. 7].

[1] Ouyang et al. 2022, arXiv:2203.02155   [2] Rafailov et al. 2023, arXiv:2305.18290
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch.nn.functional import logsigmoid, pad

from finegauge.measurement.batches import IGNORED, Batch
from finegauge.measurement.phases.training import (
    Reference,
    Update,
    inference,
    inputs_of,
    inputs_with,
    mask_of,
    refuse_fused,
    token_losses,
)
from finegauge.measurement.subject import Clock, StepFacts, Subject

BETA = 0.1  # the paper's, and TRL's default

# Of one micro-batch, in stages of the clock: its loss, or the rewards [2B] of its pairs
Forward = Callable[[Any, Clock, Update], torch.Tensor]


class Pairs(NamedTuple):
    """Preferred sequences and, in the second half of the rows, those that are not."""

    inputs: dict[str, Any]
    labels: torch.Tensor
    samples: float
    tokens: float
    real_tokens: float


class FineTuning:
    """Takes the loss of micro-batches, and optimizer steps if it has an optimizer."""

    def __init__(
        self,
        subject: Subject,
        optimizer: Any,
        data: Iterator[Batch],
        forward: Forward,
        *,
        pairs: bool = False,
        models: Mapping[str, Any] | None = None,
    ) -> None:
        """Train `subject` by `forward`: the loss of each of `data`, or the rewards of pairs of them."""
        self.subject, self.optimizer, self.data = subject, optimizer, data
        self.forward, self.pairs = forward, pairs
        self.models: Mapping[str, Any] = models or {"policy": subject.model}
        self.update = Update(subject.run, optimizer, subject.trained, subject.device, subject.strategy)

    def step(self, clock: Clock) -> StepFacts:
        """Take one step over the run's micro-batches."""
        totals: dict[str, float] = defaultdict(float)
        means: dict[str, float] = defaultdict(float)
        parts = self.subject.run.gradient_accumulation_steps
        for _ in range(parts):
            with clock.stage("data"):
                batch = _next_pair(self.data) if self.pairs else next(self.data)
            loss = self.forward(batch, clock, self.update)
            if self.pairs:
                with clock.stage("forward"):
                    chosen, rejected = loss.chunk(2)
                    loss = -logsigmoid(chosen - rejected).mean()
            if self.optimizer is not None:
                with clock.stage("backward"):
                    self.update.backward(loss / parts)
            means["loss"] += float(loss.detach()) / parts
            if self.pairs:  # by how much, and how often, the preferred one wins
                margin = (chosen - rejected).detach()
                means["accuracy"] += float((margin > 0).float().mean()) / parts
                means["margin"] += float(margin.mean()) / parts
            for name in ("tokens", "samples", "real_tokens"):
                totals[name] += getattr(batch, name)
        if self.optimizer is not None:
            with clock.stage("optimizer"):
                self.update.step()
        mean = means.pop("loss")
        return StepFacts(totals["tokens"], totals["samples"], mean, totals["real_tokens"], means)


def supervised(subject: Subject, optimizer: Any, data: Iterator[Batch]) -> FineTuning:
    """Return the phase that trains `subject` on the next token of every sequence of `data`."""
    refuse_fused(subject.run)

    def mean_loss(batch: Batch) -> torch.Tensor:
        if subject.run.loss == "full_logits":  # by the model's own code
            found: torch.Tensor = subject.model(**inputs_of(batch), labels=batch.labels, use_cache=False).loss
            return found
        return _mean_token_loss(subject, batch)

    def forward(batch: Batch, clock: Clock, update: Update) -> torch.Tensor:
        with clock.stage("forward"), update.autocast():
            return subject.strategy.forward(mean_loss, batch)

    return FineTuning(subject, optimizer, data, forward)


def evaluation(subject: Subject, data: Iterator[Batch]) -> FineTuning:
    """Return the phase that takes the loss of `data` without learning from it."""
    refuse_fused(subject.run)

    def forward(batch: Batch, clock: Clock, update: Update) -> torch.Tensor:
        with clock.stage("forward"), inference(subject.model), update.autocast():
            return _mean_token_loss(subject, batch)

    return FineTuning(subject, None, data, forward)


def _mean_token_loss(subject: Subject, batch: Batch) -> torch.Tensor:
    losses = token_losses(subject, inputs_of(batch), batch.labels)
    return losses.sum() / (batch.labels[:, 1:] != IGNORED).sum()


def reward_model(subject: Subject, optimizer: Any, data: Iterator[Batch]) -> FineTuning:
    """Return the phase that trains `subject`, a model with a scalar head, on pairs of batches."""

    def forward(batch: Pairs, clock: Clock, update: Update) -> torch.Tensor:
        with clock.stage("forward"), update.autocast():
            return subject.strategy.forward(last_scores, subject, batch.inputs)

    return FineTuning(subject, optimizer, data, forward, pairs=True, models={"reward": subject.model})


def preference_optimisation(
    subject: Subject, reference: Reference, optimizer: Any, data: Iterator[Batch]
) -> FineTuning:
    """Return DPO: the phase that trains `subject` on pairs of batches against `reference`."""
    refuse_fused(subject.run)

    def forward(batch: Pairs, clock: Clock, update: Update) -> torch.Tensor:
        with clock.stage("scoring"), update.autocast():
            before = reference.token_losses(batch.inputs, batch.labels).sum(1)
        with clock.stage("forward"), update.autocast():
            after = subject.strategy.forward(token_losses, subject, batch.inputs, batch.labels)
            return BETA * (before - after.sum(1))

    models = {"policy": subject.model, **reference.models}
    return FineTuning(subject, optimizer, data, forward, pairs=True, models=models)


def _next_pair(data: Iterator[Batch]) -> Pairs:
    chosen, rejected = next(data), next(data)
    length = max(chosen.input_ids.shape[1], rejected.input_ids.shape[1])

    def joined(of: Callable[[Batch], torch.Tensor], filler: int) -> torch.Tensor:
        rows = [of(batch) for batch in (chosen, rejected)]
        return torch.cat([pad(some, (0, length - some.shape[1]), value=filler) for some in rows])

    ids = joined(lambda batch: batch.input_ids, 0)
    labels = joined(lambda batch: batch.labels, IGNORED)
    inputs = inputs_with(ids, joined(mask_of, 0))
    return Pairs(inputs, labels, chosen.samples, ids.numel(), chosen.real_tokens + rejected.real_tokens)


def last_scores(subject: Subject, inputs: dict[str, Any]) -> torch.Tensor:
    """Return the scalar at the last real token of every row, fp32."""
    scores: torch.Tensor = subject.model(**inputs).scores.float()
    mask = inputs.get("attention_mask")
    if mask is None:
        return scores[:, -1]
    positions = torch.arange(mask.shape[1], device=mask.device)
    last = (positions * mask).argmax(1)
    return scores.gather(1, last[:, None]).squeeze(1)
