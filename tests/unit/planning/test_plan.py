"""A whole plan: what surrounds the winner, what its changes ask for, and what a framework can say of it."""

from pathlib import Path
from typing import Any

import pytest

from finegauge.errors import FieldError, InputError
from finegauge.planning.plan import Plan, as_said, changes, exported_run, plan, within
from finegauge.planning.selection import Wanted
from finegauge.planning.space import families, space_of, structures
from finegauge.planning.whatif import ASSUMED_SAMPLES, requirements, switch_of
from finegauge.progress import Heard
from finegauge.run.run import Run
from tests.unit.planning.brute_force import brute_force, runs_of
from tests.unit.prediction.profiles import written

RUN = Run(model="tinyllama", method="lora", gpu="L4", gradient_accumulation_steps=8, seq_len=1024)
CHOICES: dict[str, Any] = {
    "gpu": ("L4", "H100-SXM5-80GB"),
    "num_gpus": (1, 2),
    "micro_batch_size": (1, 4, 8),
    "activation_checkpointing": ("none", "full"),
}


def searched(run: Run, wanted: Wanted, heard: Heard | None) -> Any:
    """Return what brute force finds in a small space."""
    return brute_force(runs_of(run, CHOICES))


def planned(**wanted: Any) -> Plan:
    """Return the plan of the small space."""
    return plan(RUN, Wanted(**wanted), searched=searched)


def test_a_plan_is_the_best_and_knows_what_surrounds_it() -> None:
    found = planned()
    assert found.winner is not None
    assert found.profile is not None
    assert found.quote is not None
    assert found.assumed_samples == ASSUMED_SAMPLES
    assert found.winner.outcome.on_demand_usd == found.quote.cheapest_on_demand.on_demand_usd  # type: ignore[union-attr]
    assert found.winner.outcome.wall_s == found.quote.wall_s
    assert found.base is not None
    assert (found.winner.outcome.on_demand_usd or 0.0) < (found.base.outcome.on_demand_usd or 0.0)
    assert found.winner in found.front
    assert {one.value for one in found.alternatives["gpu"]} == set(CHOICES["gpu"]) - {found.winner.run.gpu}
    assert found.miss is None


def test_objectives_differ() -> None:
    cheapest, fastest = planned().winner, planned(minimise="time").winner
    assert cheapest is not None
    assert fastest is not None
    assert fastest.outcome.wall_s < cheapest.outcome.wall_s
    assert (fastest.outcome.on_demand_usd or 0.0) > (cheapest.outcome.on_demand_usd or 0.0)


def test_no_plan_says_what_comes_closest() -> None:
    found = planned(within_s=60.0)
    assert found.winner is None
    assert found.miss is not None
    assert found.miss.limit == "time"
    assert found.miss.candidate is not None
    assert found.front  # of what fits, beyond the limits
    with pytest.raises(InputError, match="no plan"):
        exported_run(found)


def test_what_was_assumed_is_not_exported() -> None:
    found = planned()
    assert found.run.num_samples == ASSUMED_SAMPLES
    assert exported_run(found).num_samples is None


def test_changes_are_of_the_recipe() -> None:
    other = RUN.replace(gpu="H100", num_gpus=8, sharding="zero3", optimizer="adamw_8bit", provider="aws")
    assert changes(RUN, other) == {"optimizer": "adamw_8bit", "sharding": "zero3"}
    assert changes(RUN, RUN) == {}


def test_changes_ask_for_something_in_return() -> None:
    eight = RUN.replace(num_gpus=8, sharding="zero3", optimizer="adamw_8bit", tensor_parallel=2)
    said = " ".join(requirements(RUN, eight))
    assert "8 bits" in said
    assert "DeepSpeed" in said
    assert "divides layers" in said
    assert not requirements(eight, eight)
    assert "adapters" in " ".join(requirements(RUN.replace(method="full"), RUN.replace(method="qlora")))
    assert not requirements(RUN.replace(method="qlora"), RUN)


def test_a_run_is_planned_as_its_framework_runs_it() -> None:
    said = as_said(RUN.replace(optimizer="adamw"), "nemo")
    assert said.run.framework == "NeMo Automodel"
    assert said.run.checkpointing_reentrant is False
    assert any("checkpointing_reentrant" in note for note in said.notes)
    assert said.run.gpu == RUN.gpu
    assert said.run.global_batch_size == RUN.global_batch_size


def test_only_what_the_framework_can_say_is_searched() -> None:
    space = space_of(RUN.replace(num_samples=100), gpus=("A40",))
    nemo = within(space, "nemo")
    assert {one["sharding"] for one in nemo.layouts} & {"zero2", "zero3"} == set()
    assert {one["sharding"] for one in within(space, "llamafactory").layouts} >= {"none", "zero3", "fsdp"}
    unsloth = within(space, "unsloth")
    assert {one["sharding"] for one in unsloth.layouts} >= {"none"}
    assert unsloth.data_parallel == (1,)


def test_a_framework_that_always_shards_has_one_gpu_too() -> None:
    run = RUN.replace(model="llama-2-7b", num_samples=100)
    space = within(space_of(run, gpus=("A40",)), "torchtune")
    whole = {"sharding": "none", "cpu_offload": "none"}
    assert whole in space.layouts
    assert whole in space.alone
    degrees = {
        layout.run.data_parallel
        for structure in structures(space)
        for family in families(space, structure, {})
        for layout in family
        if layout.fields["sharding"] == "none"
    }
    assert degrees == {1}


def test_every_method_is_planned_as_its_framework_runs_it() -> None:
    said = as_said(RUN.replace(num_samples=100), "trl").run
    methods = {one.get("method", said.method): one for one in within(space_of(said), "trl").methods}
    assert methods["qlora"]["adapter_dtype"] == "bf16"
    assert said.adapter_dtype == "fp32"


def test_adapters_are_computed_as_the_run_computes() -> None:
    methods = space_of(RUN.replace(autocast="bf16", num_samples=100), gpus=("A40",)).methods
    (qlora,) = (one for one in methods if one.get("method") == "qlora")
    assert RUN.replace(autocast="bf16", **qlora).autocast == "bf16"


def test_a_packed_plan_packs_as_its_framework_does() -> None:
    lengths = RUN.replace(dataset="math_14k")
    said = as_said(lengths, "trl")
    assert said.run.padding == "longest"  # of what is not packed
    space = within(space_of(said.run, gpus=("L4",)), "trl")
    assert (space.packing, space.packed) == ((False, True), {"padding": "free"})
    packed = {one.run.padding for one in structures(space) if one.run.packing}
    assert packed == {"free"}
    assert within(space_of(lengths, gpus=("L4",)), "llamafactory").packed == {}


def test_comparisons_have_a_plan_where_samples_could_be_packed() -> None:
    found = plan(RUN.replace(phase="dpo", dataset="math_14k"), Wanted(gpus=("L4",), max_gpus=1))
    assert found.winner is not None
    assert found.winner.run.packing is False


def test_a_machine_of_ones_own_is_not_on_offer(tmp_path: Path) -> None:
    with pytest.raises(FieldError, match=r"no provider rents out.*whatif RUN --gpu"):
        space_of(RUN.replace(num_samples=100), gpus=(written(tmp_path),))
    own = tmp_path / "mine.yaml"
    own.write_text("name: mine\nmemory_bytes: 24e9\nmemory_bytes_per_s: 1e12\nflops_per_s: {bf16: 1e14}\n")
    with pytest.raises(FieldError, match=r"no provider rents out.*whatif RUN --gpu"):
        space_of(RUN.replace(num_samples=100), gpus=(str(own),))
    assert switch_of(str(own)).change(RUN) == {"gpu": str(own)}


def test_gpus_with_and_without_bf16_are_planned_together() -> None:
    run = Run(model="qwen3-0.6b", method="lora", num_samples=2000, seq_len=512)
    both = plan(run, Wanted(gpus=("t4", "l4"), max_gpus=2))
    alone = [plan(run, Wanted(gpus=(name,), max_gpus=2)) for name in ("t4", "l4")]
    assert both.num_candidates == sum(one.num_candidates for one in alone)
    named = {(one.run.gpu, one.run.weights_dtype) for one in both.front if one.run.method == "lora"}
    assert {("T4", "fp16"), ("L4", "bf16")} >= named
    winners = [
        one.winner.outcome.on_demand_usd for one in alone if one.winner and one.winner.outcome.on_demand_usd
    ]
    assert both.winner is not None
    assert both.winner.outcome.on_demand_usd == min(winners)
    methods = [one.value for one in both.alternatives["gpu"]]
    assert len(methods) == len(set(methods))
    assert "T4" in methods or both.winner.run.gpu == "T4"
