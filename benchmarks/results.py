"""How long does a question about 10,000 stored results take, beside reading their file by others alone?

Predicted results of a Llama are stored as a campaign stores them. Then `finegauge results` is asked in
processes of its own: with no table beside the journal yet, so that every line is read and its checksum
compared, and with the table that a campaign leaves there at its end. Beside it, in processes of their own
too: DuckDB's read_json over the same file for the same question, and Python's json over every line, with
nothing done about them. Seconds are of the processor, which other programs' load does not lengthen, the
best of the rounds, start of the process included. The promise: under a second where the table is kept. It
ends with 1 where the promise is broken.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage

from finegauge.campaign.axes import PREDICTED
from finegauge.prediction.predictor import predict
from finegauge.run.run import Run
from finegauge.store.document import profile_document
from finegauge.store.journal import Journal, ended
from finegauge.store.table import JOURNAL, SUFFIX

MAX_S = 1.0
KINDS = 100  # of runs, each stored many times, for predicting is not what is timed
QUESTION = "SELECT micro_batch_size, min(step_time_s) FROM results GROUP BY 1 ORDER BY 1"
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


def main() -> int:
    """Print the table; return 1 where the promise is broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store(folder, options.results)
        journal = Path(folder, JOURNAL)
        ask = (sys.executable, "-m", "finegauge", "results", folder, "--sql", QUESTION)
        seconds = {
            "results, no table yet": best(ask, options.rounds, journal.with_name(JOURNAL + SUFFIX)),
            "results": best(ask, options.rounds),
            "DuckDB read_json": best((sys.executable, "-c", DUCKDB, str(journal)), options.rounds),
            "Python's json": best((sys.executable, "-c", JSON, str(journal)), options.rounds),
        }
        size = journal.stat().st_size
    _, asked, duckdb, plain = seconds.values()
    print(f"{options.results:,} stored results, {size / 1e6:,.0f} MB; best of {options.rounds} processes")
    print(f"{'processor seconds':22}{'':>9}{'x DuckDB':>10}{'x json':>8}")
    for name, taken in seconds.items():
        print(f"{name:22}{taken:9.2f}{taken / duckdb:10.2f}{taken / plain:8.2f}")
    kept = asked < MAX_S
    print(f"{'kept' if kept else 'BROKEN'}: {asked:.2f} s, the promise is {MAX_S:.0f} s")
    return 0 if kept else 1


def store(folder: str, number: int) -> None:
    """Store `number` predicted results in a campaign's folder."""
    base = Run(model="llama-2-7b", method="lora", gpu="a100-80gb")
    runs = [base.replace(micro_batch_size=n % 10 + 1, seq_len=256 * (n // 10 + 1)) for n in range(KINDS)]
    documents = [profile_document(predict(run)) for run in runs]
    asked = {"estimator": PREDICTED, "repetition": 0}
    Journal(str(Path(folder, JOURNAL))).append(
        *(
            ended(
                str(n), {"cell": str(n), "labels": {"seq_len": str(n % KINDS)}, **asked}, documents[n % KINDS]
            )
            for n in range(number)
        )
    )


def best(command: Sequence[str], rounds: int, forget: Path | None = None) -> float:
    """Return the processor seconds of a command, the best of `rounds`; `forget` is removed before each."""
    seconds = []
    for _ in range(rounds):
        if forget is not None:
            forget.unlink(missing_ok=True)
        before = getrusage(RUSAGE_CHILDREN)
        subprocess.run(command, check=True, capture_output=True)
        after = getrusage(RUSAGE_CHILDREN)
        seconds.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    return min(seconds)


if __name__ == "__main__":
    sys.exit(main())
