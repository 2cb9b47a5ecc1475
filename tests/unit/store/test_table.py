"""Results as a table: a row per result, NULL for what is not known, SQL that reaches nothing else."""

import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import csv, parquet

from finegauge.errors import InputError
from finegauge.profile import Breakdown
from finegauge.run.run import FIELDS
from finegauge.store.journal import Trials, line
from finegauge.store.table import _array, _read, ask, export, rows_of, table_of
from tests.e2e.commands import finegauge
from tests.unit.store.results import RUN, journal, result, timed


def row(table: pa.Table, number: int = 0) -> dict[str, object]:
    """Return one row."""
    found: dict[str, object] = table.to_pylist()[number]
    return found


def test_a_row_has_every_field_of_the_run_and_the_facts_of_its_step(tmp_path: Path) -> None:
    memory = Breakdown.of(weights=6e9, activations=2e9)
    path = journal(tmp_path, timed("a", 2.0, peak_memory_bytes=memory)).path
    table, quarantined = table_of([path])
    assert quarantined == 0
    assert set(FIELDS) <= set(table.column_names)
    found = row(table)
    assert (found["cell"], found["estimator"], found["outcome"]) == ("a", "measured", "completed")
    assert (found["model"], found["method"], found["seq_len"]) == ("llama-2-7b", "lora", RUN.seq_len)
    assert (found["step_time_s"], found["time_forward_s"], found["time_backward_s"]) == (2.0, 0.5, 1.5)
    assert (found["peak_memory_bytes"], found["tokens_per_s"]) == (8e9, 256.0)
    assert found["samples_per_s"] == 1.0


def test_what_is_not_known_is_null(tmp_path: Path) -> None:
    failed = result("b", outcome="failed", reason="a test", step_tokens=0.0)
    table, _ = table_of([journal(tmp_path, timed("a", 2.0), failed).path])
    known, unknown = row(table), row(table, 1)
    assert (known["reason"], unknown["reason"]) == (None, "a test")
    for name in ("step_time_s", "time_forward_s", "tokens_per_s", "step_tokens", "peak_memory_bytes"):
        assert unknown[name] is None
    assert (known["step_energy_j"], known["dataset"]) == (None, None)
    (counted,) = rows_of(ask(table, "SELECT count(step_time_s) AS known, count(*) AS n FROM results"))
    assert counted == {"known": 1, "n": 2}
    assert ask(table, "SELECT * FROM results WHERE dataset = 'math'").num_rows == 0  # NULL has a type


def test_axes_with_names_of_their_own_are_columns_and_fields_are_not_doubled(tmp_path: Path) -> None:
    records = (
        timed("a", 1.0, labels={"switch": "baseline", "seq_len": "2048"}),
        timed("b", 2.0, labels={"switch": "zero3+lora", "kind": "long"}),
    )
    table, _ = table_of([journal(tmp_path, *records).path])
    assert table["switch"].to_pylist() == ["baseline", "zero3+lora"]
    assert table["kind"].to_pylist() == [None, "long"]
    assert table["seq_len"].to_pylist() == [RUN.seq_len] * 2  # the field, a number
    assert len(set(table.column_names)) == len(table.column_names)


def test_several_journals_are_one_table(tmp_path: Path) -> None:
    one = journal(tmp_path, timed("a", 1.0, labels={"switch": "lora"}), name="one.jsonl").path
    folder = tmp_path / "campaign"
    journal(folder, timed("b", 2.0), result("c", outcome="failed", reason="x"), name="results.jsonl")
    table, _ = table_of([one, str(folder)])
    assert table["cell"].to_pylist() == ["a", "b", "c"]
    assert table["switch"].to_pylist() == ["lora", None, None]
    assert table["step_time_s"].to_pylist() == [1.0, 2.0, None]


def test_the_store_of_measure_is_a_table_too(tmp_path: Path) -> None:
    trials = Trials(str(tmp_path / "store.jsonl"))
    from finegauge.store.document import profile_of

    trials.end(trials.start(RUN, {"steps": 3}), profile_of(timed("", 2.0)["profile"]))
    found = row(table_of([trials.journal.path])[0])
    assert (found["cell"], found["estimator"], found["source"]) == (None, None, "measured")
    assert found["step_time_s"] == 2.0


def test_one_corrupt_line_costs_one_line(tmp_path: Path) -> None:
    store = journal(tmp_path, *(timed(str(n), 1.0 + n) for n in range(5)))
    lines = Path(store.path).read_bytes().splitlines(keepends=True)
    lines[2] = lines[2].replace(b'"outcome":"completed"', b'"outcome":"compIeted"')
    lines[4] = lines[4][:-40]
    Path(store.path).write_bytes(b"".join(lines))
    table, quarantined = table_of([store.path])
    assert table["cell"].to_pylist() == ["0", "1", "3"]
    assert quarantined == 2


def test_a_journal_without_results_has_columns_and_no_rows(tmp_path: Path) -> None:
    trials = Trials(str(tmp_path / "store.jsonl"))
    trials.start(RUN, {})
    table, quarantined = table_of([trials.journal.path])
    assert (len(table), quarantined) == (0, 0)
    assert {"cell", "outcome", "step_time_s"} <= set(table.column_names)
    assert ask(table, "SELECT outcome FROM results").num_rows == 0


def test_lists_are_joined_and_mixed_columns_are_text(tmp_path: Path) -> None:
    run = RUN.replace(lora_targets=["q_proj", "v_proj"])
    table, _ = table_of([journal(tmp_path, timed("a", 1.0, run=run), timed("b", 1.0)).path])
    assert table["lora_targets"].to_pylist() == ["q_proj+v_proj", "all-linear"]


@pytest.mark.parametrize(
    "values",
    [
        [1, 2], [1, 2.5], [1, "a"], [None, None], [None, "a"], [True, False], [True, 1], [2**62, 1],
        [[], ["a", "b"]], [[1, 2], None], [[1.5], [2.0]], [[True]], ["2026-11-23", "2026-11-24"],
        ["a,\"b", "é\n"], [{"float": "nan"}, 1.0],
    ],
    ids=str,
)  # fmt: skip
def test_fields_are_read_as_python_reads_them(values: list[object]) -> None:
    lines = []
    for value in values:
        record = timed("a", 1.0)
        record["profile"]["run"]["fields"] = {"model": "m", "field": value, "seq_len": 4}
        lines.append(line(record))
    found, refused = _read(b"".join(lines))
    expected = _array(pa, values)
    assert (refused, found.column_names[-3:]) == (0, ["model", "field", "seq_len"])
    assert found["field"].type == expected.type
    assert found["field"].to_pylist() == expected.to_pylist()


@pytest.mark.parametrize("name", ["none", "none.jsonl"])
def test_where_no_results_are_it_says_so(tmp_path: Path, name: str) -> None:
    (tmp_path / "none").mkdir()
    with pytest.raises(InputError, match="holds no results; name a campaign's folder"):
        table_of([str(tmp_path / name)])


def test_sql_answers_over_the_table(tmp_path: Path) -> None:
    table, _ = table_of([journal(tmp_path, *(timed(str(n), 1.0 + n) for n in range(4))).path])
    said = "SELECT max(step_time_s) AS slowest, count(*) AS n, [1, 2] AS pair, DATE '2026-11-23' AS day "
    said += "FROM results"
    assert list(rows_of(ask(table, said))) == [{"slowest": 4.0, "n": 4, "pair": (1, 2), "day": "2026-11-23"}]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT nothing FROM results",
        "SELEC",
        "SELECT * FROM read_csv('/etc/passwd')",
        "COPY results TO 'stolen.csv'",
        "ATTACH 'other.db'",
        "SET enable_external_access = true",
        "INSTALL httpfs",
    ],
)
def test_a_question_that_is_wrong_or_reaches_out_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sql: str
) -> None:
    monkeypatch.chdir(tmp_path)
    table, _ = table_of([journal(tmp_path, timed("a", 1.0)).path])
    with pytest.raises(InputError) as caught:
        ask(table, sql)
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["store.jsonl"]


def test_what_is_exported_reads_back(tmp_path: Path) -> None:
    failed = result("b", outcome="failed", reason='said "no", twice')
    table, _ = table_of([journal(tmp_path, timed("a", 2.0), failed).path])
    export(table, str(tmp_path / "all.parquet"))
    assert parquet.read_table(tmp_path / "all.parquet").equals(table)
    export(table, str(tmp_path / "all.csv"))
    back = csv.read_csv(tmp_path / "all.csv")
    assert back.column_names == table.column_names
    assert back["step_time_s"].to_pylist() == [2.0, None]
    assert back["reason"].to_pylist()[1] == 'said "no", twice'


def test_an_export_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    table, _ = table_of([journal(tmp_path, timed("a", 2.0)).path])
    with pytest.raises(InputError, match=r"should end in \.csv or \.parquet"):
        export(table, str(tmp_path / "all.xlsx"))
    with pytest.raises(InputError, match="Cannot write"):
        export(table, str(tmp_path / "nowhere" / "all.csv"))
    (tmp_path / "taken.csv").mkdir()
    with pytest.raises(InputError, match="Cannot write"):
        export(table, str(tmp_path / "taken.csv"))
    with pytest.raises(InputError, match="Cannot write"):
        export(ask(table, "SELECT [1, 2] AS pair FROM results"), str(tmp_path / "lists.csv"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store.jsonl", "taken.csv"]


@pytest.mark.parametrize(
    "more", [["--where", "1 = 0"], ["--sql", "SELECT gpu FROM results LIMIT 0"], ["--sql", "BEGIN"]]
)
def test_no_row_is_an_answer(tmp_path: Path, more: list[str]) -> None:
    path = journal(tmp_path, timed("a", 1.0)).path
    assert finegauge("results", path, *more).out.split() == ["0", "rows"]
    assert json.loads(finegauge("results", path, *more, "--json").out)["results"] == []
