"""Every sample of a data set in tokens: read, rendered and tokenised as a stream.

    files -> chunks of records -> texts -> tokens -> three numbers a sample

While the library `tokenizers` works on one chunk in its own threads (all cores; `RAYON_NUM_THREADS` says
otherwise), the next is read and rendered here. At most three chunks are held at a time, so that memory
does not grow with the data set but for twelve bytes a sample.
"""

import os
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from finegauge.errors import FileFormatError, InputError
from finegauge.workload.dataset_files import cache
from finegauge.workload.dataset_files.chat_template import Spans
from finegauge.workload.dataset_files.formats import FORMATS
from finegauge.workload.dataset_files.lengths import Lengths
from finegauge.workload.dataset_files.records import chunks
from finegauge.workload.dataset_files.rendering import (
    AUTO,
    Rendered,
    check_format,
    rendering,
    template_source,
)
from finegauge.workload.dataset_files.source import Source, source_of
from finegauge.workload.dataset_files.tally import Tally
from finegauge.workload.dataset_files.tokenizer import TokenizerFiles, load, stamps, tokenizer_files

if TYPE_CHECKING:
    from concurrent.futures import Future

Heard = Callable[[float, int], None]  # the share of the data set that is read, and the samples so far
T = TypeVar("T")

SPACE_TRIED = 8  # characters at the edge of an answer that may belong to no token
MOST_REMEMBERED = 4
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
    stamp = cache.stamp_of(source)
    asked = (path, stamp, stamps(tokenizer), wanted, template, _written(template))
    if asked not in _REMEMBERED:
        files = tokenizer_files(tokenizer)
        key = _key(source, files, wanted, template or AUTO)
        found = cache.load(key, path)
        if found is None:
            found = _count(source, files, wanted, template, key, heard)
            if cache.stamp_of(source) != stamp:
                raise InputError(f"{path} was written to while it was read; count it again when it is whole.")
            cache.store(key, found)
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
    for _, some in _samples(source, files, None, None, _ids, Tally(source)):
        found.extend(some)
    return found


def _key(source: Source, files: TokenizerFiles, wanted: str | None, template: str) -> str:
    """Return what the lengths follow from."""
    decides = (cache.content_of(source), files.digest, wanted, template, template_source(template, files))
    return sha256(repr(decides).encode("utf-8", "surrogatepass")).hexdigest()


def _written(template: str | None) -> float | None:
    """Return when a template of the user's own was written."""
    return os.path.getmtime(template) if template is not None and os.path.isfile(template) else None


def _count(
    source: Source,
    files: TokenizerFiles,
    wanted: str | None,
    template: str | None,
    key: str,
    heard: Heard | None,
) -> Lengths:
    """Return the lengths of a data set, counted now."""
    tokens, loss_tokens, rows = array("I"), array("I"), array("I")
    tally = Tally(source)
    for some_rows, some in _samples(source, files, wanted, template, _count_of, tally, heard):
        rows.extend(some_rows)
        tokens.extend(one.num_tokens for one in some)
        loss_tokens.extend(one.num_loss for one in some)
    return Lengths(source.path, tokens, loss_tokens, rows, key, tally.findings(loss_tokens.count(0)))


def _samples(
    source: Source,
    files: TokenizerFiles,
    wanted: str | None,
    template: str | None,
    take: Callable[[Rendered, Any], T],
    tally: Tally,
    heard: Heard | None = None,
) -> Iterator[tuple[list[int], list[T]]]:
    """Yield (rows, what `take` makes of each sample), chunk by chunk.

    Raises: FileFormatError where no record holds a text.
    """
    tokenizer = load(files.file)
    made = rendering(template, files, lambda text: tokenizer.token_to_id(text) is not None)
    total_bytes, num_samples = max(1, source.num_bytes), 0
    jobs = ((*tally.rendered(chunk, made, wanted), chunk.done_bytes) for chunk in chunks(source))
    for rows, encoded, done_bytes in _one_ahead(jobs, partial(_encoded, tokenizer, take)):
        kept = tally.kept(rows, encoded.result())
        num_samples += len(kept[0])
        if heard is not None:
            heard(min(1.0, done_bytes / total_bytes), num_samples)
        yield kept
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
    """Return what `take` makes of each text; None where the library cannot read it."""
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
    """Return a sample's tokens."""
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
    """Return the token of the first of these characters that is in one."""
    return next((token for at in characters if (token := encoding.char_to_token(at)) is not None), None)
