"""How long the sequences of a measured row are, where it states their mean and nothing else.

What has to fit is the longest batch, and what a step takes is the longest of its sequences, so that a mean
must not be taken for all of them. It is spread as the lengths of published instruction sets are; where the
framework's count of tokens holds those that padding added, as the HF Trainer's does, the sequences
themselves are as much shorter as the longest of a batch exceeds the mean.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

MEAN_TOKENS = re.compile(r"mean ([\w-]*?)-?counted tokens per sample = (\d+)", re.IGNORECASE)
UNPADDED = re.compile(r"padding[- ]?free|multipack", re.IGNORECASE)
ANY_MEAN = 1000  # the spread is the same at any mean
NO_CUT = 10**7
PADDED_TO = 8  # tokens, as a run's pad_to_multiple_of is by default


class Mean(NamedTuple):
    """A stated mean length."""

    num_tokens: int
    counts_padding: bool


def mean_of(notes: str) -> Mean | None:
    """Return the mean length that `notes` state."""
    found = MEAN_TOKENS.search(notes)
    return None if found is None else Mean(int(found.group(2)), found.group(1).lower().startswith("hf"))


def varied_lengths(cells: Mapping[str, str], mean: Mean) -> dict[str, Any]:
    """Return the fields of a run whose sequences vary about `mean`."""
    kernels = f"{cells['kernels']} {cells['notes']}"
    joined = UNPADDED.search(kernels) is not None
    batch = int(cells["micro_batch_size"]) if cells["micro_batch_size"].isdigit() else 1
    padded = mean.counts_padding and not joined
    length = mean.num_tokens / (_longest_of(batch) if padded else 1.0)
    name = f"instructions-of-{max(1, round(length))}-tokens"
    fields: dict[str, Any] = {"dataset": name, "seq_len": _longest(name)}
    if joined:
        fields["padding"] = "free"
    if "multipack" in kernels.lower():
        fields["group_by_length"] = True  # ranks are given batches of one size
    return fields


def _longest_of(batch: int) -> float:
    """Return how many times as long as the mean the longest of `batch` sequences is."""
    from finegauge.catalogue.datasets import dataset
    from finegauge.workload.lengths import LengthHistogram

    spread = LengthHistogram.of(dataset(f"instructions-of-{ANY_MEAN}-tokens").lengths, cut_off=NO_CUT)
    return spread.expected_max(batch) / spread.mean()


def _longest(name: str) -> int:
    """Return the longest sequence of a data set, padded, which nothing cuts."""
    from finegauge.catalogue.datasets import dataset

    return -(-dataset(name).lengths[-1][0] // PADDED_TO) * PADDED_TO
