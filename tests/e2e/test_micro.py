"""`finegauge micro`, end to end, over a grid of two operators."""

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from finegauge import __version__
from finegauge.catalogue.device_profile import HOST_COSTS, OPERATORS, device_profile
from finegauge.render.schema import schema
from tests.e2e.commands import finegauge

SCHEMA = schema("micro")


@pytest.fixture(autouse=True)
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Time two operators of a few values, on the processor, and keep the result out of the user's cache."""
    from finegauge.measurement.bench import microbenchmarks
    from finegauge.measurement.bench.points import Point

    points = (Point("linear", {"rows": 4, "n": 8, "k": 16}), Point("copy", {"bytes": 4096}))
    monkeypatch.setattr(microbenchmarks, "default_points", lambda device: points)
    monkeypatch.setattr(microbenchmarks, "_trial_s", lambda place, dtype: 9.0 if dtype == "bf16" else 1.0)
    monkeypatch.setattr(microbenchmarks, "host_costs", lambda bench, notes: {"launch_s": 1e-6})
    monkeypatch.setenv("FINEGAUGE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_COLOR", "1")


def test_the_profile_becomes_this_machines_own(tmp_path: Path) -> None:
    done = finegauge("micro", "--device", "cpu", "--threads", "1")
    path = tmp_path / "cache" / "devices" / "cpu.json"
    assert (done.code, done.err) == (0, "")
    said = [line.split() for line in done.out.splitlines()[-2:]]
    assert said == [["Written", "to", str(path)], ["Use", "it", "by", "--gpu", "here"]]
    assert len(device_profile(str(path)).readings) == 5


def test_json_is_the_file_with_its_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    done = finegauge("micro", "--device", "cpu", "--threads", "1", "-o", str(path), "--json")
    found = json.loads(done.out)
    Draft202012Validator(SCHEMA).validate(found)
    assert (found.pop("command"), found.pop("path")) == ("micro", str(path))
    assert found.pop("finegauge_version") == __version__
    assert found == json.loads(path.read_text("utf-8"))


def test_the_schema_knows_what_profiles_know() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$defs"]["Reading"]["properties"]["operator"]["enum"] == list(OPERATORS)
    assert SCHEMA["properties"]["host"]["propertyNames"]["enum"] == list(HOST_COSTS)


def test_the_schema_takes_a_disturbed_repeat(tmp_path: Path) -> None:
    """On a busy machine the median repeat may take twice the quickest and more."""
    path = tmp_path / "mine.json"
    done = finegauge("micro", "--device", "cpu", "--threads", "1", "-o", str(path), "--json")
    found = json.loads(done.out)
    found["readings"][0]["spread_fraction"] = 1.11
    Draft202012Validator(SCHEMA).validate(found)
    found["readings"][0]["spread_fraction"] = -0.1
    assert not Draft202012Validator(SCHEMA).is_valid(found)


def tiny(folder: Path, name: str, *settings: str) -> str:
    """Write a run of a Llama of a few values, and return its path."""
    config = {"model_type": "llama", "vocab_size": 32, "hidden_size": 16, "intermediate_size": 24}
    config |= {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    usual = ("method: full", "weights_dtype: fp32", "autocast: none", "attention: sdpa", "seq_len: 8")
    run = folder / name
    run.write_text("\n".join([f"model: {folder}", *usual, "micro_batch_size: 2", *settings]), "utf-8")
    return str(run)


def test_a_run_adds_its_own_sizes(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    run = tiny(tmp_path, "run.yaml")
    done = finegauge("micro", run, "--device", "cpu", "--threads", "1", "-o", str(path))
    assert done.code == 0, done.err
    linears = device_profile(str(path)).select("linear", "fp32", "forward")
    assert {"rows": 16.0, "n": 24.0, "k": 16.0} in [dict(one.sizes) for one in linears]


@pytest.mark.slow
def test_modules_are_measured_beside_what_their_operators_say(tmp_path: Path) -> None:
    runs = tiny(tmp_path, "tune.yaml"), tiny(tmp_path, "serve.yaml", "phase: decode", "max_new_tokens: 4")
    options = ("--device", "cpu", "--threads", "1", "-o", str(tmp_path / "mine.json"), "--modules")
    done = finegauge("micro", *runs, *options, "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    Draft202012Validator(SCHEMA).validate(found)
    assert [one["phase"] for one in found["runs"]] == ["sft", "decode"]
    for one in found["runs"]:
        assert one["outcome"] == "completed"
        for side in ("predicted", "measured"):
            total = sum(row[f"{side}_s"] for row in one["modules"])
            assert total == pytest.approx(one[f"{side}_step_s"])
        products = [row for row in one["modules"] if row["path"][-1] == "down_proj"]
        assert products
        assert all(row["predicted_s"] > 0 < row["measured_s"] for row in products)
    assert found["runs"][1]["serving"]["ttft_s"] > 0
    assert "attention_cached" in {one["operator"] for one in found["readings"]}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nosuch.yaml",), "nosuch.yaml"),
        (("--modules",), "name at least one RUN"),
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
    monkeypatch.setattr(
        "finegauge.answers.measurement.find_spec", lambda name: None if name == "torch" else True
    )
    done = finegauge("micro")
    assert done.code == 64
    assert "Timing operators needs torch: pip install 'finegauge[measure]'" in done.err
