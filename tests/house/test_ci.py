"""CI accepts a skipped test only where the machine cannot have what it needs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import NO_GPU, may_skip_in_ci
from tests.house.sources import ROOT

SKIPPING = """
import pytest


def test_that_wants_a_tool():
    pytest.skip("git is not installed")


def test_that_wants_nothing():
    pass
"""


@pytest.mark.parametrize(
    ("reason", "shared_exists", "accepted"),
    [
        (f"Skipped: {NO_GPU}", True, True),
        ("the figures (../shared/data) are absent", False, True),
        ("the figures (../shared/data) are absent", True, False),
        ("git is not installed", False, False),
    ],
)
def test_which_skips_ci_accepts(reason: str, shared_exists: bool, accepted: bool) -> None:
    assert may_skip_in_ci(reason, shared_exists=shared_exists) is accepted


@pytest.mark.parametrize(("ci", "code"), [("true", 1), ("", 0)], ids=["ci", "elsewhere"])
def test_a_missing_tool_fails_the_run_in_ci_only(tmp_path: Path, ci: str, code: int) -> None:
    (tmp_path / "test_skipping.py").write_text(SKIPPING, "utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\n", "utf-8")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "tests.conftest",
        "-p",
        "no:cacheprovider",
        str(tmp_path),
    ]
    environment = {
        **os.environ,
        "CI": ci,
        "PYTHONPATH": str(ROOT),
        "PYTEST_ADDOPTS": "",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    assert ("skipped in CI: a tool is missing" in done.stdout) is (code == 1)
