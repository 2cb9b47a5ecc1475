"""Sequences per second against the micro-batch, with their interval and two laws fitted to them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from finegauge.errors import FineGaugeError
from finegauge.profile import Profile
from finegauge.report import figures
from finegauge.report.bars import Table
from finegauge.report.drawing import BLUE, GREEN, INK, SOFT, VERMILION, Drawing, new_axes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from finegauge.laws.law import Law
    from finegauge.laws.observation import Condition

KEY = "throughput"
LAWS = {"affine": ("affine law", GREEN, "--"), "xia-eq2": ("equation 2 of Xia et al. 2024", VERMILION, ":")}
HEIGHT_INCHES = 3.5
CURVE_POINTS = 64


class Point(NamedTuple):
    """One micro-batch."""

    micro_batch_size: int
    samples_per_s: float
    low_samples_per_s: float | None  # 10th and 90th percentile
    high_samples_per_s: float | None
    fits: bool


class LawLine(NamedTuple):
    """A law through the points."""

    label: str
    colour: str
    dashes: str
    mape_fraction: float
    samples_per_s: tuple[float, ...]  # at every point
    between_rates: tuple[
        tuple[float, float], ...
    ]  # (micro-batch, samples/s) from the first point to the last


def throughput_drawing(sweep: Sequence[Profile]) -> Drawing | None:
    """Return throughput over the micro-batches of `sweep`, which differ in nothing else; None below two."""
    points = [_point(profile) for profile in sweep if profile.step_time_s.total]
    if len(points) < 2:
        return None
    lines = [line for name in LAWS if (line := _law_line(name, sweep)) is not None]
    fits = [point.micro_batch_size for point in points if point.fits]
    kind = sweep[0].source.kind
    caption = f"{kind.capitalize()} throughput"
    over = len(fits) < len(points)
    caption += f" up to {max(fits)}, the largest micro-batch that fits" if fits and over else ""
    caption += "" if fits else "; no micro-batch fits"
    caption += "; the band spans the 10th to the 90th percentile." if points[0].low_samples_per_s else "."
    said = [f"{line.label} {figures.percent(line.mape_fraction)}" for line in lines]
    caption += f" Laws fitted to these points, mean error: {', '.join(said)}." if said else ""
    own = sweep[0].run
    steps = own.gradient_accumulation_steps
    caption += f" {steps} micro-batches a step." if steps > 1 else ""
    return Drawing(
        KEY, "Throughput by batch", caption, _table(points, lines), lambda: draw(points, lines, kind)
    )


def draw(points: Sequence[Point], lines: Sequence[LawLine], kind: str) -> "Figure":
    """Return the points with their band, and the laws through them."""
    from matplotlib.ticker import MaxNLocator

    figure, axes = new_axes(HEIGHT_INCHES)
    xs = [point.micro_batch_size for point in points]
    banded = [p for p in points if p.low_samples_per_s is not None and p.high_samples_per_s is not None]
    if banded:
        axes.fill_between(
            [p.micro_batch_size for p in banded],
            [p.low_samples_per_s or 0.0 for p in banded],
            [p.high_samples_per_s or 0.0 for p in banded],
            color=BLUE, alpha=0.18, lw=0, label="10th to 90th percentile",
        )  # fmt: skip
    for line in lines:
        axes.plot(
            *zip(*line.between_rates, strict=True), line.dashes, color=line.colour, lw=1.6, label=line.label
        )
    axes.plot(xs, [p.samples_per_s for p in points], "-o", color=BLUE, ms=4, lw=1, label=kind, zorder=3)
    over = [p for p in points if not p.fits]
    if over:
        axes.plot(
            [p.micro_batch_size for p in over], [p.samples_per_s for p in over], "x", color=INK, ms=6,
            label="does not fit", zorder=4,
        )  # fmt: skip
    axes.set(xlabel="micro-batch, sequences on each GPU", ylabel="sequences per second")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylim(bottom=0)
    axes.legend(loc="lower right", labelcolor=SOFT)
    return figure


def _point(profile: Profile) -> Point:
    """Return what one micro-batch reaches; a longer step is a lower rate."""
    rate, interval = profile.samples_per_s, profile.source.time_interval
    low, high = (None, None) if interval is None else (rate / interval.high_ratio, rate / interval.low_ratio)
    return Point(profile.run.micro_batch_size, rate, low, high, profile.fits)


def _law_line(name: str, sweep: Sequence[Profile]) -> LawLine | None:
    """Return a law fitted to `sweep`; None where it does not settle or SciPy is missing."""
    try:
        law = _fitted(name, sweep)
    except FineGaugeError:
        return None
    rates = tuple(law.form.evaluate(law.constants, _condition(profile)) for profile in sweep)
    label, colour, dashes = LAWS[name]
    first, last = (_condition(sweep[n]) for n in (0, -1))
    sizes = sorted(
        {round(first.batch + (last.batch - first.batch) * n / CURVE_POINTS) for n in range(CURVE_POINTS + 1)}
    )
    between = tuple(
        (float(size), law.form.evaluate(law.constants, first._replace(batch=size))) for size in sizes
    )
    return LawLine(label, colour, dashes, law.scores.mape_fraction, rates, between)


def _fitted(name: str, sweep: Sequence[Profile]) -> "Law":
    """Return a law of one GPU's sequences per second."""
    from finegauge.laws.fit import fit
    from finegauge.laws.forms import form
    from finegauge.laws.observation import Observation

    return fit(form(name), [Observation(_condition(one), one.samples_per_s) for one in sweep])


def _condition(profile: Profile) -> "Condition":
    """Return what the laws know of a profile's run."""
    from finegauge.laws.estimator import sparsity_fraction
    from finegauge.laws.observation import Condition

    return Condition(batch=profile.run.micro_batch_size, sparsity_fraction=sparsity_fraction(profile.run))


def _table(points: Sequence[Point], lines: Sequence[LawLine]) -> Table:
    """Return a row per micro-batch."""
    rows = []
    for number, point in enumerate(points):
        known = point.low_samples_per_s is not None and point.high_samples_per_s is not None
        span = (
            f"{figures.digits(point.low_samples_per_s)} to {figures.digits(point.high_samples_per_s)}"
            if known
            else figures.UNKNOWN
        )
        rows.append((
            f"{point.micro_batch_size:,}", figures.digits(point.samples_per_s), span,
            *(figures.digits(line.samples_per_s[number]) for line in lines), "yes" if point.fits else "no",
        ))  # fmt: skip
    headings = (
        "micro-batch",
        "sequences/s",
        "10th to 90th percentile",
        *(line.label for line in lines),
        "fits",
    )
    return Table("Throughput by micro-batch", headings, tuple(rows))
