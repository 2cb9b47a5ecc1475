"""Which plans a search has, and in which form; their figures are held in `tests/properties/test_search`."""

from typing import Any

import numpy as np
import pytest

from finegauge.catalogue.offers import Offer
from finegauge.errors import FieldError, UnknownNameError, UnsupportedError
from finegauge.planning.search import search
from finegauge.planning.selection import SearchResult
from finegauge.planning.space import UNDIVIDED, distinct, nearest_rows, space_of, structures, variant
from finegauge.planning.vectors import nodes_for
from finegauge.prediction.predictor import predict
from finegauge.progress import Progress
from finegauge.run.run import Run

RUN = Run(
    model="tinyllama", method="lora", num_samples=4000, seq_len=512, gradient_accumulation_steps=8,
    framework="axolotl",
)  # fmt: skip


def offer(gpu: str = "H100-SXM5-80GB", count: int = 8, **fields: Any) -> Offer:
    """Return an offer that a test writes down."""
    known: dict[str, Any] = {
        "provider": "aws", "instance_type": "p", "gpu_printed": gpu, "vcpus": None, "ram_bytes": None,
        "region": "any", "on_demand_usd_per_h": 1.0, "spot_usd_per_h": None, "tier": "on-demand",
        "date": "2026-11-20", "source": "test", "outlier": False, "notes": "",
    }  # fmt: skip
    return Offer(**{**known, "gpu": gpu, "gpu_count": count, **fields})


def found(run: Run = RUN, **changes: Any) -> SearchResult:
    """Return the plans of a small space."""
    space = space_of(run, gpus=("L4", "H100-SXM5-80GB"), providers=("aws", "runpod"), max_gpus=16)
    return search(space._replace(**changes))


def test_columns_and_labels_are_of_one_length() -> None:
    result = found()
    number = len(result.columns["wall_s"])
    assert number > 100
    assert {len(result.columns[name]) for name in result.columns} == {number}
    for name in result.labels:
        values, codes = result.labels[name]
        assert len(codes) == number
        assert set(np.unique(codes)) <= set(range(len(values)))


def test_a_candidate_is_what_its_labels_say() -> None:
    result = found()
    for row in range(0, len(result.columns["wall_s"]), 37):
        run = result.candidate(row).run
        for name in result.labels:
            values, codes = result.labels[name]
            assert getattr(run, name) == values[codes[row]], name


def test_counts_add_up() -> None:
    result = found(Run(model="llama-2-70b", method="full", max_steps=10, gradient_accumulation_steps=4))
    assert result.num_pruned > 0
    assert result.num_candidates == result.num_evaluated + result.num_pruned
    assert len(result.columns["wall_s"]) <= result.num_evaluated


def test_a_candidate_keeps_what_the_user_stated() -> None:
    run = RUN.replace(lora_rank=64, optimizer="paged_adamw_8bit")
    planned = found(run, methods=({},), optimizers=(run.optimizer,)).candidate(0).run
    assert (planned.lora_rank, planned.optimizer) == (64, "paged_adamw_8bit")
    assert planned.origins["lora_rank"] == run.origins["lora_rank"]
    assert planned.origins["sharding"] == "plan"


def test_progress_ends_at_one() -> None:
    heard: list[Progress] = []
    search(space_of(RUN, gpus=("L4",), max_gpus=2), heard=heard.append)
    assert [one.done for one in heard] == sorted(one.done for one in heard)
    assert heard[-1].done == heard[-1].total


def test_no_offer_is_no_plan() -> None:
    result = found(offers=())
    assert result.num_candidates == len(result.columns["wall_s"]) == 0


def test_what_has_no_end_or_no_model_is_refused() -> None:
    endless = Run(model="tinyllama", method="lora")
    with pytest.raises(FieldError, match="num_samples"):
        search(space_of(endless))
    with pytest.raises(UnsupportedError, match="phase=ppo"):
        search(space_of(RUN.replace(phase="ppo")))
    with pytest.raises(UnknownNameError, match="runpod"):
        space_of(RUN, providers=("runpood",))


@pytest.mark.parametrize(
    ("gpu", "count", "asked", "nodes"),
    [
        ("H100-SXM5-80GB", 8, 1, 1), ("H100-SXM5-80GB", 8, 8, 1), ("H100-SXM5-80GB", 8, 32, 4),
        ("H100-SXM5-80GB", 8, 12, 0), ("H100-SXM5-80GB", 4, 8, 0), ("RTX 4090", 8, 16, 0),
        ("GB200-186GB", 4, 8, 2), ("GB200-186GB", 1, 2, 0), ("RTX PRO 6000 Blackwell Server", 8, 16, 2),
    ],
)  # fmt: skip
def test_whole_data_centre_nodes_are_joined(gpu: str, count: int, asked: int, nodes: int) -> None:
    assert nodes_for(offer(gpu, count), asked) == nodes


def test_the_cheapest_region_stands_for_all() -> None:
    dear, cheap = offer(on_demand_usd_per_h=9.0, spot_usd_per_h=1.0), offer(on_demand_usd_per_h=8.0)
    other = offer(provider="gcp", on_demand_usd_per_h=20.0)
    assert distinct([dear, cheap, other, offer(count=0)]) == (
        cheap,
        dear,
        other,
    )  # `dear` is cheapest on spot
    assert distinct([dear._replace(spot_usd_per_h=None), cheap]) == (cheap,)


def test_layers_are_divided_only_where_the_framework_can() -> None:
    large = Run(model="llama-2-70b", method="full", max_steps=10)
    assert len(space_of(large).divisions) > 1
    assert space_of(large.replace(framework="axolotl")).divisions == (UNDIVIDED,)
    assert space_of(RUN.replace(framework="")).divisions == (UNDIVIDED,)  # small enough for any GPU


def test_4_bit_weights_are_not_divided() -> None:
    large = Run(model="llama-2-70b", method="qlora", max_steps=10)
    assert {structure.run.tensor_parallel for structure in structures(space_of(large, keep_method=True))} == {
        1
    }


def test_no_plan_has_more_gpus_than_allowed() -> None:
    result = search(space_of(Run(model="llama-2-70b", method="full", max_steps=10), max_gpus=8))
    assert max(result.labels["num_gpus"][0]) == 8


@pytest.mark.parametrize(("wanted", "rows"), [(7.0, 7), (20.3, 20), (1.2, 1), (98.0, 98), (97.4, 96)])
def test_packed_rows_divide_well(wanted: float, rows: int) -> None:
    assert nearest_rows(wanted) == rows


def test_an_variant_variant_is_the_checked_one() -> None:
    changes: dict[str, Any] = {"num_gpus": 4, "data_parallel_replicate": 4, "data_parallel_shard": 1}
    assert variant(RUN, **changes) == RUN.replace(**changes)
    assert RUN.num_gpus == 1


@pytest.mark.parametrize("gpu", ["T4", "V100-SXM2-16GB"])
def test_gpus_without_bf16_have_plans_in_fp16_as_they_are_predicted(gpu: str) -> None:
    asked = Run(
        model="tinyllama", method="lora", num_samples=4000, seq_len=512, gradient_accumulation_steps=8
    )
    result = search(space_of(asked, gpus=(gpu,), max_gpus=2))
    number = len(result.columns["wall_s"])
    assert number > 20
    for row in range(0, number, max(1, number // 25)):
        run = result.candidate(row).run
        assert (run.gpu, "bf16" in (run.weights_dtype, run.autocast, run.adapter_dtype)) == (gpu, False)
        profile = predict(run)
        assert result.columns["step_time_s"][row] == pytest.approx(profile.step_time_s.total, rel=1e-6)
        assert result.columns["device_memory_bytes"][row] == pytest.approx(
            profile.device_memory_bytes.total, rel=1e-6
        )


def test_gpus_of_two_kinds_of_attention_are_searched_in_bf16() -> None:
    space = space_of(RUN, gpus=("T4", "L4"))
    assert space.gpu is None
    values, _ = search(space).labels["gpu"]
    assert "L4" in values


def test_an_embedder_is_planned_with_what_its_class_has() -> None:
    run = Run(model="all-mpnet-base-v2", method="full", dataset="alpaca", seq_len=512, gpu="RTX 4090")
    space = space_of(run, gpus=("RTX 4090",))
    assert space.packing == (False,)  # it tells samples apart
    assert space.checkpointing == ("none",)
    assert space_of(run.replace(model="roberta-base"), gpus=("RTX 4090",)).packing == (False, True)


def test_an_embedder_is_predicted_where_nothing_multiplies_in_bf16() -> None:
    run = Run(model="all-mpnet-base-v2", method="full", gpu="T4", weights_dtype="fp16", seq_len=512)
    assert predict(run).step_time_s.total > 0
