r"""How long samples are, where no data set says so: their mean and the longest, or a histogram.

Of a mean alone there are many histograms. Taken is the one that assumes least, which is that of the
largest entropy with this mean and this longest length:

$$ p(l) \propto e^{\lambda l}, \quad 1 \le l \le l_{max}, \quad \lambda: \sum l\, p(l) = \bar l $$
"""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from math import ceil, exp

from finegauge.errors import FieldError, shown
from finegauge.workload.field import number, whole

MEAN, LONGEST, HISTOGRAM = "mean_tokens", "longest_tokens", "length_counts"
LENGTH_FIELDS = (MEAN, LONGEST, HISTOGRAM)
MOST_TOKENS = 1_000_000
MOST_LINES = 5_000
NUM_STEPS = 200  # lengths of which the histogram of a mean consists, at most
NUM_SAMPLES = 10_000  # it stands for so many, where num_samples is not stated
_LINE = re.compile(r"\s*(\d{1,9})\s*[,;:\s]\s*(\d{1,12})\s*")


def lengths_csv(stated: Mapping[str, str]) -> str:
    """Return the lines `length,count` that the length fields mean; "" where none is stated.

    Raises: FieldError where they contradict each other, or are half stated.
    """
    if stated.get(HISTOGRAM):
        if stated.get(MEAN) or stated.get(LONGEST):
            raise FieldError(f"{HISTOGRAM} says all of the lengths; remove {MEAN} and {LONGEST}.")
        return _csv(_histogram(stated[HISTOGRAM]))
    if not stated.get(MEAN) and not stated.get(LONGEST):
        return ""
    for name, other in ((MEAN, LONGEST), (LONGEST, MEAN)):
        if not stated.get(name):
            raise FieldError(f"{name} is missing: {other} alone does not tell how long samples are.")
    longest = whole(2, MOST_TOKENS, "tokens")(LONGEST, stated[LONGEST])
    mean = number(1.0, float(longest), "tokens")(MEAN, stated[MEAN])
    samples = whole(1, 10**10, "samples")("num_samples", stated.get("num_samples") or NUM_SAMPLES)
    return _csv(of_mean(mean, longest, samples))


@lru_cache(maxsize=64)
def of_mean(mean: float, longest: int, num_samples: int) -> tuple[tuple[int, int], ...]:
    """Return (tokens, samples) of the histogram that assumes least; the longest is always among them."""
    ends = [ceil(longest * ((step + 1) / NUM_STEPS) ** 2) for step in range(NUM_STEPS)]
    lengths = list(dict.fromkeys(ends))  # close together where they are short
    low, high = -50.0 * longest, 50.0 * longest  # of lambda times the longest: the mean rises with it
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _mean(lengths, middle) < mean else (low, middle)
    weights = _weights(lengths, (low + high) / 2)
    total, counts, carried = sum(weights), [], 0.0
    for weight in weights:  # whole samples, none lost to rounding
        carried += num_samples * weight / total
        counts.append(int(carried + 1e-9))
        carried -= counts[-1]
    counts[-1] = max(1, counts[-1])
    return tuple((length, count) for length, count in zip(lengths, counts, strict=True) if count)


def _weights(lengths: list[int], slope: float) -> list[float]:
    """Return what each length weighs for itself and those up to the one before."""
    longest, top = lengths[-1], max(slope, slope * lengths[0] / lengths[-1])
    before = [0, *lengths[:-1]]
    return [
        (length - last) * exp(slope * length / longest - top)
        for last, length in zip(before, lengths, strict=True)
    ]


def _mean(lengths: list[int], slope: float) -> float:
    """Return the mean length under one slope."""
    weights = _weights(lengths, slope)
    return sum(length * weight for length, weight in zip(lengths, weights, strict=True)) / sum(weights)


def _histogram(text: str) -> list[tuple[int, int]]:
    """Return (tokens, samples) of lines such as "512, 1000"; a heading line is passed over."""
    lines = [line for line in text.splitlines() if line.strip()]
    if lines and not any(char.isdigit() for char in lines[0]):
        lines = lines[1:]
    if not lines or len(lines) > MOST_LINES:
        raise FieldError(
            f"{HISTOGRAM} needs 1 to {MOST_LINES:,} lines such as '512,1000', not {len(lines):,}."
        )
    counts: dict[int, int] = {}
    for line in lines:
        found = _LINE.fullmatch(line)
        if found is None:
            raise FieldError(f"{HISTOGRAM}: {shown(line)} is no line such as '512,1000': tokens, samples.")
        length, count = int(found[1]), int(found[2])
        if not 1 <= length <= MOST_TOKENS:
            raise FieldError(f"{HISTOGRAM}: a sample has 1 to {MOST_TOKENS:,} tokens, not {length:,}.")
        counts[length] = counts.get(length, 0) + count
    kept = [(length, count) for length, count in sorted(counts.items()) if count]
    if not kept:
        raise FieldError(f"{HISTOGRAM} holds no samples: every count is 0.")
    return kept


def _csv(pairs: Iterable[tuple[int, int]]) -> str:
    """Return the pairs as a file of lengths."""
    return "length,count\n" + "".join(f"{length},{count}\n" for length, count in pairs)
