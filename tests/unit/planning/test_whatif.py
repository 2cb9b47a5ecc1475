"""One change at a time: what applies, what it saves, what it asks for, and what is refused."""

import pytest

from finegauge.errors import UnknownKeyError, UnknownNameError
from finegauge.planning.whatif import ASSUMED_SAMPLES, SWITCHES, Variant, WhatIf, divisors, standing, what_if
from finegauge.prediction.uncertainty import WILL_NOT_FIT
from finegauge.run.run import Run

LORA = Run(
    model="llama-2-7b", method="lora", dataset="commonsense_15k", micro_batch_size=2,
    gradient_accumulation_steps=8, seq_len=512, gpu="A40",
)  # fmt: skip
EIGHT = Run(
    model="llama3-8b", method="full", dataset="math_14k", gpu="A100-80GB", num_gpus=8, sharding="zero2",
    gradient_accumulation_steps=2,
)  # fmt: skip


def one(run: Run, name: str) -> Variant:
    """Return the run with one change that applies."""
    (found,) = what_if(run, [name]).variants
    return found


def refused(run: Run, name: str) -> str:
    """Return why a switch changes nothing."""
    (found,) = what_if(run, [name]).refused
    return found.reason


def saved(found: WhatIf, objective: str) -> list[float]:
    """Return the changes of one figure, in the order of the answer, where they are known and fit."""
    changes = (
        found.change_fraction(v, objective)
        for v in found.variants
        if v.standing.outcome.verdict != WILL_NOT_FIT
    )
    return [change for change in changes if change is not None]


def test_every_switch_is_tried() -> None:
    found = what_if(LORA)
    names = {v.switch for v in found.variants} | {r.switch for r in found.refused}
    assert {switch.name for switch in SWITCHES} <= names
    assert {"H100-SXM5-80GB", "L4"} <= names


@pytest.mark.parametrize("objective", ["cost", "time", "energy", "memory"])
def test_the_largest_gain_comes_first(objective: str) -> None:
    changes = saved(what_if(LORA, minimise=objective, risk_fraction=0.5), objective)
    assert changes == sorted(changes)
    assert changes[0] < -0.05


def test_what_fails_comes_last() -> None:
    found = what_if(LORA, ["8bit-optimizer", "full", "checkpointing"])
    assert [v.standing.outcome.verdict == WILL_NOT_FIT for v in found.variants] == [False, False, True]
    assert found.variants[-1].switch == "full"


def test_a_variant_stands_as_the_whole_run_does() -> None:
    variant = one(LORA, "checkpointing")
    assert variant.standing == standing(LORA.replace(activation_checkpointing="full"))
    assert variant.changes == {"activation_checkpointing": "full"}
    assert (
        variant.standing.outcome.device_memory_bytes
        < what_if(LORA, ["checkpointing"]).base.outcome.device_memory_bytes
    )


@pytest.mark.parametrize(
    "name", ["double-micro-batch", "half-micro-batch", "bigger-micro-batch", "double-gpus", "8x-gpus"]
)
def test_the_batch_of_a_step_stays(name: str) -> None:
    variant = one(LORA, name)
    assert variant.standing.run.global_batch_size == LORA.global_batch_size
    assert not variant.breaks


def test_a_batch_that_cannot_stay_is_told() -> None:
    variant = one(LORA.replace(gradient_accumulation_steps=1, micro_batch_size=1), "double-gpus")
    assert variant.breaks == ("a step has 2 samples, not 1",)
    assert "bigger-batch" in refused(LORA.replace(gradient_accumulation_steps=1), "double-micro-batch")


def test_packing_keeps_the_samples_of_a_step() -> None:
    run = LORA.replace(seq_len=1024, gradient_accumulation_steps=16)
    variant = one(run, "packing")
    assert variant.standing.samples_per_step == pytest.approx(run.global_batch_size, rel=0.1)
    assert variant.standing.run.global_batch_size < run.global_batch_size
    assert variant.standing.outcome.wall_s < what_if(run, ["packing"]).base.outcome.wall_s


def test_steps_follow_the_samples_where_steps_are_stated() -> None:
    run = LORA.replace(dataset=None, max_steps=1000)
    variant = one(run, "bigger-batch")
    per_step = variant.standing.samples_per_step / run.global_batch_size
    assert per_step > 1
    assert variant.changes["max_steps"] == pytest.approx(1000 / per_step, abs=1)


def test_a_run_of_unknown_length_is_compared_over_assumed_samples() -> None:
    run = Run(model="llama-2-7b", method="lora", gpu="A40")
    found = what_if(run, ["8bit-optimizer"])
    assert found.assumed_samples == ASSUMED_SAMPLES
    assert found.base.outcome.on_demand_usd is not None
    assert what_if(LORA, ["8bit-optimizer"]).assumed_samples is None


def test_sharding_needs_ranks() -> None:
    assert "one data-parallel rank" in refused(LORA, "zero3")
    for name in ("fsdp", "zero3"):
        assert (
            one(EIGHT, name).standing.outcome.device_memory_bytes
            < what_if(EIGHT, [name]).base.outcome.device_memory_bytes
        )
    assert one(EIGHT, "tensor-parallel").standing.run.tensor_parallel == 2
    assert one(EIGHT, "half-gpus").standing.run.num_gpus == 4


def test_what_does_not_apply_says_why() -> None:
    assert refused(LORA, "lora") == "the run has it already"
    assert refused(LORA, "fused-scan") == "the model has no state-space layers"
    assert refused(LORA, "A40") == "the run has it already"
    assert "adapters" in refused(EIGHT, "half-rank")
    assert "bf16" in refused(LORA.replace(weights_dtype="bf16"), "V100")  # the prediction's own words
    assert "compares whole sequences" in refused(LORA.replace(phase="dpo", dataset="math_14k"), "packing")


def test_a_field_and_a_gpu_are_switches_too() -> None:
    assert one(LORA, "seq_len=256").changes["seq_len"] == 256
    assert one(LORA, "h100").changes == {"gpu": "H100-SXM5-80GB"}


def test_unknown_switches_name_their_neighbours() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'flash-attention'"):
        what_if(LORA, ["flash_atention"])
    with pytest.raises(UnknownKeyError, match="micro_batch_size"):
        what_if(LORA, ["micro_batchsize=2"])


def test_spot_sorts_by_spot_prices() -> None:
    found = what_if(LORA, ["h100"], spot=True)
    assert found.base.outcome.spot_usd is not None
    assert found.base.outcome.amount("cost", spot=True) == found.base.outcome.spot_usd


def test_divisors() -> None:
    assert divisors(12) == [1, 2, 3, 4, 6, 12]
    assert divisors(1) == [1]
