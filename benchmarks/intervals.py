"""How sure predictions of what nobody has timed may be, held against sources left out.

    python -m benchmarks.intervals

Of every shipped row, by how many things of its run no constant was fitted to (`uncertainty.untimed`): the
10th and 90th percentile of measured over predicted, all sources weighing alike; never narrower than with
fewer new things.
Sources and then GPUs are left out in turn, and their rows counted that lie inside the interval of the others.
The same of peak memory under frameworks of which the fitted tables state none, and by other counts than the
allocator's own. The intervals stand in `prediction/uncertainty.py`.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import exp, inf, log
from statistics import fmean
from typing import NamedTuple

from finegauge.calibration import evidence_of, leave_one_source_out, weighted_quantile
from finegauge.catalogue.gpus import gpu
from finegauge.catalogue.tables import held_out_tables, measurement_tables
from finegauge.formats.measurement_tables import read_table
from finegauge.prediction.calibration import DATASHEET
from finegauge.prediction.uncertainty import UNTIMED, is_unweighed, untimed
from finegauge.validation.summary import Answer, validate

Logarithms = Mapping[str, Sequence[float]]  # of measured over predicted, by source or by GPU
Group = Callable[[Answer], str]


class LeftOut(NamedTuple):
    """A regime, and how many rows of each source lie in the interval of the others."""

    name: str
    low_ratio: float
    high_ratio: float
    inside: Mapping[str, tuple[int, int]]  # by source: rows inside, rows

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return sum(rows for _, rows in self.inside.values())

    @property
    def inside_fraction(self) -> float:
        """Return the share of rows inside."""
        return sum(found for found, _ in self.inside.values()) / self.rows

    @property
    def inside_by_source_fraction(self) -> float:
        """Return the same, every source weighing alike."""
        return fmean(found / rows for found, rows in self.inside.values())


def percentile(sources: Logarithms, share: float) -> float:
    """Return a percentile over all rows, every source weighing alike."""
    return weighted_quantile(
        sorted((one, 1.0 / len(values)) for values in sources.values() for one in values), share
    )


def interval(sources: Logarithms) -> tuple[float, float]:
    """Return the logarithms between which four of five rows lie."""
    if not sources:
        return inf, -inf
    return percentile(sources, 0.1), percentile(sources, 0.9)


def left_out(name: str, regimes: Sequence[Logarithms]) -> LeftOut:
    """Return the last of `regimes`, whose interval is never narrower than those before it."""

    def widest(without: str = "") -> tuple[float, float]:
        found = (interval({key: rows for key, rows in each.items() if key != without}) for each in regimes)
        lows, highs = zip(*found, strict=True)
        return min(lows), max(highs)

    inside = {}
    for one, values in regimes[-1].items():
        low, high = widest(one)
        inside[one] = sum(low <= value <= high for value in values), len(values)
    low, high = map(exp, widest())
    return LeftOut(name, low, high, inside)


def of_time(
    answers: Iterable[Answer], group: Group, known: Mapping[str, float] | None = None
) -> list[LeftOut]:
    """Return the regimes of the step time; `known` has logarithms of rows with nothing new, by id."""
    found: list[dict[str, list[float]]] = [defaultdict(list) for _ in range(len(UNTIMED) + 1)]
    for one in answers:
        run = one.row.run
        if run is None or one.step_time_error is None:
            continue
        number = min(len(untimed(run, gpu(str(run.gpu)))), len(UNTIMED))
        if number:
            found[number][group(one)].append(-log(1.0 + one.step_time_error))
        elif known and one.row.id in known:
            found[0][group(one)].append(known[one.row.id])
    names = ["timed, all of it", *(f"{number} not timed" for number in range(1, len(found)))]
    names[-1] += " or more"
    first = 0 if known else 1
    return [left_out(names[at], found[first : at + 1]) for at in range(first, len(found)) if found[at]]


def of_memory(answers: Iterable[Answer], group: Group) -> list[LeftOut]:
    """Return the regimes of the peak memory that are not the calibration's own."""
    new: dict[str, list[float]] = defaultdict(list)
    beyond: dict[str, list[float]] = defaultdict(list)
    for one in answers:
        run, metric = one.row.run, one.row.measured.memory_metric
        if run is None or one.peak_memory_error is None or metric == "nvidia_smi":
            continue
        for rows, holds in ((new, is_unweighed(run.framework)), (beyond, metric != "torch_allocated")):
            if holds:
                rows[group(one)].append(-log(1.0 + one.peak_memory_error))
    return [left_out("framework not weighed", [new]), left_out("reserved, or not stated", [beyond])]


def by_source(one: Answer) -> str:
    """Return the source of a row."""
    return one.row.source


def by_gpu(one: Answer) -> str:
    """Return the GPU of a row."""
    return str(one.row.run and one.row.run.gpu)


def say(one: LeftOut) -> None:
    """Print a regime."""
    print(
        f"{one.name}: {one.rows} rows of {len(one.inside)}, {one.low_ratio:.2f} to {one.high_ratio:.2f}; "
        f"left out {one.inside_fraction:.0%} of rows inside, {one.inside_by_source_fraction:.0%} all alike"
    )
    for name, (inside, rows) in one.inside.items():
        print(f"    {name}: {inside} of {rows}")


def main() -> None:
    """Print all of it."""
    answers = validate([*measurement_tables(), *held_out_tables()]).answers
    evidence = evidence_of(row for path in measurement_tables() for row in read_table(path))
    known = {one.id: -one.log_ratio for one in leave_one_source_out(evidence, DATASHEET)}
    for what, group in (("source", by_source), ("GPU", by_gpu)):
        print(f"\nStep time, each {what} left out")
        for one in of_time(answers, group, known):
            say(one)
        print(f"\nPeak memory, each {what} left out")
        for one in of_memory(answers, group):
            say(one)


if __name__ == "__main__":
    main()
