"""`finegauge calibrate` without a law, and what other commands make of its file."""

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from finegauge.catalogue.tables import held_out_tables, measurement_tables
from finegauge.prediction.calibration import SHIPPED
from finegauge.render.schema import schema
from tests.e2e.commands import MIXTRAL, finegauge, shell

pytestmark = pytest.mark.extras

OWN = (
    "id,source,model,method,gpu,attention,activation_checkpointing,packing,seq_len,micro_batch_size,step_time_s\n"
    "a,mine,qwen3-0.6b,full,A40,fa2,full,true,1024,1,0.9\n"
    "b,mine,qwen3-0.6b,full,A40,fa2,full,true,1024,4,1.9\n"
)


@pytest.fixture
def own(tmp_path: Path) -> str:
    path = tmp_path / "own.csv"
    path.write_text(OWN, "utf-8")
    return str(path)


def test_own_runs_refine_what_is_shipped(own: str, tmp_path: Path) -> None:
    file = tmp_path / "own.json"
    done = finegauge("calibrate", own, "-o", str(file), "--name", "my machine", "--date", "2026-11-21")
    assert done.code == 0, done.err
    assert "my machine" in done.out
    assert "fitted to 2 rows" in done.out
    assert f"FINEGAUGE_CALIBRATION={file}" in done.out
    content = json.loads(file.read_text("utf-8"))
    Draft202012Validator(schema("calibration")).validate(content)
    assert (content["name"], content["fitted"]) == ("my machine", "2026-11-21")
    shipped = json.loads(Path(SHIPPED).read_text("utf-8"))
    Draft202012Validator(schema("calibration")).validate(shipped)
    assert content["constants"]["launch_s"]["before"] == shipped["constants"]["launch_s"]["value"]

    used = shell("estimate", MIXTRAL, NO_COLOR="1", FINEGAUGE_CALIBRATION=str(file))
    assert used.code == 0, used.err
    assert "Calibrated on  my machine." in used.out


def test_the_same_tables_give_the_same_file(own: str, tmp_path: Path) -> None:
    for name in ("one.json", "two.json"):
        finegauge("calibrate", own, "-o", str(tmp_path / name), "--date", "2026-11-21", "--from-datasheet")
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()


def test_a_folder_means_the_tables_in_it(own: str, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a table", "utf-8")
    by_folder = json.loads(finegauge("calibrate", str(tmp_path), "--json", "--name", "x").out)
    by_name = json.loads(finegauge("calibrate", own, "--json", "--name", "x").out)
    Draft202012Validator(schema("calibrate")).validate(by_name)
    assert by_folder == by_name


def test_estimate_names_the_shipped_calibration() -> None:
    assert "\nCalibrated on  published tables." in finegauge("estimate", MIXTRAL).out
    assert "\nCalibrated on  published tables." in finegauge("explain", MIXTRAL).out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nowhere.csv",), "No file 'nowhere.csv'"),
        (("{folder}",), "holds no .csv file"),
        (("{own}", "--date", "yesterday"), "is no day"),
        (("{own}", "--where", "gpu=A40"), "add --law"),
        (("{own}", "-o", "{folder}"), "Cannot write"),
        (("{oom}",), "finegauge validate"),
    ],
)
def test_a_mistake_is_one_sentence(arguments: tuple[str, ...], said: str, own: str, tmp_path: Path) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    oom = tmp_path / "oom.csv"
    oom.write_text(OWN.splitlines()[0] + "\nc,mine,nothing,full,A40,,,,1024,1,\n", "utf-8")
    done = finegauge("calibrate", *(word.format(folder=folder, own=own, oom=oom) for word in arguments))
    assert done.code == 64
    assert said in done.err
    assert len(done.err.splitlines()) == 1


def test_without_scipy_it_says_what_to_install(own: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    done = finegauge("calibrate", own)
    assert done.code == 64
    assert done.err.count("pip install 'finegauge[calibrate]'") == 1


@pytest.mark.parametrize("text", ["", "[]", '{"schema_version": 99}'])
def test_a_broken_calibration_ends_a_command_in_one_sentence(text: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.json"
    path.write_text(text, "utf-8")
    done = shell("estimate", MIXTRAL, FINEGAUGE_CALIBRATION=str(path))
    assert done.code == 64
    assert done.out == ""
    assert len(done.err.splitlines()) == 1
    assert "broken.json" in done.err


@pytest.mark.slow
def test_validate_without_a_table_takes_the_shipped_ones() -> None:
    whole = json.loads(finegauge("validate", "--json", "--against", "6nd").out)
    Draft202012Validator(schema("validate")).validate(whole)
    summary = whole["summary"]
    assert summary["rows"] == sum(
        len(Path(path).read_text("utf-8").splitlines()) - 1
        for path in [*measurement_tables(), *held_out_tables()]
    )
    assert summary["answered"] / summary["rows"] > 0.9
