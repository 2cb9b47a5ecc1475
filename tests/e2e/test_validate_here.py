"""`finegauge validate --here` end to end: one drawn configuration is really measured, in its own process."""

import json
from pathlib import Path

import pytest

from finegauge.catalogue.device_profile import shelf_path, write
from tests.e2e.commands import finegauge
from tests.unit.predict.profiles import profile


@pytest.fixture
def _profiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep a made-up device profile as this machine's own: its seconds are wrong, its memory is not."""
    monkeypatch.setenv("FINEGAUGE_CACHE_DIR", str(tmp_path))
    write(profile(), shelf_path("cpu"))


@pytest.mark.usefixtures("_profiled")
def test_an_unseen_configuration_is_measured_and_its_memory_is_as_predicted() -> None:
    done = finegauge("validate", "--here", "--num", "1", "--steps", "3", "--json")
    found = json.loads(done.out)
    (trial,) = found["trials"]
    assert trial["outcome"] == "completed"
    assert trial["measured_step_time_s"] > 0
    assert abs(trial["peak_memory_error"]) < 0.03
    assert done.code == (0 if found["summary"]["holds"] else 10)


def test_tables_and_here_exclude_each_other() -> None:
    done = finegauge("validate", "table.csv", "--here")
    assert done.code == 64
    assert "leave out tables" in done.err
