"""A fit finds constants again that made the measurements, and stays where nothing is measured."""

import pytest

from finegauge.calibration import BOUND, CONSTANTS, evidence_of, fit, moved
from finegauge.errors import InputError
from finegauge.prediction.calibration import DATASHEET, Calibration
from finegauge.prediction.predictor import predict
from tests.unit.calibration.measured import SILENT, row, run_of, sweep, timed

pytestmark = pytest.mark.extras

TRUTH = DATASHEET._replace(
    sustained_fraction=DATASHEET.sustained_fraction * 0.85, launch_s=DATASHEET.launch_s * 1.5
)


def test_every_constant_is_a_positive_field_of_the_calibration() -> None:
    names = [constant.name for constant in CONSTANTS]
    assert len(set(names)) == len(names)
    assert all(getattr(DATASHEET, constant.name) > 0 < constant.spread for constant in CONSTANTS)
    assert set(names) <= set(Calibration._fields)


def test_known_constants_are_found_again() -> None:
    evidence = evidence_of(
        [*sweep(TRUTH), *sweep(TRUTH, model="llama-2-7b"), *sweep(TRUTH, model="llama-2-13b")]
    )
    before = abs(evidence.log_ratios(DATASHEET)).max()
    found = fit(evidence, DATASHEET)
    assert found.launch_s == pytest.approx(TRUTH.launch_s, rel=0.05)
    assert found.sustained_fraction == pytest.approx(TRUTH.sustained_fraction, rel=0.08)
    assert abs(evidence.log_ratios(found)).max() < 0.25 * before


def test_what_no_row_tells_stays() -> None:
    found = fit(evidence_of(sweep(TRUTH)), DATASHEET)
    for name in ("network_fraction", "hopper_flash_fraction", "dequantise_fraction"):
        assert getattr(found, name) == pytest.approx(getattr(DATASHEET, name), rel=1e-6)
    assert found.context_bytes == DATASHEET.context_bytes


def test_few_rows_move_the_constants_less_than_many() -> None:
    def found(rows: int) -> float:
        batches = range(1, rows + 1)
        evidence = evidence_of([timed(TRUTH, micro_batch_size=batch, seq_len=128) for batch in batches])
        return fit(evidence, DATASHEET).launch_s

    assert DATASHEET.launch_s < found(1) < found(8) <= TRUTH.launch_s * 1.02


def test_one_spoiled_row_bends_nothing() -> None:
    good = [*sweep(DATASHEET), *sweep(DATASHEET, model="qwen3-1.7b")]
    spoiled = [*good, timed(DATASHEET, times=5.0, micro_batch_size=3)]
    found = fit(evidence_of(spoiled), DATASHEET)
    assert abs(evidence_of(good).log_ratios(found)).max() < 0.05


@pytest.mark.parametrize("times", [1e300, 1e-300])
def test_a_time_beyond_reason_is_no_evidence(times: float) -> None:
    good = sweep(DATASHEET)
    assert evidence_of([*good, timed(DATASHEET, times=times)]) == evidence_of(good)


def test_no_constant_leaves_its_bounds() -> None:
    found = fit(evidence_of(sweep(DATASHEET, times=50.0)), DATASHEET)
    far = moved(DATASHEET, [BOUND] * len(CONSTANTS)), moved(DATASHEET, [-BOUND] * len(CONSTANTS))
    for constant in CONSTANTS:
        most, least = (getattr(each, constant.name) for each in far)
        assert least * 0.999 <= getattr(found, constant.name) <= most * 1.001


def test_sources_weigh_alike_and_guesses_half() -> None:
    many = [timed(DATASHEET, "many", micro_batch_size=1 + n) for n in range(60)]
    more = [timed(DATASHEET, "more", micro_batch_size=1 + n) for n in range(120)]
    guess = many[0]._replace(assumptions=("optimizer",))
    evidence = evidence_of([*many, *more])
    weights = evidence.weights()
    assert (weights[:60] ** 2).sum() == pytest.approx((weights[60:] ** 2).sum())
    assert evidence_of([guess]).weights()[0] == 0.5 * evidence_of([many[0]]).weights()[0]


def test_a_rate_says_what_a_time_says() -> None:
    run = run_of(micro_batch_size=4, gradient_accumulation_steps=2)
    profile = predict(run, DATASHEET)
    seconds = profile.step_time_s.total
    said = [
        SILENT._replace(step_time_s=seconds),
        SILENT._replace(step_time_s=seconds / 2, step_is_micro_batch=True),
        SILENT._replace(tokens_per_s_per_gpu=profile.tokens_per_s),
        SILENT._replace(samples_per_s=profile.samples_per_s),
    ]
    points = evidence_of([row(run, one) for one in said]).points
    assert [point.measured_s for point in points] == pytest.approx([seconds] * 4)
    assert points[0].predicted_s(DATASHEET) == pytest.approx(seconds)


def test_rows_without_a_time_say_nothing() -> None:
    mute = [
        row(run_of(), SILENT),
        row(run_of(), SILENT._replace(step_time_s=1.0, outcome="oom")),
        row(run_of(), SILENT._replace(step_time_s=1.0))._replace(run=None),
        row(run_of(model="nothing"), SILENT._replace(step_time_s=1.0)),
    ]
    assert len(evidence_of([*mute, timed(DATASHEET)]).points) == 1
    with pytest.raises(InputError, match="finegauge validate"):
        evidence_of(mute)
