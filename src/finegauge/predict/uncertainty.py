"""How sure a prediction is: the probability that a step runs out of memory.

Memory errors are taken as log-normal about the median with the 10-90 % interval of the
profile's source, so the chance that the truth exceeds the capacity is a normal tail.
"""

from math import erf, log, sqrt

from finegauge.profile import Profile

P90 = 1.2815515655446004  # standard deviations between the median and the 90th percentile


def probability_out_of_memory(profile: Profile) -> float:
    """Return the probability that the longest batch of `profile` exceeds the GPU's usable memory."""
    needed, room = profile.device_memory_bytes.total, profile.capacity_bytes
    interval = profile.source.memory_interval
    if needed <= 0 or room <= 0:
        return 0.0 if needed <= room else 1.0
    if interval is None:
        return float(needed > room)
    distance = log(room / needed)
    spread = log(interval.high_ratio) if distance >= 0 else -log(interval.low_ratio)
    return 0.5 * (1.0 - erf(distance / (spread / P90) / sqrt(2.0)))
