"""How long do questions about 10,000 stored results take, and to go on with their campaign?

Predicted results of a Llama are stored as a campaign of optimisations, batches and lengths stores them. Then
`finegauge results` is asked in processes of its own: with no table beside the journal yet, so that every
line is read and its checksum compared, and with the table that a campaign leaves there at its end; then
`compare`, `report`, and `campaign` again, which finds every cell done. Beside it, in processes of their own
too: DuckDB's read_json over the same file for the same question, and Python's json over every line, with
nothing done about them. Seconds are of the processor, which other programs' load does not lengthen, the
best of the rounds, start of the process included, beside those of the clock and the peak of memory. The
promises: 10,000 under a second where the table is kept; with --results 100000 every question, that for all
rows as JSON apart, under 10 s, and all under 1 GiB. It ends with 1 where a promise is broken.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from finegauge.campaign.axes import About, Cell, Folder
from finegauge.campaign.sweep import read_sweep
from finegauge.prediction.predictor import predict
from finegauge.profile import Profile
from finegauge.store.table import JOURNAL, SUFFIX
from finegauge.units import GIB, MIB

FEW, MAX_S = 10_000, 1.0  # of so many results whose table is kept
MOST_S = 10.0  # of any question
ALL_ROWS, BESIDE = "results --json", ("DuckDB read_json", "Python's json")
KINDS = 25  # lengths that are predicted, each stored many times, for predicting is not what is timed
TOGETHER = 1000  # cells that are put on the disk at once
QUESTION = "SELECT micro_batch_size, min(step_time_s) FROM results GROUP BY 1 ORDER BY 1"
SWEEP = """
run: {{model: llama-2-7b, method: lora, gpu: a100-80gb}}
axes:
  switch: [baseline, checkpointing, qlora, selective-checkpointing]
  micro_batch_size: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
  seq_len: [{lengths}]
"""
DUCKDB = """
import duckdb, sys
path = sys.argv[1]
print(duckdb.sql(f'''
    SELECT record.profile.run.fields.micro_batch_size,
           min(list_sum([part[2]::DOUBLE FOR part IN record.profile.step_time_s]))
    FROM read_json('{path}', format='newline_delimited', maximum_object_size=100000000)
    GROUP BY 1 ORDER BY 1
''').fetchall())
"""
JSON = """
import json, sys
with open(sys.argv[1], "rb") as file:
    print(sum("profile" in json.loads(line)["record"] for line in file))
"""


class Cost(NamedTuple):
    """What a process took."""

    processor_s: float
    wall_s: float
    peak_bytes: float


def main() -> int:
    """Print the table; return 1 where a promise is broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", help="keep the campaign here, and take it up where it is there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or temporary
        kept = store(folder, options.results)
        journal = Path(kept, JOURNAL)
        taken = {
            name: best(
                command, options.rounds, journal.with_name(JOURNAL + SUFFIX) if "no table" in name else None
            )
            for name, command in questions(folder, kept).items()
        }
        size = journal.stat().st_size
    print(f"{options.results:,} stored results, {size / 1e6:,.0f} MB; best of {options.rounds} processes")
    return said(taken, options.results)


def questions(folder: str, kept: str) -> dict[str, tuple[str, ...]]:
    """Return what is asked of a campaign, by what the table calls it."""
    ask, journal = (sys.executable, "-m", "finegauge"), str(Path(kept, JOURNAL))
    return {
        "results, no table yet": (*ask, "results", kept, "--sql", QUESTION),
        "results": (*ask, "results", kept, "--sql", QUESTION),
        "results, first rows": (*ask, "results", kept),
        ALL_ROWS: (*ask, "results", kept, "--json"),
        "compare": (*ask, "compare", kept),
        "report": (*ask, "report", kept, "-o", str(Path(folder, "report.html"))),
        "campaign, all done": (*ask, "campaign", str(Path(folder, "sweep.yaml")), "-o", kept),
        BESIDE[0]: (sys.executable, "-c", DUCKDB, journal),
        BESIDE[1]: (sys.executable, "-c", JSON, journal),
    }


def said(taken: dict[str, Cost], number: int) -> int:
    """Print what `number` results took; return 1 where a promise is broken."""
    duckdb_s, json_s = (taken[name].processor_s for name in BESIDE)
    print(f"{'processor seconds':22}{'':>9}{'x DuckDB':>10}{'x json':>8}{'wall s':>9}{'MiB':>7}")
    for name, (processor_s, wall_s, peak_bytes) in taken.items():
        beside = f"{processor_s / duckdb_s:10.2f}{processor_s / json_s:8.2f}"
        print(f"{name:22}{processor_s:9.2f}{beside}{wall_s:9.2f}{peak_bytes / MIB:7.0f}")
    ours = {name: cost for name, cost in taken.items() if name not in BESIDE}
    slowest = max(cost.processor_s for name, cost in ours.items() if name != ALL_ROWS)
    largest = max(cost.peak_bytes for cost in ours.values())
    kept_s = taken["results"].processor_s
    promised_s = MAX_S if number <= FEW else MOST_S
    promises = {
        f"{kept_s:.2f} s with a table, the promise is {promised_s:.0f} s": kept_s < promised_s,
        f"{slowest:.1f} s at most, the promise is {MOST_S:.0f} s": slowest < MOST_S,
        f"{largest / MIB:.0f} MiB at most, the promise is 1,024": largest < GIB,
    }
    for promise, holds in promises.items():
        print(f"{'kept' if holds else 'BROKEN'}: {promise}")
    return 0 if all(promises.values()) else 1


def store(folder: str, number: int) -> str:
    """Store `number` predicted results as the campaign of a sweep, and return the campaign's folder."""
    file, kept = Path(folder, "sweep.yaml"), Path(folder, "kept")
    lengths = ", ".join(str(64 * (n + 1)) for n in range(number // 40))
    file.write_text(SWEEP.format(lengths=lengths), "utf-8")
    if kept.exists():
        return str(kept)
    sweep, campaign = read_sweep(str(file)), Folder(str(kept))
    campaign.describe(About(sweep.name, sweep.about, sweep.baseline, sweep.claims, sweep.axes))
    known: dict[tuple[object, ...], Profile] = {}
    answers: list[tuple[Cell, Profile | str]] = []
    for n, cell in enumerate(sweep.cells, start=1):
        switch, size, length = cell.labels.values()
        kind = switch, size, int(length) % (64 * KINDS)
        if kind not in known:
            assert cell.run is not None
            known[kind] = predict(cell.run)
        answers.append((cell, known[kind]))
        if n % TOGETHER == 0 or n == len(sweep.cells):
            campaign.answer(answers)
            answers.clear()
    return str(kept)


def best(command: Sequence[str], rounds: int, forget: Path | None = None) -> Cost:
    """Return what a command takes, the best of `rounds`; `forget` is removed before each."""
    costs = []
    for _ in range(rounds):
        if forget is not None:
            forget.unlink(missing_ok=True)
        began = time.monotonic()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, command)
        costs.append(Cost(used.ru_utime + used.ru_stime, time.monotonic() - began, used.ru_maxrss * 1024.0))
    return min(costs)


if __name__ == "__main__":
    sys.exit(main())
