"""How sure a prediction is: the interval of its time, the probability that a step runs out of memory.

The interval of times is what a source left out of the fit was off by: one new framework, machine and way of
counting. A kind of run that no source has is one more such step, as large and independent of it, so that
variances add and n of them widen the interval's logarithm by the root of 1 + n.

Memory errors are taken as log-normal about the median with the 10-90 % interval of the
profile's source, so the chance that the truth exceeds the capacity is a normal tail. A run that dies after
hours costs far more than a batch that is one smaller, so the thresholds of a verdict are not symmetric: from
5 % on a run is called risky, from 50 % on it will not fit.
"""

from math import log, sqrt
from typing import TYPE_CHECKING, Literal

from finegauge.arithmetic import erf, where
from finegauge.arithmetic import log as logarithm
from finegauge.errors import EXIT_DONE, EXIT_RISKY, EXIT_WILL_NOT_FIT
from finegauge.profile import Interval, Profile

if TYPE_CHECKING:
    from finegauge.catalogue.gpus import GpuSpec
    from finegauge.run.run import Run

# what the shipped tables have rows of
TIMED_ARCHITECTURES = frozenset({"Ampere", "Ada Lovelace", "Hopper"})
TIMED_PHASES = frozenset({"sft", "pretrain"})
P90 = 1.2815515655446004  # standard deviations between the median and the 90th percentile


def probability_out_of_memory(profile: Profile) -> float:
    """Return the probability that the longest batch of `profile` exceeds the GPU's usable memory."""
    needed, room = profile.device_memory_bytes.total, profile.capacity_bytes
    interval = profile.source.memory_interval
    if needed <= 0 or room <= 0:
        return 0.0 if needed <= room else 1.0
    if interval is None:
        return float(needed > room)
    return exceeding_fraction(needed, room, interval)


def exceeding_fraction(needed_bytes: float, room_bytes: float, interval: Interval) -> float:
    """Return the probability that what is predicted to need `needed_bytes` needs more than `room_bytes`."""
    distance = logarithm(room_bytes / needed_bytes)
    spread = where(distance >= 0, log(interval.high_ratio), -log(interval.low_ratio))
    fraction: float = 0.5 * (1.0 - erf(distance / (spread / P90) / sqrt(2.0)))
    return fraction


def time_interval(run: "Run", gpu: "GpuSpec", interval: Interval) -> Interval:
    """Return the interval of the step time of `run`: `interval`, wider for what no source has timed."""
    unseen = (
        gpu.measured is None and gpu.architecture not in TIMED_ARCHITECTURES,
        run.phase not in TIMED_PHASES,
        run.cpu_offload != "none",
        run.context_parallel > 1,
    )
    wider = sqrt(1.0 + sum(unseen))
    return Interval(interval.low_ratio**wider, interval.high_ratio**wider)


RISKY_FROM_FRACTION = 0.05
WILL_NOT_FIT_FROM_FRACTION = 0.5

Verdict = Literal["fits", "risky", "will_not_fit"]
FITS: Verdict = "fits"
RISKY: Verdict = "risky"
WILL_NOT_FIT: Verdict = "will_not_fit"

EXIT_CODES = {FITS: EXIT_DONE, RISKY: EXIT_RISKY, WILL_NOT_FIT: EXIT_WILL_NOT_FIT}


def verdict(out_of_memory_fraction: float) -> Verdict:
    """Return the verdict on a run that runs out of memory with this probability."""
    if out_of_memory_fraction >= WILL_NOT_FIT_FROM_FRACTION:
        return WILL_NOT_FIT
    return RISKY if out_of_memory_fraction >= RISKY_FROM_FRACTION else FITS


def is_safe(profile: Profile) -> bool:
    """Return whether a step is not even risky."""
    return verdict(probability_out_of_memory(profile)) == FITS
