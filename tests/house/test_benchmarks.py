"""`make bench` runs every benchmark, whatever one of them says, and ends with 1 where a promise is broken."""

import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import __main__ as runner
from benchmarks.web_load import EDITS, NOT_JUDGED, printed

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the modules that were started; `cold_start` breaks its promise."""
    names: list[str] = []

    def run(command: list[str], **_: Any) -> SimpleNamespace:
        names.append(command[2])
        return SimpleNamespace(returncode=int(command[2].endswith("cold_start")))

    monkeypatch.setattr(subprocess, "run", run)
    return names


def test_all_run_although_the_first_breaks_its_promise(
    started: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks"])
    assert runner.main() == 1
    assert started == [f"benchmarks.{benchmark.name}" for benchmark in runner.BENCHMARKS]
    table = capsys.readouterr().out.splitlines()[-len(started) :]
    assert ["BROKEN" in line for line in table] == [True] + [False] * (len(started) - 1)


def test_what_a_busy_machine_cannot_judge_is_neither_kept_nor_broken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=NOT_JUDGED))
    monkeypatch.setattr(sys, "argv", ["benchmarks", "web_edits", "web_load"])
    assert runner.main() == 0
    told = capsys.readouterr().out.splitlines()[-2:]
    assert all("not judged" in line for line in told)


@pytest.mark.parametrize(("errors", "p95_ms", "judged", "code"), [
    (0, 90, True, 0), (0, 400, True, 1), (0, 400, False, NOT_JUDGED), (1, 90, False, 1),
])  # fmt: skip
def test_times_of_the_page_are_judged_on_a_quiet_machine_alone(
    errors: int, p95_ms: int, judged: bool, code: int
) -> None:
    kind = {"name": EDITS, "num_requests": 100, "num_failures": errors, "max_response_time": p95_ms}
    failed = Counter({"FAILED 500 x": errors}) if errors else Counter()
    memory = [100, 100, 100]
    found = printed([{**kind, "response_times": {p95_ms: 100}}], 1.0, memory, failed, 0, judged=judged)
    assert found == code


def test_those_that_are_named_run(started: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", "search", "results"])
    assert runner.main() == 0
    assert started == ["benchmarks.search", "benchmarks.results"]
    monkeypatch.setattr(sys, "argv", ["benchmarks", "serch"])
    with pytest.raises(SystemExit):
        runner.main()


def test_every_benchmark_with_a_promise_is_in_the_list() -> None:
    others = {
        "fabrics",
        "gpu_hour",
        "intervals",
        "learning",
        "operators",
    }  # make and measure figures; promise nothing
    mains = {
        path.stem
        for path in (ROOT / "benchmarks").glob("*.py")
        if "def main(" in path.read_text("utf-8") and path.stem != "__main__"
    }
    assert mains - others == {benchmark.name for benchmark in runner.BENCHMARKS}
