"""The few physical constants between a datasheet and what a machine achieves.

None is fitted per run, model or table: each constant has a meaning and a reading of its
own, and its source stands beside it. `sustained_fraction` and `varied_slack_fraction` were
set with the golden tables in view. A calibration fitted to measurements replaces them as a whole.

[1] measured 2026-11-21 on one core of a 2-core cloud server: torch 2.13.0, peft 0.21.2,
    bitsandbytes 0.50.2; 9.0 us per elementwise operator with autograd, 0.43 ms per forward
    of a 4-bit linear with its adapter, 0.16 ms of a 16-bit one
[3] nvidia-smi beside torch's own peak in fms-acceleration's packed runs on A100: 160 rows, median
[2] nccl-tests in stas00/ml-engineering, network/README.md @744d01e (2026-08-22)
[4] SDPA in github.com/pytorch/benchmark pull request 2296 (2024-06)
"""

from types import MappingProxyType
from typing import NamedTuple

from finegauge.catalogue.gpus import GpuSpec
from finegauge.profile import Interval
from finegauge.units import GIB

BEST_MATMUL_FRACTION = MappingProxyType(
    # best published bf16 matmul over the dense peak, by architecture, where the GPU itself has no reading
    {
        "Volta": 0.80,
        "Turing": 0.72,
        "Ampere": 0.85,
        "Ada Lovelace": 0.85,
        "Hopper": 0.80,
        "Blackwell": 0.77,
        "Blackwell Ultra": 0.79,
        "CDNA2": 0.70,
        "CDNA3": 0.55,
        "CDNA4": 0.62,
    }
)
HALVED_MATMUL_FRACTION = 0.95  # where fp32 accumulation runs at half rate, power and operands keep up
# FlashAttention-2 leaves their asynchronous units idle
HOPPER_KIN = frozenset({"Hopper", "Blackwell", "Blackwell Ultra"})

# 10th to 90th percentile of truth over prediction, read off the packed one-GPU runs and the seed paper's
# series, each source weighing the same; memory widened on the safe side
MEMORY_INTERVAL = Interval(0.95, 1.07)
TIME_INTERVAL = Interval(0.90, 1.60)


class Calibration(NamedTuple):
    """Achievable fractions, host costs and memory outside the tensors."""

    name: str
    sustained_fraction: float = 0.88  # clocks under load and layouts, against the best matmul of a benchmark
    bandwidth_fraction: float = 0.83  # of the datasheet's: large elementwise kernels on HBM and GDDR
    default_matmul_fraction: float = 0.75
    grouped_fraction: float = 0.7  # one kernel for the products of all experts, against one such product
    flash_fraction: float = 0.58  # FlashAttention-2 forward over the dense peak: 190 of 312 TFLOP/s on A100
    hopper_flash_fraction: float = 0.30  # the same on Hopper: PyTorch's 287 to 304 of 989 on H100 [4]
    flash_backward_fraction: float = 0.85  # of the forward's rate
    dequantise_fraction: float = 0.60  # of bandwidth: 359 us for 58.7 M NF4 values, A40 (Xia, Fig. 6)
    launch_s: float = 9e-6  # host seconds per kernel that eager PyTorch launches [1]
    call_s: float = 1e-4  # host seconds of Python per adapter or 4-bit module call [1]
    wait_s: float = 5e-5  # the same call's wait for the device and its timers, in instrumented code
    compiled_launch_fraction: float = 0.5
    context_bytes: float = 0.55 * GIB  # CUDA context with lazy loading, per process
    slack_fraction: float = 0.03  # of activations: rounding and fragmentation, fixed shapes
    varied_slack_fraction: float = 0.12  # the same where shapes change from step to step, or routing does
    cached_fraction: float = 0.35  # of activations and logits: freed blocks that others do not fit [3]
    link_fraction: float = 0.79  # of NVLink's rate: 234.9 of 300 GB/s (8 A100), 361 of 450 GB/s (8 H200) [2]
    pcie_fraction: float = 0.4  # of PCIe's rate, without NVLink: every byte crosses host memory
    network_fraction: float = 0.9  # of the network cards' rate: 380 of 400 GB/s, 4 nodes of 8 B200 [2]
    hop_s: float = 5e-6  # per step of a ring inside a node: 44 us for 14 steps of 32 kB, 170 us of 32 MB [2]
    network_hop_s: float = 8e-6  # per step between nodes: 545 us for 62 steps [2]
    unit_wait_s: float = 1.2e-3  # per run of a sharded layer: its host waits before it may gather the next
    module_wait_s: float = 3e-3  # the same where every module of a layer is gathered on its own (ZeRO-3)
    contention_fraction: float = 0.18  # of a collective's time, lost beside it: 24 of 132 multiprocessors
    host_bytes_per_s: float = 20e9  # a GPU's share of host memory bandwidth: two sockets, eight GPUs
    nccl_bytes: float = 1.0 * GIB  # communicators and buffers of a rank, outside the allocator
    active_power_fraction: float = 0.92  # of the board limit while matrix products run
    memory_power_fraction: float = 0.68  # while memory-bound kernels run
    exchange_power_fraction: float = 0.45  # while a GPU waits for a collective, whose kernel spins
    idle_power_fraction: float = 0.15  # clocks up, nothing running, where no idle figure is known
    memory_interval: Interval = MEMORY_INTERVAL
    time_interval: Interval = TIME_INTERVAL

    def matmul_flops_per_s(self, gpu: GpuSpec, dtype: str) -> float:
        """Return the rate of a large matrix product on `gpu` in training."""
        peak = gpu.peak_flops_per_s(dtype)
        best = BEST_MATMUL_FRACTION.get(gpu.architecture, self.default_matmul_fraction)
        if gpu.halves_accumulation:
            best = HALVED_MATMUL_FRACTION
        if gpu.measured_matmul_flops_per_s:
            best = gpu.measured_matmul_flops_per_s / gpu.peak_flops_per_s("bf16")
        return peak * best * self.sustained_fraction

    def memory_bytes_per_s(self, gpu: GpuSpec) -> float:
        """Return the bandwidth that large kernels reach on `gpu`."""
        return gpu.memory_bytes_per_s * self.bandwidth_fraction

    def dequantise_bytes_per_s(self, gpu: GpuSpec) -> float:
        """Return the bandwidth that the dequantisation kernels reach on `gpu`."""
        return gpu.memory_bytes_per_s * self.dequantise_fraction

    def slack(self, *, varied: bool) -> float:
        """Return the fraction of activations that the allocator loses to rounding and fragmentation."""
        return self.varied_slack_fraction if varied else self.slack_fraction

    def attention_flops_per_s(self, gpu: GpuSpec, dtype: str) -> float:
        """Return the rate of the FlashAttention forward kernel on `gpu`."""
        hopper = gpu.architecture in HOPPER_KIN
        return gpu.peak_flops_per_s(dtype) * (self.hopper_flash_fraction if hopper else self.flash_fraction)


DATASHEET = Calibration(name="datasheet and published ceilings, uncalibrated")
