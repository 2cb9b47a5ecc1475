"""The predicted memory of a run on a device whose speed is not known: `predict` without its time."""

from finegauge.catalogue.gpus import gpu as find_gpu
from finegauge.graph.step_flops import step_flops
from finegauge.predict.calibrated import current
from finegauge.predict.device import Device
from finegauge.predict.measured import calibrated_by
from finegauge.predict.memory import cublas_bytes, outside_tensors
from finegauge.predict.phases import Question, answer, check_supported
from finegauge.predict.predictor import longest_extents, mean_extents
from finegauge.predict.sharding import rank_extents, share_of
from finegauge.profile import Profile, Source
from finegauge.workload.data import shape
from finegauge.workload.prompts import micro_steps
from finegauge.workload.run import Run

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
