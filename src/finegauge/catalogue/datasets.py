"""How long the examples of a data set are, in tokens: one histogram each.

Padding, packing and truncation follow from the histogram. Where only a mean or a median was published, and
perhaps a deviation, lengths are log-normal about it, and the interval of times is wider; of data sets with a
number of samples alone, every sequence is taken as long as the cut-off. Lengths depend on the tokenizer and
the template, which each row states.

A histogram's order statistics stand in closed form. With F the share of sequences no longer than l, after
cutting at the cut-off and rounding up to the padding multiple, the longest of B sequences drawn together has

    P(max <= l) = F(l)^B        E[max^k] = sum over l of l^k (F(l)^B - F(l-)^B)

Attention needs E[max²], which is more than E[max]².

Neglects: that an epoch draws without replacement (B is small against the data set).
"""

import os
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from math import erf, exp, expm1, log, log1p, sqrt
from types import MappingProxyType
from typing import Any

from finegauge.catalogue.tables import checked_row, line_of, lines_of, rows_of, user_rows
from finegauge.documents import MAX_DOCUMENT_BYTES, by_state, home, open_regular, parse_csv, read_text
from finegauge.errors import (
    FieldError,
    FileFormatError,
    InputError,
    UnknownNameError,
    UnsupportedError,
    shown,
)
from finegauge.records import NamedTuple

MAX_LENGTH = 10_000_000
MAX_SAMPLES = 10**12
SPREAD_SAMPLES = 10_000  # of each data set whose spread stands for others
_FILE = "datasets.jsonl"
_OF_MEAN = r"instructions_of_([1-9]\d{0,5})_tokens"
# the median of deviation over mean in 20 sets (Magpie, https://arxiv.org/abs/2406.08464, Table 4)
TYPICAL_DEVIATION = 0.75
STEPS_A_DEVIATION = 10  # of a log-normal spread
SPREAD = {"mean": "mean", "summary": "median"}  # kinds whose lengths are log-normal, and about what
LENGTHS_OR_TEXTS = (".json", ".csv")
TEXT_SUFFIXES = (
    *(".jsonl", ".ndjson", ".jsonl.gz", ".txt", ".parquet", ".arrow", ".tsv"),
    *LENGTHS_OR_TEXTS,
    *(".json.gz", ".csv.gz"),
)


class Dataset(NamedTuple):
    """One data set, as the lengths of its examples."""

    name: str
    aliases: tuple[str, ...]
    num_samples: int
    lengths: tuple[tuple[int, int], ...]  # (tokens, how many examples), shortest first; () of a count
    median_tokens: int | None  # None of a count
    tokenizer: str  # under which tokenizer and template the tokens were counted
    source: str
    checked: str
    kind: str = (
        "histogram"  # "mean": spread about a published one; "summary": a median; "count": samples alone
    )

    @classmethod
    def of_lengths(cls, name: str, lengths: Sequence[tuple[int, int]], **others: Any) -> "Dataset":
        """Return the data set of these (tokens, how many examples), shortest first; `others`: more fields."""
        median, samples = quantiles(lengths, (0.5,))[0], sum([count for _, count in lengths])
        known = {"aliases": (), "checked": "", **others}
        return cls(name=name, num_samples=samples, lengths=tuple(lengths), median_tokens=median, **known)

    @property
    def mean_tokens(self) -> float | None:
        """Return the mean length, or None of a count."""
        total = sum(length * count for length, count in self.lengths)
        return total / self.num_samples if self.lengths else None

    @property
    def max_tokens(self) -> int | None:
        """Return the longest length, or None of a count."""
        return self.lengths[-1][0] if self.lengths else None


def dataset(name_or_path: str) -> Dataset:
    """Return the data set of that name or alias, or of a CSV (`length,count`) or YAML file.

    `instructions-of-N-tokens` is one of which only the mean length is known: see `_of_mean`.

    Raises: UnknownNameError, or UnsupportedError if its lengths were never published.
    """
    if name_or_path.endswith((".csv", ".yaml", ".yml", ".json")):
        return _from_file(name_or_path)
    found = described(name_or_path)
    if found is None:
        how = (
            ", give its file, or state dataset=none, which takes every sequence as seq_len long, or "
            "dataset=instructions-of-N-tokens, N their mean length"
        )
        raise UnknownNameError(
            "data set", name_or_path, known=datasets(), listing="finegauge datasets", instead=how
        )
    if not found.lengths:
        raise UnsupportedError(
            f"Of {found.name} only the number of samples is known: give its file, or "
            f"dataset=none num_samples={found.num_samples} (all as long as seq_len, an upper bound), or "
            f"dataset=instructions-of-N-tokens num_samples={found.num_samples}, N their mean length."
        )
    return found


def described(name: str) -> Dataset | None:
    """Return the data set of the catalogue of that name, its lengths known or not; open no file."""
    return _of_user(home()).get(_asked(name)) or _shipped(_asked(name)) or _of_mean(_asked(name))


def samples_in(name: str) -> int | None:
    """Return how many samples a data set of the catalogue has."""
    return found.num_samples if (found := described(name)) else None


def holds_texts(name: str, *, has_tokenizer: bool) -> bool:
    """Return whether a data set's name is that of texts on disk, and not of lengths or of the catalogue.

    A `.json` or `.csv` may hold either: with a tokenizer it is taken for texts, unless it is a CSV with the
    columns of lengths.
    """
    if name.endswith(LENGTHS_OR_TEXTS):
        return has_tokenizer and not _is_lengths(name)
    is_place = has_tokenizer or os.sep in name
    return name.endswith(TEXT_SUFFIXES) or (is_place and os.path.isdir(os.path.expanduser(name)))


def is_of_texts(name: str, tokenizer: str | None) -> bool:
    """Return whether a data set is a file of texts, which `tokenizer` makes into tokens.

    Raises: FieldError where a tokenizer is stated and there are no texts, or the other way round; InputError
        where there is no such file.
    """
    texts = holds_texts(name, has_tokenizer=tokenizer is not None)
    if tokenizer is not None and not texts:
        raise FieldError(
            f"tokenizer is stated, but dataset={name} is no file of texts; remove it or name a JSONL file."
        )
    if texts and tokenizer is None:
        raise FieldError(
            f"dataset={name} holds texts, whose length depends on the tokenizer; add 'tokenizer: FOLDER'."
        )
    if texts and not os.path.exists(os.path.expanduser(name)):
        raise InputError(f"Cannot read {shown(name)}: No such file or directory.")
    return texts


def _is_lengths(name: str) -> bool:
    if not name.endswith(".csv") or not os.path.isfile(name):
        return False
    with open(open_regular(name, links=True), "rb") as file:
        return {b"length", b"count"} <= {cell.strip() for cell in file.readline(1000).split(b",")}


def datasets() -> Mapping[str, Dataset]:
    """Return every data set known, the user's own included, by name."""
    rows = {found.name: found for found in map(_dataset, lines_of(_FILE))}
    return MappingProxyType(rows | {found.name: found for found in _of_user(home()).values()})


def _fold(name: str) -> str:
    return name.casefold().replace("-", "_")


def _asked(name: str) -> str:
    """Return a name as look-ups compare it; of a page of the Hub, what stands behind its address."""
    return _fold(re.sub(r"^(https?://)?(huggingface\.co/|hf\.co/)?datasets/|/$", "", name.strip()))


@cache
def _of_user(folder: str) -> Mapping[str, Dataset]:
    found: dict[str, Dataset] = {}
    for path, row in user_rows(folder, "datasets"):
        each = _user_dataset(row, path)
        found |= dict.fromkeys(map(_fold, (each.name, *each.aliases)), each)
    return found


@cache
def _of_mean(name: str) -> Dataset | None:
    """Return a data set of a stated mean length, for a name such as `instructions_of_300_tokens`.

    Its lengths are spread about their mean as those of the published instruction sets are, each of which
    counts alike: of eight together the longest is 1.9 times the mean, of all of them eight times.
    """
    stated = re.fullmatch(_OF_MEAN, name)
    if stated is None:
        return None
    shapes = [found for found in map(_dataset, lines_of(_FILE)) if found.kind == "histogram"]
    spread = Counter[int]()
    for found in shapes:
        scale, mean = SPREAD_SAMPLES / found.num_samples, found.mean_tokens or 1.0
        for length, count in found.lengths:
            spread[max(1, round(length * float(stated.group(1)) / mean))] += max(1, round(count * scale))
    source = f"the mean that is stated; the spread of {', '.join(found.name for found in shapes)}"
    return Dataset.of_lengths(name.replace("_", "-"), sorted(spread.items()), tokenizer="any", source=source)


@cache
def _shipped(key: str) -> Dataset | None:
    line = line_of(_FILE, key, before="kind", fold=_fold)
    return None if line is None else _dataset(line)


@cache
def _dataset(line: str) -> Dataset:
    import json

    row = json.loads(line)
    if row["kind"] in SPREAD:
        mean = row.get("mean_tokens") or row["median_tokens"] * sqrt(1.0 + TYPICAL_DEVIATION**2)
        deviation = row.get("deviation_tokens") or TYPICAL_DEVIATION * mean
        row["lengths"] = _log_normal(mean, deviation, row["num_samples"])
        row.setdefault("median_tokens", quantiles(row["lengths"], (0.5,))[0])
    row["aliases"], row["lengths"] = tuple(row["aliases"]), tuple(map(tuple, row["lengths"]))
    return Dataset(*[row[name] for name in Dataset._fields])


def _log_normal(mean: float, deviation: float, num_samples: int) -> tuple[tuple[int, int], ...]:
    """Return `num_samples` lengths of that mean and deviation, as far out as one of so many would lie."""
    width, seen = sqrt(log(1.0 + (deviation / mean) ** 2)), 0
    spread = Counter[int]()
    for step in range(-60, 61):
        score = (step + 0.5) / STEPS_A_DEVIATION
        below = round(num_samples * (1.0 + erf(score / sqrt(2.0))) / 2.0)
        length = mean * exp((score - 0.5 / STEPS_A_DEVIATION) * width - width**2 / 2.0)
        spread[max(1, round(length))] += below - seen
        seen = below
    return tuple(sorted((length, count) for length, count in spread.items() if count))


@by_state
def _from_file(path: str) -> Dataset:
    if path.endswith(".csv"):
        name = os.path.splitext(os.path.basename(path))[0]
        return _user_dataset({"name": name, "lengths": list(_csv_pairs(path))}, path)
    file, row = next(rows_of(path), (path, {}))
    return _user_dataset(row, file)


def _csv_pairs(path: str) -> Iterator[list[str]]:
    lines = parse_csv(read_text(path, MAX_DOCUMENT_BYTES), path)
    columns = [column.strip() for column in next(lines, [""])]
    if "length" not in columns or "count" not in columns:
        said = shown(",".join(columns))
        raise FileFormatError(f"{path}: the first line should be 'length,count', not {said}.")
    for number, cells in enumerate(lines, start=2):
        if len(cells) == len(columns):
            yield [cells[columns.index("length")], cells[columns.index("count")]]
        elif any(cells):
            raise FileFormatError(
                f"{path}, line {number}: {len(columns)} cells expected, {len(cells)} found."
            )


_USER_FIELDS = {**Dataset.__annotations__, "kind": str, "max_tokens": int}


def _user_dataset(row: Mapping[str, Any], path: str) -> Dataset:
    given = checked_row(row, path, _USER_FIELDS, required=("name", "lengths"))
    lengths = _pairs(given["lengths"], path)
    num_samples = sum(count for _, count in lengths)
    if given.get("num_samples", num_samples) != num_samples:
        stated = f"num_samples={given['num_samples']:.0f}"
        raise FieldError(f"{path}: {stated}, but the counts of 'lengths' sum to {num_samples}.")
    said: dict[str, Any] = {key: given[key] for key in ("aliases", "checked") if key in given}
    said |= {"tokenizer": given.get("tokenizer", "not stated"), "source": given.get("source", path)}
    return Dataset.of_lengths(given["name"], lengths, **said)


def _pairs(lengths: object, path: str) -> tuple[tuple[int, int], ...]:
    """Return (length, count) pairs, shortest first, equal lengths merged."""
    pairs: Iterable[Any] = lengths.items() if isinstance(lengths, dict) else lengths  # type: ignore[assignment]
    counts: dict[int, int] = {}
    try:
        for length, count in pairs:
            counts[int(length)] = counts.get(int(length), 0) + int(count)
    except (TypeError, ValueError, OverflowError):  # an infinite count
        raise FieldError(f"{path}: 'lengths' should be pairs of whole numbers, [length, count].") from None
    if not counts or min(counts) < 1 or max(counts) > MAX_LENGTH or min(counts.values()) < 1:
        raise FieldError(f"{path}: 'lengths' needs lengths of 1 to {MAX_LENGTH} tokens, counts from 1.")
    if sum(counts.values()) > MAX_SAMPLES:
        raise FieldError(f"{path}: the counts of 'lengths' sum to more than {MAX_SAMPLES:.0e} samples.")
    return tuple(sorted(counts.items()))


def quantiles(pairs: Sequence[tuple[int, int]], fractions: Sequence[float]) -> list[int]:
    """Return for each of the ascending `fractions` the shortest length that so many samples do not exceed.

    `pairs` are (length, how many), the shortest first.
    """
    total, seen, found = sum(count for _, count in pairs), 0, []
    wanted = list(fractions)
    for length, count in pairs:
        seen += count
        while wanted and seen >= wanted[0] * total:
            wanted.pop(0)
            found.append(length)
    return found + [pairs[-1][0]] * len(wanted)


class LengthHistogram(NamedTuple):
    """Sequence lengths in tokens, ascending, and how often each occurs."""

    lengths: tuple[int, ...]
    counts: tuple[int, ...]

    @classmethod
    def of(
        cls,
        pairs: Iterable[tuple[int, int]],
        *,
        cut_off: int,
        multiple: int = 1,
        over_length: str = "truncate",
    ) -> "LengthHistogram":
        """Return the histogram of (length, count) `pairs`, cut at `cut_off`, rounded up to `multiple`.

        Sequences longer than the cut-off are truncated to it, dropped, or split into several.
        """
        merged: dict[int, int] = {}
        for length, count in pairs:
            for stretch, number in _stretches(length, count, cut_off, over_length):
                padded = -(-stretch // multiple) * multiple
                merged[padded] = merged.get(padded, 0) + number
        lengths = sorted(merged)
        return cls(tuple(lengths), tuple(map(merged.__getitem__, lengths)))

    @classmethod
    def ending_by_chance(cls, mean: float, most: int) -> "LengthHistogram":
        r"""Return lengths that end with the same chance at every token, and at `most` at the latest.

        Of all lengths of that mean and limit, nothing else is supposed of these (greatest entropy). With the
        scale $s$ of the exponential distribution the mean is $s (1 - e^{-most / s})$.
        """
        return _ending_by_chance(mean, most)

    @property
    def num_samples(self) -> int:
        """Return how many sequences there are."""
        return sum(self.counts)

    @property
    def longest(self) -> int:
        """Return the longest length."""
        return self.lengths[-1]

    @lru_cache(maxsize=512)  # noqa: B019  # by value: a histogram is a tuple
    def mean(self, power: int = 1) -> float:
        """Return the mean of the lengths raised to `power`."""
        pairs = zip(self.lengths, self.counts, strict=True)
        total: float = sum(length**power * count for length, count in pairs)
        return total / self.num_samples

    @lru_cache(maxsize=512)  # noqa: B019
    def expected_max(self, batch: int, power: int = 1) -> float:
        """Return E[max^power] of the longest among `batch` sequences."""
        num_samples, below, expected, seen = self.num_samples, 0.0, 0.0, 0
        for length, count in zip(self.lengths, self.counts, strict=True):
            seen += count
            up_to = (seen / num_samples) ** batch
            expected += length**power * (up_to - below)
            below = up_to
        return expected

    def mean_grouped_max(self, batch: int, accumulation: int = 1, power: int = 1) -> float:
        """Return the mean of the longest^power of batches whose samples are grouped by length.

        transformers sorts as many samples as 50 steps take, so that the k-th batch of b begins
        with the (k b)-th longest of them: a quantile of the lengths.
        """
        step = batch * accumulation
        steps = max(1, min(self.num_samples // (4 * step), 50))
        batches = steps * accumulation
        heads = (self.quantile(1.0 - (k * batch + 0.5) / (batches * batch)) for k in range(batches))
        return float(sum(head**power for head in heads)) / batches

    def quantile(self, fraction: float) -> int:
        """Return the shortest length that `fraction` of the sequences do not exceed."""
        return quantiles([*zip(self.lengths, self.counts, strict=True)], (fraction,))[0]

    def num_packs(self, capacity: int) -> int:
        """Return how many sequences of `capacity` tokens hold everything, packed best-fit decreasing.

        `capacity` is at least the longest length. Equal lengths are placed together; room that is
        left goes to the best-fitting shorter ones, as packing in LLaMA-Factory and TRL does
        within a chunk of the data.
        """
        rooms: list[int] = []  # ascending free room of open packs, each value once
        packs: dict[int, int] = {}  # free room -> number of packs that have it
        opened = 0
        for length, count in zip(reversed(self.lengths), reversed(self.counts), strict=True):
            left = count
            while left and (index := bisect_right(rooms, length - 1)) < len(rooms):
                items = min(left, packs[rooms[index]] * (rooms[index] // length))
                _fill(rooms, packs, rooms[index], length, items)
                left -= items
            if left:
                new = -(-left // (capacity // length))
                _open(rooms, packs, capacity, new)
                _fill(rooms, packs, capacity, length, left)
                opened += new
        return opened


def _stretches(length: int, count: int, cut_off: int, over_length: str) -> list[tuple[int, int]]:
    if length <= cut_off:
        return [(length, count)]
    if over_length == "drop":
        return []
    whole, rest = divmod(length, cut_off) if over_length == "split" else (1, 0)
    return [(cut_off, whole * count), *([(rest, count)] if rest else [])]


def _open(rooms: list[int], packs: dict[int, int], room: int, number: int) -> None:
    if room not in packs:
        rooms.insert(bisect_right(rooms, room), room)
        packs[room] = 0
    packs[room] += number


def _fill(rooms: list[int], packs: dict[int, int], room: int, length: int, items: int) -> None:
    """Put `items` of `length` into as few as possible of the packs that have `room`."""
    per_pack = room // length
    full, rest = divmod(items, per_pack)
    packs[room] -= full + bool(rest)
    if not packs[room]:
        del packs[room]
        rooms.remove(room)
    for number, held in ((full, per_pack), (bool(rest), rest)):
        if number and room > held * length:
            _open(rooms, packs, room - held * length, number)


QUANTILES = 512  # of a distribution of lengths


@lru_cache(maxsize=64)
def _ending_by_chance(mean: float, most: int) -> LengthHistogram:
    low, high = 0.0, 1e6 * most  # of the scale
    for _ in range(80):
        scale = (low + high) / 2
        low, high = (scale, high) if scale * -expm1(-most / scale) < mean else (low, scale)
    places = ((place + 0.5) / QUANTILES for place in range(QUANTILES))
    return LengthHistogram.of([(max(1, round(-scale * log1p(-at))), 1) for at in places], cut_off=most)
