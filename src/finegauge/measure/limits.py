"""How much memory a trial may take, and how to tell that it ran out.

On a CPU the limit is on the address space of the process, counted from what it takes once
libraries are loaded and threads run: an allocation beyond it fails as on a full GPU. On
CUDA it is the share of the device that torch's allocator may have.
"""

import errno
import os
import resource

import torch

from finegauge.workload.run import Run

CPU_WORDS = ("can't allocate memory", "Cannot allocate memory", "out of memory", "not enough memory")
LIMITED_WORDS = ("can't start new thread", "Thread creation failed", "Resource temporarily unavailable")


def warm(run: Run) -> None:
    """Load what the run needs and start the threads, so that neither counts against a limit."""
    from finegauge.measure.models.classes import class_of

    class_of(run.config, run.num_experts_per_tok)
    if run.trains_adapters:
        import peft

        assert peft
    if run.method == "qlora" or run.optimizer.endswith("8bit") or run.optimizer.startswith("paged"):
        import bitsandbytes

        assert bitsandbytes
    square = torch.ones(256, 256, requires_grad=True)
    (square @ square).sum().backward()


def limit_memory(limit_bytes: float, device: torch.device) -> None:
    """Let the process allocate at most `limit_bytes` more than it holds now; 0: no limit."""
    if not limit_bytes:
        return
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit_bytes / total), device)
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_address_space_bytes() + int(limit_bytes), hard))


def lift_limit() -> None:
    """Allow what the machine allows, so that the outcome can be told."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))


def out_of_memory_reason(error: BaseException, *, limited: bool) -> str:
    """Return how memory ran out, if that is what `error` says; else ""."""
    text = " ".join(str(error).split())
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return text[:300] or "the interpreter could not allocate memory"
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return text[:300]
    words = (*CPU_WORDS, *LIMITED_WORDS) if limited else CPU_WORDS
    return text[:300] if any(word in text for word in words) else ""


def _address_space_bytes() -> int:
    """Return the size of this process's address space."""
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
