r"""Accuracy before tuning and after each epoch of it, and the load of the experts before and after.

The model really learns: the loss is that of the answers alone, the learning rate rises over the first steps
and then falls to a twentieth in a straight line, gradients are clipped to a norm of 1.

The questions of a run are those of its data set's file, or arithmetic. A record is a question and its answer,
by the names of `QUESTIONS`, or a text with endings of which one is right (HellaSwag's names and their like).
An answer that ends in "#### 42", as GSM8K's do, counts by that number. A tenth of the records is asked, and
never learnt from. Arithmetic is additions and subtractions that a model of a million parameters learns in a
minute: "34+58=" is asked as 43+85= and answered 290, ones first, so that each digit needs only what stands
before it. The choices are the answer and three near it. Train and test share no pair of numbers, in either
order.

Exact match lets the model write greedily, questions of one length together, so that nothing is padded.
Multiple choice takes the likeliest answer, as lm-evaluation-harness scores HellaSwag:

$$ \text{acc}: \arg\max_c L_c \qquad \text{acc\_norm}: \arg\max_c L_c / n_c
   \qquad L_c = \sum_t \log p(c_t \mid prompt, c_{<t}) $$

with $n_c$ the characters of a choice. Both work on token ids and need no harness; its own tasks take the
extra 'finegauge[harness]', and nothing is fetched but a task's own data set.
"""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from math import ceil
from random import Random
from typing import Any, NamedTuple, TypeVar

import torch
from torch.nn.functional import cross_entropy
from transformers import AutoTokenizer

from finegauge.catalogue.datasets import holds_texts
from finegauge.data.records import Bad, chunks, row_name, source_of
from finegauge.data.tokenizer import load_tokenizer, tokenizer_file
from finegauge.errors import FieldError, FileFormatError, InputError, UnknownNameError, UnsupportedError
from finegauge.measurement.batches import IGNORED, Batch, answered
from finegauge.measurement.build import checkpoint_folder
from finegauge.measurement.instruments.clocks import NoClock
from finegauge.measurement.instruments.router_probe import RouterProbe, summary
from finegauge.measurement.options import Options
from finegauge.measurement.phases.fine_tuning import FineTuning, supervised
from finegauge.measurement.phases.training import inference, optimizer_of
from finegauge.measurement.subject import Phase, Subject
from finegauge.progress import Heard, told
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


ALPHABET = "0123456789+-="
OPERATIONS = ("+", "-")
NUM_CHOICES = 4


def arithmetic(
    operation: str = "+", *, num_train: int = 4000, num_test: int = 200, digits: int = 2, seed: int = 0
) -> Task:
    """Return the task of adding ("+"), or of the distance of ("-"), two numbers of `digits` digits.

    `num_train` questions are learnt from and `num_test` others asked; `seed` draws them.

    Raises: FieldError where there are fewer questions than asked for.
    """
    largest = 10**digits
    pairs = [(one, other) for one in range(largest) for other in range(one, largest)]
    if operation not in OPERATIONS or not 0 < num_test < len(pairs) or num_train < 1:
        raise FieldError(
            f"arithmetic takes one of {' '.join(OPERATIONS)}, at least 1 question to learn from, and 1 to "
            f"{len(pairs) - 1:,} to be asked at {digits} digits."
        )
    draw = Random(seed)
    draw.shuffle(pairs)
    known = [pair for one, other in pairs[num_test:] for pair in {(one, other), (other, one)}]
    if num_train > len(known):
        raise FieldError(
            f"{num_train:,} questions to learn from are asked for, but {digits} digits give {len(known):,} "
            f"beside {num_test:,} in the test; use fewer, or more digits."
        )
    draw.shuffle(known)
    asked = [pair if draw.random() < 0.5 else pair[::-1] for pair in pairs[:num_test]]
    return Task(
        f"arithmetic {operation}",
        [_arithmetic_question(operation, pair, digits, draw) for pair in known[:num_train]],
        [_arithmetic_question(operation, pair, digits, draw) for pair in asked],
    )


def encode(text: str) -> Ids:
    """Return the token ids of a text of the alphabet."""
    return tuple(map(ALPHABET.index, text))


def decode(ids: Ids) -> str:
    """Return the text of token ids, "?" for those outside the alphabet."""
    return "".join(ALPHABET[i] if 0 <= i < len(ALPHABET) else "?" for i in ids)


def _arithmetic_question(operation: str, pair: tuple[int, int], digits: int, draw: Random) -> Question:
    one, other = pair
    value = one + other if operation == "+" else abs(one - other)
    highest = 2 * 10**digits - 1
    near = [v for v in (value + 1, value - 1, value + 10, value - 10) if 0 <= v <= highest]
    values = [value, *draw.sample(near, min(NUM_CHOICES - 1, len(near)))]
    draw.shuffle(values)
    written = [_reversed(v, digits + 1) for v in values]
    return Question(
        encode(f"{_reversed(one, digits)}{operation}{_reversed(other, digits)}="),
        encode(_reversed(value, digits + 1)),
        tuple(Choice(encode(text), len(text)) for text in written),
        values.index(value),
    )


def _reversed(value: int, digits: int) -> str:
    return f"{value:0{digits}d}"[::-1]


NUM_TRAIN = 4000  # additions, where the run does not say how many
ASKED_FRACTION = 0.1
QUESTIONS = (
    ("question", "answer"),
    ("instruction", "output"),
    ("prompt", "completion"),
    ("problem", "solution"),
)
CONTEXTS, ENDINGS, LABELS = ("ctx", "question", "context"), ("endings", "choices"), ("label", "answer")
NUMBER_FOLLOWS = "####"


def task_of(run: Run, *, seed: int = 0) -> Task:
    """Return the task of `run`.

    Raises: FileFormatError, FieldError for a file of texts that holds no questions, or none short
        enough for the run's seq_len.
    """
    if run.dataset is None or run.tokenizer is None or not holds_texts(run.dataset, has_tokenizer=True):
        return arithmetic(num_train=run.num_samples or NUM_TRAIN, seed=seed)
    tokenizer = load_tokenizer(tokenizer_file(run.tokenizer))
    found = [_question(record, where, tokenizer) for where, record in _records(run.dataset)]
    fitting = [question for question in found if _length(question) <= run.seq_len]
    if len(fitting) < 2:
        raise FieldError(
            f"{run.dataset} holds {len(found)} questions, {len(fitting)} of them within "
            f"seq_len={run.seq_len}; an evaluation needs at least 2, one to learn from and one to ask."
        )
    Random(seed).shuffle(fitting)
    asked = max(1, round(ASKED_FRACTION * len(fitting)))
    return Task(
        run.dataset, fitting[asked:][: run.num_samples], fitting[:asked], right=_judge(tokenizer, fitting)
    )


def _records(path: str) -> Iterator[tuple[str, Any]]:
    """Yield (where it stands, record). Raises: FileFormatError at the first that cannot be read."""
    source = source_of(path)
    for chunk in chunks(source):
        for row, record in zip(chunk.rows, chunk.records, strict=True):
            where = f"{path}, {row_name(source)} {row}"
            if isinstance(record, Bad):
                raise FileFormatError(f"{where}: {record.why}.")
            yield where, record


def _question(record: Any, where: str, tokenizer: Any) -> Question:
    def ids(text: str) -> Ids:
        return tuple(tokenizer.encode(text, add_special_tokens=False).ids)

    known = record if isinstance(record, Mapping) else {}
    context, endings, label = (
        next((known[name] for name in names if name in known), None) for names in (CONTEXTS, ENDINGS, LABELS)
    )
    if isinstance(context, str) and isinstance(endings, list) and str(label).isdecimal():
        right = int(str(label))
        if not 0 <= right < len(endings):
            raise FileFormatError(f"{where}: the right ending is number {right} of {len(endings)}.")
        texts = [f" {ending}" for ending in endings]
        choices = tuple(Choice(ids(text), len(text)) for text in texts)
        return Question(ids(context), choices[right].ids, choices, right)
    for asked, answer in QUESTIONS:
        if isinstance(known.get(asked), str) and isinstance(known.get(answer), str):
            return Question(ids(f"{known[asked]}\n"), ids(known[answer]))
    raise FileFormatError(
        f"{where}: a record to evaluate on needs a question and its answer ({QUESTIONS[0][0]}, "
        f"{QUESTIONS[0][1]}), or a text, its endings and the right one ({CONTEXTS[0]}, {ENDINGS[0]}, "
        f"{LABELS[0]})."
    )


def _length(question: Question) -> int:
    answers = [question.answer, *(choice.ids for choice in question.choices)]
    return len(question.prompt) + max(map(len, answers))


def _judge(tokenizer: Any, questions: list[Question]) -> Judge:
    """Return the judge of answers: by their number where all right answers name one, else by their tokens."""
    if not all(NUMBER_FOLLOWS in tokenizer.decode(list(question.answer)) for question in questions):
        return same_tokens

    def same_number(question: Question, written: Ids) -> bool:
        wanted, found = (number_in(tokenizer.decode(list(ids))) for ids in (question.answer, written))
        return found is not None and found == wanted

    return same_number


def number_in(text: str) -> str | None:
    """Return the number after "####" in a text of GSM8K's form, as lm-evaluation-harness's strict match does.

    None where there is none.
    """
    found = NUMBER.search(text)
    return found[1].replace(",", "").replace("$", "").rstrip(".") if found else None


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
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise InputError(f"tokenizer={folder} cannot be loaded: {str(error).splitlines()[0]}") from None


RANDOM_WEIGHTS_RATE = 3e-3  # what weights that know nothing learn arithmetic with
CHECKPOINT_RATE = 5e-5  # what the seed paper tunes with
WARM_UP_STEPS = 50
FINAL_RATIO = 0.05


def evaluate(phase: Phase, options: Options, heard: Heard | None = None) -> dict[str, Any]:
    """Return the accuracy of a phase's model by epoch, as JSON; its weights are tuned on the way.

    A phase that trains nothing is only asked the questions. The task is the run's own data set
    where that is a file of questions, and arithmetic where it is not.
    """
    subject, run = phase.subject, phase.subject.run
    epochs = 0 if phase.optimizer is None else ceil(run.epochs)
    return tune(subject, task_of(run, seed=options.seed), epochs=epochs, seed=options.seed, heard=heard)


def tune(
    subject: Subject,
    task: Task,
    *,
    epochs: int,
    learning_rate: float | None = None,
    seed: int = 0,
    heard: Heard | None = None,
) -> dict[str, Any]:
    """Tune `subject` on a task, and return how good it is before and after each epoch, as JSON.

    Its run says batch, optimizer and precision. `learning_rate` is the highest of the schedule; by default it
    follows from whether the weights are random. `seed` is that of the order of the questions.
    """
    run = subject.run
    rate = learning_rate or (CHECKPOINT_RATE if checkpoint_folder(run) else RANDOM_WEIGHTS_RATE)
    batch_size = min(run.micro_batch_size, len(task.train))
    steps = max(1, len(task.train) // (batch_size * run.gradient_accumulation_steps))
    optimizer = optimizer_of(run, subject.trained, learning_rate=rate) if epochs else None
    data = batches_of(task.train, batch_size, subject.device, seed)
    phase = supervised(subject, optimizer, data)
    before = experts_of(subject, task.test)
    found = [score(subject, task, 0, None, 0.0)]
    schedule = _schedule(rate, steps * epochs)
    for epoch in told(heard, "evaluate", epochs):
        found.append(score(subject, task, epoch + 1, *_trained(phase, steps, schedule)))
    after = experts_of(subject, task.test) if epochs else before
    return {
        "task": task.name,
        "num_train": len(task.train),
        "num_test": len(task.test),
        "batch_size": batch_size * run.gradient_accumulation_steps,
        "learning_rate": rate,
        "epochs": found,
        "experts_before": before,  # the router probe's document on the test questions; empty without
        "experts_after": after,
    }


def score(subject: Subject, task: Task, epoch: int, loss: float | None, train_s: float) -> dict[str, Any]:
    """Return how good the model is now, after so many epochs.

    `loss` is the mean over the last one's steps, of the answers' tokens; `train_s` the seconds of its steps.
    """
    choices = multiple_choice(subject.model, task.test)._asdict() if task.test[0].choices else {}
    choices.pop("num_questions", None)
    exact = exact_match_fraction(subject.model, task.test, right=task.right)
    return {"epoch": epoch, "exact_match_fraction": exact, **choices, "loss": loss, "train_s": train_s}


def experts_of(subject: Subject, questions: Sequence[Question]) -> dict[str, Any]:
    """Return the load of the experts while the model reads the questions and their answers."""
    batches = batches_of(questions, min(64, len(questions)), subject.device, 0)
    with inference(subject.model), RouterProbe(subject.model) as probe:
        for _ in range(max(1, len(questions) // 64)):
            batch = next(batches)
            subject.model(input_ids=batch.input_ids, attention_mask=batch.attention_mask, use_cache=False)
    return summary(probe.counts)


def batches_of(
    questions: Sequence[Question], batch_size: int, device: torch.device, seed: int
) -> Iterator[Batch]:
    """Yield batches of questions with their answers, every question once before any comes again."""
    dice = Random(seed)
    while True:
        order = dice.sample(range(len(questions)), len(questions))
        for first in range(0, len(order) - batch_size + 1, batch_size):
            chosen = [questions[place] for place in order[first : first + batch_size]]
            yield answered([(question.prompt, question.answer) for question in chosen], device)


def _schedule(rate: float, steps: int) -> Iterator[float]:
    for step in count(1):
        yield rate * min(1.0, step / WARM_UP_STEPS, max(FINAL_RATIO, 1.0 - step / max(1, steps)))


def _trained(phase: FineTuning, steps: int, schedule: Iterator[float]) -> tuple[float, float]:
    total, begin = 0.0, time.perf_counter()
    phase.subject.model.train()
    for _ in range(steps):
        rate = next(schedule)
        for group in phase.optimizer.param_groups:
            group["lr"] = rate
        total += phase.step(NoClock()).loss or 0.0
    return total / steps, time.perf_counter() - begin
