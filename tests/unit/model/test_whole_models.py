"""Whole models against their traces: where gradients end, what layers share, what runs again."""

import json
from pathlib import Path

import pytest

from finegauge.model.graph import Graph, build
from finegauge.model.op import Extents
from finegauge.prediction.recomputation import rerun, split
from finegauge.run.run import Run
from tests.unit.model.traced_hybrids import HYBRIDS, TRACED_HYBRIDS
from tests.unit.model.traced_models import CONFIGS, SIZES, TRACED_MODELS, TracedModel

# Not counted: indices of learned positions, and that GPT-J's tables of positions are narrower than its heads.
TOLERANCE_FRACTION = 1e-3
LOOSER = {"gptj": 4e-3}


def run_of(row: TracedModel, folder: Path) -> Run:
    fields = dict(row.fields)
    figures = {**SIZES, **{**CONFIGS, **HYBRIDS}[row.model]}
    if window := fields.pop("window", None):
        figures["sliding_window"] = window
    config = folder / "config.json"
    config.write_text(json.dumps(figures))
    batch, length = row.batch
    sizes = {"micro_batch_size": batch, "seq_len": length, "attention": row.attention}
    return Run(**{"model": str(config), "method": "full", **sizes, **fields})


def flops(run: Run, graph: Graph, stage: str) -> float:
    extents = Extents.of(run.micro_batch_size, run.seq_len)
    total = 0.0
    for count, ops in graph.stretches:
        for op in rerun(run, graph, ops) if stage == "recompute" else ops:
            cost = op.backward if stage == "backward" else op.forward
            total += count * cost.flops.at(extents.windowed(op.window))
    return total


def saved_bytes(run: Run, graph: Graph) -> float:
    extents = Extents.of(run.micro_batch_size, run.seq_len)
    checkpointed = run.activation_checkpointing == "full"
    total = 0.0
    for op in (*graph.embedding, *graph.head):
        kept = op.saved_bytes._replace(length=0.0) if checkpointed else op.saved_bytes  # held as an argument
        total += kept.at(extents)
    for group in graph.layers:
        ops = split(run, run.activation_checkpointing, group.ops)[0]
        total += group.count * sum(op.saved_bytes.at(extents) for op in ops)
    low, values = (
        graph.lowering,
        graph.model.hidden_size * extents.tokens,
    )  # the first layer reads the embedding
    streams = ((graph.model.num_layers - 1) * low.stream_bytes + low.activation_bytes) * values
    return total + (streams if checkpointed else 0.0)


@pytest.mark.parametrize("row", [*TRACED_MODELS, *TRACED_HYBRIDS], ids=lambda row: row.name)
def test_a_model_computes_and_keeps_what_its_class_does(row: TracedModel, tmp_path: Path) -> None:
    run = run_of(row, tmp_path)
    graph = build(run)
    assert flops(run, graph, "forward") == pytest.approx(row.forward_flops, rel=1e-9)
    assert flops(run, graph, "backward") == pytest.approx(row.backward_flops, rel=1e-9)
    assert flops(run, graph, "recompute") == pytest.approx(row.recompute_flops, rel=1e-9)
    tolerance = LOOSER.get(row.model, TOLERANCE_FRACTION)
    assert saved_bytes(run, graph) == pytest.approx(row.saved_bytes, rel=tolerance)


def test_frozen_layers_below_the_first_adapter_keep_nothing(tmp_path: Path) -> None:
    row = next(r for r in TRACED_MODELS if r.fields.get("lora_targets") == ("o_proj",))
    first = build(run_of(row, tmp_path)).layers[0].ops
    adapter = next(i for i, op in enumerate(first) if op.path[-1] == "adapter")
    assert all(op.backward.flops == (0.0,) * len(op.backward.flops) for op in first[: adapter - 1])
    assert sum(op.saved_bytes.token for op in first[: adapter - 1]) == 0


def test_checkpointing_takes_gradients_to_the_embeddings(tmp_path: Path) -> None:
    row = next(r for r in TRACED_MODELS if r.fields.get("lora_targets") == ("all-linear",))
    run = run_of(row, tmp_path)
    assert len(build(run).layers) == 2
    assert len(build(run.replace(activation_checkpointing="full")).layers) == 1
