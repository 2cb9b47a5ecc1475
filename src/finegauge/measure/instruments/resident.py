"""The most memory that this process has held, as the kernel counts it.

Linux keeps the high-water mark of a process's resident pages and lets the process reset
it [1]. It counts what the C library keeps of freed memory, and no page that was never touched.

[1] proc(5): /proc/pid/status VmHWM, /proc/pid/clear_refs
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class Resident:
    """A high-water mark that is read when the block is over; 0 where the system tells none."""

    peak_bytes = 0.0


@contextmanager
def resident_peak() -> Iterator[Resident]:
    """Watch the high-water mark of what runs inside."""
    found = Resident()
    with suppress(OSError):
        _RESET.write_text("5", encoding="ascii")
    yield found
    found.peak_bytes = _status_bytes("VmHWM")


def resident_bytes() -> float:
    """Return the bytes that this process holds now; 0 where the system does not tell."""
    return _status_bytes("VmRSS")


def _status_bytes(field: str) -> float:
    """Return a field of the process's status, in bytes."""
    try:
        lines = _STATUS.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0.0
    values = [line.split()[1] for line in lines if line.startswith(f"{field}:")]
    return float(values[0]) * 1024 if values else 0.0
