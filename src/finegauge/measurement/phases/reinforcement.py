r"""Reinforcement learning from generated completions: PPO and GRPO.

PPO: a step asks the policy for completions (generation), lets policy, reference, value and reward model score
them (scoring), and updates policy and value model in `ppo_epochs` passes: each token's reward is

$$ r_t = -\beta(\log p - \log p_{reference}) + [t = last] R $$

advantages are generalised [1], both losses are clipped [2]. Policy and value model alternate, so only one of
them holds activations at a time; in one process one optimizer serves both, on several each has its own. The
constants are the defaults of TRL's last PPO trainer.

GRPO: several completions of each prompt, without a value model. The advantage of one is its reward less its
group's mean, over the group's standard deviation, and a term keeps the policy near its reference [3, eq. 3
and 4]; with one update per rollout the probability ratio is 1 where its gradient is taken, with several the
policy's own probabilities $p_0$ are taken before them:

$$ L = -A \frac{p}{p_0} + \beta (q/p - \log(q/p) - 1) $$

[1] Schulman et al. 2016, arXiv:1506.02438   [2] Schulman et al. 2017, arXiv:1707.06347
[3] Shao et al. 2024, arXiv:2402.03300   [4] Ouyang et al. 2022, arXiv:2203.02155
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import torch

from finegauge.measurement.batches import Batch
from finegauge.measurement.phases.fine_tuning import last_scores
from finegauge.measurement.phases.generation import Completions, Prompts, generate
from finegauge.measurement.phases.training import Reference, Update, inference, refuse_fused, token_losses
from finegauge.measurement.subject import Clock, StepFacts, Subject, Trained
from finegauge.run.phases import num_updates
from finegauge.run.run import Run

PPO_KL_COEFFICIENT = 0.05
GRPO_KL_COEFFICIENT = 0.04  # the paper's
CLIP_RATIO, CLIP_VALUE = 0.2, 0.2
VALUE_COEFFICIENT = 0.1
DISCOUNT, LAMBDA = 1.0, 0.95

Part = TypeVar("Part")
RewardFunction = Callable[[Completions], torch.Tensor]  # [B], fp32


def reward_by_model(subject: Subject) -> RewardFunction:
    """Return the reward that is the scalar of a reward model at the last token."""

    def reward(completions: Completions) -> torch.Tensor:
        with torch.no_grad():
            found: torch.Tensor = subject.strategy.infer(last_scores, subject, completions.inputs)
        return found

    return reward


def even_token_reward(completions: Completions) -> torch.Tensor:
    """Return the share of even token ids: a rule that can be learnt and takes no time.

    It stands in for the checks of completions that runs with verifiable rewards bring along.
    """
    generated = completions.ids[:, completions.prompt_length :]
    return (generated % 2 == 0).float().mean(1)


def _log_probs(subject: Subject, completions: Completions) -> torch.Tensor:
    return -completions.select(token_losses(subject, completions.inputs, completions.labels))


def _facts(completions: Completions, loss: float, reward: float, kl: float) -> StepFacts:
    ids, mask = completions.ids, completions.mask
    return StepFacts(ids.numel(), len(ids), loss, float(mask.sum()), {"reward": reward, "kl": kl})


class Scored(NamedTuple):
    """Some completions, the reference's log-probabilities of them, and how they did in their group."""

    completions: Completions
    reference_log_probs: torch.Tensor  # [B, N]
    advantages: torch.Tensor  # [B]
    log_probs: torch.Tensor | None  # [B, N], of the policy before its updates; None with a single one


class GRPO:
    """Trains a policy on the rewards of its completions, group by group."""

    def __init__(
        self,
        policy: Subject,
        reference: Reference,
        reward: RewardFunction,
        optimizer: Any,
        data: Iterator[Batch],
    ) -> None:
        """Train `policy` on `data`: batches of as many prompts as a step takes."""
        refuse_fused(policy.run)
        self.subject, self.reward, self.optimizer, self.data = policy, reward, optimizer, data
        self.reference = reference
        self.models: Mapping[str, Any] = {"policy": policy.model, **reference.models}
        self.update = Update(policy.run, optimizer, policy.trained, policy.device, policy.strategy)
        self.divergence = torch.zeros(())  # from the reference, in the last micro-batch

    def step(self, clock: Clock) -> StepFacts:
        """Take one rollout and its update; the details say the mean reward and divergence."""
        run = self.subject.run
        with clock.stage("data"):
            prompts = Prompts.of(next(self.data), repeats=run.num_generations)
        with clock.stage("generation"), self.update.autocast():
            completions = generate(self.subject, prompts, run.max_new_tokens)
        with clock.stage("scoring"), self.update.autocast():
            rewards = self.reward(completions).float()
            advantages = group_advantages(rewards, run.num_generations).split(run.micro_batch_size)
            pieces = zip(completions.split(run.micro_batch_size), advantages, strict=True)
            scored = [self._scored(*piece) for piece in pieces]
        losses: list[tuple[float, float]] = []
        for batch in updates_of(run, scored):
            for part in batch:
                with clock.stage("forward"), self.update.autocast():
                    part_loss = self.subject.strategy.forward(self._loss, part)
                with clock.stage("backward"):
                    self.update.backward(part_loss / len(batch))
                losses.append((float(part_loss.detach()), float(self.divergence)))
            with clock.stage("optimizer"):
                self.update.step()
        loss, divergence = (sum(column) / len(losses) for column in zip(*losses, strict=True))
        return _facts(completions, loss, float(rewards.mean()), divergence)

    def _scored(self, completions: Completions, advantages: torch.Tensor) -> Scored:
        losses = self.reference.token_losses(completions.inputs, completions.labels)
        before = None
        if self.subject.run.old_log_probs or num_updates(self.subject.run) > 1:
            with inference(self.subject.model):
                before = self.subject.strategy.infer(_log_probs, self.subject, completions)
        return Scored(completions, -completions.select(losses), advantages, before)

    def _loss(self, part: Scored) -> torch.Tensor:
        """Return the loss over one micro-batch; note the divergence from the reference in it."""
        log_probs = _log_probs(self.subject, part.completions)
        before = log_probs.detach() if part.log_probs is None else part.log_probs
        ratio = (log_probs - before).exp()
        behind = part.reference_log_probs - log_probs
        divergence = (behind.exp() - behind - 1.0).mean()
        self.divergence = divergence.detach()
        return -(ratio * part.advantages[:, None]).mean() + GRPO_KL_COEFFICIENT * divergence


def updates_of(run: Run, parts: Sequence[Part]) -> Iterator[Sequence[Part]]:
    """Yield the micro-batches of every optimizer step on a rollout."""
    accumulated = run.gradient_accumulation_steps
    for _ in range(run.ppo_epochs):
        for first in range(0, len(parts), accumulated):
            yield parts[first : first + accumulated]


def group_advantages(rewards: torch.Tensor, group: int) -> torch.Tensor:
    """Return how far each reward lies from its group's mean, in standard deviations of the group."""
    groups = rewards.view(-1, group)
    spread = groups.std(1, keepdim=True) + 1e-4
    return ((groups - groups.mean(1, keepdim=True)) / spread).flatten()


class Rollout(NamedTuple):
    """Completions with all that the updates need to know of them, each [B, N]."""

    completions: Completions
    log_probs: torch.Tensor
    values: torch.Tensor
    advantages: torch.Tensor
    rewards: torch.Tensor  # [B], of whole completions
    kl: torch.Tensor  # [B]


class PPO:
    """Trains a policy and a value model on the rewards of the policy's completions."""

    def __init__(
        self,
        policy: Trained,
        value: Trained,
        reference: Reference,
        reward: RewardFunction,
        data: Iterator[Batch],
        *,
        others: Mapping[str, Any] | None = None,
    ) -> None:
        """Train `policy` on the prompts of `data`: batches of as many prompts as a step takes.

        `value` has a scalar head and expects the reward at every token; its optimizer may be the policy's,
        and is then of the parameters of both. `others` are models in memory beside these, by role: the
        reward model.
        """
        self.subject, self.optimizer = policy
        self.value, self.reference, self.reward, self.data = value.subject, reference, reward, data
        run, device = self.subject.run, self.subject.device
        refuse_fused(run)
        self.models: Mapping[str, Any] = {
            "policy": self.subject.model,
            "value": self.value.model,
            **reference.models,
            **(others or {}),
        }
        if policy.optimizer is value.optimizer:
            both = [*self.subject.trained, *self.value.trained]
            self.update = self.value_update = Update(run, policy.optimizer, both, device)
        else:
            self.update, self.value_update = (
                Update(run, optimizer, subject.trained, device, subject.strategy)
                for subject, optimizer in (policy, value)
            )

    def step(self, clock: Clock) -> StepFacts:
        """Take one rollout and its updates; the details say the mean reward and divergence."""
        run = self.subject.run
        with clock.stage("data"):
            prompts = Prompts.of(next(self.data))
        with clock.stage("generation"), self.update.autocast():
            completions = generate(self.subject, prompts, run.max_new_tokens)
        with clock.stage("scoring"), self.update.autocast():
            rollouts = [self._scored(part) for part in completions.split(run.micro_batch_size)]
        loss = 0.0
        for batch in updates_of(run, rollouts):
            loss = sum(self._learn(rollout, clock, len(batch)) for rollout in batch)
            with clock.stage("optimizer"):
                for update in dict.fromkeys((self.update, self.value_update)):
                    update.step()
        reward, kl = (
            float(torch.cat([getattr(rollout, name) for rollout in rollouts]).mean())
            for name in ("rewards", "kl")
        )
        return _facts(completions, loss, reward, kl)

    def _scored(self, completions: Completions) -> Rollout:
        inputs, labels = completions.inputs, completions.labels
        with inference(self.subject.model), inference(self.value.model):
            log_probs = self.subject.strategy.infer(_log_probs, self.subject, completions)
            before = -completions.select(self.reference.token_losses(inputs, labels))
            values = self.value.strategy.infer(self._values, completions)
            rewards = self.reward(completions).float()
        by_token = -PPO_KL_COEFFICIENT * (log_probs - before)
        by_token[:, -1] += rewards
        advantages = generalised_advantages(by_token, values)
        return Rollout(completions, log_probs, values, advantages, rewards, (log_probs - before).sum(1))

    def _values(self, completions: Completions) -> torch.Tensor:
        """Return the reward that is expected before every token of `completions`, [B, N], fp32."""
        return completions.select(self.value.model(**completions.inputs).scores.float())

    def _learn(self, rollout: Rollout, clock: Clock, parts: int) -> float:
        completions = rollout.completions
        with clock.stage("forward"), self.update.autocast():
            log_probs = self.subject.strategy.forward(_log_probs, self.subject, completions)
            policy_loss = clipped_policy_loss(log_probs, rollout)
        with clock.stage("backward"):
            self.update.backward(policy_loss / parts)
        with clock.stage("forward"), self.update.autocast():
            values = self.value.strategy.forward(self._values, completions)
            value_loss = VALUE_COEFFICIENT * clipped_value_loss(values, rollout)
        with clock.stage("backward"):
            self.value_update.backward(value_loss / parts)
        return float(policy_loss.detach()) / parts


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
