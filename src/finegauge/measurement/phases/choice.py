"""Which phase a run asks for, with its models, optimizer and data in place."""

import torch

from finegauge.catalogue.frameworks import engine
from finegauge.errors import UnsupportedError
from finegauge.measurement.build import subject_of
from finegauge.measurement.options import Options
from finegauge.measurement.phases.fine_tuning import (
    evaluation,
    preference_optimisation,
    reward_model,
    supervised,
)
from finegauge.measurement.phases.generation import (
    GRPO,
    PPO,
    ContinuousServing,
    Serving,
    even_token_reward,
    reward_by_model,
)
from finegauge.measurement.phases.training import Placement, Reference, copied_before, frozen
from finegauge.measurement.subject import Phase, Subject
from finegauge.model.families import usual_task
from finegauge.model.families.decoder import CAUSAL
from finegauge.model.graph import of_model, value_run
from finegauge.run.phases import prompts_of
from finegauge.run.rules import RL
from finegauge.run.run import Run

HERE = Placement()
PREDICTED_ALONE = ("generation_batch_size", "ema", "reference_offload")


def phase_of(run: Run, options: Options, device: torch.device, place: Placement = HERE) -> Phase:
    """Return the phase of `run`; its models are built on `device` and put where `place` says.

    Raises: UnsupportedError for what the installed libraries cannot run.
    """
    if run.phase in RL and engine(run.inference_engine).paged:
        raise UnsupportedError(
            f"Answers of phase={run.phase} are measured as transformers generates them, not by "
            f"{run.inference_engine}; set inference_engine=hf."
        )
    if run.phase in RL and run.padding == "free":
        raise UnsupportedError(
            f"Answers of phase={run.phase} are measured as padded; padding=free is predicted alone."
        )
    _check(run)
    if run.phase == "ppo":
        return _ppo(run, options, device, place)
    subject = subject_of(run, device, seed=options.seed, scalar=run.phase == "reward")
    if run.phase == "evaluate":
        return evaluation(subject, place.data(run, options))
    if run.phase == "serve":
        raise UnsupportedError("phase=serve is measured of a server alone; add --endpoint URL.")
    if run.phase in ("prefill", "decode"):
        serving = ContinuousServing if run.padding == "free" else Serving
        return serving(subject, place.data(prompts_of(run), options))
    if run.phase in ("dpo", "grpo"):
        return _compared(subject, options, place)
    ((subject, optimizer),) = place.trained(subject)
    trains = reward_model if run.phase == "reward" else supervised
    return trains(subject, optimizer, place.data(run, options))


def _check(run: Run) -> None:
    """Refuse what of a step's models is predicted alone."""
    if (task := usual_task(run.config, run.task)) != CAUSAL:
        raise UnsupportedError(f"task={task} is predicted alone; only causal language models are measured.")
    if run.phase not in ("dpo", *RL):
        return
    asked = {name: getattr(run, name) for name in PREDICTED_ALONE if getattr(run, name)}
    if run.reference_model != ("policy" if run.trains_adapters else "copy"):
        asked["reference_model"] = run.reference_model
    if run.phase == "ppo" and run.critic_sharding != run.sharding:
        asked["critic_sharding"] = run.critic_sharding
    if run.reward_model and (run.phase == "grpo" or run.reward_model == "none"):
        asked["reward_model"] = run.reward_model
    for name, value in asked.items():
        raise UnsupportedError(f"{name}={value} is predicted alone; remove it to measure phase={run.phase}.")


def _compared(policy: Subject, options: Options, place: Placement) -> Phase:
    run, before = policy.run, copied_before(policy)
    ((policy, optimizer),) = place.trained(policy)
    reference = Reference.of(policy, before and place.frozen(before))
    if run.phase == "dpo":
        return preference_optimisation(policy, reference, optimizer, place.data(run, options))
    return GRPO(policy, reference, even_token_reward, optimizer, place.data(prompts_of(run), options))


def _ppo(run: Run, options: Options, device: torch.device, place: Placement) -> Phase:
    """Return PPO with its four models.

    The reward model is frozen, in the policy's number format, without adapters except on quantised weights.
    """
    policy = subject_of(run, device, seed=options.seed)
    before = copied_before(policy)
    value = value_run(run)
    tuned, valued = place.trained(policy, subject_of(value, device, seed=options.seed, scalar=True))
    reference = Reference.of(tuned.subject, before and place.frozen(before))
    plain = of_model(value, run.reward_model)
    plain = plain if run.method == "qlora" else plain.replace(method="full", weights_dtype=run.weights_dtype)
    scores = subject_of(plain, device, seed=options.seed + 1, scalar=True)
    scores = place.frozen(scores._replace(model=frozen(scores.model)))
    others = {"reward": scores.model}
    prompts = place.data(prompts_of(run), options)
    return PPO(tuned, valued, reference, reward_by_model(scores), prompts, others=others)
