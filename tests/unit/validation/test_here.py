"""Unseen configurations on this machine: drawn from a seed, judged by medians, whoever measures."""

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from finegauge.prediction.predictor import predict
from finegauge.profile import Breakdown, Profile
from finegauge.render.json import document
from finegauge.render.schema import schema
from finegauge.render.terminal import report_lines
from finegauge.render.validation import here_report
from finegauge.run.run import Run
from finegauge.validation import local_validation
from tests.unit.prediction.profiles import written

ROOT = Path(__file__).parents[3]
SCHEMA = schema("validate-here")


def measured(run: Run, *, slower: float, larger: float = 1.0, waited: float = 0.0) -> Profile:
    """Return what a machine would say that differs from the prediction by known factors."""
    ours = predict(run)
    return ours._replace(
        step_time_s=Breakdown({p: v * slower for p, v in ours.step_time_s.parts.items()}),
        peak_memory_bytes=Breakdown({p: v * larger for p, v in ours.peak_memory_bytes.parts.items()}),
        observations={"timing": {"waited_fraction": waited}},
    )


def test_a_seed_draws_the_same_runs_and_another_seed_others(tmp_path: Path) -> None:
    path = written(tmp_path)
    first, again, other = (
        [
            local_validation.describe(p.run)
            for p in local_validation.unseen(path, str(tmp_path / name), num=8, seed=seed)
        ]
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert first == again
    assert first != other
    assert len(first) == 8


def test_drawn_runs_cover_families_and_methods_and_are_worth_measuring(tmp_path: Path) -> None:
    drawn = list(local_validation.unseen(written(tmp_path), str(tmp_path), num=20, seed=0))
    assert {p.run.config["model_type"] for p in drawn} == set(local_validation.FAMILIES)
    assert {p.run.method for p in drawn} == {"full", "lora"}
    assert all(local_validation.STEP_S[0] <= p.step_time_s.total <= local_validation.STEP_S[1] for p in drawn)


@pytest.mark.parametrize(
    ("slower", "larger", "holds"), [(1.1, 1.01, True), (1.3, 1.0, False), (1.0, 1.05, False)]
)
def test_medians_are_held_against_the_bars(tmp_path: Path, slower: float, larger: float, holds: bool) -> None:
    found = local_validation.validate_here(
        written(tmp_path), lambda run: measured(run, slower=slower, larger=larger), str(tmp_path), num=3
    )
    assert found.summary.step_time_error_median == pytest.approx(1 - 1 / slower)
    assert found.summary.peak_memory_error_median == pytest.approx(1 - 1 / larger)
    assert found.summary.holds is holds
    Draft202012Validator(SCHEMA).validate(json.loads(document("validate --here", found)))


def test_time_in_which_others_had_the_processor_is_taken_off(tmp_path: Path) -> None:
    found = local_validation.validate_here(
        written(tmp_path), lambda run: measured(run, slower=2.0, waited=0.5), str(tmp_path), num=2
    )
    assert found.summary.step_time_error_median == pytest.approx(0.0)
    assert any("50 %" in line for line in report_lines(here_report(found)))


def test_a_trial_that_failed_is_shown_and_keeps_the_verdict_from_holding(tmp_path: Path) -> None:
    def fails_once(run: Run) -> Profile:
        outcome = "failed" if run.model == first else "completed"
        return measured(run, slower=1.0)._replace(outcome=outcome, reason="lost")

    first = next(local_validation.unseen(written(tmp_path), str(tmp_path), num=2, seed=0)).run.model
    found = local_validation.validate_here(written(tmp_path), fails_once, str(tmp_path), num=2)
    assert found.summary.completed == 1
    assert not found.summary.holds
    assert any("failed, lost" in line for line in report_lines(here_report(found)))
    assert found.trials[0].step_time_error is None
