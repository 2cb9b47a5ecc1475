"""One cell, both sides: what the real class does and what our graph says it does."""

from collections import Counter
from functools import cache
from math import prod
from typing import Any, NamedTuple

from finegauge.errors import UnsupportedError
from finegauge.model.graph import Graph, build
from finegauge.model.op import Extents, Op
from finegauge.prediction.memory import CUBLAS_DEFAULT_BYTES, live_set
from finegauge.prediction.predictor import predict
from finegauge.prediction.recomputation import by_layer, rerun, rerun_share, split
from finegauge.run.run import Run
from tests.on_disk import config_file
from tests.oracle.cells import Cell
from tests.oracle.configs import CONFIGS

STAGES = ("forward", "recompute", "backward")
PHASES = ("forward", "loss", "backward", "optimizer")
FLOPS = tuple(f"{stage} FLOPs" for stage in STAGES)
NOT_OFFERED = (
    "not support",
    "does not work with",
    "Cannot convert PEFT target",
)  # so transformers and PEFT say of a kernel, an option

MASK_SAVED = frozenset(
    {"gpt2", "zamba2", "recurrent_gemma"}
)  # the mask is a positional argument: a checkpoint saves it
EVALUATION_PEAK = "evaluation peak"
PEAKS = (*(f"{phase} peak" for phase in PHASES), EVALUATION_PEAK)
OF_A_GPU = ("slack", "context")


class Side(NamedTuple):
    """One side's answer.

    `amounts` by quantity; `tensors` the shapes of the base model's parameters, sizes in
    rising order: GPT-2 and GPT-OSS hold [in, out] what all others hold as [out, in].
    """

    amounts: dict[str, float]
    tensors: Counter[tuple[int, ...]]


class Outcome(NamedTuple):
    """What came of a cell: relative errors by quantity, or why there is none."""

    cell: Cell
    errors: dict[str, float]  # ours / theirs - 1
    refusal: str = ""  # transformers offers no such thing
    failure: str = ""  # one of both sides broke


@cache
def config_path(model: str) -> str:
    """Return a config.json of the model on disk, or the name by which the catalogue knows it."""
    if model not in CONFIGS:
        return model
    return config_file(CONFIGS[model])


def run_of(cell: Cell) -> Run:
    """Return the question of a cell."""
    return Run(model=config_path(cell.model), **cell.fields())


def ours(run: Run) -> Side:
    """Return what our graph says of a run."""
    graph = build(run)
    extents = Extents.of(run.micro_batch_size, run.seq_len)
    amounts = {"parameters": _parameters(graph), "trained parameters": _trained(graph)}
    for stage, name in zip(STAGES, FLOPS, strict=True):
        amounts[name] = sum(count * _flops(op, stage, extents) for count, op in _passes(run, graph, stage))
    if run.phase == "evaluate":
        parts = predict(run.replace(gpu="A100-SXM4-80GB", pad_to_multiple_of=1)).peak_memory_bytes.parts
        amounts[EVALUATION_PEAK] = sum(
            value for path, value in parts.items() if path[0] not in OF_A_GPU and path[-1] != "cuBLAS"
        )
        return Side(amounts, _tensors(graph))
    amounts["saved bytes"] = _saved_bytes(run, graph, extents)
    phases = live_set(run, graph, extents, CUBLAS_DEFAULT_BYTES).phases
    for phase, name in zip(PHASES, PEAKS, strict=False):
        amounts[name] = phases[phase].total - phases[phase].parts["workspace", "cuBLAS"]
    return Side(amounts, _tensors(graph))


def theirs(run: Run) -> Any:
    """Return the trace of a run, and its side."""
    from tests.oracle.step_trace import trace_evaluation, trace_step

    evaluated = run.phase == "evaluate"
    trace: Any = trace_evaluation(run) if evaluated else trace_step(run)
    base = {name: shape for name, (shape, _, _) in trace.parameters.items() if "lora_" not in name}
    amounts: dict[str, float] = {"parameters": sum(prod(shape) for shape in base.values())}
    if evaluated:
        amounts |= {FLOPS[0]: trace.flops, EVALUATION_PEAK: trace.peak_bytes}
    else:
        trained = [prod(shape) for shape, _, trains in trace.parameters.values() if trains]
        amounts |= {
            "trained parameters": sum(trained),
            **{name: trace.total_flops(stage) for stage, name in zip(STAGES, FLOPS, strict=True)},
            "saved bytes": sum(saved.bytes for saved in trace.saved),
            **{f"{phase} peak": trace.phase_peak_bytes[phase] for phase in PHASES},
        }
    return trace, Side(amounts, Counter(tuple(sorted(shape)) for shape in base.values()))


def compare(cell: Cell) -> Outcome:
    """Return the relative errors of one cell."""
    import torch

    torch.set_num_threads(1)
    run = run_of(cell)
    try:
        _, real = theirs(run)
    except (ValueError, UnsupportedError) as error:
        if any(words in str(error) for words in NOT_OFFERED):
            return Outcome(cell, {}, refusal=str(error))
        return Outcome(cell, {}, failure=f"transformers: {type(error).__name__}: {error}")
    except Exception as error:  # whatever transformers raises is a row of the table
        return Outcome(cell, {}, failure=f"transformers: {type(error).__name__}: {error}")
    try:
        mine = ours(run)
    except Exception as error:  # a bug of ours is a row too
        return Outcome(cell, {}, failure=f"ours: {type(error).__name__}: {error}")
    errors = {name: relative_error(mine.amounts[name], value) for name, value in real.amounts.items()}
    errors["tensors"] = 0.0 if mine.tensors == real.tensors else 1.0
    return Outcome(cell, errors)


def relative_error(ours: float, theirs: float) -> float:
    """Return ours / theirs - 1; of nothing, 0 where ours is nothing too."""
    if theirs:
        return ours / theirs - 1
    return 0.0 if not ours else 1.0


def _parameters(graph: Graph) -> float:
    return float(graph.model.num_parameters)


def _trained(graph: Graph) -> float:
    return graph.weights.trained_params + graph.weights.adapter_params


def _tensors(graph: Graph) -> Counter[tuple[int, ...]]:
    found: Counter[tuple[int, ...]] = Counter()
    for layer, count in graph.model.layers:
        for tensor in layer.tensors():
            found[tuple(sorted(tensor.shape))] += count
    found.update(tuple(sorted(tensor.shape)) for tensor in (*graph.model.outer_tensors(), *graph.model.other))
    return found


def _passes(run: Run, graph: Graph, stage: str) -> list[tuple[float, Op]]:
    """Return (how often, operator) of everything that runs in a stage."""
    if stage != "recompute":
        return [(count, op) for count, ops in graph.stretches for op in ops]
    return [
        (count * rerun_share(run, graph, ops), op)
        for count, ops in graph.stretches
        for op in rerun(run, graph, ops)
    ]


def _flops(op: Op, stage: str, extents: Extents) -> float:
    cost = op.backward if stage == "backward" else op.forward
    return cost.flops.at(extents.windowed(op.window))


def _saved_bytes(run: Run, graph: Graph, extents: Extents) -> float:
    """Return what autograd keeps of a whole micro-batch when forward and loss are done."""
    outside = (*graph.embedding, *graph.head)
    around = [op.saved_bytes for op in outside]
    if run.activation_checkpointing == "full":  # tables of positions are arguments of the layers, not saved
        around = [poly._replace(length=0.0) for poly in around]
    total = sum(poly.at(extents) for poly in around)
    rows = 0
    for group, kind in by_layer(run, graph.layers):
        rows += group.count if kind == "full" else 0
        kept = split(run, kind, group.ops)[0]
        total += group.count * sum(op.saved_bytes.at(extents.windowed(op.window)) for op in kept)
    if run.activation_checkpointing == "full":
        low, values = graph.lowering, graph.model.hidden_size * extents.tokens
        total += ((rows - 1) * low.stream_bytes + low.activation_bytes) * values
        if graph.model.model_type in MASK_SAVED and low.attention == "eager":
            total += low.activation_bytes * extents.pairs
    return total
