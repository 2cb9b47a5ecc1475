"""Predict one optimizer step of a run: memory, time and energy from first principles."""

from functools import lru_cache

from finegauge.catalogue.gpus import gpu as find_gpu
from finegauge.errors import FieldError, UnsupportedError
from finegauge.graph.build import Graph, build
from finegauge.graph.op import Extents
from finegauge.predict.calibration import DATASHEET, Calibration
from finegauge.predict.device import Device
from finegauge.predict.energy import step_energy_j
from finegauge.predict.memory import live_set, outside_tensors
from finegauge.predict.time import step_time
from finegauge.profile import Profile, Source
from finegauge.workload.data import BatchShape, shape
from finegauge.workload.run import Run

PREDICTED_PHASES = ("sft", "pretrain")


def predict(run: Run, calibration: Calibration = DATASHEET) -> Profile:
    """Return the predicted profile of one optimizer step of `run`.

    Running out of memory is an outcome, not an error: memory and time are still filled in.

    Raises:
        FieldError: The run names no GPU, or sizes that its model does not allow.
        UnsupportedError: Several GPUs, or a phase or method without a model yet.
    """
    check_supported(run)
    if run.gpu is None:
        raise FieldError(
            "The run names no GPU; add 'gpu: A100-SXM4-80GB' or --gpu NAME ('finegauge gpus' lists them)."
        )
    gpu = find_gpu(run.gpu)
    graph = build(run)
    batch = shape(run)
    mean, longest = mean_extents(batch), longest_extents(batch)
    device = _device(run.gpu, calibration, graph.lowering.compute_dtype)
    live = live_set(run, graph, longest, gpu.architecture)
    step = step_time(run, graph, mean, device)
    on_device = live.peak + outside_tensors(run, graph, live.peak, calibration)
    fits = on_device.total <= gpu.usable_bytes
    micro_steps = run.gradient_accumulation_steps
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
        phase_memory_bytes=live.by_phase(),
        peak_phase=live.peak_phase,
        step_time_s=step.parts,
        step_energy_j=step_energy_j(gpu, step, calibration),
        step_flops=model_flops(graph, mean) * micro_steps,
        step_tokens=batch.tokens * micro_steps,
        step_sequences=batch.samples * micro_steps,
        host_bound_fraction=step.host_bound_s / step.parts.total if step.parts.total else 0.0,
        peak_flops_per_s=gpu.peak_flops_per_s(graph.lowering.compute_dtype),
        capacity_bytes=gpu.usable_bytes,
    )


def check_supported(run: Run) -> None:
    """Refuse what no equation here covers, in one sentence."""
    if run.num_gpus > 1:
        raise UnsupportedError(
            f"num_gpus={run.num_gpus}: predictions cover one GPU so far; estimate one with num_gpus=1."
        )
    if run.phase not in PREDICTED_PHASES:
        raise UnsupportedError(
            f"phase={run.phase} is not predicted yet; {' and '.join(PREDICTED_PHASES)} are."
        )
    if run.method == "freeze":
        raise UnsupportedError("method=freeze is not predicted yet; full, lora, qlora and gptq_lora are.")
    if run.cpu_offload != "none":
        raise UnsupportedError(f"cpu_offload={run.cpu_offload} is not predicted yet; use cpu_offload=none.")


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
def _device(name: str, calibration: Calibration, dtype: str) -> Device:
    """Return the device called `name`, its rates ready."""
    return Device.of(find_gpu(name), calibration, {dtype, "fp32"})


def _assumptions(graph: Graph, batch: BatchShape) -> tuple[str, ...]:
    """Return what the answer takes for granted, in words."""
    return (batch.source, *graph.model.notes)
