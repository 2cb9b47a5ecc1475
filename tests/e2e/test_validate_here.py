"""`finegauge validate --here` end to end: one drawn configuration is really measured, in its own process."""

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from finegauge.catalogue.device_profile import own_profile_path, write
from finegauge.render.schema import schema
from tests.e2e.commands import finegauge
from tests.unit.prediction.profiles import profile

SCHEMA = schema("validate-here")


@pytest.fixture
def _profiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep a made-up device profile as this machine's own: its seconds are wrong, its memory is not."""
    monkeypatch.setenv("FINEGAUGE_CACHE_DIR", str(tmp_path))
    write(profile(), own_profile_path("cpu"))


@pytest.mark.extras
@pytest.mark.usefixtures("_profiled")
def test_an_unseen_configuration_is_measured_and_its_memory_is_as_predicted() -> None:
    done = finegauge("validate", "--here", "--num", "1", "--steps", "3", "--json")
    found = json.loads(done.out)
    Draft202012Validator.check_schema(SCHEMA)
    Draft202012Validator(SCHEMA).validate(found)
    (trial,) = found["trials"]
    assert trial["outcome"] == "completed"
    assert trial["measured_step_time_s"] > 0
    assert abs(trial["peak_memory_error"]) < 0.03
    assert done.code == (0 if found["summary"]["holds"] else 10)


def test_tables_and_here_exclude_each_other() -> None:
    done = finegauge("validate", "table.csv", "--here")
    assert done.code == 64
    assert "leave out tables" in done.err


def test_without_torch_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("finegauge.answers.measurement.find_spec", lambda name: None)
    done = finegauge("validate", "--here")
    assert (done.code, done.out) == (64, "")
    assert "pip install 'finegauge[measure]'" in done.err
