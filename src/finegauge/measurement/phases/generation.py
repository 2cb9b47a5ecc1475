r"""Phases that generate: serving in one batch or by continuous batching, and reinforcement learning.

Prompts are padded on the left, so that all completions begin in one column; every completion has exactly
as many tokens as the run says, whatever they are, so that steps compare. Serving reads the prompts of a
batch at once (prefill) and generates token by token (decode); the details of a step are what users of a
service see: seconds to the first token, seconds for each further one, tokens generated per second.

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

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from math import ceil
from statistics import median
from typing import Any, NamedTuple, TypeVar

import torch
from transformers import GenerationConfig, LogitsProcessorList

from finegauge.errors import UnsupportedError
from finegauge.measurement.batches import IGNORED, Batch
from finegauge.measurement.build import autocasting
from finegauge.measurement.phases.fine_tuning import last_scores
from finegauge.measurement.phases.training import (
    Reference,
    Update,
    inference,
    inputs_with,
    mask_of,
    refuse_fused,
    token_losses,
)
from finegauge.measurement.subject import Clock, StepFacts, Subject, Trained
from finegauge.run.phases import BATCHES_PER_STEP, num_updates
from finegauge.run.run import Run

PAGE_TOKENS = 32  # of a page of the key-value cache


class Prompts(NamedTuple):
    """The prompts of a batch: ids [B, P] and which of them are real."""

    ids: torch.Tensor
    mask: torch.Tensor

    @classmethod
    def of(cls, batch: Batch, repeats: int = 1) -> "Prompts":
        """Return the sequences of `batch` as prompts, each `repeats` times."""
        mask = mask_of(batch)
        shift = mask.shape[1] - mask.sum(1, keepdim=True)
        columns = (torch.arange(mask.shape[1], device=mask.device) - shift) % mask.shape[1]
        ids, mask = batch.input_ids.gather(1, columns), mask.gather(1, columns)
        return cls(ids.repeat_interleave(repeats, 0), mask.repeat_interleave(repeats, 0))


class Completions(NamedTuple):
    """Prompts with their completions: ids [B, P + N], and when each token of them was known."""

    ids: torch.Tensor
    mask: torch.Tensor
    prompt_length: int
    requested_s: float = 0.0
    token_times_s: tuple[float, ...] = ()

    @property
    def inputs(self) -> dict[str, torch.Tensor]:
        """Return the arguments of a forward pass over prompts and completions."""
        return inputs_with(self.ids, self.mask)

    @property
    def labels(self) -> torch.Tensor:
        """Return the ids with -100 in place of the prompts."""
        labels = self.ids.clone()
        labels[:, : self.prompt_length] = IGNORED
        return labels

    def select(self, by_token: torch.Tensor) -> torch.Tensor:
        """Return, of values [B, S] at the token before, those of the completions' tokens: [B, N]."""
        return by_token[:, self.prompt_length - 1 : -1]

    def split(self, rows: int) -> "list[Completions]":
        """Return the same completions, `rows` at a time."""
        pieces = zip(self.ids.split(rows), self.mask.split(rows), strict=True)
        return [self._replace(ids=ids, mask=mask) for ids, mask in pieces]


class _TokenTimes:
    """A logits processor that notes when the logits of every token are there."""

    def __init__(self, device: torch.device, first: Any = None) -> None:
        self.device, self.first = device, first
        self.times_s: list[float] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        del input_ids
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.times_s.append(time.perf_counter())
        if self.first is not None and len(self.times_s) == 1:
            self.first()
        return scores


def generate(
    subject: Subject, prompts: Prompts, new_tokens: int, *, sample: bool = True, first: Any = None
) -> Completions:
    """Return the model's completions of `prompts`, `new_tokens` long each; adapters take part.

    `sample` draws tokens by their probability, else the likeliest is taken; `first` is called when the first
    token's logits are there.
    """
    times = _TokenTimes(subject.device, first)
    subject.base.generation_config.eos_token_id = None  # no token ends a completion
    requested_s = time.perf_counter()
    with inference(subject.model):
        settings = GenerationConfig(
            max_new_tokens=new_tokens,
            do_sample=sample,
            top_k=0 if sample else None,
            use_cache=True,
            pad_token_id=0,
        )
        ids = subject.strategy.infer(
            partial(
                subject.model.generate,
                input_ids=prompts.ids,
                attention_mask=prompts.mask,
                logits_processor=LogitsProcessorList([times]),
                generation_config=settings,
            )
        )
    length = int(prompts.ids.shape[1])
    mask = torch.cat([prompts.mask, torch.ones_like(ids[:, length:])], 1)
    return Completions(ids, mask, length, requested_s, tuple(times.times_s))


class Serving:
    """Completes batches of prompts, all of a batch in step."""

    optimizer = None

    def __init__(self, subject: Subject, data: Iterator[Batch]) -> None:
        """Serve the prompts of `data`; the prefill phase generates one token only."""
        self.subject, self.data = subject, data
        self.new_tokens = subject.run.max_new_tokens if subject.run.phase == "decode" else 1
        self.models: Mapping[str, Any] = {"policy": subject.model}

    def step(self, clock: Clock) -> StepFacts:
        """Serve one batch."""
        with clock.stage("data"):
            prompts = Prompts.of(next(self.data))
        with ExitStack() as stages, autocasting(self.subject.run, self.subject.device):
            stages.enter_context(clock.stage("prefill"))

            def first_token() -> None:
                stages.close()
                stages.enter_context(clock.stage("decode"))

            first = first_token if self.new_tokens > 1 else None
            found = generate(self.subject, prompts, self.new_tokens, sample=False, first=first)
        mask = found.mask if self.new_tokens > 1 else prompts.mask  # the one token is no input of anything
        times, generated = found.token_times_s, len(found.ids) * len(found.token_times_s)
        details = {
            "ttft_s": times[0] - found.requested_s,
            "written_tokens_per_s": generated / (times[-1] - found.requested_s),
        }
        if len(times) > 1:
            details["time_per_output_token_s"] = (times[-1] - times[0]) / (len(times) - 1)
        return StepFacts(mask.numel(), len(mask), None, float(mask.sum()), details)


class ContinuousServing:
    """Serves one queue of prompts of all lengths: a request enters the batch when another leaves it.

    transformers' `generate_batch` keeps keys and values in pages. Its own settings take all the memory there
    is; here the cache holds what `micro_batch_size` requests at a time need.
    """

    optimizer = None

    def __init__(self, subject: Subject, data: Iterator[Batch]) -> None:
        """Serve the prompts of `data`, three batches a step.

        Raises: UnsupportedError for models that keep more than keys and values.
        """
        self.subject, self.data = subject, data
        if not hasattr(subject.base, "generate_batch"):
            raise UnsupportedError(
                f"{type(subject.base).__name__} has no generate_batch for padding=free; use padding=longest."
            )
        self.models: Mapping[str, Any] = {"policy": subject.model}

    def step(self, clock: Clock) -> StepFacts:
        """Serve the requests of a step; prompts and completions share forward passes."""
        with clock.stage("data"):
            batches = [next(self.data) for _ in range(BATCHES_PER_STEP)]
            prompts = [
                ids[real].tolist()
                for batch in batches
                for ids, real in zip(batch.input_ids, mask_of(batch).bool(), strict=True)
            ]
        requested_s = time.perf_counter()
        autocast = autocasting(self.subject.run, self.subject.device)
        with clock.stage("decode"), inference(self.subject.model), autocast:
            answers = self._serve(prompts)
        done_s = time.perf_counter()
        generated = sum(len(answer.generated_tokens) for answer in answers)
        times = [answer.timestamps for answer in answers]
        details = {
            "ttft_s": median(stamps[0] - requested_s for stamps in times),
            "written_tokens_per_s": generated / (done_s - requested_s),
        }
        gaps = [(stamps[-1] - stamps[0]) / (len(stamps) - 1) for stamps in times if len(stamps) > 1]
        if gaps:
            details["time_per_output_token_s"] = median(gaps)
        tokens = float(sum(map(len, prompts)) + generated)
        return StepFacts(tokens, len(answers), None, tokens, details)

    def _serve(self, prompts: list[list[int]]) -> list[Any]:
        """Return transformers' answers to `prompts`.

        Raises: UnsupportedError with its words where a request failed.
        """
        from transformers.generation.configuration_utils import ContinuousBatchingConfig

        run = self.subject.run
        longest = max(map(len, prompts)) + run.max_new_tokens
        self.subject.base.generation_config.eos_token_id = None  # no token ends a completion
        answers = self.subject.base.generate_batch(
            inputs=prompts,
            generation_config=GenerationConfig(max_new_tokens=run.max_new_tokens, do_sample=False),
            continuous_batching_config=ContinuousBatchingConfig(
                page_size=PAGE_TOKENS,
                num_blocks=run.micro_batch_size * ceil(longest / PAGE_TOKENS) + 1,
                max_batch_tokens=max(longest, run.micro_batch_size),
                max_requests_per_batch=run.micro_batch_size,
                use_cuda_graph=False,
                use_async_batching=False,
            ),
            record_timestamps=True,
            warmup=False,
        )
        failed = [answer.error for answer in answers.values() if answer.error]
        if failed or len(answers) < len(prompts):
            raise UnsupportedError(f"generate_batch answered {len(answers)} of {len(prompts)}: {failed[:1]}.")
        return list(answers.values())


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
