r"""How well a model answers questions: exact match, multiple choice, tasks of lm-evaluation-harness.

Exact match lets the model write greedily, questions of one length together, so that nothing is padded.
Multiple choice takes the likeliest answer, as lm-evaluation-harness scores HellaSwag:

$$ \text{acc}: \arg\max_c L_c \qquad \text{acc\_norm}: \arg\max_c L_c / n_c
   \qquad L_c = \sum_t \log p(c_t \mid prompt, c_{<t}) $$

with $n_c$ the characters of a choice. Both work on token ids and need no harness; its own tasks take the
extra 'finegauge[harness]', and nothing is fetched but a task's own data set.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch.nn.functional import cross_entropy

from finegauge.errors import FieldError, InputError, UnknownNameError, UnsupportedError
from finegauge.measurement.batches import IGNORED, answered
from finegauge.measurement.models.build import checkpoint_folder
from finegauge.measurement.phases.training import inference
from finegauge.measurement.subject import Subject
from finegauge.run.run import Run

Ids = tuple[int, ...]
Row = TypeVar("Row")
Result = TypeVar("Result")


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
    right: Judge = same_tokens  # says whether an answer that the model wrote counts


ROWS_AT_ONCE, HARNESS_ROWS_AT_ONCE = 256, 8
NUMBER = re.compile(r"#### *(-?\$?[0-9][0-9.,]*)")


def exact_match_fraction(model: Any, questions: Sequence[Question], *, right: Judge = same_tokens) -> float:
    """Return the share of `questions` (at least one) whose greedily written answer is `right`.

    An answer is as long as the longest right one; `model` is a causal language model of transformers or PEFT.
    """
    longest = max(len(question.answer) for question in questions)
    written = answers(model, [question.prompt for question in questions], longest)
    return sum(map(right, questions, written)) / len(questions)


def answers(model: Any, prompts: Sequence[Ids], new_tokens: int) -> list[Ids]:
    """Return the `new_tokens` likeliest tokens that the model writes, one by one, to each prompt."""
    by_length: dict[int, list[int]] = {}
    for place, prompt in enumerate(prompts):
        by_length.setdefault(len(prompt), []).append(place)

    def written(some: Sequence[Ids]) -> list[Ids]:
        whole = torch.tensor(some, device=next(model.parameters()).device)
        with inference(model):
            for _ in range(new_tokens):
                following = model(input_ids=whole, use_cache=False).logits[:, -1].argmax(-1)
                whole = torch.cat([whole, following[:, None]], 1)
        return [tuple(row[-new_tokens:]) for row in whole.tolist()]

    return _in_batches(prompts, by_length.values(), written)


def _in_batches(
    rows: Sequence[Row], orders: Iterable[Sequence[int]], ask: Callable[[Sequence[Row]], Sequence[Result]]
) -> list[Result]:
    """Return what `ask` says of each of `rows`, a batch at a time, in the given orders of their places."""
    found: dict[int, Result] = {}
    for order in orders:
        for first in range(0, len(order), ROWS_AT_ONCE):
            some = order[first : first + ROWS_AT_ONCE]
            found.update(zip(some, ask([rows[place] for place in some]), strict=True))
    return [found[place] for place in range(len(rows))]


def number_in(text: str) -> str | None:
    """Return the number after "####" in a text of GSM8K's form, as lm-evaluation-harness's strict match does.

    None where there is none.
    """
    found = NUMBER.search(text)
    return found[1].replace(",", "").replace("$", "").rstrip(".") if found else None


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

    def likelihoods(some: Sequence[tuple[Ids, Ids]]) -> list[float]:
        batch = answered(some, next(model.parameters()).device)  # causal models do not look at the padding
        with inference(model):
            logits = model(input_ids=batch.input_ids, use_cache=False).logits[:, :-1].float()
        losses = cross_entropy(
            logits.transpose(1, 2), batch.labels[:, 1:], ignore_index=IGNORED, reduction="none"
        )
        return [-float(total) for total in losses.sum(1)]

    order = sorted(range(len(rows)), key=lambda place: sum(map(len, rows[place])))
    return _in_batches(rows, [order], likelihoods)


def harness_scores(
    subject: Subject,
    tasks: Sequence[str],
    *,
    tokenizer: str,
    folder: str | None = None,
    limit: int | None = None,
) -> dict[str, dict[str, float]]:
    """Return the scores of `subject` by task and metric: {"gsm8k": {"exact_match,strict-match": 0.4}}.

    `tasks` are names of the harness's tasks, or of YAML files in `folder`; `tokenizer` is the folder of the
    model's tokenizer; `limit` the number of questions of each task, None for all.

    Raises: UnsupportedError without the harness, UnknownNameError for a task it does not have.
    """
    known = task_manager(tasks, folder)
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM

    training = subject.model.training  # which HFLM ends
    model = HFLM(
        pretrained=subject.model,
        tokenizer=_tokenizer(tokenizer),
        batch_size=HARNESS_ROWS_AT_ONCE,
        device=str(subject.device),
    )
    try:
        found = simple_evaluate(model, tasks=list(tasks), task_manager=known, limit=limit, bootstrap_iters=0)
    finally:
        subject.model.train(training)
    return {  # without the task's name, and what was not computed
        task: {name: float(value) for name, value in scores.items() if isinstance(value, float)}
        for task, scores in (found or {})["results"].items()
    }


def task_manager(tasks: Sequence[str], folder: str | None) -> Any:
    """Return what knows `tasks`.

    Raises: UnsupportedError without the harness, UnknownNameError for a task it does not have.
    """
    try:
        from lm_eval import tasks as theirs
    except ImportError:
        raise UnsupportedError(
            "Tasks of lm-evaluation-harness need it: pip install 'finegauge[harness]'. Exact match and "
            "multiple choice on your own file work without it."
        ) from None
    known = theirs.TaskManager(include_path=folder, include_defaults=folder is None)
    for task in tasks:
        if task not in known.all_tasks:
            raise UnknownNameError("task of lm-evaluation-harness", task, known=known.all_tasks)
    return known


def tokenizer_folder(run: Run) -> str:
    """Return where the tokenizer of the run's model is.

    Raises: FieldError where the run names none and its model is no folder that holds one.
    """
    folder = run.tokenizer or checkpoint_folder(run)
    if not folder:
        raise FieldError(
            "Tasks of lm-evaluation-harness are texts, so the run needs a tokenizer; add 'tokenizer: FOLDER'."
        )
    return folder


def _tokenizer(folder: str) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise InputError(f"tokenizer={folder} cannot be loaded: {str(error).splitlines()[0]}") from None
