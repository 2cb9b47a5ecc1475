"""Prints how our graph agrees with transformers, model by model: `make oracle`.

    python -m tests.oracle.table [--only mixtral,llama] [--verbose] [--processes 2]

Errors are ours / theirs - 1. A row is a model under a method and a checkpointing; it shows
the worst over attention, precision, batch and loss. The exit status is 1 where a bar is
broken: parameters and FLOPs 0, saved bytes and peaks at most 0.5 % in the median, 2 % at worst.
"""

import argparse
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from statistics import median
from unittest.mock import patch

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from tests.oracle.cells import Cell, all_cells
from tests.oracle.compare import FLOPS, PEAKS, Outcome, compare

EXACT = ("parameters", "tensors", "trained parameters", *FLOPS)
NEAR = ("saved bytes", *PEAKS)
EXACT_TOLERANCE = 1e-9  # rounding of sums in binary
MEDIAN_BAR, WORST_BAR, MIN_CELLS = 0.005, 0.02, 400
COLUMNS = {
    "parameters": ("parameters", "tensors", "trained parameters"),
    "forward": (FLOPS[0],),
    "recompute": (FLOPS[1],),
    "backward": (FLOPS[2],),
    "saved": ("saved bytes",),
    **{name: (name,) for name in PEAKS},
}


def worst(outcomes: Iterable[Outcome], quantities: Iterable[str]) -> float:
    """Return the error furthest from zero."""
    wanted = tuple(quantities)
    errors = [outcome.errors[name] for outcome in outcomes for name in wanted if name in outcome.errors]
    return max(errors, key=abs, default=0.0)


def shown(error: float, *, exact: bool) -> str:
    """Return an error as a cell of the table: green where the bar is kept."""
    bad = abs(error) > (EXACT_TOLERANCE if exact else WORST_BAR)
    text = "0" if abs(error) <= EXACT_TOLERANCE else f"{100 * error:+.2f} %"
    return f"[red]{text}[/red]" if bad else text


def table_of(outcomes: list[Outcome]) -> Table:
    """Return the table: a row per model, method and checkpointing."""
    table = Table(title="Our graph against transformers: worst relative error", title_justify="left")
    for column in ("model", "method", "checkpointing", "cells", *COLUMNS):
        table.add_column(
            column, justify="left" if column in ("model", "method", "checkpointing") else "right"
        )
    rows: dict[tuple[str, str, str], list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        if not outcome.refusal:
            rows[outcome.cell[:3]].append(outcome)
    for key, found in rows.items():
        broken = [outcome.failure for outcome in found if outcome.failure]
        values = [shown(worst(found, names), exact=names[0] in EXACT) for names in COLUMNS.values()]
        table.add_row(*key, str(len(found)), *values)
        if broken:
            table.add_row(*key, str(len(broken)), f"[red]{broken[0][:100]}[/red]")
    return table


def summary(outcomes: list[Outcome]) -> tuple[list[str], bool]:
    """Return the lines below the table, and whether every bar is kept."""
    counted = [outcome for outcome in outcomes if outcome.errors]
    failures = [outcome for outcome in outcomes if outcome.failure]
    refused = sum(1 for outcome in outcomes if outcome.refusal)
    models = len({outcome.cell.model for outcome in counted})
    lines = [
        f"{len(counted)} cells of {models} models; {refused} that transformers does not offer; "
        f"{len(failures)} failed"
    ]
    kept = not failures and bool(counted)
    for name in EXACT:
        wrong = sum(1 for outcome in counted if abs(outcome.errors.get(name, 0.0)) > EXACT_TOLERANCE)
        lines.append(f"{name:20} wrong in {wrong:4} cells, worst {100 * worst(counted, [name]):+.4f} %")
        kept = kept and not wrong
    for name in NEAR:
        errors = [abs(outcome.errors[name]) for outcome in counted if name in outcome.errors]
        middle, most = median(errors or [0.0]), max(errors, default=0.0)
        above = sum(1 for error in errors if error > WORST_BAR)
        lines.append(
            f"{name:20} median {100 * middle:.3f} %, worst {100 * most:.2f} %, {above} cells above 2 %"
        )
        kept = kept and middle <= MEDIAN_BAR and most <= WORST_BAR
    return lines, kept


def outcomes_of(cells: list[Cell], processes: int, console: Console) -> list[Outcome]:
    """Return the outcome of every cell, compared in parallel."""
    found = []
    with (
        tempfile.TemporaryDirectory(prefix="finegauge-oracle-") as folder,
        patch.dict(os.environ, TMPDIR=folder),  # what the processes leave behind goes with it
        Progress(console=console, transient=True) as progress,
        ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool,
    ):
        task = progress.add_task("comparing", total=len(cells))
        for outcome in pool.map(compare, cells, chunksize=8):
            found.append(outcome)
            progress.advance(task)
            if not console.is_terminal and len(found) % 100 == 0:
                print(f"{len(found)} of {len(cells)} cells compared", file=sys.stderr, flush=True)
    return found


def main(arguments: list[str] | None = None) -> int:
    """Compare, print, and return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", help="parts of model names, separated by commas")
    parser.add_argument("--cells", help="only cells whose name contains this")
    parser.add_argument("--verbose", action="store_true", help="operators and modules of the worst cells")
    parser.add_argument("--processes", type=int, default=min(2, os.cpu_count() or 1))
    options = parser.parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 190)
    cells = all_cells(options.only.split(",") if options.only else None)
    if options.cells:
        cells = [cell for cell in cells if options.cells in cell.name]
    outcomes = outcomes_of(cells, options.processes, console)
    console.print(table_of(outcomes))
    lines, kept = summary(outcomes)
    console.print("\n".join(lines), highlight=False)
    if options.verbose:
        from tests.oracle.verbose import explain

        explain(outcomes, console)
    from tests.oracle.step_tracker import CORRECTIONS

    console.print("Corrected in the counters: " + "; ".join(CORRECTIONS) + ".", highlight=False)
    whole = not (options.only or options.cells)
    if whole and len(outcomes) < MIN_CELLS:
        console.print(f"only {len(outcomes)} cells, {MIN_CELLS} are asked for")
        kept = False
    return 0 if kept else 1


if __name__ == "__main__":
    raise SystemExit(main())
