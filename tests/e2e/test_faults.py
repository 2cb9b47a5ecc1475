"""A measurement that is killed, starved, poisoned or interrupted: recorded as such, and nothing left behind.

Real trials of a tiny model, each in its own process group; a parent process of their own where
the parent is what dies.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from finegauge.measurement.options import Options
from finegauge.measurement.trial import measure
from finegauge.profile import Profile
from finegauge.run.run import Run
from finegauge.store.journal import Trials
from tests.e2e.processes import children, descendants, gone
from tests.unit.store.results import read_back

pytestmark = pytest.mark.extras

FIGURES = {
    "model_type": "llama",
    "vocab_size": 128,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
ENDLESS = Options(steps=10_000_000, warmup_steps=1, threads=1, memory=False)
SHORT = Options(steps=2, warmup_steps=1, threads=1, memory=False)
WAIT_S = 90.0

PARENT = """
import signal
import sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores it
from finegauge.measurement.trial import measure
from finegauge.measurement.options import Options
from finegauge.run.run import Run
def heard(progress):
    print(progress.what, progress.done, flush=True)
run = Run(model=sys.argv[1], method="full", weights_dtype="fp32", seq_len=16)
measure(run, Options(**{options!r}), heard=heard, store=sys.argv[2])
"""


def run_of(folder: Path, **figures: object) -> Run:
    config = folder / "config.json"
    config.write_text(json.dumps({**FIGURES, **figures}), "utf-8")
    return Run(model=str(config), method="full", weights_dtype="fp32", seq_len=16)


def last(store: Path) -> Profile:
    """Return how the only trial of the store ended, one line before it and one after."""
    trials = Trials(str(store))
    contents = read_back(trials.journal)
    assert contents.num_quarantined == 0
    assert [record["event"] for record in contents.records] == ["started", "ended"]
    return trials.profiles()[0]


class Parent:
    """A process that measures without end, and what it started."""

    def __init__(self, folder: Path) -> None:
        self.store = folder / "store.jsonl"
        run = run_of(folder)
        code = PARENT.replace("{options!r}", repr(ENDLESS._asdict()))
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, run.model, str(self.store)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("timing"):
                break
        self.started = descendants(self.process.pid)

    @property
    def trial(self) -> int:
        """Return the trial's process: the child that the parent itself started."""
        return children(self.process.pid)[0]

    def ended(self) -> str:
        """Wait for the parent's end and return what it said on stderr."""
        return self.process.communicate(timeout=WAIT_S)[1]


@pytest.fixture
def parent(tmp_path: Path) -> Iterator[Parent]:
    started = Parent(tmp_path)
    yield started
    for process in {started.process.pid, *started.started}:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    started.process.communicate()


def test_a_killed_trial_is_a_failure_with_its_signal(parent: Parent) -> None:
    assert len(parent.started) >= 2, "the trial and its guard"
    os.kill(parent.trial, signal.SIGKILL)
    assert "Traceback" not in parent.ended()
    assert gone(parent.started)
    profile = last(parent.store)
    assert (profile.outcome, profile.step_times_s) == ("failed", ())
    assert "SIGKILL" in profile.reason


def test_a_killed_parent_leaves_no_orphans_and_the_trial_counts_as_interrupted(parent: Parent) -> None:
    parent.process.kill()
    parent.process.wait(WAIT_S)
    assert gone(parent.started)
    trials = Trials(str(parent.store))
    assert trials.profiles() == []
    assert trials.recover() == 1
    assert last(parent.store).outcome == "interrupted"


def test_ctrl_c_ends_the_trial_and_is_recorded(parent: Parent) -> None:
    parent.process.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in parent.ended()
    assert gone(parent.started)
    profile = last(parent.store)
    assert (profile.outcome, profile.reason) == ("interrupted", "Ctrl-C")


def test_memory_that_runs_out_is_an_outcome(tmp_path: Path) -> None:
    run = run_of(tmp_path, vocab_size=8192).replace(micro_batch_size=512)
    store = tmp_path / "store.jsonl"
    profile = measure(run, SHORT._replace(memory_limit_bytes=200e6), store=str(store))
    assert profile.outcome == "out_of_memory"
    assert "allocate" in profile.reason
    assert not profile.fits
    assert last(store) == profile


def test_a_loss_that_is_no_number_is_no_data(tmp_path: Path) -> None:
    store = tmp_path / "store.jsonl"
    profile = measure(run_of(tmp_path, rms_norm_eps=float("-1e6")), SHORT, store=str(store))
    assert profile.outcome == "failed"
    assert "the loss of step 1 is nan" in profile.reason
    assert profile.step_times_s == ()
    assert last(store) == profile


def test_a_trial_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    profile = measure(run_of(tmp_path), ENDLESS._replace(timeout_s=0.5))
    assert (profile.outcome, profile.reason) == ("failed", "not done after 0.5 s")


def test_a_store_on_a_full_disk_stops_before_anything_is_launched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from finegauge.errors import InputError

    run = run_of(tmp_path)

    def full(descriptor: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    def launched(*_: object, **__: object) -> None:
        raise AssertionError("launched")

    monkeypatch.setattr("finegauge.measurement.trial.run_trial", launched)
    monkeypatch.setattr(os, "write", full)
    with pytest.raises(InputError, match="No space left on device"):
        measure(run, SHORT, store=str(tmp_path / "store.jsonl"))
