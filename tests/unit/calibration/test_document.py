"""A calibration as a file: written, read back equal, and refused in one sentence where it is broken."""

import json
from pathlib import Path
from typing import Any

import pytest

from finegauge.answers.calibration import calibration_answer
from finegauge.calibration import CONSTANTS, calibrate
from finegauge.documents import write_document
from finegauge.errors import FileFormatError, InputError
from finegauge.prediction.calibration import DATASHEET, SCHEMA_VERSION, SHIPPED, VARIABLE, current, read
from finegauge.prediction.predictor import predict
from finegauge.render.json import encoded
from tests.unit.calibration.measured import run_of, sweep

pytestmark = pytest.mark.extras


@pytest.fixture(scope="module")
def content() -> dict[str, Any]:
    rows = [row for n in range(3) for row in sweep(DATASHEET, f"s{n}", times=1 + n / 4)[:4]]
    answer = calibration_answer(calibrate(rows, DATASHEET, "mine"), date="2026-11-21")
    return {"schema_version": SCHEMA_VERSION, **encoded(answer)}


def test_what_is_written_reads_back(content: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    write_document(content, str(path))
    found = read(str(path))
    assert found.name == "mine"
    for constant in CONSTANTS:
        assert getattr(found, constant.name) == content["constants"][constant.name]["value"]
    assert list(found.time_interval) == content["time_interval"]
    assert found.context_bytes == DATASHEET.context_bytes
    assert list(tmp_path.iterdir()) == [path]


def test_it_says_what_it_rests_on(content: dict[str, Any]) -> None:
    assert (content["num_constants"], content["num_rows"]) == (len(CONSTANTS), 12)
    assert [source["num_rows"] for source in content["sources"]] == [4, 4, 4]
    assert all(source["left_out_median_error"] > 0 for source in content["sources"])
    assert content["fitted"] == "2026-11-21"
    assert content["constants"]["launch_s"]["before"] == DATASHEET.launch_s


def test_a_folder_is_no_place_for_a_file(content: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Cannot write"):
        write_document(content, str(tmp_path))


def broken(content: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Return a document with some of its parts replaced, or left out where None."""
    return {key: value for key, value in {**content, **changes}.items() if value is not None}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"schema_version": 99}, "schema version 99"),
        ({"constants": None}, "no 'constants'"),
        ({"constants": {"speed": {"value": 1.0}}}, "'speed' is no constant"),
        ({"constants": {"name": {"value": 1.0}}}, "'name' is no constant"),
        ({"constants": {"launch_s": {"value": -1.0}}}, "not positive"),
        ({"constants": {"launch_s": {"value": "fast"}}}, "is not a number"),
        ({"constants": {"launch_s": 1e-5}}, "is not a calibration"),
        ({"time_interval": [1.2, 0.8]}, "pair of growing positive ratios"),
        ({"time_interval": [0.8]}, "is not a calibration"),
        ({"memory_interval": None}, "no 'memory_interval'"),
    ],
)
def test_a_broken_file_is_one_sentence(
    content: dict[str, Any], changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    path = tmp_path / "broken.json"
    path.write_text(json.dumps(broken(content, **changes)), "utf-8")
    with pytest.raises(FileFormatError) as refused:
        read(str(path))
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["[]", "3", "{", ""])
def test_what_is_no_document_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "none.json"
    path.write_text(text, "utf-8")
    with pytest.raises(FileFormatError):
        read(str(path))


def test_a_missing_file_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="finegauge calibrate"):
        read(str(tmp_path / "missing.json"))


def test_predictions_use_the_file_that_the_user_names(
    content: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = {**content["constants"]["launch_s"], "value": 1.0}
    path = tmp_path / "slow.json"
    write_document({**content, "constants": {**content["constants"], "launch_s": slow}}, str(path))
    shipped = predict(run_of())
    assert shipped.source.name == read(SHIPPED).name
    monkeypatch.setenv(VARIABLE, str(path))
    current.cache_clear()
    try:
        own = predict(run_of())
    finally:
        current.cache_clear()
    assert own.source.name == "mine"
    assert own.step_time_s.total > 100 * shipped.step_time_s.total
