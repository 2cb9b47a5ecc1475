"""The table kept beside a journal: never another answer than the journal's own."""

import os
from hashlib import sha256
from io import BytesIO
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from finegauge.store import table as table_cache
from finegauge.store.journal import Journal
from finegauge.store.table import DIGEST, SUFFIX, table_of
from tests.unit.store.results import journal, timed


@pytest.fixture(autouse=True)
def every_journal_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_cache, "WORTH_BYTES", 0)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return how many bytes were read as lines, call by call."""
    sizes: list[int] = []
    from finegauge.store import table

    whole = table._read

    def counted(lines: bytes) -> tuple[pa.Table, int]:
        sizes.append(len(lines))
        return whole(lines)

    monkeypatch.setattr(table, "_read", counted)
    return sizes


def cells(store: Journal) -> list[str]:
    """Return the cells of the journal's table."""
    found: list[str] = table_of([store.path])[0]["cell"].to_pylist()
    return found


def test_a_journal_is_read_once(tmp_path: Path, read: list[int]) -> None:
    store = journal(tmp_path, timed("a", 1.0), timed("b", 2.0))
    first, again = table_of([store.path])[0], table_of([store.path])[0]
    assert again.equals(first)
    assert read == [os.path.getsize(store.path)]


def test_lines_that_were_appended_are_added(tmp_path: Path, read: list[int]) -> None:
    store = journal(tmp_path, timed("a", 1.0))
    assert cells(store) == ["a"]
    before = os.path.getsize(store.path)
    store.append(timed("b", 2.0, labels={"switch": "lora"}), timed("c", 3.0))
    assert cells(store) == ["a", "b", "c"] == cells(store)
    assert read == [before, os.path.getsize(store.path) - before]
    table = table_of([store.path])[0]
    assert table["switch"].to_pylist() == [None, "lora", None]
    os.remove(store.path + SUFFIX)
    assert table_of([store.path])[0].select(table.column_names).equals(table)


def test_a_changed_file_is_read_anew(tmp_path: Path, read: list[int]) -> None:
    store = journal(tmp_path, timed("a", 1.0), timed("b", 2.0))
    cells(store)
    lines = Path(store.path).read_bytes().splitlines(keepends=True)
    Path(store.path).write_bytes(lines[1] + lines[0])  # of the same length
    assert cells(store) == ["b", "a"]
    Path(store.path).write_bytes(lines[0])  # a shorter one
    assert cells(store) == ["a"]
    assert len(read) == 3


def damaged(kept: Path) -> None:
    kept.write_bytes(kept.read_bytes()[:200])


def nonsense(kept: Path) -> None:
    kept.write_bytes(b"no table at all")


def foreign(kept: Path) -> None:
    parquet.write_table(pa.table({"cell": ["z"]}), kept)


def flipped(kept: Path) -> None:
    content = bytearray(kept.read_bytes())
    content[len(content) // 2] ^= 4
    kept.write_bytes(content)


def older(kept: Path) -> None:
    table = parquet.read_table(BytesIO(kept.read_bytes()[DIGEST:]))
    file = BytesIO()
    parquet.write_table(table.replace_schema_metadata({**table.schema.metadata, b"version": b"0"}), file)
    kept.write_bytes(sha256(file.getvalue()).hexdigest().encode() + file.getvalue())


def folder(kept: Path) -> None:
    kept.unlink()
    kept.mkdir()


@pytest.mark.parametrize("harm", [damaged, nonsense, foreign, flipped, older, folder])
def test_a_cache_that_cannot_be_trusted_is_ignored(tmp_path: Path, read: list[int], harm: object) -> None:
    store = journal(tmp_path, timed("a", 1.0))
    cells(store)
    assert callable(harm)
    harm(Path(store.path + SUFFIX))
    assert cells(store) == ["a"]
    assert len(read) == 2


def test_a_torn_last_line_is_never_kept(tmp_path: Path) -> None:
    store = journal(tmp_path, timed("a", 1.0), timed("b", 2.0))
    whole = Path(store.path).read_bytes()
    Path(store.path).write_bytes(whole[:-30])
    assert table_of([store.path])[1] == 1
    assert not os.path.exists(store.path + SUFFIX)
    Path(store.path).write_bytes(whole)  # as if its writer had just been at it
    assert cells(store) == ["a", "b"]


def test_a_damaged_line_is_counted_at_every_question(tmp_path: Path) -> None:
    store = journal(tmp_path, timed("a", 1.0))
    cells(store)
    with open(store.path, "ab") as file:
        file.write(b"{torn}\n")
    store.append(timed("b", 2.0))
    for _ in range(2):
        table, quarantined = table_of([store.path])
        assert (table["cell"].to_pylist(), quarantined) == (["a", "b"], 1)


def test_where_it_cannot_be_kept_the_answer_is_the_same(tmp_path: Path) -> None:
    store = journal(tmp_path, timed("a", 1.0))
    (tmp_path / f"store.jsonl{SUFFIX}").mkdir()
    assert cells(store) == ["a"] == cells(store)
    assert {path.name for path in tmp_path.iterdir()} == {"store.jsonl", f"store.jsonl{SUFFIX}"}


def test_a_small_journal_is_not_worth_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_cache, "WORTH_BYTES", 1_000_000)
    store = journal(tmp_path, timed("a", 1.0))
    assert cells(store) == ["a"]
    assert [path.name for path in tmp_path.iterdir()] == ["store.jsonl"]
