r"""How well a model answers questions: exact match, multiple choice, tasks of lm-evaluation-harness.

Exact match lets the model write greedily, questions of one length together, so that nothing is padded.
Multiple choice takes the likeliest answer, as lm-evaluation-harness scores HellaSwag:

$$ \text{acc}: \arg\max_c L_c \qquad \text{acc\_norm}: \arg\max_c L_c / n_c
   \qquad L_c = \sum_t \log p(c_t \mid prompt, c_{<t}) $$

with $n_c$ the characters of a choice. Both work on token ids and need no harness; its own tasks take the
extra 'finegauge[harness]', and nothing is fetched but a task's own data set.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from finegauge.errors import FieldError, InputError, UnknownNameError, UnsupportedError
from finegauge.measurement.models.build import checkpoint_folder
from finegauge.measurement.subject import Subject
from finegauge.run.run import Run

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


QUESTIONS_AT_ONCE = 256
NUMBER = re.compile(r"#### *(-?\$?[0-9][0-9.,]*)")


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


def number_in(text: str) -> str | None:
    """Return the number after "####" in a text of GSM8K's form, as lm-evaluation-harness's strict match does.

    None where there is none.
    """
    found = NUMBER.search(text)
    return found[1].replace(",", "").replace("$", "").rstrip(".") if found else None


@torch.no_grad()
def _written(model: Any, ids: torch.Tensor, max_new_tokens: int, stop: int | None) -> list[Ids]:
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
    return written[: written.index(stop)] if stop in written else written


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


def harness_scores(
    subject: Subject,
    tasks: Sequence[str],
    *,
    tokenizer: str,
    folder: str | None = None,
    limit: int | None = None,
    batch_size: int = 8,
) -> dict[str, dict[str, float]]:
    """Return the scores of `subject` by task and metric: {"gsm8k": {"exact_match,strict-match": 0.4}}.

    Args:
        subject: The model as it is now.
        tasks: Names of the harness's tasks, or of those in `folder`.
        tokenizer: Folder of the model's tokenizer.
        folder: Where YAML files of own tasks are; None: only the harness's own are known.
        limit: Questions of each task; None: all.
        batch_size: Questions at a time.
    Raises: UnsupportedError without the harness, UnknownNameError for a task it does not have.
    """
    known = task_manager(tasks, folder)
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM

    training = subject.model.training  # which HFLM ends
    model = HFLM(
        pretrained=subject.model,
        tokenizer=_tokenizer(tokenizer),
        batch_size=batch_size,
        device=str(subject.device),
    )
    try:
        found = simple_evaluate(model, tasks=list(tasks), task_manager=known, limit=limit, bootstrap_iters=0)
    finally:
        subject.model.train(training)
    return {task: _numbers(scores) for task, scores in (found or {})["results"].items()}


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
    """Return the tokenizer of a local folder; nothing is fetched."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise InputError(f"tokenizer={folder} cannot be loaded: {str(error).splitlines()[0]}") from None


def _numbers(scores: dict[str, Any]) -> dict[str, float]:
    """Return the scores alone, without the task's name and what was not computed."""
    return {name: float(value) for name, value in scores.items() if isinstance(value, float)}
