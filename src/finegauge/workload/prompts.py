"""What phases that compare answers, or write them, make of a run's sequences.

Reward models and DPO read pairs: two sequences for every sample. A phase that writes
splits `seq_len` into a prompt and an answer of `max_new_tokens`.
"""

from collections.abc import Collection
from math import ceil, gcd
from typing import TYPE_CHECKING, Any

from finegauge.errors import FieldError
from finegauge.workload.data import BatchShape, sequences, total_steps

if TYPE_CHECKING:
    from finegauge.workload.run import Run

PPO_EPOCHS = 4  # updates on every rollout: the default of TRL's last PPO trainer
BATCHES_PER_STEP = 3  # of requests to continuous batching: places come free and are taken again
WRITING = ("ppo", "grpo", "decode")
SERVING = ("prefill", "decode")
PAIRED = ("reward", "dpo")
COMPARING = ("reward", "dpo", "ppo", "grpo")


def settle(values: dict[str, Any], stated: Collection[str]) -> None:
    """Refuse joined sequences where whole ones are compared, and accumulation where nothing trains."""
    del stated  # whoever stated it
    phase = values["phase"]
    for field, joined in (("packing=true", values["packing"]), ("padding=free", values["padding"] == "free")):
        if joined and phase in COMPARING:
            raise FieldError(f"phase={phase} compares whole sequences, so {field} cannot hold; remove it.")
    if phase in SERVING and values["gradient_accumulation_steps"] > 1:
        raise FieldError(
            f"gradient_accumulation_steps={values['gradient_accumulation_steps']}, but phase={phase} trains "
            f"nothing; remove it."
        )


def prompts_of(run: "Run") -> "Run":
    """Return the run whose sequences are the prompts of `run`: as many tokens as its answers leave.

    Raises: FieldError where some prompt would not get all its answers.
    """
    _check_groups(run)
    rows = run.micro_batch_size * run.gradient_accumulation_steps // group_size(run)
    return run.replace(
        phase="evaluate",
        max_new_tokens=None,
        seq_len=run.seq_len - answer_tokens(run),
        micro_batch_size=rows,
        gradient_accumulation_steps=1,
        packing=False,
        padding=None if is_continuous(run) else run.padding,
    )


def group_size(run: "Run") -> int:
    """Return how many answers there are to each prompt."""
    return run.num_generations if run.phase == "grpo" else 1


def batch_unit(run: "Run") -> int:
    """Return of what `micro_batch_size` must be a multiple, so that every prompt has all its answers."""
    group = group_size(run)
    return group // gcd(group, run.gradient_accumulation_steps)


def _check_groups(run: "Run") -> None:
    """Refuse a batch that would leave some prompt without all its answers."""
    if run.micro_batch_size % batch_unit(run):
        answers, group = run.micro_batch_size * run.gradient_accumulation_steps, group_size(run)
        raise FieldError(
            f"phase={run.phase} compares num_generations={group} answers to each prompt, which does not "
            f"divide the {answers} of micro_batch_size x gradient_accumulation_steps; make these a multiple "
            f"of {group}."
        )


def is_continuous(run: "Run") -> bool:
    """Return whether requests enter and leave the batch one by one, so that nothing is padded."""
    return run.phase in SERVING and run.padding == "free"


def micro_steps(run: "Run") -> int:
    """Return how many micro-batches one step has."""
    return BATCHES_PER_STEP if is_continuous(run) else run.gradient_accumulation_steps


def in_phase(run: "Run") -> BatchShape:
    """Return what one micro-batch of `run` holds as its phase uses the data set's sequences."""
    if run.phase in PAIRED:
        own, pairs = sequences(run), sequences(run.replace(micro_batch_size=2 * run.micro_batch_size))
        return pairs._replace(
            samples=own.samples,
            steps_per_epoch=own.steps_per_epoch,
            steps_total=own.steps_total,
            source=f"{own.source}; two sequences for each sample",
        )
    if run.phase in WRITING or is_continuous(run):
        return _with_answers(run)
    return sequences(run)


def _with_answers(run: "Run") -> BatchShape:
    """Return the shape of prompts with their answers, all of one length, behind them."""
    prompts, rows, new = sequences(prompts_of(run)), run.micro_batch_size, answer_tokens(run)
    real = prompts.real_tokens / prompts.sequences
    padded = real if is_continuous(run) else prompts.padded_len
    square = prompts.tokens_square / prompts.sequences
    longest = prompts.longest_len + new
    per_epoch = None
    if prompts.num_samples is not None:
        answered = rows * run.gradient_accumulation_steps * run.data_parallel / group_size(run)
        per_epoch = max(1, ceil(prompts.num_samples / answered))
    return BatchShape(
        sequences=rows,
        tokens=rows * (padded + new),
        tokens_square=rows * (square + 2.0 * padded * new + new**2),
        real_tokens=rows * (real + new),
        samples=rows,
        longest_len=longest,
        longest_tokens=rows * longest,
        num_samples=prompts.num_samples,
        steps_per_epoch=per_epoch,
        steps_total=total_steps(run, per_epoch),
        source=f"{prompts.source}, as prompts; answers of {new:,} tokens",
    )


def answer_tokens(run: "Run") -> int:
    """Return the tokens that the model writes to each prompt."""
    return run.max_new_tokens if run.phase in WRITING else 0
