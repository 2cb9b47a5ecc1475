"""Which phase a run asks for, with its models, optimizer and data in place."""

import torch

from finegauge.measurement.models.build import scalar_subject_of, subject_of
from finegauge.measurement.options import Options
from finegauge.measurement.phases.generation import ContinuousServing, Serving
from finegauge.measurement.phases.preference import preference_optimisation, reward_model
from finegauge.measurement.phases.reinforcement import (
    GroupRelativePolicyOptimisation,
    ProximalPolicyOptimisation,
    by_model,
    even_tokens,
)
from finegauge.measurement.phases.supervised import Evaluation, Supervised
from finegauge.measurement.phases.training import Here, copied_before, frozen, reference_of
from finegauge.measurement.subject import Phase, Subject
from finegauge.run.phases import prompts_of
from finegauge.run.run import Run

HERE = Here()


def phase_of(run: Run, options: Options, device: torch.device, place: Here = HERE) -> Phase:
    """Return the phase of `run`, its models, optimizer and data in place on `device`.

    Args:
        run: The question.
        options: Seed and device.
        device: Where the models are built.
        place: Where they go then: this process, or one rank of several.

    Raises: UnsupportedError for what the installed libraries cannot run.
    """
    if run.phase == "ppo":
        return _ppo(run, options, device, place)
    subject = (scalar_subject_of if run.phase == "reward" else subject_of)(run, device, seed=options.seed)
    if run.phase == "evaluate":
        return Evaluation(subject, place.data(run, options))
    if run.phase in ("prefill", "decode"):
        serving = ContinuousServing if run.padding == "free" else Serving
        return serving(subject, place.data(prompts_of(run), options))
    if run.phase in ("dpo", "grpo"):
        return _compared(subject, options, place)
    ((subject, optimizer),) = place.trained(subject)
    trains = reward_model if run.phase == "reward" else Supervised
    return trains(subject, optimizer, place.data(run, options))


def _compared(policy: Subject, options: Options, place: Here) -> Phase:
    """Return DPO or GRPO, which compare a policy with what it was before."""
    run, before = policy.run, copied_before(policy)
    ((policy, optimizer),) = place.trained(policy)
    reference = reference_of(policy, before and place.frozen(before))
    if run.phase == "dpo":
        return preference_optimisation(policy, reference, optimizer, place.data(run, options))
    prompts = place.data(prompts_of(run), options)
    return GroupRelativePolicyOptimisation(policy, reference, even_tokens, optimizer, prompts)


def _ppo(run: Run, options: Options, device: torch.device, place: Here) -> Phase:
    """Return PPO with its four models; the reward model is frozen, in the policy's number format."""
    policy = subject_of(run, device, seed=options.seed)
    before = copied_before(policy)
    tuned, valued = place.trained(policy, scalar_subject_of(run, device, seed=options.seed))
    reference = reference_of(tuned.subject, before and place.frozen(before))
    reward = place.frozen(_reward_model(run, options, device))
    prompts = place.data(prompts_of(run), options)
    others = {"reward": reward.model}
    return ProximalPolicyOptimisation(tuned, valued, reference, by_model(reward), prompts, others=others)


def _reward_model(run: Run, options: Options, device: torch.device) -> Subject:
    """Return a frozen reward model; without adapters, except on quantised weights."""
    if run.method != "qlora":
        run = run.replace(method="full", weights_dtype=run.weights_dtype)
    subject = scalar_subject_of(run, device, seed=options.seed + 1)
    return subject._replace(model=frozen(subject.model))


__all__ = ["phase_of"]
