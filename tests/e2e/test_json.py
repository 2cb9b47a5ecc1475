"""What `--json` prints: one document, by its schema, and nothing else."""

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from finegauge.render.schema import schema
from tests.e2e.commands import BLACKMAMBA, MIXTRAL, finegauge

COMMANDS = ("estimate", "explain", "check", "max-batch", "max-length")


def document(*arguments: str) -> dict[str, Any]:
    """Return what a command prints under --json, checked against the schema."""
    done = finegauge(*arguments, "--json")
    assert done.err == ""
    whole: dict[str, Any] = json.loads(done.out)
    Draft202012Validator(schema(arguments[0])).validate(whole)
    return whole


@pytest.mark.parametrize("command", COMMANDS)
def test_the_schema_is_one(command: str) -> None:
    Draft202012Validator.check_schema(schema(command))


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("run", [MIXTRAL, BLACKMAMBA])
def test_every_command_keeps_its_schema(command: str, run: str) -> None:
    whole = document(command, run, "--gpu", "a40,h100")
    assert whole["command"] == command
    assert [result["gpu"] for result in whole["results"]] == ["A40", "H100-SXM5-80GB"]


def test_parts_add_up() -> None:
    (result,) = document("estimate", MIXTRAL)["results"]
    profile, quote = result["profile"], result["quote"]
    assert sum(profile["memory_breakdown_bytes"].values()) == pytest.approx(profile["device_memory_bytes"])
    assert sum(profile["time_breakdown_s"].values()) == pytest.approx(profile["step_time_s"])
    assert sum(quote["wall_time_s"].values()) == pytest.approx(quote["wall_s"])
    assert result["quote"]["offers"][0]["on_demand_usd"] <= result["quote"]["offers"][1]["on_demand_usd"]


def test_origins_are_told() -> None:
    whole = document("estimate", MIXTRAL, "micro_batch_size=2")
    assert whole["run"]["micro_batch_size"] == 2
    assert whole["origins"]["micro_batch_size"] == "command line"


def test_a_gpu_without_an_answer() -> None:
    results = document("estimate", MIXTRAL, "--gpu", "v100,a40")["results"]
    assert [result["verdict"] for result in results] == ["fits", "unsupported"]
    assert "bf16" in results[1]["reason"]


def test_what_is_not_known_is_null(tmp_path: Path) -> None:
    run = tmp_path / "run.yaml"
    run.write_text("model: llama-3-8b\nmethod: qlora\ngpu: A40\n")
    (result,) = document("estimate", str(run))["results"]
    assert result["quote"]["wall_s"] is None
    assert result["quote"]["cheapest_on_demand"] is None


def test_nothing_fits() -> None:
    (result,) = document("max-batch", MIXTRAL, "--gpu", "rtx4090")["results"]
    assert result["value"] == 0
    assert result["device_memory_bytes"] is None
    assert result["first_that_fails_bytes"] > 0


def test_check_says_its_verdict_and_keeps_its_exit_code() -> None:
    done = finegauge("check", MIXTRAL, "micro_batch_size=64", "--json")
    assert done.code == 20
    assert json.loads(done.out)["results"][0]["verdict"] == "will_not_fit"


def test_what_will_not_fit_has_no_bill() -> None:
    for command in ("estimate", "explain"):
        (result,) = document(command, MIXTRAL, "micro_batch_size=64")["results"]
        assert result["verdict"] == "will_not_fit"
        assert result["quote"] is None
        assert result["safe_micro_batch_size"] > 0
