r"""Constants fitted to measured step times.

$$ \min_\theta \sum_i w_i^2\, \rho\!\left(\ln\frac{t_i(\theta)}{\hat t_i}\right)
   + \sum_j \left(\frac{\theta_j}{\sigma_j}\right)^2, \qquad \theta_j = \ln\frac{c_j}{c_j^0} $$

with the soft absolute value $\rho(r) = 2 s^2 (\sqrt{1 + (r/s)^2} - 1)$, so that a row in which the
source or our reading of it is wrong pulls no harder than a row that is somewhat off. Sources weigh
alike, however many rows they print; a row with guessed configuration weighs half. Solved by
Gauss-Newton steps, each of them exact for the linearised times (scipy's `least_squares`).
"""

from collections.abc import Iterable
from math import exp
from typing import TYPE_CHECKING, Any

from finegauge.calibrate.constants import CONSTANTS
from finegauge.calibrate.evidence import Evidence
from finegauge.predict.calibration import Calibration

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Vector = NDArray[Any]

SOFT_SCALE = 0.10  # relative error below which a residual counts squared
STEP = 0.02  # of a constant's logarithm, for the derivative
ROUNDS = 3
BOUND = 1.5  # a constant moves by at most this factor's logarithm (4.5 times)


def moved(start: Calibration, theta: Iterable[float]) -> Calibration:
    """Return `start` with its fitted constants times exp(theta)."""
    values = {c.name: getattr(start, c.name) * exp(t) for c, t in zip(CONSTANTS, theta, strict=True)}
    return start._replace(**values)


def fit(evidence: Evidence, start: Calibration, rounds: int = ROUNDS) -> Calibration:
    """Return `start` with the constants that explain `evidence` best."""
    import numpy as np

    theta = np.zeros(len(CONSTANTS))
    for _ in range(rounds):
        ratios = evidence.log_ratios(moved(start, theta))
        theta = _solve(evidence, theta, ratios, _slopes(evidence, start, theta, ratios))
    return moved(start, theta)


def _slopes(evidence: Evidence, start: Calibration, theta: "Vector", ratios: "Vector") -> "Vector":
    """Return the derivative of every residual by every constant."""
    import numpy as np

    columns = []
    for index in range(len(CONSTANTS)):
        beside = theta.copy()
        beside[index] += STEP
        columns.append((evidence.log_ratios(moved(start, beside)) - ratios) / STEP)
    return np.column_stack(columns)


def _solve(evidence: Evidence, theta: "Vector", ratios: "Vector", slopes: "Vector") -> "Vector":
    """Return the constants that minimise the linearised objective."""
    import numpy as np
    from scipy.optimize import least_squares

    weights = evidence.weights()
    spreads = np.array([constant.spread for constant in CONSTANTS])

    def objective(x: "Vector") -> "Vector":
        r = ratios + slopes @ (x - theta)
        soft = np.sign(r) * np.sqrt(2.0 * (np.sqrt(1.0 + (r / SOFT_SCALE) ** 2) - 1.0))
        return np.concatenate([weights * soft, x / spreads])

    solution: Vector = least_squares(objective, theta, bounds=(-BOUND, BOUND)).x
    return solution
