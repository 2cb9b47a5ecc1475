"""Every trial that was started ends once: by its own word, or by that of whoever finds it gone."""

import os
from pathlib import Path
from platform import node

import pytest

from finegauge.profile import Profile, Source
from finegauge.run.run import Run
from finegauge.sandbox import born
from finegauge.store import journal
from finegauge.store.journal import Trials
from tests.unit.store.results import read_back

RUN = Run(model="llama-2-7b", method="lora")


@pytest.fixture
def trials(tmp_path: Path) -> Trials:
    return Trials(str(tmp_path / "store.jsonl"))


def profile(outcome: str = "completed") -> Profile:
    return Profile(run=RUN, source=Source("measured", "test"), outcome=outcome, step_times_s=(0.1, 0.2))


def test_a_trial_has_a_line_before_and_one_after(trials: Trials) -> None:
    trial = trials.start(RUN, {"steps": 3})
    (started,) = read_back(trials.journal).records
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
    (record,) = read_back(trials.journal).records
    record["process"] = [os.getpid(), "another boot:1", node()]
    Path(trials.journal.path).unlink()
    trials.journal.append(record)
    assert trials.recover() == 1


def test_the_trial_of_another_host_is_left_alone(trials: Trials) -> None:
    trials.start(RUN, {})
    (record,) = read_back(trials.journal).records
    record["process"] = [os.getpid(), "another boot:1", "another host"]
    Path(trials.journal.path).unlink()
    trials.journal.append(record)
    assert trials.recover() == 0


def test_where_the_system_does_not_tell_when_processes_begin(
    trials: Trials, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "born", lambda _: "")  # macOS
    name = trials.start(RUN, {})
    assert trials.recover() == 0  # this process runs: its trial is not taken from it
    (record,) = read_back(trials.journal).records
    trials.journal.append(record | {"trial": "other", "process": [2**22 + 1, "", node()]})
    assert trials.recover() == 1
    assert name not in trials.look().ended


def test_nothing_to_recover_makes_no_file(trials: Trials) -> None:
    assert trials.recover() == 0
    assert not Path(trials.journal.path).exists()


def test_when_a_process_began() -> None:
    assert born(os.getpid()) == born(os.getpid()) != ""
    assert born(2**22 + 1) == ""


def test_only_what_was_added_is_read_again(trials: Trials, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(3):
        trials.end(trials.start(RUN, {}), profile())
    assert len(trials.look().entries) == 3
    read: list[int] = []
    whole = journal.entry_of

    def counted(text: bytes, at: int = 0) -> journal.Entry | None:
        read.append(at)
        return whole(text, at)

    monkeypatch.setattr(journal, "entry_of", counted)
    trials.end(trials.start(RUN, {}), profile("failed"))
    assert [one.facts.outcome for one in trials.look().entries if one.facts] == ["completed"] * 3 + ["failed"]
    assert len(read) == 2  # a start and an end


def test_a_store_that_was_replaced_is_read_anew(trials: Trials) -> None:
    trials.end(trials.start(RUN, {}), profile())
    trials.end(trials.start(RUN, {}), profile("failed"))
    assert len(trials.look().entries) == 2
    path = Path(trials.journal.path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[2:]))
    assert [one.facts.outcome for one in trials.look().entries if one.facts] == ["failed"]


def test_a_last_line_in_the_making_is_left_for_later(trials: Trials) -> None:
    trials.end(trials.start(RUN, {}), profile())
    path = Path(trials.journal.path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-50])
    assert trials.look().entries == []
    path.write_bytes(whole)
    assert len(trials.look().entries) == 1
    assert not os.path.exists(trials.journal.quarantine)


def test_a_line_of_an_earlier_version_has_the_same_facts(trials: Trials) -> None:
    trials.end(trials.start(RUN, {"steps": 3}), profile())
    (started, now) = read_back(trials.journal).records
    facts = now.pop("facts")
    earlier = Trials(f"{trials.journal.path}.earlier")
    earlier.journal.append(started, now)
    (entry,) = earlier.look().entries
    assert entry.facts is not None
    assert entry.facts._asdict() == facts
    assert earlier.profiles() == trials.profiles() == [profile()]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("outcome", 1),
        ("step_times_s", ["a"]),
        ("step_time_s", {"forward": "x"}),
        ("work", [{}]),
        ("step_flops", "1"),
    ],
)
def test_facts_that_are_none_are_foreign(trials: Trials, name: str, value: object) -> None:
    trials.end(trials.start(RUN, {}), profile())
    record = read_back(trials.journal).records[-1]
    trials.journal.append({**record, "facts": record["facts"] | {name: value}})
    assert len(trials.look().entries) == 1
    assert b"# foreign" in Path(trials.journal.quarantine).read_bytes()
