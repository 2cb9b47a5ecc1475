"""Ask one predictor about every row: `python -m benchmarks.peers.ask NAME OUT.jsonl`, in its own environment.

A line for each row: bytes by the row's metric, seconds of a step, fits or not, or why there is no answer.
`finegauge` is our prediction; `finegauge-left-out` is ours by constants fitted without the row's source.
A predictor that traces models is given a limit of processor seconds: rows after it say so, and none is
asked twice.
"""

import argparse
import json
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from finegauge.calibration import FOLD_ROUNDS, evidence_of, fit
from finegauge.catalogue.tables import held_out_tables, measurement_tables
from finegauge.errors import UnsupportedError
from finegauge.formats.measurement_tables import MeasuredRow, read_table
from finegauge.prediction.calibration import DATASHEET, Calibration
from finegauge.prediction.predictor import predict
from finegauge.validation.rival_formulas import Estimator
from finegauge.validation.rivals import rivals
from finegauge.validation.summary import answer

EXAM = Path(__file__).resolve().parents[2] / "tests" / "golden" / "field_exam.csv"
OURS = ("finegauge", "finegauge-left-out")
NOT_ASKED = "not asked: the limit of seconds was used up"


def shipped_rows() -> list[MeasuredRow]:
    """Return every row of every shipped table, those that constants are fitted to and those held out."""
    return [row for path in (*measurement_tables(), *held_out_tables()) for row in read_table(path)]


def exam_rows() -> list[MeasuredRow]:
    """Return the rows of the field exam."""
    return read_table(EXAM)


def left_out(rows: Sequence[MeasuredRow]) -> dict[str, Estimator]:
    """Return, by source, our prediction by constants that were fitted to the other sources."""
    evidence = evidence_of(row for path in measurement_tables() for row in read_table(path))

    @cache
    def constants(source: str) -> Calibration:
        return fit(evidence.without(source), DATASHEET, FOLD_ROUNDS)

    def by(source: str) -> Estimator:
        return lambda run: predict(run, constants(source) if source in evidence.sources else None)

    return {row.source: by(row.source) for row in rows}


def estimators(name: str, rows: Sequence[MeasuredRow]) -> dict[str, Estimator | None]:
    """Return what answers the rows of each source; None is FineGauge as it is.

    Raises: UnsupportedError where the predictor is not installed here.
    """
    sources = {row.source for row in rows}
    if name == "finegauge":
        return dict.fromkeys(sources)
    if name == "finegauge-left-out":
        return dict(left_out(rows))
    found, absent = rivals([name], rows)
    if absent:
        raise UnsupportedError(f"{name} is {absent[name]}.")
    return dict.fromkeys(sources, found[name])


def main() -> None:
    """Ask, and write a line for each row as it is answered."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name")
    parser.add_argument("output", type=Path)
    parser.add_argument("--seconds", type=float, default=3600.0)
    options = parser.parse_args()
    rows = [*shipped_rows(), *exam_rows()]
    asked, start = estimators(options.name, rows), time.process_time()
    with options.output.open("w", encoding="utf-8") as file:
        for row in rows:
            late = time.process_time() - start > options.seconds
            found = answer(row, asked[row.source]) if not late else None
            said = found.prediction if found else None
            line = {
                "id": row.id,
                "reason": NOT_ASKED if found is None else found.reason,
                "peak_memory_gib": said.peak_memory_gib if said else None,
                "step_time_s": said.step_time_s if said else None,
                "memory_error": found.peak_memory_error if found else None,
                "time_error": found.step_time_error if found else None,
                "outcome": said.outcome if said and said.peak_memory_gib > 0 else None,
            }
            file.write(json.dumps(line) + "\n")
            file.flush()  # what is known stays known, where it is stopped


if __name__ == "__main__":
    main()
