r"""The share of questions whose right choice a model finds likeliest: what HellaSwag is scored by.

$$ \text{acc}: \arg\max_c L_c \qquad \text{acc\_norm}: \arg\max_c L_c / n_c
   \qquad L_c = \sum_t \log p(c_t \mid prompt, c_{<t}) $$

with $n_c$ the characters of a choice, as lm-evaluation-harness counts both.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from finegauge.measure.evaluation.questions import Ids, Question

ROWS_AT_ONCE = 256
IGNORED = -100


class Accuracy(NamedTuple):
    """How often the right choice is the likeliest."""

    acc_fraction: float
    acc_norm_fraction: float  # likelihoods divided by the characters of the choice
    num_questions: int


def multiple_choice(model: Any, questions: Sequence[Question]) -> Accuracy:
    """Return the accuracy of `model` on questions with choices; at least one of them."""
    rows = [(question.prompt, choice.ids) for question in questions for choice in question.choices]
    likelihoods = iter(log_likelihoods(model, rows))
    plain = normalised = 0
    for question in questions:
        sums = [next(likelihoods) for _ in question.choices]
        means = [total / choice.num_characters for total, choice in zip(sums, question.choices, strict=True)]
        plain += sums.index(max(sums)) == question.right
        normalised += means.index(max(means)) == question.right
    return Accuracy(plain / len(questions), normalised / len(questions), len(questions))


def log_likelihoods(model: Any, rows: Sequence[tuple[Ids, Ids]]) -> list[float]:
    """Return the natural logarithm of the probability of each continuation after its prompt."""
    order = sorted(range(len(rows)), key=lambda place: len(rows[place][0]) + len(rows[place][1]))
    found: dict[int, float] = {}
    for first in range(0, len(order), ROWS_AT_ONCE):
        some = order[first : first + ROWS_AT_ONCE]
        found.update(zip(some, _of_batch(model, [rows[place] for place in some]), strict=True))
    return [found[place] for place in range(len(rows))]


@torch.no_grad()
def _of_batch(model: Any, rows: Sequence[tuple[Ids, Ids]]) -> list[float]:
    """Return the log-likelihoods of some rows, padded on the right, where causal models do not look."""
    training = model.training
    model.eval()
    try:
        longest = max(len(prompt) + len(rest) for prompt, rest in rows)
        ids = torch.zeros(len(rows), longest, dtype=torch.long)
        labels = torch.full_like(ids, IGNORED)
        for n, (prompt, rest) in enumerate(rows):
            ids[n, : len(prompt) + len(rest)] = torch.tensor(prompt + rest)
            labels[n, len(prompt) : len(prompt) + len(rest)] = torch.tensor(rest)
        place = next(model.parameters()).device
        logits = model(input_ids=ids.to(place), use_cache=False).logits[:, :-1].float()
        losses = torch.nn.functional.cross_entropy(
            logits.transpose(1, 2), labels[:, 1:].to(place), ignore_index=IGNORED, reduction="none"
        )
        return [-float(total) for total in losses.sum(1)]
    finally:
        model.train(training)
