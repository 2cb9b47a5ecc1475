"""What a measurement was taken on: device, driver, processor, threads, versions, commit, date."""

import os
import platform
import subprocess
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

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
        **{name: _version(name) for name in PACKAGES},
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
    """Return the NVIDIA driver's version."""
    if device.type != "cuda":
        return ""
    with suppress(OSError), open("/proc/driver/nvidia/version", encoding="utf-8") as text:
        words = text.readline().split("Kernel Module")[-1].split()
        return next((word for word in words if word[:1].isdigit()), "")
    return ""


def _version(package: str) -> str:
    """Return the installed version of a package."""
    with suppress(PackageNotFoundError):
        return version(package)
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
