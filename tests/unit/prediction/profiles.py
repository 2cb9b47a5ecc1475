"""A made-up device profile whose seconds follow from rates, so that every answer is known beforehand."""

from itertools import product
from pathlib import Path
from typing import Any

from finegauge.catalogue.device_profile import DeviceProfile, Reading, write

FLOPS_PER_S, BYTES_PER_S, CALL_S = 4e10, 1e10, 5e-6
GIB = float(2**30)


def readings(dtype: str = "fp32") -> tuple[Reading, ...]:
    """Return readings of the operators that a decoder needs, exactly as the rates say."""
    found: list[Reading] = []
    for rows, n, k in product((16, 256, 4096), repeat=3):
        for direction, passes in (("forward", 1), ("backward", 2), ("backward_frozen", 1)):
            seconds = CALL_S + passes * 2.0 * rows * n * k / FLOPS_PER_S
            found.append(Reading("linear", dtype, direction, {"rows": rows, "n": n, "k": k}, seconds))
    for operator in ("add", "rms_norm", "swiglu"):
        for rows in (1, 64, 4096):
            seconds = CALL_S + 12.0 * rows * 256 / BYTES_PER_S
            for direction in ("forward", "backward", "backward_frozen"):
                found.append(Reading(operator, dtype, direction, {"rows": rows, "width": 256}, seconds))
    return tuple(found)


def profile(**changes: Any) -> DeviceProfile:
    """Return the made-up profile with `changes`."""
    made = DeviceProfile(
        name="made-up processor",
        device="cpu",
        memory_bytes=8 * GIB,
        usable_bytes=7 * GIB,
        memory_bytes_per_s=BYTES_PER_S,
        flops_per_s={"fp32": FLOPS_PER_S},
        threads=1,
        readings=readings(),
        host={"layer_rest_forward_s": 1e-3, "model_rest_forward_s": 2e-3, "checkpoint_backward_s": 4e-3},
        fingerprint={"date": "2026-11-21"},
    )
    return made._replace(**changes)


def written(folder: Path, **changes: Any) -> str:
    """Return the path of a file of the made-up profile."""
    path = str(folder / "device.json")
    write(profile(**changes), path)
    return path
