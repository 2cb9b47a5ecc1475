"""How sure a prediction is: the probability that a step runs out of memory.

Memory errors are taken as log-normal about the median with the 10-90 % interval of the
profile's source, so the chance that the truth exceeds the capacity is a normal tail.
"""

from math import log, sqrt

from finegauge.arithmetic import erf, where
from finegauge.arithmetic import log as logarithm
from finegauge.profile import Interval, Profile

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
