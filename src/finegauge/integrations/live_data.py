"""How long the samples of a trainer's data set are, where that is cheap to know: token ids in memory.

TRL tokenises before it trains, so its data sets hold the ids; a data set of `datasets` keeps them in
Arrow, whose list lengths are read without touching the ids. Packed rows tell the lengths of the samples
inside. A data set that is streamed, or made of anything else, tells nothing, and is not read for it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

MAX_LISTED = 20_000  # rows of a plain list that are looked at one by one

UNKNOWN = "The lengths of the data set are not at hand: every sequence is taken as seq_len long."
_PACKED = "seq_lengths"
_COLUMNS = {"dpo": (("prompt_ids", "chosen_ids"), ("prompt_ids", "rejected_ids")),
            "reward": (("chosen_ids",), ("rejected_ids",))}  # fmt: skip


class LiveData(NamedTuple):
    """What the data set in memory tells."""

    pairs: tuple[tuple[int, int], ...] = ()  # (tokens, how many sequences), shortest first
    num_samples: int | None = None  # rows that the trainer draws; None: as the lengths say, or not known
    pad_to_multiple_of: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def longest(self) -> int:
        """Return the tokens of the longest sequence; 0 where no length is known."""
        return self.pairs[-1][0] if self.pairs else 0


def data_of(loader: Any, phase: str) -> LiveData:
    """Return what the batches' data set tells of a phase's sequences."""
    dataset = getattr(loader, "dataset", None)
    if dataset is None:
        return LiveData()
    collator = getattr(loader, "collate_fn", None)
    collator = getattr(collator, "data_collator", collator)
    multiple = getattr(collator, "pad_to_multiple_of", None)
    rows = _rows(dataset)
    pairs, packed = _pairs(dataset, phase)
    notes = () if pairs else (UNKNOWN,)
    return LiveData(pairs, None if packed else rows, multiple if isinstance(multiple, int) else None, notes)


def _pairs(dataset: Any, phase: str) -> tuple[tuple[tuple[int, int], ...], bool]:
    """Return the lengths with their counts, and whether they are those of samples inside packed rows."""
    columns = set(getattr(dataset, "column_names", None) or ())
    sequences = _COLUMNS.get(phase, (("input_ids",),))
    if hasattr(dataset, "data") and columns:
        if _PACKED in columns:
            return _of_arrow(dataset, ((_PACKED,),), inside=True), True
        known = all(columns.issuperset(parts) for parts in sequences)
        return _of_arrow(dataset, sequences, inside=False) if known else (), False
    if isinstance(dataset, Sequence) and len(dataset) <= MAX_LISTED:
        counts = Counter(length for parts in sequences for length in _of_rows(dataset, parts))
        return _sorted(counts), False
    return (), False


def _of_arrow(
    dataset: Any, sequences: Iterable[tuple[str, ...]], *, inside: bool
) -> tuple[tuple[int, int], ...]:
    """Return the lengths of sequences that columns of lists make up, with their counts; () of other columns.

    Args:
        dataset: Of `datasets`; chosen and shuffled rows count as chosen.
        sequences: The columns whose lists are joined into each sequence.
        inside: Whether the lists themselves hold the lengths.
    """
    import pyarrow
    import pyarrow.compute as arrow

    chosen = getattr(dataset, "_indices", None)
    counts: Counter[int] = Counter()
    try:
        for parts in sequences:
            columns = [dataset.data.column(part) for part in parts]
            columns = columns if inside else [arrow.list_value_length(column) for column in columns]
            if chosen is not None:
                columns = [column.take(chosen.column(0)) for column in columns]
            total = arrow.list_flatten(columns[0]) if inside else reduce(arrow.add, columns)
            for pair in arrow.value_counts(total).to_pylist():
                counts[int(pair["values"] or 0)] += pair["counts"]
    except pyarrow.ArrowException:
        return ()
    return _sorted(counts)


def _of_rows(dataset: Iterable[Any], parts: Iterable[str]) -> list[int]:
    """Return the lengths of rows that are mappings; none where one has no such ids."""
    lengths = []
    for row in dataset:
        try:
            lengths.append(sum(len(row[part]) for part in parts))
        except (KeyError, TypeError, IndexError):
            return []
    return lengths


def _sorted(counts: Mapping[int, int]) -> tuple[tuple[int, int], ...]:
    """Return (length, count), shortest first; empty sequences are no samples."""
    return tuple(sorted((length, count) for length, count in counts.items() if length > 0))


def _rows(dataset: Any) -> int | None:
    """Return how many rows there are; None of a stream."""
    try:
        return len(dataset) or None
    except TypeError:
        return None
