"""Predict one optimizer step of a run, whole or its memory alone, for a named GPU or for this machine."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from finegauge.catalogue.gpus import GpuSpec, known_gpu
from finegauge.catalogue.gpus import gpu as find_gpu
from finegauge.data.batch_shape import BatchShape, in_micro_batches, shape
from finegauge.documents import write_document
from finegauge.errors import FieldError, FineGaugeError, UnsupportedError
from finegauge.model.graph import Graph, step_flops, value_run
from finegauge.model.op import Extents
from finegauge.prediction.allocator import cached_bytes, outside_tensors
from finegauge.prediction.calibration import Calibration, Learned, current
from finegauge.prediction.device import Device
from finegauge.prediction.memory import CUBLAS_BYTES, CUBLAS_DEFAULT_BYTES, LiveSet
from finegauge.prediction.recomputation import rerun, rerun_share
from finegauge.prediction.sharding import (
    Share,
    gradients_left,
    longest_extents,
    mean_extents,
    rank_extents,
    rank_live_set,
    share_of,
)
from finegauge.prediction.time import (
    TRAINED,
    Answer,
    Question,
    StepTime,
    board_power,
    check_supported,
    micro_batch_time,
    slowest_extents,
    step_energy_j,
    step_of,
    training,
)
from finegauge.prediction.uncertainty import evidence, memory_interval, spread_lengths, time_interval
from finegauge.profile import Breakdown, Estimator, Exchange, Explanation, Held, Path, Profile, Source, Work
from finegauge.records import NamedTuple
from finegauge.run.phases import by_engine, images_in_words, micro_steps
from finegauge.run.rules import SERVING
from finegauge.run.run import Run
from finegauge.units import GIB

if TYPE_CHECKING:
    from finegauge.prediction.links import Network
    from finegauge.prediction.profiled_device import ProfiledDevice

ANY_DEVICE = "A100-SXM4-80GB"  # memory does not depend on how fast a device is; these seconds are dropped
NO_READINGS = "Time is not predicted: this machine has no device profile yet; run 'finegauge micro' once."


def predict(
    run: Run, calibration: Calibration | None = None, *, batch: BatchShape | None = None, timed: bool = True
) -> Profile:
    """Return the predicted profile of one optimizer step of `run`.

    Running out of memory is an outcome, not an error: memory and time are still filled in.

    Args:
        run: The question.
        calibration: The constants; the current ones by default.
        batch: The micro-batch; by default what `run` has on average and at its longest.
        timed: Whether time is asked about; without it a search for what fits takes half as long, and the
            time of a training step is left empty.

    Raises:
        FieldError: The run names no GPU, or sizes that its model does not allow.
        UnsupportedError: A phase or method without a model yet.
    """
    check_supported(run)
    if run.gpu is None:
        raise FieldError(
            "The run names no GPU; add 'gpu: A100-SXM4-80GB' or --gpu NAME ('finegauge gpus' lists them)."
        )
    asked_run, batch = run, batch or shape(run)
    run = in_micro_batches(run, batch)
    gpu, share = gpu_of(run), share_of(run)
    graph = share.graph
    dtype = graph.lowering.compute_dtype
    check_format(run, gpu, dtype)
    asked_of = calibration or current()
    learned = asked_of.learned_of(gpu.name, run)
    device = device_of(str(run.gpu), asked_of, dtype, run.power_limit_w, learned)
    if not isinstance(device, Device):
        device.check(run)
    calibration = device.calibration
    asked = _question(asked_run, run, batch, share, gpu, device, calibration)._replace(
        network=_network(run, gpu, calibration) if share.communicates or run.reference_offload else None,
        slowest=rank_extents(run, slowest_extents(run, batch)) if timed else None,
        timed=timed,
    )
    live, step, observations = _answer(asked)
    ranks = run.num_gpus / run.pipeline_parallel  # the graph holds the layers of every stage
    flops = step_flops(run, graph, asked.mean) * ranks
    found = _profile(
        asked_run, run, batch, share, gpu, calibration, live, _nccl(share, calibration),
        source=_source(run, gpu, graph, calibration, learned, batch.source),
        step_time_s=step.parts,
        step_energy_j=_energy_j(run, gpu, calibration, step, flops),
        step_flops=flops,
        host_bound_fraction=step.host_bound_s / step.parts.total if step.parts.total else 0.0,
        peak_flops_per_s=gpu.peak_flops_per_s(dtype),
        explanation=PredictionExplained(run, timed=timed),
        observations=observations,
    )  # fmt: skip
    on_device = found.device_memory_bytes
    cached = cached_bytes(run, graph, live, asked.longest, on_device, gpu.usable_bytes, calibration)
    return found._replace(cached_bytes=cached)


def needed(run: Run) -> Profile:
    """Return what `predict` does, but for its time: an Estimator that searches for what fits take."""
    return predict(run, timed=False)


def _question(
    asked_run: Run, run: Run, batch: BatchShape, share: Share, gpu: GpuSpec,
    device: "Device | ProfiledDevice", calibration: Calibration,
) -> Question:  # fmt: skip
    """Return the question of memory, in which nothing is exchanged; `asked_run`: not packed yet."""
    sent = calibration.nccl_bytes if share.distributed else 0.0
    return Question(
        run=run,
        share=share,
        mean=rank_extents(run, mean_extents(batch)),
        longest=rank_extents(run, longest_extents(batch)),
        device=device,
        network=None,
        cublas_bytes=CUBLAS_BYTES.get(gpu.architecture, CUBLAS_DEFAULT_BYTES),
        unpacked=asked_run,
        # what the process itself, and NCCL's buffers, leave of the memory that the run may use
        room_bytes=gpu.usable_bytes - calibration.context_bytes - sent,
        timed=False,
    )


def _source(
    run: Run, gpu: GpuSpec, graph: Graph, calibration: Calibration, learned: Learned | None, batches: str
) -> Source:
    told = evidence(run, gpu) if learned is None else learned_in_words(learned)
    said = *images_in_words(run), *_assumed(run, gpu), spread_lengths(run), told
    return Source(
        kind="predicted",
        name=calibration.name,
        memory_interval=memory_interval(run, calibration.memory_interval),
        time_interval=time_interval(run, gpu, calibration.time_interval, learned),
        assumptions=tuple(filter(None, (batches, *_quantised(graph), *graph.model.notes, *said))),
    )


def _profile(
    asked_run: Run, run: Run, batch: BatchShape, share: Share, gpu: GpuSpec, calibration: Calibration,
    live: LiveSet, beside: Breakdown, **others: Any,
) -> Profile:  # fmt: skip
    peak = live.peak
    on_device = peak + outside_tensors(run, share.graph, peak, calibration) + beside
    micro_batches = micro_steps(run) * run.data_parallel
    return Profile(
        run=asked_run,
        outcome="completed" if on_device.total <= gpu.usable_bytes else "out_of_memory",
        peak_memory_bytes=peak,
        device_memory_bytes=on_device,
        phase_memory_bytes=live.by_phase(),
        peak_phase=live.peak_phase,
        step_tokens=batch.tokens * micro_batches,
        step_sequences=batch.samples * micro_batches,
        capacity_bytes=gpu.usable_bytes,
        **others,
    )


def _nccl(share: Share, calibration: Calibration) -> Breakdown:
    return Breakdown({("NCCL",): calibration.nccl_bytes} if share.distributed else {})


def _energy_j(run: Run, gpu: GpuSpec, calibration: Calibration, step: StepTime, flops: float) -> Breakdown:
    power = board_power(gpu, calibration, run.power_limit_w)
    if run.phase in SERVING and by_engine(run):
        from finegauge.prediction.serving import served_energy_j

        half = gpu.flops_per_s.get("bf16") or gpu.flops_per_s.get("fp16") or 0.0
        return served_energy_j(power, step, flops, run, half) if half else Breakdown({})
    return step_energy_j(power, step, calibration, run.num_gpus)


def gpu_of(run: Run) -> GpuSpec:
    """Return the GPU of `run`, its usable memory no more than the run may have."""
    gpu = find_gpu(str(run.gpu))
    if run.phase in SERVING and by_engine(run):
        from finegauge.prediction.serving import Limits

        gpu = gpu._replace(usable_bytes=gpu.usable_bytes * Limits.of(run).memory_fraction)
    if run.free_memory_bytes is None:
        return gpu
    return gpu._replace(usable_bytes=min(gpu.usable_bytes, run.free_memory_bytes))


def predict_memory(run: Run) -> Profile:
    """Return the predicted profile of one step of `run`, which names its GPU, with no time in it.

    Raises: UnsupportedError for a phase or method that is not supported yet.
    """
    check_supported(run)
    asked_run, batch = run, shape(run)
    run = in_micro_batches(run, batch)
    gpu, share, calibration = gpu_of(run), share_of(run), current()
    if gpu.measured is not None:
        from finegauge.prediction.profiled_device import calibrated_by

        calibration = calibrated_by(gpu.measured, calibration)
    device = device_of(ANY_DEVICE, current(), share.graph.lowering.compute_dtype)
    asked = _question(asked_run, run, batch, share, gpu, device, calibration)
    live, *_ = _answer(asked)
    return _profile(
        asked_run, run, batch, share, gpu, calibration, live, Breakdown({}),
        source=Source("predicted", calibration.name, assumptions=(batch.source,)),
        step_flops=step_flops(run, share.graph, asked.mean) * run.num_gpus / run.pipeline_parallel,
        explanation=PredictionExplained(run, timed=False),
    )  # fmt: skip


def predict_steps(runs: Sequence[Run]) -> Iterator[Profile]:
    """Yield the step of each of `runs`, which differ in micro-batch and sequence length and have one graph.

    The sizes of their micro-batches stand side by side as arrays [run]; the functions are those of `predict`,
    and so are the numbers. Left out of each profile: FLOPs, energy, cached blocks, the words on assumptions.

    Raises: UnsupportedError for a phase of more than passes of training, or a device known by its readings.
    """
    run, calibration = runs[0], current()
    check_supported(run)
    gpu, share = gpu_of(run), share_of(run)
    dtype = share.graph.lowering.compute_dtype
    check_format(run, gpu, dtype)
    one = device_of(str(run.gpu), calibration, dtype, run.power_limit_w)
    if run.phase not in TRAINED or not isinstance(one, Device):
        raise UnsupportedError(f"phase={run.phase} on {gpu.name} is predicted run by run; use predict.")
    device, batches = Device.side_by_side([one]), [shape(one) for one in runs]
    mean, longest = _side_by_side(run, batches, mean_extents), _side_by_side(run, batches, longest_extents)
    live = rank_live_set(run, share, longest, CUBLAS_BYTES.get(gpu.architecture, CUBLAS_DEFAULT_BYTES))
    micro_batch, waits_s = micro_batch_time(share, mean, device), 0.0
    slowest = [slowest_extents(one, batch) for one, batch in zip(runs, batches, strict=True)]
    if any(one != mean_extents(batch) for one, batch in zip(slowest, batches, strict=True)):
        late = micro_batch_time(share, rank_extents(run, _stacked(slowest)), device)
        waits_s = late.parts.total - micro_batch.parts.total
    network = _network(run, gpu, calibration) if share.communicates or run.reference_offload else None
    nccl, peak = _nccl(share, calibration), live.peak
    held_bytes = (peak + outside_tensors(run, share.graph, peak, calibration) + nccl).total
    time = step_of(
        micro_batch,
        share,
        mean,
        device,
        network,
        run.gradient_accumulation_steps,
        waits_s,
        gpu.usable_bytes - held_bytes,
    ).parts
    source = Source("predicted", calibration.name, memory_interval(run, calibration.memory_interval))
    for place, (run, batch) in enumerate(zip(runs, batches, strict=True)):
        own = LiveSet({name: _at(place, held) for name, held in live.phases.items()})
        yield _profile(
            run, run, batch, share, gpu, calibration, own, nccl, source=source, step_time_s=_at(place, time)
        )


def _side_by_side(run: Run, batches: Sequence[BatchShape], of: Callable[[BatchShape], Extents]) -> Extents:
    return rank_extents(run, _stacked([of(batch) for batch in batches]))


def _stacked(extents: Sequence[Extents]) -> Extents:
    import numpy

    columns: Any = numpy.array(extents, dtype=float).T
    return Extents(*columns)


def _at(place: int, parts: Breakdown) -> Breakdown:
    import numpy

    each: dict[Path, Any] = {path: numpy.ravel(value) for path, value in parts.parts.items()}
    found = {path: float(value[place if len(value) > 1 else 0]) for path, value in each.items()}
    return Breakdown({path: value for path, value in found.items() if value})


def _answer(asked: Question) -> Answer:
    if asked.run.phase in TRAINED:
        return training(asked)
    from finegauge.prediction.phases import answer

    return answer(asked)


def _network(run: Run, gpu: GpuSpec, calibration: Calibration) -> "Network":
    from finegauge.prediction.links import Network

    return Network.of(run, gpu, calibration)


def _assumed(run: Run, gpu: GpuSpec) -> Iterator[str]:
    if run.fp8 and "fp8" not in gpu.flops_per_s:
        yield f"{gpu.name} has no fp8 units, so fp8 products are computed in 16 bit"
    if run.num_gpus > 1 or run.cpu_offload != "none":
        from finegauge.prediction.links import assumed
        from finegauge.prediction.offload import assumptions

        yield from (*assumed(run, gpu), *assumptions(run, gpu))


def check_format(run: Run, gpu: GpuSpec, dtype: str) -> None:
    """Raise where the GPU does not compute in `dtype`, with the override that helps; where it has no rates.

    Raises: UnsupportedError.
    """
    if not gpu.flops_per_s:
        needed, room = predict_memory(run).device_memory_bytes.total / GIB, gpu.usable_bytes / GIB
        raise UnsupportedError(
            f"No time is predicted on {gpu.name}, whose matrix rates are not published; of its memory the "
            f"run needs {needed:.1f} of {room:.1f} GiB."
        )
    if dtype in gpu.flops_per_s or dtype != "bf16" or "fp16" not in gpu.flops_per_s:
        return
    field = "autocast" if run.autocast == dtype else "weights_dtype"
    adapters = " adapter_dtype=fp16" if run.trains_adapters and run.adapter_dtype == dtype else ""
    raise UnsupportedError(
        f"{gpu.name} has no bf16, which {field}={getattr(run, field)} computes in; "
        f"use {field}=fp16{adapters}, which is its default."
    )


def device_of(
    name: str,
    calibration: Calibration,
    dtype: str,
    power_limit_w: float | None = None,
    learned: Learned | None = None,
) -> "Device | ProfiledDevice":
    """Return the device called `name`, its rates or its readings ready, at the pace that was learned."""
    gpu = find_gpu(name)
    if gpu.measured is None:
        device = _datasheet_device(name, calibration, dtype, power_limit_w)
        if learned is None:
            return device
        return device._replace(
            pace_ratio=learned.pace_ratio, trainer_s=learned.trainer_s, trainer_step_s=learned.trainer_step_s
        )
    from finegauge.prediction.profiled_device import ProfiledDevice

    found = ProfiledDevice(gpu, gpu.measured, calibration, dtype)
    if learned is not None:
        found.pace_ratio, found.trainer_s = learned.pace_ratio, learned.trainer_s
        found.trainer_step_s = learned.trainer_step_s
    return found


def learned_in_words(learned: Learned) -> str:
    """Return in one line what finished runs change of a step."""
    return (
        f"the step time, for {learned.num_runs} finished runs on this GPU: kernels take "
        f"{learned.pace_ratio:.2f} times as long, the trainer {1e3 * learned.trainer_s:.1f} ms a micro-batch "
        f"and {1e3 * learned.trainer_step_s:.1f} ms a step"
    )


@lru_cache(maxsize=32)
def _datasheet_device(name: str, calibration: Calibration, dtype: str, power_limit_w: float | None) -> Device:
    return Device.of(find_gpu(name), calibration, {dtype, "fp32"}, power_limit_w)


def _quantised(graph: Graph) -> tuple[str, ...]:
    """Return which tensors of a mixture of experts the quantiser really touches."""
    low = graph.lowering
    if not low.quantized:
        return ()
    kinds = {tensor.kind for layer, _ in graph.model.layers for tensor in layer.tensors()}
    if "experts" not in kinds:
        return ()
    if low.experts_quantized:
        return (f"the experts are {low.quantized} like the other projections (one module each)",)
    return (
        "the experts stay 16-bit: transformers 5 fuses them into tensors that the quantiser passes by "
        "(quantize_experts=true where they are unfused)",
    )


class PredictionExplained(Explanation):
    """What the prediction of `run` rests on; `timed`: its time is predicted too."""

    def __init__(self, run: Run, *, timed: bool = True) -> None:
        """Wait to be read."""
        self.run, self.timed = run, timed

    @cached_property
    def formulas(self) -> Mapping[Path, str]:
        """Return how each part of memory and of time is worked out."""
        from finegauge.prediction.explanation import formulas

        return formulas(self.run)

    @cached_property
    def exchanged(self) -> Sequence[Exchange]:
        """Return what one rank exchanges in a step, by kind and group, the most bytes first."""
        from finegauge.prediction.collectives import exchanges

        return exchanges(self.run)

    @cached_property
    def work(self) -> Mapping[Path, Work]:
        """Return the work of each path of the step time; nothing for phases that are more than one pass."""
        return work_of(self.run) if self.timed else {}

    @cached_property
    def held(self) -> Held:
        """Return what one rank holds between steps for the models that it trains."""
        return held_between_steps(self.run)


def work_of(run: Run) -> dict[Path, Work]:
    """Return the work of one step of `run` by path; empty for phases that are more than one pass."""
    if run.phase not in ("sft", "pretrain", "reward"):
        return {}
    graph, extents = share_of(run).graph, rank_extents(run, mean_extents(shape(run)))
    found: dict[Path, Work] = {}
    for count, ops, sizes in graph.passed(extents):
        for stage, those in (("forward", ops), ("recompute", rerun(run, graph, ops)), ("backward", ops)):
            share = rerun_share(run, graph, ops) if stage == "recompute" else 1.0
            times = count * share * run.gradient_accumulation_steps
            for op in those:
                cost = op.backward if stage == "backward" else op.forward
                flops, num_bytes = found.get((stage, *op.path), Work())
                flops += times * cost.flops.at(sizes.windowed(op.window))
                found[stage, *op.path] = Work(flops, num_bytes + times * cost.bytes.at(sizes))
    return found


def held_between_steps(run: Run) -> Held:
    """Return the bytes of weights, gradients and optimizer states of what a rank of `run` trains."""
    weights = gradients = optimizer = 0.0
    for trained in (run, value_run(run)) if run.phase == "ppo" else (run,):
        own = share_of(trained).graph.weights
        weights += own.base_bytes + own.adapter_bytes
        gradients += own.gradient_bytes
        optimizer += own.optimizer_bytes
    return Held(weights, gradients * gradients_left(run), optimizer)


class Prediction(NamedTuple):
    """What is predicted for this machine, or for another that is measured from here."""

    profile: Profile | None
    formulas: Mapping[Path, str]
    work: Mapping[Path, Work]  # what each path of the step time computes and moves
    missing: str = ""  # why there is none, or what it lacks

    @classmethod
    def of(cls, profile: Profile, missing: str = "") -> "Prediction":
        """Return `profile` with what explains it."""
        return cls(profile, profile.explanation.formulas, profile.explanation.work, missing)


def prediction_for(run: Run, device: str, device_name: str = "") -> Prediction:
    """Return what is predicted for `run` on this machine's `device`, cpu or cuda, whatever GPU it names.

    `device_name` is what a GPU calls itself.
    """
    from finegauge.catalogue.device_profile import own_profile_path

    path = own_profile_path(device)
    try:
        if os.path.isfile(path):
            return _whole_or_memory(run.replace(gpu=path))
        if device == "cpu":
            with _unmeasured_cpu() as stub:
                return Prediction.of(predict_memory(run.replace(gpu=stub)), NO_READINGS)
        known = known_gpu(device_name) if device_name else None
        if known is None and run.gpu is None:
            raise UnsupportedError(f"the catalogue has no GPU named '{device_name}'; add gpu=NAME.")
        return Prediction.of(predict(run.replace(gpu=known.name) if known else run))
    except FineGaugeError as error:
        return Prediction(None, {}, {}, f"Not predicted: {error}")


def prediction_elsewhere(run: Run) -> Prediction:
    """Return what is predicted for `run` on the GPU that it names: another machine measures it."""
    if run.gpu is None:
        return Prediction(None, {}, {}, "Not predicted: add gpu=NAME, the GPU that the endpoint runs on.")
    try:
        return Prediction.of(predict(run))
    except FineGaugeError as error:
        return Prediction(None, {}, {}, f"Not predicted: {error}")


@contextmanager
def memory_estimator(run: Run, device: str) -> Iterator[Estimator]:
    """Yield what predicts the memory of runs on this machine's device, which needs no readings of it.

    Raises: UnsupportedError for a GPU that neither a device profile nor the run names.
    """
    from finegauge.catalogue.device_profile import own_profile_path

    path = own_profile_path(device)
    if os.path.isfile(path) or (device == "cuda" and run.gpu is not None):
        name = path if os.path.isfile(path) else str(run.gpu)
        yield lambda asked: predict_memory(asked.replace(gpu=name))
    elif device == "cpu":
        with _unmeasured_cpu() as stub:
            yield lambda asked: predict_memory(asked.replace(gpu=stub))
    else:
        raise UnsupportedError(
            "Which GPU this machine has is not known: add gpu=NAME, or run 'finegauge micro --device cuda'."
        )


def _whole_or_memory(run: Run) -> Prediction:
    """Return the prediction by a device profile; of memory alone where it lacks the run's number format."""
    try:
        return Prediction.of(predict(run))
    except UnsupportedError as error:
        return Prediction.of(predict_memory(run), f"Time is not predicted: {error}")


@contextmanager
def _unmeasured_cpu() -> Iterator[str]:
    """Yield a device profile of this machine's processor in which nothing but its memory is known."""
    from finegauge.catalogue.device_profile import KIND, NF4_INFERENCE, SCHEMA_VERSION
    from finegauge.catalogue.machine import host_memory_bytes

    memory_bytes, _ = host_memory_bytes()
    stub = {"dtype": "fp32", "direction": "forward", "seconds": 1.0}
    readings = [{"operator": "add", "sizes": {"rows": 1, "width": 1}, **stub}]
    if has_avx512_bf16():
        readings.append({"operator": NF4_INFERENCE, "sizes": {"rows": 1, "n": 1, "k": 1}, **stub})
    profile = {
        "kind": KIND, "schema_version": SCHEMA_VERSION, "name": "this processor", "device": "cpu",
        "memory_bytes": memory_bytes, "usable_bytes": memory_bytes, "readings": readings, "host": {},
    }  # fmt: skip
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="finegauge-") as folder:
        path = os.path.join(folder, "cpu.json")
        write_document(profile, path)
        yield path


def has_avx512_bf16() -> bool:
    """Return whether this machine's processor multiplies in bf16, as Linux tells its features."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            return any("avx512_bf16" in line.split() for line in file)
    except OSError:
        return False
