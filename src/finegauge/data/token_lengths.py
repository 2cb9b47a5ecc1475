"""The length in tokens of every sample of a data set of texts, kept between calls.

    files -> chunks of records -> texts -> tokens -> three numbers a sample

While the library `tokenizers` works on one chunk in its own threads (all cores; `RAYON_NUM_THREADS` says
otherwise), the next is read and rendered. At most three chunks are held at a time, so that memory
does not grow with the data set but for twelve bytes a sample. All this is done in a process of its own
(`sandbox.apart`): a chat template or tokenizer of unknown origin that takes too long over a chunk, or too
much memory, ends with it.

Lengths are kept in `$FINEGAUGE_CACHE_DIR/lengths/KEY.lengths` (`~/.cache/finegauge/lengths`), named after the
hash of the data set's content, of the tokenizer's files, and of how records are rendered. Hashing reads the
whole data set, at about a gigabyte a second; therefore the hash itself is kept under a file's path, size,
inode and times (`STAMP.stamp`), unless it was written within the last seconds. An entry ends with its own
hash: one that is damaged counts as absent and is written anew. The folder can be deleted at any time.
"""

import json
import os
import sys
import time
from array import array
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from hashlib import file_digest, sha256
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from finegauge.catalogue.datasets import Dataset
from finegauge.data.record_formats import FORMATS, USED_KEYS, Unreadable, read_record
from finegauge.data.records import Bad, Chunk, Source, chunks, row_name, source_of
from finegauge.data.rendering import (
    AUTO,
    Rendered,
    Rendering,
    Spans,
    check_format,
    in_words,
    rendering,
    template_source,
)
from finegauge.data.tokenizer import TokenizerFiles, load_tokenizer, stamps, tokenizer_files
from finegauge.documents import cache_path, open_regular, write_whole
from finegauge.errors import FileFormatError, InputError, shown
from finegauge.progress import Heard, Progress
from finegauge.sandbox import apart

if TYPE_CHECKING:
    from concurrent.futures import Future

MOST_SHOWN = 20  # rows that are listed one by one; all are counted
MOST_SHAPES = 1000  # sets of keys that are told apart
NO_TEXT = "it holds characters that are no Unicode (a lone surrogate)"
T = TypeVar("T")
FOLDER = "lengths"  # of the cache
SCHEMA = 1
SETTLED_AFTER_S = 2.0  # file systems keep times to within this
_DIGEST_BYTES = 32
WITHIN_S = 60.0  # one chunk: of 1 MiB, or one record of at most 32 MiB
MOST_MEMORY_BYTES = 4 * 2**30  # of the process that reads, renders and counts
SPACE_TRIED = 8  # characters at the edge of an answer that may belong to no token
MOST_REMEMBERED = 4


class Findings(NamedTuple):
    """What reading a data set found beside its lengths."""

    formats: tuple[tuple[str, int], ...]  # how many samples are of which format, the commonest first
    row_name: str  # what `Lengths.rows` counts: "line" or "record"
    num_rows: int  # read, whether or not a sample came of them
    num_bytes: int  # of the files
    num_empty: int
    empty_rows: tuple[int, ...]  # the first MOST_SHOWN
    num_unreadable: int
    unreadable: tuple[tuple[int, str], ...]  # (row, why), the first MOST_SHOWN
    num_without_answer: (
        int  # samples of a question and no answer: where only answers count, they teach nothing
    )
    unused_keys: tuple[tuple[str, int], ...]  # keys of records that no format reads, the commonest first
    notes: tuple[str, ...]  # what was chosen on the way: the template, the split


@dataclass(frozen=True, slots=True)
class Lengths:
    """The samples of a data set under a tokenizer, in the order of the file."""

    path: str
    tokens: "array[int]"  # of each sample, the special tokens included; unsigned, 32 bits, as the next two
    loss_tokens: "array[int]"  # of these, what is learnt where questions are masked: answers, or a text whole
    rows: "array[int]"  # where each sample stands, from 1; see `Findings.row_name`
    content: str  # hash of the data, the tokenizer and the way of rendering
    findings: Findings

    @property
    def num_samples(self) -> int:
        """Return how many samples there are, the empty and unreadable ones left out."""
        return len(self.tokens)

    @property
    def num_tokens(self) -> int:
        """Return the tokens of all samples together."""
        return sum(self.tokens)

    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Return (length in tokens, how many samples), the shortest first."""
        return tuple(sorted(Counter(self.tokens).items()))

    def place(self, sample: int) -> str:
        """Return where a sample stands, for a message: "line 17"."""
        return f"{self.findings.row_name} {self.rows[sample]:,}"


class Tally:
    """The findings about one data set, so far."""

    def __init__(self, source: Source) -> None:
        """Begin with nothing found."""
        self.source = source
        self.num_rows = 0
        self.formats: Counter[str] = Counter()
        self.shapes: Counter[tuple[object, ...]] = Counter()  # the keys of records, as they stand in order
        self.empty: list[int] = []
        self.unreadable: list[tuple[int, str]] = []
        self.num_empty = self.num_unreadable = 0
        self.made: Rendering | None = None

    def rendered(self, chunk: Chunk, made: Rendering, wanted: str | None) -> tuple[list[int], list[Rendered]]:
        """Return the texts of a chunk and where they stand; empty and unreadable records are noted."""
        self.made = made
        self.num_rows += len(chunk.rows)
        rows, texts = [], []
        for row, record in zip(chunk.rows, chunk.records, strict=True):
            if isinstance(record, Bad):
                self._refuse(row, record.why)
                continue
            if isinstance(record, dict) and (len(self.shapes) < MOST_SHAPES or tuple(record) in self.shapes):
                self.shapes[tuple(record)] += 1
            try:
                name, content = read_record(record, wanted)
                text = made.render(content)
            except Unreadable as error:
                self._refuse(row, str(error))
                continue
            if text.is_empty:
                self._leave_out(row)
            else:
                self.formats[name] += 1
                rows.append(row)
                texts.append(text)
        return rows, texts

    def kept(self, rows: list[int], samples: list[T | None]) -> tuple[list[int], list[T]]:
        """Return the samples that are some, and where they stand; None is one that could not be encoded."""
        kept_rows, kept = [], []
        for row, sample in zip(rows, samples, strict=True):
            if sample is None:
                self._refuse(row, NO_TEXT)
            elif sample:
                kept_rows.append(row)
                kept.append(sample)
            else:
                self._leave_out(row)
        return kept_rows, kept

    def _refuse(self, row: int, why: str) -> None:
        self.num_unreadable += 1
        if len(self.unreadable) < MOST_SHOWN:
            self.unreadable.append((row, why))

    def _leave_out(self, row: int) -> None:
        self.num_empty += 1
        if len(self.empty) < MOST_SHOWN:
            self.empty.append(row)

    def nothing_found(self) -> str:
        """Return why there is no sample at all, for an error."""
        path = self.source.path
        if self.unreadable:
            row, why = self.unreadable[0]
            more = f" (and {self.num_unreadable - 1:,} more)" if self.num_unreadable > 1 else ""
            return f"{path}, {row_name(self.source)} {row}{more}: {why}."
        return f"{path} holds no text; each record needs a 'text' or a question and its answer."

    def findings(self, num_without_answer: int) -> Findings:
        """Return what was found."""
        unused: Counter[str] = Counter()
        for keys, count in self.shapes.items():
            unused.update({str(key)[:80]: count for key in keys if key not in USED_KEYS})
        formats = tuple(self.formats.most_common())
        chosen = in_words(self.made, tuple(name for name, _ in formats)) if self.made is not None else ""
        return Findings(
            formats=formats,
            row_name=row_name(self.source),
            num_rows=self.num_rows,
            num_bytes=self.source.num_bytes,
            num_empty=self.num_empty,
            empty_rows=tuple(sorted(self.empty)),
            num_unreadable=self.num_unreadable,
            unreadable=tuple(sorted(self.unreadable)),
            num_without_answer=num_without_answer,
            unused_keys=tuple(unused.most_common(MOST_SHOWN)),
            notes=tuple(note for note in (*self.source.notes, chosen) if note),
        )


def stamp_of(source: Source) -> str:
    """Return what tells the files of a data set from what they were before, without reading them.

    Raises: InputError where one cannot be found.
    """
    try:
        known = [(os.path.realpath(file), os.stat(file)) for file in source.files]
    except OSError as error:
        raise InputError(f"Cannot read {shown(source.path)}: {error.strerror or error}.") from None
    parts = [(path, at.st_size, at.st_ino, at.st_mtime_ns, at.st_ctime_ns) for path, at in known]
    return sha256(repr((SCHEMA, parts)).encode("utf-8", "surrogatepass")).hexdigest()


def content_of(source: Source) -> str:
    """Return the hash of a data set's content, from its stamp where that is known.

    Raises: InputError where a file cannot be read.
    """
    stamp = cache_path(FOLDER, f"{stamp_of(source)[:32]}.stamp")
    kept = _read(stamp)
    if kept is not None and len(kept) == 2 * _DIGEST_BYTES and kept.isalnum():
        return kept.decode()
    whole = sha256(repr([os.path.splitext(file)[1] for file in source.files]).encode())
    try:
        for path in source.files:
            with open(open_regular(path, links=True), "rb") as file:
                whole.update(file_digest(file, "sha256").digest())
        youngest = max(max(os.stat(file).st_mtime, os.stat(file).st_ctime) for file in source.files)
    except OSError as error:
        raise InputError(f"Cannot read {shown(source.path)}: {error.strerror or error}.") from None
    if time.time() - youngest > SETTLED_AFTER_S:
        _keep(stamp, whole.hexdigest().encode())
    return whole.hexdigest()


def load_lengths(key: str, path: str) -> Lengths | None:
    """Return the lengths kept under `key`, as those of `path`; None where there are none, or damaged ones."""
    whole = _read(_entry(key))
    if whole is None or sha256(whole[:-_DIGEST_BYTES]).digest() != whole[-_DIGEST_BYTES:]:
        return None
    try:
        head, _, body = memoryview(whole)[:-_DIGEST_BYTES].tobytes().partition(b"\n")
        known = json.loads(head)
        if known["schema"] != SCHEMA or known["byteorder"] != sys.byteorder or known["key"] != key:
            return None
        size = known["num_samples"] * array("I").itemsize
        tokens, loss_tokens, rows = (array("I", body[n * size : (n + 1) * size]) for n in range(3))
        findings = Findings(**{name: _tuples(value) for name, value in known["findings"].items()})
        return Lengths(path, tokens, loss_tokens, rows, key, findings)
    except (ValueError, KeyError, TypeError):
        return None


def store_lengths(key: str, lengths: Lengths) -> None:
    """Keep lengths under `key`, whole or not at all; where the cache cannot be written, they are not kept."""
    head = {
        "schema": SCHEMA,
        "key": key,
        "byteorder": sys.byteorder,
        "num_samples": lengths.num_samples,
        "findings": lengths.findings._asdict(),
    }
    columns = (lengths.tokens, lengths.loss_tokens, lengths.rows)
    whole = b"".join([json.dumps(head).encode(), b"\n", *(column.tobytes() for column in columns)])
    _keep(_entry(key), whole + sha256(whole).digest())


def _entry(key: str) -> str:
    return cache_path(FOLDER, f"{key[:32]}.lengths")


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _keep(path: str, content: bytes) -> None:
    with suppress(OSError):  # a cache that cannot be written keeps nothing
        write_whole(path, content)


def _read(path: str) -> bytes | None:
    try:
        with open(open_regular(path), "rb") as file:
            return file.read()
    except OSError:
        return None


_REMEMBERED: OrderedDict[object, Lengths] = OrderedDict()


class Count(NamedTuple):
    """One sample."""

    num_tokens: int
    num_loss: int

    def __bool__(self) -> bool:
        """Return whether there is anything to learn from."""
        return self.num_tokens > 0


def token_lengths(
    path: str,
    tokenizer: str,
    *,
    format: str | None = None,
    template: str | None = None,
    heard: Heard | None = None,
) -> Lengths:
    """Return how long every sample of a data set is, from the cache where it was counted before.

    Args:
        path: A file, or a folder of `datasets`; see `source`.
        tokenizer: A `tokenizer.json`, or the folder that holds it.
        format: A name of `formats.FORMATS`; None: told record by record.
        template: A name of `rendering.TEMPLATES` or a file; None: auto.
        heard: Is told how far the reading is.
    Raises: InputError where something cannot be read, changes meanwhile or holds no text, UnsupportedError
        where a library is missing.
    """
    wanted = check_format(format, tuple(FORMATS))
    source = source_of(path)
    stamp = stamp_of(source)
    written = os.path.getmtime(template) if template is not None and os.path.isfile(template) else None
    asked = (path, stamp, stamps(tokenizer), wanted, template, written)
    if asked not in _REMEMBERED:
        files = tokenizer_files(tokenizer)
        key = _key(source, files, wanted, template or AUTO)
        found = load_lengths(key, path)
        if found is None:
            found = _count(source, files, wanted, template, key, heard)
            if stamp_of(source) != stamp:
                raise InputError(f"{path} was written to while it was read; count it again when it is whole.")
            store_lengths(key, found)
        _REMEMBERED[asked] = found
        while len(_REMEMBERED) > MOST_REMEMBERED:
            _REMEMBERED.popitem(last=False)
    return _REMEMBERED[asked]


def token_ids(path: str, tokenizer: str) -> list[list[int]]:
    """Return the tokens of every sample of a data set, the samples of `token_lengths` in their order.

    Raises: as `token_lengths` does.
    """
    source, files = source_of(path), tokenizer_files(tokenizer)
    found: list[list[int]] = []
    for some in _apart(source, _read_ids, (source, files)):
        found.extend(some)
    return found


def text_dataset(path: str, tokenizer: str) -> Dataset:
    """Return the lengths of the texts at `path`, under `tokenizer`. Raises: as `token_lengths` does."""
    return _dataset(path, tokenizer, token_lengths(path, tokenizer).content)


@lru_cache(maxsize=4)
def _dataset(path: str, tokenizer: str, content: str) -> Dataset:
    """Return lengths as a data set of the catalogue has them; `content` tells one data set from another."""
    del content
    lengths = token_lengths(path, tokenizer)
    found = lengths.findings
    missed = found.num_unreadable + found.num_empty
    left_out = f" ({missed:,} of {found.num_rows:,} {found.row_name}s empty or unreadable)" if missed else ""
    return Dataset.of_lengths(
        lengths.path, lengths.pairs(), tokenizer=tokenizer, source=lengths.path + left_out
    )


def _key(source: Source, files: TokenizerFiles, wanted: str | None, template: str) -> str:
    decides = (content_of(source), files.digest, wanted, template, template_source(template, files))
    return sha256(repr(decides).encode("utf-8", "surrogatepass")).hexdigest()


def _count(
    source: Source,
    files: TokenizerFiles,
    wanted: str | None,
    template: str | None,
    key: str,
    heard: Heard | None,
) -> Lengths:
    for one in _apart(source, _read_lengths, (source, files, wanted, template, key)):
        if isinstance(one, Lengths):
            return one
        if heard is not None:
            heard(one)
    raise AssertionError("the last are the lengths")


def _apart(source: Source, read: Callable[..., Iterator[T]], args: tuple[Any, ...]) -> Iterator[T]:
    """Yield what `read` yields, in a process with limits. Raises: FileFormatError where it keeps none."""
    whose = "the chat template (another: --template) or the tokenizer is at fault, or the data set"
    try:
        yield from apart(read, args, MOST_MEMORY_BYTES, WITHIN_S)
    except (OSError, EOFError, MemoryError) as error:
        why = f"The process that counted the tokens of {source.path} ended; it may have run out of memory"
        if isinstance(error, TimeoutError | MemoryError):
            most = f"{MOST_MEMORY_BYTES / 2**30:g} GiB"
            if isinstance(error, TimeoutError):
                most = f"{WITHIN_S:g} s over a few records"
            why = f"Counting the tokens of {source.path} took more than {most}, and was ended"
        raise FileFormatError(f"{why}; {whose}.") from None


def _read_lengths(
    source: Source, files: TokenizerFiles, wanted: str | None, template: str | None, key: str
) -> Iterator[Progress | Lengths]:
    """Yield how far the reading is, and the lengths at last."""
    tokens, loss_tokens, rows = array("I"), array("I"), array("I")
    tally, total_bytes = Tally(source), max(1, source.num_bytes)
    for some_rows, some, done_bytes in _samples(source, files, wanted, template, _count_of, tally):
        rows.extend(some_rows)
        tokens.extend(one.num_tokens for one in some)
        loss_tokens.extend(one.num_loss for one in some)
        yield Progress(f"{len(rows):,} samples", min(done_bytes, total_bytes), total_bytes)
    yield Lengths(source.path, tokens, loss_tokens, rows, key, tally.findings(loss_tokens.count(0)))


def _read_ids(source: Source, files: TokenizerFiles) -> Iterator[list[list[int]]]:
    for _, some, _ in _samples(source, files, None, None, _ids, Tally(source)):
        yield some


def _samples(
    source: Source,
    files: TokenizerFiles,
    wanted: str | None,
    template: str | None,
    take: Callable[[Rendered, Any], T],
    tally: Tally,
) -> Iterator[tuple[list[int], list[T], int]]:
    """Yield (rows, `take` of each sample, bytes read), chunk by chunk.

    Raises: FileFormatError where no record holds a text.
    """
    tokenizer = load_tokenizer(files.file)
    made = rendering(template, files, lambda text: tokenizer.token_to_id(text) is not None)
    num_samples = 0
    jobs = ((*tally.rendered(chunk, made, wanted), chunk.done_bytes) for chunk in chunks(source))
    for rows, encoded, done_bytes in _one_ahead(jobs, partial(_encoded, tokenizer, take)):
        kept = tally.kept(rows, encoded.result())
        num_samples += len(kept[0])
        yield *kept, done_bytes
    if not num_samples:
        raise FileFormatError(tally.nothing_found())


def _one_ahead(
    jobs: Iterable[tuple[list[int], list[Rendered], int]], work: Callable[[list[Rendered]], list[T | None]]
) -> "Iterator[tuple[list[int], Future[list[T | None]], int]]":
    """Yield (rows, their samples, bytes read): `work` is at one job while the next is made here."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as thread:
        waiting = None
        for rows, texts, done_bytes in jobs:
            following = rows, thread.submit(work, texts), done_bytes
            if waiting is not None:
                yield waiting
            waiting = following
        if waiting is not None:
            yield waiting


def _encoded(tokenizer: Any, take: Callable[[Rendered, Any], T], texts: list[Rendered]) -> list[T | None]:
    found: list[T | None] = [None] * len(texts)
    groups: dict[tuple[bool, bool], list[int]] = {}
    for number, text in enumerate(texts):
        if text.counted is not None:
            found[number] = take(text, None)
        else:
            groups.setdefault((text.is_template, bool(text.answers)), []).append(number)
    for (is_template, has_answers), numbers in groups.items():
        encode = tokenizer.encode_batch if has_answers else tokenizer.encode_batch_fast
        encodings = _tried(encode, [texts[number].text for number in numbers], special=not is_template)
        for number, encoding in zip(numbers, encodings, strict=True):
            if encoding is not None:
                found[number] = take(texts[number], encoding)
    return found


def _tried(encode: Callable[..., list[Any]], texts: list[str], *, special: bool) -> list[Any]:
    """Return the encoding of each text; None for one that is no Unicode (a lone surrogate)."""
    try:
        return encode(texts, add_special_tokens=special)
    except (TypeError, ValueError):
        if len(texts) == 1:
            return [None]
        return [one for text in texts for one in _tried(encode, [text], special=special)]


def _ids(text: Rendered, encoding: Any) -> list[int]:
    return text.counted.ids if text.counted is not None else list(encoding.ids)


def _count_of(text: Rendered, encoding: Any) -> Count:
    """Return how many tokens a sample has, and how many of them are learnt where questions are masked."""
    if text.counted is not None:
        return Count(len(text.counted.ids), text.counted.num_loss)
    num_tokens = len(encoding)
    return Count(num_tokens, num_tokens if text.answers is None else _inside(encoding, text.answers))


def _inside(encoding: Any, spans: Spans) -> int:
    """Return how many tokens reach into the spans of characters."""
    total = 0
    for start, end in spans:
        first = _token(encoding, range(start, min(end, start + SPACE_TRIED)))
        last = _token(encoding, range(end - 1, max(start, end - SPACE_TRIED) - 1, -1))
        if first is not None and last is not None:
            total += last - first + 1
    return total


def _token(encoding: Any, characters: range) -> int | None:
    return next((token for at in characters if (token := encoding.char_to_token(at)) is not None), None)
