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
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from io import BytesIO
from typing import TYPE_CHECKING, Any, NamedTuple

from finegauge.documents import open_regular, write_whole
from finegauge.errors import InputError, UnsupportedError, shown
from finegauge.run.run import FIELDS
from finegauge.store.journal import records_of

if TYPE_CHECKING:
    import pyarrow as pa

SUFFIX = ".table.parquet"
VERSION = b"2"
WORTH_BYTES = 1_000_000  # a smaller journal is read as fast
Read = Callable[[bytes], tuple["pa.Table", int]]  # the table of whole lines, and how many did not read back


def cached(journal: str, read: Read) -> tuple["pa.Table", int]:
    """Return the table of the file `journal`, made by `read`, and how many lines did not read back."""
    import pyarrow as pa

    try:
        descriptor = open_regular(journal)
    except OSError as error:
        raise InputError(f"The store {shown(journal)} cannot be read: {error.strerror or error}.") from None
    with open(descriptor, "rb") as file:
        content = file.read()
    if len(content) < WORTH_BYTES:
        return read(content)
    table, quarantined, covered = _kept(journal, content)
    if covered == len(content):
        return table, quarantined
    more, refused = read(content[covered:])
    whole = pa.concat_tables([table, more], promote_options="permissive") if covered else more
    end = content.rfind(b"\n") + 1  # a torn last line may yet become whole
    if not refused and end == len(content):
        _keep(journal, whole, quarantined, content)
    return whole, quarantined + refused


def _kept(journal: str, content: bytes) -> tuple["pa.Table", int, int]:
    """Return the table that is kept, its unreadable lines, and how many bytes of `content` it covers."""
    import pyarrow as pa
    from pyarrow import parquet

    with suppress(OSError, pa.ArrowInvalid, KeyError, ValueError, TypeError):
        with parquet.ParquetFile(journal + SUFFIX) as file:  # read_table would load pandas
            table = file.read()
        about = table.schema.metadata
        covered = int(about[b"covered"])
        same = about[b"version"] == VERSION and about[b"checksum"] == _checksum(content[:covered])
        if same and 0 < covered <= len(content):
            return table.replace_schema_metadata(None), int(about[b"quarantined"]), covered
    return pa.table({}), 0, 0


def _keep(journal: str, table: "pa.Table", quarantined: int, content: bytes) -> None:
    """Write the table beside its journal; where that is not possible, do without."""
    from pyarrow import parquet

    about = {
        b"version": VERSION, b"covered": str(len(content)).encode(), b"checksum": _checksum(content),
        b"quarantined": str(quarantined).encode(),
    }  # fmt: skip
    file = BytesIO()
    parquet.write_table(table.replace_schema_metadata(about), file)
    with suppress(OSError):
        write_whole(journal + SUFFIX, file.getvalue())


def _checksum(content: bytes) -> bytes:
    return sha256(content).hexdigest().encode()


JOURNAL = "results.jsonl"  # in a campaign's folder
TOTALS = ("step_time_s", "peak_memory_bytes", "device_memory_bytes", "step_energy_j")
FACTS = (
    "step_flops", "step_tokens", "step_sequences", "host_bound_fraction", "cached_bytes", "capacity_bytes",
)  # fmt: skip
SEEN = ("ttft_s", "time_per_output_token_s", "written_tokens_per_s")  # among the details of steps
ASKED = ("cell", "estimator", "repetition")
RATES = {"tokens_per_s": "step_tokens", "samples_per_s": "step_sequences"}
MANY = "+"  # between the items of a list

Record = Mapping[str, Any]


class Answer(NamedTuple):
    """The result of an SQL query."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


def table_of(paths: Sequence[str]) -> tuple["pa.Table", int]:
    """Return the results in `paths`, journals or campaign folders, and how many lines did not read back.

    Raises: InputError where there is no such journal; UnsupportedError without pyarrow.
    """
    pa = _pyarrow()
    tables, quarantined = [], 0
    for path in paths:
        table, refused = cached(_journal(path), _read)
        tables.append(table)
        quarantined += refused
    whole = pa.concat_tables(tables, promote_options="permissive")
    unknown = [n for n, field in enumerate(whole.schema) if pa.types.is_null(field.type)]
    for n in unknown:  # SQL compares what has a type
        whole = whole.set_column(n, whole.column_names[n], whole.column(n).cast(pa.string()))
    return whole, quarantined


def _read(lines: bytes) -> tuple["pa.Table", int]:
    records, refused = records_of(lines)
    ended = [record for record in records if record.get("event") == "ended"]
    columns = _columns([one.get("asked", {}) for one in ended], [one["profile"] for one in ended])
    pa = _pyarrow()
    return pa.table({name: _array(pa, values) for name, values in columns.items()}), len(refused)


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
            raise InputError(f"DuckDB does not accept the question: {str(error).splitlines()[0]}") from None


def answer_of(table: "pa.Table") -> Answer:
    """Return a table as plain rows."""
    columns = (map(_plain, column.to_pylist()) for column in table.columns)
    return Answer(tuple(table.column_names), tuple(zip(*columns, strict=True)))


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
        table = _without_formulas(table)
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


def _without_formulas(table: "pa.Table") -> "pa.Table":
    """Return `table` with an apostrophe before every text that a spreadsheet would carry out."""
    import pyarrow as pa
    from pyarrow import compute

    for at, field in enumerate(table.schema):
        if pa.types.is_string(field.type):
            cleaned = compute.replace_substring_regex(table.column(at), r"^([=+\-@\t\r])", r"'\1")
            table = table.set_column(at, field, cleaned)
    return table


def _journal(path: str) -> str:
    file = os.path.join(path, JOURNAL) if os.path.isdir(path) else path
    if not os.path.isfile(file):
        raise InputError(
            f"{shown(path)} holds no results; name a campaign's folder, or the file of 'measure --store'."
        )
    return file


def _columns(asked: Sequence[Record], profiles: Sequence[Record]) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {name: [one.get(name) for one in asked] for name in ASKED}
    columns["outcome"] = [one["outcome"] for one in profiles]
    columns["reason"] = [one["reason"] or None for one in profiles]
    columns["source"] = [one["source"]["kind"] for one in profiles]
    columns["device"] = [one["fingerprint"].get("device") for one in profiles]
    labels = [one.get("labels", {}) for one in asked]
    columns |= {name: values for name, values in _by_name(labels).items() if name not in FIELDS}
    for name in TOTALS:
        columns[name] = [sum([amount for _, amount in one[name]]) or None for one in profiles]
    stages = [_stages(one["step_time_s"]) for one in profiles]
    columns |= {f"time_{name}_s": values for name, values in _by_name(stages).items()}
    for name in FACTS:
        columns[name] = [_number(one[name]) for one in profiles]
    for name, amount in RATES.items():
        columns[name] = [
            amount / seconds if amount and seconds else None
            for amount, seconds in zip(columns[amount], columns["step_time_s"], strict=True)
        ]
    details = [one["observations"].get("steps", {}).get("details", {}) for one in profiles]
    for name in SEEN:
        columns[name] = [_number(one.get(name)) for one in details]
    return columns | _by_name([one["run"]["fields"] for one in profiles])


def _by_name(rows: Sequence[Record]) -> dict[str, list[Any]]:
    names = dict.fromkeys(name for names in dict.fromkeys(map(tuple, rows)) for name in names)
    return {name: [row.get(name) for row in rows] for name in names}


def _stages(parts: Sequence[tuple[Sequence[str], float]]) -> dict[str, float]:
    stages: dict[str, float] = {}
    for path, amount in parts:
        stages[path[0]] = stages.get(path[0], 0.0) + amount
    return stages


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and value else None


def _array(pa: Any, values: list[Any]) -> Any:
    """Return a column; lists are joined, and a column of several types is text."""
    with suppress(pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        found = pa.array(values)
        if not pa.types.is_list(found.type):
            return found
    return pa.array(
        [
            None if value is None else MANY.join(map(str, value)) if isinstance(value, list) else str(value)
            for value in values
        ]
    )
