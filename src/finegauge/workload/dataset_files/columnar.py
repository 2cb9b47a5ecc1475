"""Records out of Parquet and Arrow files, some rows at a time.

Arrow files are those of the library `datasets` (a stream of batches) or Feather (a file of batches); they
are mapped into memory, not loaded.
"""

import os
from collections.abc import Iterator
from typing import Any

from finegauge.errors import FileFormatError, UnsupportedError
from finegauge.workload.dataset_files.records import BYTES_AT_A_TIME, RECORDS_AT_A_TIME, Chunk
from finegauge.workload.dataset_files.tokenizer import INSTALL


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
    """Return pyarrow. Raises: UnsupportedError where it is not installed."""
    try:
        import pyarrow
    except ImportError:
        raise UnsupportedError(f"Reading {path} needs pyarrow: {INSTALL}. JSONL and CSV need none.") from None
    return pyarrow


def _batches(arrow: Any, mapped: Any) -> Iterator[Any]:
    """Yield the batches of a mapped Arrow file."""
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
    """Return how many rows make a chunk."""
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
