"""Many random requests, minutes of them: `make slow` runs these, the suite runs few of each."""

from typing import Any

import schemathesis
from hypothesis import given, settings
from hypothesis import strategies as st

from finegauge.web import jobs
from finegauge.web.api import QUESTIONS
from tests.unit.web.test_injection import FORMS, START, answered
from tests.unit.web.test_openapi import CHECKED, DOCUMENT, FEW, HERE, RUNS

MANY = settings(FEW, max_examples=100, derandomize=False)


@DOCUMENT.parametrize()
@MANY
def test_many_requests_made_from_the_document(case: schemathesis.Case[Any]) -> None:
    case.call_and_validate(checks=CHECKED, headers=HERE)


@settings(MANY, max_examples=2_000)
@given(RUNS, st.sampled_from(list(QUESTIONS)))
def test_no_run_breaks_any_answer(run: dict[str, Any], name: str) -> None:
    reply = jobs.question(name, {"run": run})
    assert reply.status in (200, 422), (run, reply.body)


@settings(MANY, max_examples=1_500)
@given(FORMS, st.sampled_from(["answer", "submitted", "index", "whatif"]))
def test_a_thousand_forms(form: dict[str, str], name: str) -> None:
    answered(name, {**START, **form})
