"""The arithmetic behind a prediction, in words: one line for each part of memory and time.

`formulas(run)` gives, for the paths of a profile's `device_memory_bytes` and for the
stages of its `step_time_s`, the formula with its numbers put in. Here a path is written with slashes.
"""

from finegauge.catalogue.gpus import CPU, gpu
from finegauge.data.batch_shape import shape
from finegauge.model.graph import Graph, build
from finegauge.model.layers import TILE_WORDS
from finegauge.model.lowering import QUANTIZED_BYTES
from finegauge.model.op import TILE_TOKENS
from finegauge.prediction.allocator import Allocator, shapes_vary, slack_fraction
from finegauge.prediction.calibration import Calibration, current
from finegauge.prediction.model_parallel import chunks_of
from finegauge.prediction.sharding import longest_extents, rank_extents, shard_degree, share_of
from finegauge.profile import Path
from finegauge.run.phases import answer_tokens
from finegauge.run.run import Run
from finegauge.units import GIB, count


def formulas(run: Run, calibration: Calibration | None = None) -> dict[Path, str]:
    """Return a line of arithmetic for every memory path and time stage that `run` may have."""
    calibration = calibration or current()
    graph, computed = build(run), share_of(run).graph  # as written down, and as a rank computes it
    tokens = rank_extents(run, longest_extents(shape(run))).tokens
    varied = shapes_vary(run, graph)
    lost = f"{100 * slack_fraction(run, graph, calibration):.0f} %"
    slack = f"{lost} of activations and logits: allocator rounding, fragmentation"
    shapes = "expandable segments" if Allocator.of(run).expandable else "shapes are fixed"
    lines = {
        **_state_formulas(run, graph),
        **_activation_formulas(run, computed, tokens),
        "logits/loss": _loss_formula(run, computed, tokens),
        "slack": f"{slack} ({'shapes vary' if varied else shapes})",
        "context": f"CUDA context of one process: {calibration.context_bytes / GIB:.2f} GiB",
        "forward": "per layer the longer of kernels on the device and launches on the host",
        "recompute": "the forward of every checkpointed layer once more",
        "backward": "x2 for trained weights, x1 for frozen ones that gradients pass through",
        "other": "the trainer's own Python around each micro-batch, learned from finished runs",
        "optimizer": f"{run.optimizer} ({run.optimizer_implementation}): bytes it moves over bandwidth",
        **_rank_formulas(run, calibration),
        **_phase_formulas(run),
        **_measured_formulas(run),
    }
    return {tuple(path.split("/")): line for path, line in lines.items()}


def _measured_formulas(run: Run) -> dict[str, str]:
    spec = gpu(run.gpu) if run.gpu is not None else None
    if spec is None or spec.measured is None:
        return {}
    lines: dict[str, str] = {
        "forward": "readings of single operators, between their sizes, added up",
        "optimizer": f"{run.optimizer} ({run.optimizer_implementation}): readings by parameters and tensors",
    }
    if spec.architecture == CPU:
        lines["slack"] = "a processor's allocator gives back what is free"
        lines["context"] = "a processor has no driver's memory"
    return lines


def _phase_formulas(run: Run) -> dict[str, str]:
    """Return the lines of what only some phases hold and do."""
    new, rows = answer_tokens(run), run.micro_batch_size
    return {
        "weights/reference": "frozen: the policy before tuning, or reference_model"
        + (" (in host memory)" if run.reference_offload else ""),
        "weights/value model": f"{run.critic_model or 'as large as the policy'}, with a scalar head",
        "weights/reward model": f"{run.reward_model or 'as large as the value model'}, frozen",
        "weights/moving average": "a copy of the policy",
        "workspace/generation": "DeepSpeed's kernels: ten residual streams and all scores of the answers "
        "that are generated at once; like the cache it stays while models train, unless rollout_sleep",
        "workspace/layers to be divided": "gathered_layers, whole, before each rank takes its part",
        "optimizer/value model": f"{run.optimizer} state of the value model",
        "KV cache": f"keys and values of all layers for every token of {rows} sequences a micro-batch",
        "logits/next token": "logits of one token of every sequence, and their probabilities in fp32",
        "scoring": "forward passes that keep nothing, by the models that score",
        "generation": f"the prompts once, then {new:,} tokens one by one: weights and KV cache over "
        "bandwidth",
        "engine/weights": "the rollout engine's own copy, in 16 bit or rollout_dtype",
        "engine/activations": "of the engine's largest step, and logits of a token of every answer",
        "engine/context": "CUDA context of the engine's own process",
        "engine/KV cache": "what the engine's share of the GPU (gpu_memory_utilization) leaves",
        "generation/the last answers": "fewer than half as many at once as at most",
        "generation/waits for answers": "by which writing them takes longer than learning from them",
        "reward": "reward_s: rules or a sandbox",
        "sync": "new weights to the engine, and what moves to the host and back",
        "prefill": "one forward pass over the prompts",
        "decode": f"{new:,} tokens one by one: weights and KV cache over bandwidth, or launches",
    }


def _rank_formulas(run: Run, calibration: Calibration) -> dict[str, str]:
    """Return the lines of what several ranks hold and exchange."""
    if not share_of(run).communicates:
        return {}
    share, degree = share_of(run), shard_degree(run)
    layer, outer = share.layer_bytes / GIB, share.outer_bytes / GIB
    return {
        "workspace/gathered weights": f"whole while at work: embedding and head {outer:.2f} GiB, "
        f"layers {layer:.2f} GiB each ({run.sharding} over {degree} ranks)",
        "workspace/gradients being reduced": "whole until the ranks have added them up, or in buckets",
        "workspace/bucket of gradients": "DeepSpeed's reduce_bucket_size, "
        f"{run.reduce_bucket_size:,} values or all, and ZeRO-2's copy of it that is reduced",
        "workspace/second copy of weights": f"ZeRO++'s, over {run.zero_hpz_partition_size} GPUs of a node",
        "workspace/gradients of the update": "DeepSpeed's part of the gradients flattened, and in fp32",
        "workspace/weights on their way": "DeepSpeed's stage3_prefetch_bucket_size, 5e7 values or the rest",
        "activations/held by FSDP's hooks": "one more residual stream of every frozen layer",
        "NCCL": f"communicators and buffers of a rank: {calibration.nccl_bytes / GIB:.2f} GiB",
        "communication/waits for the slowest rank": f"the longest sequences among {run.data_parallel} "
        f"ranks, the busiest experts among {run.expert_parallel}, against the average",
        "communication/pipeline bubble": f"the layers of {run.pipeline_parallel - 1} other stages for one "
        f"micro-batch, over {chunks_of(run)} chunks, as {run.pipeline_schedule} has it",
        "communication/paged states from the host and back": "of those that do not fit beside the rest, each "
        "crosses PCIe twice a step",
        "communication/gradients to the host": "over PCIe, with those of earlier micro-batches and back",
        "communication/optimizer on the host": "bytes that the update moves over what a rank's threads "
        "stream (host_threads), or its share of host_memory_gb_per_s",
        "communication/weights from the host": "a rank's part, over PCIe, for every pass",
        "communication": "what exceeds the computation beside it, latency x steps + bytes over bandwidth, "
        "and what that computation loses",
    }


def _state_formulas(run: Run, graph: Graph) -> dict[str, str]:
    low, weights = graph.lowering, graph.weights
    adapters = f"{count(weights.adapter_params)} adapter parameters"
    trained = f"{count(weights.trained_params)} trained parameters" if weights.trained_params else adapters
    width = low.weight_bytes if weights.trained_params else low.adapter_bytes
    degree = shard_degree(run) * run.tensor_parallel * run.pipeline_parallel
    how = f" as {run.sharding} does" if shard_degree(run) > 1 else ""
    divided = f", divided over {degree} ranks{how}" if degree > 1 else ""
    return {
        "weights/model": _weights_formula(run, graph) + divided,
        "weights/adapters": f"{adapters} (rank {run.lora_rank}: r·(in + out)) x {low.adapter_bytes} B",
        "gradients": f"{trained} x {width} B{divided}",
        "optimizer/states": f"{run.optimizer} state of {trained}{divided}",
        "workspace/cuBLAS": "one workspace per handle",
        "workspace/optimizer": f"{run.optimizer_implementation} update: one copy of {trained}",
    }


def _activation_formulas(run: Run, graph: Graph, tokens: float) -> dict[str, str]:
    layers, hidden, stream = graph.model.num_layers, graph.model.hidden_size, graph.lowering.activation_bytes
    pinned = (
        f"bitsandbytes {run.bitsandbytes_version} keeps the inputs of 4-bit linears of all {layers} layers"
    )
    return {
        "activations/all layers": f"what autograd keeps of {layers} layers for {tokens:,.0f} tokens",
        "activations/checkpoints": f"{layers} inputs x {tokens:,.0f} tokens x H {hidden:,} x {stream} B",
        "activations/passing": "inputs, outputs and temporaries of the worst operator of a forward pass",
        "weights/autocast copies": "16-bit copies of trained fp32 weights, cached while the forward runs",
        "activations/rebuilt block": "what autograd keeps of the largest layer, rebuilt in backward",
        "activations/gradients in flight": "gradients alive at the worst operator of a layer's backward",
        "activations/embedding and head": f"ids, labels, final norm, head input of {tokens:,.0f} tokens",
        "activations/inputs pinned by 4-bit linears": f"{pinned}; non-reentrant "
        "checkpointing cannot discard them",
        "activations/keys and values handed back": "all that the fused projections returned, "
        "until the caller drops the model's output",
        "activations/last micro-batch": "inputs that 4-bit linears pin to the graph of its logits",
        "logits/last micro-batch": "fp32 logits that the loop holds until the next are there",
    }


def _weights_formula(run: Run, graph: Graph) -> str:
    low, total = graph.lowering, count(graph.model.num_parameters)
    if not low.quantized:
        return f"{total} parameters x {low.weight_bytes} B ({run.weights_dtype})"
    bits = 8 * QUANTIZED_BYTES[low.quantized]
    rest = "32-bit" if run.upcast_unquantized else "16-bit"
    experts = "" if low.experts_quantized else " and fused experts"
    kept = f"embeddings, head, norms{experts} {rest}"
    return f"{total} parameters: linears at {bits:.3f} bit ({low.quantized}); {kept}"


def _loss_formula(run: Run, graph: Graph, tokens: float) -> str:
    vocabulary = graph.model.vocab_size
    if graph.lowering.chunks_kept:
        return f"{tokens:,.0f} tokens x V {vocabulary:,} in 16 bit, or their gradients (fp32 chunk by chunk)"
    if graph.lowering.tiled:
        return f"tiled loss: {TILE_TOKENS:,.0f} tokens x {TILE_WORDS:,.0f} of V {vocabulary:,}, sums in fp32"
    if run.loss == "chunked":
        return f"loss in chunks: logits of one chunk x V {vocabulary:,}"
    if run.loss == "fused":
        return f"fused loss: no logits, chunk buffers of {tokens:,.0f} tokens"
    loss = graph.head[-1]
    per_value = (loss.saved_bytes.token + loss.live_forward_bytes.token) / vocabulary
    return (
        f"{tokens:,.0f} tokens x V {vocabulary:,} x {per_value:.1f} B "
        f"(logits, fp32 copies, log-probabilities; transformers {run.transformers_version})"
    )
