"""The share of questions that a model answers exactly, by letting it write: what GSM8K is scored by.

Answers are greedy. Questions of one length are asked together, so that nothing is padded and no
attention mask can be wrong. For texts, `number_in` finds the number that counts, in the two ways
of lm-evaluation-harness: strict takes what follows "####", flexible the last number there is.
"""

import re
from collections.abc import Sequence
from typing import Any

import torch

from finegauge.measure.evaluation.questions import Ids, Judge, Question, same_tokens

QUESTIONS_AT_ONCE = 256
_STRICT = re.compile(r"#### *(-?\$?[0-9][0-9.,]*)")
_NUMBER = re.compile(r"-?\$?[0-9][0-9.,]*")


def exact_match_fraction(
    model: Any,
    questions: Sequence[Question],
    *,
    right: Judge = same_tokens,
    max_new_tokens: int | None = None,
    stop: int | None = None,
) -> float:
    """Return the share of `questions` that are answered right.

    Args:
        model: A causal language model of transformers, or one with PEFT's adapters.
        questions: What is asked; at least one.
        right: Says whether an answer counts.
        max_new_tokens: Of an answer; None: as many as the longest right answer has.
        stop: The token that ends an answer; None: none does.
    """
    longest = max_new_tokens or max(len(question.answer) for question in questions)
    written = answers(model, [question.prompt for question in questions], longest, stop)
    found = sum(map(right, questions, written))
    return found / len(questions)


def answers(model: Any, prompts: Sequence[Ids], max_new_tokens: int, stop: int | None = None) -> list[Ids]:
    """Return what the model writes to each prompt, without the token that ends it."""
    by_length: dict[int, list[int]] = {}
    for place, prompt in enumerate(prompts):
        by_length.setdefault(len(prompt), []).append(place)
    written: dict[int, Ids] = {}
    for places in by_length.values():
        for first in range(0, len(places), QUESTIONS_AT_ONCE):
            some = places[first : first + QUESTIONS_AT_ONCE]
            ids = torch.tensor([prompts[place] for place in some])
            written.update(zip(some, _written(model, ids, max_new_tokens, stop), strict=True))
    return [written[place] for place in range(len(prompts))]


def number_in(text: str, *, strict: bool) -> str | None:
    """Return the number that a text of GSM8K's form ends with; None where there is none.

    Args:
        text: An answer, by a person or a model.
        strict: Take only what follows "####"; else the last number anywhere.
    """
    found = (_STRICT.findall(text) if strict else _NUMBER.findall(text))[:: 1 if strict else -1]
    return found[0].replace(",", "").replace("$", "").rstrip(".") if found else None


@torch.no_grad()
def _written(model: Any, ids: torch.Tensor, max_new_tokens: int, stop: int | None) -> list[Ids]:
    """Return the greedy continuations of prompts of one length."""
    training = model.training
    model.eval()
    whole = ids.to(next(model.parameters()).device)
    ended = torch.zeros(len(ids), dtype=torch.bool, device=whole.device)
    try:
        for _ in range(max_new_tokens):
            logits = model(input_ids=whole, use_cache=False).logits[:, -1]
            following = logits.argmax(-1)
            whole = torch.cat([whole, following[:, None]], 1)
            ended |= following == (-1 if stop is None else stop)
            if bool(ended.all()):
                break
    finally:
        model.train(training)
    return [_until(tuple(row), stop) for row in whole[:, ids.shape[1] :].tolist()]


def _until(written: Ids, stop: int | None) -> Ids:
    """Return an answer up to the token that ends it."""
    return written[: written.index(stop)] if stop in written else written
