"""Published tables that the golden tests hold predictions against."""

import csv
from collections.abc import Iterator

from finegauge.formats.measurement_tables import MEASURED, PARTS, SERVED, MeasuredRow, read_table
from tests.shared import SHARED

OF_STEPS = tuple(name for name in MEASURED if name not in (*PARTS, *SERVED))  # what shipped tables print

Row = dict[str, str]
STATED = (
    "autocast",
    "optimizer",
    "attention",
    "activation_checkpointing",
    "compile",
    "seq_len",
    "gpu",
    "hf_config",
)


def rows(path: str) -> list[Row]:
    """Return the rows of one table under the reference figures."""
    with (SHARED / "data" / path).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def packed_rows() -> Iterator[MeasuredRow]:
    """Yield the completed one-GPU rows whose sequences are all full and whose configuration is stated."""
    for path in sorted((SHARED / "data" / "measurements").glob("*.csv")):
        stated = {row["id"] for row in rows(f"measurements/{path.name}") if all(row[c] for c in STATED)}
        for row in read_table(path):
            ran, run = row.measured.outcome == "ok", row.run
            if ran and run is not None and run.packing and run.num_gpus == 1 and row.id in stated:
                yield row
