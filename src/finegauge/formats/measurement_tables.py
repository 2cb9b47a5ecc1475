"""Published or own measurements: a CSV with one row per run, read as runs and what was measured beside them.

`docs/measurement-tables.md` lists the columns. A row may lack any of them: what its framework
does unasked is filled in, what is guessed is listed, and a row that describes no run keeps its
place with the reason. The columns that were measured are kept apart: they never reach the run.

Finished runs are written as rows to share: configuration and figures, no names and no paths. A model that the
catalogue has is called by its name; of any other the sizes in its configuration stand in the cell hf_config,
as JSON. Data sets, tokenizers, folders and machines are left out.
"""

import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from finegauge.catalogue.frameworks import counts_memory_as
from finegauge.catalogue.gpus import gpu, known_gpu
from finegauge.catalogue.models import models
from finegauge.documents import parse_csv, read_text
from finegauge.errors import FileFormatError, FineGaugeError, InputError, did_you_mean, shown
from finegauge.formats.measurement_rows import FULL, MEAN, Settings, settings_of
from finegauge.run.run import FIELDS, FROM_DEFAULT, Run

CONFIGURATION = (
    *("model", "hf_config", "phase", "method", "lora_rank", "lora_targets", "trainable_extra"),
    *("weights_dtype", "autocast", "optimizer", "attention", "kernels", "compile"),
    *("activation_checkpointing", "packing", "seq_len", "micro_batch_size", "gradient_accumulation_steps"),
    *("num_gpus", "gpu", "parallelism", "cpu_offload", "framework", "framework_version", "notes"),
)
PARTS = ("generation_s", "training_s", "scoring_s", "sync_s")  # of a step that generates and learns
SERVED = ("ttft_s", "time_per_output_token_s", "output_tokens_per_s", "joules_per_token")  # by a service
MEASURED = (
    *("tokens_per_s_per_gpu", "samples_per_s", "step_time_s", "peak_memory_gib", "memory_metric"),
    *("outcome", "outcome_stated", *PARTS, *SERVED),
)
METRICS = ("torch_allocated", "torch_reserved", "nvidia_smi", "unknown")
MAX_BYTES = 50_000_000
MAX_ROWS = 200_000
MICRO_BATCH_WORDS = ("step = micro", "step is a micro", "step_time_s per micro", "time per micro")
MULTIPLIED = (
    "step_time_s is accumulation x"  # what is printed is a micro-batch's, the column an optimizer step's
)
_NAMING = ("model", "dataset", "tokenizer", "gpu", "critic_model", "reward_model", "reference_model",
           "provider", "region")  # fmt: skip
_FIGURES = ("tokens_per_s_per_gpu", "step_time_s", "peak_memory_gib", "memory_metric", "outcome")


class Measured(NamedTuple):
    """What a row says was measured; None where it does not say."""

    tokens_per_s_per_gpu: float | None
    samples_per_s: float | None  # over all GPUs
    step_time_s: float | None  # of an optimizer step, or of a micro-batch
    step_is_micro_batch: bool
    peak_memory_gib: float | None  # of one GPU
    memory_metric: str  # one of METRICS
    outcome: str  # ok, oom or "" where nothing is known
    parts: Mapping[str, float] = {}  # those of PARTS and SERVED that it says


class MeasuredRow(NamedTuple):
    """One row: the run it describes, or why it describes none, and what was measured."""

    id: str
    source: str
    run: Run | None
    reason: str  # why there is no run; "" where there is one
    defaults: tuple[str, ...]  # what its framework does unasked
    assumptions: tuple[str, ...]  # what had to be guessed
    lengths: (
        str  # of the sequences: "full", "cut-off" (they vary up to seq_len) or "mean" (only that is known)
    )
    measured: Measured

    @property
    def times_complete(self) -> bool:
        """Return whether nothing that time depends on had to be guessed."""
        return not self.assumptions and self.lengths == FULL

    @property
    def memory_complete(self) -> bool:
        """Return whether nothing that memory depends on had to be guessed: the longest sequence is known."""
        return not self.assumptions and self.lengths != MEAN


def tables_in(paths: Iterable[str]) -> list[str]:
    """Return `paths`, every folder among them replaced by the .csv files in it, sorted.

    Raises: FileFormatError for a folder without one.
    """
    found: list[str] = []
    for path in paths:
        if not os.path.isdir(path):
            found.append(path)
            continue
        inside = sorted(name for name in os.listdir(path) if name.endswith(".csv"))
        if not inside:
            raise FileFormatError(f"The folder {shown(path)} holds no .csv file.")
        found += [os.path.join(path, name) for name in inside]
    return found


def read_table(path: str | os.PathLike[str]) -> list[MeasuredRow]:
    """Return the rows of a measurement table.

    Raises: FileFormatError if the file is missing, no text, no CSV, or has no column `model`.
    """
    file = os.fspath(path)
    rows = list(_cells(file))
    known_models: dict[str, str] = {}
    return [_row(number, cells, file, known_models) for number, cells in enumerate(rows, start=2)]


def configuration(cells: Mapping[str, str]) -> dict[str, str]:
    """Return the cells that describe the run: all that a prediction may see.

    Beside the usual columns, any other field of a run may be a column.
    """
    fields = {name: cells[name] for name in FIELDS if cells.get(name) and name not in CONFIGURATION}
    return {column: cells.get(column) or "" for column in CONFIGURATION} | fields


def _row(number: int, cells: Mapping[str, str], file: str, known_models: dict[str, str]) -> MeasuredRow:
    """Return one row; `number` is its line in the file."""
    name = os.path.splitext(os.path.basename(file))[0]
    run, reason, settings = None, cells.get("", ""), Settings()
    if not reason:
        try:
            settings = settings_of(configuration(cells), os.path.dirname(file), known_models)
            run = Run.from_fields(settings.fields, settings.origins)
            run.check_names()
        except FineGaugeError as error:
            run, reason = None, str(error)
    return MeasuredRow(
        id=cells.get("id") or f"{name}, line {number}",
        source=cells.get("source") or name,
        run=run,
        reason=reason,
        defaults=tuple(settings.defaults),
        assumptions=tuple(settings.assumptions),
        lengths=settings.lengths,
        measured=_measured(cells),
    )


def _measured(cells: Mapping[str, str]) -> Measured:
    """Return the measured columns; a cell that holds no positive number counts as empty."""
    metric = (cells.get("memory_metric") or "unknown").lower()
    if metric == "unknown":
        metric = counts_memory_as(configuration(cells)) or metric
    outcome = (cells.get("outcome") or "").lower()
    figures = {c: _positive(cells.get(c)) for c in MEASURED[:4]}
    if not outcome and any(figures.values()):
        outcome = "ok"
    notes = (cells.get("notes") or "").lower()
    return Measured(
        tokens_per_s_per_gpu=figures["tokens_per_s_per_gpu"],
        samples_per_s=figures["samples_per_s"],
        step_time_s=figures["step_time_s"],
        step_is_micro_batch=MULTIPLIED not in notes and any(one in notes for one in MICRO_BATCH_WORDS),
        peak_memory_gib=figures["peak_memory_gib"],
        memory_metric=metric if metric in METRICS else "unknown",
        outcome={"out_of_memory": "oom", "completed": "ok"}.get(outcome, outcome),
        parts={
            name: seconds for name in (*PARTS, *SERVED) if (seconds := _positive(cells.get(name))) is not None
        },
    )


def _positive(cell: str | None) -> float | None:
    try:
        figure = float(cell or "nan")
    except ValueError:
        return None
    return figure if 0 < figure < float("inf") else None


def _cells(file: str) -> Iterator[dict[str, str]]:
    """Yield the cells of each row by column; under "" stands why a row cannot be read."""
    name = os.path.basename(file)
    lines = parse_csv(read_text(file, MAX_BYTES), name)
    header = [column.strip().lower() for column in next(lines, [])]
    _check_header(header, name)
    for number, row in enumerate(lines, start=2):
        if number > MAX_ROWS:
            raise FileFormatError(f"{name} has over {MAX_ROWS:,} rows; split the table.")
        if not any(row):
            continue
        cells = dict(zip(header, (cell.strip() for cell in row), strict=False))
        if len(row) > len(header):
            cells[""] = f"The row has {len(row)} cells, the header {len(header)}; quote cells with commas."
        yield cells


def _check_header(header: list[str], name: str) -> None:
    if "model" not in header and "hf_config" not in header:
        known = ", ".join(CONFIGURATION[:6])
        raise FileFormatError(
            f"{name} has no column 'model'{did_you_mean('model', header) or '.'} "
            f"A measurement table is CSV whose first line names columns such as {known}."
        )
    twice = next((column for column in header if column and header.count(column) > 1), None)
    if twice:
        raise FileFormatError(f"{name} has two columns {shown(twice)}; remove or rename one.")


def table_of(rows: Iterable[MeasuredRow]) -> str:
    """Return the rows that describe a run as CSV, which 'finegauge validate', 'calibrate' and 'learn' read.

    Raises: InputError where none does.
    """
    found = [_shared(row, row.run) for row in rows if row.run is not None]
    if not found:
        raise InputError("No run can be shared: none was understood; without --row each says why.")
    import csv

    columns = dict.fromkeys(name for cells in found for name in cells)
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(found)
    return text.getvalue()


def _shared(row: MeasuredRow, run: Run) -> Mapping[str, Any]:
    cells: dict[str, Any] = dict(_model(run))
    for name, value in run.fields().items():
        stated = name == "packing" or run.origins[name] != FROM_DEFAULT
        if stated and name not in _NAMING and value is not None:
            cells[name] = " ".join(map(str, value)) if isinstance(value, tuple | list) else value
    cells |= {"gpu": _gpu(str(run.gpu)), "num_gpus": run.num_gpus}
    if not run.packing:
        del cells["packing"]  # "false" would say that lengths vary
    if run.dataset is not None and run.dataset.startswith("instructions-of-"):
        cells["dataset"] = run.dataset
    measured = row.measured._asdict()
    return cells | {name: measured[name] for name in _FIGURES if measured[name] not in (None, "unknown")}


def _model(run: Run) -> Mapping[str, Any]:
    if run.model in {figures.name for figures in models().values()}:
        return {"model": run.model}
    sizes = {key: value for key, value in run.config.items()
             if key == "model_type" or isinstance(value, bool | int | float)}  # fmt: skip
    return {"model": str(run.config.get("model_type", "")), "hf_config": json.dumps(sizes, sort_keys=True)}


def _gpu(name: str) -> str:
    found = gpu(name)
    listed = known_gpu(found.name)
    return listed.name if listed is not None else found.name
