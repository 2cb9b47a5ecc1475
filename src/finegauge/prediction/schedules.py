r"""Pipelines: which layers a stage has, how many micro-batches it keeps, how long it waits for the others.

With F, B and W the seconds of one micro-batch forward, backward to the inputs (recomputation included) and
backward to the weights on one of p stages, each of v chunks of layers:

    schedule     bubble                            micro-batches kept by stage i
    gpipe        (p - 1)(F + B + W) / v            all of the step
    1f1b         (p - 1)(F + B + W) / v            p - i [1]; (2 (p - i - 1) + (v - 1) p + 1) / v [2]
    zb_h1        (p - 1)(F + B - W) / v            p [3]; interleaved likewise
    zb_v         (p - 1) max(B / 2, B - W)         p [4]: two chunks, down the stages and up again
    dualpipe_v   (p - 1)(B - W / 2)                p + 1/2 [5]
    dualpipe     (p/2 - 1)(2 B - W)                (p + 1) of single stages; weights twice [5]

The last three are those of PyTorch's schedules run action by action (a test does): ZB-V is without a bubble
only where B is short of W, and of [5]'s (p/2 - 1)(F&B + B - 3W) one F is filled by the warm-up. W is taken
by FLOPs: of products with weights that train.

Layers are divided as torchtitan does, the embedding and the loss counted as layers where asked, what does
not divide evenly to the first stages [6]; Megatron refuses what does not [7]. Where `first_stage_layers` or
`last_stage_layers` say so, the other stages share the rest.

[1] Narayanan et al. 2021, arXiv:2104.04473, section 2.2
[2] Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.3
[3] Qi et al. 2023, arXiv:2401.10241, table 1   [4] Qi et al. 2024, arXiv:2405.15362, section 3
[5] DeepSeek-AI 2024, arXiv:2412.19437, table 2; github.com/deepseek-ai/DualPipe, README
[6] pytorch/torchtitan, torchtitan/distributed/pipeline_parallel.py (generate_llm_fqn_per_model_part), 02ef790
[7] NVIDIA/Megatron-LM, megatron/core/transformer/transformer_block.py (get_num_layers_to_build), core 0.15;
    [6] and [7] read 2026-11-22
"""

from typing import Any

from finegauge.arithmetic import largest
from finegauge.model.graph import Graph
from finegauge.model.op import Extents
from finegauge.prediction.recomputation import PRODUCTS, rerun, rerun_share
from finegauge.run.rules import BOTH_ENDS, V_SHAPED, counted
from finegauge.run.run import Run


def chunks_of(run: Run) -> int:
    """Return how many stretches of neighbouring layers a stage holds."""
    return 2 if run.pipeline_schedule in V_SHAPED else run.virtual_pipeline_stages


def layers_of_stages(run: Run, layers: int) -> tuple[float, ...]:
    """Return how many layers each stage of the pipeline has, all of its chunks together."""
    stages, ends = run.pipeline_parallel, (run.first_stage_layers, run.last_stage_layers)
    if stages == 1 or run.pipeline_schedule == "naive":
        return (layers / stages,) * stages
    if ends != (None, None):
        between = stages - sum(end is not None for end in ends)
        whole, extra = divmod(layers - sum(end or 0 for end in ends), max(1, between))
        sizes = [whole + (place < extra) for place in range(between)]
        return (*filter(None, ends[:1]), *sizes, *filter(None, ends[1:]))
    embedding, loss = counted(run.counted_as_layers)
    places = stages * chunks_of(run)
    whole, extra = divmod(layers + embedding + loss, places)
    sizes = [whole + (place < extra) for place in range(places)]
    sizes[0], sizes[-1] = sizes[0] - embedding, sizes[-1] - loss
    if run.pipeline_schedule == "dualpipe":
        return tuple([one + other for one, other in zip(sizes, reversed(sizes), strict=True)])
    if run.pipeline_schedule in V_SHAPED:
        return tuple([one + other for one, other in zip(sizes, reversed(sizes), strict=True)][:stages])
    return tuple([sum(sizes[stage::stages]) for stage in range(stages)])


def head_stage(run: Run) -> int:
    """Return which stage has the head: the last, or the first where it has both ends of the model."""
    return 0 if run.pipeline_schedule in BOTH_ENDS else run.pipeline_parallel - 1


def in_flight(run: Run, stage: int) -> float:
    """Return of how many micro-batches a stage keeps its layers' activations."""
    stages, chunks, steps = run.pipeline_parallel, chunks_of(run), float(run.gradient_accumulation_steps)
    one_to_one = float(stages - stage)
    interleaved = (2 * one_to_one - 1 + (chunks - 1) * stages) / chunks
    kept = {
        "naive": 1.0,
        "gpipe": steps,
        "zb_h1": float(stages),
        "zb_v": float(stages),
        "dualpipe_v": stages + 0.5,
        "dualpipe": (stages + 1) / 2,  # of its two stages together
    }
    return min(kept.get(run.pipeline_schedule, one_to_one if chunks == 1 else interleaved), steps)


def splits_backward(run: Run) -> bool:
    """Return whether gradients of weights are worked out apart from those of inputs."""
    return run.pipeline_parallel > 1 and run.pipeline_schedule in ("zb_h1", *BOTH_ENDS)


def weights_fraction(run: Run, graph: Graph, extents: Extents) -> Any:
    """Return the share of a backward pass, recomputation included, that works out gradients of weights."""
    weights: Any = 0.0
    total: Any = 0.0
    for group in graph.layers:
        for op in group.ops:
            seen = extents.windowed(op.window)
            forward, backward = op.forward.flops.at(seen), op.backward.flops.at(seen)
            total = total + group.count * backward
            if op.kind in PRODUCTS:
                weights = weights + group.count * largest(0.0, backward - forward)
        again = sum(op.forward.flops.at(extents.windowed(op.window)) for op in rerun(run, graph, group.ops))
        total = total + group.count * rerun_share(run, graph, group.ops) * again
    return weights / largest(total, 1.0)


def bubble_s(run: Run, forward_s: Any, backward_s: Any, others: Any, weights: Any) -> Any:
    """Return the seconds that the slowest stage waits in a step for the others.

    Its layers take `forward_s` and `backward_s` (recomputation included) for one micro-batch; `others` is
    the layers of the other stages together, over its own; `weights` the share of backward that works out
    gradients of weights.
    """
    of_weights = weights * backward_s
    inputs = backward_s - of_weights
    stages = run.pipeline_parallel
    match run.pipeline_schedule:
        case "zb_h1":
            waits = (forward_s + inputs - of_weights) / chunks_of(run)
        case "zb_v":
            waits = largest(inputs / 2, inputs - of_weights)
        case "dualpipe_v":
            waits = inputs - of_weights / 2
        case "dualpipe":
            waits = (stages / 2 - 1) / max(1, stages - 1) * (2 * inputs - of_weights)
        case _:
            waits = (forward_s + backward_s) / chunks_of(run)
    return others * largest(0.0, waits)
