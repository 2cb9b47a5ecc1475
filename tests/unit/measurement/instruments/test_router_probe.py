"""The router probe: counts, imbalance, both variances, what capacity costs."""

from typing import Any

import pytest
import torch

from finegauge.measurement.instruments.router_probe import RouterProbe, capacity_costs, probe, summary
from tests.unit.measurement.instruments.tiny import OneBatch


@pytest.mark.parametrize("family", ["mixtral", "jamba", "qwen3_moe"])
def test_every_pair_of_token_and_expert_is_counted(family: str) -> None:
    phase = OneBatch(family)
    with RouterProbe(phase.subject.model) as watching:
        phase.subject.model(input_ids=phase.ids)
    assert watching.counts
    for path, tokens in watching.counts.items():
        assert path.endswith("experts")
        assert sum(tokens) == 2 * 32
        assert len(tokens) == 4


def test_counts_are_those_of_the_router() -> None:
    phase = OneBatch("mixtral")
    chosen: list[Any] = []
    gate = phase.subject.model.model.layers[0].mlp.gate
    gate.register_forward_hook(lambda module, args, out: chosen.append(out[2]))
    found = probe(phase)
    first = next(iter(found["layers"].values()))
    assert first["tokens_per_expert"] == torch.bincount(chosen[0].reshape(-1), minlength=4).tolist()


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputed_passes_are_not_counted_again(reentrant: bool) -> None:
    phase = OneBatch("mixtral", checkpointing=reentrant)
    found = probe(phase, steps=2)
    assert all(sum(layer["tokens_per_expert"]) == 2 * 2 * 32 for layer in found["layers"].values())


def test_a_dense_model_has_no_routers() -> None:
    assert probe(OneBatch("llama")) == {}


def test_imbalance_and_both_variances() -> None:
    found = summary({"a": [6, 2, 0, 0], "b": [2, 2, 2, 2]})
    uneven = found["layers"]["a"]
    assert uneven["imbalance_ratio"] == 3.0
    assert uneven["variance_population"] == 6.0
    assert uneven["variance_sample"] == 8.0
    assert uneven["variance_population_percent2"] == pytest.approx(6.0 * 12.5**2)
    assert uneven["idle_experts"] == 2.0
    assert found["mean"]["imbalance_ratio"] == 2.0
    assert found["together"]["tokens_per_expert"] == [8, 4, 2, 2]


def test_capacity_drops_what_is_over_it_and_pads_what_is_under_it() -> None:
    costs = capacity_costs({"a": [[6, 2, 0, 0]]})
    by_factor = {row["capacity_factor"]: row for row in costs["factors"]}
    assert by_factor[1.0] == {
        "capacity_factor": 1.0,
        "dropped_fraction": 0.5,
        "padded_rows_ratio": 1.0,
    }  # capacity 2
    assert by_factor[1.5]["dropped_fraction"] == 3 / 8  # capacity 3
    assert by_factor[2.0]["padded_rows_ratio"] == 2.0
    assert costs["padded_to_fullest_rows_ratio"] == 3.0


def test_capacity_holds_pass_by_pass() -> None:
    together = capacity_costs({"a": [[4, 0], [0, 4]]})
    assert together["factors"][0]["dropped_fraction"] == 0.5
    assert capacity_costs({}) == {}


def test_one_expert_has_no_sample_variance() -> None:
    assert summary({"a": [5]})["layers"]["a"]["variance_sample"] == 0.0
