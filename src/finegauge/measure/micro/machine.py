"""What the machine that is timed has: a name for its device, its memory."""

import os

import torch

from finegauge.measure.fingerprint import device_name

LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def full_name(device: torch.device) -> str:
    """Return what the device calls itself; a processor with the threads that work on it."""
    threads = torch.get_num_threads()
    with_threads = f", {threads} thread{'s' if threads > 1 else ''}" if device.type == "cpu" else ""
    return f"{device_name(device)}{with_threads}"


def memory_bytes(device: torch.device) -> tuple[float, float]:
    """Return the bytes that the device has and those that a process could still allocate now."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return float(total), float(free)
    physical = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    limits = [float(text) for path in LIMITS if (text := _text(path).strip()).isdigit()]
    capacity = min([physical, *limits])
    return capacity, min(capacity, _available_bytes() or capacity)


def _text(path: str) -> str:
    """Return what a small file of the system says, "" if there is none."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""


def _available_bytes() -> float:
    """Return Linux's own estimate of what can be allocated without swapping; 0 where it gives none."""
    for line in _text("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return float(line.split()[1]) * 1024
    return 0.0
