"""The command for a rented GPU: what it measures, passes over and keeps; once for real, on the CPU."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu_hour
from benchmarks.gpu_hour import Budget, Point, done, grid, said, spend, why_not
from finegauge.catalogue.device_profile import device_profile
from finegauge.measurement.options import Options
from finegauge.profile import Breakdown, Profile, Source
from finegauge.run.run import Run
from finegauge.store.journal import ENDED, Trials
from tests.house.sources import ROOT

MEASURED = Source("measured", "this machine")


def profile(run: Run, outcome: str = "completed", reason: str = "", needs_bytes: float = 1e9) -> Profile:
    return Profile(
        run=run,
        source=MEASURED,
        outcome=outcome,
        reason=reason,
        peak_memory_bytes=Breakdown.of(weights=needs_bytes),
        device_memory_bytes=Breakdown.of(weights=needs_bytes),
        step_time_s=Breakdown.of(forward=0.5),
        capacity_bytes=2e9,
    )


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    """Replace what takes time; return the runs that are asked for."""
    asked: list[Run] = []

    def measure(run: Run, options: Options, *, store: str) -> Profile:
        assert options.timeout_s > 0
        asked.append(run)
        found = profile(run)
        kept = Trials(store)
        kept.end(kept.start(run, options._asdict()), found)
        return found

    monkeypatch.setattr(gpu_hour, "measure", measure)
    monkeypatch.setattr(gpu_hour, "time_operators", lambda device, total_s: None)
    monkeypatch.setenv("FINEGAUGE_CACHE_DIR", "")
    return asked


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_grid_begins_with_every_instrument_on_every_model(device: str, tmp_path: Path) -> None:
    budget = Budget(60.0, device)
    for name, config in gpu_hour.CONFIGS.items():
        (tmp_path / "models").mkdir(exist_ok=True)
        (tmp_path / "models" / f"{name}.json").write_text(json.dumps(config), "utf-8")
    points = list(grid(device, tmp_path))
    anchors = len(gpu_hour.ANCHORS[device])
    assert all(p.options.layers and p.options.kernels and p.options.energy for p in points[:anchors])
    assert not any(p.options.kernels for p in points[anchors:])
    assert any(p.options.ncu for p in points) == (device == "cuda")
    assert {p.run.method for p in points} == {"full", "lora", "qlora"}
    assert len({p.run for p in points}) == len(points)
    assert budget.expected_s(points[0].options, 1.0) > budget.expected_s(points[-1].options, 1.0)


def test_everything_is_measured_kept_and_not_measured_again(
    tmp_path: Path, trials: list[Run], capsys: pytest.CaptureFixture[str]
) -> None:
    completed = spend(Budget(1e6, "cpu"), "cpu", tmp_path)
    assert completed == len(trials) == len(set(trials)) == 30
    assert "tiny-dense full B=2 S=64: step 0.5 s, peak 0.931 GiB" in capsys.readouterr().out
    assert spend(Budget(1e6, "cpu"), "cpu", tmp_path) == 30
    assert len(trials) == 30


def test_no_trial_begins_when_time_is_up(tmp_path: Path, trials: list[Run]) -> None:
    assert spend(Budget(5.0, "cpu"), "cpu", tmp_path) == 0
    assert trials == []


def point(**options: Any) -> Point:
    return Point("a run", Run(model="llama-2-7b", method="full"), Options(**options))


def test_what_does_not_fit_is_passed_over() -> None:
    run = point().run
    assert "1.86 GiB" in why_not(point(), Budget(1e6, "cpu"), profile(run, "out_of_memory", needs_bytes=4e9))
    assert why_not(point(), Budget(1e6, "cpu"), profile(run)) == ""
    assert why_not(point(), Budget(1e6, "cpu"), None) == ""


def test_what_takes_too_long_is_passed_over() -> None:
    slow = profile(point().run)
    assert "s left" in why_not(point(steps=100), Budget(60.0, "cpu"), slow)
    assert why_not(point(steps=10), Budget(60.0, "cpu"), slow) == ""


def test_trials_teach_what_they_take_beside_their_steps() -> None:
    budget, options = Budget(1e6, "cpu"), Options(steps=10, warmup_steps=0)
    for _ in range(10):
        budget.learn(options, took_s=35.0, step_s=0.5)
    assert budget.expected_s(options, 0.5) == pytest.approx(35.0, rel=0.01)


def test_what_was_cut_short_is_measured_again(tmp_path: Path) -> None:
    store = Trials(str(tmp_path / "trials.jsonl"))
    runs = [Run(model="llama-2-7b", method="full", micro_batch_size=n) for n in (1, 2, 3, 4)]
    ends = [
        ("completed", ""),
        ("interrupted", "Ctrl-C"),
        ("failed", "not done after 10 s"),
        ("out_of_memory", ""),
    ]
    for run, (outcome, reason) in zip(runs, ends, strict=True):
        store.end(store.start(run, {}), profile(run, outcome, reason))
    assert done(tmp_path / "trials.jsonl") == {runs[0], runs[3]}
    assert said(profile(runs[2], *ends[2]), None) == "failed: not done after 10 s"


@pytest.mark.slow
def test_half_a_minute_on_this_cpu(tmp_path: Path) -> None:
    """Where a busy machine passes the first runs over, the next call has more time and begins with them.

    What was measured first may then be a run without a predicted step: one in 4 bits, whose kernels the
    operators' quarter of the time did not reach.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    store, operators = Trials(str(tmp_path / "trials.jsonl")), tmp_path / "devices" / "cpu.json"
    beside = re.compile(r"step \S+ s \(\S+\)")  # predicted beside measured
    shown = ""
    every = {"layers", "kernels"}
    completed: list[tuple[set[str], Profile]] = []
    for minutes in ("0.5", "1", "4"):
        ended = subprocess.run(
            [
                *(sys.executable, str(ROOT / "benchmarks" / "gpu_hour.py")),
                *("--minutes", minutes, "--device", "cpu", "-o", str(tmp_path)),
            ],
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
            env=environment,
        )
        assert "Traceback" not in ended.stderr
        shown += ended.stdout
        ends = [(end, store.profile(end)) for end in store.look().entries if end.event == ENDED]
        completed = [
            ({name for name in every if end.asked[name]}, profile)
            for end, profile in ends
            if profile.outcome == "completed"
        ]
        whole = any(asked == every for asked, _ in completed)
        if operators.exists() and whole and beside.search(shown):
            break
    assert ended.returncode == 0, shown + ended.stderr
    assert device_profile(str(operators)).select("linear", "fp32", "forward")
    assert whole, shown
    for asked, profile in completed:
        assert {"timing", "memory", "energy"} | asked <= set(profile.observations)
        assert profile.step_time_s.depth == 3 if asked else profile.step_time_s.total > 0
        assert profile.peak_memory_bytes.total > 0
    assert beside.search(shown), shown
