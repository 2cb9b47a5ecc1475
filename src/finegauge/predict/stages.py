"""What lies on the stages of a pipeline: layers, the model's ends, activations of micro-batches in flight.

Layers are divided evenly; the first stage has the embedding, the last the head and the loss. Under 1F1B
stage i of p keeps the activations of p - i micro-batches [1]; where each stage has v chunks of layers and
passes them in turn, the first keeps 1 + (p - 1)/(p v) and the last 1 - (p - 1)/(p v) of what the whole
model keeps of one micro-batch [2].

[1] Narayanan et al. 2021, arXiv:2104.04473, section 2.2   [2] Korthikanti et al. 2022, arXiv:2205.05198,
section 4.2.3 (its figure for the last stage follows from Megatron's warm-up of (v - 1) p + 1 chunks)
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import ceil

from finegauge.graph.blocks import Architecture, Layer
from finegauge.graph.build import Graph
from finegauge.graph.op import NOTHING, Op
from finegauge.workload.run import Run

LAST_STAGE = " (last stage)"  # beside the names of the phases of its memory


def stage_layers(run: Run, model: Architecture) -> float:
    """Return the layers of one pipeline stage; a fraction where they do not divide evenly."""
    return model.num_layers / run.pipeline_parallel


def slowest_share(run: Run, model: Architecture) -> float:
    """Return the share of all layers that the stage with most of them computes, one working at a time: 1."""
    stages, layers = run.pipeline_parallel, model.num_layers
    if stages == 1 or run.pipeline_schedule == "naive":
        return 1.0
    chunks = run.virtual_pipeline_stages
    return min(1.0, ceil(layers / (stages * chunks)) * chunks / layers)


def outer_params(whole: Graph) -> tuple[float, float]:
    """Return the parameters before the layers, and those after them; a tied head is both."""
    model = whole.model
    before = float(sum(tensor.size for tensor in model.embeddings))
    return before, sum(tensor.size for tensor in model.outer_tensors()) - before


def on_a_stage(run: Run, ends: Sequence[float]) -> float:
    """Return what the stage with more of it has of the two ends of the model: all, without a pipeline."""
    return max(ends) if run.pipeline_parallel > 1 else sum(ends)


def stage_shares(run: Run, whole: Graph) -> tuple[float, float]:
    """Return the shares of weights, and of trained values, that lie on the fullest pipeline stage.

    Layers are divided evenly; the first stage has the embedding, the last the head.
    """
    stages, weights = run.pipeline_parallel, whole.weights
    if stages == 1:
        return 1.0, 1.0
    ends, width = outer_params(whole), whole.lowering.weight_bytes
    outer, most = sum(ends) * width, on_a_stage(run, ends) * width
    base = ((weights.base_bytes - outer) / stages + most) / weights.base_bytes
    if run.trains_adapters:
        return base, 1.0 / stages
    trained = weights.trained_params
    return base, ((trained - sum(ends)) / stages + on_a_stage(run, ends)) / trained


def stage_graphs(run: Run, graph: Graph) -> dict[str, Graph]:
    """Return the fullest stages of a pipeline, by what is added to the names of their phases."""
    if run.pipeline_parallel == 1:
        return {"": graph}
    first = replace(stage_graph(run, graph, _kept(run, first=True)), head=tuple(map(_elsewhere, graph.head)))
    return {"": first, LAST_STAGE: stage_graph(run, graph, _kept(run, first=False))}


def _kept(run: Run, *, first: bool) -> float:
    """Return how many stages' layers a stage keeps, each counted for every micro-batch in flight."""
    stages, chunks, steps = (
        run.pipeline_parallel,
        run.virtual_pipeline_stages,
        run.gradient_accumulation_steps,
    )
    if run.pipeline_schedule == "naive":
        return 1.0
    if run.pipeline_schedule == "gpipe":
        return float(steps)
    if chunks == 1:
        return float(min(stages, steps)) if first else 1.0
    ramp = (stages - 1) / chunks
    return min(float(steps), stages + ramp if first else stages - ramp)


def stage_graph(run: Run, graph: Graph, kept: float) -> Graph:
    """Return a stage whose layers are counted `kept` times."""
    share = kept / run.pipeline_parallel
    layers = tuple(replace(group, count=max(1, round(group.count * share))) for group in graph.layers)
    whole: Counter[Layer] = Counter()  # equal layers of several groups are rounded together
    for layer, count in graph.model.layers:
        whole[layer] += count
    fewer = tuple((layer, max(1, round(count * share))) for layer, count in whole.items())
    return replace(graph, layers=layers, model=graph.model._replace(layers=fewer))


def _elsewhere(op: Op) -> Op:
    """Return an operator that another stage runs."""
    return Op(op.path, op.kind, NOTHING, keeps_input=op.keeps_input, dtype=op.dtype)
