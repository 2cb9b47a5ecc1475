"""Predicted seconds of single operators held against tables of timed ones.

A table is CSV with a header; which kind of operator it holds is told by its columns (`COLUMNS`). The column
`seconds` is never shown to the predictor, and may be empty. `kernel_source` is an input where it is given;
where it is not, the kernel is training's own call. Rows of one GPU, format and kernel are predicted together
where NumPy is installed, one after the other where it is not.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from math import isfinite
from statistics import median, quantiles
from typing import NamedTuple

from finegauge.catalogue.gpus import GpuSpec, gpus, known_gpu
from finegauge.documents import parse_csv, read_text
from finegauge.errors import FileFormatError, FineGaugeError, UnknownNameError, shown
from finegauge.prediction.timed_operators import Source, seconds_of, skew, source_for

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "experts": (
        "num_tokens", "hidden_size", "intermediate_size", "num_experts_per_tok", "num_experts",
        "expert_parallel",
    ),
    "attention": ("batch_size", "seq_len", "num_heads", "num_kv_heads", "head_dim"),
    "collective": ("operation", "num_gpus", "message_size"),
    "gemm": ("m", "n", "k"),
}  # fmt: skip
ITEM_BYTES = {"half": 2, "bf16": 2, "fp16": 2, "bfloat16": 2, "float16": 2, "int8": 1, "float": 4, "fp32": 4}
OPERATIONS = {"all_to_all": "alltoall", "allreduce": "all_reduce", "allgather": "all_gather"}
MAX_BYTES = 200_000_000
MAX_ROWS = 1_000_000
MOST_SIZE = 1e12


class Row(NamedTuple):
    """One row of a table, without what was measured."""

    table: str
    row: int  # from 0
    gpu: str
    kind: str
    dtype: str
    kernel: str
    engine: str
    sizes: Mapping[str, float]
    reason: str  # why it describes no operator; "" where it does


class Answer(NamedTuple):
    """A row, what is predicted of it, and what was measured."""

    row: Row
    seconds: float | None
    low_s: float | None  # 10th and 90th percentile
    high_s: float | None
    evidence: str  # timed | architecture | other
    note: str
    reason: str  # why there is no answer
    measured_s: float | None

    @property
    def error(self) -> float | None:
        """Return the signed relative error, where both are known."""
        if self.seconds is None or not self.measured_s:
            return None
        return self.seconds / self.measured_s - 1.0


class Group(NamedTuple):
    """How wrong predictions are on rows of one GPU, kind and number format."""

    gpu: str
    kind: str
    dtype: str
    rows: int
    answered: int
    measured: int  # of the answered
    median_error: float | None
    p90_error: float | None
    bias: float | None  # median of signed errors
    covered_fraction: float | None  # measured between the 10th and the 90th percentile
    evidence: str
    note: str


class OperatorValidation(NamedTuple):
    """All rows and what they say together."""

    answers: tuple[Answer, ...]

    @property
    def groups(self) -> list[Group]:
        """Return one group per GPU, kind and number format, in the order of the tables."""
        found: dict[tuple[str, str, str], list[Answer]] = {}
        for one in self.answers:
            found.setdefault((one.row.gpu, one.row.kind, one.row.dtype), []).append(one)
        return [_group(*key, rows) for key, rows in found.items()]

    @property
    def unanswered(self) -> Mapping[str, int]:
        """Return how many rows have no answer, by the reason."""
        return Counter(one.reason for one in self.answers if one.reason)


def validate_operators(tables: Sequence[str]) -> OperatorValidation:
    """Return every row of `tables`, predicted.

    Raises: FileFormatError for a table whose columns tell no kind of operator.
    """
    return OperatorValidation(tuple([one for path in tables for one in _table(path)]))


def _table(path: str) -> Iterator[Answer]:
    rows, measured = read_table(path)
    predicted = predict_rows(rows)
    for row, (source, seconds, reason), timed in zip(rows, predicted, measured, strict=True):
        if source is None:
            yield Answer(row, None, None, None, "", "", reason, timed)
            continue
        low_s, high_s = source.interval.of(seconds)
        yield Answer(row, seconds, low_s, high_s, source.evidence, source.note, "", timed)


def read_table(path: str) -> tuple[list[Row], list[float | None]]:
    """Return the operators of a table, and apart from them the seconds that were measured.

    Raises: FileFormatError.
    """
    reader = parse_csv(read_text(path, MAX_BYTES), path)
    header = [name.strip() for name in next(reader, [])]
    kind = next((kind for kind, names in COLUMNS.items() if {"gpu", "dtype", *names} <= set(header)), None)
    if kind is None:
        raise FileFormatError(
            f"{shown(path)} holds no operators: besides gpu and dtype it needs the columns "
            + "; or ".join(", ".join(names) for names in COLUMNS.values())
            + "."
        )
    rows: list[Row] = []
    measured: list[float | None] = []
    for cells in reader:
        if not any(cells):
            continue
        if len(rows) == MAX_ROWS:
            raise FileFormatError(f"{shown(path)} has more than {MAX_ROWS:,} rows; divide it.")
        named = {name: cell.strip() for name, cell in zip(header, cells, strict=False)}
        measured.append(_positive(named.pop("seconds", "")))
        rows.append(_row(path, len(rows), kind, named))
    return rows, measured


def _positive(cell: str) -> float | None:
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if isfinite(value) and value > 0 else None


def _row(path: str, index: int, kind: str, cells: Mapping[str, str]) -> Row:
    kernel, dtype, reason = cells.get("kernel_source", ""), cells.get("dtype", ""), ""
    parts = cells.get("source", "").split("/")
    sizes: dict[str, float] = {}
    for name in COLUMNS[kind]:
        if name == "operation":
            continue
        value = _positive(cells.get(name, ""))
        if value is None or value > MOST_SIZE:
            reason = (
                reason or f"{name} is {shown(cells.get(name, ''))}, not a number from 0 to {MOST_SIZE:g}."
            )
        else:
            sizes[name] = value
    if kind == "experts":
        sizes["skew"] = skew(cells.get("distribution", ""))
    if kind == "collective" and not reason:
        kernel = OPERATIONS.get(cells["operation"], cells["operation"])
        if dtype not in ITEM_BYTES:
            reason = f"Collectives of {shown(dtype)} were not timed; give one of {', '.join(ITEM_BYTES)}."
        else:
            sizes["bytes"] = sizes.pop("message_size") * ITEM_BYTES[dtype]
    engine = parts[2] if len(parts) > 2 and kind != "collective" else ""
    return Row(path, index, cells.get("gpu", ""), kind, dtype, kernel, engine, sizes, reason)


def spec_of(name: str) -> GpuSpec:
    """Return the GPU that a table names, its memory as the catalogue spells it or not; no file is read.

    Raises: UnknownNameError.
    """
    short = name
    while (found := known_gpu(short)) is None:
        short, dash, _ = short.rpartition("-")
        if not dash:
            raise UnknownNameError("GPU", name, known=gpus(), listing="finegauge gpus")
    return found


Predicted = tuple[Source | None, float, str]


def predict_rows(rows: Sequence[Row]) -> list[Predicted]:
    """Return (source, seconds, reason) of every row; a source of None where there is no answer."""
    alike: dict[tuple[str, ...], list[int]] = {}
    found: list[Predicted] = [(None, 0.0, row.reason) for row in rows]
    for index, row in enumerate(rows):
        if not row.reason:
            alike.setdefault((row.gpu, row.kind, row.dtype, row.kernel, row.engine), []).append(index)
    for (name, kind, dtype, kernel, engine), places in alike.items():
        try:
            source = source_for(spec_of(name), kind, dtype, kernel, engine)
        except FineGaugeError as error:
            for place in places:
                found[place] = None, 0.0, str(error)
            continue
        for place, seconds in zip(places, _seconds(source, [rows[p].sizes for p in places]), strict=True):
            found[place] = source, seconds, ""
    return found


def _seconds(source: Source, sizes: Sequence[Mapping[str, float]]) -> Iterable[float]:
    if len(sizes) == 1 or find_spec("numpy") is None:
        return [float(seconds_of(source, one)) for one in sizes]
    import numpy

    together = {name: numpy.array([one[name] for one in sizes]) for name in sizes[0]}
    return [float(one) for one in seconds_of(source, together)]


def _group(name: str, kind: str, dtype: str, rows: Sequence[Answer]) -> Group:
    answered = [one for one in rows if one.seconds is not None]
    measured = [one for one in answered if one.measured_s]
    errors = [one.error for one in measured if one.error is not None]
    sizes = [abs(error) for error in errors]
    covered = [
        one for one in measured if (one.low_s or 0.0) <= (one.measured_s or 0.0) <= (one.high_s or 0.0)
    ]
    return Group(
        name, kind, dtype, len(rows), len(answered), len(measured),
        median(sizes) if sizes else None,
        quantiles(sizes, n=10, method="inclusive")[-1] if sizes[1:] else max(sizes, default=None),
        median(errors) if errors else None,
        len(covered) / len(measured) if measured else None,
        answered[0].evidence if answered else "",
        answered[0].note if answered else rows[0].reason,
    )  # fmt: skip
