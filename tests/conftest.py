"""Rules for the whole suite: GPU tests run where a GPU is, nothing is the user's, CI hides no missing tool.

The suite reads and writes no file under the user's home: catalogue, cache and calibration are those that
ship, with folders of their own for what a test stores.

With CI=true a skipped test fails the run, for it means that a tool is missing which CI should have
installed. Two skips are right even there: no GPU, and no ../shared on a machine that has none.
"""

import os
import shutil
import tempfile
from typing import Any

import pytest
from hypothesis import settings

from tests.shared import SHARED

settings.register_profile("finegauge", deadline=None)  # a busy machine is no failure
settings.load_profile("finegauge")

HAS_GPU = shutil.which("nvidia-smi") is not None
NO_GPU = "no NVIDIA GPU on this machine"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what is marked `gpu` where there is none."""
    if HAS_GPU:
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason=NO_GPU))


def pytest_configure(config: pytest.Config) -> None:
    """Turn away from the user's own files; watch the skips, in CI only."""
    folder = tempfile.mkdtemp(prefix="finegauge-tests-")
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    os.environ["FINEGAUGE_HOME"] = os.path.join(folder, "home")
    os.environ["FINEGAUGE_CACHE_DIR"] = os.path.join(folder, "cache")
    os.environ.pop("FINEGAUGE_CALIBRATION", None)
    if os.environ.get("CI") == "true":
        config.pluginmanager.register(_SkipWatch(), "finegauge-skip-watch")


def may_skip_in_ci(reason: str, *, shared_exists: bool) -> bool:
    """Return whether a test may skip in CI for `reason`."""
    return NO_GPU in reason or ("../shared" in reason and not shared_exists)


class _SkipWatch:
    """Collects the skips that CI does not accept, and fails the run for them."""

    def __init__(self) -> None:
        self.unaccepted: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._note(report)

    def _note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if not report.skipped or hasattr(report, "wasxfail"):
            return
        reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
        if not may_skip_in_ci(reason, shared_exists=(SHARED / "data").is_dir()):
            self.unaccepted.append(f"{report.nodeid}: {reason}")

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.unaccepted and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.unaccepted:
            terminalreporter.section("skipped in CI for want of a tool", red=True)
            for line in self.unaccepted:
                terminalreporter.write_line(line)
