"""`finegauge check` on several files: at a desk, as a hook of pre-commit, and in CI."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from finegauge.render.schema import schema
from tests.e2e.commands import MIXTRAL, ROOT, finegauge

SCHEMA = schema("check-files")
HOOKS = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text("utf-8"))

FITS = "model: llama-3-8b\nmethod: qlora\ngpu: A40\n"
TOO_LARGE = (
    "model_name_or_path: meta-llama/Meta-Llama-3-8B\nstage: sft\nfinetuning_type: full\n"
    "finegauge:\n  gpu: A40\n"
)
OTHERS = {
    "workflow.yaml": "name: CI\non: [push]\njobs: {}\n",
    "agent.yaml": "model: gpt-4\nprompt: hello\n",
    "broken.yaml": "a: [\n",
    "list.yaml": "- a\n- b\n",
    "empty.yaml": "",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a project with runs and other files in it, which is the working folder."""
    files = {
        "fits.yaml": FITS,
        "large.yaml": TOO_LARGE,
        "nogpu.yaml": FITS.replace("gpu: A40\n", ""),
        "badgpu.yaml": FITS.replace("A40", "A400"),
        **OTHERS,
    }
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_each_file_has_its_line_and_the_worst_decides(folder: Path) -> None:
    done = finegauge("check", "fits.yaml", "large.yaml")
    first, second = done.out.splitlines()
    assert first.startswith("fits.yaml: Fits: ")
    assert second.startswith("large.yaml: Will not fit: ")
    assert (done.code, done.err) == (20, "")
    assert finegauge("check", "fits.yaml", "fits.yaml").code == 0


def test_overrides_and_gpus_hold_for_all(folder: Path) -> None:
    done = finegauge("check", "fits.yaml", "nogpu.yaml", "micro_batch_size=2", "--gpu", "h100,a40")
    assert done.code == 0
    assert len(done.out.splitlines()) == 4


def test_without_a_gpu_the_common_ones_are_asked_about(folder: Path) -> None:
    done = finegauge("check", "nogpu.yaml")
    assert done.code == 10  # of several GPUs, the worst decides
    assert [line.partition(" on ")[2].partition(",")[0] for line in done.out.splitlines()][:2] == [
        "L4",
        "RTX 4090",
    ]


def test_a_wrong_file_is_told_and_the_others_are_checked(folder: Path) -> None:
    done = finegauge("check", "missing.yaml", "fits.yaml", "badgpu.yaml")
    assert done.code == 64
    assert done.out.startswith("fits.yaml: Fits")
    assert [line.split(": ")[1] for line in done.err.splitlines()] == ["missing.yaml", "badgpu.yaml"]
    assert "or 'A40'?" in done.err


def test_other_files_are_passed_by_with_a_word(folder: Path) -> None:
    done = finegauge("check", "--skip-others", *OTHERS)
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert len(lines) == len(OTHERS)
    assert all(": skipped: " in line for line in lines)


def test_a_wrong_training_file_is_not_passed_by(folder: Path) -> None:
    (folder / "wrong.yaml").write_text(FITS + "batchsize: 4\n")
    done = finegauge("check", "--skip-others", "wrong.yaml")
    assert done.code == 64
    assert "'micro_batch_size'?" in done.err
    (folder / "wrong.yaml").write_text(TOO_LARGE.replace("cutoff", "cutof") + "finetuning_type: lorra\n")
    assert finegauge("check", "--skip-others", "wrong.yaml").code == 64
    done = finegauge("check", "--skip-others", "fits.yaml", "missing.yaml")
    assert (done.code, "missing.yaml" in done.err) == (64, True)


def test_risky_may_pass(folder: Path) -> None:
    size = finegauge("max-batch", MIXTRAL).out.splitlines()[0].split(" is safe, ")[1].split()[0]
    asked = ("check", MIXTRAL, f"micro_batch_size={size}")
    assert finegauge(*asked).code == 10
    assert finegauge(*asked, "--allow-risky").code == 0
    assert finegauge("check", "large.yaml", "--allow-risky").code == 20


def test_no_file_is_bad_usage(folder: Path) -> None:
    done = finegauge("check", "micro_batch_size=4")
    assert done.code == 64
    assert "No file is named" in done.err


def test_the_json_of_several_files_keeps_its_schema(folder: Path) -> None:
    Draft202012Validator.check_schema(SCHEMA)
    done = finegauge(
        "check", "--skip-others", "fits.yaml", "large.yaml", "agent.yaml", "badgpu.yaml", "--json"
    )
    assert done.err == ""
    whole: dict[str, Any] = json.loads(done.out)
    Draft202012Validator(SCHEMA).validate(whole)
    fits, large, agent, badgpu = whole["files"]
    assert [one["verdict"] for one in fits["results"] + large["results"]] == ["fits", "will_not_fit"]
    assert agent["skipped"]
    assert "No GPU named 'A400'" in badgpu["error"]
    assert large["results"][0]["sentence"].startswith("Will not fit: ")
    assert done.code == 64


def git(folder: Path, *words: str) -> str:
    """Run git and return what it prints."""
    done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.parametrize(("removed", "code"), [((), 20), (("large.yaml",), 0)])
def test_the_hook_as_pre_commit_runs_it(removed: tuple[str, ...], code: int, folder: Path) -> None:
    (hook,) = HOOKS
    assert {"id", "name", "entry", "language", "files"} <= set(hook)
    assert hook["id"] == "finegauge-check"
    assert hook["language"] == "python"
    for name in (*removed, "nogpu.yaml", "badgpu.yaml"):
        (folder / name).unlink()
    (folder / "train.py").write_text("print('no YAML')\n")
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    staged = git(folder, "diff", "--cached", "--name-only").splitlines()
    chosen = [name for name in staged if re.search(hook["files"], name)]
    assert "train.py" not in chosen
    program, *words = shlex.split(hook["entry"])
    assert program == "finegauge"
    done = subprocess.run(
        [sys.executable, "-m", "finegauge", *words, *chosen],
        cwd=folder, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert "fits.yaml: Fits" in done.stdout
    assert "agent.yaml: skipped" in done.stdout
