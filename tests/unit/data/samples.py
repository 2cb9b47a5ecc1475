"""A data set of given lengths, as counting its tokens would return it."""

from array import array
from collections.abc import Sequence
from hashlib import sha256

from finegauge.data.token_lengths import Findings, Lengths


def lengths_of(tokens: Sequence[int], path: str = "mine.jsonl") -> Lengths:
    """Return samples that are so long; each stands in the line after next, for every other is empty."""
    found = array("I", tokens)
    rows = array("I", range(1, 2 * len(found), 2))
    findings = Findings((("text", len(found)),), "line", 2 * len(found), 0, len(found), (), 0, (), 0, (), ())
    return Lengths(path, found, found, rows, sha256(found.tobytes()).hexdigest(), findings)
