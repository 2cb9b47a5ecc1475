"""The records of a data set's files, some at a time, whatever the files are: memory stays flat.

A line that cannot be read costs that line: a `Bad` comes in its place. Of a `.json`, which is one
list, or one mapping after the other, nothing is known behind the first mistake.
"""

from collections.abc import Callable, Iterator
from typing import IO, Any, NamedTuple

from finegauge.errors import FileFormatError, InputError, shown
from finegauge.workload.dataset_files.source import Source

RECORDS_AT_A_TIME = 1024
BYTES_AT_A_TIME = 1 << 20
MAX_RECORD_BYTES = 32 << 20
LINE_SUFFIXES = (".jsonl", ".ndjson", ".txt", ".csv", ".tsv")


class Bad(NamedTuple):
    """Stands for a record that could not be read."""

    why: str


class Chunk(NamedTuple):
    """Some records in a row."""

    rows: list[int]  # where each stands, from 1: its line, or its number
    records: list[Any]  # as the file has them, or `Bad`
    done_bytes: int  # of this file, up to here


class Opened(NamedTuple):
    """A file that is read, packed by gzip or not."""

    path: str
    stream: IO[bytes]
    raw: IO[bytes]

    def done_bytes(self) -> int:
        """Return how much of the file is read."""
        return self.raw.tell()


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
    """Yield the records of one file."""
    kind = path.removesuffix(".gz").rpartition(".")[2]
    if kind in ("parquet", "arrow"):
        from finegauge.workload.dataset_files.columnar import arrow_chunks, parquet_chunks

        yield from parquet_chunks(path) if kind == "parquet" else arrow_chunks(path)
        return
    try:
        with open(path, "rb") as raw:
            file = Opened(path, _unpacked(path, raw), raw)
            yield from gathered(READERS[kind](file), file.done_bytes)
    except EOFError:
        raise FileFormatError(f"{path} ends in the middle of what gzip packed.") from None
    except OSError as error:
        raise InputError(f"Cannot read {shown(path)}: {error.strerror or error}.") from None


def _unpacked(path: str, raw: IO[bytes]) -> IO[bytes]:
    """Return the bytes of a file, unpacked where its name says that they are packed."""
    if not path.endswith(".gz"):
        return raw
    import gzip

    return gzip.GzipFile(fileobj=raw)  # type: ignore[return-value] # it reads as any binary file does


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


def _lines(file: Opened, parse: Callable[[bytes], Any]) -> Rows:
    """Yield a record per line that is not blank; one that cannot be parsed is a `Bad`."""
    number = 0
    while line := file.stream.readline(MAX_RECORD_BYTES + 1):
        number += 1
        if len(line) > MAX_RECORD_BYTES:
            yield number, _too_long(file.stream, line), 0
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
    """Return in a few words why a line is no JSON."""
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8"
    return f"it is no JSON: {str(error).splitlines()[0][:100]}" if str(error) else "it is no JSON"


def _json_lines(file: Opened) -> Rows:
    """Yield a record per line of JSON."""
    from json import loads

    return _lines(file, loads)


def _texts(file: Opened) -> Rows:
    """Yield a record per line of plain text."""
    return _lines(file, lambda line: line.decode("utf-8").rstrip("\r\n"))


def _json(file: Opened) -> Rows:
    """Yield the records of one list, or of one JSON value after the other."""
    from finegauge.workload.dataset_files.json_stream import values

    for number, (record, num_bytes) in enumerate(values(file.stream, file.path, MAX_RECORD_BYTES), start=1):
        yield number, record, num_bytes


def _cells(file: Opened) -> Rows:
    """Yield the rows of a CSV or TSV as mappings; the first line names the columns."""
    import csv

    csv.field_size_limit(MAX_RECORD_BYTES)
    lines = iter(lambda: file.stream.readline(MAX_RECORD_BYTES), b"")
    text = (line.decode("utf-8", errors="replace").removeprefix("\ufeff") for line in lines)
    reader = csv.reader(text, delimiter="\t" if file.path.removesuffix(".gz").endswith(".tsv") else ",")
    try:
        header = next(reader, None)
    except csv.Error:
        header = None
    if not header:
        raise FileFormatError(
            f"{file.path}: the first line should name the columns, such as 'prompt,completion'."
        )
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
    """Return the messages that a cell holds as JSON, else the cell."""
    if not cell.startswith("[{"):
        return cell
    import json

    try:
        return json.loads(cell)
    except (ValueError, RecursionError):
        return cell


READERS: dict[str, Callable[[Opened], Rows]] = {
    "jsonl": _json_lines,
    "ndjson": _json_lines,
    "txt": _texts,
    "json": _json,
    "csv": _cells,
    "tsv": _cells,
}
