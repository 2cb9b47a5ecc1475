r"""Group relative policy optimisation: several answers to each prompt, judged against each other.

The advantage of an answer is its reward less its group's mean, over the group's standard
deviation; there is no value model. With one update per rollout the probability ratio is 1
where its gradient is taken, and a term keeps the policy near its reference:

$$ L = -A \frac{p}{[p]} + \beta (q/p - \log(q/p) - 1) $$

[Shao et al. 2024, arXiv:2402.03300, eq. 3 and 4]
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch

from finegauge.measure.batches import Batch
from finegauge.measure.phases.judges import Judge
from finegauge.measure.phases.reference import Reference
from finegauge.measure.phases.token_losses import refuse_fused, token_losses
from finegauge.measure.phases.update import Update
from finegauge.measure.phases.writing import Answers, Prompts, write
from finegauge.measure.subject import Clock, StepFacts, Subject

KL_COEFFICIENT = 0.04  # the paper's


class Judged(NamedTuple):
    """Some answers, what the reference thinks of their tokens, and how they did in their group."""

    answers: Answers
    reference_log_probs: torch.Tensor  # [B, N]
    advantages: torch.Tensor  # [B]


class GroupRelativePolicyOptimisation:
    """Trains a policy on what it writes and a judge says of it, group by group."""

    def __init__(
        self, policy: Subject, reference: Reference, judge: Judge, optimizer: Any, data: Iterator[Batch]
    ) -> None:
        """Train `policy` on `data`: batches of as many prompts as a step takes."""
        refuse_fused(policy.run)
        self.subject, self.judge, self.optimizer, self.data = policy, judge, optimizer, data
        self.reference = reference
        self.models: Mapping[str, Any] = {"policy": policy.model, **self.reference.models}
        self.update = Update(policy.run, optimizer, policy.trained, policy.device, policy.division)
        self.chunked = policy.run.loss == "chunked"
        self.divergence = torch.zeros(())  # from the reference, in the last micro-batch

    def step(self, clock: Clock) -> StepFacts:
        """Take one rollout and its update; the details say the mean reward and divergence."""
        run = self.subject.run
        with clock.stage("data"):
            prompts = Prompts.of(next(self.data), repeats=run.num_generations)
        with clock.stage("generation"), self.update.autocast():
            answers = write(self.subject, prompts, run.max_new_tokens)
        with clock.stage("scoring"), self.update.autocast():
            rewards = self.judge(answers).float()
            advantages = group_advantages(rewards, run.num_generations).split(run.micro_batch_size)
            parts = answers.split(run.micro_batch_size)
            judged = [self._judged(*pair) for pair in zip(parts, advantages, strict=True)]
        loss = divergence = 0.0
        for part in judged:
            with clock.stage("forward"), self.update.autocast():
                part_loss = self.subject.division.forward(self._loss, part)
            with clock.stage("backward"):
                self.update.backward(part_loss / len(judged))
            loss += float(part_loss.detach()) / len(judged)
            divergence += float(self.divergence) / len(judged)
        with clock.stage("optimizer"):
            self.update.step()
        details = {"reward": float(rewards.mean()), "kl": divergence}
        return StepFacts(answers.ids.numel(), len(answers.ids), loss, float(answers.mask.sum()), details)

    def _judged(self, answers: Answers, advantages: torch.Tensor) -> Judged:
        """Return some answers with the reference's log-probabilities of them."""
        losses = self.reference.token_losses(answers.inputs, answers.labels, chunked=self.chunked)
        return Judged(answers, -answers.of_answers(losses), advantages)

    def _loss(self, part: Judged) -> torch.Tensor:
        """Return the loss over one micro-batch; note the divergence from the reference in it."""
        answers = part.answers
        losses = token_losses(self.subject, answers.inputs, answers.labels, chunked=self.chunked)
        log_probs = -answers.of_answers(losses)
        ratio = (log_probs - log_probs.detach()).exp()
        behind = part.reference_log_probs - log_probs
        divergence = (behind.exp() - behind - 1.0).mean()
        self.divergence = divergence.detach()
        return -(ratio * part.advantages[:, None]).mean() + KL_COEFFICIENT * divergence


def group_advantages(rewards: torch.Tensor, group: int) -> torch.Tensor:
    """Return how far each reward lies from its group's mean, in standard deviations of the group."""
    groups = rewards.view(-1, group)
    spread = groups.std(1, keepdim=True) + 1e-4
    return ((groups - groups.mean(1, keepdim=True)) / spread).flatten()
