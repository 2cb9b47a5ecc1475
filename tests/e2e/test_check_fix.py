"""`finegauge check` says what makes a run fit, and with --fix writes it."""

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from finegauge.render.schema import schema
from tests.e2e.commands import finegauge

FULL = ("Qwen/Qwen3-8B", "method=full", "--gpu", "rtx4090")


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_advice_stands_beside_the_verdict() -> None:
    done = finegauge("check", *FULL)
    assert done.code == 20
    assert "Each alone makes it fit: lora (" in done.out
    assert done.out.index("lora (") < done.out.index("qlora (") < done.out.index("A100-SXM4-80GB (")
    fits = finegauge("check", "Qwen/Qwen3-8B", "--gpu", "rtx4090")
    assert (fits.code, "makes it fit" in fits.out) == (0, False)


def test_estimate_shows_it_as_a_table() -> None:
    done = finegauge("estimate", *FULL)
    assert "What makes it fit\n" in done.out
    assert "lora (method=lora): only adapters train" in done.out


def test_fix_writes_what_then_fits() -> None:
    done = finegauge("check", *FULL, "--fix")
    assert (done.code, done.err) == (0, "")
    assert "Fixed with method=lora" in done.out
    assert "Wrote fixed/run.yaml" in done.out
    assert finegauge("check", "fixed/run.yaml").code == 0


def test_nothing_is_replaced_unasked() -> None:
    finegauge("check", *FULL, "--fix", "-o", "out")
    again = finegauge("check", *FULL, "--fix", "-o", "out")
    assert again.code == 64
    assert "add --overwrite" in again.err
    assert finegauge("check", *FULL, "--fix", "-o", "out", "--overwrite").code == 0


def test_what_fits_is_left_alone() -> None:
    done = finegauge("check", "Qwen/Qwen3-8B", "--gpu", "rtx4090", "--fix")
    assert done.code == 0
    assert not Path("fixed").exists()


def test_what_nothing_makes_fit_names_other_hardware() -> None:
    done = finegauge("check", "Llama-3.1-70B", "method=qlora", "--gpu", "rtx4090", "--fix")
    assert done.code == 20
    assert "No change on this hardware makes it fit; other hardware does: A100-SXM4-80GB (" in done.out
    assert not Path("fixed").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("check", *FULL, "-o", "out"), "go with --fix"),
        (("check", "Qwen/Qwen3-8B", "Qwen/Qwen3-4B", "--gpu", "l4", "--fix"), "one RUN"),
        (("check", "Qwen/Qwen3-8B", "method=full", "--gpu", "l4,a40", "--fix"), "one GPU"),
    ],
)
def test_what_fix_cannot_be_asked(words: tuple[str, ...], says: str) -> None:
    done = finegauge(*words)
    assert done.code == 64
    assert says in done.err
    assert done.err.count("\n") == 1


def test_json_keeps_its_schema() -> None:
    for command, words in (("check", (*FULL, "--fix")), ("check", FULL), ("estimate", FULL)):
        found = json.loads(finegauge(command, *words, "--json").out)
        Draft202012Validator(schema(command)).validate(found)
        advice = found["results"][0]["advice"]
        assert advice["ways"][0]["switch"] == "lora"
    fixed = json.loads(finegauge("check", *FULL, "--fix", "-o", "more", "--json").out)["fixed"]
    assert (fixed["framework"], fixed["change"]["verdict"]) == ("finegauge", "fits")
