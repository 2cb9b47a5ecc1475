"""How sure predictions of what nobody has timed may be, held against sources left out.

    python -m benchmarks.intervals

Of every shipped row, by how many things of its run no constant was fitted to (`uncertainty.untimed`): the
10th and 90th percentile of measured over predicted, all sources weighing alike; widened as a new source
asks, which is one more draw from as few as there are (Student's t over the normal, times the root of
1 + 1/k: the interval of a prediction, not of a mean); and what share of each source's rows lies inside the
interval of the others. The widened intervals stand in `prediction/uncertainty.py`. The same of peak memory
under frameworks of which the fitted tables state none.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import exp, log, sqrt
from statistics import NormalDist

from finegauge.calibration.calibrate import weighted_quantile
from finegauge.catalogue.gpus import gpu
from finegauge.catalogue.tables import held_out_tables, measurement_tables
from finegauge.prediction.uncertainty import UNTIMED, is_unweighed, untimed
from finegauge.validation.summary import validate

# 90th percentile of Student's t by degrees of freedom
STUDENT = {1: 3.078, 2: 1.886, 3: 1.638, 4: 1.533, 5: 1.476, 6: 1.440, 7: 1.415, 8: 1.397}
Logarithms = Mapping[str, Sequence[float]]  # of measured over predicted, by source


def percentile(sources: Logarithms, share: float) -> float:
    """Return a percentile over all rows, every source weighing alike."""
    return weighted_quantile(
        sorted((one, 1.0 / len(values)) for values in sources.values() for one in values), share
    )


def interval(sources: Logarithms) -> tuple[float, float]:
    """Return the logarithms between which four of five rows of one more source lie."""
    low, high = percentile(sources, 0.1), percentile(sources, 0.9)
    degrees = min(len(sources) - 1, max(STUDENT))
    wider = STUDENT[degrees] / NormalDist().inv_cdf(0.9) * sqrt(1.0 + 1.0 / len(sources)) if degrees else 1.0
    return (low + high) / 2 - (high - low) / 2 * wider, (low + high) / 2 + (high - low) / 2 * wider


def say(name: str, sources: Logarithms) -> None:
    """Print the interval of all sources, and how many rows of each lie in that of the others."""
    inside = {}
    for left, values in sources.items():
        low, high = interval({name: rows for name, rows in sources.items() if name != left})
        inside[left] = sum(low <= one <= high for one in values)
    rows = sum(map(len, sources.values()))
    low, high = map(exp, interval(sources))
    plain = exp(percentile(sources, 0.1)), exp(percentile(sources, 0.9))
    print(
        f"{name}: {rows} rows of {len(sources)} sources, {plain[0]:.2f} to {plain[1]:.2f}, widened {low:.2f} "
        f"to {high:.2f}; of rows left out {sum(inside.values()) / rows:.0%} inside"
    )
    for left, values in sources.items():
        print(f"    {left}: {inside[left]} of {len(values)}")


def main() -> None:
    """Print all of it."""
    times: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    memory: dict[str, list[float]] = defaultdict(list)
    for one in validate([*measurement_tables(), *held_out_tables()], against=[]).answers:
        run = one.row.run
        if run is None:
            continue
        number = min(len(untimed(run, gpu(str(run.gpu)))), len(UNTIMED))
        if one.step_time_error is not None and number:
            times[number][one.row.source].append(-log(1.0 + one.step_time_error))
        if one.peak_memory_error is not None and is_unweighed(run.framework):
            memory[one.row.source].append(-log(1.0 + one.peak_memory_error))
    for number, sources in sorted(times.items()):
        say(f"Step time, {number} new", sources)
    say("Peak memory, framework not weighed", memory)


if __name__ == "__main__":
    main()
