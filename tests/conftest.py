"""Rules for the whole suite: GPU tests run where a GPU is, nothing is the user's, CI hides no missing tool.

The suite reads and writes no file under the user's home: catalogue, cache and calibration are those that
ship, with folders of their own for what a test stores.

`--core` (`make test-core`) leaves out the files that import what is not installed, and the tests marked
`extras` or `slow`, and counts them.

What a test in `OF_THE_MACHINE` sees depends on what else the machine does: where it fails it is asked once
more, and the summary names it.

Coverage looks away from `UNTRACED`, where the same lines run thousands of times: tracing is half of their
time. pytest-cov's `no_cover` does nothing in the workers of pytest-xdist: version 7.1 starts two collectors
there, and stops one of them.

With CI=true a skipped test fails the run, for it means that a tool is missing which CI should have
installed. Two skips are right even there: no GPU, and no ../shared on a machine that has none.
"""

import ast
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Generator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.shared import SHARED

settings.register_profile("finegauge", deadline=None)  # a busy machine is no failure
settings.load_profile("finegauge")

os.environ.pop("COLUMNS", None)  # of pytest-xdist's workers: screens are as in a pipe, whoever runs the tests

ROOT = Path(__file__).resolve().parents[1]
OF_THE_MACHINE = (  # real browsers, clusters, processes that are killed, clocks
    "tests/browser",
    "tests/e2e/test_endpoint.py",
    "tests/e2e/test_faults.py",
    "tests/e2e/test_measure.py",
    "tests/e2e/test_micro.py",
    "tests/e2e/test_moments.py",
    "tests/e2e/test_ranks.py",
    "tests/e2e/test_ray.py",
    "tests/e2e/test_serve.py",
    "tests/e2e/test_trl_callback.py",
    "tests/e2e/test_validate_here.py",
    "tests/e2e/test_watch.py",
    "tests/e2e/test_widths.py",
    "tests/unit/callbacks",
    "tests/unit/measurement",
    "tests/unit/web",
)
UNTRACED = ("tests/fuzz", "tests/unit/web/test_injection.py", "tests/unit/web/test_openapi.py")
HAS_GPU = shutil.which("nvidia-smi") is not None
NO_GPU = "no NVIDIA GPU on this machine"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--core`."""
    parser.addoption("--core", action="store_true", help="only what the installed packages can run, quickly")


@cache
def missing_packages(path: Path) -> frozenset[str]:
    """Return the packages that a file imports and that are not installed, through our own modules too.

    In tests the imports of functions count as well.
    """
    missing: set[str] = set()
    tree = ast.parse(path.read_text("utf-8"))
    for node in ast.walk(tree) if path.is_relative_to(ROOT / "tests") else tree.body:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        for name in names:
            top = name.partition(".")[0]
            if top in ("tests", "finegauge", "website"):
                base = ROOT / ("src" if top == "finegauge" else "") / name.replace(".", "/")
                file = base.with_suffix(".py")
                missing |= missing_packages(file) if file.is_file() else frozenset()
            elif find_spec(top) is None:
                missing.add(top)
    return frozenset(missing)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `--core`, leave out a file that imports what is not installed."""
    if not config.getoption("--core"):
        return None
    file = collection_path / "conftest.py" if collection_path.is_dir() else collection_path
    return True if file.suffix == ".py" and file.is_file() and missing_packages(file) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what is marked `gpu` where there is none; with `--core` deselect what is slow or needs extras."""
    if config.getoption("--core"):
        out = [item for item in items if item.get_closest_marker("slow") or item.get_closest_marker("extras")]
        config.hook.pytest_deselected(items=out)
        items[:] = [item for item in items if item not in set(out)]
    for item in items:
        if item.nodeid.startswith(OF_THE_MACHINE):
            item.add_marker(pytest.mark.flaky(reruns=1))
    if HAS_GPU:
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason=NO_GPU))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Run a test of `UNTRACED` without a trace function, in threads that it starts too."""
    if not item.nodeid.startswith(UNTRACED):
        return (yield)
    tracers: tuple[Any, Any] = sys.gettrace(), threading.gettrace()
    nobody: Any = None
    sys.settrace(nobody)
    threading.settrace(nobody)
    try:
        return (yield)
    finally:
        sys.settrace(tracers[0])
        threading.settrace(tracers[1])


def pytest_configure(config: pytest.Config) -> None:
    """Turn away from the user's own files; watch the skips, in CI only."""
    folder = tempfile.mkdtemp(prefix="finegauge-tests-")
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    os.environ["FINEGAUGE_HOME"] = os.path.join(folder, "home")
    os.environ["FINEGAUGE_CACHE_DIR"] = os.path.join(folder, "cache")
    os.environ["HF_HUB_CACHE"] = os.path.join(folder, "hub")
    os.environ["HF_HUB_OFFLINE"] = "1"
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
            terminalreporter.section("skipped in CI: a tool is missing", red=True)
            for line in self.unaccepted:
                terminalreporter.write_line(line)
