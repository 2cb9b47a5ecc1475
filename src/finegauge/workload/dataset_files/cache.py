"""Lengths that were counted before, kept by what they were counted from.

An entry is `$FINEGAUGE_CACHE_DIR/lengths/KEY.lengths` (`~/.cache/finegauge/lengths`), named after the hash of
the data set's content, of the tokenizer's files, and of how records are rendered. So a copied, moved or
renamed data set is not counted again, and one that has changed by a byte is.

Hashing reads the whole data set, at about a gigabyte a second: under a hundredth of what tokenising it
takes, but too long for a second call. Therefore the hash itself is kept under a file's path, size, inode
and times (`STAMP.stamp`); a file that was written within the last seconds is not trusted by its time.
An entry ends with its own hash: one that is torn or damaged counts as absent and is written anew. The
folder can be deleted at any time.
"""

import json
import os
import sys
import time
from array import array
from hashlib import file_digest, sha256
from typing import Any

from finegauge.errors import InputError, shown
from finegauge.workload.dataset_files.lengths import Findings, Lengths
from finegauge.workload.dataset_files.source import Source

SCHEMA = 1
SETTLED_AFTER_S = 2.0  # file systems keep times to within this
_DIGEST_BYTES = 32


def folder() -> str:
    """Return the folder of the entries."""
    base = os.environ.get("FINEGAUGE_CACHE_DIR") or os.path.join(
        os.path.expanduser("~"), ".cache", "finegauge"
    )
    return os.path.join(base, "lengths")


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
    stamp = os.path.join(folder(), f"{stamp_of(source)[:32]}.stamp")
    kept = _read(stamp)
    if kept is not None and len(kept) == 2 * _DIGEST_BYTES and kept.isalnum():
        return kept.decode()
    whole = sha256(repr([os.path.splitext(file)[1] for file in source.files]).encode())
    try:
        for path in source.files:
            with open(path, "rb") as file:
                whole.update(file_digest(file, "sha256").digest())
        youngest = max(max(os.stat(file).st_mtime, os.stat(file).st_ctime) for file in source.files)
    except OSError as error:
        raise InputError(f"Cannot read {shown(source.path)}: {error.strerror or error}.") from None
    if time.time() - youngest > SETTLED_AFTER_S:
        _write(stamp, whole.hexdigest().encode())
    return whole.hexdigest()


def load(key: str, path: str) -> Lengths | None:
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
        return Lengths(path, tokens, loss_tokens, rows, key, _findings(known["findings"]))
    except (ValueError, KeyError, TypeError):
        return None


def store(key: str, lengths: Lengths) -> None:
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
    _write(_entry(key), whole + sha256(whole).digest())


def _entry(key: str) -> str:
    return os.path.join(folder(), f"{key[:32]}.lengths")


def _findings(values: dict[str, Any]) -> Findings:
    """Return findings as they were written, their lists as tuples again."""
    return Findings(**{name: _tuples(value) for name, value in values.items()})


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _read(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return None


def _write(path: str, content: bytes) -> None:
    """Write a file in one step, so that no reader meets half of it."""
    part = f"{path}.{os.getpid()}"
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(part, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError:
        return
