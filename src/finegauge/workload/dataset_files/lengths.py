"""How long the samples of a data set are, one by one, and what was found while reading them.

Twelve bytes a sample: a million samples are 12 MB, whatever their texts took.
"""

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

MOST_SHOWN = 20  # rows that are listed one by one; all are counted


class Findings(NamedTuple):
    """What reading a data set found beside its lengths."""

    formats: tuple[tuple[str, int], ...]  # how many samples are of which format, the commonest first
    row_name: str  # what `Lengths.rows` counts: "line" or "record"
    num_rows: int  # read, whether or not a sample came of them
    num_bytes: int  # of the files
    num_empty: int
    empty_rows: tuple[int, ...]  # the first MOST_SHOWN
    num_unreadable: int
    unreadable: tuple[tuple[int, str], ...]  # (row, why), the first MOST_SHOWN
    num_without_answer: (
        int  # samples of a question and no answer: where only answers count, they teach nothing
    )
    unused_keys: tuple[tuple[str, int], ...]  # keys of records that no format reads, the commonest first
    notes: tuple[str, ...]  # what was chosen on the way: the template, the split


@dataclass(frozen=True, slots=True)
class Lengths:
    """The samples of a data set under a tokenizer, in the order of the file."""

    path: str
    tokens: "array[int]"  # of each sample, the special tokens included; unsigned, 32 bits, as the next two
    loss_tokens: "array[int]"  # of these, what is learnt where questions are masked: answers, or a text whole
    rows: "array[int]"  # where each sample stands, from 1; see `Findings.row_name`
    content: str  # hash of the data, the tokenizer and the way of rendering
    findings: Findings

    @property
    def num_samples(self) -> int:
        """Return how many samples there are, the empty and unreadable ones left out."""
        return len(self.tokens)

    @property
    def num_tokens(self) -> int:
        """Return the tokens of all samples together."""
        return sum(self.tokens)

    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Return (length in tokens, how many samples), the shortest first."""
        return tuple(sorted(Counter(self.tokens).items()))

    def place(self, sample: int) -> str:
        """Return where a sample stands, for a message: "line 17"."""
        return f"{self.findings.row_name} {self.rows[sample]:,}"


def quantiles(pairs: Sequence[tuple[int, int]], fractions: Sequence[float]) -> list[int]:
    """Return for each fraction the shortest length that so many of the samples do not exceed.

    Args:
        pairs: (length, how many), the shortest first.
        fractions: Ascending, 0 to 1.
    """
    total, seen, found = sum(count for _, count in pairs), 0, []
    wanted = list(fractions)
    for length, count in pairs:
        seen += count
        while wanted and seen >= wanted[0] * total:
            wanted.pop(0)
            found.append(length)
    return found + [pairs[-1][0]] * len(wanted)
