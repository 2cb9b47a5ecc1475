"""The workflow on the page about CI does what the page says: its script is run, in a repository."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.commands import ROOT

PAGE = (ROOT / "docs" / "ci.md").read_text("utf-8")
BLOCKS: list[Any] = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)]
(WORKFLOW,) = [block for block in BLOCKS if "jobs" in block]
(HOOKS,) = [block for block in BLOCKS if "repos" in block]


def script() -> str:
    (step,) = [
        step for step in WORKFLOW["jobs"]["check"]["steps"] if "finegauge check" in step.get("run", "")
    ]
    return str(step["run"])


@pytest.mark.parametrize(("method", "level", "passes"), [("qlora", "notice", True), ("full", "error", False)])
def test_the_workflow_annotates_and_fails(method: str, level: str, passes: bool, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(f"model: llama-3-8b\nmethod: {method}\ngpu: A40\n")
    (tmp_path / "other.yaml").write_text("name: CI\n")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "-A"], cwd=tmp_path, check=True)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", script()],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode == 0) == passes, done.stderr
    (line,) = done.stdout.splitlines()
    assert line.startswith(f"::{level} file=run.yaml::")
    assert "GiB" in line


def test_the_hook_on_the_page_is_the_one_that_there_is() -> None:
    (declared,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text("utf-8"))
    (shown,) = HOOKS["repos"][0]["hooks"]
    assert shown["id"] == declared["id"]
