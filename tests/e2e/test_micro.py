"""`finegauge micro`, end to end, over a grid of two operators."""

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from finegauge.catalogue.device_profile import HOST_COSTS, OPERATORS, device_profile
from tests.e2e.commands import ROOT, finegauge

SCHEMA = json.loads((ROOT / "docs" / "json" / "micro.schema.json").read_text("utf-8"))


@pytest.fixture(autouse=True)
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Time two operators of a few values, on the processor, and keep the result out of the user's cache."""
    from finegauge.measure.micro import micro
    from finegauge.measure.micro.grid import Point

    points = (Point("linear", {"rows": 4, "n": 8, "k": 16}), Point("copy", {"bytes": 4096}))
    monkeypatch.setattr(micro, "default_points", lambda device: points)
    monkeypatch.setattr(micro, "_trial_s", lambda place, dtype: 9.0 if dtype == "bf16" else 1.0)
    monkeypatch.setattr(micro, "host_costs", lambda bench, notes: {"launch_s": 1e-6})
    monkeypatch.setenv("FINEGAUGE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_COLOR", "1")


def test_the_profile_becomes_this_machines_own(tmp_path: Path) -> None:
    done = finegauge("micro", "--device", "cpu", "--threads", "1")
    path = tmp_path / "cache" / "devices" / "cpu.json"
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[-1] == f"Written to {path}; use it by --gpu here"
    assert len(device_profile(str(path)).readings) == 5


def test_json_is_the_file_with_its_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    done = finegauge("micro", "--device", "cpu", "--threads", "1", "-o", str(path), "--json")
    found = json.loads(done.out)
    Draft202012Validator(SCHEMA).validate(found)
    assert (found.pop("command"), found.pop("path")) == ("micro", str(path))
    assert found == json.loads(path.read_text("utf-8"))


def test_the_schema_knows_what_profiles_know() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$defs"]["reading"]["properties"]["operator"]["enum"] == list(OPERATORS)
    assert SCHEMA["properties"]["host"]["propertyNames"]["enum"] == list(HOST_COSTS)


def test_a_run_adds_its_own_sizes(tmp_path: Path) -> None:
    config = {"model_type": "llama", "vocab_size": 32, "hidden_size": 16, "intermediate_size": 24}
    config |= {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    settings = ["method: full", "weights_dtype: fp32", "autocast: none", "attention: sdpa", "seq_len: 8"]
    run = tmp_path / "run.yaml"
    run.write_text("\n".join([f"model: {tmp_path}", *settings, "micro_batch_size: 2"]), encoding="utf-8")
    path = tmp_path / "mine.json"
    done = finegauge("micro", str(run), "--device", "cpu", "--threads", "1", "-o", str(path))
    assert done.code == 0, done.err
    linears = device_profile(str(path)).select("linear", "fp32", "forward")
    assert {"rows": 16.0, "n": 24.0, "k": 16.0} in [dict(one.sizes) for one in linears]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nosuch.yaml",), "nosuch.yaml"),
        (("--device", "tpu"), "'tpu' is not one of"),
        (("--collectives", "1"), "1 is not in the range"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(arguments: tuple[str, ...], said: str) -> None:
    done = finegauge("micro", *arguments)
    assert done.code == 64
    assert said in done.err
    assert done.err.count("\n") == 1


def test_without_torch_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "torch" else find_spec(name)
    )
    done = finegauge("micro")
    assert done.code == 64
    assert "Timing operators needs torch: pip install 'finegauge[measure]'" in done.err
