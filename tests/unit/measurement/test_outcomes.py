"""How a trial ended is read from the evidence that it left; what is no data is refused with the reason."""

import errno
import math
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from finegauge.errors import InputError, UnsupportedError
from finegauge.measurement import trial as measuring
from finegauge.measurement.device import fingerprint, out_of_memory_reason
from finegauge.measurement.options import Options
from finegauge.measurement.process import Ended
from finegauge.measurement.subject import StepFacts, refusal
from finegauge.measurement.trial import measure, without_answer
from finegauge.profile import Profile, Source
from finegauge.run.run import Run
from finegauge.store.document import profile_document
from finegauge.store.journal import Trials
from tests.unit.store.results import read_back

RUN = Run(model="llama-2-7b", method="lora")
STEP = StepFacts(tokens=8.0, sequences=1.0, loss=1.0, real_tokens=8.0)


@pytest.mark.parametrize(
    ("ended", "outcome", "reason"),
    [
        (Ended(None, -9, "", timed_out=True), "failed", "not done after 5 s"),
        (Ended(None, -9, "", kernel_killed=True), "out_of_memory", "killed by the OOM killer"),
        (Ended(None, -9, "last words\n"), "failed", "killed by SIGKILL: last words"),
        (Ended(None, -6, "terminate: std::bad_alloc\n"), "out_of_memory", "bad_alloc"),
        (Ended(None, 1, "x\nMemoryError\n"), "out_of_memory", "MemoryError"),
        (
            Ended(None, 1, "Traceback\nOSError: No space left on device\n"),
            "failed",
            "exit code 1: OSError: No sp",
        ),
        (Ended(None, -11, ""), "failed", "SIGSEGV"),
    ],
)
def test_a_trial_without_an_answer(ended: Ended, outcome: str, reason: str) -> None:
    profile = without_answer(RUN, Options(timeout_s=5), ended)
    assert profile.outcome == outcome
    assert reason in profile.reason
    assert profile.run == RUN


@pytest.mark.parametrize(
    ("error", "limited", "is_memory"),
    [
        (MemoryError(), False, True),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), False, True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), False, True),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), False, True),
        (OSError(errno.ENOSPC, "No space left on device"), False, False),
        (RuntimeError("can't start new thread"), True, True),
        (RuntimeError("can't start new thread"), False, False),
        (RuntimeError("shapes do not match"), True, False),
    ],
)
def test_which_errors_say_that_memory_ran_out(error: Exception, limited: bool, is_memory: bool) -> None:
    assert bool(out_of_memory_reason(error, limited=limited)) is is_memory


@pytest.mark.parametrize(
    ("facts", "others", "reason"),
    [
        ([STEP, STEP._replace(loss=math.nan)], {}, "the loss of step 2 is nan"),
        ([STEP._replace(loss=math.inf)], {"first_step": 7}, "the loss of step 7 is inf"),
        ([STEP._replace(tokens=0.0)], {}, "step 1 worked on no tokens"),
        ([STEP], {"step_times_s": [0.1, 0.0]}, "took no time"),
        ([STEP], {"throttled": ["power brake"]}, "throttled (power brake)"),
        ([STEP], {"mfu_fraction": 1.02}, "102 % of the device's peak"),
        ([STEP, STEP._replace(loss=None)], {"step_times_s": [0.1], "mfu_fraction": 1.0}, ""),
    ],
)
def test_what_is_refused_as_data(facts: list[StepFacts], others: dict[str, Any], reason: str) -> None:
    refused = refusal(facts, **others)
    assert (reason in refused) if reason else (refused == "")


def answering(monkeypatch: pytest.MonkeyPatch, profile: Profile) -> None:
    monkeypatch.setattr(measuring, "run_trial", lambda *_, **__: Ended(profile_document(profile), 0, ""))


def test_an_answer_is_the_profile_and_goes_into_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = Profile(run=RUN, source=Source("measured", "test"), step_times_s=(0.1,))
    answering(monkeypatch, profile)
    store = str(tmp_path / "store.jsonl")
    assert measure(RUN, store=store) == profile
    assert measure(RUN, Options(), store=store) == profile
    assert Trials(store).profiles() == [profile, profile]


def test_ctrl_c_is_recorded_and_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(measuring, "run_trial", interrupted)
    store, before = str(tmp_path / "store.jsonl"), signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        measure(RUN, store=store)
    assert [one.outcome for one in Trials(store).profiles()] == ["interrupted"]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_failure_of_our_own_is_recorded_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(measuring, "run_trial", broken)
    store = str(tmp_path / "store.jsonl")
    with pytest.raises(RuntimeError, match="a bug"):
        measure(RUN, store=store)
    assert [one.outcome for one in Trials(store).profiles()] == ["failed"]


def test_a_disk_that_fills_up_during_the_trial_is_told_and_nothing_is_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = str(tmp_path / "store.jsonl")

    def filling(*_: object, **__: object) -> Ended:
        monkeypatch.setattr(os, "fsync", full)
        return Ended(profile_document(Profile(run=RUN, source=Source("measured", "test"))), 0, "")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(measuring, "run_trial", filling)
    with pytest.raises(InputError, match="No space left on device; what it held is unharmed"):
        measure(RUN, store=store)
    monkeypatch.undo()
    contents = read_back(Trials(store).journal)
    assert [record["event"] for record in contents.records] == ["started"]
    assert contents.num_quarantined == 0


def test_without_torch_the_way_out_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "find_spec", lambda name: None)
    with pytest.raises(UnsupportedError, match=r"pip install 'finegauge\[measure\]'"):
        measure(RUN)


def test_the_fingerprint_names_machine_and_software() -> None:
    found = fingerprint(torch.device("cpu"))
    assert found["torch"] == torch.__version__
    assert {"device", "threads", "python", "os", "date"} <= found.keys()
    assert all(found.values())
