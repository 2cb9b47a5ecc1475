"""How wide the interval of a step's time is."""

from typing import Any

import pytest

from finegauge.catalogue.gpus import gpu
from finegauge.catalogue.tables import held_out_tables
from finegauge.formats.measurement_tables import read_table
from finegauge.prediction.calibration import current
from finegauge.prediction.predictor import predict
from finegauge.prediction.uncertainty import UNTIMED, untimed
from finegauge.profile import Interval
from finegauge.run.run import Run
from finegauge.validation.summary import answer


def interval(**fields: Any) -> Interval:
    base: dict[str, Any] = {"model": "llama-3-8b", "method": "lora", "gpu": "A100-SXM4-80GB"}
    found = predict(Run(**{**base, **fields})).source.time_interval
    assert found is not None
    return found


def test_what_sources_have_timed_has_their_interval() -> None:
    known = current().time_interval
    assert interval() == known
    assert interval(gpu="H100", num_gpus=8, sharding="fsdp") == known


@pytest.mark.parametrize(
    ("fields", "unseen"),
    [
        ({"gpu": "H200"}, 1),
        ({"gpu": "V100-SXM2-32GB", "weights_dtype": "fp16"}, 2),
        ({"gpu": "B200"}, 2),
        ({"phase": "dpo"}, 1),
        ({"framework": "torchtitan"}, 1),
        ({"gpu": "H100", "fp8": True}, 1),
        ({"gpu": "H100", "fp8": True, "fp8_recipe": "mxfp8"}, 2),
        ({"num_gpus": 2, "sharding": "zero3", "cpu_offload": "optimizer"}, 1),
        ({"num_gpus": 2, "context_parallel": 2, "gpu": "MI300X"}, 3),
        ({"num_gpus": 2, "context_parallel": 2, "gpu": "MI300X", "framework": "torchtitan", "fp8": True}, 5),
    ],
)
def test_what_nobody_has_timed_has_the_interval_of_tables_held_out(
    fields: dict[str, Any], unseen: int
) -> None:
    known, wider = current().time_interval, interval(**fields)
    low, high = UNTIMED[min(unseen, 4) - 1]
    assert wider == (min(known.low_ratio, low), max(known.high_ratio, high))


def test_an_estimate_says_what_nobody_has_timed() -> None:
    run = Run(model="llama-3-8b", method="lora", gpu="B200", framework="torchtitan")
    assert "training steps on this GPU, steps of this framework" in predict(run).source.assumptions[-1]
    plain = predict(run.replace(gpu="A100-SXM4-80GB", framework="")).source.assumptions
    assert not any("no constant" in text for text in plain)


def test_intervals_hold_most_rows_of_tables_held_out_and_not_all() -> None:
    answers = [answer(row) for path in held_out_tables() for row in read_table(path)]
    held: dict[int, list[bool]] = {}
    for one in answers:
        error, ours = one.step_time_error, one.prediction
        if error is None or ours is None or one.row.run is None:
            continue
        level = min(4, len(untimed(one.row.run, gpu(str(one.row.run.gpu)))))
        truth = ours.step_time_s / (1.0 + error)
        held.setdefault(level, []).append(ours.step_time_s_p10 <= truth <= ours.step_time_s_p90)
    for level, rows in held.items():  # the widest, of four sources alone, may hold all of its rows
        if len(rows) >= 20:
            assert 0.6 <= sum(rows) / len(rows) <= (0.97 if level < 4 else 1.0), level
    everywhere = [inside for rows in held.values() for inside in rows]
    assert sum(everywhere) / len(everywhere) <= 0.95


def test_memory_under_a_new_framework_is_less_sure() -> None:
    run = Run(model="llama-3-8b", method="lora", gpu="A100-SXM4-80GB", framework="TRL")
    known, new = (predict(one).source.memory_interval for one in (run, run.replace(framework="torchtitan")))
    assert known == current().memory_interval
    assert new is not None
    assert new != known
    timed_alone = predict(run.replace(framework="Megatron-LM", method="full", gpu="B200"))
    assert timed_alone.source.memory_interval == new
