"""Predict one optimizer step of a run: memory, time and energy from first principles."""

from functools import lru_cache

from finegauge.catalogue.gpus import gpu as find_gpu
from finegauge.errors import FieldError
from finegauge.graph.build import Graph
from finegauge.graph.op import Extents
from finegauge.graph.step_flops import step_flops
from finegauge.predict.calibrated import current
from finegauge.predict.calibration import Calibration
from finegauge.predict.communication import Network
from finegauge.predict.device import Device
from finegauge.predict.energy import board_power, step_energy_j
from finegauge.predict.measured import MeasuredDevice
from finegauge.predict.memory import LiveSet, cublas_bytes, outside_tensors, shapes_vary
from finegauge.predict.phases import Question, answer, check_supported
from finegauge.predict.sharding import rank_extents, share_of
from finegauge.predict.stragglers import slowest_extents
from finegauge.predict.uncertainty import time_interval
from finegauge.profile import Breakdown, Profile, Source
from finegauge.workload.data import BatchShape, shape
from finegauge.workload.prompts import micro_steps
from finegauge.workload.run import Run


def predict(run: Run, calibration: Calibration | None = None, *, batch: BatchShape | None = None) -> Profile:
    """Return the predicted profile of one optimizer step of `run`.

    Running out of memory is an outcome, not an error: memory and time are still filled in.

    Args:
        run: The question.
        calibration: The constants; the current ones by default.
        batch: The micro-batch that is asked about; by default what `run` has on average and at its longest.

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
    batch = batch or shape(run)
    mean, longest = rank_extents(run, mean_extents(batch)), rank_extents(run, longest_extents(batch))
    device = device_of(run.gpu, calibration, graph.lowering.compute_dtype)
    if isinstance(device, MeasuredDevice):
        device.check(run)
    calibration = device.calibration
    network = Network.of(run, gpu, calibration) if share.communicates else None
    slowest = rank_extents(run, slowest_extents(run, batch))
    asked = Question(run, share, mean, longest, device, network, cublas_bytes(gpu.architecture), slowest)
    live, step = answer(asked)
    on_device = live.peak + outside_tensors(run, graph, live.peak, calibration)
    if share.distributed:
        on_device += Breakdown({("NCCL",): calibration.nccl_bytes})
    fits = on_device.total <= gpu.usable_bytes
    fraction = calibration.cached(varied=shapes_vary(run, graph))
    micro_batches = micro_steps(run) * run.data_parallel
    ranks = run.num_gpus / run.pipeline_parallel  # the graph holds the layers of every stage
    return Profile(
        run=run,
        source=_source(asked, calibration, batch),
        outcome="completed" if fits else "out_of_memory",
        peak_memory_bytes=live.peak,
        device_memory_bytes=on_device,
        cached_bytes=max(
            0.0, min(cached_bytes(live, on_device, fraction), gpu.usable_bytes - on_device.total)
        ),
        phase_memory_bytes=live.by_phase(),
        peak_phase=live.peak_phase,
        step_time_s=step.parts,
        step_energy_j=step_energy_j(board_power(gpu, calibration), step, calibration, run.num_gpus),
        step_flops=step_flops(run, graph, mean) * ranks,
        step_tokens=batch.tokens * micro_batches,
        step_sequences=batch.samples * micro_batches,
        host_bound_fraction=step.host_bound_s / step.parts.total if step.parts.total else 0.0,
        peak_flops_per_s=gpu.peak_flops_per_s(graph.lowering.compute_dtype),
        capacity_bytes=gpu.usable_bytes,
    )


def cached_bytes(live: LiveSet, on_device: Breakdown, fraction: float) -> float:
    """Return the bytes of freed blocks that the allocator keeps beside what `on_device` counts.

    They are that `fraction` of activations and logits, or more:
    Blocks of activations are cut for sizes that come back only in part; the optimizer's temporaries
    and the gradients come when activations have gone, and find no block of theirs among them.
    """
    if not fraction:
        return 0.0  # a processor's allocator gives back what is free
    moving = max(parts["activations"] + parts["logits"] for parts in live.phases.values())
    late = ("gradients",), ("workspace", "optimizer")
    apart = sum(max(parts.parts.get(path, 0.0) for parts in live.phases.values()) for path in late)
    peak = live.peak
    together = peak["activations"] + peak["logits"] + sum(peak.parts.get(path, 0.0) for path in late)
    return max(fraction * moving, moving + apart - together) - on_device["slack"]


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


def device_of(name: str, calibration: Calibration, dtype: str) -> Device | MeasuredDevice:
    """Return the device called `name`, its rates or its readings ready."""
    gpu = find_gpu(name)
    if gpu.measured is not None:
        return MeasuredDevice(gpu, gpu.measured, calibration, dtype)
    return _datasheet_device(name, calibration, dtype)


@lru_cache(maxsize=32)
def _datasheet_device(name: str, calibration: Calibration, dtype: str) -> Device:
    """Return the device called `name`, its rates ready."""
    return Device.of(find_gpu(name), calibration, {dtype, "fp32"})


def _source(asked: Question, calibration: Calibration, batch: BatchShape) -> Source:
    """Return by what it is predicted, how surely, and what is taken for granted, in words."""
    run, graph = asked.run, asked.share.graph
    return Source(
        kind="predicted",
        name=calibration.name,
        memory_interval=calibration.memory_interval,
        time_interval=time_interval(run, find_gpu(str(run.gpu)), calibration.time_interval),
        assumptions=(batch.source, *_quantised(graph), *graph.model.notes),
    )


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
