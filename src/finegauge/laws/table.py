"""A user's sweep as observations: one CSV row per measured run, columns by the names people use.

    batch (batch_size, micro_batch_size), sparsity (optional; 1 is dense), and one of
    samples_per_s (queries_per_s, throughput_qps), step_time_s, tokens_per_s_per_gpu with seq_len
    max_batch, gpu_memory_gb, model_memory_gb, seq_len, sparsity          for equation 1

Tables in the measurement format have these columns. Rows whose `outcome` is not ok are left out.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from finegauge.catalogue.documents import read_bounded
from finegauge.errors import FieldError, FileFormatError, InputError, did_you_mean, shown
from finegauge.laws.forms import MAX_BATCH, Form
from finegauge.laws.observation import Condition, Observation
from finegauge.units import GB

ALIASES: Mapping[str, tuple[str, ...]] = {
    "batch": ("batch_size", "micro_batch_size", "micro_batch"),
    "sparsity": ("sparsity_ratio", "sparsity_fraction"),
    "samples_per_s": ("queries_per_s", "throughput_qps", "samples_per_second"),
    "step_time_s": ("seconds_per_step",),
    "tokens_per_s_per_gpu": ("tokens_per_s",),
    "max_batch": ("max_batch_size", "observed_max_batch", "max_micro_batch_size"),
    "gpu_memory_gb": ("gpu_mem_gb",),
    "model_memory_gb": ("model_mem_gb",),
    "seq_len": ("sequence_length",),
    "gradient_accumulation_steps": (),
    "num_gpus": (),
    "outcome": (),
}
CONTEXT = ("gpu", "model", "dataset", "seq_len", "method", "model_memory_gb")
COMPLETED = ("", "ok", "completed")
SPEEDS = ("samples_per_s", "step_time_s", "tokens_per_s_per_gpu")


class SweepTable(NamedTuple):
    """The observations of a table, and what all of its rows share."""

    name: str
    observations: tuple[Observation, ...]
    context: Mapping[str, str]
    mixed: Mapping[str, tuple[str, ...]]  # columns of CONTEXT with several values
    num_left_out: int  # rows that did not complete


class _Row(NamedTuple):
    """One row under our column names, with its place for messages."""

    cells: Mapping[str, str]
    where: str

    def number(self, column: str, default: float | None = None) -> float:
        """Return the number above zero in `column`."""
        cell = self.cells.get(column, "")
        if not cell and default is not None:
            return default
        try:
            value = float(cell)
        except ValueError:
            value = 0.0
        if not 0 < value < 1e15:
            raise FieldError(f"{self.where}: {column} should be a number above 0, not {shown(cell)}.")
        return value

    def whole(self, column: str) -> int:
        """Return the whole number above zero in `column`."""
        value = self.number(column)
        if value != int(value):
            raise FieldError(f"{self.where}: {column} should be a whole number, not {value:g}.")
        return int(value)


def read_sweep(path: str, equation: Form, where: Sequence[str] = ()) -> SweepTable:
    """Return the sweep in the CSV file at `path`, as `equation` needs it.

    Args:
        path: The table.
        equation: Says which columns are needed.
        where: "column=value" each; other rows are left out.

    Raises: InputError, FileFormatError and FieldError, each naming file, line and column.
    """
    name = os.path.basename(path)
    header, rows = _read(path, name)
    chosen = [row for row in rows if _matches(row, where, header, name)]
    done = [row for row in chosen if row.cells.get("outcome", "").casefold() in COMPLETED]
    if not done:
        said = f" with {' and '.join(where)}" if where else ""
        raise InputError(f"{name}: no completed row{said}.")
    observe = _reader(equation, done[0].cells, name)
    values = {c: tuple(dict.fromkeys(r.cells[c] for r in done)) for c in CONTEXT if c in done[0].cells}
    return SweepTable(
        name=name,
        observations=tuple(observe(row) for row in done),
        context={c: _canonical(c, seen[0]) for c, seen in values.items() if len(seen) == 1 and seen[0]},
        mixed={c: seen for c, seen in values.items() if len(seen) > 1},
        num_left_out=len(chosen) - len(done),
    )


def _read(path: str, name: str) -> tuple[list[str], list[_Row]]:
    """Return the columns as the file names them, and its rows under ours."""
    import csv

    lines = [line for line in read_bounded(path).lstrip("\ufeff").splitlines() if line.strip()]
    if not lines:
        raise FileFormatError(f"{name} is empty; the first line names the columns.")
    try:
        header, *body = list(csv.reader(lines, strict=True))
    except csv.Error as error:
        raise FileFormatError(f"{name} is not CSV: {error}.") from None
    header = [column.strip() for column in header]
    ours = {alias: column for column, aliases in ALIASES.items() for alias in (column, *aliases)}
    rows = []
    for number, cells in enumerate(body, start=2):
        if len(cells) != len(header):
            raise FileFormatError(f"{name}, line {number}: {len(header)} cells expected, {len(cells)} found.")
        named = dict(zip(header, (cell.strip() for cell in cells), strict=True))
        known = {ours.get(column.casefold(), column): cell for column, cell in named.items()}
        rows.append(_Row({**named, **known}, f"{name}, line {number}"))
    return header, rows


def _matches(row: _Row, where: Sequence[str], header: Sequence[str], name: str) -> bool:
    """Return whether `row` has every value that `where` asks for."""
    for condition in where:
        column, equals, value = condition.partition("=")
        if not equals or column not in row.cells:
            raise InputError(
                f"--where {shown(condition)}: {name} has no such column.{did_you_mean(column, header)}"
                if equals
                else f"--where {shown(condition)} should be COLUMN=VALUE."
            )
        if row.cells[column].casefold() != value.strip().casefold():
            return False
    return True


def _reader(equation: Form, cells: Mapping[str, str], name: str) -> Callable[[_Row], Observation]:
    """Return how to read a row, its columns checked to be there."""
    if equation.quantity == MAX_BATCH:
        for column in ("max_batch", "gpu_memory_gb", "model_memory_gb", "seq_len"):
            _require(column, cells, name)
        return _capacity_row
    _require("batch", cells, name)
    speeds = [column for column in SPEEDS if column in cells]
    if not speeds:
        near = "".join(filter(None, (did_you_mean(column, cells) for column in SPEEDS[:2])))
        raise InputError(f"{name} has no column {', '.join(SPEEDS[:2])} or {SPEEDS[2]}.{near}")
    if speeds[0] == "tokens_per_s_per_gpu":
        _require("seq_len", cells, name)
    return lambda row: _speed_row(row, next((c for c in speeds if row.cells[c]), speeds[0]))


def _require(column: str, cells: Mapping[str, str], name: str) -> None:
    """Raise where `column` is missing, with the column that may have been meant."""
    if column not in cells:
        others = f" ({', '.join(ALIASES[column])})" if ALIASES[column] else ""
        near = did_you_mean(column, cells).replace("Did you mean", "Should it be the one called")
        raise InputError(f"{name} has no column '{column}'{others}.{near}")


def _speed_row(row: _Row, column: str) -> Observation:
    """Return the sequences per second of one GPU."""
    batch, measured = row.whole("batch"), row.number(column)
    if column == "samples_per_s":
        rate = measured / row.number("num_gpus", 1.0)
    elif column == "step_time_s":
        rate = batch * row.number("gradient_accumulation_steps", 1.0) / measured
    else:
        rate = measured / row.number("seq_len")
    return Observation(Condition(batch=batch, sparsity_fraction=row.number("sparsity", 1.0)), rate)


def _capacity_row(row: _Row) -> Observation:
    """Return the largest batch that ran."""
    condition = Condition(
        sparsity_fraction=row.number("sparsity", 1.0),
        seq_len=row.whole("seq_len"),
        gpu_memory_bytes=row.number("gpu_memory_gb") * GB,
        model_memory_bytes=row.number("model_memory_gb") * GB,
    )
    return Observation(condition, float(row.whole("max_batch")))


def _canonical(column: str, value: str) -> str:
    """Return the catalogue's name of a GPU; other values as they are."""
    if column != "gpu":
        return value
    from finegauge.catalogue.gpus import known_gpu

    found = known_gpu(value)
    return found.name if found else value
