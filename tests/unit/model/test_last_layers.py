"""method=freeze: which layers train, what is asked of the others, and where their order is not known."""

import json
from pathlib import Path
from typing import Any

import pytest

from finegauge.errors import UnsupportedError
from finegauge.model.graph import Graph, architecture_of, build
from finegauge.model.op import Extents
from finegauge.model.op_builder import last_layers
from finegauge.run.run import Run

EXTENTS = Extents.of(2, 128)


def asked(model: str = "llama-3-8b", **fields: Any) -> Run:
    return Run(model=model, **{"method": "freeze", "seq_len": 128, **fields})


def flops(graph: Graph, *, backward: bool) -> float:
    """Return the FLOPs of one direction in all layers."""
    costs = ((g.count, op.backward if backward else op.forward) for g in graph.layers for op in g.ops)
    return sum(count * cost.flops.at(EXTENTS) for count, cost in costs)


def test_two_layers_train_unless_said_otherwise() -> None:
    graph = build(asked())
    layers = [(group.count, group.passive) for group in graph.layers]
    assert layers == [(30, True), (1, False), (1, False)]
    (layer, _), *_ = graph.model.layers
    assert graph.weights.trained_params == 2 * sum(tensor.size for tensor in layer.tensors())


def test_frozen_layers_keep_nothing_and_have_no_backward() -> None:
    frozen, *trained = build(asked(freeze_trainable_layers=1)).layers
    assert all(op.saved_bytes.at(EXTENTS) == op.gradient_bytes == 0 for op in frozen.ops)
    assert sum(op.gradient_bytes for group in trained for op in group.ops) > 0


def test_checkpointing_takes_the_gradient_through_frozen_layers() -> None:
    graph = build(asked(activation_checkpointing="full"))
    assert not any(group.passive for group in graph.layers)
    frozen, trained = graph.layers
    assert (frozen.count, trained.count) == (30, 2)
    assert sum(op.gradient_bytes for op in frozen.ops) == 0
    assert flops(graph, backward=True) < 2 * flops(graph, backward=False)


def test_all_layers_are_the_full_run_without_embedding_and_head() -> None:
    whole, ours = build(asked(method="full")), build(asked(freeze_trainable_layers=99))
    outer = sum(tensor.size for tensor in whole.model.outer_tensors())
    assert ours.weights.trained_params == whole.weights.trained_params - outer
    assert ours.weights.base_bytes == whole.weights.base_bytes


def test_what_trains_beside_the_layers_counts_once() -> None:
    plain, extra = build(asked()), build(asked(trainable_extra=("norms",)))
    norms = (30 * 2 + 1) * 4096  # of the frozen layers, and the final one
    assert extra.weights.trained_params == plain.weights.trained_params + norms
    assert extra.weights.base_bytes == plain.weights.base_bytes


def test_a_model_that_begins_with_other_layers_is_in_order(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    figures = {"model_type": "qwen3_moe", "vocab_size": 100, "hidden_size": 32, "intermediate_size": 64}
    figures |= {"num_hidden_layers": 5, "num_attention_heads": 2, "num_key_value_heads": 2}
    figures |= {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    config.write_text(json.dumps({**figures, "mlp_only_layers": [0, 1]}), "utf-8")
    model = architecture_of(str(config))
    (dense, _), (routed, _) = model.layers
    assert last_layers(model, 2) == [(routed, 2)]
    assert last_layers(model, 4) == [(dense, 1), (routed, 3)]


def test_a_file_that_has_changed_is_read_again(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    figures = {"model_type": "llama", "vocab_size": 100, "hidden_size": 32, "intermediate_size": 64}
    figures |= {"num_attention_heads": 2, "num_key_value_heads": 2}
    found = []
    for layers in (5, 12):
        config.write_text(json.dumps({**figures, "num_hidden_layers": layers}), "utf-8")
        found.append(build(asked(str(tmp_path))).model.num_layers)
    assert found == [5, 12]


def test_alternating_layers_have_no_known_last() -> None:
    with pytest.raises(UnsupportedError, match="method=freeze is not predicted for jamba"):
        build(asked("jamba-v0.1"))
