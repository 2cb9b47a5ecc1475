"""One small model, sparse and dense, really fine-tuned: it can subtract a little, and learns to add.

Both begin with the same weights, those of a sparse model that has seen subtractions, as the paper
tunes one published checkpoint sparse and dense.
"""

import os
from typing import Any, NamedTuple

from finegauge.measure.options import Options
from finegauge.reproduce.measured.trials import DATA, EXPERTS_PER_TOKEN, Told
from finegauge.workload.run import Run

CONFIG = os.path.join(DATA, "arithmetic_mixtral.json")
LEARNT_BEFORE, LEARNT = "-", "+"
EPOCHS_BEFORE, EPOCHS = 3, 5
QUESTIONS = 4000
BATCH = 64


class Tunings(NamedTuple):
    """What came of it, as the documents of `measure.evaluation.epochs`."""

    sparse: dict[str, Any]
    dense: dict[str, Any]


def tunings(
    options: Options,
    *,
    epochs_before: int = EPOCHS_BEFORE,
    epochs: int = EPOCHS,
    questions: int = QUESTIONS,
    told: Told | None = None,
) -> Tunings:
    """Return the accuracy by epoch and the load of the experts of both; needs PyTorch.

    Args:
        options: Device, threads and seed.
        epochs_before: Of subtraction, before the tuning.
        epochs: Of addition.
        questions: To learn from, of each.
        told: Told what is being tuned.
    """
    import torch

    from finegauge.measure.evaluation.arithmetic import arithmetic
    from finegauge.measure.evaluation.epochs import tune
    from finegauge.measure.models import subject_of

    if options.threads:
        torch.set_num_threads(options.threads)
    seed = options.seed
    base = subject_of(_run("sparse"), options.device, seed=seed)
    _say(told, "first weights, from subtractions")
    tune(base, arithmetic(LEARNT_BEFORE, num_train=questions, seed=seed), epochs=epochs_before, seed=seed)
    weights = {name: value.clone() for name, value in base.model.state_dict().items()}
    task, documents = arithmetic(LEARNT, num_train=questions, seed=seed), {}
    for mode in EXPERTS_PER_TOKEN:
        _say(told, f"tuning on additions, {mode}")
        subject = subject_of(_run(mode), options.device, seed=seed)
        subject.model.load_state_dict(weights)
        documents[mode] = tune(subject, task, epochs=epochs, seed=seed).to_json()
    return Tunings(**documents)


def _run(mode: str) -> Run:
    """Return the run whose model is tuned."""
    return Run(
        model=CONFIG, method="full", weights_dtype="fp32", num_experts_per_tok=EXPERTS_PER_TOKEN[mode],
        micro_batch_size=BATCH, seq_len=32,
    )  # fmt: skip


def _say(told: Told | None, what: str) -> None:
    if told is not None:
        told(what)
