"""Found plans as a table that a test writes down, in the form of a SearchResult."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from finegauge.planning.selection import Choice, Wanted
from finegauge.run.run import Run

RUN = Run(model="llama-2-7b", method="lora", gpu="A40", micro_batch_size=1, gradient_accumulation_steps=8)
FIGURES = ("on_demand_usd", "wall_s", "wall_energy_j", "device_memory_bytes")
GIB = 2.0**30


class Row(NamedTuple):
    """One plan of the table, by what makes it differ."""

    usd: float
    wall_s: float
    memory_gib: float = 20.0
    energy_j: float = 1.0
    gpu: str = "A40"
    method: str = "lora"
    num_gpus: int = 1
    optimizer: str = "adamw"
    capacity_gib: float = 40.0
    num_nodes: int = 1
    samples: float = 8.0  # in an optimizer step; as the run's
    cpu_offload: str = "none"
    risk: float | None = None  # of running out of memory; by default 0 or 1


class Table(NamedTuple):
    """Rows with their columns; a candidate is its row."""

    rows: Sequence[Row]
    columns: Mapping[str, NDArray[np.float64]]
    labels: Mapping[str, tuple[tuple[Any, ...], NDArray[np.intp]]]

    def candidate(self, index: int) -> Row:
        """Return one row."""
        return self.rows[index]


def table(*rows: Row) -> Table:
    """Return the table of `rows`."""
    risks = [row.risk if row.risk is not None else float(row.memory_gib > row.capacity_gib) for row in rows]
    columns = {
        "on_demand_usd": [row.usd for row in rows],
        "spot_usd": [row.usd / 2 for row in rows],
        "wall_s": [row.wall_s for row in rows],
        "wall_energy_j": [row.energy_j for row in rows],
        "device_memory_bytes": [row.memory_gib * GIB for row in rows],
        "capacity_bytes": [row.capacity_gib * GIB for row in rows],
        "out_of_memory_fraction": risks,
        "num_nodes": [row.num_nodes for row in rows],
        "samples_per_step": [row.samples for row in rows],
    }
    labels = {}
    for name in ("gpu", "method", "num_gpus", "optimizer", "cpu_offload"):
        values = tuple(dict.fromkeys(getattr(row, name) for row in rows))
        labels[name] = (values, np.array([values.index(getattr(row, name)) for row in rows], dtype=np.intp))
    return Table(rows, {name: np.array(column, dtype=float) for name, column in columns.items()}, labels)


def choice(
    *rows: Row,
    within_s: float | None = None,
    budget_usd: float | None = None,
    minimise: str = "cost",
    spot: bool = False,
) -> Choice:
    """Return the choice among `rows`."""
    wanted = Wanted(
        within_s=within_s,
        budget_usd=budget_usd,
        risk_fraction=0.05,
        minimise=minimise,  # type: ignore[arg-type]
        spot=spot,
    )
    return Choice.of(RUN, table(*rows), wanted)  # type: ignore[arg-type]
