"""An append-only file of JSON records that survives kill -9, a full disk and two writers at once.

One record is one line: its schema version, a checksum, the record. A line is written under
the file's lock, in one piece, and is on the disk when `append` returns; where it cannot be
written whole it is taken back. A line that does not read back (torn by a crash, changed by
hand) is copied to FILE.quarantine with the reason, and passed by. `Trials` are the records of
measurements: one when a trial starts, one when it ends.
"""

import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from errno import EAGAIN
from hashlib import sha256
from platform import node
from typing import TYPE_CHECKING, Any, NamedTuple

from finegauge.documents import open_regular, write_whole
from finegauge.errors import InputError, shown
from finegauge.profile import Profile, Source
from finegauge.store.document import profile_document, profile_of, run_document, run_of

if TYPE_CHECKING:
    from finegauge.run.run import Run

SCHEMA_VERSION = 1
CHECKSUM_DIGITS = 16
NEWLINE = b"\n"
LINE = re.compile(rb'\{"schema_version":%d,"checksum":"([0-9a-f]{16})","record":(\{.*\})\}' % SCHEMA_VERSION)


def _loads(text: bytes) -> Any:
    """Return the value of JSON, by orjson where it is installed: several times as fast."""
    try:
        import orjson
    except ImportError:
        return json.loads(text)
    return orjson.loads(text)


STARTED, ENDED, REFUSED = "started", "ended", "refused"
LOCKED_WITHIN_S = 30.0
_RUN = {"fields": dict, "origins": dict, "warnings": list}
_SHAPES = {  # of the records of trials
    STARTED: {"trial": str, "asked": dict, "process": list, "run": _RUN},
    ENDED: {"trial": str, "asked": dict, "profile": {"outcome": str, "run": _RUN, "source": dict}},
    REFUSED: {"trial": str, "asked": {"cell": str, "labels": dict, "estimator": str}, "reason": str},
}


class Contents(NamedTuple):
    """What a journal holds."""

    records: list[dict[str, Any]]
    num_quarantined: int  # lines that did not read back


class Journal:
    """One file of records."""

    def __init__(self, path: str) -> None:
        self.path = path

    @property
    def quarantine(self) -> str:
        """Return the file that holds what could not be read."""
        return f"{self.path}.quarantine"

    def append(self, *records: Mapping[str, Any]) -> None:
        """Add `records`, all or none, and return when they are on the disk.

        Raises: InputError where the file cannot be written; it is then as it was.
        """
        with self.locked() as descriptor:
            self.append_locked(descriptor, records)

    @contextmanager
    def locked(self) -> Iterator[int]:
        """Yield the open file, which no other writer touches meanwhile; the file is made if missing."""
        try:
            os.makedirs(os.path.dirname(self.path) or ".", exist_ok=True)
            descriptor = open_regular(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        except OSError as error:
            raise self._cannot("opened", error) from None
        try:
            try:
                lock(descriptor, LOCKED_WITHIN_S)
            except OSError as error:
                raise self._cannot("locked", error) from None
            yield descriptor
        finally:
            os.close(descriptor)  # which unlocks

    def append_locked(self, descriptor: int, records: tuple[Mapping[str, Any], ...]) -> None:
        """Add `records` to the file that `locked` yielded."""
        size = os.fstat(descriptor).st_size
        torn = size and os.pread(descriptor, 1, size - 1) != NEWLINE
        data = (NEWLINE if torn else b"") + b"".join(line(record) for record in records)
        try:
            _write_all(descriptor, data)
            os.fsync(descriptor)
            if not size:
                _sync_folder(self.path)
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(descriptor, size)
            raise self._cannot("written", error) from None

    def read(self) -> Contents:
        """Return every record that reads back; the other lines are in quarantine.

        Raises: InputError where the file is there and cannot be read.
        """
        try:
            with open(open_regular(self.path), "rb") as file:
                content = file.read()
        except FileNotFoundError:
            return Contents([], 0)
        except OSError as error:
            raise self._cannot("read", error) from None
        records, refused = records_of(content)
        if refused:  # where the quarantine cannot be written, the lines still stand in the journal
            with suppress(OSError):
                write_whole(self.quarantine, b"".join(refused))
        return Contents(records, len(refused))

    def _cannot(self, what: str, error: OSError) -> InputError:
        why = error.strerror or str(error)
        return InputError(f"The store {shown(self.path)} cannot be {what}: {why}; what it held is unharmed.")


def lock(descriptor: int, within_s: float) -> None:
    """Lock an open file for this process alone.

    Raises: BlockingIOError where another holds it for so long, OSError where the file system has no locks.
    """
    ends_at = time.monotonic() + within_s
    while True:
        try:
            return _take(descriptor)
        except BlockingIOError:
            if time.monotonic() >= ends_at:
                why = f"another process has held its lock for {within_s:.0f} s"
                raise BlockingIOError(EAGAIN, why) from None
        except OSError as error:
            why = "its file system has no locks (flock), which keep two writers apart; use a local disk"
            raise OSError(error.errno, why) from None
        time.sleep(0.02)


def _take(descriptor: int) -> None:
    """Lock an open file now; BlockingIOError where another holds it."""
    try:
        import fcntl
    except ImportError:  # Windows locks bytes, and forbids to read them: one far behind the end
        from importlib import import_module

        msvcrt, place = import_module("msvcrt"), os.lseek(descriptor, 0, os.SEEK_CUR)
        os.lseek(descriptor, 2**30, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError as error:
            raise BlockingIOError(EAGAIN, "another process holds its lock") from error
        finally:
            os.lseek(descriptor, place, os.SEEK_SET)
    else:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def records_of(text: bytes) -> tuple[list[dict[str, Any]], list[bytes]]:
    """Return the records of a journal's lines, and those that do not read back, each under the reason."""
    records, refused = [], []
    for one in text.split(NEWLINE):
        if not one.strip():
            continue
        try:
            records.append(record_of(one))
        except ValueError as error:
            refused.append(f"# {error}\n".encode() + one + NEWLINE)
    return records, refused


def line(record: Mapping[str, Any]) -> bytes:
    """Return `record` as one line with its checksum."""
    text = _text(record)
    head = f'{{"schema_version":{SCHEMA_VERSION},"checksum":"{checksum(text)}","record":'
    return f"{head}{text}}}\n".encode()


def record_of(text: bytes) -> dict[str, Any]:
    """Return the record of one line.

    Raises: ValueError that says why it does not count: torn, changed, or of a later version.
    """
    match = LINE.fullmatch(text)
    if match and sha256(match[2]).hexdigest()[:CHECKSUM_DIGITS].encode() == match[1]:
        return _ours(_loads(match[2]))  # as we wrote it, which saves writing it again to compare
    try:
        whole = json.loads(text)
        version, stated, record = whole["schema_version"], whole["checksum"], whole["record"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ValueError("torn: not one whole record") from None
    if version != SCHEMA_VERSION:
        raise ValueError(f"schema version {version!r}; this FineGauge reads {SCHEMA_VERSION}")
    if not isinstance(record, dict) or checksum(_text(record)) != stated:
        raise ValueError("changed: the checksum is another")
    return _ours(record)


def _ours(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record, if it is of the shape that its event has.

    Raises: ValueError.
    """
    event = record.get("event")
    if not _fits(record, _SHAPES.get(event, {}) if isinstance(event, str) else {}):
        raise ValueError(f"foreign: no record of a trial that {event}")
    return record


def _fits(value: Any, shape: Any) -> bool:
    if not isinstance(shape, dict):
        return isinstance(value, shape)
    return isinstance(value, dict) and all(
        name in value and _fits(value[name], inner) for name, inner in shape.items()
    )


def checksum(text: str) -> str:
    """Return the first digits of the SHA-256 of `text`."""
    return sha256(text.encode()).hexdigest()[:CHECKSUM_DIGITS]


def _text(record: Mapping[str, Any]) -> str:
    return json.dumps(record, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def _write_all(descriptor: int, data: bytes) -> None:
    """Write all of `data`; a disk that fills up takes part of it first."""
    while data:
        data = data[os.write(descriptor, data) :]


def _sync_folder(path: str) -> None:
    if os.name == "nt":  # opens no folders
        return
    folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


GONE = "the measuring process ended without a word (killed, or the machine stopped)"


class Trials:
    """The trials of one journal."""

    def __init__(self, path: str) -> None:
        self.journal = Journal(path)

    def start(self, run: "Run", asked: Mapping[str, Any]) -> str:
        """Record that `run` is about to be measured with options `asked`, and return the trial's name."""
        trial = os.urandom(8).hex()
        self.journal.append(
            {
                "event": STARTED,
                "trial": trial,
                "process": [os.getpid(), _born(os.getpid()), node()],
                "run": run_document(run),
                "asked": dict(asked),
            }
        )
        return trial

    def end(self, trial: str, profile: Profile) -> None:
        """Record how `trial` ended; nothing is recorded twice."""
        with self.journal.locked() as descriptor:
            if trial not in {record["trial"] for record in self._of(ENDED)}:
                asked = {record["trial"]: record["asked"] for record in self._of(STARTED)}.get(trial, {})
                record = ended(trial, asked, profile_document(profile))
                self.journal.append_locked(descriptor, (record,))

    def profiles(self) -> list[Profile]:
        """Return the profile of every trial that ended, in the order of the ends."""
        return [profile_of(record["profile"]) for record in self._of(ENDED)]

    def recover(self) -> int:
        """Record as interrupted every trial whose process is gone, and return their number."""
        if not os.path.exists(self.journal.path):
            return 0
        with self.journal.locked() as descriptor:
            known = {record["trial"] for record in self._of(ENDED)}
            lost = [r for r in self._of(STARTED) if r["trial"] not in known and not _alive(*r["process"])]
            records = tuple(
                ended(r["trial"], r["asked"], profile_document(interrupted(r["run"]))) for r in lost
            )
            if records:
                self.journal.append_locked(descriptor, records)
        return len(lost)

    def _of(self, event: str) -> list[dict[str, Any]]:
        return [record for record in self.journal.read().records if record.get("event") == event]


def ended(trial: str, asked: Mapping[str, Any], profile: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record of an end: the question and its result."""
    return {"event": ENDED, "trial": trial, "asked": dict(asked), "profile": dict(profile)}


def interrupted(run: Mapping[str, Any]) -> Profile:
    """Return the profile of a trial whose process died."""
    return Profile(run=run_of(run), source=Source("measured", "trial"), outcome="interrupted", reason=GONE)


def _alive(process: int, born: str, host: str) -> bool:
    """Return whether the process that started a trial still runs; of another host's nothing is known."""
    return host != node() or (bool(born) and _born(process) == born)


def _born(process: int) -> str:
    """Return when a process began, in the kernel's clock ticks of this boot; "" if it is gone."""
    with suppress(OSError), open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as stat:
        state, *rest = stat.read().rpartition(")")[2].split()
        with open("/proc/sys/kernel/random/boot_id", encoding="utf-8") as boot:
            return "" if state in "ZX" else f"{boot.read().strip()}:{rest[18]}"
    return ""
