"""Every trial that was started ends once: by its own word, or by that of whoever finds it gone."""

import os
from pathlib import Path
from platform import node

import pytest

from finegauge.profile import Profile, Source
from finegauge.run.run import Run
from finegauge.store.journal import Trials, _born

RUN = Run(model="llama-2-7b", method="lora")


@pytest.fixture
def trials(tmp_path: Path) -> Trials:
    return Trials(str(tmp_path / "store.jsonl"))


def profile(outcome: str = "completed") -> Profile:
    return Profile(run=RUN, source=Source("measured", "test"), outcome=outcome, step_times_s=(0.1, 0.2))


def test_a_trial_has_a_line_before_and_one_after(trials: Trials) -> None:
    trial = trials.start(RUN, {"steps": 3})
    (started,) = trials.journal.read().records
    assert (started["event"], started["trial"], started["asked"]) == ("started", trial, {"steps": 3})
    assert trials.profiles() == []
    trials.end(trial, profile())
    assert trials.profiles() == [profile()]


def test_a_trial_ends_once(trials: Trials) -> None:
    trial = trials.start(RUN, {})
    trials.end(trial, profile("failed"))
    trials.end(trial, profile())
    assert [one.outcome for one in trials.profiles()] == ["failed"]


def test_a_trial_whose_process_is_gone_was_interrupted(trials: Trials) -> None:
    child = os.fork()
    if not child:
        trials.start(RUN, {})
        os._exit(0)
    os.waitpid(child, 0)
    assert trials.recover() == 1
    assert trials.recover() == 0
    (lost,) = trials.profiles()
    assert (lost.outcome, lost.run) == ("interrupted", RUN)
    assert "without a word" in lost.reason


def test_a_trial_that_still_runs_is_left_alone(trials: Trials) -> None:
    trials.start(RUN, {})
    assert trials.recover() == 0
    assert trials.profiles() == []


def test_a_number_that_another_process_took_over_is_not_mistaken(trials: Trials) -> None:
    trials.start(RUN, {})
    (record,) = trials.journal.read().records
    record["process"] = [os.getpid(), "another boot:1", node()]
    Path(trials.journal.path).unlink()
    trials.journal.append(record)
    assert trials.recover() == 1


def test_the_trial_of_another_host_is_left_alone(trials: Trials) -> None:
    trials.start(RUN, {})
    (record,) = trials.journal.read().records
    record["process"] = [os.getpid(), "another boot:1", "another host"]
    Path(trials.journal.path).unlink()
    trials.journal.append(record)
    assert trials.recover() == 0


def test_nothing_to_recover_makes_no_file(trials: Trials) -> None:
    assert trials.recover() == 0
    assert not Path(trials.journal.path).exists()


def test_when_a_process_began() -> None:
    assert _born(os.getpid()) == _born(os.getpid()) != ""
    assert _born(2**22 + 1) == ""
