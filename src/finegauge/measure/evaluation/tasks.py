"""Which questions a run is evaluated on: those of its data set's file, or arithmetic.

A record of a file is a question and its answer, by the names of `QUESTIONS`, or a text with
endings of which one is right (`ctx` or `question`, `endings` or `choices`, `label` or `answer`:
HellaSwag's names and their like). An answer that ends in "#### 42", as GSM8K's do, counts by that
number. A tenth of the records is asked, and never learnt from.
"""

from collections.abc import Iterator, Mapping
from random import Random
from typing import Any

from finegauge.errors import FieldError, FileFormatError
from finegauge.measure.evaluation.arithmetic import arithmetic
from finegauge.measure.evaluation.exact_match import number_in
from finegauge.measure.evaluation.questions import Choice, Ids, Judge, Question, Task, same_tokens
from finegauge.workload.dataset_files.records import Bad, chunks, row_name
from finegauge.workload.dataset_files.source import holds_texts, source_of
from finegauge.workload.dataset_files.tokenizer import load, tokenizer_file
from finegauge.workload.run import Run

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
    tokenizer = load(tokenizer_file(run.tokenizer))
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
        run.dataset,
        fitting[asked:][: run.num_samples],
        fitting[:asked],
        right=_judge(tokenizer, fitting),
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
    """Return the question of one record."""

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
    """Return the value under the first of `names` that the record has."""
    return next((record[name] for name in names if name in record), None)


def _length(question: Question) -> int:
    """Return the tokens of a question with its longest answer."""
    answers = [question.answer, *(choice.ids for choice in question.choices)]
    return len(question.prompt) + max(map(len, answers))


def _judge(tokenizer: Any, questions: list[Question]) -> Judge:
    """Return who says whether an answer is right: by its number where all answers name one."""
    if not all(NUMBER_FOLLOWS in tokenizer.decode(list(question.answer)) for question in questions):
        return same_tokens

    def same_number(question: Question, written: Ids) -> bool:
        wanted, found = (
            number_in(tokenizer.decode(list(ids)), strict=True) for ids in (question.answer, written)
        )
        return found is not None and found == wanted

    return same_number
