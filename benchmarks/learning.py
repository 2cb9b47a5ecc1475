"""How much three finished runs teach, by GPU and framework.

    python benchmarks/learning.py [FOLDER]... [--gpu NAME]

Of every GPU and framework, some runs are learned from and the others predicted, without what was learned and
with it. FOLDERs hold one trainer's runs each: three are learned from, every choice of three in turn. Without
one, the runs are the rows of the shipped tables: 20 draws of three.

What repeats of one run differ by cannot be learned: where a folder holds repeats (predicted alike to the last
digit), the median of ln(t1 / t2) / sqrt 2 is the error that one run's own noise makes. "or noise" counts the
choices that at least halve the error or come down to that, of those that do not start there.
"""

import argparse
import random
from collections.abc import Iterator, Sequence
from itertools import combinations
from math import expm1, log, nan, sqrt
from statistics import mean, median

from finegauge.answers.calibration import read_finished
from finegauge.calibration import Evidence, evidence_of, learn, taught
from finegauge.catalogue.gpus import gpu
from finegauge.catalogue.tables import held_out_tables, measurement_tables
from finegauge.errors import FineGaugeError
from finegauge.formats.measurement_tables import MeasuredRow, read_table
from finegauge.prediction.calibration import LEARNED_PHASES, current

FROM = 3
DRAWS = 20


def main() -> None:
    """Print a row for every GPU and framework."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folders", nargs="*")
    parser.add_argument("--gpu", default="here")
    asked = parser.parse_args()
    try:
        found = (
            [row for row, _ in read_finished(asked.folders, (), asked.gpu)] if asked.folders
            else [row for table in (*measurement_tables(), *held_out_tables()) for row in read_table(table)]
        )  # fmt: skip
    except FineGaugeError as error:
        parser.error(str(error))
    print(f"{'GPU, framework':48} rows     now   learned  used   halved   noise  or noise")
    before, after = list[float](), list[float]()
    for name, rows in groups(found):
        sooner, later, used = held(rows)
        before += sooner
        after += later
        halved = mean(b <= 0.5 * a for a, b in zip(sooner, later, strict=True))
        figures = f"{median(sooner):7.1%} {median(later):8.1%} {used:6.0%} {halved:7.0%}"
        if (least := noise(rows)) is not None:
            choices = [(a, b) for a, b in zip(sooner, later, strict=True) if a > least]
            reached = mean(b <= max(0.5 * a, least) for a, b in choices) if choices else nan
            figures += f" {least:7.1%} {reached:8.0%}"
        print(f"{name[:48]:48} {len(rows):4} {figures}")
    if not before:
        parser.error(f"no GPU and framework has enough runs: {FROM} are learned from, others predicted")
    print(f"{'all, alike':48}      {median(before):7.1%} {median(after):8.1%}")


def groups(rows: Sequence[MeasuredRow]) -> Iterator[tuple[str, list[MeasuredRow]]]:
    """Yield the rows of each GPU and framework that has enough to learn from some and predict others."""
    found: dict[str, list[MeasuredRow]] = {}
    timed = {point.id for point in evidence_of(rows).points}
    for row in rows:
        if row.run is not None and row.id in timed and row.run.phase in LEARNED_PHASES:
            found.setdefault(f"{gpu(str(row.run.gpu)).name}, {row.run.framework}", []).append(row)
    yield from ((name, group) for name, group in sorted(found.items()) if len(group) >= 2 * FROM)


def noise(rows: Sequence[MeasuredRow]) -> float | None:
    """Return the error of one run that its own repeats show; None where nothing was repeated."""
    repeats: dict[float, list[float]] = {}
    for point in evidence_of(rows).points:
        repeats.setdefault(point.predicted_s(current()), []).append(log(point.measured_s))
    apart = [abs(a - b) / sqrt(2) for times in repeats.values() for a, b in combinations(times, 2)]
    return median(apart) if apart else None


def held(rows: Sequence[MeasuredRow]) -> tuple[list[float], list[float], float]:
    """Return the median errors of the rows not learned from, now and as learned, and how often it is used."""
    chance = random.Random(0)
    choices = list(combinations(rows, FROM))
    choices = choices if len(choices) <= DRAWS else chance.sample(choices, DRAWS)
    sooner, later, used = list[float](), list[float](), 0
    for chosen in choices:
        others = evidence_of([row for row in rows if all(row is not one for one in chosen)])
        lessons = learn(chosen, current())
        used += all(one.use == "used" for one in lessons)
        calibrations = current(), taught(current(), lessons)
        for errors, calibration in zip((sooner, later), calibrations, strict=True):
            errors.append(error(others, calibration))
    return sooner, later, used / len(choices)


def error(evidence: Evidence, calibration: object) -> float:
    """Return the median error of step times, without signs."""
    return median(abs(expm1(one)) for one in evidence.log_ratios(calibration))  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
