r"""Fit the constants of an equation to a sweep.

Two ways, both least squares:

ROBUST         minimises $\sum \rho(r)$ of the relative residuals $r = law / measured - 1$, where
               $\rho$ (soft L1) turns from square to linear at 5 %. Relative, because a step of
               0.3 s and one of 7 s are timed equally well in percent; robust, because sweeps hold
               points that a neighbouring job or a copying error spoiled.
LEAST_SQUARES  minimises the squares of $law - measured$, as the seed paper's artifact does; no other
               constants of that equation have a smaller RMSE.

The 95 % intervals are Student's t times the root of the diagonal of $s^2 (J^T J)^{-1}$ at the
optimum [1]; they trust the equation. The extrapolation test does not: it fits the smaller half of
the sweep and predicts the larger. Both are deterministic.

[1] Seber and Wild, Nonlinear Regression, 2003, section 5.1
"""

from collections.abc import Mapping
from math import exp, isfinite, log, sqrt
from typing import Any, NamedTuple

from finegauge.errors import InputError, UnsupportedError
from finegauge.laws.forms import MAX_BATCH, Form, Sweep
from finegauge.laws.law import Law, Scores
from finegauge.profile import Interval
from finegauge.units import GB

TURN_FRACTION = 0.05
BETWEEN_WHOLE_BATCHES = 0.5  # a largest batch of 8 was cut down from 8 to 9: its middle is fitted


class Objective(NamedTuple):
    """What a fit makes small."""

    relative: bool
    loss: str  # as scipy.optimize.least_squares names it


ROBUST = Objective(relative=True, loss="soft_l1")
LEAST_SQUARES = Objective(relative=False, loss="linear")


def fit(
    equation: Form,
    sweep: Sweep,
    *,
    objective: Objective = ROBUST,
    held: Mapping[str, float] | None = None,
    **about: Any,
) -> Law:
    """Return the law that `equation` becomes on `sweep`, with its errors and their test.

    Args:
        equation: One of `forms.FORMS`.
        sweep: The measured points.
        objective: What to make small.
        held: Constants to set by hand, beside those the sweep cannot tell.
        about: `name`, `table`, `context` and `fitted` of the law.

    Raises: InputError if there are fewer points than constants.
    """
    fixed = {**equation.held(sweep), **(held or {})} if sweep else {}
    free = [name for name in equation.units if name not in fixed]
    if len(sweep) < len(free):
        raise InputError(
            f"{equation.name} has {len(free)} constants to fit ({', '.join(free)}), but the table gives "
            f"{len(sweep)} {'point' if len(sweep) == 1 else 'points'}; measure more batch sizes."
        )
    found = _minimum(equation, sweep, free, fixed, objective)
    constants = {name: {**fixed, **found.constants}[name] for name in equation.units}
    tested, border = _extrapolation(equation, sweep, len(free), objective, fixed)
    batches = [seen.condition.batch for seen in sweep]
    return Law(
        **{"name": equation.name, **about},
        form_name=equation.name,
        constants=constants,
        half_widths=found.half_widths,
        held=tuple(name for name in equation.units if name in fixed),
        scores=scores(equation, constants, sweep),
        extrapolation=tested,
        smaller_half=border,
        interval=_interval(equation, constants, sweep, len(sweep) - len(free)),
        batch_range=(min(batches), max(batches)),
    )


def scores(equation: Form, constants: Mapping[str, float], sweep: Sweep) -> Scores:
    """Return how far the equation with `constants` is from the points of `sweep`."""
    said = [equation.answer(constants, seen.condition) for seen in sweep]
    squares = sum((one - seen.value) ** 2 for one, seen in zip(said, sweep, strict=True))
    shares = sum(abs(one / seen.value - 1) for one, seen in zip(said, sweep, strict=True))
    return Scores(len(sweep), sqrt(squares / len(sweep)), shares / len(sweep))


class _Minimum(NamedTuple):
    constants: dict[str, float]
    half_widths: dict[str, float]


def _minimum(
    equation: Form, sweep: Sweep, free: list[str], fixed: Mapping[str, float], objective: Objective
) -> _Minimum:
    """Return the constants in `free` that make the objective smallest."""
    least_squares = _solver()
    shift = BETWEEN_WHOLE_BATCHES if equation.quantity == MAX_BATCH else 0.0
    targets = [seen.value + shift for seen in sweep]

    def residuals(values: Any) -> list[float]:
        constants = {**fixed, **dict(zip(free, map(float, values), strict=True))}
        said = [equation.evaluate(constants, seen.condition) for seen in sweep]
        apart = zip(said, targets, strict=True)
        return [one / seen - 1 if objective.relative else one - seen for one, seen in apart]

    start = equation.start(sweep)
    solution = least_squares(
        residuals,
        [start[name] for name in free],
        bounds=tuple(zip(*(equation.limits[name] for name in free), strict=True)),
        loss=objective.loss,
        f_scale=TURN_FRACTION if objective.relative else 1.0,
        x_scale=[abs(start[name]) or 1.0 for name in free],
        ftol=1e-12, xtol=1e-12, gtol=1e-12, max_nfev=2000,
    )  # fmt: skip
    if not solution.success:
        raise UnsupportedError(f"{equation.name} does not settle on these points: {solution.message}")
    constants = dict(zip(free, map(float, solution.x), strict=True))
    return _Minimum(constants, _half_widths(solution, free, len(sweep)))


def _half_widths(solution: Any, free: list[str], num_points: int) -> dict[str, float]:
    """Return half the width of each constant's 95 % interval; none where the data leave it open."""
    import numpy as np
    from scipy.special import stdtrit

    spare = num_points - len(free)
    if spare < 1 or np.linalg.matrix_rank(solution.jac) < len(free):
        return {}
    variance = 2.0 * solution.cost / spare
    spread = np.linalg.inv(solution.jac.T @ solution.jac).diagonal() * variance
    widths = [float(stdtrit(spare, 0.975)) * sqrt(max(0.0, value)) for value in map(float, spread)]
    return dict(zip(free, widths, strict=True))


def _extrapolation(
    equation: Form, sweep: Sweep, num_free: int, objective: Objective, fixed: Mapping[str, float]
) -> tuple[Scores | None, str]:
    """Return the errors on the larger half of a law fitted to the smaller, and what the smaller is."""
    sizes = sorted(equation.size(seen.condition) for seen in sweep)
    border = sizes[(len(sizes) - 1) // 2]
    small = [seen for seen in sweep if equation.size(seen.condition) <= border]
    large = [seen for seen in sweep if equation.size(seen.condition) > border]
    if not large or len(small) < num_free or len({equation.size(seen.condition) for seen in small}) < 2:
        return None, ""
    within = {**fixed, **equation.held(small)}
    free = [name for name in equation.units if name not in within]
    found = _minimum(equation, small, free, within, objective)
    most = f"GPU <= {border / GB:g} GB" if equation.quantity == MAX_BATCH else f"batch <= {border:g}"
    return scores(equation, {**within, **found.constants}, large), most


def _interval(equation: Form, constants: Mapping[str, float], sweep: Sweep, spare: int) -> Interval | None:
    """Return the 10th and 90th percentile of measured / law for a new point, by Student's t on logarithms."""
    from scipy.special import stdtrit

    said = [equation.evaluate(constants, seen.condition) for seen in sweep]
    if spare < 1 or min(said) <= 0:
        return None
    squares = sum(log(seen.value / one) ** 2 for one, seen in zip(said, sweep, strict=True))
    spread = sqrt(squares / spare * (1 + 1 / len(sweep)))
    width = float(stdtrit(spare, 0.9)) * spread
    return Interval(exp(-width), exp(width)) if isfinite(width) and width < log(100) else None


def _solver() -> Any:
    """Return scipy's least_squares, or say in one sentence what to install."""
    try:
        from scipy.optimize import least_squares
    except ImportError:
        raise UnsupportedError(
            "Fitting a law needs scipy: pip install 'finegauge[calibrate]'. Predicting works without it."
        ) from None
    return least_squares
