"""The results in journals as one table: a row per trial that ended, a column per fact; SQL by DuckDB.

Rows are made straight from the records, without building Profiles, so that ten thousand take
a fraction of a second. What is not known is NULL, never 0. Columns:

    cell, estimator, repetition, and every axis of a campaign that is no field of Run (switch …)
    outcome, reason, source, device, ended as in Profile
    step_time_s, time_forward_s …, peak_memory_bytes, device_memory_bytes, step_energy_j, tokens_per_s …
    ttft_s, time_per_output_token_s, written_tokens_per_s of serving that was measured
    every field of Run by its name
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from io import BytesIO
from typing import TYPE_CHECKING, Any, BinaryIO, cast
from zlib import crc32

from finegauge.documents import json_text, open_regular, write_whole
from finegauge.errors import CONTROLS, InputError, UnsupportedError, cleaned, shown
from finegauge.run.run import FIELDS
from finegauge.store.document import SERVED, Facts
from finegauge.store.journal import Entry, entry_of, fields_in, fields_text

if TYPE_CHECKING:
    import pyarrow as pa

SUFFIX = ".table"
VERSION = b"4"
DIGEST = 64  # bytes before the table: their SHA-256
CHUNK_BYTES = 2**23
ROWS_AT_A_TIME = 5000
KNOWN_TO_JSON = ("string", "double", "int64", "bool")
WORTH_BYTES = 1_000_000  # a smaller journal is read as fast
Read = Callable[[bytes], tuple["pa.Table", int]]  # the table of whole lines, and how many did not read back


def cached(journal: str, read: Read) -> tuple["pa.Table", int]:
    """Return the table of the file `journal`, made by `read`, and how many lines did not read back."""
    try:
        descriptor = open_regular(journal)
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            state = f"{status.st_size} {status.st_mtime_ns} {status.st_ino}".encode()
            if status.st_size < WORTH_BYTES:
                return read(file.read())
            table, quarantined, covered, checksum = _kept(journal, file, state)
            if covered == status.st_size:
                return table, quarantined
            file.seek(covered)
            tables, refused, ends = [table] if covered else [], 0, True
            while chunk := file.read(CHUNK_BYTES) + file.readline():
                more, torn = read(chunk)
                checksum = crc32(chunk, checksum)
                covered += len(chunk)
                tables.append(more)
                refused += torn
                ends = chunk.endswith(b"\n")
    except OSError as error:
        raise InputError(f"The store {shown(journal)} cannot be read: {error.strerror or error}.") from None
    whole = _joined(tables)
    if not refused and ends and covered == status.st_size:  # a torn last line may yet become whole
        _keep(
            journal,
            whole,
            {
                b"version": VERSION, b"covered": str(covered).encode(), b"state": state,
                b"checksum": str(checksum).encode(), b"quarantined": str(quarantined).encode(),
            },
        )  # fmt: skip
    return whole, quarantined + refused


def _joined(tables: Sequence["pa.Table"]) -> "pa.Table":
    """Return tables one below the other; a column of several types is text."""
    import pyarrow as pa

    kinds: dict[str, set[bool]] = {}
    for field in (field for table in tables for field in table.schema if not pa.types.is_null(field.type)):
        kinds.setdefault(field.name, set()).add(pa.types.is_string(field.type))
    mixed = [name for name, found in kinds.items() if len(found) > 1]
    for name in mixed:
        tables = [
            table.set_column(at, name, table.column(at).cast(pa.string()))
            if (at := table.schema.get_field_index(name)) >= 0
            else table
            for table in tables
        ]
    return pa.concat_tables(tables, promote_options="permissive")


def _kept(journal: str, file: BinaryIO, state: bytes) -> tuple["pa.Table", int, int, int]:
    """Return the table that is kept, its unreadable lines, the journal's bytes it covers and their CRC-32.

    Where the journal is as it was, none of it is read.
    """
    import pyarrow as pa
    from pyarrow import parquet

    with suppress(OSError, pa.ArrowException, KeyError, ValueError, TypeError):
        with open(open_regular(journal + SUFFIX), "rb") as kept:
            digest, content = kept.read(DIGEST), kept.read()
        if sha256(content).hexdigest().encode() != digest:
            raise ValueError("damaged; it is made anew")
        table = parquet.ParquetFile(BytesIO(content)).read()  # read_table would load pandas
        about = table.schema.metadata
        covered = int(about[b"covered"])
        if about[b"version"] == VERSION:
            stated, checksum = int(about[b"checksum"]), 0
            found = table.replace_schema_metadata(None), int(about[b"quarantined"]), covered, stated
            if about[b"state"] == state:
                return found
            for start in range(0, covered, CHUNK_BYTES):
                checksum = crc32(file.read(min(CHUNK_BYTES, covered - start)), checksum)
            if checksum == stated:
                return found
    return pa.table({}), 0, 0, 0


def _keep(journal: str, table: "pa.Table", about: Mapping[bytes, bytes]) -> None:
    """Write the table beside its journal, behind its checksum; where that is not possible, do without."""
    from pyarrow import parquet

    file = BytesIO()
    parquet.write_table(table.replace_schema_metadata(about), file)
    content = file.getvalue()
    with suppress(OSError):
        write_whole(journal + SUFFIX, sha256(content).hexdigest().encode() + content)


JOURNAL = "results.jsonl"  # in a campaign's folder
TOTALS = ("peak_memory_bytes", "device_memory_bytes", "step_energy_j")
FACTS = (
    "step_flops", "step_tokens", "step_sequences", "host_bound_fraction", "cached_bytes", "capacity_bytes",
)  # fmt: skip
ASKED = ("cell", "estimator", "repetition")
RATES = {"tokens_per_s": "step_tokens", "samples_per_s": "step_sequences"}
MANY = "+"  # between the items of a list

Record = Mapping[str, Any]


def table_of(paths: Sequence[str]) -> tuple["pa.Table", int]:
    """Return the results in `paths`, journals or campaign folders, and how many lines did not read back.

    Raises: InputError where there is no such journal; UnsupportedError without pyarrow.
    """
    pa = _pyarrow()
    found = [cached(_journal(path), _read) for path in paths]
    whole = _joined([table for table, _ in found])
    unknown = [n for n, field in enumerate(whole.schema) if pa.types.is_null(field.type)]
    for n in unknown:  # SQL compares what has a type
        whole = whole.set_column(n, whole.column_names[n], whole.column(n).cast(pa.string()))
    return whole, sum(refused for _, refused in found)


def _read(lines: bytes) -> tuple["pa.Table", int]:
    ends: list[tuple[Entry, bytes]] = []
    refused = 0
    for one in lines.split(b"\n"):
        if one and not one.isspace():
            try:
                entry = entry_of(one)
                if entry is not None and entry.facts is not None:
                    ends.append((entry, one))
            except ValueError:
                refused += 1
    pa = _pyarrow()
    fields = _fields(pa, [one for _, one in ends])
    if fields is None:  # not all are what a column holds: Python reads them one by one
        known: list[tuple[Entry, Record]] = []
        for entry, one in ends:
            try:
                known.append((entry, fields_in(one)))
            except ValueError:
                refused += 1
        by_name = _by_name([stated for _, stated in known])
        fields = {name: _array(pa, values) for name, values in by_name.items()}
        found = [entry for entry, _ in known]
    else:
        found = [entry for entry, _ in ends]
    columns = _columns([one.asked for one in found], [one.facts for one in found if one.facts])
    return pa.table({name: _array(pa, values) for name, values in columns.items()} | fields), refused


def _fields(pa: Any, ends: Sequence[bytes]) -> dict[str, Any] | None:
    """Return the fields of the runs in lines of ends, by column, as Arrow reads them; None where not."""
    from pyarrow import compute, json

    whole = b"\n".join(map(fields_text, ends))
    with suppress(pa.ArrowException):
        options = json.ReadOptions(use_threads=False, block_size=len(whole) + 1)
        found = json.read_json(BytesIO(whole), options)
        kinds = {field.name: field.type for field in found.schema}
        if len(found) == len(ends) and {True}.issuperset(map(_is_simple, kinds.values())):
            texts = pa.list_(pa.string())
            return {
                name: compute.binary_join(found[name].cast(texts), MANY)
                if pa.types.is_list(kind)
                else found[name]
                for name, kind in kinds.items()
            }
    return None


def _is_simple(kind: Any) -> bool:
    """Return whether Arrow reads values of a type as Python does: dates are text, and NaN is no struct."""
    return str(kind) in (
        *KNOWN_TO_JSON,
        "null",
        *(f"list<item: {one}>" for one in ("string", "int64", "null")),
    )


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError:
        raise UnsupportedError("The table needs pyarrow: pip install 'finegauge[campaign]'.") from None
    return pyarrow


def ask(table: "pa.Table", sql: str) -> "pa.Table":
    """Return what SQL says about the table `results`; files and the network are out of its reach.

    Raises: InputError where DuckDB does not accept it; UnsupportedError without DuckDB.
    """
    try:
        import duckdb
    except ImportError:
        raise UnsupportedError("SQL needs DuckDB: pip install 'finegauge[campaign]'.") from None
    with duckdb.connect() as connection:
        connection.register("results", table)
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        try:
            found = connection.sql(sql)
            if found is None:
                raise InputError("--sql should be a question: SELECT …, DESCRIBE results.")
            return found.to_arrow_table()
        except duckdb.Error as error:
            reason = str(error).splitlines() or ["it gives no reason."]
            raise InputError(f"DuckDB does not accept the question: {reason[0]}") from None


def rows_of(table: "pa.Table") -> Iterator[dict[str, Any]]:
    """Yield the rows of a table, by column; few at a time are Python's objects."""
    for batch in table.to_batches(ROWS_AT_A_TIME):
        for row in zip(*map(_values, batch.columns), strict=True):
            yield dict(zip(table.column_names, row, strict=True))


def texts_of(table: "pa.Table") -> Iterator[str]:
    """Yield the rows of a table as JSON; what a column has many times is written once."""
    names = [f"{json_text(name, None)}: " for name in table.column_names]
    for batch in table.to_batches(ROWS_AT_A_TIME):
        for row in zip(*map(_texts, names, batch.columns), strict=True):
            yield "{" + ", ".join(row) + "}"


def _texts(name: str, column: Any) -> list[str]:
    """Return the values of a column as JSON, each behind its `name`."""
    kind = str(column.type)
    if kind not in KNOWN_TO_JSON:
        shown = [(repr(value), value) for value in _values(column)]
        once = {key: name + json_text(value, None) for key, value in dict(shown).items()}
        return [once[key] for key, _ in shown]
    few = column.dictionary_encode()
    values = [*_values(few.dictionary), None]
    if kind == "string":
        written = [name + json_text(value, None) for value in values]
    else:
        written = [name + number for number in json_text(values, None)[1:-1].split(", ")]
    return [written[index] for index in few.indices.fill_null(len(values) - 1).to_numpy().tolist()]


def _values(column: Any) -> Iterable[Any]:
    kind = str(column.type)
    if column.null_count == len(column):
        return [None] * len(column)
    if kind in ("double", "int64") and not column.null_count:
        return cast("list[Any]", column.to_numpy().tolist())  # many times as fast as `to_pylist`
    values = column.to_pylist()
    return values if kind in KNOWN_TO_JSON else map(_plain, values)


def _plain(value: Any) -> Any:
    """Return a value of SQL as one that JSON has; dates, decimals and bytes are text."""
    if isinstance(value, list | tuple):
        return tuple(map(_plain, value))
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return value if value is None or isinstance(value, str | int | float) else str(value)


def export(table: "pa.Table", path: str) -> None:
    """Write a table as CSV or Parquet, whole or not at all.

    Raises: InputError for another kind of file, or one that cannot be written.
    """
    import pyarrow as pa
    from pyarrow import csv, parquet

    kind = os.path.splitext(path)[1].lower()
    write = {".csv": csv.write_csv, ".parquet": parquet.write_table}.get(kind)
    if write is None:
        raise InputError(f"--export {shown(path)}: the file's name should end in .csv or .parquet.")
    unfinished = f"{path}.{os.getpid()}.part"
    if kind == ".csv":
        table = _for_spreadsheets(table)
    try:
        write(table, unfinished)
        os.replace(unfinished, path)
    except OSError as error:
        raise InputError(f"Cannot write {shown(path)}: {error.strerror or error}.") from None
    except pa.ArrowException as error:
        raise InputError(f"Cannot write {shown(path)}: {str(error).splitlines()[0]}") from None
    finally:
        with suppress(OSError):
            os.remove(unfinished)


def _for_spreadsheets(table: "pa.Table") -> "pa.Table":
    """Return `table` without control characters; what a spreadsheet would carry out is text."""
    import pyarrow as pa
    from pyarrow import compute

    for at, field in enumerate(table.schema):
        if pa.types.is_string(field.type):
            seen = compute.replace_substring_regex(table.column(at), CONTROLS, "?")
            harmless = compute.replace_substring_regex(seen, r"^([=+\-@\t])", r"'\1")
            table = table.set_column(at, field, harmless)
    names = (f"'{name}" if name.startswith(tuple("=+-@\t")) else name for name in table.column_names)
    return table.rename_columns(list(map(cleaned, names)))


def _journal(path: str) -> str:
    file = os.path.join(path, JOURNAL) if os.path.isdir(path) else path
    if not os.path.isfile(file):
        raise InputError(
            f"{shown(path)} holds no results; name a campaign's folder, or the file of 'measure --store'."
        )
    return file


def _columns(asked: Sequence[Record], facts: Sequence[Facts]) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {name: [one.get(name) for one in asked] for name in ASKED}
    for name in ("outcome", "reason", "source", "device"):
        columns[name] = [getattr(one, name) or None for one in facts]
    labels = [one.get("labels", {}) for one in asked]
    columns |= {name: values for name, values in _by_name(labels).items() if name not in FIELDS}
    columns["step_time_s"] = [one.step_s or None for one in facts]
    for name in TOTALS:
        columns[name] = [getattr(one, name) or None for one in facts]
    stages = _by_name([one.step_time_s for one in facts])
    columns |= {f"time_{name}_s": values for name, values in stages.items()}
    for name in FACTS:
        columns[name] = [float(getattr(one, name)) or None for one in facts]
    for name, amount in RATES.items():
        columns[name] = [
            amount / seconds if amount and seconds else None
            for amount, seconds in zip(columns[amount], columns["step_time_s"], strict=True)
        ]
    for name in SERVED:
        columns[name] = [one.served.get(name) for one in facts]
    return columns


def _by_name(rows: Sequence[Record]) -> dict[str, list[Any]]:
    if len(kinds := set(map(tuple, rows))) == 1:
        return dict(
            zip(kinds.pop(), map(list, zip(*(row.values() for row in rows), strict=True)), strict=True)
        )
    names = dict.fromkeys(name for names in dict.fromkeys(map(tuple, rows)) for name in names)
    return {name: [row.get(name) for row in rows] for name in names}


def _array(pa: Any, values: list[Any]) -> Any:
    """Return a column; lists are joined, and a column of several types is text."""
    with suppress(pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        found = pa.array(values)
        if not pa.types.is_nested(found.type):
            return found
    return pa.array(
        [
            None if value is None else MANY.join(map(str, value)) if isinstance(value, list) else str(value)
            for value in values
        ]
    )
