"""Six realistic jobs: each is planned, exported to a framework, and read back as the same run.

The command of each stands in the comment at the top of its file, and is run as it stands there.
"""

import json
import shlex
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from finegauge.formats.launcher_files import Alongside
from finegauge.formats.reading import read
from finegauge.formats.writing import differences
from finegauge.run.rules import ADAPTER_METHODS, LORA_FIELDS
from finegauge.run.run import Run
from tests.e2e.commands import ROOT, finegauge

JOBS = sorted((ROOT / "examples" / "plans").glob("*.yaml"))


def words(job: Path) -> list[str]:
    """Return the arguments of the command that `job` names, without where to write."""
    (line,) = [one for one in job.read_text("utf-8").splitlines() if one.startswith("#   finegauge plan")]
    _, _, command, run, *rest = shlex.split(line)
    assert (command, ROOT / run) == ("plan", job)
    assert rest[-2:] == ["-o", "plan"]
    return [str(job), *rest[:-2]]


@cache
def planned(job: Path) -> dict[str, Any]:
    """Return the plan of a job."""
    with TemporaryDirectory() as folder:
        done = finegauge("plan", *words(job), "-o", folder, "--json")
    assert done.code == 0
    (plan,) = json.loads(done.out)["results"]
    return dict(plan)


def test_there_are_six() -> None:
    assert len(JOBS) == 6


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.stem)
def test_a_plan_reads_back_as_the_same_run(job: Path, tmp_path: Path) -> None:
    done = finegauge("plan", *words(job), "-o", str(tmp_path / "out"), "--json")
    assert (done.code, done.err) == (0, "")
    whole = json.loads(done.out)
    (plan,) = whole["results"]
    written = [Path(path) for path in whole["exported"]["paths"]]
    assert "skypilot.yaml" in {path.name for path in written}
    idle = () if plan["run"]["method"] in ADAPTER_METHODS else LORA_FIELDS
    fields = {name: value for name, value in plan["run"].items() if value is not None and name not in idle}
    asked = Run.from_fields(fields)
    launcher = [str(path) for path in written if path.name.startswith("accelerate")]
    found = read(str(written[0]), (), Alongside(accelerate=launcher[0] if launcher else None))
    assert differences(asked, found) == []


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.stem)
def test_a_plan_is_what_somebody_would_do(job: Path) -> None:
    plan = planned(job)
    assert plan["out_of_memory_fraction"] < 0.05
    assert plan["num_gpus"] <= 64
    assert plan["num_nodes"] == 1 or plan["wall_s"] >= 3600
    assert plan["profile"]["device_memory_bytes"] == pytest.approx(plan["device_memory_bytes"], rel=1e-9)
    assert plan["profile"]["step_time_s"] == pytest.approx(plan["step_time_s"], rel=1e-9)
    assert plan["quote"]["wall_s"] == pytest.approx(plan["wall_s"], rel=1e-9)


def test_winners_are_of_different_kinds() -> None:
    plans = {job.stem: planned(job) for job in JOBS}
    assert len({(plan["gpu"], plan["num_gpus"]) for plan in plans.values()}) == 6
    one_card = {name for name, plan in plans.items() if plan["num_gpus"] == 1}
    one_node = {name for name, plan in plans.items() if plan["num_gpus"] > 1 and plan["num_nodes"] == 1}
    assert {"llama2_7b_lora", "mixtral_qlora", "mamba_full"} <= one_card
    assert "llama3_70b_qlora" in one_node
    assert plans["llama3_70b_full"]["num_nodes"] > 1
