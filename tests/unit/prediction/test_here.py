"""What is predicted for this machine: by its profile, or memory alone where it has none."""

from pathlib import Path

import pytest

from finegauge.errors import UnsupportedError
from finegauge.prediction.predictor import memory_estimator, prediction_for, work_of
from finegauge.run.run import Run

RUN = Run(model="llama-2-7b", method="full", weights_dtype="bf16", seq_len=64)


@pytest.fixture(autouse=True)
def no_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINEGAUGE_CACHE_DIR", str(tmp_path))


def test_memory_is_predicted_for_a_processor_that_nobody_has_measured() -> None:
    found = prediction_for(RUN, "cpu")
    assert found.profile is not None
    assert found.profile.peak_memory_bytes["weights"] == pytest.approx(2 * 6_738_415_616, rel=1e-3)
    assert found.profile.step_time_s.parts == {}
    assert "finegauge micro" in found.missing


def test_a_known_gpu_is_predicted_by_its_datasheet() -> None:
    found = prediction_for(RUN, "cuda", "NVIDIA A40")
    assert found.profile is not None
    assert (found.profile.run.gpu, found.missing) == ("A40", "")
    assert found.profile.step_time_s.total > 0
    forward = found.work["forward", "mlp", "gate_proj"]
    assert forward.flops == pytest.approx(32 * 2 * 64 * 4096 * 11008)


def test_an_unknown_gpu_has_no_prediction_and_says_so() -> None:
    found = prediction_for(RUN, "cuda", "a card of tomorrow")
    assert found.profile is None
    assert "a card of tomorrow" in found.missing
    assert "gpu=NAME" in found.missing


def test_the_memory_estimator_follows_the_batch() -> None:
    with memory_estimator(RUN, "cpu") as ask:
        one, two = (ask(RUN.replace(micro_batch_size=n)).peak_memory_bytes.total for n in (64, 128))
    assert two > one
    with memory_estimator(RUN.replace(gpu="A40"), "cuda") as ask:
        assert ask(RUN).run.gpu == "A40"
    with pytest.raises(UnsupportedError, match="gpu=NAME"), memory_estimator(RUN, "cuda"):
        pass


def test_work_counts_what_runs_again() -> None:
    plain, again = work_of(RUN), work_of(RUN.replace(activation_checkpointing="full"))
    assert not any(path[0] == "recompute" for path in plain)
    assert again["recompute", "mlp", "gate_proj"] == plain["forward", "mlp", "gate_proj"]
    assert work_of(RUN.replace(phase="decode")) == {}
