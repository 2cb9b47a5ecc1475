"""What a training is told at its start and its end."""

import pytest

from finegauge.prediction.predictor import Prediction, predict
from finegauge.profile import Breakdown, Profile, Source
from finegauge.render.terminal import section_lines
from finegauge.render.training import end_section, nothing_predicted, start_section
from finegauge.run.run import FROM_CALLER, Run


def run(**changes: object) -> Run:
    fields = {"model": "llama-3-8b", "method": "qlora", "gpu": "A40", "seq_len": 1024, **changes}
    return Run.from_fields(fields, dict.fromkeys(fields, FROM_CALLER))


def told(asked: Run, *, price: float | None = 0.5, steps: int | None = 1000, evaluates: bool = False) -> str:
    """Return the start's lines as one text."""
    start = start_section(
        asked,
        Prediction(predict(asked), {}, {}),
        device="NVIDIA A40",
        num_steps=steps,
        usd_per_h=price,
        price_said="as stated",
        has_evaluation=evaluates,
    )
    lines = section_lines(start)
    assert all(len(line) <= 104 for line in lines)
    return " ".join(" ".join(lines).split())


def test_a_run_that_fits_with_its_time_and_cost() -> None:
    asked = run(micro_batch_size=2)
    text = told(asked)
    step_s = predict(asked).step_time_s.total
    assert "Fits: " in text
    assert "on NVIDIA A40" in text
    assert "Warning" not in text
    assert f"1,000 steps: {1000 * step_s / 60:.0f} min, ${1000 * step_s / 3600 * 0.5:.2f}." in text
    assert "$0.5 an hour, as stated." in text


def test_a_run_that_will_not_fit_is_warned_of_with_the_way_out() -> None:
    text = told(run(micro_batch_size=64))
    assert "Will not fit" in text
    safe = int(text.partition("per_device_train_batch_size=")[2].split()[0])
    assert 0 < safe < 64
    assert "Fits" in told(run(micro_batch_size=safe))


def test_not_even_one_fits() -> None:
    said = told(run(method="full", weights_dtype="fp32"))
    assert "Each alone makes it fit: qlora (" in said


def test_what_is_not_known_is_said_or_left_out() -> None:
    text = told(run(), price=None, steps=None)
    assert "No price is known" in text
    assert " steps: " not in text
    assert "Evaluation comes on top" not in text
    assert "Evaluation comes on top" in told(run(), evaluates=True)


def test_lengths_from_memory_have_no_path_in_the_text(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("kept") / "data-0123456789ab.json"
    path.write_text('{"name": "data in memory", "lengths": [[100, 8], [200, 8]]}')
    text = told(run(dataset=str(path)))
    assert "data in memory, cut at 1,024" in text
    assert "0123456789ab" not in text


def test_nothing_predicted() -> None:
    (line,) = section_lines(nothing_predicted("IA3 is not supported."))
    assert line.endswith("no profile is kept: IA3 is not supported.")


def test_the_end_holds_the_prediction_against_what_was_measured() -> None:
    measured = Profile(run=run(), source=Source("measured", "here"), step_time_s=Breakdown.of(step=2.0))
    predicted = Profile(run=run(), source=Source("predicted", "us"), step_time_s=Breakdown.of(forward=1.9))
    lines = section_lines(end_section(measured, predicted, "out/finegauge.jsonl"))
    assert "2.00 s a step" in lines[0]
    assert "1.90 s a step were predicted, -5.0%." in lines[1]
    assert lines[2].endswith("kept in out/finegauge.jsonl.")
    assert len(section_lines(end_section(measured, None, ""))) == 1
