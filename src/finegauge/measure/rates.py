"""What a device can do at most, and what a step computes: the two sides of its utilisation."""

import os
from typing import NamedTuple

import torch

from finegauge.catalogue.device_profile import device_profile, shelf_path
from finegauge.catalogue.gpus import known_gpu
from finegauge.errors import FineGaugeError
from finegauge.graph.build import build
from finegauge.graph.op import Extents
from finegauge.graph.step_flops import step_flops
from finegauge.measure.fingerprint import device_name
from finegauge.measure.instruments.utilisation import Peaks
from finegauge.measure.options import Options
from finegauge.workload.data import shape
from finegauge.workload.run import Run


class Peak(NamedTuple):
    """The most that the device does in the run's number format."""

    flops_per_s: float  # 0: not known
    from_datasheet: bool  # not from this machine's own readings, which a step may by chance exceed


def peaks_of(device: torch.device) -> Peaks | None:
    """Return the device's peaks: of its datasheet, or of its device profile; None where neither is known."""
    if device.type == "cuda":
        spec = known_gpu(device_name(device))
        return None if spec is None else Peaks(spec.flops_per_s, spec.memory_bytes_per_s)
    path = shelf_path("cpu")
    if not os.path.isfile(path):
        return None
    profile = device_profile(path)
    return Peaks(profile.flops_per_s, profile.memory_bytes_per_s)


def peak_of(run: Run, device: torch.device) -> Peak:
    """Return the peak rate of the format that the run computes in."""
    peaks = peaks_of(device)
    dtype = run.autocast if run.autocast != "none" else run.weights_dtype
    dtype = dtype if dtype in ("fp32", "fp16", "bf16") else "bf16"
    return Peak(peaks.flops_per_s.get(dtype, 0.0) if peaks else 0.0, device.type == "cuda")


def model_flops(run: Run) -> float:
    """Return the FLOPs of one step by the operator graph; 0 where it has none."""
    try:
        graph, batch = build(run), shape(run)
    except FineGaugeError:
        return 0.0
    extents = Extents(batch.sequences, batch.tokens, batch.tokens_square, batch.longest_len)
    return step_flops(run, graph, extents)


def capacity_bytes(options: Options, device: torch.device) -> float:
    """Return what a trial could allocate: its limit, the GPU's memory, or the machine's."""
    if options.memory_limit_bytes:
        return options.memory_limit_bytes
    if device.type == "cuda":
        return float(torch.cuda.get_device_properties(device).total_memory)
    return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
