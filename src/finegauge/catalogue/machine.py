"""The GPUs of this machine, as read from the vendors' own commands.

`nvidia-smi` (which asks NVML) for NVIDIA's, `rocm-smi` or `amd-smi` for AMD's, `sysctl` for Apple's. Which
are visible follows CUDA_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES, as for the training.
Memory is what is free at this moment, other programs' part left out: a run gets no more.
"""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

from finegauge.errors import InputError, UnsupportedError

TIMEOUT_S = 10.0  # of one command: a driver that hangs is none
METAL_FRACTION = 0.75  # of unified memory that Metal lets a process have unasked
MIB = 2**20
_NVIDIA = ("index", "uuid", "name", "memory.total", "memory.free", "driver_version", "mig.mode.current")


class GpuHere(NamedTuple):
    """One GPU of this machine, as its vendor's command describes it."""

    name: str  # as the command prints it
    total_bytes: float
    free_bytes: float
    driver: str
    is_sliced: bool = False  # by MIG, into parts that are not distinguished here


def gpus_here() -> tuple[GpuHere, ...]:
    """Return the GPUs of this machine that a training would see; () where there is none."""
    return _found(os.environ.get("PATH", ""))


def only_kind(num_gpus: int = 1) -> tuple[GpuHere, float]:
    """Return a GPU of this machine, and the bytes free on each of the `num_gpus` freest.

    Raises: UnsupportedError where there is none, or several kinds, or slices of them.
    """
    here = gpus_here()
    if not here:
        raise UnsupportedError(
            "This machine has no GPU that nvidia-smi, rocm-smi, amd-smi or macOS reports; name one: h100."
        )
    kinds = sorted({one.name for one in here})
    if len(kinds) > 1:
        raise UnsupportedError(
            f"This machine has {len(kinds)} kinds of GPU, {' and '.join(kinds)}: name one."
        )
    if len(here) < num_gpus:
        raise InputError(f"This machine has {len(here)} x {kinds[0]}, not {num_gpus}.")
    if here[0].is_sliced:
        raise UnsupportedError(
            f"{kinds[0]} is sliced by MIG, and slices are not distinguished: name the card and what a slice "
            f"holds, such as --gpu a100-80gb free_memory_bytes=9.75e9."
        )
    free = sorted((one.free_bytes for one in here), reverse=True)
    return here[0], free[num_gpus - 1]


def host_memory_bytes() -> tuple[float, float]:
    """Return the memory of this machine, and what programs could still allocate; 0 where no one says."""
    total = available = 0.0
    if sys.platform == "linux":
        with open("/proc/meminfo", encoding="ascii") as lines:
            found = dict(line.split(":") for line in lines)
        total, available = (1024 * float(found[key].split()[0]) for key in ("MemTotal", "MemAvailable"))
    elif hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        total = available = float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return total, available


def proc_bytes(field: str, path: str = "/proc/self/status") -> float:
    """Return a field of this process's status, or of another file like it; 0 where the system tells none."""
    try:
        with open(path, encoding="utf-8", errors="replace") as lines:
            values = [line.split()[1] for line in lines if line.startswith(f"{field}:")]
    except OSError:
        return 0.0
    return float(values[0]) * 1024 if values else 0.0


@cache
def _found(path: str) -> tuple[GpuHere, ...]:
    del path  # another PATH has other commands
    for name, read in _COMMANDS:
        if (sys.platform == "darwin" and name != "sysctl") or (name == "sysctl" and sys.platform != "darwin"):
            continue
        if _is_on_path(name):
            try:
                found = tuple(read())
            except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError):
                continue  # the command is there and its driver is not, or it prints something else
            if found:
                return found
    return ()


def _is_on_path(name: str) -> bool:
    """Return whether a command is there; without shutil, whose import takes longer."""
    names = (name, f"{name}.exe") if os.name == "nt" else (name,)
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return any(os.access(os.path.join(folder, one), os.X_OK) for folder in folders for one in names)


def _output(*command: str) -> str:
    """Return what a command prints.

    Raises: OSError where it fails or does not answer.
    """
    import subprocess

    try:
        done = subprocess.run(
            command, capture_output=True, timeout=TIMEOUT_S, check=True, stdin=subprocess.DEVNULL
        )
    except subprocess.SubprocessError as error:
        raise OSError(str(error)) from None
    return done.stdout.decode("utf-8", "replace")


def _of_nvidia() -> Iterator[GpuHere]:
    found = []
    printed = _output("nvidia-smi", f"--query-gpu={','.join(_NVIDIA)}", "--format=csv,noheader,nounits")
    for line in filter(None, printed.splitlines()):
        index, uuid, name, total, free, driver, mig = (cell.strip() for cell in line.split(","))
        one = GpuHere(name, MIB * float(total), MIB * float(free), driver, mig == "Enabled")
        found.append((index, uuid, one))
    yield from _visible(found, "CUDA_VISIBLE_DEVICES")


def _of_amd_smi() -> Iterator[GpuHere]:
    static, used = (
        _json("amd-smi", *words, "--json")
        for words in (("static", "--asic", "--vram", "--driver"), ("metric", "--mem-usage"))
    )
    static, used = (one["gpu_data"] if isinstance(one, dict) else one for one in (static, used))
    found = []
    for one, memory in zip(static, used, strict=True):
        total, free = (memory["mem_usage"][key] for key in ("total_vram", "free_vram"))
        driver = str(one.get("driver", {}).get("version", ""))
        here = GpuHere(str(one["asic"]["market_name"]), _megabytes(total), _megabytes(free), driver)
        found.append((str(one["gpu"]), "", here))
    yield from _visible(found, "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


def _megabytes(size: Any) -> float:
    """Return the bytes of {"value": 196592, "unit": "MB"}, of which amd-smi means MiB."""
    return MIB * float(size["value"] if isinstance(size, dict) else size)


def _of_rocm_smi() -> Iterator[GpuHere]:
    printed = _json("rocm-smi", "--showproductname", "--showmeminfo", "vram", "--showdriverversion", "--json")
    driver = str(printed.get("system", {}).get("Driver version", ""))
    found = []
    for key, card in printed.items():
        if key.startswith("card"):
            folded = {name.casefold(): value for name, value in card.items()}
            total, used = (float(folded[f"vram total {word}memory (b)"]) for word in ("", "used "))
            here = GpuHere(str(folded["card series"]), total, total - used, driver)
            found.append((key.removeprefix("card"), "", here))
    yield from _visible(found, "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


def _of_apple() -> Iterator[GpuHere]:
    name, size = _output("sysctl", "-n", "machdep.cpu.brand_string", "hw.memsize").splitlines()[:2]
    if name.startswith("Apple"):
        yield GpuHere(name.strip(), float(size), METAL_FRACTION * float(size), "")


def _json(*command: str) -> Any:
    import json

    return json.loads(_output(*command))


def _visible(found: Sequence[tuple[str, str, GpuHere]], *variables: str) -> list[GpuHere]:
    """Return the GPUs that the variables leave visible: by number, or by the beginning of an id."""
    for variable in variables:
        stated = os.environ.get(variable)
        if stated is not None:
            words = [word.strip() for word in stated.split(",")]
            found = [
                one for one in found
                if any(word and (word == one[0] or (one[1] and one[1].startswith(word))) for word in words)
            ]  # fmt: skip
    return [one for _, _, one in found]


_COMMANDS: tuple[tuple[str, Callable[[], Iterator[GpuHere]]], ...] = (
    ("nvidia-smi", _of_nvidia),
    ("rocm-smi", _of_rocm_smi),
    ("amd-smi", _of_amd_smi),
    ("sysctl", _of_apple),
)
