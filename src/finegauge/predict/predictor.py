"""Predict one optimizer step of a run: memory, time and energy from first principles."""

from functools import lru_cache

from finegauge.catalogue.gpus import gpu as find_gpu
from finegauge.errors import FieldError, UnsupportedError
from finegauge.graph.build import Graph
from finegauge.graph.op import Extents
from finegauge.predict.calibrated import current
from finegauge.predict.calibration import Calibration
from finegauge.predict.communication import Network
from finegauge.predict.device import Device
from finegauge.predict.energy import step_energy_j
from finegauge.predict.memory import LiveSet, live_set, outside_tensors
from finegauge.predict.sharding import (
    Share,
    frozen_layers_moment,
    gathered_memory,
    rank_extents,
    share_of,
    stage_graph,
)
from finegauge.predict.time import step_time
from finegauge.profile import Breakdown, Profile, Source
from finegauge.workload.data import BatchShape, shape
from finegauge.workload.run import Run

PREDICTED_PHASES = ("sft", "pretrain")


def predict(run: Run, calibration: Calibration | None = None) -> Profile:
    """Return the predicted profile of one optimizer step of `run`.

    Running out of memory is an outcome, not an error: memory and time are still filled in.

    Raises:
        FieldError: The run names no GPU, or sizes that its model does not allow.
        UnsupportedError: A phase or method without a model yet.
    """
    check_supported(run)
    calibration = calibration or current()
    if run.gpu is None:
        raise FieldError(
            "The run names no GPU; add 'gpu: A100-SXM4-80GB' or --gpu NAME ('finegauge gpus' lists them)."
        )
    gpu = find_gpu(run.gpu)
    share = share_of(run)
    graph = share.graph
    batch = shape(run)
    mean, longest = rank_extents(run, mean_extents(batch)), rank_extents(run, longest_extents(batch))
    device = device_of(run.gpu, calibration, graph.lowering.compute_dtype)
    network = Network.of(run, gpu, calibration) if share.communicates else None
    live = rank_live_set(run, share, longest, gpu.architecture)
    step = step_time(share, mean, device, network)
    on_device = live.peak + outside_tensors(run, graph, live.peak, calibration)
    if share.distributed:
        on_device += Breakdown({("NCCL",): calibration.nccl_bytes})
    fits = on_device.total <= gpu.usable_bytes
    micro_steps = run.gradient_accumulation_steps
    ranks = run.num_gpus / run.pipeline_parallel  # the graph holds the layers of every stage
    return Profile(
        run=run,
        source=Source(
            kind="predicted",
            name=calibration.name,
            memory_interval=calibration.memory_interval,
            time_interval=calibration.time_interval,
            assumptions=_assumptions(graph, batch),
        ),
        outcome="completed" if fits else "out_of_memory",
        peak_memory_bytes=live.peak,
        device_memory_bytes=on_device,
        cached_bytes=max(
            0.0, min(cached_bytes(live, on_device, calibration), gpu.usable_bytes - on_device.total)
        ),
        phase_memory_bytes=live.by_phase(),
        peak_phase=live.peak_phase,
        step_time_s=step.parts,
        step_energy_j=step_energy_j(gpu, step, calibration, run.num_gpus),
        step_flops=model_flops(graph, mean) * micro_steps * ranks,
        step_tokens=batch.tokens * micro_steps * run.data_parallel,
        step_sequences=batch.samples * micro_steps * run.data_parallel,
        host_bound_fraction=step.host_bound_s / step.parts.total if step.parts.total else 0.0,
        peak_flops_per_s=gpu.peak_flops_per_s(graph.lowering.compute_dtype),
        capacity_bytes=gpu.usable_bytes,
    )


def check_supported(run: Run) -> None:
    """Refuse what no equation here covers, in one sentence."""
    if run.phase not in PREDICTED_PHASES:
        raise UnsupportedError(
            f"phase={run.phase} is not predicted yet; {' and '.join(PREDICTED_PHASES)} are."
        )
    if run.method == "freeze":
        raise UnsupportedError("method=freeze is not predicted yet; full, lora, qlora and gptq_lora are.")


def rank_live_set(run: Run, share: Share, extents: Extents, architecture: str) -> LiveSet:
    """Return the live memory of each phase on the fullest rank, gathered weights and buckets included."""
    live = live_set(share.run, stage_graph(run, share.graph), extents, architecture)
    beside = gathered_memory(run, share)
    phases = {name: parts + Breakdown(beside.get(name, {})) for name, parts in live.phases.items()}
    frozen = frozen_layers_moment(run, share, extents)
    if frozen:
        held = {p: v for p, v in phases["backward"].parts.items() if p[0] not in ("activations", "logits")}
        phases["backward of frozen layers"] = Breakdown({**held, **frozen})
    if run.optimizer_implementation == "in_backward":  # a layer's gradients are used up as they come
        most = max(share.layer_gradient_bytes, share.outer_gradient_bytes)
        phases = {name: _capped(parts, most) for name, parts in phases.items() if name != "optimizer"}
    return LiveSet(phases)


def cached_bytes(live: LiveSet, on_device: Breakdown, calibration: Calibration) -> float:
    """Return the bytes of freed blocks that the allocator keeps beside what `on_device` counts.

    Blocks of activations are cut for sizes that come back only in part; the optimizer's temporaries
    and the gradients come when activations have gone, and find no block of theirs among them.
    """
    moving = max(parts["activations"] + parts["logits"] for parts in live.phases.values())
    late = ("gradients",), ("workspace", "optimizer")
    apart = sum(max(parts.parts.get(path, 0.0) for parts in live.phases.values()) for path in late)
    peak = live.peak
    together = peak["activations"] + peak["logits"] + sum(peak.parts.get(path, 0.0) for path in late)
    return max(calibration.cached_fraction * moving, moving + apart - together) - on_device["slack"]


def _capped(parts: Breakdown, most: float) -> Breakdown:
    """Return `parts` with gradients of at most `most` bytes."""
    return Breakdown({p: min(v, most) if p[0] == "gradients" else v for p, v in parts.parts.items()})


def mean_extents(batch: BatchShape) -> Extents:
    """Return the extents of the average micro-batch: what time depends on."""
    return Extents(batch.sequences, batch.tokens, batch.tokens_square, batch.longest_len)


def longest_extents(batch: BatchShape) -> Extents:
    """Return the extents of the longest micro-batch: what memory must hold."""
    return Extents(
        batch.sequences,
        batch.longest_tokens,
        float(batch.longest_tokens * batch.longest_len),
        batch.longest_len,
    )


def model_flops(graph: Graph, extents: Extents) -> float:
    """Return the FLOPs of forward and backward of one micro-batch, recomputation not counted."""
    return sum(
        count * (op.forward.flops.at(seen) + op.backward.flops.at(seen))
        for count, ops in graph.stretches
        for op in ops
        if op.forward.flops
        for seen in (extents.windowed(op.window),)
    )


@lru_cache(maxsize=32)
def device_of(name: str, calibration: Calibration, dtype: str) -> Device:
    """Return the device called `name`, its rates ready."""
    return Device.of(find_gpu(name), calibration, {dtype, "fp32"})


def _assumptions(graph: Graph, batch: BatchShape) -> tuple[str, ...]:
    """Return what the answer takes for granted, in words."""
    return (batch.source, *_quantised(graph), *graph.model.notes)


def _quantised(graph: Graph) -> tuple[str, ...]:
    """Return which tensors of a mixture of experts the quantiser really touches."""
    low = graph.lowering
    routed = any(tensor.kind == "experts" for layer, _ in graph.model.layers for tensor in layer.tensors())
    if not low.quantized or not routed:
        return ()
    if low.experts_quantized:
        return (f"the experts are {low.quantized} like the other projections (one module each)",)
    return (
        "the experts stay 16-bit: transformers 5 fuses them into tensors that the quantiser passes by "
        "(quantize_experts=true where they are unfused)",
    )
