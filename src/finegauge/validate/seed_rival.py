r"""The seed paper's throughput law as a rival: each row from the others of its own sweep.

Equation 2 [1] has constants for one model, GPU and data set, and says nothing without a sweep of
measured batches. So that it can take part at all, every row is predicted from the rows of the same
table that differ from it in the micro-batch alone, two of them at least: a leave-one-out fit of

$$ q = C_4 + C_2 \ln B $$

(within a sweep the sparsity and C3 only scale C2). No other rival, and not FineGauge, is shown a
measurement. Equation 1 needs a series of maximum batches over GPUs, which no row states.

[1] Xia et al. 2024, arXiv:2408.04693, section V
"""

from collections import defaultdict
from collections.abc import Sequence
from math import log
from typing import TYPE_CHECKING, Any

from finegauge.errors import UnsupportedError
from finegauge.profile import Breakdown, Profile, Source
from finegauge.workload.readers.measurement_table import MeasuredRow

if TYPE_CHECKING:
    from finegauge.workload.run import Run

Points = dict[int, list[float]]  # sequences per second of one GPU, by micro-batch


class SeedLaw:
    """Equation 2, fitted anew for every question to the other batches of its sweep."""

    def __init__(self, rows: Sequence[MeasuredRow]) -> None:
        """Gather the sweeps of `rows`."""
        self.sweeps: dict[tuple[Any, ...], Points] = defaultdict(lambda: defaultdict(list))
        for row in rows:
            rate = _samples_per_s(row)
            if row.run is not None and rate:
                self.sweeps[_sweep(row.run)][row.run.micro_batch_size].append(rate)

    def __call__(self, run: "Run") -> Profile:
        """Return what the law says of `run`, fitted without its own batch.

        Raises: UnsupportedError where the sweep has fewer than two other batches.
        """
        others = {b: q for b, q in self.sweeps[_sweep(run)].items() if b != run.micro_batch_size}
        if len(others) < 2:
            raise UnsupportedError("Equation 2 needs two other batches of the same sweep.")
        c2, c4 = _line([(log(b), q) for b, rates in others.items() for q in rates])
        rate = c4 + c2 * log(run.micro_batch_size)
        if rate <= 0:
            raise UnsupportedError(f"Equation 2 gives {rate:.3g} sequences/s here.")
        seconds = run.micro_batch_size * run.gradient_accumulation_steps / rate
        return Profile(
            run=run,
            source=Source("rival", "xia2024"),
            step_time_s=Breakdown.of(step=seconds),
            step_tokens=float(run.global_batch_size * run.seq_len),
            step_sequences=float(run.global_batch_size),
        )


def _line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return (slope, intercept) of the line of least squares through `points`."""
    n = len(points)
    x, y = sum(p[0] for p in points) / n, sum(p[1] for p in points) / n
    spread = sum((p[0] - x) ** 2 for p in points)
    slope = sum((p[0] - x) * (p[1] - y) for p in points) / spread if spread else 0.0
    return slope, y - slope * x


def _sweep(run: "Run") -> tuple[Any, ...]:
    """Return all that the rows of one sweep share: every field but the batch."""
    return tuple(value for name, value in run.fields().items() if name != "micro_batch_size")


def _samples_per_s(row: MeasuredRow) -> float | None:
    """Return the sequences per second of one GPU that a row measured."""
    if row.run is None:
        return None
    theirs = row.measured
    if theirs.tokens_per_s_per_gpu:
        return theirs.tokens_per_s_per_gpu / row.run.seq_len
    if theirs.step_time_s and not theirs.step_is_micro_batch:
        return row.run.global_batch_size / theirs.step_time_s / row.run.num_gpus
    return None
