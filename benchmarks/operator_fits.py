"""Surfaces of operators fitted to their timings, and how wrong they are where shapes or GPUs are left out.

Each kernel on each GPU has its own constants, by least squares of logarithms (soft, so that timings that
stand apart count less), held to the usual values where timings say little; then the weights with which
what remains is interpolated. NumPy and SciPy, which predicting does not need.
"""

from collections.abc import Mapping
from math import exp, log
from typing import Any, NamedTuple
from zlib import crc32

from finegauge.catalogue.device_profile import Timed, timings
from finegauge.catalogue.gpus import gpu
from finegauge.prediction.timed_operators import (
    NOISE_FRACTION,
    SURFACES,
    Chip,
    chip_of,
    interpolated,
    kernel_of,
    sizes_of,
)

CASTING = {"cast_s": 2e-6, "cast_bytes": 6.0}  # of products in formats narrower than 16 bit
SHARING = {"sharing": 0.1}  # of links behind PCIe bridges
HELD = 0.02  # standard deviations of the timings' scatter that a factor of e away from the usual costs
SOFT = 0.1  # of an error in logarithms, above which it counts less than its square
MOST = 1.0  # of what is interpolated, in logarithms
FOLDS = 5
LEAST_OVERLAP = 2.0
MOST_CALLS = 40
FURTHEST = 4.0  # of a constant from the usual one, in logarithms


class Known(NamedTuple):
    """The timings of one kernel as arrays."""

    timed: Timed
    chip: Chip
    sizes: Mapping[str, Any]
    places: Any
    seconds: Any
    fold: Any  # of FOLDS, by hash of the shape

    def part(self, chosen: Any) -> "Known":
        """Return the timings that `chosen` is true of."""
        sizes = {name: value[chosen] for name, value in self.sizes.items()}
        return self._replace(
            sizes=sizes, places=self.places[chosen], seconds=self.seconds[chosen], fold=self.fold[chosen]
        )


def known(timed: Timed) -> Known:
    """Return the timings of one kernel."""
    import numpy

    table = timings(timed.gpu, timed.kind)[timed.column]
    rows = sizes_of(timed.kind, table.shapes)
    sizes = {name: numpy.array([row[name] for row in rows]) for name in rows[0]}
    places = numpy.stack(SURFACES[timed.kind].place(sizes), axis=-1)
    fold = numpy.array([crc32(",".join(shape).encode()) % FOLDS for shape in table.shapes])
    chip = chip_of(gpu(timed.gpu), timed.dtype)
    return Known(timed, chip, sizes, places, numpy.array(table.seconds), fold)


class Fitted(NamedTuple):
    """Constants and weights of one kernel."""

    constants: Mapping[str, float]
    weights: Any
    places: Any

    def seconds(self, data: Known) -> Any:
        """Return the seconds of all shapes of `data` on its chip."""
        import numpy

        base = SURFACES[data.timed.kind].seconds(self.constants, data.sizes, data.chip)
        return base * numpy.exp(interpolated(tuple(data.places.T), self.places, self.weights))


def usual_of(timed: Timed) -> dict[str, float]:
    """Return the constants to begin with."""
    usual = dict(SURFACES[timed.kind].usual)
    if timed.kind == "gemm" and timed.dtype != "bf16":
        usual |= CASTING
    if timed.kind == "collective" and not gpu(timed.gpu).nvlink_bytes_per_s:
        usual |= SHARING
    return usual


def fit(data: Known, begin: Mapping[str, float] | None = None) -> Fitted:
    """Return the constants and weights that say the timings of `data` best; the search starts at `begin`."""
    import numpy
    from scipy.optimize import least_squares

    usual = usual_of(data.timed)
    surface, held = SURFACES[data.timed.kind].seconds, HELD * (len(data.seconds) / 20.0) ** 0.5
    timed = numpy.log(data.seconds)

    def errors(free: Any) -> Any:
        base = surface(_constants(usual, free), data.sizes, data.chip)
        return numpy.concatenate([numpy.log(base) - timed, (free - first) * held])

    first = numpy.array([_free(*one) for one in usual.items()])
    start = numpy.array([_free(*one) for one in (begin or usual).items()])
    found = least_squares(errors, start, loss="soft_l1", f_scale=SOFT, diff_step=1e-4, max_nfev=MOST_CALLS)
    constants = {name: float(f"{value:.5g}") for name, value in _constants(usual, found.x).items()}
    left = numpy.clip(timed - numpy.log(surface(constants, data.sizes, data.chip)), -MOST, MOST)
    matrix = kernel_of(data.places, data.places) + NOISE_FRACTION * numpy.eye(len(left))
    return Fitted(constants, numpy.linalg.solve(matrix, left), data.places)


def _free(name: str, value: float) -> float:
    return log(value / (1.0 - value)) if name == "last_wave" else log(value)


def _constants(usual: Mapping[str, float], free: Any) -> dict[str, float]:
    """Return the constants of numbers without bounds, none further than `FURTHEST` from the usual one."""
    found = {}
    for (name, value), own in zip(usual.items(), free, strict=True):
        middle = _free(name, value)
        bounded = max(middle - FURTHEST, min(middle + FURTHEST, float(own)))
        if name == "overlap" and value > LEAST_OVERLAP:  # loads run beside arithmetic in all but collectives
            bounded = max(log(LEAST_OVERLAP), bounded)
        found[name] = 1.0 / (1.0 + exp(-bounded)) if name == "last_wave" else exp(bounded)
    return found


def held_out(data: Known, whole: Fitted) -> Any:
    """Return log(timed / predicted) of every shape, each predicted from the folds without it.

    Only the search for constants starts where that of all shapes, `whole`, has ended.
    """
    import numpy

    found = numpy.zeros(len(data.seconds))
    for number in range(FOLDS):
        out = data.fold == number
        if out.any():
            fitted = fit(data.part(~out), whole.constants)
            part = data.part(out)
            found[out] = numpy.log(part.seconds / fitted.seconds(part))
    return found
