"""The NVIDIA driver's own counters, where there is a driver: one way in for every meter.

Through nvidia-ml-py, which is small and optional. A machine without it, without a driver
or without the counter asked for has none, and says why.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch


class Nvml(NamedTuple):
    """The library and one device of it."""

    driver: Any  # the pynvml module, initialised
    handle: Any

    def ask(self, name: str, *arguments: Any) -> Any:
        """Return what the library's function `name` says of the device; None where it is not supported."""
        function: Callable[..., Any] = getattr(self.driver, name)
        try:
            return function(self.handle, *arguments)
        except self.driver.NVMLError:
            return None


class Unavailable(NamedTuple):
    """Why there are no counters."""

    why: str


def nvml_of(device: torch.device) -> Nvml | Unavailable:
    """Return the driver's view of a torch device, which CUDA_VISIBLE_DEVICES may have renumbered."""
    if device.type != "cuda":
        return Unavailable(f"{device.type} has no NVIDIA driver")
    try:
        import pynvml  # type: ignore[import-untyped]
    except ImportError:
        return Unavailable("nvidia-ml-py is not installed: pip install nvidia-ml-py")
    return open_nvml(pynvml, str(torch.cuda.get_device_properties(device).uuid), device.index or 0)


def open_nvml(library: Any, uuid: str, index: int) -> Nvml | Unavailable:
    """Return the device with `uuid`, or else the one numbered `index`, of an NVML library."""
    try:
        library.nvmlInit()
    except library.NVMLError as error:
        return Unavailable(f"NVML does not start: {error}")
    try:
        return Nvml(library, library.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}"))
    except library.NVMLError:
        try:
            return Nvml(library, library.nvmlDeviceGetHandleByIndex(index))
        except library.NVMLError as error:
            return Unavailable(f"NVML does not know the device: {error}")
