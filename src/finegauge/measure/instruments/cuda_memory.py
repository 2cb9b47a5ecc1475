"""What the caching allocator and the driver say of one step on a CUDA device.

Slack is what sits unused in blocks that are partly used: it cannot be given back. Cached
is the rest that the allocator keeps of freed blocks: it goes back when memory runs short.
Context is what the process holds on the device outside the allocator: CUDA itself, its
libraries' kernels and workspaces.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch

from finegauge.measure.instruments.nvml import Unavailable, nvml_of
from finegauge.measure.subject import Phase

PHASE_OF_STAGE = {"data": "forward"}  # every other stage is a phase of its own name


class CudaMemory(NamedTuple):
    """The allocator's and the process's bytes; peaks are those of one step."""

    phase_peak_bytes: dict[str, float]  # allocated, by phase
    reserved_bytes: float
    slack_bytes: float
    cached_bytes: float
    process_bytes: float  # 0: neither NVML nor the driver tells
    process_source: str

    @property
    def context_bytes(self) -> float:
        """Return what the process holds on the device beside the allocator."""
        return max(0.0, self.process_bytes - self.reserved_bytes)


def cuda_memory(phase: Phase, device: torch.device) -> CudaMemory:
    """Return the memory of one step of `phase`, taken here without any other instrument."""
    stages = _Stages(device)
    torch.cuda.synchronize(device)
    phase.step(stages)
    torch.cuda.synchronize(device)
    allocated = max(stages.peaks.values(), default=0.0)
    unused = max(0.0, stages.reserved_bytes - allocated)
    slack = min(unused, stages.split_bytes)
    process, source = _process_bytes(device)
    return CudaMemory(stages.peaks, stages.reserved_bytes, slack, unused - slack, process, source)


class _Stages:
    """A clock that reads the allocator's peak of each stage."""

    def __init__(self, device: torch.device) -> None:
        """Read the peaks of `device`."""
        self.device = device
        self.peaks: dict[str, float] = {}
        self.reserved_bytes = 0.0
        self.split_bytes = 0.0  # unused parts of used blocks, in the stage with the largest peak

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Read the peak of what runs inside; the allocator counts when the host asks, so nothing waits."""
        torch.cuda.reset_peak_memory_stats(self.device)
        yield
        stats = torch.cuda.memory_stats(self.device)
        peak = float(stats["allocated_bytes.all.peak"])
        if peak > max(self.peaks.values(), default=0.0):
            self.split_bytes = float(stats["inactive_split_bytes.all.peak"])
        self.reserved_bytes = max(self.reserved_bytes, float(stats["reserved_bytes.all.peak"]))
        name = PHASE_OF_STAGE.get(name, name)
        self.peaks[name] = max(peak, self.peaks.get(name, 0.0))


def _process_bytes(device: torch.device) -> tuple[float, str]:
    """Return what this process holds on the device, and who says so."""
    nvml = nvml_of(device)
    if not isinstance(nvml, Unavailable):
        for process in nvml.ask("nvmlDeviceGetComputeRunningProcesses") or ():
            if process.pid == os.getpid() and process.usedGpuMemory:
                return float(process.usedGpuMemory), "NVML, this process"
    free, total = torch.cuda.mem_get_info(device)
    return float(total - free), "CUDA, all processes on the device"
