"""What is printed about an endpoint: one load at length, several in a row each, failures by their reason."""

from typing import Any

import pytest

from finegauge.answers.measurement import measure_answer
from finegauge.answers.profile import predicted_waits
from finegauge.prediction.predictor import Prediction
from finegauge.profile import Breakdown, Profile, Source
from finegauge.render.instruments import instrument_sections
from finegauge.render.measurement import measure_report
from finegauge.render.report import plain as untoned
from finegauge.render.run_parts import waits_notes
from finegauge.render.terminal import report_lines, section_lines
from finegauge.run.run import Run

RUN = Run(model="llama-2-7b", method="full", phase="decode", seq_len=64, max_new_tokens=32)
WAIT_S = {"mean": 0.2, "p50": 0.1, "p90": 0.3, "p99": 0.4}
SEEN: dict[str, Any] = {
    "num_requests": 40, "num_failed": 2, "failures": {"HTTP 500: rare": 1, "cut": 1500}, "num_users": 8,
    "asked_requests_per_s": 0.0, "ttft_s": WAIT_S, "time_per_output_token_s": {}, "inter_token_latency_s": {},
    "latency_s": WAIT_S, "requests_per_s": 5.0, "written_tokens_per_s": 160.0, "prompt_tokens_per_s": 160.0,
    "prompt_tokens": 32.0, "written_tokens": 32.0, "in_flight": 7.5,
}  # fmt: skip
MEASURED = Profile(
    run=RUN,
    source=Source("measured", "endpoint", assumptions=("network included",)),
    step_time_s=Breakdown.of(prefill=0.1),
    fingerprint={"device": "http://here (m, vllm)"},
    observations={"serving": SEEN, "steps": {"details": {"ttft_s": 0.1}}},
)
NOTHING = Prediction(None, {}, {}, "Not predicted: add gpu=NAME.")


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")


def serving_lines(seen: dict[str, Any]) -> list[str]:
    return [line for part in instrument_sections({"serving": seen}) for line in section_lines(part)]


def measurements_lines(found: list[tuple[Profile, Prediction]]) -> list[str]:
    return report_lines(measure_report(measure_answer(found)))


def test_a_load_at_length() -> None:
    shown = serving_lines(SEEN)
    assert shown[0] == "Serving  40 requests, 8 users at a time"
    assert shown[2].split()[4:] == ["200", "ms", "100", "ms", "300", "ms", "400", "ms"]
    assert not any("further" in line for line in shown)
    assert "7.50 requests in flight." in " ".join(" ".join(shown).split())
    assert shown[-2:] == ["  1,500 failed: cut", "  1 failed: HTTP 500: rare"]


def test_requests_by_chance_and_one_user() -> None:
    assert "2.50 a second, arriving by chance" in serving_lines({**SEEN, "asked_requests_per_s": 2.5})[0]
    assert "1 user at a time" in serving_lines({**SEEN, "num_users": 1})[0]


def test_without_an_answer_there_are_only_failures() -> None:
    assert serving_lines({"num_requests": 3, "failures": {"cut": 3}}) == ["  3 failed: cut"]


def test_several_loads_and_one_that_failed() -> None:
    failed = MEASURED._replace(outcome="failed", reason="all failed", step_time_s=Breakdown({}))
    other = MEASURED._replace(observations={"serving": {**SEEN, "num_users": 32}})
    shown = measurements_lines([(MEASURED, NOTHING), (other, NOTHING), (failed, NOTHING)])
    text = "\n".join(shown)
    assert shown[0] == "Measured on http://here (m, vllm), 2 loads."
    assert "No data: all failed." in shown
    assert [line.split()[0] for line in shown if line.startswith(("  8 ", "  32 "))] == ["8", "32"]
    assert not any("tokens/s" in line and "predicted" in line for line in shown)
    assert "Not predicted: add gpu=NAME." in text
    assert "Steps" not in "\n".join(measurements_lines([(MEASURED, NOTHING)]))


def test_a_prediction_says_what_users_would_wait_for() -> None:
    predicted = MEASURED._replace(step_time_s=Breakdown.of(prefill=0.1, decode=3.1))
    waits = predicted_waits(predicted)
    assert waits == pytest.approx(
        {"ttft_s": 0.1, "time_per_output_token_s": 0.1, "written_tokens_per_s": 10.0}
    )
    assert untoned(waits_notes(predicted)[0].text).split()[:2] == ["100", "ms"]
    queued = predicted._replace(run=RUN.replace(padding="free"))  # three batches, one after the other
    assert predicted_waits(queued)["ttft_s"] == pytest.approx(0.1 / 3)
    assert predicted_waits(MEASURED) == {}
    assert waits_notes(MEASURED) == ()
