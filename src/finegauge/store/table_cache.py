"""A journal's table kept beside it, so that ten thousand results are read once and not at every question.

FILE.table.parquet says of how many bytes of the journal it was made, and their checksum: where
the journal begins with just those bytes, only what came after is read; where it does not, or
the file is damaged, everything is. A folder that cannot be written to costs time, nothing else.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

SUFFIX = ".table.parquet"
VERSION = b"2"
WORTH_BYTES = 1_000_000  # a smaller journal is read as fast
Read = Callable[[bytes], tuple["pa.Table", int]]  # the table of whole lines, and how many did not read back


def cached(journal: str, read: Read) -> tuple["pa.Table", int]:
    """Return the table of the file `journal` and how many of its lines did not read back.

    Args:
        journal: A file of lines.
        read: Makes a table of lines.
    """
    import pyarrow as pa

    with open(journal, "rb") as file:
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
    unfinished = f"{journal}{SUFFIX}.{os.getpid()}.part"
    with suppress(OSError):
        parquet.write_table(table.replace_schema_metadata(about), unfinished)
        os.replace(unfinished, journal + SUFFIX)
    with suppress(OSError):
        os.remove(unfinished)


def _checksum(content: bytes) -> bytes:
    """Return the SHA-256 of `content`."""
    return sha256(content).hexdigest().encode()
