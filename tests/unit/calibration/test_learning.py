"""What is learned from finished runs: how much, from how few, for whom, and when it is not used."""

from math import expm1, log
from statistics import median

import pytest

from finegauge.calibration import Lesson, evidence_of, learn, taught
from finegauge.catalogue.tables import held_out_tables, measurement_tables
from finegauge.errors import InputError
from finegauge.formats.measurement_tables import Measured, MeasuredRow, read_table
from finegauge.prediction.calibration import current
from finegauge.prediction.predictor import predict
from finegauge.run.run import Run

PACE, TRAINER_S, STEP_S = 1.4, 0.006, 0.06
NOISE = (1.03, 0.96, 1.01, 0.98, 1.05, 1.0)
SHORT = ((1, 128, 1), (1, 512, 1), (1, 256, 4), (2, 256, 1), (1, 128, 4), (1, 256, 1))
SHAPES = ((1, 512, 1), (4, 1024, 2), (2, 2048, 1), (8, 256, 1), (1, 4096, 2), (2, 1024, 4))


def run(size: int, length: int, micro_steps: int, **fields: str) -> Run:
    return Run.from_fields({
        "model": "qwen3-0.6b", "method": "full", "gpu": "A10", "framework": "TRL", "seq_len": length,
        "micro_batch_size": size, "gradient_accumulation_steps": micro_steps, "packing": True, **fields,
    })  # fmt: skip


def row(name: str, asked: Run, seconds: float) -> MeasuredRow:
    measured = Measured(None, None, seconds, False, None, "unknown", "ok")
    return MeasuredRow(name, "finished runs", asked, "", (), (), "full", measured)


def slow(number: int) -> list[MeasuredRow]:
    """Return runs on a machine whose kernels take 1.4 times as long, under a trainer of 6 ms."""
    found = []
    for n, (shape, noise) in enumerate(zip(SHAPES[:number], NOISE, strict=False)):
        asked = run(*shape)
        seconds = noise * (PACE * predict(asked).step_time_s.total + shape[2] * TRAINER_S)
        found.append(row(f"run{n}", asked, seconds))
    return found


def errors(rows: list[MeasuredRow], lessons: list[Lesson] | None = None) -> float:
    calibration = current() if lessons is None else taught(current(), lessons)
    return median(abs(expm1(one)) for one in evidence_of(rows).log_ratios(calibration))


def test_three_runs_halve_the_error_on_three_more() -> None:
    rows = slow(6)
    (lesson,) = learn(rows[:3], current())
    assert lesson.use == "used"
    assert errors(rows[3:], [lesson]) < 0.5 * errors(rows[3:])
    assert 1.2 < lesson.learned.pace_ratio < PACE  # shrunk
    assert 0.0 <= lesson.learned.trainer_s < 0.02


def test_few_runs_move_little_and_one_is_not_used() -> None:
    paces = [learn(slow(number), current())[0].learned.pace_ratio for number in (1, 3, 6)]
    assert paces == sorted(paces)
    assert log(paces[0]) < 0.6 * log(PACE)
    (alone,) = learn(slow(1), current())
    assert (alone.use, alone.left_out) == ("one_run", ())
    assert taught(current(), [alone]) == current()


def test_three_runs_that_agree_move_the_pace_most_and_three_that_do_not_less() -> None:
    def moved(*noise: float) -> float:
        rows = [
            row(f"run{n}", run(*shape), PACE * factor * predict(run(*shape)).step_time_s.total)
            for n, (shape, factor) in enumerate(zip(SHAPES[1:], noise, strict=False))
        ]
        return log(learn(rows, current())[0].learned.pace_ratio) / log(PACE)

    alike, apart = moved(1.0, 1.0, 1.0), moved(1.3, 0.77, 1.0)
    assert 0.8 < alike < 1.0  # three quarters, were the spread of runs not looked at
    assert apart < alike - 0.1


def test_what_a_trainer_takes_each_step_is_told_from_its_pace() -> None:
    rows = [
        row(f"run{n}", run(*shape), predict(run(*shape)).step_time_s.total + STEP_S)
        for n, shape in enumerate(SHORT)
    ]
    (lesson,) = learn(rows[:3], current())
    assert lesson.use == "used"
    assert errors(rows[3:], [lesson]) < 0.5 * errors(rows[3:])
    assert 0.4 * STEP_S < lesson.learned.trainer_step_s < 1.1 * STEP_S


def test_a_disturbed_run_bends_little() -> None:
    rows = slow(6)
    straight = learn(rows, current())[0].learned.pace_ratio
    disturbed = rows[2]._replace(measured=rows[2].measured._replace(step_time_s=60.0))
    (lesson,) = learn([*rows[:2], disturbed, *rows[3:]], current())
    assert lesson.learned.pace_ratio < 1.25 * straight


def test_what_predicts_no_better_is_not_used() -> None:
    rows = [row(f"run{n}", run(*shape), factor * predict(run(*shape)).step_time_s.total)
            for n, (shape, factor) in enumerate(zip(SHAPES, (0.6, 1.6, 1.0, 1.0), strict=False))]  # fmt: skip
    (lesson,) = learn(rows, current())
    assert lesson.use == "no_better"


def test_noise_between_runs_is_nothing_to_learn() -> None:
    """Runs that differ by what repeats differ by teach nothing, also where they happen to err alike."""
    for noise in ((1.04, 0.96, 1.05, 0.99), (1.05, 1.02, 1.03), (0.95, 0.97)):
        rows = [row(f"run{n}", run(*shape), factor * predict(run(*shape)).step_time_s.total)
                for n, (shape, factor) in enumerate(zip(SHAPES, noise, strict=False))]  # fmt: skip
        (lesson,) = learn(rows, current())
        assert lesson.use == "noise"
        assert taught(current(), [lesson]) == current()


def test_nothing_else_is_predicted_otherwise() -> None:
    calibration = taught(current(), learn(slow(3), current()))
    (learned,) = calibration.learned
    assert (learned.gpu, learned.framework) == ("A10", "trl")
    for asked in (run(*SHAPES[0], gpu="A40"), run(*SHAPES[0], framework="torchtune")):
        assert predict(asked, calibration).step_time_s == predict(asked).step_time_s
    asked = run(*SHAPES[0])
    sooner, later = predict(asked), predict(asked, calibration)
    assert later.step_time_s.total > sooner.step_time_s.total
    assert later.step_time_s["other"] == learned.trainer_s + learned.trainer_step_s
    assert later.device_memory_bytes == sooner.device_memory_bytes
    assert later.source.time_interval == learned.time_interval
    assert any("3 finished runs" in said for said in later.source.assumptions)


def test_what_was_learned_before_is_not_learned_from_again() -> None:
    once = taught(current(), learn(slow(4), current()))
    (again,) = learn(slow(4), once)
    assert again.learned == once.learned[0]
    assert median(map(abs, again.before)) < 0.15  # as it is predicted now
    assert len(taught(once, [again]).learned) == 1


@pytest.fixture(scope="module")
def shipped() -> list[MeasuredRow]:
    tables = (*measurement_tables(), *held_out_tables())
    return [one for table in tables for one in read_table(table)]


def test_shipped_rows_are_never_predicted_worse(shipped: list[MeasuredRow]) -> None:
    """A slow machine of the same name as one in the tables: what it teaches is not used."""
    name, framework = "A100-SXM4-80GB", "torchtune"
    theirs = [one for one in shipped if one.run and (one.run.gpu, one.run.framework) == (name, framework)]
    assert theirs
    runs = [run(*shape, gpu=name, framework=framework) for shape in SHAPES]
    rows = [row(str(n), asked, 2.5 * predict(asked).step_time_s.total) for n, asked in enumerate(runs)]
    (lesson,) = learn(rows, current(), shipped)
    assert lesson.use == "shipped_worse"
    assert median(map(abs, lesson.shipped_after)) > median(map(abs, lesson.shipped_before))
    assert taught(current(), [lesson]) == current()
    (lesson,) = learn(slow(4), current(), shipped)
    assert lesson.use == "used"
    evidence = evidence_of([one for one in shipped if one.run])
    before, after = (evidence.log_ratios(one) for one in (current(), taught(current(), [lesson])))
    assert (before == after).all()


def test_without_a_run_it_is_one_sentence() -> None:
    with pytest.raises(InputError):
        learn([row("served", run(*SHAPES[0], phase="prefill"), 1.0)], current())
