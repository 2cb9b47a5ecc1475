"""Which phase a run asks for, with its models, optimizer and data in place."""

import torch

from finegauge.measure.models import subject_of
from finegauge.measure.models.heads import scalar_subject_of
from finegauge.measure.options import Options
from finegauge.measure.phases.continuous import ContinuousServing
from finegauge.measure.phases.dpo import preference_optimisation
from finegauge.measure.phases.evaluate import Evaluation
from finegauge.measure.phases.grpo import GroupRelativePolicyOptimisation
from finegauge.measure.phases.judges import by_model, even_tokens
from finegauge.measure.phases.placing import Here
from finegauge.measure.phases.ppo import ProximalPolicyOptimisation
from finegauge.measure.phases.reference import copied_before, frozen, reference_of
from finegauge.measure.phases.reward import reward_model
from finegauge.measure.phases.serving import Serving
from finegauge.measure.phases.supervised import Supervised
from finegauge.measure.subject import Phase, Subject
from finegauge.workload.prompts import prompts_of
from finegauge.workload.run import Run

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
