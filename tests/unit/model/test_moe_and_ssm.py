"""Experts, state spaces and linear attention, held against transformers' own classes as traced."""

import json
from pathlib import Path
from typing import Any

import numpy
import pytest

from finegauge.errors import FieldError
from finegauge.model.graph import Graph, build
from finegauge.model.moe import most_loaded
from finegauge.model.op import Extents
from finegauge.run.run import Run
from tests.unit.model.traced_mixers import MODELS, PER_LAYER, SIZES, TRACED, Traced

EXTENTS = Extents.of(2, 128)
NO_FLASH = {"mamba": "eager", "falcon_mamba": "eager", "mamba2": "eager", "llama4": "sdpa"}
# the masks of chunks among each other, one per layer and not per sequence, are left out
TOLERANCE_FRACTION = 1e-5


def graph_of(model: str, folder: Path, layers: int = 3, **fields: Any) -> Graph:
    config = {**SIZES, **MODELS[model], "num_hidden_layers": layers}
    config |= {key: [config[key]] * layers for key in PER_LAYER if key in config}
    path = folder / f"config-{layers}.json"  # graphs are remembered by path
    path.write_text(json.dumps(config))
    method = {"method": "lora", "lora_rank": 8} if "lora_targets" in fields else {"method": "full"}
    attention = NO_FLASH.get(model, "flash")
    return build(Run(model=str(path), attention=attention, **{**method, **fields}))


@pytest.mark.parametrize("row", TRACED, ids=lambda row: row.name)
def test_a_layer_keeps_and_computes_what_transformers_does(row: Traced, tmp_path: Path) -> None:
    ops = graph_of(row.model, tmp_path, **row.fields).layers[-1].ops
    saved = sum(op.saved_bytes.at(EXTENTS) for op in ops)
    assert saved == pytest.approx(row.saved_bytes, rel=TOLERANCE_FRACTION)
    assert sum(op.forward.flops.at(EXTENTS) for op in ops) == pytest.approx(row.forward_flops, rel=1e-9)
    assert sum(op.backward.flops.at(EXTENTS) for op in ops) == pytest.approx(row.backward_flops, rel=1e-9)


@pytest.mark.parametrize("row", TRACED, ids=lambda row: row.name)
def test_a_layer_trains_what_transformers_and_peft_train(row: Traced, tmp_path: Path) -> None:
    three, two = (graph_of(row.model, tmp_path, layers, **row.fields).weights for layers in (3, 2))
    trained = three.trained_params + three.adapter_params - two.trained_params - two.adapter_params
    assert trained == row.trained


def test_llama4_runs_every_expert_over_every_token(tmp_path: Path) -> None:
    ops = graph_of("llama4", tmp_path).layers[-1].ops
    gate_up = next(op for op in ops if op.path == ("moe", "gate_up_proj"))
    assert gate_up.forward.flops.token == 2.0 * 16 * 256 * 2 * 192


def test_looped_experts_are_alive_one_at_a_time(tmp_path: Path) -> None:
    def alive(implementation: str) -> float:
        ops = graph_of("mixtral", tmp_path, experts_implementation=implementation).layers[-1].ops
        return next(op for op in ops if op.path == ("moe", "down_proj")).live_backward_bytes.token

    assert alive("eager") == alive("grouped_mm") / 16


@pytest.mark.parametrize(
    ("model", "fields", "words"),
    [
        ("mixtral", {"lora_targets": ("w1",)}, "w1 without w3"),
        ("mixtral", {"lora_targets": ("all-linear",), "lora_dropout": 0.1}, "lora_dropout=0"),
        ("mamba2", {"lora_targets": ("out_proj",)}, "PEFT refuses LoRA on out_proj"),
        ("mamba2", {"lora_targets": ("w1",)}, "names no projection"),
    ],
)
def test_what_peft_refuses_is_refused(model: str, fields: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(FieldError, match=words):
        graph_of(model, tmp_path, **fields)


@pytest.mark.parametrize("framework", ["Axolotl", "LLaMA-Factory"])
def test_who_lists_the_linears_leaves_experts_without_adapters(framework: str, tmp_path: Path) -> None:
    fields: dict[str, Any] = {"lora_dropout": 0.1, "framework": framework}
    asked = graph_of("mixtral", tmp_path, lora_targets=("all-linear",), **fields).weights
    named = ("q_proj", "k_proj", "v_proj", "o_proj")
    assert (
        asked.adapter_params
        == graph_of("mixtral", tmp_path, lora_targets=named, **fields).weights.adapter_params
    )


def test_before_transformers_5_experts_are_modules(tmp_path: Path) -> None:
    weights = graph_of(
        "qwen2_moe", tmp_path, 2, lora_targets=("gate_proj",), transformers_version="4.50"
    ).weights
    experts, shared = 16 * 8 * (256 + 96), 8 * (256 + 160)
    assert weights.adapter_params == 2 * (experts + shared)


@pytest.mark.parametrize("skew", [1.01, 1.2])
@pytest.mark.parametrize(("experts", "chosen"), [(128, 8), (256, 8), (64, 6)])
def test_the_most_loaded_rank_has_what_drawn_loads_give_it(experts: int, chosen: int, skew: float) -> None:
    generator, power = numpy.random.default_rng(7), 1.0 - skew
    for tokens, ranks in ((256, 4), (1024, 8), (1024, 32), (16384, 8), (16384, 64), (16384, 1)):
        highest = (0.8 * tokens) ** power
        share = (1.0 + (highest - 1.0) * generator.random((400, experts))) ** (1.0 / power)
        rows = numpy.round(share / share.sum(1, keepdims=True) * tokens * chosen).clip(max=tokens)
        of_ranks = rows.reshape(400, ranks, -1)
        fullest = of_ranks[numpy.arange(400), of_ranks.sum(2).argmax(1)]
        found = most_loaded(float(tokens), float(chosen), float(experts), float(ranks), skew)
        assert found[0] == pytest.approx(fullest.sum(1).mean(), rel=0.18)
        assert found[1] == pytest.approx((fullest > 0).sum(1).mean(), rel=0.1)
    assert most_loaded(1024.0, 8.0, 64.0, 8.0, 0.0) == (1024.0, 8.0)
