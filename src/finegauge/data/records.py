"""Records out of the files of a data set of texts, as a stream: JSON, JSONL, CSV, text, Parquet, Arrow.

A data set is one file, several shards, or a folder that `datasets` wrote (of its splits, `train`); nothing is
unpacked to disk or run. Memory stays flat. A line that cannot be read costs that line: a `Bad` comes in its
place. Of a `.json` (one list, or one value after the other) nothing is known behind the first mistake.
"""

import gzip
import json
import os
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable, Iterator
from json import JSONDecodeError, JSONDecoder
from typing import IO, Any, NamedTuple

from finegauge.catalogue.datasets import TEXT_SUFFIXES as SUFFIXES
from finegauge.data.tokenizer import INSTALL, read_settings
from finegauge.documents import open_regular
from finegauge.errors import FileFormatError, InputError, UnsupportedError, shown

TRAIN = "train"
RECORDS_AT_A_TIME = 1024
BYTES_AT_A_TIME = 1 << 20
MAX_RECORD_BYTES = 32 << 20
LINE_SUFFIXES = (".jsonl", ".ndjson", ".txt", ".csv", ".tsv")
PIECE_BYTES = 1 << 18
_SPACE = " \t\r\n"


class Source(NamedTuple):
    """The files of a data set, in the order in which they are read."""

    path: str  # as asked for
    files: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def num_bytes(self) -> int:
        """Return the size of all files."""
        return sum(os.path.getsize(file) for file in self.files)


def source_of(path: str) -> Source:
    """Return the files of the data set at `path`.

    Raises: InputError where there is none, FileFormatError where a folder holds no data set.
    """
    place = os.path.expanduser(path)
    if os.path.isdir(place):
        return _folder(path, place)
    if not os.path.isfile(place):
        reason = "is no file" if os.path.exists(place) else "No such file or directory"
        raise InputError(f"Cannot read {shown(path)}: {reason}.")
    if not place.endswith(SUFFIXES):
        raise FileFormatError(
            f"{path} is no data set of a known kind; its name should end in {', '.join(SUFFIXES)}."
        )
    return Source(path, (place,), ())


def _folder(path: str, place: str) -> Source:
    """Return the files of a folder: as `datasets` saved it, or the shards that lie in it."""
    if os.path.isfile(os.path.join(place, "dataset_dict.json")):
        splits = _names(read_settings(os.path.join(place, "dataset_dict.json")).get("splits"), path)
        split = TRAIN if TRAIN in splits else splits[0]
        others = ", ".join(name for name in splits if name != split)
        note = f"split {split} is read" + (f", {others} left out" if others else "")
        inner = _folder(path, os.path.join(place, split))
        return inner._replace(notes=(note, *inner.notes))
    state = os.path.join(place, "state.json")
    if os.path.isfile(state):
        shards = read_settings(state).get("_data_files")
        entries = shards if isinstance(shards, list) else []
        names = _names([one.get("filename") for one in entries if isinstance(one, dict)], path)
        files = tuple(os.path.join(place, name) for name in names)
        if absent := [file for file in files if not os.path.isfile(file)]:
            raise FileFormatError(f"{state} names {os.path.basename(absent[0])}, which is not in the folder.")
        return Source(path, files, ())
    return _shards(path, place)


def _names(values: object, path: str) -> list[str]:
    """Return names of files or folders within a folder; none may lead out of it."""
    names = [value for value in values if isinstance(value, str)] if isinstance(values, list) else []
    if not names or any(os.path.basename(name) != name or name in ("", ".", "..") for name in names):
        raise FileFormatError(
            f"{path} is no folder that the library datasets saved: it names no files of its own."
        )
    return names


def _shards(path: str, place: str) -> Source:
    """Return the data files that lie in a folder or in its `data`, those of the split `train` where named."""
    wanted = tuple(suffix for suffix in SUFFIXES if suffix not in (".json", ".txt"))  # settings lie beside
    for folder in (place, os.path.join(place, "data")):
        names: Iterable[str] = sorted(os.listdir(folder)) if os.path.isdir(folder) else ()
        files = [os.path.join(folder, name) for name in names if name.endswith(wanted)]
        if not files:
            continue
        train = [file for file in files if TRAIN in os.path.basename(file)]
        chosen = train or files
        kinds = {os.path.splitext(file)[1] for file in chosen}
        if len(kinds) > 1:
            raise FileFormatError(f"{path} holds files of {', '.join(sorted(kinds))}; name one of them.")
        note = f"{len(chosen)} of {len(files)} files are read, those named {TRAIN}"
        return Source(path, tuple(chosen), (note,) if len(chosen) < len(files) else ())
    raise FileFormatError(f"{path} holds no data set: neither what datasets saves nor {', '.join(SUFFIXES)}.")


class Bad(NamedTuple):
    """Stands for a record that could not be read."""

    why: str


class Chunk(NamedTuple):
    """Some records in a row."""

    rows: list[int]  # where each stands, from 1: its line, or its number
    records: list[Any]  # as the file has them, or `Bad`
    done_bytes: int  # of this file, up to here


Rows = Iterator[tuple[int, Any, int]]  # (row, record, roughly how many bytes it took)


def row_name(source: Source) -> str:
    """Return what rows count in this data set."""
    return "line" if source.files[0].removesuffix(".gz").endswith(LINE_SUFFIXES) else "record"


def chunks(source: Source) -> Iterator[Chunk]:
    """Yield the records of a data set, some at a time, in order; rows and bytes count on over its files.

    Raises: InputError where a file cannot be opened, FileFormatError where it is not of its kind.
    """
    rows_before = bytes_before = 0
    for path in source.files:
        last_row = done_bytes = 0
        for chunk in _of_file(path):
            last_row, done_bytes = chunk.rows[-1], chunk.done_bytes
            rows = [row + rows_before for row in chunk.rows] if rows_before else chunk.rows
            yield Chunk(rows, chunk.records, bytes_before + done_bytes)
        rows_before += last_row
        bytes_before += done_bytes


def _of_file(path: str) -> Iterator[Chunk]:
    kind = path.removesuffix(".gz").rpartition(".")[2]
    if kind in ("parquet", "arrow"):
        yield from parquet_chunks(path) if kind == "parquet" else arrow_chunks(path)
        return
    try:
        with open(open_regular(path, links=True), "rb") as raw:
            packed = path.endswith(".gz")
            stream: IO[bytes] = gzip.GzipFile(fileobj=raw) if packed else raw  # type: ignore[assignment]
            yield from gathered(READERS[kind](stream, path), raw.tell)
    except EOFError:
        raise FileFormatError(f"{path} ends in the middle of what gzip packed.") from None
    except OSError as error:
        raise InputError(f"Cannot read {shown(path)}: {error.strerror or error}.") from None


def gathered(rows: Rows, done_bytes: Callable[[], int]) -> Iterator[Chunk]:
    """Yield records in chunks, each no more than is good to hold at once."""
    chunk, held = Chunk([], [], 0), 0
    for row, record, num_bytes in rows:
        chunk.rows.append(row)
        chunk.records.append(record)
        held += num_bytes
        if len(chunk.rows) >= RECORDS_AT_A_TIME or held >= BYTES_AT_A_TIME:
            yield chunk._replace(done_bytes=done_bytes())
            chunk, held = Chunk([], [], 0), 0
    if chunk.rows:
        yield chunk._replace(done_bytes=done_bytes())


def _lines(stream: IO[bytes], parse: Callable[[bytes], Any]) -> Rows:
    """Yield a record per line that is not blank; one that cannot be parsed is a `Bad`."""
    number = 0
    while line := stream.readline(MAX_RECORD_BYTES + 1):
        number += 1
        if len(line) > MAX_RECORD_BYTES:
            yield number, _too_long(stream, line), 0
        elif not line.isspace():
            try:
                yield number, parse(line), len(line)
            except (ValueError, RecursionError) as error:
                yield number, Bad(_why(error)), 0


def _too_long(stream: IO[bytes], line: bytes) -> Bad:
    """Read the rest of a line that is too long, and say so."""
    while line and not line.endswith(b"\n"):
        line = stream.readline(MAX_RECORD_BYTES)
    return Bad(f"a line of more than {MAX_RECORD_BYTES >> 20} MiB")


def _why(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8"
    return f"it is no JSON: {str(error).splitlines()[0][:100]}" if str(error) else "it is no JSON"


def _cells(stream: IO[bytes], path: str) -> Rows:
    """Yield the rows of a CSV or TSV as mappings; the first line names the columns."""
    import csv

    csv.field_size_limit(MAX_RECORD_BYTES)
    lines = iter(lambda: stream.readline(MAX_RECORD_BYTES), b"")
    text = (line.decode("utf-8", errors="replace").removeprefix("\ufeff") for line in lines)
    reader = csv.reader(text, delimiter="\t" if path.removesuffix(".gz").endswith(".tsv") else ",")
    try:
        header = next(reader, None)
    except csv.Error:
        header = None
    if not header:
        raise FileFormatError(f"{path}: the first line should name the columns, such as 'prompt,completion'.")
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            yield line, Bad(f"it is no CSV: {error}"), 0
            continue
        if cells is None:
            return
        if cells:
            yield line, _row(header, cells), sum(map(len, cells))


def _row(header: list[str], cells: list[str]) -> Any:
    """Return the cells under their columns; a cell that holds JSON of a conversation is that."""
    if len(cells) != len(header):
        return Bad(f"{len(header)} cells expected, {len(cells)} found")
    return {name: _conversation(cell) for name, cell in zip(header, cells, strict=True)}


def _conversation(cell: str) -> Any:
    if not cell.startswith("[{"):
        return cell
    try:
        return json.loads(cell)
    except (ValueError, RecursionError):
        return cell


READERS: dict[str, Callable[[IO[bytes], str], Rows]] = {
    "jsonl": lambda stream, _: _lines(stream, json.loads),
    "ndjson": lambda stream, _: _lines(stream, json.loads),
    "txt": lambda stream, _: _lines(stream, lambda line: line.decode("utf-8").rstrip("\r\n")),
    "json": lambda stream, path: (
        (number, *one) for number, one in enumerate(values(stream, path, MAX_RECORD_BYTES), start=1)
    ),
    "csv": _cells,
    "tsv": _cells,
}


def values(stream: IO[bytes], path: str, most: int) -> Iterator[tuple[Any, int]]:
    """Yield (value, its characters) of a list's items, or of values that follow each other.

    Args:
        stream: UTF-8.
        path: For messages.
        most: Characters of one value.
    Raises: FileFormatError with the number of the record that is no JSON.
    """
    reader = _Reader(stream, path, most)
    first = reader.peek()
    if first == "":
        return
    is_list = first == "["
    if is_list:
        reader.at += 1
    while True:
        following = reader.peek()
        if following == "" or (is_list and following == "]"):
            if is_list and following == "":
                raise reader.refused("the list does not end")
            return
        yield reader.value()
        if is_list and reader.peek() == ",":
            reader.at += 1
            if reader.peek() == "]":
                raise reader.refused("a comma stands before the end of the list")
        elif is_list and reader.peek() not in ("]", ""):
            raise reader.refused("a comma is missing behind it")


class _Reader:
    """Text of which the front is already parsed."""

    def __init__(self, stream: IO[bytes], path: str, most: int) -> None:
        self.stream, self.path, self.most = stream, path, most
        self.text, self.at, self.number = "", 0, 0
        self.parse = JSONDecoder().raw_decode
        self.decode = getincrementaldecoder("utf-8-sig")().decode

    def refused(self, why: str) -> FileFormatError:
        """Return the error that names the record at hand."""
        return FileFormatError(f"{self.path}, record {max(1, self.number)} cannot be read as JSON: {why}.")

    def more(self, num_bytes: int) -> bool:
        """Read on; return whether there was more."""
        packed = self.stream.read(num_bytes)
        try:
            piece = self.decode(packed, not packed)
        except UnicodeDecodeError:
            raise self.refused("it is not UTF-8") from None
        self.text, self.at = self.text[self.at :] + piece, 0
        return bool(packed)

    def peek(self) -> str:
        """Return the next character that is not space, "" at the end."""
        while True:
            while self.at < len(self.text) and self.text[self.at] in _SPACE:
                self.at += 1
            if self.at < len(self.text):
                return self.text[self.at]
            if not self.more(PIECE_BYTES):
                return ""

    def value(self) -> tuple[Any, int]:
        """Return the value at hand and its characters."""
        self.number += 1
        while True:
            try:
                found, end = self.parse(self.text, self.at)
            except JSONDecodeError as error:
                held = len(self.text) - self.at
                if held > self.most or not self.more(max(PIECE_BYTES, held)):
                    raise self.refused(error.msg) from None
            except (ValueError, RecursionError) as error:
                raise self.refused(str(error).splitlines()[0]) from None
            else:
                size, self.at = end - self.at, end
                return found, size


def parquet_chunks(path: str) -> Iterator[Chunk]:
    """Yield the rows of a Parquet file."""
    arrow = _arrow(path)
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path, pre_buffer=False) as file:
            total_rows = file.metadata.num_rows
            groups = [file.metadata.row_group(n) for n in range(file.metadata.num_row_groups)]
            num_bytes = sum(group.total_byte_size for group in groups)
            batches = file.iter_batches(batch_size=_rows_at_a_time(total_rows, num_bytes), use_threads=False)
            yield from _numbered(batches, total_rows, os.path.getsize(path))
    except (arrow.ArrowException, OSError) as error:
        raise FileFormatError(f"{path} cannot be read as Parquet: {_first_line(error)}.") from None


def arrow_chunks(path: str) -> Iterator[Chunk]:
    """Yield the rows of an Arrow file, of either kind."""
    arrow = _arrow(path)
    try:
        with arrow.memory_map(path) as mapped:
            total_rows = sum(batch.num_rows for batch in _batches(arrow, mapped))
            mapped.seek(0)
            parts = (part for batch in _batches(arrow, mapped) for part in _sliced(batch))
            yield from _numbered(parts, total_rows, os.path.getsize(path))
    except (arrow.ArrowException, OSError) as error:
        raise FileFormatError(f"{path} cannot be read as Arrow: {_first_line(error)}.") from None


def _arrow(path: str) -> Any:
    try:
        import pyarrow
    except ImportError:
        raise UnsupportedError(f"Reading {path} needs pyarrow: {INSTALL}. JSONL and CSV need none.") from None
    return pyarrow


def _batches(arrow: Any, mapped: Any) -> Iterator[Any]:
    try:
        reader = arrow.ipc.open_stream(mapped)
    except arrow.ArrowInvalid:
        mapped.seek(0)
        file = arrow.ipc.open_file(mapped)
        yield from (file.get_batch(n) for n in range(file.num_record_batches))
        return
    yield from reader


def _sliced(batch: Any) -> Iterator[Any]:
    """Yield a batch in parts that are good to hold as Python objects."""
    step = _rows_at_a_time(batch.num_rows, batch.nbytes)
    yield from (batch.slice(start, step) for start in range(0, batch.num_rows, step))


def _rows_at_a_time(num_rows: int, num_bytes: int) -> int:
    per_row = max(1, num_bytes // max(1, num_rows))
    return max(1, min(RECORDS_AT_A_TIME, BYTES_AT_A_TIME // per_row))


def _numbered(batches: Iterator[Any], total_rows: int, num_bytes: int) -> Iterator[Chunk]:
    """Yield the rows of batches as mappings; progress is told by rows."""
    seen = 0
    for batch in batches:
        if batch.num_rows:
            rows = list(range(seen + 1, seen + batch.num_rows + 1))
            seen += batch.num_rows
            yield Chunk(rows, batch.to_pylist(), num_bytes * seen // max(1, total_rows))


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or ["damaged"])[0][:200].rstrip(".")
