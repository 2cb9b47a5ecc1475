"""How wide the interval of a step's time is."""

from math import log
from typing import Any

import pytest

from finegauge.prediction.calibration import current
from finegauge.prediction.predictor import predict
from finegauge.profile import Interval
from finegauge.run.run import Run


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
        ({"gpu": "V100-SXM2-32GB", "weights_dtype": "fp16"}, 1),
        ({"gpu": "B200"}, 1),
        ({"phase": "dpo"}, 1),
        ({"num_gpus": 2, "sharding": "zero3", "cpu_offload": "optimizer"}, 1),
        ({"num_gpus": 2, "context_parallel": 2, "gpu": "MI300X"}, 2),
    ],
)
def test_every_unseen_kind_adds_as_much_variance_as_a_new_source(fields: dict[str, Any], unseen: int) -> None:
    known, wider = current().time_interval, interval(**fields)
    for mine, theirs in zip(wider, known, strict=True):
        assert log(mine) ** 2 == pytest.approx((1 + unseen) * log(theirs) ** 2)
