"""The device of a measurement: its identity, its peak rates, the memory that a trial may take."""

import errno
import os
import platform
import subprocess
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import torch

from finegauge.catalogue.device_profile import device_profile, own_profile_path
from finegauge.catalogue.gpus import known_gpu
from finegauge.data.batch_shape import shape
from finegauge.documents import installed_version
from finegauge.errors import FineGaugeError, UnsupportedError
from finegauge.measurement.instruments.kernel_table import Peaks
from finegauge.measurement.options import Options
from finegauge.measurement.process import OUT_OF_MEMORY
from finegauge.measurement.subject import class_of
from finegauge.model.graph import build, step_flops
from finegauge.model.op import Extents
from finegauge.run.run import Run

PACKAGES = ("torch", "transformers", "peft", "bitsandbytes", "finegauge")
ROOT = Path(__file__).resolve().parents[3]  # of the checkout, where the package is not installed elsewhere


def fingerprint(device: torch.device) -> dict[str, str]:
    """Return the machine's and the software's identity, by name; what is not known is left out."""
    found = {
        "device": device_name(device),
        "driver": _driver(device),
        "cpu": cpu_name(),
        "cores": str(os.cpu_count() or ""),
        "threads": str(torch.get_num_threads()),
        "os": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        **{name: installed_version(name) for name in PACKAGES},
        "cuda": str(torch.version.cuda or "") if device.type == "cuda" else "",
        "commit": _commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    return {name: value for name, value in found.items() if value}


def device_name(device: torch.device) -> str:
    """Return what the device calls itself."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name()


def cpu_name() -> str:
    """Return the processor's model, as the kernel knows it."""
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as lines:
        for line in lines:
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def _driver(device: torch.device) -> str:
    if device.type != "cuda":
        return ""
    with suppress(OSError), open("/proc/driver/nvidia/version", encoding="utf-8") as text:
        words = text.readline().split("Kernel Module")[-1].split()
        return next((word for word in words if word[:1].isdigit()), "")
    return ""


def _commit() -> str:
    """Return FineGauge's own commit, marked where files differ from it; "" outside a checkout."""
    if not (ROOT / ".git").exists():
        return ""
    command = ["git", "-c", "safe.directory=*", "-C", str(ROOT), "describe", "--always", "--dirty"]
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
        return done.stdout.strip()
    return ""


LIMITED_WORDS = ("can't start new thread", "Thread creation failed", "Resource temporarily unavailable")


def warm(run: Run) -> None:
    """Load what the run needs and start the threads, so that neither counts against a limit."""
    class_of(run.config, run.num_experts_per_tok)
    if run.trains_adapters:
        import peft  # noqa: F401
    if run.method == "qlora" or run.optimizer.endswith("8bit") or run.optimizer.startswith("paged"):
        import bitsandbytes  # noqa: F401
    square = torch.ones(256, 256, requires_grad=True)
    (square @ square).sum().backward()


def limit_memory(limit_bytes: float, device: torch.device) -> None:
    """Let the process allocate at most `limit_bytes` more than it holds now; 0: no limit.

    On a CPU the limit is on the address space, counted from what it takes once libraries are loaded and
    threads run. On CUDA it is the share of the device that torch's allocator may have.
    """
    if not limit_bytes:
        return
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit_bytes / total), device)
        return
    try:
        import resource
    except ImportError:
        raise UnsupportedError("This system bounds no process's memory; measure without a limit.") from None
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm", encoding="ascii") as statm:
        held_bytes = int(statm.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (held_bytes + int(limit_bytes), hard))


def lift_limit() -> None:
    """Allow what the machine allows, so that the outcome can be told."""
    try:
        import resource
    except ImportError:  # then nothing was limited
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))


def out_of_memory_reason(error: BaseException, *, limited: bool) -> str:
    """Return how memory ran out, if that is what `error` says; else ""."""
    text = " ".join(str(error).split())
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return text[:300] or "the interpreter could not allocate memory"
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return text[:300]
    words = (*OUT_OF_MEMORY, *LIMITED_WORDS) if limited else OUT_OF_MEMORY
    return text[:300] if any(word in text for word in words) else ""


def peaks_of(device: torch.device) -> Peaks | None:
    """Return the device's peaks: of its datasheet, or of its device profile; None where neither is known."""
    if device.type == "cuda":
        spec = known_gpu(device_name(device))
        return None if spec is None else Peaks(spec.flops_per_s, spec.memory_bytes_per_s)
    path = own_profile_path("cpu")
    if not os.path.isfile(path):
        return None
    profile = device_profile(path)
    return Peaks(profile.flops_per_s, profile.memory_bytes_per_s)


def peak_flops_per_s(run: Run, device: torch.device) -> float:
    """Return the peak rate of the format that the run computes in; 0 where it is not known."""
    peaks = peaks_of(device)
    dtype = run.autocast if run.autocast != "none" else run.weights_dtype
    dtype = dtype if dtype in ("fp32", "fp16", "bf16") else "bf16"
    return peaks.flops_per_s.get(dtype, 0.0) if peaks else 0.0


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
