"""Which phase a run asks for, with its models, optimizer and data in place."""

from collections.abc import Iterator
from itertools import chain

import torch

from finegauge.measure.batches import Batch, batches
from finegauge.measure.models import subject_of
from finegauge.measure.models.heads import scalar_subject_of
from finegauge.measure.models.optimizers import optimizer_of
from finegauge.measure.options import Options
from finegauge.measure.phases.continuous import ContinuousServing
from finegauge.measure.phases.dpo import preference_optimisation
from finegauge.measure.phases.evaluate import Evaluation
from finegauge.measure.phases.grpo import GroupRelativePolicyOptimisation
from finegauge.measure.phases.judges import by_model, even_tokens
from finegauge.measure.phases.ppo import ProximalPolicyOptimisation
from finegauge.measure.phases.reference import frozen
from finegauge.measure.phases.reward import reward_model
from finegauge.measure.phases.serving import Serving
from finegauge.measure.phases.supervised import Supervised
from finegauge.measure.subject import Phase, Subject
from finegauge.workload.prompts import prompts_of
from finegauge.workload.run import Run


def phase_of(run: Run, options: Options, device: torch.device) -> Phase:
    """Return the phase of `run`, its models, optimizer and data in place on `device`.

    Raises: UnsupportedError for what the installed libraries cannot run.
    """
    if run.phase == "ppo":
        return _ppo(run, options, device)
    subject = (scalar_subject_of if run.phase == "reward" else subject_of)(run, device, seed=options.seed)
    if run.phase == "evaluate":
        return Evaluation(subject, _data(run, options, device))
    if run.phase in ("prefill", "decode"):
        serving = ContinuousServing if run.padding == "free" else Serving
        return serving(subject, _data(prompts_of(run), options, device))
    if run.phase == "grpo":
        prompts = _data(prompts_of(run), options, device)
        return GroupRelativePolicyOptimisation(
            subject, even_tokens, optimizer_of(run, subject.trained), prompts
        )
    train = {"reward": reward_model, "dpo": preference_optimisation}.get(run.phase, Supervised)
    return train(subject, optimizer_of(run, subject.trained), _data(run, options, device))


def _ppo(run: Run, options: Options, device: torch.device) -> Phase:
    """Return PPO with its four models; the reward model is frozen, in the policy's number format."""
    policy = subject_of(run, device, seed=options.seed)
    value = scalar_subject_of(run, device, seed=options.seed)
    reward = _reward_model(run, options, device)
    return ProximalPolicyOptimisation(
        policy,
        value,
        by_model(reward),
        optimizer_of(run, chain(policy.trained, value.trained)),
        _data(prompts_of(run), options, device),
        others={"reward": reward.model},
    )


def _reward_model(run: Run, options: Options, device: torch.device) -> Subject:
    """Return a frozen reward model; without adapters, except on quantised weights."""
    if run.method != "qlora":
        run = run.replace(method="full", weights_dtype=run.weights_dtype)
    subject = scalar_subject_of(run, device, seed=options.seed + 1)
    return subject._replace(model=frozen(subject.model))


def _data(run: Run, options: Options, device: torch.device) -> Iterator[Batch]:
    """Return the batches of `run`."""
    return batches(run, int(run.config["vocab_size"]), device, options.seed)
