"""A data set of texts, in tokens: a JSON or JSONL file read through a local tokenizer.

A record is a text, or a mapping whose text stands under the names that fine-tuning data
commonly has: `text`; a conversation (`messages`, `conversations`); or question and answer
(`instruction`, `input`, `output`; `prompt`, `completion` and so on), joined by line
breaks. Nothing is fetched, and of the tokenizer only its `tokenizer.json` is read.
"""

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from finegauge.errors import FieldError, FileFormatError, InputError, UnsupportedError, shown

if TYPE_CHECKING:
    from finegauge.catalogue.datasets import Dataset

SUFFIXES = (".json", ".jsonl")
MAX_FILE_BYTES = 2_000_000_000
CONVERSATIONS = ("messages", "conversations")
TURNS = ("content", "value")
FIELDS = (
    ("instruction", "input", "output"),
    ("prompt", "completion"),
    ("prompt", "response"),
    ("prompt", "chosen"),
    ("query", "response"),
    ("question", "answer"),
    ("problem", "solution"),
)

Tokens = list[int]


def tokenised(path: str, tokenizer: str) -> list[Tokens]:
    """Return the tokens of every record of the file at `path`, empty ones left out.

    Args:
        path: A JSON list of records, or a JSONL file with one per line.
        tokenizer: A `tokenizer.json`, or the folder that holds it.
    Raises: InputError for a file that cannot be read as texts, UnsupportedError where the
        library `tokenizers` is not installed.
    """
    stamps = tuple(_stamp(file) for file in (path, _tokenizer_file(tokenizer)))
    return _tokenised(path, _tokenizer_file(tokenizer), stamps)


def text_dataset(path: str, tokenizer: str) -> "Dataset":
    """Return the lengths of the texts at `path`, under `tokenizer`."""
    from finegauge.catalogue.datasets import Dataset

    counts = Counter(map(len, tokenised(path, tokenizer)))
    every = sorted(counts.elements())
    return Dataset(
        name=path,
        aliases=(),
        num_samples=len(every),
        lengths=tuple(sorted(counts.items())),
        median_tokens=every[(len(every) - 1) // 2],
        tokenizer=tokenizer,
        source=path,
        checked="",
    )


@lru_cache(maxsize=4)
def _tokenised(path: str, tokenizer: str, stamps: tuple[object, ...]) -> list[Tokens]:
    """Return the tokens of every record; `stamps` tell a file from what it was before."""
    del stamps
    texts = [text for text in _texts(path) if text.strip()]
    found = [encoding.ids for encoding in _tokenizer(tokenizer).encode_batch(texts) if encoding.ids]
    if not found:
        raise FileFormatError(
            f"{path} holds no text; each record needs a 'text' or a question and its answer."
        )
    return found


def _tokenizer(file: str) -> Any:
    """Return the tokenizer of a `tokenizer.json`."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise UnsupportedError(
            "Reading texts needs the library tokenizers: pip install 'finegauge[measure]'. Without it, give "
            "a CSV file of 'length,count' as the data set."
        ) from None
    try:
        return Tokenizer.from_file(file)
    except Exception as error:  # the library raises Exception itself
        raise FileFormatError(f"{file} is not a tokenizer.json: {str(error).splitlines()[0]}.") from None


def _tokenizer_file(named: str) -> str:
    """Return the `tokenizer.json` of a folder, or the file itself."""
    path = os.path.expanduser(named)
    file = os.path.join(path, "tokenizer.json") if os.path.isdir(path) else path
    if not os.path.isfile(file):
        raise InputError(f"tokenizer={named} holds no tokenizer.json; give that file or the folder it is in.")
    return file


def _stamp(path: str) -> tuple[int, int]:
    """Return when a file was written and its size."""
    try:
        known = os.stat(path)
    except OSError as error:
        raise InputError(f"Cannot read {shown(path)}: {error.strerror or error}.") from None
    if known.st_size > MAX_FILE_BYTES:
        raise FileFormatError(
            f"{path} holds {known.st_size / 1e9:.1f} GB of texts; the limit is {MAX_FILE_BYTES / 1e9:.0f} GB."
        )
    return known.st_mtime_ns, known.st_size


def tokenizer_of(named: str) -> Any:
    """Return the tokenizer of a `tokenizer.json`, or of the folder that holds it."""
    return _tokenizer(_tokenizer_file(named))


def _texts(path: str) -> Iterator[str]:
    """Yield the text of every record of a file."""
    for where, record in records(path):
        yield _text(record, where)


def records(path: str) -> Iterator[tuple[str, Any]]:
    """Yield (where it stands, record)."""
    import json

    try:
        with open(path, encoding="utf-8") as file:
            if path.endswith(".jsonl"):
                for number, line in enumerate(file, start=1):
                    if line.strip():
                        yield f"{path}, line {number}", json.loads(line)
                return
            document = json.load(file)
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{path} cannot be read as JSON: {str(error).splitlines()[0]}.") from None
    if not isinstance(document, list):
        raise FileFormatError(
            f"{path} holds no list of records; a data set of texts is a JSON list or JSONL."
        )
    for number, record in enumerate(document, start=1):
        yield f"{path}, record {number}", record


def _text(record: Any, where: str) -> str:
    """Return the text of one record."""
    if isinstance(record, str):
        return record
    if not isinstance(record, Mapping):
        raise FileFormatError(f"{where}: {shown(record)} is neither a text nor a mapping.")
    if isinstance(record.get("text"), str):
        return str(record["text"])
    for key in CONVERSATIONS:
        if isinstance(record.get(key), list):
            return "\n".join(_turn(turn, where) for turn in record[key])
    for names in FIELDS:
        if isinstance(record.get(names[0]), str) and isinstance(record.get(names[-1]), str):
            return "\n".join(str(record[name]) for name in names if record.get(name))
    raise FieldError(
        f"{where}: none of the keys {', '.join(map(str, list(record)[:8]))} holds its text; use 'text', "
        f"'messages', or a pair such as 'prompt' and 'completion'."
    )


def _turn(turn: Any, where: str) -> str:
    """Return what is said in one turn of a conversation."""
    for key in TURNS:
        if isinstance(turn, Mapping) and isinstance(turn.get(key), str):
            return str(turn[key])
    raise FieldError(f"{where}: a turn of the conversation has no text under 'content' or 'value'.")
