"""Every kind of file gives the same records; one bad line costs one line."""

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finegauge.catalogue.datasets import holds_texts
from finegauge.data import records
from finegauge.data.records import Bad, chunks, row_name, source_of
from finegauge.errors import FileFormatError, InputError
from tests.unit.data.made import lines, talk

ROWS = [{"prompt": f'question {n}, "quoted"\nand ü', "completion": f"answer {n}"} for n in range(7)]
CUT_GZIP = gzip.compress(b'{"text": "a"}\n' * 99, mtime=0)[
    :-9
]  # without a date: the same at every collection


def read(path: Path | str) -> list[tuple[int, Any]]:
    return [pair for one in chunks(source_of(str(path))) for pair in zip(one.rows, one.records, strict=True)]


def write(path: Path, rows: list[dict[str, str]]) -> Path:
    """Write rows as the kind of file that the name says."""
    text = "\n".join(map(json.dumps, rows))
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    elif path.suffix == ".jsonl":
        path.write_text(text, "utf-8")
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows, indent=1), "utf-8")
    elif path.suffix in (".csv", ".tsv"):
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, delimiter="," if path.suffix == ".csv" else "\t")
            writer.writerow(list(rows[0]))
            writer.writerows(list(row.values()) for row in rows)
    else:
        import pyarrow
        from pyarrow import ipc, parquet

        table = pyarrow.Table.from_pylist(rows)
        if path.suffix == ".parquet":
            parquet.write_table(table, path, row_group_size=3)
        else:
            opened = ipc.new_stream if path.stem == "stream" else ipc.new_file
            with opened(path, table.schema) as writer:
                writer.write_table(table, max_chunksize=4)
    return path


NAMES = ["a.jsonl", "a.jsonl.gz", "a.json", "a.csv", "a.tsv", "a.parquet", "stream.arrow", "file.arrow"]


@pytest.mark.parametrize("name", NAMES)
def test_every_kind_of_file_holds_the_same(name: str, tmp_path: Path) -> None:
    assert [record for _, record in read(write(tmp_path / name, ROWS))] == ROWS


@pytest.mark.parametrize("name", NAMES)
def test_small_chunks_join_to_the_same(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / name, ROWS)
    monkeypatch.setattr(records, "RECORDS_AT_A_TIME", 2)
    monkeypatch.setattr("finegauge.data.records.RECORDS_AT_A_TIME", 2)
    monkeypatch.setattr(records, "PIECE_BYTES", 5)
    found = list(chunks(source_of(str(path))))
    assert [record for one in found for record in one.records] == ROWS
    assert len(found) >= 3
    assert all(len(one.rows) <= 2 for one in found)
    done = [one.done_bytes for one in found]
    assert done == sorted(done)
    assert done[-1] == path.stat().st_size


def test_rows_are_lines_of_the_file(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", [{"text": "a"}, b"", b"  ", b"{broken", {"text": "b"}, b"\xff{}"])
    found = read(path)
    assert [row for row, _ in found] == [1, 4, 5, 6]
    assert found[0][1] == {"text": "a"}
    assert found[1][1].why.startswith("it is no JSON: Expecting property name")
    assert isinstance(found[3][1], Bad)
    assert row_name(source_of(path)) == "line"


def test_rows_of_a_csv_are_lines_too(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b'\xef\xbb\xbfprompt,completion\n"two\nlines",b\nonly one\n\nc,d\n')
    found = read(tmp_path / "a.csv")
    assert [row for row, _ in found] == [2, 4, 6]
    assert found[0][1] == {"prompt": "two\nlines", "completion": "b"}
    assert found[1][1] == Bad("2 cells expected, 1 found")


def test_a_cell_of_a_csv_may_hold_a_conversation(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", [{"messages": json.dumps(talk("a", "b"))}])
    assert read(path) == [(2, {"messages": talk("a", "b")})]


def test_a_line_that_is_too_long_costs_that_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = lines(tmp_path / "a.jsonl", [{"text": "a"}, {"text": "b" * 500}, {"text": "c"}])
    monkeypatch.setattr(records, "MAX_RECORD_BYTES", 100)
    assert [isinstance(record, Bad) for _, record in read(path)] == [False, True, False]


def test_a_json_of_values_one_after_the_other(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"text": "a"}\n{"text":\n "b"} ', "utf-8")
    assert [record["text"] for _, record in read(tmp_path / "a.json")] == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('[{"text": "a"}, {"text": ]', "record 2 cannot be read as JSON: Expecting value"),
        ('[{"text": "a"}', "record 1 cannot be read as JSON: the list does not end"),
        ('[{"text": "a"} {"text": "b"}]', "record 1 cannot be read as JSON: a comma is missing"),
        ('[{"text": "a"},]', "a comma stands before the end"),
        ("[" * 100_000, "cannot be read as JSON"),
        ("what?", "record 1 cannot be read as JSON"),
    ],
)
def test_json_that_is_none(text: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text, "utf-8")
    with pytest.raises(FileFormatError, match=why):
        read(tmp_path / "a.json")


@given(
    st.lists(st.dictionaries(st.text(max_size=5), st.text(max_size=30) | st.integers(), max_size=3)),
    st.integers(1, 20),
)
@settings(max_examples=30)
def test_a_stream_of_json_equals_the_whole(values: list[Any], piece: int) -> None:
    import io

    kept = records.PIECE_BYTES
    records.PIECE_BYTES = piece
    try:
        packed = io.BytesIO(json.dumps(values, ensure_ascii=False).encode("utf-8", "surrogatepass"))
        assert [value for value, _ in records.values(packed, "x", 1000)] == values
    finally:
        records.PIECE_BYTES = kept


def saved(folder: Path, rows: list[dict[str, str]]) -> Path:
    """Write a folder as `Dataset.save_to_disk` does, in two shards."""
    folder.mkdir(parents=True)
    names = ["data-00000-of-00002.arrow", "data-00001-of-00002.arrow"]
    for name, some in zip(names, (rows[:4], rows[4:]), strict=True):
        (folder / "stream.arrow").unlink(missing_ok=True)
        write(folder / "stream.arrow", some).rename(folder / name)
    state = {"_data_files": [{"filename": name} for name in names]}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text("{}")
    return folder


def test_a_folder_of_datasets(tmp_path: Path) -> None:
    found = read(saved(tmp_path / "set", ROWS))
    assert found == list(enumerate(ROWS, start=1))
    assert row_name(source_of(str(tmp_path / "set"))) == "record"


def test_a_folder_that_datasets_itself_saved(tmp_path: Path) -> None:
    from datasets import Dataset, DatasetDict

    splits = {"test": Dataset.from_list(ROWS[:2]), "train": Dataset.from_list(ROWS)}
    DatasetDict(splits).save_to_disk(str(tmp_path / "set"))
    source = source_of(str(tmp_path / "set"))
    assert source.notes == ("split train is read, test left out",)
    assert [record for _, record in read(tmp_path / "set")] == ROWS


def test_shards_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for n in range(2):
        write(tmp_path / "data" / f"train-0000{n}.parquet", ROWS[3 * n : 3 * n + 3])
    write(tmp_path / "data" / "test-00000.parquet", ROWS[:1])
    assert source_of(str(tmp_path)).notes == ("2 of 3 files are read, those named train",)
    assert read(tmp_path) == list(enumerate(ROWS[:6], start=1))


def test_no_folder_leads_out_of_itself(tmp_path: Path) -> None:
    write(tmp_path / "stream.arrow", ROWS)
    (tmp_path / "set").mkdir()
    for name in ("../stream.arrow", str(tmp_path / "stream.arrow"), ".."):
        (tmp_path / "set" / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}]}))
        with pytest.raises(FileFormatError, match="is no folder that the library datasets saved"):
            source_of(str(tmp_path / "set"))


@pytest.mark.parametrize(
    ("name", "content", "error", "why"),
    [
        ("absent.jsonl", None, InputError, "Cannot read .*No such file"),
        ("a.docx", b"x", FileFormatError, "is no data set of a known kind"),
        ("a.parquet", b"PAR1 is not this", FileFormatError, "cannot be read as Parquet"),
        ("a.arrow", b"nor is this Arrow", FileFormatError, "cannot be read as Arrow"),
        ("a.jsonl.gz", b"no gzip", InputError, "Cannot read"),
        ("a.jsonl.gz", CUT_GZIP, FileFormatError, "ends in the middle"),
        ("a.csv", b"", FileFormatError, "the first line should name the columns"),
    ],
)
def test_files_that_are_none(
    name: str, content: bytes | None, error: type[Exception], why: str, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(error, match=why):
        read(tmp_path / name)


def test_an_empty_folder_is_none(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="holds no data set"):
        source_of(str(tmp_path))


def test_texts_and_lengths_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "lengths.csv").write_text("length,count\n3,4\n")
    write(tmp_path / "texts.csv", ROWS)
    assert not holds_texts(str(tmp_path / "lengths.csv"), has_tokenizer=True)
    assert holds_texts(str(tmp_path / "texts.csv"), has_tokenizer=True)
    assert not holds_texts(str(tmp_path / "texts.csv"), has_tokenizer=False)
    assert holds_texts("a.jsonl", has_tokenizer=False)
    assert holds_texts(str(tmp_path), has_tokenizer=False)
    assert not holds_texts("commonsense_15k", has_tokenizer=True)
