"""What crosses the host link and the drives, by hand."""

from typing import Any

import pytest

from finegauge.errors import FieldError
from finegauge.prediction.calibration import DATASHEET
from finegauge.prediction.communication import NVME_BYTES_PER_S
from finegauge.prediction.predictor import predict
from finegauge.profile import Profile
from finegauge.run.run import Run

PARAMETERS = 6_738_415_616  # Llama-2-7B


def step(**fields: Any) -> Profile:
    one = Run(model="llama-2-7b", method="full", gpu="A100-SXM4-80GB", num_gpus=8, sharding="zero3", **fields)
    return predict(one, DATASHEET)


def shown(profile: Profile, name: str) -> float:
    return profile.step_time_s.parts.get(("communication", name), 0.0)


def test_drives_are_read_and_written_once_for_states_and_read_for_every_pass() -> None:
    profile, host = step(cpu_offload="nvme", gradient_accumulation_steps=4), step(cpu_offload="all")
    assert shown(profile, "states on the drives") == pytest.approx(2 * PARAMETERS / 8 * 12 / NVME_BYTES_PER_S)
    weights = 2 * PARAMETERS / 8
    assert shown(profile, "weights on the drives") == pytest.approx((2 * 4 + 1) * weights / NVME_BYTES_PER_S)
    assert shown(profile, "optimizer on the host") == shown(host, "optimizer on the host") > 0
    assert shown(host, "states on the drives") == 0.0


def test_what_lies_on_drives_is_not_on_the_gpu() -> None:
    profile = step(cpu_offload="nvme")
    assert profile.peak_memory_bytes["weights"] == profile.peak_memory_bytes["optimizer"] == 0.0
    assert profile.device_memory_bytes.total == step(cpu_offload="all").device_memory_bytes.total


def test_nvme_is_zero3s() -> None:
    with pytest.raises(FieldError, match="use sharding=zero3"):
        Run(model="llama-2-7b", method="full", num_gpus=8, sharding="fsdp", cpu_offload="nvme")
