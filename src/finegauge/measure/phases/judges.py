"""Who says how good an answer is: a reward model, or a rule that costs nothing."""

from collections.abc import Callable

import torch

from finegauge.measure.phases.reward import last_scores
from finegauge.measure.phases.writing import Answers
from finegauge.measure.subject import Subject

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
