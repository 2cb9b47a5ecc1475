"""A trial's process: what it says is heard, how it ends is known, and nothing of it stays behind."""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from finegauge.measurement import process
from finegauge.measurement.process import run_trial
from finegauge.progress import Progress

READ = "import json, os, signal, subprocess, sys, time\ntrial = json.loads(sys.stdin.readline())\n"


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what puts a script in the place of the real child."""

    def script(code: str) -> None:
        monkeypatch.setattr(process, "CHILD", (sys.executable, "-c", READ + code))

    return script


def test_an_answer_and_the_progress_before_it(child: Any) -> None:
    child(
        'print(json.dumps({"what": "timing", "done": 1, "total": 2}), flush=True)\n'
        'print(json.dumps({"profile": {"outcome": trial["run"]}}), flush=True)\n'
    )
    heard: list[Progress] = []
    ended = run_trial({"run": "x"}, heard=heard.append)
    assert heard == [Progress("timing", 1, 2)]
    assert (ended.answer, ended.code, ended.timed_out) == ({"outcome": "x"}, 0, False)


def test_a_long_answer_comes_whole(child: Any) -> None:
    child('print(json.dumps({"profile": {"x": "y" * 3_000_000}}))')
    ended = run_trial({})
    assert ended.answer is not None
    assert len(ended.answer["x"]) == 3_000_000


def test_what_it_printed_is_kept_to_its_end(child: Any) -> None:
    child('sys.stderr.write("x" * 50_000 + "\\nthe reason\\n"); sys.exit(3)')
    ended = run_trial({})
    assert (ended.answer, ended.code) == (None, 3)
    assert ended.printed.endswith("the reason\n")
    assert len(ended.printed) == process.TAIL_BYTES


def test_a_signal_is_told(child: Any) -> None:
    child("os.kill(os.getpid(), signal.SIGSEGV)")
    assert run_trial({}).code == -signal.SIGSEGV


def test_time_runs_out(child: Any) -> None:
    child("time.sleep(60)")
    began = time.monotonic()
    ended = run_trial({}, timeout_s=0.3)
    assert (ended.timed_out, ended.answer) == (True, None)
    assert time.monotonic() - began < 20


def test_what_the_trial_started_goes_with_it(child: Any, tmp_path: Path) -> None:
    child(
        'other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])\n'
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(other.pid))\n"
        'print(json.dumps({"profile": {}}), flush=True)\n'
        "os._exit(0)"
    )
    assert run_trial({}).answer == {}
    other = int((tmp_path / "pid").read_text("ascii"))
    ends_at = time.monotonic() + 10
    while _runs(other) and time.monotonic() < ends_at:
        time.sleep(0.01)
    assert not _runs(other)


def _runs(number: int) -> bool:
    try:
        return Path(f"/proc/{number}/stat").read_text("utf-8").rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_whoever_holds_its_pipe_does_not_hold_up_the_end(child: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "LOOK_EVERY_S", 0.05)
    child(
        "if os.fork() == 0:\n"
        "    time.sleep(60)\n"
        'print(json.dumps({"profile": {"whole": True}}), flush=True)\n'
        "os._exit(0)"
    )
    assert run_trial({}, timeout_s=30).answer == {"whole": True}


def test_a_limited_trial_keeps_no_memory_back(child: Any) -> None:
    child('print(json.dumps({"profile": dict(os.environ)}))')
    limited, free = run_trial({}, limited=True).answer, run_trial({}).answer
    assert limited is not None
    assert free is not None
    assert limited["MALLOC_ARENA_MAX"] == "1"
    assert free.get("MALLOC_ARENA_MAX") == os.environ.get("MALLOC_ARENA_MAX")


def test_an_error_while_listening_ends_the_child(child: Any) -> None:
    child('print(json.dumps({"what": "x", "done": 0, "total": 1}), flush=True); time.sleep(60)')

    def failing(_: Progress) -> None:
        raise KeyboardInterrupt

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_trial({}, heard=failing)
    assert time.monotonic() - began < 20
