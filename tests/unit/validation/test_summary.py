"""The statistics of a validation, its rivals and what is printed."""

import json
from pathlib import Path

import pytest

from finegauge.answers.validation import validation_answer
from finegauge.cli import main
from finegauge.errors import InputError
from finegauge.formats.measurement_tables import Measured, MeasuredRow
from finegauge.profile import Breakdown, Profile, Source
from finegauge.render.json import encoded
from finegauge.render.terminal import report_lines
from finegauge.render.validation import validation_report
from finegauge.run.run import Run
from finegauge.validation.rivals import rivals
from finegauge.validation.summary import (
    Answer,
    Errors,
    Prediction,
    confusion,
    matches,
    memory_coverage,
    validate,
)
from tests.golden.accuracy_page import accuracy_page
from tests.unit.validation.test_tables import ROW, table


def answered(*, truth: float, p10: float, p90: float, outcome: str = "ok", ours: str = "ok") -> Answer:
    measured = Measured(None, None, None, False, truth, "torch_allocated", outcome)
    row = MeasuredRow("r", "s", None, "", (), (), "full", measured)
    return Answer(row, Prediction(1.0, 0.9, 1.1, 1.0, 10.0, p10, p90, 0.0, ours), "")


def test_statistics_of_errors() -> None:
    errors = Errors.of([-0.1, 0.2, -0.3, 0.4])
    assert errors is not None
    assert errors.median == pytest.approx(0.25)
    assert errors.mean == pytest.approx(0.25)
    assert errors.p90 == pytest.approx(0.4)
    assert errors.bias == pytest.approx(0.05)
    assert Errors.of([]) is None


def test_coverage_counts_both_sides() -> None:
    rows = [answered(truth=t, p10=9.0, p90=11.0) for t in (8.0, 10.0, 10.5, 12.0)]
    assert memory_coverage(rows) == (4, 0.5, 0.25, 0.25)


def test_a_time_beyond_reason_lies_above_the_interval(tmp_path: Path) -> None:
    table(tmp_path, ROW | {"step_time_s": "1e29"})
    found = encoded(validation_answer(validate([str(tmp_path / "t.csv")])))
    assert found["summary"]["step_time"]["coverage"] == {"rows": 1, "inside": 0.0, "below": 0.0, "above": 1.0}


def test_confusion_of_outcomes() -> None:
    pairs = [("ok", "ok"), ("ok", "oom"), ("oom", "oom"), ("oom", "ok"), ("", "ok")]
    matrix = confusion(answered(truth=1.0, p10=1, p90=1, outcome=t, ours=o) for t, o in pairs)
    assert matrix == (1, 1, 1, 1)
    assert matrix.accuracy == 0.5


def test_every_row_is_counted_and_unanswered_ones_are_named(tmp_path: Path) -> None:
    table(tmp_path, ROW, ROW | {"id": "r2", "gpu": "A1111"}, ROW | {"id": "r3", "gpu": "A1111"})
    validation = validate([str(tmp_path / "t.csv")])
    found = validation_answer(validation)
    summary = encoded(found)["summary"]
    assert (summary["rows"], summary["answered"]) == (3, 1)
    assert summary["unanswered"][0]["ids"] == ["r2", "r3"]
    assert "No GPU named" in summary["unanswered"][0]["reason"]
    assert summary["step_time"]["by"]["source"]["mine"]["rows"] == 1
    assert summary["peak_memory"]["torch_allocated"]["all"]["rows"] == 1
    text = "\n".join(report_lines(validation_report(found)))
    assert "1 of 3 rows answered" in text
    assert "r2" in text


def test_an_estimator_that_fails_loses_one_row_not_the_run(tmp_path: Path) -> None:
    table(tmp_path, ROW, ROW | {"id": "r2", "micro_batch_size": "8"})

    def fragile(run: Run) -> Profile:
        if run.micro_batch_size == 8:
            raise ZeroDivisionError("no")
        return Profile(run=run, source=Source("test", "t"), step_time_s=Breakdown.of(step=1.0))

    validation = validate([str(tmp_path / "t.csv")], fragile)
    assert [one.reason for one in validation.answers] == ["", "internal error (ZeroDivisionError: no)"]


def test_rivals_are_compared_on_the_rows_that_both_answer(tmp_path: Path) -> None:
    table(tmp_path, ROW)
    validation = validate([str(tmp_path / "t.csv")], against=["6nd"])._replace(absent={"x": "not here"})
    (match,) = matches(validation, "6nd")
    assert match.quantity == "step_time"
    assert match.theirs.rows == match.ours.rows == 1
    tokens, params = 4 * 4096, 7_241_732_096
    theirs = 6 * params * tokens / (312e12 * 0.4)
    assert match.theirs.bias == pytest.approx(theirs / 4.92877 - 1, rel=1e-3)
    assert "not here" in "\n".join(report_lines(validation_report(validation_answer(validation))))


def test_the_seeds_law_is_fitted_to_the_other_batches_of_a_sweep(tmp_path: Path) -> None:
    def row(batch: int, rate: float) -> dict[str, str]:
        speed = {"tokens_per_s_per_gpu": str(4096 * rate), "step_time_s": ""}
        return ROW | speed | {"id": f"b{batch}", "micro_batch_size": str(batch)}

    alone = ROW | {"id": "alone", "seq_len": "512"}
    table(tmp_path, row(1, 1.0), row(2, 2.0), row(4, 3.0), row(8, 5.0), alone)
    validation = validate([str(tmp_path / "t.csv")], against=["xia2024"])
    said = {one.row.id: one for one in validation.rivals["xia2024"]}
    assert said["b8"].profile is not None
    assert said["b8"].profile.samples_per_s == pytest.approx(4.0)  # 1, 2, 3, then 4 along the logarithm
    assert said["b8"].step_time_error == pytest.approx(5.0 / 4.0 - 1)
    assert "two other batches" in said["alone"].reason


def test_the_accuracy_page_shows_every_table_and_names_what_is_weak(tmp_path: Path) -> None:
    slow = ROW | {"id": "slow", "source": "elsewhere", "step_time_s": "500"}
    table(tmp_path, ROW, slow, ROW | {"id": "lost", "gpu": "A1111"})
    path = tmp_path / "t.csv"
    page = accuracy_page(validation_answer(validate([str(path)], against=["6nd"])), [str(path)])
    assert "2 of 3 rows are answered, from t.csv" in page
    assert "| source: elsewhere | 1 | 99" in page
    assert "| step time | source: elsewhere | 1 | 99" in page
    assert "step time: 6nd" in page
    assert "1 without an answer (lost): No GPU named" in page


def test_an_unknown_rival_is_refused_with_its_neighbour() -> None:
    with pytest.raises(InputError, match="llm-analysis"):
        rivals(["llm-analisys"])


def test_the_command_prints_json_as_documented(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table(tmp_path, ROW, ROW | {"id": "r2", "seq_len": "long"})
    with pytest.raises(SystemExit) as ended:
        main(["validate", str(tmp_path / "t.csv"), "--json"])
    assert ended.value.code == 0
    said = json.loads(capsys.readouterr().out)
    keys = {
        *("id", "source", "answered", "reason", "step_time_s", "step_time_s_p10", "step_time_s_p90"),
        *("tokens_per_s_per_gpu", "peak_memory_gib", "peak_memory_gib_p10", "peak_memory_gib_p90"),
        *("p_oom", "step_time_error", "peak_memory_error", "outcome"),
    }
    assert keys <= set(said["rows"][0])
    assert said["rows"][0]["reason"] is None
    assert said["rows"][1]["step_time_s"] is None
    assert "seq_len" in said["rows"][1]["reason"]


def test_a_malformed_table_is_exit_64(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.csv"
    path.write_bytes(b"\x00\x01")
    with pytest.raises(SystemExit) as ended:
        main(["validate", str(path)])
    assert ended.value.code == 64
    assert len(capsys.readouterr().err.splitlines()) == 1
