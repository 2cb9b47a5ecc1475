"""The peak of a real step on the CPU, by the allocator's own events, against our prediction.

Nothing of FineGauge's tracer is used: transformers, PEFT and torch run as they are. What
remains of the difference is a CPU's scratch space for its kernels.
"""

from typing import Any

import pytest

from tests.oracle.real_step import peaks

TOLERANCE_FRACTION = 0.002
FULL: dict[str, Any] = {"method": "full", "weights_dtype": "fp32"}
NARROW: dict[str, Any] = {"method": "full", "weights_dtype": "bf16"}
LORA: dict[str, Any] = {
    "method": "lora",
    "lora_rank": 8,
    "lora_targets": ("q_proj", "v_proj", "down_proj"),
    "weights_dtype": "fp32",
    "adapter_dtype": "fp32",
}
QV = {**LORA, "lora_targets": ("q_proj", "v_proj")}
CHECKPOINTED = {"activation_checkpointing": "full", "checkpointing_reentrant": False}
REENTRANT = {"activation_checkpointing": "full", "checkpointing_reentrant": True}
LOOP = {"optimizer_implementation": "loop"}
FOREACH = {"optimizer_implementation": "foreach"}


@pytest.mark.parametrize(
    ("family", "fields"),
    [
        ("dense", {**FULL, **LOOP}),
        ("dense", {**FULL, **FOREACH}),
        ("dense", {**NARROW, **FOREACH}),
        ("dense", {**FULL, **CHECKPOINTED, **LOOP}),
        ("dense", {**FULL, **REENTRANT, **LOOP}),
        ("dense", {**FULL, **CHECKPOINTED, **FOREACH}),
        ("dense", {**LORA, **LOOP}),
        ("dense", {**LORA, **CHECKPOINTED, **LOOP}),
        ("experts", {**NARROW, **LOOP}),
        ("experts", {**NARROW, **FOREACH}),
        ("experts", {**NARROW, **CHECKPOINTED, **LOOP}),
        ("experts", {**QV, "weights_dtype": "bf16", **LOOP}),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value.values())),
)
def test_a_real_step_peaks_where_we_say(family: str, fields: dict[str, Any]) -> None:
    found = peaks(family, **fields)
    assert found.ours == pytest.approx(found.real, rel=TOLERANCE_FRACTION)
