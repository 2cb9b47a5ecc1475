"""Which processes a process started, and whether they are gone."""

import time
from contextlib import suppress
from pathlib import Path


def children(process: int) -> list[int]:
    """Return the processes that `process` itself started, the oldest first."""
    with suppress(OSError):
        return list(map(int, Path(f"/proc/{process}/task/{process}/children").read_text("ascii").split()))
    return []


def descendants(process: int) -> set[int]:
    """Return the processes that `process` started, and theirs."""
    found: set[int] = set()
    for child in children(process):
        found |= {child} | descendants(child)
    return found


def gone(processes: set[int]) -> bool:
    """Return whether all of `processes` ended within a few seconds."""
    ends_at = time.monotonic() + 20
    while any(_runs(process) for process in processes):
        if time.monotonic() > ends_at:
            return False
        time.sleep(0.02)
    return True


def _runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text("utf-8").rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
