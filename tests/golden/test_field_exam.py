"""The field exam: runs that people reported in public threads, and whether we say what happened.

`field_exam.csv` holds facts alone: the configuration that a thread states, the outcome, link and date;
`assumed` names what the thread leaves open, `likely_reason` what we think of a row that we get wrong.
Attention is eager where a thread of before transformers 4.36 (December 2023) names no other. It is an
exam, not a training set: no constant is changed for it, a rule only as a framework's code has it (one: what
bitsandbytes holds while it loads under FSDP), and no row is taken out because it is missed.
"""

import csv
import re
from functools import cache

import pytest

from benchmarks.peers.ask import EXAM, exam_rows
from finegauge.validation.summary import Answer, answer

RIGHT = 70  # of 100; may only rise
LEAST = 100


@cache
def answers() -> tuple[Answer, ...]:
    """Return every row with our prediction."""
    return tuple(map(answer, exam_rows()))


@cache
def cells() -> dict[str, dict[str, str]]:
    """Return the rows as they stand in the file, by id."""
    with EXAM.open(encoding="utf-8", newline="") as file:
        return {one["id"]: one for one in csv.DictReader(file)}


def right(one: Answer) -> bool:
    """Return whether we say what happened."""
    return one.prediction is not None and one.prediction.outcome == one.row.measured.outcome


def test_every_row_is_a_run_and_is_predicted() -> None:
    assert len(answers()) == len(cells()) >= LEAST
    assert {one.row.id: one.reason for one in answers() if one.reason} == {}


@pytest.mark.parametrize("column", ["link", "date", "assumed", "outcome"])
def test_every_row_says_where_it_comes_from(column: str) -> None:
    form = {
        "link": r"github\.com/[\w.-]+/[\w.-]+/(issues|pull)/\d+",
        "date": r"20\d\d-\d\d-\d\d",
        "assumed": r".+",
        "outcome": r"ok|oom",
    }[column]
    wrong = [name for name, one in cells().items() if not re.fullmatch(form, one[column])]
    assert wrong == []


def test_both_outcomes_are_asked_about_and_many_threads() -> None:
    outcomes = [one["outcome"] for one in cells().values()]
    assert outcomes.count("ok") >= 30
    assert outcomes.count("oom") >= 30
    assert len({one["link"] for one in cells().values()}) >= 60


def test_we_are_right_as_often_as_before_and_every_miss_has_its_likely_reason() -> None:
    missed = {one.row.id for one in answers() if not right(one)}
    assert len(answers()) - len(missed) >= RIGHT
    assert {name for name, one in cells().items() if one["likely_reason"]} >= missed
