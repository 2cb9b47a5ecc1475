"""Which questions a run is evaluated on: those of its data set's file, or arithmetic.

A record is a question and its answer, by the names of `QUESTIONS`, or a text with endings of which one is
right (HellaSwag's names and their like). An answer that ends in "#### 42", as GSM8K's do, counts by that
number. A tenth of the records is asked, and never learnt from.

Arithmetic is additions and subtractions that a model of a million parameters learns in a minute: "34+58="
is asked as 43+85= and answered 290, ones first, so that each digit needs only what stands before it. The
choices are the answer and three near it. Train and test share no pair of numbers, in either order.
"""

from collections.abc import Iterator, Mapping
from random import Random
from typing import Any

from finegauge.catalogue.datasets import holds_texts
from finegauge.data.records import Bad, chunks, row_name, source_of
from finegauge.data.tokenizer import load_tokenizer, tokenizer_file
from finegauge.errors import FieldError, FileFormatError
from finegauge.measurement.evaluation.scores import Choice, Ids, Judge, Question, Task, number_in, same_tokens
from finegauge.run.run import Run

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
    context, endings, label = (_first(known, names) for names in (CONTEXTS, ENDINGS, LABELS))
    if isinstance(context, str) and isinstance(endings, list) and str(label).isdecimal():
        right = int(label)
        if not 0 <= right < len(endings):
            raise FileFormatError(f"{where}: the right ending is number {right} of {len(endings)}.")
        texts = [f" {ending}" for ending in endings]
        choices = tuple(Choice(ids(text), len(text)) for text in texts)
        return Question(ids(context), choices[right].ids, choices, right)
    for asked, answered in QUESTIONS:
        if isinstance(known.get(asked), str) and isinstance(known.get(answered), str):
            return Question(ids(f"{known[asked]}\n"), ids(known[answered]))
    raise FileFormatError(
        f"{where}: a record to evaluate on needs a question and its answer ({QUESTIONS[0][0]}, "
        f"{QUESTIONS[0][1]}), or a text, its endings and the right one ({CONTEXTS[0]}, {ENDINGS[0]}, "
        f"{LABELS[0]})."
    )


def _first(record: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((record[name] for name in names if name in record), None)


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
