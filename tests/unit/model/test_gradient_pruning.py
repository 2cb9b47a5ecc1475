"""Where gradients end and what odd attentions keep: first layers under adapters, sinks, bounds, stacks."""

import json
from pathlib import Path
from typing import Any

import pytest

from finegauge.model.families.parts import stack
from finegauge.model.graph import Graph, build
from finegauge.model.op import Extents, Op
from finegauge.run.run import Run

HIDDEN, HEADS, HEAD_DIM, EXPERTS, TOP_K, INNER = 256, 4, 64, 8, 2, 192
EXTENTS = Extents.of(2, 128)
SIZES = {
    "hidden_size": HIDDEN, "num_attention_heads": HEADS, "num_key_value_heads": 2, "num_hidden_layers": 3,
    "head_dim": HEAD_DIM, "intermediate_size": INNER, "vocab_size": 2048, "max_position_embeddings": 1024,
    "num_local_experts": EXPERTS, "num_experts_per_tok": TOP_K,
}  # fmt: skip


def graph(folder: Path, model_type: str, run: dict[str, Any], **figures: Any) -> Graph:
    path = folder / f"{len(list(folder.iterdir()))}.json"  # graphs are remembered by path
    path.write_text(json.dumps({"model_type": model_type, **SIZES, **figures}), "utf-8")
    return build(Run(model=str(path), micro_batch_size=2, seq_len=128, **{"method": "full", **run}))


def op(ops: tuple[Op, ...], name: str) -> Op:
    return next(op for op in ops if op.path[-1] == name)


def saved(op: Op) -> float:
    return op.saved_bytes.at(EXTENTS)


EXPERTS_ONLY = {
    "method": "lora", "lora_rank": 8, "lora_targets": ("gate_up_proj", "down_proj"), "attention": "flash",
    "adapter_dtype": "bf16",
}  # fmt: skip


def test_the_first_folded_experts_need_the_gradient_of_their_weights_alone(tmp_path: Path) -> None:
    first, rest = graph(tmp_path, "mixtral", EXPERTS_ONLY).layers
    up, later = op(first.ops, "gate_up_proj"), op(rest.ops, "gate_up_proj")
    assert up.backward.flops == up.forward.flops
    assert later.backward.flops == later.forward.flops.times(2)
    copy = EXPERTS * HIDDEN * 2 * INNER * 2  # the sum of weight and adapter, for the gradient of the rows
    assert saved(later) - saved(up) == copy


def test_the_first_frozen_router_makes_the_sum_keep_no_rows(tmp_path: Path) -> None:
    first, rest = graph(tmp_path, "mixtral", EXPERTS_ONLY).layers
    rows = EXTENTS.tokens * TOP_K * HIDDEN * 2
    assert saved(op(rest.ops, "weighted sum")) - saved(op(first.ops, "weighted sum")) == rows


def test_layers_below_the_first_adapter_keep_nothing(tmp_path: Path) -> None:
    run = EXPERTS_ONLY | {"lora_targets": ("down_proj",)}
    first = graph(tmp_path, "mixtral", run).layers[0]
    assert sum(saved(op) for op in first.ops if op.path[0] == "attention") == 0
    assert saved(op(first.ops, "activation")) == 0


@pytest.mark.parametrize(("model_type", "beside"), [("gpt_oss", "column"), ("granite_swa", "scaled")])
def test_what_sinks_keep_in_eager_attention(tmp_path: Path, model_type: str, beside: str) -> None:
    kernel = op(graph(tmp_path, model_type, {"attention": "eager"}).layers[0].ops, "attention kernel")
    q, pairs, queries = HEADS * HEAD_DIM * 2 * EXTENTS.tokens, HEADS * EXTENTS.pairs, HEADS * EXTENTS.tokens
    kept = {
        "column": 3 * q
        + 2 * pairs
        + (2 + 8) * queries,  # the softmax, its column, where the largest score is
        "scaled": 4 * q + (4 + 2 + 2) * pairs + (2 + 4 + 2) * queries,
    }
    assert saved(kernel) == kept[beside]


def test_bounded_queries_keys_and_values_are_kept_as_they_came(tmp_path: Path) -> None:
    bounded = graph(tmp_path, "olmo", {"attention": "flash"}, clip_qkv=8.0).layers[0].ops
    assert saved(op(bounded, "clip")) == 2 * EXTENTS.tokens * (HEADS + 2 + 2) * HEAD_DIM
    free = graph(tmp_path, "olmo", {"attention": "flash"}, clip_qkv=None).layers[0].ops
    assert "clip" not in {op.path[-1] for op in free}


def test_a_stack_is_in_order_until_every_kind_has_come(tmp_path: Path) -> None:
    layer = graph(tmp_path, "llama", {}).model.layers[0][0]
    groups = stack("mm-m*m-", lambda kind: layer._replace(kind=kind))
    assert [(layer.kind, count) for layer, count in groups] == [
        *(("m", 2), ("-", 1), ("m", 1)), *(("*", 1), ("m", 1), ("-", 1)),
    ]  # fmt: skip
