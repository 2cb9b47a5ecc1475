"""Reinforcement learning: GRPO and PPO."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch

from finegauge.measurement.batches import Batch
from finegauge.measurement.phases.generation import Answers, Prompts, inference, write
from finegauge.measurement.phases.preference import last_scores
from finegauge.measurement.phases.training import Reference, Trained, Update, refuse_fused, token_losses
from finegauge.measurement.subject import Clock, StepFacts, Subject
from finegauge.run.phases import PPO_EPOCHS

Judge = Callable[[Answers], torch.Tensor]  # [B], fp32


def by_model(subject: Subject) -> Judge:
    """Return the judge whose reward is the scalar that a reward model gives the last token."""

    def judge(answers: Answers) -> torch.Tensor:
        with torch.no_grad():
            found: torch.Tensor = subject.division.infer(last_scores, subject, answers.inputs)
        return found

    return judge


def even_tokens(answers: Answers) -> torch.Tensor:
    """Return the share of even token ids: a rule that can be learnt and takes no time.

    It stands in for the checks of answers that runs with verifiable rewards bring along.
    """
    written = answers.ids[:, answers.prompt_length :]
    return (written % 2 == 0).float().mean(1)


GRPO_KL_COEFFICIENT = 0.04  # the paper's


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
        return -(ratio * part.advantages[:, None]).mean() + GRPO_KL_COEFFICIENT * divergence


def group_advantages(rewards: torch.Tensor, group: int) -> torch.Tensor:
    """Return how far each reward lies from its group's mean, in standard deviations of the group."""
    groups = rewards.view(-1, group)
    spread = groups.std(1, keepdim=True) + 1e-4
    return ((groups - groups.mean(1, keepdim=True)) / spread).flatten()


PPO_KL_COEFFICIENT = 0.05
CLIP_RATIO, CLIP_VALUE = 0.2, 0.2
VALUE_COEFFICIENT = 0.1
DISCOUNT, LAMBDA = 1.0, 0.95


class Rollout(NamedTuple):
    """Answers with all that the updates need to know of them, each [B, N]."""

    answers: Answers
    log_probs: torch.Tensor
    values: torch.Tensor
    advantages: torch.Tensor
    rewards: torch.Tensor  # [B], of whole answers
    kl: torch.Tensor  # [B]


class ProximalPolicyOptimisation:
    """Trains a policy and a value model on what the policy writes and a judge says of it."""

    def __init__(
        self,
        policy: Trained,
        value: Trained,
        reference: Reference,
        judge: Judge,
        data: Iterator[Batch],
        *,
        others: Mapping[str, Any] | None = None,
    ) -> None:
        """Train `policy` on the prompts of `data`.

        Args:
            policy: Writes the answers.
            value: A model with a scalar head; expects the reward to come at every token. Its
                optimizer may be the policy's, and is then of the parameters of both.
            reference: What the policy was.
            judge: Says how good an answer is.
            data: Batches of as many prompts as a step takes.
            others: Models in memory beside these, by role: the judge's.
        """
        self.subject, self.optimizer = policy
        self.value, self.reference, self.judge, self.data = value.subject, reference, judge, data
        refuse_fused(self.subject.run)
        self.models: Mapping[str, Any] = {
            "policy": self.subject.model,
            "value": self.value.model,
            **reference.models,
            **(others or {}),
        }
        self.update, self.value_update = _updates(policy, value)
        self.chunked = self.subject.run.loss == "chunked"

    def step(self, clock: Clock) -> StepFacts:
        """Take one rollout and its updates; the details say the mean reward and divergence."""
        run = self.subject.run
        with clock.stage("data"):
            prompts = Prompts.of(next(self.data))
        with clock.stage("generation"), self.update.autocast():
            answers = write(self.subject, prompts, run.max_new_tokens)
        with clock.stage("scoring"), self.update.autocast():
            rollouts = [self.score(part) for part in answers.split(run.micro_batch_size)]
        loss = 0.0
        for _ in range(PPO_EPOCHS):
            loss = sum(self._learn(rollout, clock, len(rollouts)) for rollout in rollouts)
            with clock.stage("optimizer"):
                for update in dict.fromkeys((self.update, self.value_update)):
                    update.step()
        details = {
            "reward": float(torch.cat([rollout.rewards for rollout in rollouts]).mean()),
            "kl": float(torch.cat([rollout.kl for rollout in rollouts]).mean()),
        }
        return StepFacts(answers.ids.numel(), len(answers.ids), loss, float(answers.mask.sum()), details)

    def score(self, answers: Answers) -> Rollout:
        """Return what policy, reference, value model and judge say of `answers`."""
        inputs, labels = answers.inputs, answers.labels
        with inference(self.subject.model), inference(self.value.model):
            log_probs = self.subject.division.infer(self.log_probs, answers)
            before = -answers.of_answers(self.reference.token_losses(inputs, labels, chunked=self.chunked))
            values = self.value.division.infer(self.values, answers)
            rewards = self.judge(answers).float()
        by_token = -PPO_KL_COEFFICIENT * (log_probs - before)
        by_token[:, -1] += rewards
        advantages = generalised_advantages(by_token, values)
        return Rollout(answers, log_probs, values, advantages, rewards, (log_probs - before).sum(1))

    def log_probs(self, answers: Answers) -> torch.Tensor:
        """Return the policy's log-probability of every token of `answers`, [B, N]."""
        losses = token_losses(self.subject, answers.inputs, answers.labels, chunked=self.chunked)
        return -answers.of_answers(losses)

    def values(self, answers: Answers) -> torch.Tensor:
        """Return the reward that is expected before every token of `answers`, [B, N], fp32."""
        return answers.of_answers(self.value.model(**answers.inputs).scores.float())

    def _learn(self, rollout: Rollout, clock: Clock, parts: int) -> float:
        """Add the gradients of both losses over one micro-batch; return the policy's loss."""
        answers = rollout.answers
        with clock.stage("forward"), self.update.autocast():
            log_probs = self.subject.division.forward(self.log_probs, answers)
            policy_loss = clipped_policy_loss(log_probs, rollout)
        with clock.stage("backward"):
            self.update.backward(policy_loss / parts)
        with clock.stage("forward"), self.update.autocast():
            values = self.value.division.forward(self.values, answers)
            value_loss = VALUE_COEFFICIENT * clipped_value_loss(values, rollout)
        with clock.stage("backward"):
            self.value_update.backward(value_loss / parts)
        return float(policy_loss.detach()) / parts


def _updates(policy: Trained, value: Trained) -> tuple[Update, Update]:
    """Return how policy and value model are updated: together if by one optimizer."""
    run, device = policy.subject.run, policy.subject.device
    if policy.optimizer is value.optimizer:
        both = Update(run, policy.optimizer, [*policy.subject.trained, *value.subject.trained], device)
        return both, both
    ours, theirs = (
        Update(run, optimizer, subject.trained, device, subject.division)
        for subject, optimizer in (policy, value)
    )
    return ours, theirs


def generalised_advantages(rewards: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return the advantage of every token over what was expected before it, [B, N]  [1, eq. 16]."""
    advantages = torch.zeros_like(rewards)
    later = torch.zeros_like(rewards[:, 0])
    following = torch.zeros_like(later)
    for t in reversed(range(rewards.shape[1])):
        surprise = rewards[:, t] + DISCOUNT * following - values[:, t]
        later = surprise + DISCOUNT * LAMBDA * later
        advantages[:, t], following = later, values[:, t]
    return advantages


def clipped_policy_loss(log_probs: torch.Tensor, rollout: Rollout) -> torch.Tensor:
    """Return the policy's loss, whose gradient ends where the ratio leaves 1 ± 0.2  [2, eq. 7]."""
    advantages = rollout.advantages
    advantages = (advantages - advantages.mean()) / (advantages.std(unbiased=False) + 1e-8)
    ratio = (log_probs - rollout.log_probs).exp()
    clipped = ratio.clamp(1.0 - CLIP_RATIO, 1.0 + CLIP_RATIO)
    return -torch.minimum(ratio * advantages, clipped * advantages).mean()


def clipped_value_loss(values: torch.Tensor, rollout: Rollout) -> torch.Tensor:
    """Return half the squared error of the values, kept within 0.2 of what they were."""
    returns = rollout.advantages + rollout.values
    near = rollout.values + (values - rollout.values).clamp(-CLIP_VALUE, CLIP_VALUE)
    return 0.5 * torch.maximum((values - returns) ** 2, (near - returns) ** 2).mean()
