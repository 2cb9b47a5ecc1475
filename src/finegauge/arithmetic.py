"""The few functions that plain numbers and NumPy arrays do not share, so that one equation serves both.

A quantity is one number, or an array with one number per candidate of a search; sums, products and
quotients are written alike for both. What remains (the larger of two, a choice, rounding) stands
here: Python's own for plain numbers, elementwise otherwise. NumPy is imported only where an array
has already come in, so that a single prediction never pays for it.
"""

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any, TypeVar

PLAIN = (float, int)
Quantity = TypeVar("Quantity")


def largest(*values: Quantity) -> Quantity:
    """Return the largest of the quantities, elementwise."""
    for value in values:
        if not isinstance(value, PLAIN):
            found: Quantity = _together("maximum", values)
            return found
    return max(values)  # type: ignore[type-var]  # plain numbers


def smallest(*values: Quantity) -> Quantity:
    """Return the smallest of the quantities, elementwise."""
    for value in values:
        if not isinstance(value, PLAIN):
            found: Quantity = _together("minimum", values)
            return found
    return min(values)  # type: ignore[type-var]  # plain numbers


def where(condition: Any, then: Quantity, otherwise: Quantity) -> Quantity:
    """Return `then` where the condition holds, `otherwise` elsewhere."""
    if isinstance(condition, PLAIN):
        return then if condition else otherwise
    import numpy

    found: Any = numpy.where(condition, numpy.asarray(then), numpy.asarray(otherwise))
    each: Quantity = found
    return each


def _together(function: str, values: Sequence[Any]) -> Any:
    """Return NumPy's `function` of all the values, two by two."""
    import numpy

    return reduce(getattr(numpy, function), values)


def place_of_largest(values: Sequence[Any]) -> Any:
    """Return which of `values` is the largest, the first of equals: an index, or an array of them."""
    found = 0
    for index, value in enumerate(values):
        if not isinstance(value, PLAIN):
            break
        if value > values[found]:
            found = index
    else:
        return found
    import numpy

    return _side_by_side(values, numpy.broadcast_shapes(*map(numpy.shape, values))).argmax(axis=0)


def chosen(values: Sequence[Any], place: Any) -> Any:
    """Return the one of `values` that stands at `place`, as `place_of_largest` gives it."""
    if isinstance(place, int):
        return values[place]
    first = values[0]
    for value in values:
        if value is not first and (present(value) or present(first)):
            break
    else:
        return first
    import numpy

    shape = numpy.broadcast_shapes(place.shape, *map(numpy.shape, values))
    options = _side_by_side(values, shape).reshape(len(values), -1)
    places = numpy.broadcast_to(place, shape).reshape(-1)
    return options[places, numpy.arange(len(places))].reshape(shape)


def ceil(value: Any) -> Any:
    """Return the smallest whole number that is not below the quantity."""
    return _of_one("ceil", value)


def rounded(value: Any) -> Any:
    """Return the nearest whole number, halves to the even one."""
    if isinstance(value, PLAIN):
        return round(value)
    import numpy

    return numpy.rint(value)


def log(value: Any) -> Any:
    """Return the natural logarithm."""
    return _of_one("log", value)


def exponential(value: Any) -> Any:
    """Return e to the power of the quantity."""
    return _of_one("exp", value)


def _of_one(function: str, value: Any) -> Any:
    if isinstance(value, PLAIN):
        return getattr(math, function)(value)
    import numpy

    return getattr(numpy, function)(value)


def every(condition: Any) -> bool:
    """Return whether the condition holds for every candidate."""
    return condition if isinstance(condition, bool) else bool(condition.all())


def present(value: Any) -> bool:
    """Return whether the quantity may be other than 0: an array always may."""
    return bool(value) if isinstance(value, PLAIN) else True


def _side_by_side(values: Sequence[Any], shape: tuple[int, ...]) -> Any:
    import numpy

    together = numpy.empty((len(values), *shape))
    for index, value in enumerate(values):
        together[index] = value
    return together
