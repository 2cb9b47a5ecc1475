"""A question as a model sees it: token ids of what is asked, of the right answer, of the choices."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

Ids = tuple[int, ...]


class Choice(NamedTuple):
    """One of several answers to choose from."""

    ids: Ids
    num_characters: int  # of its text; what the likelihood is divided by in acc_norm


class Question(NamedTuple):
    """A question with its answer, and with choices where there are any."""

    prompt: Ids
    answer: Ids
    choices: tuple[Choice, ...] = ()
    right: int = 0  # index of the right choice


Judge = Callable[[Question, Ids], bool]


def same_tokens(question: Question, written: Ids) -> bool:
    """Return whether an answer begins with the right tokens, all of them."""
    return written[: len(question.answer)] == question.answer


class Task(NamedTuple):
    """Questions to learn from and others to be asked; no question is in both."""

    name: str
    train: Sequence[Question]
    test: Sequence[Question]
    stop: int | None = None  # the token that ends an answer; None: an answer's length is known
    right: Judge = same_tokens  # says whether an answer that the model wrote counts
