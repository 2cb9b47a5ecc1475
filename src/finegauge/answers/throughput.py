"""Throughput by micro-batch, and the laws fitted to it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from finegauge.errors import FineGaugeError
from finegauge.profile import Profile

if TYPE_CHECKING:
    from finegauge.laws.law import Condition

LAWS = ("affine", "xia-eq2")
CURVE_POINTS = 64


class BatchRate(NamedTuple):
    """What one micro-batch reaches."""

    micro_batch_size: int
    samples_per_s: float
    low_samples_per_s: float | None  # 10th and 90th percentile
    high_samples_per_s: float | None
    fits: bool


class LawLine(NamedTuple):
    """A law fitted to the rates."""

    name: str
    mape_fraction: float
    samples_per_s: tuple[float, ...]  # at every micro-batch
    between_rates: tuple[tuple[float, float], ...]  # (micro-batch, samples/s) from the first to the last


class Throughput(NamedTuple):
    """Rates of runs that differ in their micro-batch alone."""

    kind: str  # predicted or measured
    gradient_accumulation_steps: int
    rates: tuple[BatchRate, ...]
    laws: tuple[LawLine, ...]  # those that settle; none without SciPy


def throughput(sweep: Sequence[Profile]) -> Throughput | None:
    """Return the throughput over `sweep`, whose profiles differ in the micro-batch alone; None below two."""
    timed = [one for one in sweep if one.step_time_s.total]
    if len(timed) < 2:
        return None
    laws = tuple(line for name in LAWS if (line := _law_line(name, sweep)) is not None)
    own = sweep[0]
    return Throughput(
        own.source.kind, own.run.gradient_accumulation_steps, tuple(map(_batch_rate, timed)), laws
    )


def _batch_rate(profile: Profile) -> BatchRate:
    """Return what one micro-batch reaches; a longer step is a lower rate."""
    rate, interval = profile.samples_per_s, profile.source.time_interval
    low, high = (None, None) if interval is None else (rate / interval.high_ratio, rate / interval.low_ratio)
    return BatchRate(profile.run.micro_batch_size, rate, low, high, profile.fits)


def _law_line(name: str, sweep: Sequence[Profile]) -> LawLine | None:
    """Return a law fitted to `sweep`; None where it does not settle or SciPy is missing."""
    from finegauge.laws.fit import fit
    from finegauge.laws.law import Observation, form

    conditions = list(map(_condition, sweep))
    seen = [Observation(at, one.samples_per_s) for at, one in zip(conditions, sweep, strict=True)]
    try:
        law = fit(form(name), seen)
    except FineGaugeError:
        return None
    first, last = conditions[0], conditions[-1]
    step = (last.batch - first.batch) / CURVE_POINTS
    sizes = sorted({round(first.batch + step * n) for n in range(CURVE_POINTS + 1)})
    return LawLine(
        name,
        law.scores.mape_fraction,
        tuple(law.form.evaluate(law.constants, at) for at in conditions),
        tuple((float(size), law.form.evaluate(law.constants, first._replace(batch=size))) for size in sizes),
    )


def _condition(profile: Profile) -> "Condition":
    from finegauge.laws.law import Condition
    from finegauge.laws.registry import sparsity_fraction

    return Condition(batch=profile.run.micro_batch_size, sparsity_fraction=sparsity_fraction(profile.run))
