"""Phases that are searched one by one: the same figures as predict and quote, the same samples per step."""

import numpy as np

from finegauge.planning.plan import plan
from finegauge.planning.quote import quote
from finegauge.planning.search import search_one_by_one
from finegauge.planning.selection import Wanted
from finegauge.planning.space import space_of
from finegauge.prediction.predictor import predict
from finegauge.progress import Progress
from finegauge.run.run import Run

DPO = Run(
    model="tinyllama", method="lora", phase="dpo", num_samples=500, seq_len=512, gradient_accumulation_steps=4
)  # fmt: skip


def test_every_plan_is_what_predict_and_quote_say() -> None:
    heard: list[Progress] = []
    found = search_one_by_one(space_of(DPO, gpus=("L4", "H100"), keep_method=True), heard.append)
    assert found.num_evaluated == len(found.columns["wall_s"]) > 10
    assert heard[-1].done == heard[-1].total
    assert heard == sorted(heard, key=lambda one: one.done)
    for index in (0, found.num_evaluated // 2, found.num_evaluated - 1):
        one = found.candidate(index)
        bill = quote(one.run)
        assert one.outcome.wall_s == bill.wall_s
        assert one.outcome.device_memory_bytes == predict(one.run).device_memory_bytes.total
        assert (
            bill.cheapest_on_demand is None
            or one.outcome.on_demand_usd == bill.cheapest_on_demand.on_demand_usd
        )
        assert one.run.global_batch_size == DPO.global_batch_size
    assert np.isclose(found.columns["samples_per_step"], DPO.global_batch_size).all()


def test_a_preference_run_has_a_plan() -> None:
    found = plan(DPO, Wanted(gpus=("L4", "H100"), max_gpus=2))
    assert found.winner is not None
    assert found.winner.run.phase == "dpo"
    assert found.winner.run.num_gpus <= 2
    assert {one.value for one in found.alternatives["method"]} | {found.winner.run.method} == {
        "full",
        "lora",
        "qlora",
    }


def test_nothing_offered_is_nothing_found() -> None:
    found = plan(DPO, Wanted(gpus=("L40S",), providers=("gcp",)))
    assert found.winner is None
    assert found.num_candidates == 0


def test_a_model_too_large_for_one_gpu_is_sharded_as_little_as_it_must() -> None:
    ppo = Run(
        model="llama-2-7b", method="full", phase="ppo", num_samples=500, seq_len=512, max_new_tokens=128,
        gradient_accumulation_steps=8,
    )  # fmt: skip
    found = search_one_by_one(space_of(ppo, gpus=("A100-SXM4-80GB",), keep_method=True))
    tried: dict[int, list[str]] = {}
    for one in map(found.candidate, range(found.num_evaluated)):
        tried.setdefault(one.run.num_gpus, []).append(one.run.sharding)
    assert set(tried[1]) == {"none"}
    *others, last = dict.fromkeys(tried[8])
    assert others == ["none", "zero2"][: len(others)] != []
    eight = [one for one in map(found.candidate, range(found.num_evaluated)) if one.run.num_gpus == 8]
    assert {one.run.sharding for one in eight if one.outcome.out_of_memory_fraction <= 0.05} == {last}
