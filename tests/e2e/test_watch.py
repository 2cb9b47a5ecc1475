"""`finegauge watch` beside real processes: what it sees, keeps, prints, and how it ends."""

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from finegauge.measurement.watching import LOOK_EVERY_S, Watch
from finegauge.render.schema import schema
from finegauge.store.journal import Trials
from tests.e2e.commands import ROOT, finegauge, shell

TRAINING = """
import sys, time
held = bytearray(150_000_000)
for step in range(1, 9):
    time.sleep(0.15)
    sys.stderr.write(f"\\r{100 * step // 8:3d}%|##  | {step}/8 [00:01<00:01,  6.60it/s]")
    sys.stderr.flush()
    if step % 4 == 0:
        print({"loss": 2.0 / step})
print("", file=sys.stderr)
"""
ENDS = {
    "fine": ("", 0, "completed"),
    "a code of its own": ("sys.exit(7)", 7, "failed"),
    "no memory": (
        "raise MemoryError('CUDA out of memory. Tried to allocate 2.00 GiB.')", 1, "out_of_memory",
    ),
    "killed": ("import os; os.kill(os.getpid(), 9)", 137, "failed"),
}  # fmt: skip
RUN = "Qwen/Qwen3-0.6B"


@pytest.mark.parametrize("end", ENDS)
def test_it_ends_as_the_training_does(end: str, tmp_path: Path) -> None:
    last, code, outcome = ENDS[end]
    script, journal = tmp_path / "train.py", tmp_path / "kept.jsonl"
    script.write_text(TRAINING + last)
    done = shell("watch", RUN, "--store", str(journal), "--json", "--", sys.executable, str(script))
    assert done.code == code, done.err
    whole = json.loads(done.out)
    Draft202012Validator(schema("watch")).validate(whole)
    assert (whole["outcome"], whole["exit_code"]) == (outcome, code)
    assert (whole["steps"], whole["total_steps"], whole["loss"]) == (8, 8, 0.25)
    assert whole["step_s"] == pytest.approx(0.15, rel=0.3)
    assert 1.5e8 < whole["peak_bytes"] < 4e8
    (kept,) = Trials(str(journal)).profiles()
    assert kept.outcome == outcome
    assert bool(kept.step_times_s) is (outcome == "completed")
    assert "{'loss': 0.5}" in done.err  # the training's own output


def test_output_passes_and_the_end_is_told_apart(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    done = shell("watch", "--no-store", "--usd-per-hour", "2", "--", sys.executable, str(script))
    assert done.out == "{'loss': 0.5}\n{'loss': 0.25}\n"
    assert "Completed: step 8 of 8, 100 %" in done.err
    assert "Not predicted" in done.err


def test_a_process_that_runs_already(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"{TRAINING}time.sleep(3)")
    with subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as one:
        done = shell("watch", "--pid", str(one.pid), RUN, "--no-store", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["peak_bytes"] > 1.5e8
    assert "No process" in shell("watch", "--pid", str(one.pid), RUN).err


def test_a_folder(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-5").mkdir()
    state = {"global_step": 5, "max_steps": 5}
    (tmp_path / "checkpoint-5" / "trainer_state.json").write_text(json.dumps(state))
    done = shell("watch", str(tmp_path), "--no-store", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["steps"] == 5
    assert "No folder" in shell("watch", "no-such-folder").err


LOGS = {
    "train.log": "  2%|x  | 2/120 [00:08<08:11,  4.17s/it]\n{'loss': 1.5, 'epoch': 0.1}\n",
    "trainer_log.jsonl": '{"current_steps": 2, "total_steps": 120, "loss": 1.5, "epoch": 0.1}\n',
    "logging.jsonl": '{"loss": 1.5, "global_step/max_steps": "2/120"}\n',
}


@pytest.mark.parametrize("name", LOGS)
def test_a_folder_of_logs(name: str, tmp_path: Path) -> None:
    """Of what was there before no time is known; what comes is timed as it comes."""
    log = tmp_path / name
    log.write_text(LOGS[name])
    watch = Watch(0, str(tmp_path))
    first = watch.look()
    assert (first.steps, first.total, first.loss, first.step_s) == (2, 120, 1.5, 0.0)
    for step in ("3", "4"):
        time.sleep(0.05)
        with log.open("a") as file:
            file.write(LOGS[name].replace("2/120", f"{step}/120").replace('s": 2,', f's": {step},'))
        seen = watch.look()
    assert (seen.steps, len(seen.step_times_s)) == (4, 1)
    assert 0.05 <= seen.step_s < 5.0


def test_a_folder_in_which_nothing_tells_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C ends the looking, not the training."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("finegauge.cli.watching.watched_until", interrupted)
    (tmp_path / "train.log").write_text("loading\n")
    done = finegauge("watch", str(tmp_path), "--no-store")
    assert done.code == 130
    assert done.err.strip().startswith("Running: step 0")
    assert "No step was read" in done.err
    assert "memory" not in done.err


def test_a_process_that_has_ended_but_was_not_waited_for() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as one:
        time.sleep(2.0)
        assert "No process" in finegauge("watch", "--pid", str(one.pid), RUN, "--no-store").err


def test_a_command_that_is_not_there() -> None:
    done = shell("watch", "--no-store", "--", "no-such-command")
    assert (done.code, done.out) == (64, "")
    assert done.err == "Error: 'no-such-command' cannot be started: No such file or directory.\n"


def test_it_sees_what_the_callback_measures(tmp_path: Path) -> None:
    """Of one training with TRL: the same steps and the same memory, from inside and from outside."""
    journal = tmp_path / "kept.jsonl"
    command = [sys.executable, "-m", "finegauge", "watch", RUN, "--store", str(journal), "--",
               sys.executable, "-m", "tests.replay.watched", str(tmp_path / "out"), "16"]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    (outside,) = Trials(str(journal)).profiles()
    (inside,) = Trials(str(tmp_path / "out" / "finegauge.jsonl")).profiles()
    seen = len(outside.step_times_s)
    assert (
        13 <= seen <= len(inside.step_times_s) == 15
    )  # a bar that is drawn ten times a second may skip the first
    assert sum(outside.step_times_s) == pytest.approx(sum(inside.step_times_s[-seen:]), rel=0.02, abs=0.02)
    assert outside.step_time_s.total == pytest.approx(inside.step_time_s.total, rel=0.02, abs=0.005)
    peaks = [one.observations["memory"]["memory_peak_bytes"] for one in (outside, inside)]
    assert peaks[0] == pytest.approx(peaks[1], rel=0.02)


def test_looking_costs_next_to_nothing() -> None:
    """A look takes less than half a percent of the time to the next."""
    watch = Watch(os.getpid())
    for step in range(1, 50_000):
        watch.steps.read(f"step {step}/100000", float(step) ** 1.5)
    assert watch.look().step_s == statistics.median(watch.steps.times_s)
    before = time.process_time()
    for _ in range(20):
        watch.look()
    assert (time.process_time() - before) / 20 < 0.005 * LOOK_EVERY_S
