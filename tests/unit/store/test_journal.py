"""The journal keeps what it was given through torn lines, edits, a full disk and two writers at once."""

import errno
import fcntl
import os
import resource
import subprocess
import sys
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from finegauge.errors import InputError
from finegauge.store import journal as theirs
from finegauge.store.journal import Journal, line, record_of
from tests.e2e.commands import finegauge
from tests.unit.store.results import read_back


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(str(tmp_path / "deep" / "store.jsonl"))


def test_records_read_back_in_order(journal: Journal) -> None:
    records: list[dict[str, Any]] = [{"n": 1, "x": 0.1 + 0.2}, {"text": "naïve\n—", "none": None}, {}]
    journal.append(*records[:2])
    journal.append(records[2])
    assert read_back(journal) == (records, 0)
    assert not os.path.exists(journal.quarantine)


def test_a_store_that_is_not_there_is_empty(journal: Journal) -> None:
    assert read_back(journal) == ([], 0)


def test_a_line_says_its_version_and_checksum() -> None:
    assert line({"a": 1}) == b'{"schema_version":2,"checksum":"561bacaf","record":{"a":1}}\n'


def test_lines_of_the_first_version_are_read(journal: Journal) -> None:
    Path(journal.path).parent.mkdir()
    earlier = b'{"schema_version":1,"checksum":"015abd7f5cc57a2d","record":{"a":1}}\n'
    Path(journal.path).write_bytes(earlier + earlier.replace(b":1}}", b":2}}"))
    journal.append({"a": 2})
    assert read_back(journal) == ([{"a": 1}, {"a": 2}], 1)
    assert b"the checksum is another" in Path(journal.quarantine).read_bytes()


@pytest.mark.parametrize("cut", [1, 20, 50, -2])
def test_a_torn_line_is_set_aside_and_the_next_one_stands(journal: Journal, cut: int) -> None:
    journal.append({"n": 1})
    with open(journal.path, "ab") as file:
        file.write(line({"n": 2})[:cut])
    journal.append({"n": 3})
    assert read_back(journal) == ([{"n": 1}, {"n": 3}], 1)
    assert b"# torn: not one whole record\n" + line({"n": 2})[:cut] in Path(journal.quarantine).read_bytes()


@pytest.mark.parametrize(
    ("damaged", "reason"),
    [
        (line({"n": 2}).replace(b'"n":2', b'"n":3'), "the checksum is another"),
        (line({"n": 2}).replace(b'version":2', b'version":9'), "schema version 9"),
        (b"\x00\xff\xfe not text\n", "torn"),
        (b"[1, 2]\n", "torn"),
        (b"[" * 100_000 + b"\n", "torn"),
        (b'{"schema_version":1,"checksum":"x","record":[]}\n', "the checksum is another"),
    ],
)
def test_a_damaged_line_is_set_aside_with_the_reason(journal: Journal, damaged: bytes, reason: str) -> None:
    journal.append({"n": 1})
    with open(journal.path, "ab") as file:
        file.write(damaged)
    journal.append({"n": 4})
    assert read_back(journal) == ([{"n": 1}, {"n": 4}], 1)
    assert reason in Path(journal.quarantine).read_bytes().decode("utf-8", "replace")


def test_reading_again_sets_nothing_aside_twice(journal: Journal) -> None:
    journal.append({"n": 1})
    with open(journal.path, "ab") as file:
        file.write(b"torn")
    read_back(journal)
    once = Path(journal.quarantine).read_bytes()
    read_back(journal)
    assert Path(journal.quarantine).read_bytes() == once


def test_numbers_that_json_lacks_are_refused(journal: Journal) -> None:
    journal.append({"n": 1})
    with pytest.raises(ValueError, match="JSON compliant"):
        journal.append({"n": float("nan")})
    assert read_back(journal) == ([{"n": 1}], 0)


@pytest.mark.parametrize("fails", ["write", "fsync"])
def test_a_full_disk_is_a_clear_error_and_leaves_no_half_line(
    journal: Journal, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    journal.append({"n": 1})
    before = Path(journal.path).read_bytes()
    write = os.write
    taken: list[int] = []

    def half_then_full(descriptor: int, data: bytes) -> int:
        if taken:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken.append(write(descriptor, data[: len(data) // 2]))
        return taken[0]

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, fails, half_then_full if fails == "write" else full)
    with pytest.raises(InputError, match="cannot be written: No space left on device"):
        journal.append({"n": 2})
    monkeypatch.undo()
    assert Path(journal.path).read_bytes() == before
    journal.append({"n": 3})
    assert read_back(journal) == ([{"n": 1}, {"n": 3}], 0)


FILLING = """
import resource, signal, sys
from finegauge.errors import InputError
from finegauge.store.journal import Journal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
journal = Journal(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
for n in range(100):
    try:
        journal.append({"n": n, "filler": "x" * 100})
    except InputError as error:
        print(n, error)
        break
"""


def test_a_file_that_may_not_grow_holds_whole_lines(journal: Journal) -> None:
    """The kernel's own refusal, in a process that may write 1,000 bytes to a file and no more."""
    assert resource.RLIMIT_FSIZE is not None
    done = subprocess.run(
        [sys.executable, "-c", FILLING, journal.path], capture_output=True, text=True, check=True, timeout=60
    )
    number, _, error = done.stdout.partition(" ")
    assert "cannot be written: File too large" in error
    records, num_quarantined = read_back(journal)
    assert [record["n"] for record in records] == list(range(int(number)))
    assert num_quarantined == 0


def test_a_folder_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", "utf-8")
    with pytest.raises(InputError, match=r"cannot be opened: (Not a directory|File exists)"):
        Journal(str(tmp_path / "file" / "store.jsonl")).append({})
    with pytest.raises(InputError, match="cannot be read: it is not a file"):
        read_back(Journal(str(tmp_path)))


def append_many(path: str, writer: int) -> None:
    for n in range(50):
        Journal(path).append({"writer": writer, "n": n})


def test_two_writers_do_not_mix_their_lines(journal: Journal) -> None:
    writers = [get_context("fork").Process(target=append_many, args=(journal.path, n)) for n in range(2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    records, num_quarantined = read_back(journal)
    assert num_quarantined == 0
    for number in range(2):
        assert [r["n"] for r in records if r["writer"] == number] == list(range(50))


def test_what_no_line_is_has_a_reason() -> None:
    with pytest.raises(ValueError, match="torn"):
        record_of(b"{}")


def test_a_link_and_a_pipe_are_no_store(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(tmp_path / "pipe")
    for name, why in (("link", "it is a link"), ("pipe", "it is not a file")):
        store = Journal(str(tmp_path / name))
        with pytest.raises(InputError, match=f"cannot be opened: {why}"):
            store.append({"n": 1})
        with pytest.raises(InputError, match=f"cannot be read: {why}"):
            read_back(store)
        said = finegauge("results", str(tmp_path / name))
        assert (said.code, said.err.count("\n")) == (64, 1)
    assert not (tmp_path / "elsewhere").exists()


def test_a_lock_that_is_never_given_back_ends_in_a_sentence(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(theirs, "LOCKED_WITHIN_S", 0.2)
    with journal.locked(), pytest.raises(InputError, match="locked: another process has held its lock"):
        journal.append({"n": 1})


def test_a_file_system_without_locks_is_said(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    with pytest.raises(InputError, match=r"has no locks \(flock\).*use a local disk"):
        journal.append({"n": 1})


@pytest.mark.parametrize(
    "record",
    [
        {"event": "ended"},
        {"event": "ended", "trial": "a", "asked": [], "profile": {}},
        {"event": "ended", "trial": "a", "asked": {}, "profile": {"outcome": 1, "run": {}, "source": {}}},
        {"event": "started", "trial": "a", "asked": {}, "process": None, "run": {}},
        {"event": "refused", "trial": "a", "asked": {"cell": "x"}, "reason": "y"},
    ],
)
def test_a_record_of_another_shape_is_foreign(journal: Journal, record: dict[str, object]) -> None:
    journal.append({"n": 1}, record)
    assert read_back(journal) == ([{"n": 1}], 1)
    assert b"# foreign" in Path(journal.quarantine).read_bytes()
