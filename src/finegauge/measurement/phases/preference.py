"""One step over pairs of sequences, of which the first should have the higher reward.

    loss = -log sigmoid(reward(chosen) - reward(rejected))

Both of a pair go through the model together; a pair is one sample. What the reward is,
a reward model's scalar or a likelihood ratio, is the phase's.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch.nn.functional import logsigmoid

from finegauge.measurement.batches import Batch
from finegauge.measurement.phases.training import Pairs, Reference, Update, refuse_fused, token_losses
from finegauge.measurement.subject import Clock, StepFacts, Subject

Rewards = Callable[[Pairs, Clock, Update], torch.Tensor]  # [2B], telling the clock its stages


class Pairwise:
    """Trains on pairs until the preferred ones have the higher reward."""

    def __init__(
        self,
        subject: Subject,
        models: Mapping[str, Any],
        optimizer: Any,
        data: Iterator[Batch],
        rewards: Rewards,
    ) -> None:
        """Train `subject` by `rewards`; of every two batches of `data` the first is the preferred one."""
        self.subject, self.models, self.optimizer = subject, models, optimizer
        self.data, self.rewards = data, rewards
        self.update = Update(subject.run, optimizer, subject.trained, subject.device, subject.division)

    def step(self, clock: Clock) -> StepFacts:
        """Take one optimizer step; the details say how often, and by how much, the preferred one wins."""
        tokens = real_tokens = pairs = loss_mean = margin_mean = wins = 0.0
        parts = self.subject.run.gradient_accumulation_steps
        for _ in range(parts):
            with clock.stage("data"):
                batch = Pairs.next(self.data)
            rewards = self.rewards(batch, clock, self.update)
            with clock.stage("forward"):
                chosen, rejected = rewards.chunk(2)
                loss = -logsigmoid(chosen - rejected).mean()
            with clock.stage("backward"):
                self.update.backward(loss / parts)
            margin = (chosen - rejected).detach()
            loss_mean += float(loss.detach()) / parts
            margin_mean += float(margin.mean()) / parts
            wins += float((margin > 0).float().mean()) / parts
            tokens, real_tokens = tokens + batch.tokens, real_tokens + batch.real_tokens
            pairs += batch.pairs
        with clock.stage("optimizer"):
            self.update.step()
        return StepFacts(tokens, pairs, loss_mean, real_tokens, {"accuracy": wins, "margin": margin_mean})


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
