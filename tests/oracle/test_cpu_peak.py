"""The peak of a real step on the CPU with its own fused attention, against our prediction for that CPU."""

import json
from pathlib import Path
from typing import Any

import pytest

from finegauge.prediction.moments import moments_of
from finegauge.prediction.predictor import predict
from finegauge.run.run import Run
from tests.on_disk import config_file
from tests.oracle.real_step import BASE, FAMILIES, allocated, predicted, real_model
from tests.unit.prediction.profiles import written

TOLERANCE_FRACTION = 0.002
LORA: dict[str, Any] = {
    "method": "lora",
    "lora_rank": 8,
    "lora_targets": ("q_proj", "v_proj"),
    "adapter_dtype": "fp32",
}


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


@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "not reentrant"])
def test_checkpoints_that_wait_on_the_host(reentrant: bool) -> None:
    figures = {**BASE, **FAMILIES["dense"], "vocab_size": 400, "num_hidden_layers": 8}
    offloading = Run(
        model=config_file(figures), weights_dtype="fp32", attention="eager", seq_len=96, micro_batch_size=2,
        activation_checkpointing="offload", checkpointing_reentrant=reentrant, pad_to_multiple_of=1,
        optimizer_implementation="foreach", gpu="A40", **LORA,
    )  # fmt: skip
    real: list[float] = []
    for run in (offloading.replace(activation_checkpointing="full"), offloading):
        model = real_model(run)
        weights = sum(parameter.untyped_storage().nbytes() for parameter in model.parameters())
        real.append(allocated(run, model, weights))
        assert predicted(run) == pytest.approx(real[-1], rel=0.01)
    assert real[1] < real[0]
    train = next(one for one in moments_of(predict(offloading)) if one.moment == "train")
    assert (
        train.host_breakdown_bytes["offloaded"] == sum(model.base_model.model.moved_bytes) / 2
    )  # of two steps
