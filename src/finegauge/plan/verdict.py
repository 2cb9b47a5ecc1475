"""Fits, risky or will not fit: what a probability of running out of memory means for a job queue.

A run that dies after hours costs far more than a batch that is one smaller, so the
thresholds are not symmetric: from 5 % on it is called risky, from 50 % on it will not fit.
"""

from finegauge.errors import EXIT_DONE, EXIT_RISKY, EXIT_WILL_NOT_FIT

RISKY_FROM_FRACTION = 0.05
WILL_NOT_FIT_FROM_FRACTION = 0.5

FITS, RISKY, WILL_NOT_FIT = "fits", "risky", "will_not_fit"

EXIT_CODES = {FITS: EXIT_DONE, RISKY: EXIT_RISKY, WILL_NOT_FIT: EXIT_WILL_NOT_FIT}


def verdict(out_of_memory_fraction: float) -> str:
    """Return the verdict on a run that runs out of memory with this probability."""
    if out_of_memory_fraction >= WILL_NOT_FIT_FROM_FRACTION:
        return WILL_NOT_FIT
    return RISKY if out_of_memory_fraction >= RISKY_FROM_FRACTION else FITS
