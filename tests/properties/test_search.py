"""A plan that the search returns has the very figures that `predict` and `quote` give its run.

Runs, structures and layouts are drawn at random; the spaces are cut to a few GPUs and providers, so that
a case takes a fraction of a second.
"""

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finegauge.errors import FineGaugeError
from finegauge.planning.quote import quote
from finegauge.planning.search import search
from finegauge.planning.selection import SearchResult
from finegauge.planning.space import UNDIVIDED, Space, space_of
from finegauge.planning.whatif import Standing, samples_per_step
from finegauge.prediction.predictor import predict
from finegauge.prediction.uncertainty import probability_out_of_memory
from finegauge.run.run import Run
from tests.unit.data import made

GPUS = ("L4", "A100-SXM4-80GB", "H100-SXM5-80GB", "RTX 4090", "MI300X")
PROVIDERS = ("aws", "azure", "gcp", "runpod")
MODELS = (
    "tinyllama", "meta-llama/Meta-Llama-3-8B", "mistralai/Mixtral-8x7B-v0.1", "google/gemma-2-9b",
    "state-spaces/mamba-2.8b-hf", "Qwen/Qwen3-30B-A3B", "openai-community/gpt2", "gpt_bigcode-santacoder",
)  # fmt: skip
DIVISIONS: tuple[dict[str, Any], ...] = (
    {}, {"tensor_parallel": 2}, {"tensor_parallel": 4, "sequence_parallel": True}, {"pipeline_parallel": 2},
    {"pipeline_parallel": 2, "virtual_pipeline_stages": 2}, {"context_parallel": 2},
    {"expert_parallel": 2}, {"tensor_parallel": 2, "pipeline_parallel": 2},
)  # fmt: skip
PLANS_PER_CASE = 8

runs = st.fixed_dictionaries(
    {
        "model": st.sampled_from(MODELS),
        "method": st.sampled_from(("full", "lora", "qlora")),
        "phase": st.sampled_from(("sft", "pretrain", "reward")),
        "data": st.sampled_from(({"num_samples": 5000}, {"max_steps": 77}, {"dataset": "commonsense_15k"})),
        "seq_len": st.sampled_from((256, 1024, 4096)),
        "micro_batch_size": st.sampled_from((1, 2, 6)),
        "gradient_accumulation_steps": st.sampled_from((1, 4, 8)),
        "checkpointing_reentrant": st.booleans(),
        "attention": st.sampled_from(("sdpa", "flash", "eager")),
        "loss": st.sampled_from(("full_logits", "chunked", "fused")),
        "optimizer": st.sampled_from(("adamw", "paged_adamw_8bit", "adafactor")),
        "optimizer_implementation": st.sampled_from(("fused", "foreach", "loop", "in_backward")),
        "precision": st.sampled_from(({}, {"weights_dtype": "fp32", "autocast": "bf16"})),
        "eval_samples": st.sampled_from((0, 500)),
        "eval_steps": st.sampled_from((None, 7.0, 0.25)),
        "compile": st.booleans(),
        "group_by_length": st.booleans(),
    }
)
spaces = st.fixed_dictionaries(
    {
        "checkpointing": st.sampled_from(("none", "full", "selective", "offload")),
        "division": st.sampled_from(DIVISIONS),
        "packing": st.booleans(),
    }
)


def run_of(drawn: dict[str, Any]) -> Run | None:
    """Return the run that was drawn; None where its fields contradict each other."""
    fields = {**drawn, **drawn["data"], **({} if drawn["method"] == "qlora" else drawn["precision"])}
    del fields["data"], fields["precision"]
    try:
        return Run(**fields)
    except FineGaugeError:
        return None


def space_around(run: Run, drawn: dict[str, Any]) -> Space:
    """Return a small space around `run`."""
    space = space_of(run, gpus=GPUS, providers=PROVIDERS, max_gpus=16)
    return space._replace(
        methods=({},),
        checkpointing=(drawn["checkpointing"],),
        divisions=({**UNDIVIDED, **drawn["division"]},),
        packing=(drawn["packing"] and run.dataset is not None and run.phase != "reward",),
    )


def figures(plan: Standing) -> dict[str, float | None]:
    """Return what the search says of a plan."""
    took = {name: value for name, value in plan.outcome._asdict().items() if name != "verdict"}
    return took | {"samples_per_step": plan.samples_per_step}


def figures_of_its_run(plan: Standing) -> dict[str, float | None]:
    """Return what `predict` and `quote` say of the plan's run on its offer."""
    assert plan.offer is not None
    profile = predict(plan.run)
    bill = quote(plan.run, profile, prices=[plan.offer])
    (priced,) = bill.offers
    return {
        "step_time_s": profile.step_time_s.total,
        "device_memory_bytes": profile.device_memory_bytes.total,
        "capacity_bytes": profile.capacity_bytes,
        "out_of_memory_fraction": probability_out_of_memory(profile),
        "wall_s": bill.wall_s,
        "on_demand_usd": priced.on_demand_usd,
        "spot_usd": priced.spot_usd,
        "wall_energy_j": bill.wall_energy_j,
        "emissions_kg": bill.emissions_kg,
        "samples_per_step": samples_per_step(plan.run),
    }


def hold_equal(result: SearchResult, random: Random) -> None:
    """Ask `predict` and `quote` about some plans of a result."""
    number = len(result.columns["wall_s"])
    for row in random.sample(range(number), min(number, PLANS_PER_CASE)):
        plan = result.candidate(row)
        for name, expected in figures_of_its_run(plan).items():
            found = figures(plan)[name]
            assert (found is None) == (expected is None), (name, plan.run)
            if expected is not None:
                assert found == pytest.approx(expected, rel=1e-9, abs=1e-12), (name, plan.run)


@settings(max_examples=60, deadline=None)
@given(drawn=runs, around=spaces, seed=st.integers(0, 1000))
def test_a_plan_is_what_predict_and_quote_say_of_its_run(
    drawn: dict[str, Any], around: dict[str, Any], seed: int
) -> None:
    run = run_of(drawn)
    if run is None:
        return
    try:
        result = search(space_around(run, around))
    except FineGaugeError:  # no structure of it is a run: a division that its heads or experts refuse
        return
    hold_equal(result, Random(seed))


def test_gradients_applied_in_backward_are_held_alike() -> None:
    """The plan beside one that reduces in units: the moment one layer before the last counts in both."""
    run = Run(
        model="gpt_bigcode-santacoder", method="full", phase="reward", optimizer="paged_adamw_8bit",
        optimizer_implementation="in_backward", loss="fused", num_samples=5000, seq_len=256,
        micro_batch_size=2,
    )  # fmt: skip
    around = {"checkpointing": "none", "division": {"tensor_parallel": 2}, "packing": False}
    result = search(space_around(run, around))
    alone = [row for row in range(len(result.columns["wall_s"])) if result.candidate(row).run.num_gpus == 2]
    assert len(alone) > 20
    for row in alone:
        plan = result.candidate(row)
        assert plan.outcome.device_memory_bytes == pytest.approx(
            predict(plan.run).device_memory_bytes.total, rel=1e-9
        )


def test_gradients_kept_as_large_as_whole_ones_are_reduced_in_units_too() -> None:
    """Half of a gradient in fp32 is as large as all of it in bf16: two ranks beside four."""
    run = Run(
        model="tinyllama", method="lora", weights_dtype="fp32", autocast="bf16", loss="fused",
        num_samples=5000, seq_len=256, gradient_accumulation_steps=4,
    )  # fmt: skip
    result = search(space_around(run, {"checkpointing": "full", "division": {}, "packing": False}))
    sharded = [
        row for row in range(len(result.columns["wall_s"])) if "fsdp" in result.candidate(row).run.sharding
    ]
    assert {result.candidate(row).run.num_gpus for row in sharded} >= {2, 4}
    for row in sharded:
        plan = result.candidate(row)
        assert plan.outcome.device_memory_bytes == pytest.approx(
            predict(plan.run).device_memory_bytes.total, rel=1e-9
        )


@pytest.mark.parametrize(
    "layout",
    [
        {"sharding": "zero1", "cpu_offload": "optimizer", "offload_pinned": True},
        {"sharding": "zero3", "cpu_offload": "nvme"},
        {"sharding": "fsdp", "cpu_offload": "params", "framework": "torchtune", "host_threads": 4},
    ],
    ids=lambda layout: f"{layout['sharding']}-{layout['cpu_offload']}",
)
def test_a_plan_that_offloads_is_what_predict_says_of_its_run(layout: dict[str, Any]) -> None:
    run = Run(
        model="llama-2-7b", method="full", num_samples=4000, seq_len=1024, gradient_accumulation_steps=8,
        num_gpus=8, **layout,
    )  # fmt: skip
    space = space_of(run, gpus=("L4", "H100-SXM5-80GB"), providers=("aws", "runpod"), max_gpus=16)
    asked = {name: layout[name] for name in ("sharding", "cpu_offload")}
    result = search(
        space._replace(layouts=tuple(one for one in space.layouts if asked.items() <= one.items()))
    )
    assert len(result.columns["wall_s"]) > 10
    hold_equal(result, Random(0))


def test_experts_without_copies_beside_layouts_with_some() -> None:
    run = Run(
        model="Qwen/Qwen3-30B-A3B", method="full", num_samples=4000, gradient_accumulation_steps=8, num_gpus=8
    )
    space = space_of(run, gpus=("MI300X",), providers=("azure",), max_gpus=8)
    result = search(
        space._replace(
            methods=({},), divisions=({**UNDIVIDED, "expert_parallel": 2},), layouts=space.layouts[:1]
        )
    )
    assert {result.candidate(row).run.num_gpus for row in range(len(result.columns["wall_s"]))} >= {2, 4}
    hold_equal(result, Random(0))


@settings(max_examples=20, deadline=None)
@given(drawn=runs, around=spaces)
def test_the_samples_of_a_step_stay(drawn: dict[str, Any], around: dict[str, Any]) -> None:
    run = run_of(drawn)
    if run is None:
        return
    space = space_around(run, {**around, "packing": False, "division": {}})
    try:
        result = search(space)
    except FineGaugeError:
        return
    for row in range(0, len(result.columns["wall_s"]), 97):
        planned = result.candidate(row).run
        assert planned.global_batch_size == run.global_batch_size
        assert planned.num_gpus <= 16


@pytest.mark.parametrize("fields", [{}, {"packing": True}, {"group_by_length": True, "framework": "trl"}])
def test_plans_over_a_file_of_texts_hold_its_very_batches(fields: dict[str, Any], tmp_path: Path) -> None:
    random, folder = Random(3), made.tokenizer(tmp_path)
    file = tmp_path / "texts.jsonl"
    texts = (" ".join(["fox", "dog"] * random.randint(1, 150)) for _ in range(700))
    file.write_text("\n".join(json.dumps({"text": text}) for text in texts), "utf-8")
    run = Run(
        model="tinyllama", method="lora", dataset=str(file), tokenizer=folder, seq_len=256,
        micro_batch_size=2, gradient_accumulation_steps=8, **fields,
    )  # fmt: skip
    space = space_of(run, gpus=("L4", "H100-SXM5-80GB"), providers=("aws",), max_gpus=4, keep_method=True)
    hold_equal(search(space._replace(checkpointing=("full",))), random)


@pytest.mark.parametrize(
    "fields",
    [
        {"method": "lora", "adapter": "dora"},
        {"method": "lora", "adapter": "adalora", "weights_dtype": "fp32", "autocast": "bf16"},
        {"method": "qlora", "adapter": "oft"},
        {"method": "lora", "adapter": "boft"},
        {"method": "lora", "adapter": "p_tuning"},
        {"method": "lora", "adapter": "prefix_tuning"},
        {"method": "full", "optimizer": "muon"},
        {"method": "full", "optimizer": "lomo"},
        {"method": "full", "optimizer": "galore_adamw_8bit"},
    ],
    ids=lambda fields: fields.get("adapter", fields.get("optimizer")),
)
def test_plans_with_other_adapters_and_optimizers_are_held_alike(fields: dict[str, Any]) -> None:
    run = Run(model="tinyllama", num_samples=5000, seq_len=256, micro_batch_size=2, **fields)
    around = {"checkpointing": "none", "division": {}, "packing": False}
    hold_equal(search(space_around(run, around)), Random(0))
