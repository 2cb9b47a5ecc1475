"""`finegauge plan`: an answer whatever it finds, JSON by its schema, errors in one line."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from finegauge.render.schema import schema
from tests.e2e.commands import EXAMPLES, finegauge

SCHEMA = schema("plan")
LORA = str(EXAMPLES / "plans" / "llama2_7b_lora.yaml")
FEW = ("--gpus", "l40s,h100,rtx4090", "--max-gpus", "8")


def document(*arguments: str) -> dict[str, Any]:
    """Return what the command prints under --json, checked against the schema."""
    done = finegauge("plan", LORA, *FEW, *arguments, "--json")
    assert (done.code, done.err) == (0, "")
    whole: dict[str, Any] = json.loads(done.out)
    Draft202012Validator(SCHEMA).validate(whole)
    return whole


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(SCHEMA)


def test_the_answer_comes_first_and_the_page_is_narrow() -> None:
    done = finegauge("plan", LORA, *FEW)
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0].startswith("Cheapest: ")
    assert all(len(line) <= 100 for line in lines)
    for part in ("Rent", "Takes", "Current run", "Cost, time and energy", "Why not", "Managed", "Searched"):
        assert any(part in line for line in lines), part


def test_every_limit_is_kept() -> None:
    whole = document("--within", "40min", "--budget", "$5", "--minimise", "energy")
    (plan,) = whole["results"]
    assert plan["wall_s"] <= 2400
    assert plan["on_demand_usd"] <= 5
    assert plan["out_of_memory_fraction"] < 0.05
    assert whole["wanted"]["within_s"] == 2400
    energies = [one["wall_energy_j"] for one in whole["front"]]
    assert plan["wall_energy_j"] == pytest.approx(min(energies), rel=0.03)
    assert all(one["wall_s"] <= 2400 for one in whole["front"])


def test_the_parts_agree() -> None:
    whole = document()
    (plan,) = whole["results"]
    assert plan["profile"]["device_memory_bytes"] == pytest.approx(plan["device_memory_bytes"], rel=1e-9)
    assert plan["quote"]["wall_s"] == pytest.approx(plan["wall_s"], rel=1e-9)
    assert plan["quote"]["cheapest_on_demand"]["on_demand_usd"] == pytest.approx(plan["on_demand_usd"])
    costs = [one["on_demand_usd"] for one in whole["front"]]
    assert costs == sorted(costs)
    assert costs[0] == pytest.approx(plan["on_demand_usd"], rel=0.031)


def test_no_plan_names_the_nearest_limit() -> None:
    done = finegauge("plan", LORA, *FEW, "--within", "4min", "--budget", "1")
    assert done.code == 0
    assert done.out.startswith("No plan within 4.0 min and $1.00: ")
    whole = document("--within", "4min", "--budget", "1")
    assert whole["results"] == []
    assert whole["nearest"]["limit"] in ("time", "budget")
    assert whole["nearest"]["over_fraction"] > 0


def test_a_limit_far_away_is_told_as_a_multiple() -> None:
    done = finegauge("plan", LORA, *FEW, "--within", "1s")
    assert re.match(r"No plan within 1.0 s: the closest takes [0-9.]+ min, [0-9,]+ x the limit", done.out)


def test_a_framework_may_be_called_by_its_own_name(tmp_path: Path) -> None:
    done = finegauge("plan", LORA, *FEW, "--export", "LLaMA_Factory", "-o", str(tmp_path / "out"))
    assert done.code == 0
    assert (tmp_path / "out" / "llamafactory.yaml").is_file()


def test_what_is_too_large_says_by_how_much() -> None:
    large = str(EXAMPLES / "plans" / "llama3_70b_full.yaml")
    done = finegauge("plan", large, "--gpus", "rtx4090", "--keep-method")
    assert done.code == 0
    assert re.match(
        r"No plan: memory is short by [0-9.]+ GiB at least, [0-9.]+ x what there is \(8 x RTX 4090",
        done.out,
    )
    done = finegauge("plan", large, "--gpus", "rtx4090", "--keep-method", "--json")
    nearest = json.loads(done.out)["nearest"]
    assert nearest["limit"] == "memory"
    assert nearest["plan"]["device_memory_bytes"] > nearest["plan"]["capacity_bytes"]


def test_what_nobody_offers_is_no_plan() -> None:
    done = finegauge("plan", LORA, "--gpus", "l40s", "--providers", "gcp")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("No plan: no provider offers such machines")
    done = finegauge("plan", LORA, "--gpus", "l40s", "--providers", "gcp", "--json")
    Draft202012Validator(SCHEMA).validate(json.loads(done.out))


def test_spot_and_method_are_as_asked() -> None:
    (plan,) = document("--spot", "--keep-method")["results"]
    assert plan["run"]["method"] == "lora"
    assert plan["spot_usd"] is not None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--within", "soon"), "write it as 24h"),
        (("--budget", "lots"), "write it as 200"),
        (("--gpus", "h1000"), "Did you mean"),
        (("--providers", "awz"), "aws"),
        (("--export", "lamafactory", "-o", "x"), "Did you mean 'llamafactory'"),
        (("--export", "trl"), "-o DIR"),
        (("-o", "x"), "--export"),
        (("--risk", "0.9"), "0.9"),
        (("--figure", "front.svg"), "end in .png"),
        (("--figure", "nowhere/front.png"), "no folder 'nowhere'"),
    ],
)
def test_bad_input_is_one_line(arguments: tuple[str, ...], said: str) -> None:
    done = finegauge("plan", LORA, *arguments)
    assert done.code == 64
    assert done.err.count("\n") == 1
    assert said in done.err


@pytest.mark.extras
def test_the_front_is_drawn(tmp_path: Path) -> None:
    path = tmp_path / "front.png"
    done = finegauge("plan", LORA, *FEW, "--figure", str(path))
    assert done.code == 0
    assert path.read_bytes().startswith(b"\x89PNG")
    assert f"Drew {path}" in done.out
