"""The Run of a form or a request: a pasted text, with overrides.

A text is what a RUN on the command line may be: a framework's file, a run file, a model's config.json, a
script, a notebook, a launch line or the name of a model. Overrides are fields of a run; three more say how
long the samples are (docs/page.md). Nothing that either names is read from this machine: a path in a pasted
file keeps its last part only, which may be the name of a model, and a script has no files beside it.

    error -> field: the first field that the sentence names, those that were filled in before others
"""

import base64
import json
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from math import ceil, exp
from typing import Any, NamedTuple

from finegauge import documents
from finegauge.errors import FieldError, FileFormatError, FineGaugeError, UnknownKeyError, shown
from finegauge.formats import reading
from finegauge.formats.run_argument import in_words, suffix_of
from finegauge.run.field import number, whole
from finegauge.run.run import FIELDS, FROM_CALLER, FROM_COMMAND_LINE, Run
from finegauge.web.storage import upload_store

MEAN, LONGEST, HISTOGRAM = "mean_tokens", "longest_tokens", "length_counts"
LENGTH_FIELDS = (MEAN, LONGEST, HISTOGRAM)
MOST_TOKENS = 1_000_000
MOST_LINES = 5_000
NUM_STEPS = 200  # lengths of which the histogram of a mean consists, at most
NUM_SAMPLES = 10_000  # it stands for so many, where num_samples is not stated
_LINE = re.compile(r"\s*(\d{1,9})\s*[,;:\s]\s*(\d{1,12})\s*")


def lengths_csv(stated: Mapping[str, str]) -> str:
    """Return the lines `length,count` that the length fields mean; "" where none is stated.

    Raises: FieldError where they contradict each other, or are half stated.
    """
    if stated.get(HISTOGRAM):
        if stated.get(MEAN) or stated.get(LONGEST):
            raise FieldError(f"{HISTOGRAM} says all of the lengths; remove {MEAN} and {LONGEST}.")
        return _csv(_histogram(stated[HISTOGRAM]))
    if not stated.get(MEAN) and not stated.get(LONGEST):
        return ""
    for name, other in ((MEAN, LONGEST), (LONGEST, MEAN)):
        if not stated.get(name):
            raise FieldError(f"{name} is missing: {other} alone does not tell how long samples are.")
    longest = whole(2, MOST_TOKENS, "tokens")(LONGEST, stated[LONGEST])
    mean = number(1.0, float(longest), "tokens")(MEAN, stated[MEAN])
    samples = whole(1, 10**10, "samples")("num_samples", stated.get("num_samples") or NUM_SAMPLES)
    return _csv(of_mean(mean, longest, samples))


@lru_cache(maxsize=64)
def of_mean(mean: float, longest: int, num_samples: int) -> tuple[tuple[int, int], ...]:
    """Return (tokens, samples) of the histogram that assumes least; the longest is always among them."""
    ends = [ceil(longest * ((step + 1) / NUM_STEPS) ** 2) for step in range(NUM_STEPS)]
    lengths = list(dict.fromkeys(ends))  # close together where they are short
    low, high = -50.0 * longest, 50.0 * longest  # of lambda times the longest: the mean rises with it
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _mean(lengths, middle) < mean else (low, middle)
    weights = _weights(lengths, (low + high) / 2)
    total, counts, carried = sum(weights), [], 0.0
    for weight in weights:  # whole samples, none lost to rounding
        carried += num_samples * weight / total
        counts.append(int(carried + 1e-9))
        carried -= counts[-1]
    counts[-1] = max(1, counts[-1])
    return tuple((length, count) for length, count in zip(lengths, counts, strict=True) if count)


def _weights(lengths: list[int], slope: float) -> list[float]:
    """Return the weight of each length, which stands for all above the one before."""
    longest, top = lengths[-1], max(slope, slope * lengths[0] / lengths[-1])
    before = [0, *lengths[:-1]]
    return [
        (length - last) * exp(slope * length / longest - top)
        for last, length in zip(before, lengths, strict=True)
    ]


def _mean(lengths: list[int], slope: float) -> float:
    weights = _weights(lengths, slope)
    return sum(length * weight for length, weight in zip(lengths, weights, strict=True)) / sum(weights)


def _histogram(text: str) -> list[tuple[int, int]]:
    """Return (tokens, samples) of lines such as "512, 1000"; a heading line is passed over."""
    lines = [line for line in text.splitlines() if line.strip()]
    if lines and not any(char.isdigit() for char in lines[0]):
        lines = lines[1:]
    if not lines or len(lines) > MOST_LINES:
        raise FieldError(
            f"{HISTOGRAM} needs 1 to {MOST_LINES:,} lines such as '512,1000', not {len(lines):,}."
        )
    counts: dict[int, int] = {}
    for line in lines:
        found = _LINE.fullmatch(line)
        if found is None:
            raise FieldError(f"{HISTOGRAM}: {shown(line)} is no line such as '512,1000': tokens, samples.")
        length, count = int(found[1]), int(found[2])
        if not 1 <= length <= MOST_TOKENS:
            raise FieldError(f"{HISTOGRAM}: a sample has 1 to {MOST_TOKENS:,} tokens, not {length:,}.")
        counts[length] = counts.get(length, 0) + count
    kept = [(length, count) for length, count in sorted(counts.items()) if count]
    if not kept:
        raise FieldError(f"{HISTOGRAM} holds no samples: every count is 0.")
    return kept


def _csv(pairs: Iterable[tuple[int, int]]) -> str:
    return "length,count\n" + "".join(f"{length},{count}\n" for length, count in pairs)


MAX_DOCUMENT = 100_000  # characters
DOCUMENT = "document"
NOTHING = "null"  # the word for a value that is taken back
YOU = "you"
_SAID_BY = {FROM_COMMAND_LINE: YOU, FROM_CALLER: YOU, "file": "pasted text"}
_NOT_READ = ("output_dir", "logging_dir", "cache_dir", "run_name", "system", "report_to")  # keys of texts
_KINDS = {"model": "model", "GPU": "gpu", "gpu": "gpu", "data set": "dataset", "provider": "provider"}
_FILES = (".json", ".yaml", ".yml", ".csv", ".jsonl", ".txt", ".parquet", ".gz")
_TOKEN = re.compile(r"[^\s,;|'\"]+")
_DRIVE = re.compile(r"[A-Za-z]:[\\/]")
_COUNT = re.compile(r"^\d{1,7}\s*[x×*]\s*|\s*(?:[x×*]\s*\d{1,7}|:\s*\d+)$", re.IGNORECASE)  # of GPUs


class State(NamedTuple):
    """All that somebody has put in: a link restores it."""

    document: str = ""
    overrides: Mapping[str, str] = {}

    @classmethod
    def of(cls, form: Mapping[str, str]) -> "State":
        """Return what a submitted form holds; empty fields are not stated."""
        stated = {name: form[name].strip() for name in (*FIELDS, *LENGTH_FIELDS) if name in form}
        document = form.get(DOCUMENT, "").replace("\r\n", "\n")
        return cls(document, {name: value for name, value in stated.items() if value})


def asked(document: str, overrides: Mapping[str, Any]) -> Run:
    """Return the run that is asked about, whose model, GPU and data set the catalogue knows.

    Raises: InputError or UnsupportedError in one sentence; `field_of` says where it belongs.
    """
    run = described(document, overrides)
    run.check_names()
    return run


def described(document: str, overrides: Mapping[str, Any]) -> Run:
    """Return the run that is stated, whether or not the catalogue knows its names.

    Args:
        document: A pasted text; "" where the overrides state everything.
        overrides: Values by field of a run, as text or as JSON has them.

    Raises: InputError or UnsupportedError in one sentence; `field_of` says where it belongs.
    """
    if len(document) > MAX_DOCUMENT:
        raise FileFormatError(
            f"The pasted text has {len(document):,} characters; at most {MAX_DOCUMENT:,} are read."
        )
    words = {name: _word(name, value) for name, value in overrides.items()}
    for name in words:
        if name not in FIELDS and name not in LENGTH_FIELDS:
            raise UnknownKeyError("overrides", name, known=FIELDS)
    _refuse_paths(words)
    csv = lengths_csv(words)
    words = {name: value for name, value in words.items() if name not in LENGTH_FIELDS}
    if csv:
        words["dataset"] = upload_store().keep(csv, "lengths.csv")
    if document.strip():
        _refuse_paths(reading.inline_fields(document, "pasted.yaml"))
        run = reading.describe(_kept(document), tuple(f"{name}={value}" for name, value in words.items()))
    else:
        words = {name: value for name, value in words.items() if value != NOTHING}
        run = Run.from_fields(words, dict.fromkeys(words, FROM_CALLER))
    _refuse_paths({name: getattr(run, name) for name in _INSTEAD})
    return run


def _kept(document: str) -> str:
    """Return what stands for a pasted text as the RUN of a command: a file, a model's name, a question."""
    word = document.strip()
    model = in_words(word, ())[0] if "\n" not in word else word
    if model != word:  # "llama 3 8b qlora on a 3090"
        refuse_path("model", model)
        return word
    if re.fullmatch(r"[^\s{}\[\]=]+", word) and not word.endswith(":"):
        refuse_path("model", word)
        return word
    suffix = suffix_of(document)
    return upload_store().keep(confined(document) if suffix == ".yaml" else document, f"pasted{suffix}")


def _refuse_paths(values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        refuse_path(name, str(value or ""))


def field_of(error: FineGaugeError, overrides: Mapping[str, Any]) -> str | None:
    """Return the field beside which an error belongs: one of a run, "document", or None of neither."""
    text = str(error)
    if isinstance(error, FileFormatError | UnknownKeyError):
        return None if text.startswith("overrides") else DOCUMENT
    named = [word for word in re.findall(r"\w+", text) if word in FIELDS or word in LENGTH_FIELDS]
    for kind, field in _KINDS.items():
        if text.startswith(f"No {kind} named"):
            named.insert(0, field)
    missing = [name for name in named[:1] if text.startswith(f"{name} is missing")]
    filled = missing or [name for name in named if name in overrides]
    return next(iter(filled or named), DOCUMENT if text.startswith("Cannot read") else None)


def origin_of(run: Run, name: str) -> str:
    """Return who stated a field, as the page says it: you, pasted text, whose default."""
    said = run.origins.get(name, "")
    return _SAID_BY.get(
        said, said.replace("framework default: ", "default of ").replace("FineGauge default", "default")
    )


def shown_value(run: Run, name: str) -> str:
    """Return the value of a field as the page shows it: "" of none, a pasted text by what it is."""
    value = getattr(run, name)
    if isinstance(value, str) and upload_store().holds(value):
        return "the pasted config.json" if name == "model" else "lengths as stated"
    if value is None or value == ():
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:g}"
    return ",".join(value) if isinstance(value, tuple) else str(value)


def confined(document: str) -> str:
    """Return a text that names no path outside its own folder, each such path cut to its last part.

    Raises: FileFormatError for a text that is neither YAML nor JSON.
    """
    keys = documents.parse_yaml(document, "The pasted text")
    cut = _cut(keys)
    if cut == keys or repr(cut) == repr(keys):
        return document
    import yaml

    head = re.match(r"(?:#[^\n]*\n)*", document)
    return (head.group() if head else "") + str(yaml.safe_dump(cut, sort_keys=False, allow_unicode=True))


def _cut(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: _cut(item, str(name)) for name, item in value.items()}
    if isinstance(value, list):
        return [_cut(item, key) for item in value]
    if isinstance(value, str) and key not in _NOT_READ:
        return _TOKEN.sub(lambda f: next(_parts(f[0]), "unnamed") if _leads_out(f[0]) else f[0], value)
    return value


def _parts(path: str) -> Iterator[str]:
    """Yield the parts of a path that are names, the last first."""
    yield from (part for part in reversed(re.split(r"[\\/]+", path)) if part.strip(".~"))


def _leads_out(text: str) -> bool:
    """Return whether `text`, taken as a path, may lead out of a folder."""
    return (
        text.startswith(("/", "~", "\\"))
        or _DRIVE.match(text) is not None
        or ".." in re.split(r"[\\/]", text)
    )


def refuse_path(name: str, value: str) -> None:
    """Raise where a field names a file: of this machine none is read."""
    value = value.strip()
    if name not in _INSTEAD or not value or upload_store().holds(value):
        return
    bare = _COUNT.sub("", value) if name == "gpu" else value
    if (
        name == "tokenizer"
        or (name == "gpu" and bare.casefold() == "here")
        or _leads_out(bare)
        or bare.casefold().endswith(_FILES)
        or os.path.lexists(bare)
    ):
        raise FieldError(
            f"{name}={shown(value)} names a file, and this page reads none of this machine; "
            f"{_INSTEAD.get(name, 'remove it')}."
        )


_INSTEAD = {
    "model": "paste its config.json, or choose a model of the catalogue",
    "dataset": "state its lengths, or choose a data set of the catalogue",
    "gpu": "choose one of the catalogue",
    "tokenizer": "state the lengths of the samples instead",
}


def _word(name: str, value: Any) -> str:
    """Return the value of an override as the command line would have it.

    Raises: FieldError for what is no plain value.
    """
    items = value if isinstance(value, list | tuple) else [NOTHING if value is None else value]
    if not all(isinstance(item, str | int | float) for item in items):
        raise FieldError(f"{shown(name)} must be a plain value or a list of them.")
    text = ",".join(str(item).lower() if isinstance(item, bool) else str(item) for item in items)
    if not text.isprintable() and name not in LENGTH_FIELDS:
        raise FieldError(f"{name}={shown(text)} must be one line of printable characters.")
    if len(text) > 1_000 and name not in LENGTH_FIELDS:
        raise FieldError(f"{shown(name)} has {len(text):,} characters; at most 1,000 are read.")
    return text


MAX_TOKEN = 12_000  # characters: servers and browsers take lines of 16 kB
_MAX_TEXT = 6 * MAX_DOCUMENT  # bytes, unpacked
_BROKEN = "The link is damaged or cut off; ask for it again, or fill in the form."


def token_of(state: State) -> str | None:
    """Return the token of what was put in; "" of nothing, None where it is too long for a link."""
    if not state.document and not state.overrides:
        return ""
    text = json.dumps(
        {"d": state.document, "o": dict(state.overrides)},
        ensure_ascii=False,
        separators=(",", ":"),
        sort_keys=True,
    )
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = packer.compress(text.encode("utf-8", "surrogatepass")) + packer.flush()
    token = base64.urlsafe_b64encode(packed).decode("ascii").rstrip("=")
    return token if len(token) <= MAX_TOKEN else None


def state_of(token: str) -> State:
    """Return what a token carries; nothing of an empty one.

    Raises: FieldError where it is damaged or too large.
    """
    if not token:
        return State()
    if len(token) > MAX_TOKEN:
        raise FieldError(_BROKEN)
    try:
        packed = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        unpacker = zlib.decompressobj(-15)
        raw = unpacker.decompress(packed, _MAX_TEXT)
        if unpacker.unconsumed_tail or not unpacker.eof:
            raise FieldError(_BROKEN)
        found = json.loads(raw.decode("utf-8"))
        document, overrides = found["d"], found["o"]
        pairs = {"document": document, **overrides}
    except (ValueError, zlib.error, KeyError, TypeError, RecursionError):
        raise FieldError(_BROKEN) from None
    if not all(isinstance(value, str) for value in pairs.values()):
        raise FieldError(_BROKEN)
    return State.of({**overrides, "document": document})
