"""`finegauge calibrate --law` end to end: fit, print, draw, store, and estimate with it."""

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from finegauge.render.schema import schema
from tests.e2e.commands import MIXTRAL, finegauge
from tests.unit.laws.sweeps import AFFINE, followed

pytestmark = pytest.mark.extras

SCHEMA = schema("calibrate-law")


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a sweep on an A40 that follows the affine law to a percent."""
    monkeypatch.setenv("FINEGAUGE_HOME", str(tmp_path / "home"))
    lines = ["batch,sparsity,samples_per_s,gpu"]
    for n, seen in enumerate(followed("affine", AFFINE)):
        at = seen.condition
        lines.append(f"{at.batch},{at.sparsity_fraction},{seen.value * (1 + 0.01 * (-1) ** n):.6f},a40")
    path = tmp_path / "my-sweep.csv"
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return str(path)


def test_fit_print_store_estimate(table: str, tmp_path: Path) -> None:
    done = finegauge("calibrate", table, "--law", "affine", "-o", str(tmp_path / "drawn"))
    assert done.code == 0, done.err
    assert "95 % interval" in done.out
    assert "fitted to batch <= 4, on the rest" in done.out
    assert "finegauge estimate RUN --law my-sweep" in done.out
    assert sorted(p.name for p in (tmp_path / "drawn").iterdir()) == ["my-sweep.png", "my-sweep.svg"]
    drawn = (tmp_path / "drawn" / "my-sweep.svg").read_text("utf-8")
    assert all(text in drawn for text in ("batch, sequences", "samples/s", "Residuals", "sparsity 0.25"))

    asked = ("estimate", MIXTRAL, "--gpu", "a40", "--json", "--law", "my-sweep")
    (result,) = json.loads(finegauge(*asked).out)["results"]
    seconds = AFFINE["a"] + AFFINE["c"] + AFFINE["d"] * 0.25
    assert result["profile"]["step_time_s"] == pytest.approx(seconds, rel=0.02)
    assert result["profile"]["source"]["name"].startswith("law my-sweep")
    assert result["profile"]["step_time_s_p10"] < seconds < result["profile"]["step_time_s_p90"]
    assert "time by the law 'my-sweep'" in result["profile"]["assumptions"][0]


def test_json_holds_law_and_points(table: str) -> None:
    document = json.loads(finegauge("calibrate", table, "--law", "xia-eq2", "--name", "log", "--json").out)
    Draft202012Validator(SCHEMA).validate(document)
    stored = json.loads(Path(document["path"]).read_text("utf-8"))
    Draft202012Validator(schema("law")).validate(stored)
    assert document["name"] == "log"
    assert document["held"] == ["C3"]
    assert len(document["points"]) == 16
    assert document["points"][0].keys() >= {"batch", "sparsity_fraction", "measured", "law"}


def test_equation_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINEGAUGE_HOME", str(tmp_path))
    table = tmp_path / "batches.csv"
    table.write_text(
        "gpu_memory_gb,model_memory_gb,seq_len,sparsity,max_batch\n"
        "40,23.35,512,0.25,6\n48,23.35,512,0.25,8\n80,23.35,512,0.25,27\n48,23.35,512,1,2\n80,23.35,512,1,6\n"
    )
    done = finegauge("calibrate", str(table), "--law", "xia-eq1", "-o", str(tmp_path / "drawn"))
    assert done.code == 0, done.err
    assert "tokens/GB" in done.out
    assert "GPU memory, GB" in (tmp_path / "drawn" / "batches.svg").read_text("utf-8")


def test_a_mixed_table_is_pointed_out(table: str, tmp_path: Path) -> None:
    mixed = tmp_path / "mixed.csv"
    mixed.write_text("batch,samples_per_s,gpu\n1,1,A40\n2,1.5,A40\n1,2,H100\n2,3,H100\n4,4,H100\n")
    done = finegauge("calibrate", str(mixed), "--law", "affine")
    assert "mix 2 values of gpu (A40, H100)" in done.out
    assert "--where" in done.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "has no column 'model'"),
        (("--law", "afine"), "Did you mean 'affine'"),
        (("--law", "affine", "--name", "../x"), "cannot name a law"),
        (("--law", "affine", "--where", "gpu=H100"), "no completed row"),
        (("--law", "xia-eq1"), "no column 'max_batch'"),
    ],
)
def test_a_mistake_is_one_sentence(arguments: tuple[str, ...], said: str, table: str) -> None:
    done = finegauge("calibrate", table, *arguments)
    assert done.code == 64
    assert said in done.err
    assert len(done.err.splitlines()) == 1


def test_an_unknown_law_of_an_estimate(table: str) -> None:
    done = finegauge("estimate", MIXTRAL, "--law", "nothing")
    assert done.code == 64
    assert "None is stored yet" in done.err


def test_a_law_speaks_for_its_gpu_only(table: str) -> None:
    assert finegauge("calibrate", table, "--law", "affine").code == 0
    both = json.loads(finegauge("estimate", MIXTRAL, "--gpu", "a40,h100", "--law", "my-sweep", "--json").out)
    assert [result["verdict"] for result in both["results"]] == ["fits", "unsupported"]
    assert "says nothing about H100" in both["results"][1]["reason"]
