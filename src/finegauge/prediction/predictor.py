"""Predict one optimizer step of a run, whole or its memory alone, for a named GPU or for this machine."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from tempfile import TemporaryDirectory
from typing import NamedTuple

from finegauge.catalogue.device_profile import KIND, SCHEMA_VERSION, shelf_path
from finegauge.catalogue.gpus import gpu as find_gpu
from finegauge.catalogue.gpus import known_gpu
from finegauge.catalogue.tables import write_document
from finegauge.data.batch_shape import BatchShape, micro_steps, shape
from finegauge.errors import FieldError, FineGaugeError, UnsupportedError
from finegauge.model.graph import Graph, step_flops
from finegauge.model.op import Extents
from finegauge.planning.capacity import Estimator
from finegauge.prediction.calibration import Calibration, current
from finegauge.prediction.communication import Network
from finegauge.prediction.device import Device
from finegauge.prediction.memory import LiveSet, cublas_bytes, outside_tensors, rerun, shapes_vary
from finegauge.prediction.phases import Question, answer, check_supported
from finegauge.prediction.profiled_device import MeasuredDevice, calibrated_by
from finegauge.prediction.sharding import rank_extents, share_of
from finegauge.prediction.time import board_power, slowest_extents, step_energy_j
from finegauge.prediction.uncertainty import time_interval
from finegauge.profile import Breakdown, Path, Profile, Source
from finegauge.run.run import Run


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


ANY_DEVICE = "A100-SXM4-80GB"  # memory does not depend on how fast a device is; these seconds are dropped


def predict_memory(run: Run) -> Profile:
    """Return the predicted profile of one step of `run`, which names its GPU, with no time in it.

    Raises:
        UnsupportedError: A phase or method without a model yet.
    """
    check_supported(run)
    gpu, share, batch, calibration = find_gpu(str(run.gpu)), share_of(run), shape(run), current()
    if gpu.measured is not None:
        calibration = calibrated_by(gpu.measured, calibration)
    some = Device.of(find_gpu(ANY_DEVICE), current(), {share.graph.lowering.compute_dtype, "fp32"})
    mean, longest = rank_extents(run, mean_extents(batch)), rank_extents(run, longest_extents(batch))
    live, _ = answer(Question(run, share, mean, longest, some, None, cublas_bytes(gpu.architecture)))
    on_device = live.peak + outside_tensors(run, share.graph, live.peak, calibration)
    micro_batches = micro_steps(run) * run.data_parallel
    return Profile(
        run=run,
        source=Source("predicted", calibration.name, assumptions=(batch.source,)),
        outcome="completed" if on_device.total <= gpu.usable_bytes else "out_of_memory",
        peak_memory_bytes=live.peak,
        device_memory_bytes=on_device,
        phase_memory_bytes=live.by_phase(),
        peak_phase=live.peak_phase,
        step_flops=step_flops(run, share.graph, mean) * run.num_gpus / run.pipeline_parallel,
        step_tokens=batch.tokens * micro_batches,
        step_sequences=batch.samples * micro_batches,
        capacity_bytes=gpu.usable_bytes,
    )


TRAINING_PHASES = ("sft", "pretrain", "reward")


class Work(NamedTuple):
    """What one path of a step does."""

    flops: float = 0.0
    num_bytes: float = 0.0  # read and written


def work_of(run: Run) -> Mapping[Path, Work]:
    """Return the work of one step of `run` by path; empty for phases that are more than one pass."""
    if run.phase not in TRAINING_PHASES:
        return {}
    graph, extents = share_of(run).graph, rank_extents(run, mean_extents(shape(run)))
    found: dict[Path, Work] = {}
    for count, ops in graph.stretches:
        for stage, those in (("forward", ops), ("recompute", rerun(run, graph, ops)), ("backward", ops)):
            for op in those:
                cost = op.backward if stage == "backward" else op.forward
                times = count * run.gradient_accumulation_steps
                before = found.get((stage, *op.path), Work())
                found[stage, *op.path] = Work(
                    before.flops + times * cost.flops.at(extents.windowed(op.window)),
                    before.num_bytes + times * cost.bytes.at(extents),
                )
    return found


NO_READINGS = "Time is not predicted: this machine has no device profile yet; run 'finegauge micro' once."


class Prediction(NamedTuple):
    """What the prediction says, and how it came about."""

    profile: Profile | None
    formulas: Mapping[Path, str]
    work: "Mapping[Path, Work]"  # what each path of the step time computes and moves
    missing: str = ""  # why there is none, or what it lacks


def prediction_for(run: "Run", device: str, device_name: str = "") -> Prediction:
    """Return what is predicted for `run` on this machine's device.

    Args:
        run: The question; the GPU it names does not matter where this machine's is known.
        device: cpu or cuda.
        device_name: What a GPU calls itself.
    """
    path = shelf_path(device)
    try:
        if os.path.isfile(path):
            return _whole_or_memory(run.replace(gpu=path))
        if device == "cpu":
            with _unmeasured() as stub:
                return _memory(run.replace(gpu=stub), NO_READINGS)
        known = known_gpu(device_name) if device_name else None
        if known is None and run.gpu is None:
            raise UnsupportedError(f"the catalogue has no GPU named '{device_name}'; add gpu=NAME.")
        return _whole(run.replace(gpu=known.name) if known else run)
    except FineGaugeError as error:
        return Prediction(None, {}, {}, f"Not predicted: {error}")


def prediction_elsewhere(run: "Run") -> Prediction:
    """Return what is predicted for `run` on the GPU that it names: another machine measures it."""
    if run.gpu is None:
        return Prediction(None, {}, {}, "Not predicted: add gpu=NAME, the GPU that the endpoint runs on.")
    try:
        return _whole(run)
    except FineGaugeError as error:
        return Prediction(None, {}, {}, f"Not predicted: {error}")


@contextmanager
def memory_estimator(run: "Run", device: str) -> Iterator[Estimator]:
    """Yield what predicts the memory of runs on this machine's device, which needs no readings of it.

    Raises: UnsupportedError for a GPU that neither a device profile nor the run names.
    """
    with _gpu_here(run, device) as gpu:
        yield lambda asked: predict_memory(asked.replace(gpu=gpu))


@contextmanager
def _gpu_here(run: "Run", device: str) -> Iterator[str]:
    """Yield a name for this machine's device, whose memory at least is known."""
    path = shelf_path(device)
    if os.path.isfile(path) or (device == "cuda" and run.gpu is not None):
        yield path if os.path.isfile(path) else str(run.gpu)
    elif device == "cpu":
        with _unmeasured() as stub:
            yield stub
    else:
        raise UnsupportedError(
            "Which GPU this machine has is not known: add gpu=NAME, or run 'finegauge micro --device cuda'."
        )


def _whole_or_memory(run: "Run") -> Prediction:
    """Return the prediction by a device profile; of memory alone where it lacks the run's number format."""
    try:
        return _whole(run)
    except UnsupportedError as error:
        return _memory(run, f"Time is not predicted: {error}")


def _whole(run: "Run") -> Prediction:
    """Return the prediction of memory and time."""
    return Prediction(predict(run), _formulas(run), work_of(run))


def _memory(run: "Run", missing: str) -> Prediction:
    """Return the prediction of memory alone, and why there is no more."""
    return Prediction(predict_memory(run), _formulas(run), {}, missing)


def _formulas(run: "Run") -> Mapping[Path, str]:
    """Return the arithmetic behind a prediction."""
    from finegauge.prediction.explanation import formulas

    try:
        return formulas(run)
    except UnsupportedError:
        return {}


@contextmanager
def _unmeasured() -> Iterator[str]:
    """Yield a device profile of this machine's processor in which nothing but its memory is known."""
    memory_bytes = float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    nothing = {
        "operator": "add", "dtype": "fp32", "direction": "forward", "sizes": {"rows": 1, "width": 1},
        "seconds": 1.0,
    }  # fmt: skip
    profile = {
        "kind": KIND, "schema_version": SCHEMA_VERSION, "name": "this processor", "device": "cpu",
        "memory_bytes": memory_bytes, "usable_bytes": memory_bytes, "readings": [nothing], "host": {},
    }  # fmt: skip
    with TemporaryDirectory(prefix="finegauge-") as folder:
        path = os.path.join(folder, "cpu.json")
        write_document(profile, path)
        yield path
