"""Whether the GPU slowed down while it was measured, and why.

A GPU that is too hot, or whose power supply asks for less, runs below its clocks: what it
then measures is the room, not the workload, so such a trial is no data. A GPU at its
power limit runs as its maker meant it to: that is said, not refused. The driver keeps the
time spent in each state [1]; where it does not, the reasons are read at both ends.

[1] NVML API reference, nvmlDeviceGetViolationStatus (nanoseconds), nvmlClocksEventReasons
"""

from typing import NamedTuple

import torch

from finegauge.measure.instruments.nvml import Nvml, Unavailable, nvml_of

ALLOWED_FRACTION = 0.01  # of the window: one blink of a thermal limit changes no median


class _Reason(NamedTuple):
    """A reason for lower clocks: its bit in NVML's mask, and whether the trial still counts."""

    bit: int
    text: str
    refused: bool


_REASONS = (
    _Reason(0x04, "at its power limit", False),
    _Reason(0x08, "hardware slowdown", True),
    _Reason(0x20, "too hot (software thermal slowdown)", True),
    _Reason(0x40, "too hot (hardware thermal slowdown)", True),
    _Reason(0x80, "power brake asserted by the power supply", True),
)
_POLICIES = (  # NVML_PERF_POLICY_*: number, text, whether the trial still counts
    (0, "at its power limit", False),
    (1, "too hot", True),
)


class ThrottleWatch:
    """Notes why the GPU ran below its clocks inside its `with`; a CPU has nothing to say."""

    def __init__(self, device: torch.device) -> None:
        """Watch `device`."""
        self.reasons: tuple[str, ...] = ()  # any: what was measured is no data
        self.notes: tuple[str, ...] = ()
        self._nvml = nvml_of(device)
        self._before: tuple[dict[int, int], int, int] = ({}, 0, 0)

    def __enter__(self) -> "ThrottleWatch":
        """Note the counters and the present reasons."""
        if not isinstance(self._nvml, Unavailable):
            self._before = _state(self._nvml)
        return self

    def __exit__(self, *_: object) -> None:
        """Note what was added to the counters, and the reasons at the end."""
        if isinstance(self._nvml, Unavailable):
            return
        self.reasons, self.notes = judged(self._before, _state(self._nvml))


def judged(
    before: tuple[dict[int, int], int, int], after: tuple[dict[int, int], int, int]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return (reasons to refuse, notes) from two states: nanoseconds by policy, clock, mask of reasons."""
    refused: dict[str, None] = {}
    noted: dict[str, None] = {}
    window_ns = after[1] - before[1]
    for policy, text, is_refused in _POLICIES:
        if policy not in before[0] or policy not in after[0] or window_ns <= 0:
            continue
        share = (after[0][policy] - before[0][policy]) / window_ns
        if share > ALLOWED_FRACTION:
            (refused if is_refused else noted)[f"{text} for {share:.0%} of the time"] = None
    if not refused:
        for reason in _REASONS:
            both = before[2] & after[2] & reason.bit
            if both and not (noted and not reason.refused):
                (refused if reason.refused else noted)[reason.text] = None
    return tuple(refused), tuple(noted)


def _state(nvml: Nvml) -> tuple[dict[int, int], int, int]:
    """Return the nanoseconds under each policy, the driver's clock in nanoseconds, the present reasons."""
    spent, now_ns = {}, 0
    for policy, _, _ in _POLICIES:
        violation = nvml.ask("nvmlDeviceGetViolationStatus", policy)
        if violation is not None:
            spent[policy] = int(violation.violationTime)
            now_ns = max(now_ns, int(violation.referenceTime) * 1000)  # microseconds
    mask = nvml.ask("nvmlDeviceGetCurrentClocksThrottleReasons")
    return spent, now_ns, int(mask or 0)
