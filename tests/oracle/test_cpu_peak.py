"""The peak of a real step on the CPU with its own fused attention, against our prediction for that CPU."""

import json
from pathlib import Path
from typing import Any

import pytest

from finegauge.prediction.predictor import predict
from finegauge.run.run import Run
from tests.oracle.real_step import BASE, FAMILIES, allocated, real_model
from tests.unit.prediction.profiles import written

TOLERANCE_FRACTION = 0.002
LORA = {"method": "lora", "lora_rank": 8, "lora_targets": ("q_proj", "v_proj"), "adapter_dtype": "fp32"}


@pytest.mark.parametrize("num_key_value_heads", [2, 8])
@pytest.mark.parametrize("fields", [{"method": "full"}, LORA], ids=["full", "lora"])
@pytest.mark.parametrize("family", ["dense", "experts"])
def test_a_real_step_peaks_where_we_say(
    tmp_path: Path, family: str, fields: dict[str, Any], num_key_value_heads: int
) -> None:
    config = tmp_path / "config.json"
    figures = {**BASE, **FAMILIES[family], "num_key_value_heads": num_key_value_heads}
    config.write_text(json.dumps(figures), "utf-8")
    run = Run(
        model=str(config), gpu=written(tmp_path), weights_dtype="fp32", attention="sdpa", seq_len=96,
        micro_batch_size=2, pad_to_multiple_of=1, optimizer_implementation="loop", **fields,
    )  # fmt: skip
    model = real_model(run)
    weights = sum(parameter.untyped_storage().nbytes() for parameter in model.parameters())
    ours = predict(run).peak_memory_bytes.total
    assert ours == pytest.approx(allocated(run, model, weights), rel=TOLERANCE_FRACTION)
