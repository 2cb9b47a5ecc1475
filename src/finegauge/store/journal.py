"""An append-only file of JSON records that survives kill -9, a full disk and two writers at once.

One record is one line: its schema version, a checksum, the record. The checksum tells torn lines, flipped
bits and edits: CRC-32, which takes a tenth of the time of version 1's SHA-256. A line is written under
the file's lock, in one piece, and is on the disk when `append` returns; where it cannot be
written whole it is taken back. A line that does not read back (torn by a crash, changed by
hand) is copied to FILE.quarantine with the reason, and passed by. `Trials` are the records of
measurements: one when a trial starts, one when it ends. The record of an end states its facts before
the whole profile, so that a hundred thousand are looked through without reading each to its end.
"""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from errno import EAGAIN
from functools import cache
from hashlib import sha256
from platform import node
from typing import Any, NamedTuple
from zlib import crc32

from finegauge.documents import open_regular, write_whole
from finegauge.errors import InputError, shown
from finegauge.profile import Profile, Source
from finegauge.run.run import Run
from finegauge.sandbox import born, is_alive
from finegauge.store.document import (
    Facts,
    facts_in,
    facts_of,
    profile_document,
    profile_of,
    run_document,
    run_of,
)

Bytes = bytes | memoryview


def _sha256(record: Bytes) -> bytes:
    return sha256(record).hexdigest()[:16].encode()


def checksum(record: Bytes) -> bytes:
    """Return the CRC-32 of a record's text."""
    return b"%08x" % crc32(record)


SCHEMA_VERSION = 2
CHECKSUMS = {SCHEMA_VERSION: checksum, 1: _sha256}  # by the version of a line
NEWLINE = b"\n"
HEAD, RECORD = b'{"schema_version":%d,"checksum":"', b'","record":'
_HEADS = tuple(
    (HEAD % version, len(checksum_of(b"")), checksum_of) for version, checksum_of in CHECKSUMS.items()
)
READ_AHEAD = 2**20  # bytes
PROFILE = b',"profile":{"run":{"fields":'
FIELDS_END = b',"origins":'
MOST_LINE = 2**26  # bytes; a longer line is torn
MOST_QUARANTINED = 2**26  # bytes that are copied


@cache
def _loader() -> Callable[[bytes], Any]:
    """Return a reader of JSON, orjson's where it is installed: several times as fast."""
    try:
        import orjson
    except ImportError:
        return _loads
    loads: Callable[[bytes], Any] = orjson.loads
    return loads


def _loads(text: bytes) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("torn: nested too deeply") from None


STARTED, ENDED, REFUSED = "started", "ended", "refused"
LOCKED_WITHIN_S = 30.0
_RUN = {"fields": dict, "origins": dict, "warnings": list}
_SHAPES = {  # of the records of trials
    STARTED: {"trial": str, "asked": dict, "process": list, "run": _RUN},
    ENDED: {"trial": str, "asked": dict, "profile": {"outcome": str, "run": _RUN, "source": dict}},
    REFUSED: {"trial": str, "asked": {"cell": str, "labels": dict, "estimator": str}, "reason": str},
}


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

    def lines(self, start: int = 0) -> Iterator[tuple[int, bytes]]:
        """Yield every line that is not empty, from the byte `start` on, and where each begins.

        Raises: InputError where the file is there and cannot be read.
        """
        try:
            with open(open_regular(self.path), "rb", READ_AHEAD) as file:
                file.seek(start)
                while one := file.readline(MOST_LINE):
                    if not one.isspace():
                        yield start, one
                    start += len(one)
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._cannot("read", error) from None

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


class Refused:
    """Lines that do not read back."""

    def __init__(self) -> None:
        self.number = 0
        self.copies: list[bytes] = []
        self.room = MOST_QUARANTINED

    def add(self, one: bytes, error: ValueError) -> None:
        """Set a line aside, with the reason."""
        self.number += 1
        self.room -= len(one)
        if self.room > 0:
            self.copies.append(f"# {error}\n".encode() + one.rstrip(NEWLINE) + NEWLINE)

    def keep(self, path: str) -> None:
        """Write the lines; where that is not possible, they still stand in the journal."""
        if self.copies:
            with suppress(OSError):
                write_whole(path, b"".join(self.copies))


def line(record: Mapping[str, Any]) -> bytes:
    """Return `record` as one line with its checksum."""
    text = _text(record)
    return b"".join((HEAD % SCHEMA_VERSION, checksum(text), RECORD, text, b"}\n"))


def record_of(text: bytes) -> dict[str, Any]:
    """Return the record of one line.

    Raises: ValueError that says why it does not count: torn, changed, or of a later version.
    """
    if at := _record_at(text):
        return _ours(_loader()(text[at : text.rindex(b"}")]))
    try:
        whole = json.loads(text)
        version, stated, record = whole["schema_version"], whole["checksum"], whole["record"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ValueError("torn: not one whole record") from None
    if type(version) is not int or version not in CHECKSUMS:
        raise ValueError(f"schema version {version!r}; this FineGauge reads {SCHEMA_VERSION}")
    if not isinstance(record, dict) or CHECKSUMS[version](_text(record)).decode() != stated:
        raise ValueError("changed: the checksum is another")
    return _ours(record)


def _record_at(text: bytes) -> int:
    """Return where a line's record begins whose checksum is right; 0 where it is written otherwise."""
    for head, digits, checksum_of in _HEADS:
        said_to = len(head) + digits
        if text.startswith(head) and text.startswith(RECORD, said_to) and text.endswith((b"}\n", b"}")):
            at = said_to + len(RECORD)
            record = memoryview(text)[at : -2 if text.endswith(NEWLINE) else -1]
            return at if checksum_of(record) == text[len(head) : said_to] else 0
    return 0


class Entry(NamedTuple):
    """What a line says in short."""

    event: str
    trial: str
    asked: Mapping[str, Any]
    facts: Facts | None  # of an end
    process: Sequence[Any]  # that started
    reason: str  # of a refusal
    at: int  # where its line begins

    @property
    def is_cell(self) -> bool:
        """Return whether a campaign asked."""
        return "cell" in self.asked


def entry_of(text: bytes, at: int = 0) -> Entry | None:
    """Return what a line says in short; None where it is no trial's.

    Raises: ValueError that says why it does not count.
    """
    if not (record_at := _record_at(text)) or not (head := _head(text, record_at)):
        head = record_of(text)
        if head.get("event") == ENDED:
            head["facts"] = facts_in(head["profile"])._asdict()
    event, asked = head.get("event"), head.get("asked")
    if not isinstance(event, str) or event not in _SHAPES or asked is None:
        return None
    if "cell" in asked and not _is_cell(**asked):
        raise ValueError("foreign: no record of a cell")
    if event == STARTED and [type(one) for one in head["process"]] != [int, str, str]:
        raise ValueError("foreign: no process")
    try:
        facts = facts_of(head["facts"]) if event == ENDED else None
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"foreign: no facts of a trial ({error})") from None
    return Entry(event, head["trial"], asked, facts, head.get("process", ()), head.get("reason", ""), at)


def _head(text: bytes, record_at: int) -> dict[str, Any]:
    """Return what the record of an end says before its profile; nothing where it says no facts."""
    at = text.find(PROFILE, record_at)
    with suppress(ValueError):
        head = _loader()(text[record_at:at] + b"}") if at > 0 else {}
        if isinstance(head, dict) and head.get("event") == ENDED and isinstance(head.get("trial"), str):
            return head if isinstance(head.get("asked"), dict) and isinstance(head.get("facts"), dict) else {}
    return {}


def _is_cell(
    cell: Any, labels: Any = None, estimator: Any = None, repetition: Any = None, **_options: Any
) -> bool:
    """Return whether something is asked as campaigns ask."""
    return (
        (type(cell), type(labels), type(estimator), type(repetition)) == (str, dict, str, int)
        and {str}.issuperset(map(type, labels.values()))
    )  # fmt: skip


def fields_text(text: bytes) -> bytes:
    """Return the JSON of the fields in the line of an end; no JSON where it is written otherwise."""
    start = text.find(PROFILE) + len(PROFILE)
    return text[start : text.find(FIELDS_END, start)]


def fields_in(text: bytes) -> dict[str, Any]:
    """Return the fields of the run in the line of an end."""
    with suppress(ValueError):
        found = _loader()(fields_text(text))
        if isinstance(found, dict):
            return found
    return dict(record_of(text)["profile"]["run"]["fields"])


def _ours(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record, if it is of the shape that its event has.

    Raises: ValueError.
    """
    event = record.get("event") if isinstance(record, dict) else None
    if not isinstance(record, dict) or not _fits(
        record, _SHAPES.get(event, {}) if isinstance(event, str) else {}
    ):
        raise ValueError(f"foreign: no record of a trial that {event}")
    return record


def _fits(value: Any, shape: Any) -> bool:
    if not isinstance(shape, dict):
        return isinstance(value, shape)
    return isinstance(value, dict) and all(
        name in value and _fits(value[name], inner) for name, inner in shape.items()
    )


def _text(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()


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


class Seen:
    """What the lines of a journal say in short, as far as they have been read."""

    def __init__(self) -> None:
        self.started: dict[str, Entry] = {}
        self.ended: set[str] = set()
        self.entries: list[Entry] = []  # ends and refusals, in their order
        self.refused = Refused()
        self.file: tuple[int, int] | None = None
        self.end = 0  # of the last line that was read

    def add(self, one: bytes) -> None:
        """Take the next line.

        Raises: ValueError that says why it does not count.
        """
        at, self.end = self.end, self.end + len(one)
        entry = entry_of(one, at)
        if entry is not None and entry.event == STARTED:
            self.started[entry.trial] = entry
        elif entry is not None:
            self.entries.append(entry)
            self.ended.add(entry.trial)


class Trials:
    """The trials of one journal."""

    def __init__(self, path: str) -> None:
        self.journal = Journal(path)
        self.seen = Seen()

    def start(self, run: Run, asked: Mapping[str, Any]) -> str:
        """Record that `run` is about to be measured with options `asked`, and return the trial's name."""
        trial = os.urandom(8).hex()
        self.journal.append(
            {
                "event": STARTED,
                "trial": trial,
                "process": [os.getpid(), born(os.getpid()), node()],
                "run": run_document(run),
                "asked": dict(asked),
            }
        )
        return trial

    def end(self, trial: str, profile: Profile) -> None:
        """Record how `trial` ended; nothing is recorded twice."""
        with self.journal.locked() as descriptor:
            seen = self.look()
            if trial not in seen.ended:
                asked = seen.started[trial].asked if trial in seen.started else {}
                record = ended(trial, asked, profile_document(profile))
                self.journal.append_locked(descriptor, (record,))

    def look(self) -> Seen:
        """Return what the journal says, of which only what was added since is read.

        Raises: InputError where the file is there and cannot be read.
        """
        with suppress(OSError):
            found = os.stat(self.journal.path)
            if (found.st_dev, found.st_ino) != self.seen.file or found.st_size < self.seen.end:
                self.seen = Seen()
            self.seen.file = found.st_dev, found.st_ino
        number = self.seen.refused.number
        for at, one in self.journal.lines(self.seen.end):
            self.seen.end = at
            try:
                self.seen.add(one)
            except ValueError as error:
                if not one.endswith(NEWLINE) and len(one) < MOST_LINE:  # somebody may be writing it
                    self.seen.end = at
                    break
                self.seen.refused.add(one, error)
        if self.seen.refused.number > number:
            self.seen.refused.keep(self.journal.quarantine)
        return self.seen

    def record(self, entry: Entry) -> dict[str, Any]:
        """Return the whole record of an entry.

        Raises: InputError where its line is no longer what it was.
        """
        for _, one in self.journal.lines(entry.at):
            with suppress(ValueError):
                return record_of(one)
            break
        raise InputError(f"The store {shown(self.journal.path)} was changed while it was read; ask again.")

    def profile(self, entry: Entry) -> Profile:
        """Return the profile of an end."""
        return profile_of(self.record(entry)["profile"])

    def profiles(self) -> list[Profile]:
        """Return the profile of every trial that ended, in the order of the ends."""
        return [self.profile(entry) for entry in self.look().entries if entry.event == ENDED]

    def fields(self) -> Iterator[tuple[Entry, dict[str, Any]]]:
        """Yield every end, and the fields of its run."""
        ends = {one.at: one for one in self.look().entries if one.event == ENDED}
        for at, one in self.journal.lines():
            if at in ends:
                with suppress(ValueError):
                    yield ends[at], fields_in(one)

    def recover(self) -> int:
        """Record as interrupted every trial whose process is gone, and return their number."""
        if not os.path.exists(self.journal.path):
            return 0
        with self.journal.locked() as descriptor:
            seen = self.look()
            lost = [
                one
                for one in seen.started.values()
                if one.trial not in seen.ended and one.process[2] == node() and not is_alive(*one.process[:2])
            ]
            records = tuple(
                ended(one.trial, one.asked, profile_document(interrupted(self.record(one)["run"])))
                for one in lost
            )
            if records:
                self.journal.append_locked(descriptor, records)
        return len(lost)


def ended(trial: str, asked: Mapping[str, Any], profile: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record of an end: the question, its result in short and in full."""
    facts = facts_in(profile)._asdict()
    return {"event": ENDED, "trial": trial, "asked": dict(asked), "facts": facts, "profile": dict(profile)}


def interrupted(run: Mapping[str, Any]) -> Profile:
    """Return the profile of a trial whose process died."""
    return Profile(run=run_of(run), source=Source("measured", "trial"), outcome="interrupted", reason=GONE)
