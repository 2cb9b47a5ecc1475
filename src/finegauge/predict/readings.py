r"""Seconds of an operator at a size that nobody measured, from the readings of a device profile.

$$ t(x) = b(x) \, \exp\left(\textstyle\sum_i w_i(x) \log\frac{t_i}{b(x_i)}\right), \qquad
   b = \frac{flops}{F} + \frac{bytes}{B} + L $$

$b$ is what the operator's arithmetic and traffic would take at the best rate $F$ and the bandwidth $B$
of the same device, and the call $L$; the readings say by what factor the truth is above it, and that
factor changes slowly with size. The weights $w_i$ fall with the distance in the logarithms of the
sizes, over the nearest readings on every side: at a reading, the answer is the reading. Beyond the last
reading the factor stays.

Neglects: steps between sizes (tiles, caches) that fall between two readings.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from math import exp, log, prod
from typing import NamedTuple

from finegauge.catalogue.device_profile import DeviceProfile, Reading

NEAREST = 8  # readings that have a say: the corners of a cell in three sizes
POWER = 3.0
SAME = 1e-9  # a distance at which a size is a reading's

BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0}
Sizes = Mapping[str, float]


class Work(NamedTuple):
    """What an operator of some sizes takes at least, and where it stands among its kind."""

    flops: float
    bytes: float
    place: tuple[float, ...]  # sizes whose logarithms say which readings are near


def work(operator: str, sizes: Sizes, width: float, *, backward: bool) -> Work:
    """Return the least work of one use of `operator`; `width` is the bytes of a value."""
    special = _SPECIAL.get(operator)
    if special is not None:
        return special(sizes, width, 2.0 if backward else 1.0)
    values = _values(operator, sizes)
    return Work(0.0, 3.0 * values * width * (2.0 if backward else 1.0), (values,))


def _product(s: Sizes, width: float, passes: float) -> Work:
    """Return the work of linears, the grouped among them."""
    rows, n, k, groups = s["rows"], s["n"], s["k"], s.get("groups", 1.0)
    moved = rows * (n + k) + n * k * groups
    return Work(2.0 * rows * n * k * passes, moved * width * passes, (rows / groups, n, k, groups))


def _adapter(s: Sizes, width: float, passes: float) -> Work:
    """Return the work of a LoRA pair beside its linear."""
    rows, n, k, rank = s["rows"], s["n"], s["k"], s["rank"]
    flops, moved = 2.0 * rows * rank * (n + k), rows * (k + 5.0 * n)
    return Work(flops * passes, moved * width * passes, (rows, n, k, rank))


def _attention(s: Sizes, width: float, passes: float, *, eager: bool) -> Work:
    """Return the work of attention; the eager one also moves scores, and skips no pair."""
    heads, length = s["sequences"] * s["heads"], s["seq_len"]
    pairs = heads * length**2
    moved = 2.0 * s["sequences"] * length * s["head_dim"] * (s["heads"] + s["kv_heads"])
    place = (heads, length, s["head_dim"], s["heads"] / s["kv_heads"])
    if eager:
        return Work(4.0 * pairs * s["head_dim"] * passes, (moved + 6.0 * pairs) * width * passes, place)
    passes = 2.5 if passes > 1 else 1.0  # its backward computes the scores again
    return Work(2.0 * pairs * s["head_dim"] * passes, moved * width * passes, place)


def _cached(s: Sizes, width: float, passes: float) -> Work:
    """Return the work of one query per sequence; appending to the cache copies it, attention reads it."""
    heads, context = s["sequences"] * s["heads"], s["context"]
    moved = 6.0 * s["sequences"] * s["kv_heads"] * context * s["head_dim"] * width
    place = (heads, context, s["head_dim"], s["heads"] / s["kv_heads"])
    return Work(4.0 * heads * context * s["head_dim"] * passes, moved, place)


def _update(s: Sizes, values: float) -> Work:
    """Return the work of an update that reads or writes so many fp32 values per parameter."""
    return Work(0.0, 4.0 * values * s["params"], (s["params"], s["tensors"]))


def _embedding(s: Sizes, width: float, passes: float) -> Work:
    """Return the work of a look-up; backward makes the gradient of the whole table."""
    values, table = _values("embedding", s), s["table"] if "table" in s else s["vocab"] * s["width"]
    if passes == 1.0:
        return Work(0.0, 3.0 * values * width, (values,))
    return Work(0.0, (2.0 * table + 3.0 * values) * width, (values, table))


def _router(s: Sizes, _: float, passes: float) -> Work:
    """Return the work of the choice of experts, in fp32."""
    return Work(0.0, 16.0 * s["rows"] * s["experts"] * passes, (s["rows"], s["experts"]))


_SPECIAL: Mapping[str, Callable[[Sizes, float, float], Work]] = {
    **dict.fromkeys(("linear", "grouped_linear", "nf4_linear"), _product),
    "adapter": _adapter,
    "attention_sdpa": partial(_attention, eager=False),
    "attention_eager": partial(_attention, eager=True),
    "attention_cached": _cached,
    **dict.fromkeys(("adamw_fused", "adamw_foreach", "adamw_loop"), lambda s, w, p: _update(s, 7.0)),
    "clip": lambda s, w, p: _update(s, 2.0),
    "embedding": _embedding,
    "router": _router,
}
_FACTORS: Mapping[str, tuple[str, ...]] = {  # sizes whose product is the number of values
    "rotary": ("sequences", "seq_len", "head_dim"),
    "scan": ("sequences", "seq_len", "channels", "state"),
    "convolution": ("sequences", "seq_len", "channels"),
    "cross_entropy": ("rows", "vocab"),
    "nf4_dequantise": ("n", "k"),
    "copy": ("bytes",),
}


def _values(operator: str, s: Sizes) -> float:
    """Return how many values a memory-bound operator works on, if they are not stated themselves."""
    if "values" in s:
        return s["values"]
    heads = s["heads"] + s["kv_heads"] if operator == "rotary" else s.get("top_k", 1.0)
    return heads * prod(s[name] for name in _FACTORS.get(operator, ("rows", "width")))


class Curve:
    """The readings of one operator in one dtype and direction."""

    def __init__(self, operator: str, dtype: str, *, backward: bool, points: Iterable[tuple[Sizes, float]],
                 bytes_per_s: float) -> None:  # fmt: skip
        """Take the readings as (sizes, seconds)."""
        self.operator, self.backward, self.width = operator, backward, BYTES.get(dtype, 4.0)
        found = [(self._work(sizes), seconds) for sizes, seconds in points]
        self.bytes_per_s = bytes_per_s
        self.flops_per_s = max((one.flops / seconds for one, seconds in found), default=0.0)
        self.call_s = min((seconds for _, seconds in found), default=0.0)
        self.points = [
            (tuple(log(x) for x in one.place), log(seconds / self._least(one))) for one, seconds in found
        ]

    def _work(self, sizes: Sizes) -> Work:
        return work(self.operator, sizes, self.width, backward=self.backward)

    def _least(self, one: Work) -> float:
        compute = one.flops / self.flops_per_s if self.flops_per_s else 0.0
        return compute + one.bytes / self.bytes_per_s + self.call_s

    def seconds(self, sizes: Sizes) -> float:
        """Return the seconds of one use at `sizes`."""
        one = self._work(sizes)
        place = tuple(log(max(x, 1e-9)) for x in one.place)
        factor = _between(self.points, place[0]) if len(place) == 1 else _near(self.points, place)
        return self._least(one) * exp(factor)


def _between(points: list[tuple[tuple[float, ...], float]], at: float) -> float:
    """Return the value at `at` on the straight lines between points of one size."""
    ordered = sorted((place[0], value) for place, value in points)
    below = [point for point in ordered if point[0] <= at] or ordered[:1]
    above = [point for point in ordered if point[0] > at] or ordered[-1:]
    (x0, y0), (x1, y1) = below[-1], above[0]
    return y0 if x1 <= x0 else y0 + (y1 - y0) * min(1.0, max(0.0, (at - x0) / (x1 - x0)))


def _near(points: list[tuple[tuple[float, ...], float]], at: tuple[float, ...]) -> float:
    """Return the value at `at` by the nearest points, the nearer the more."""
    measured = sorted(
        (sum((a - b) ** 2 for a, b in zip(place, at, strict=True)) ** 0.5, value) for place, value in points
    )[:NEAREST]
    if measured[0][0] < SAME:
        return measured[0][1]
    weights = [float(distance**-POWER) for distance, _ in measured]
    return sum(w * value for w, (_, value) in zip(weights, measured, strict=True)) / sum(weights)


class Readings:
    """A device profile, asked for the seconds of operators."""

    def __init__(self, profile: DeviceProfile) -> None:
        """Sort the readings by operator, dtype and direction."""
        self.profile = profile
        self._by: dict[tuple[str, str, str], list[Reading]] = {}
        for one in profile.readings:
            self._by.setdefault(one[:3], []).append(one)
        self._curves: dict[tuple[str, str, str], Curve | None] = {}
        self.bytes_per_s = profile.memory_bytes_per_s

    def dtypes(self) -> set[str]:
        """Return the dtypes in which matrix products have been measured."""
        return {dtype for operator, dtype, _ in self._by if operator == "linear"}

    def seconds(self, operator: str, dtype: str, direction: str, sizes: Sizes) -> float | None:
        """Return the seconds of one use of `operator`; None where there is no reading of it."""
        curve = self._curve(operator, dtype, direction)
        return curve.seconds(sizes) if curve else None

    def _curve(self, operator: str, dtype: str, direction: str) -> Curve | None:
        key = (operator, dtype, direction)
        if key not in self._curves:
            points = self._points(key)
            self._curves[key] = (
                Curve(operator, dtype, backward=direction.startswith("backward"), points=points,
                      bytes_per_s=self.bytes_per_s)
                if points else None
            )  # fmt: skip
        return self._curves[key]

    def _points(self, key: tuple[str, str, str]) -> list[tuple[Sizes, float]]:
        """Return (sizes, seconds) of one kind's readings; an adapter's are what it adds to its linear."""
        operator, dtype, direction = key
        if operator != "adapter":
            return [(one.sizes, one.seconds) for one in self._by.get(key, ())]
        alone = "forward" if direction == "forward" else "backward_frozen"
        found = []
        for one in self._by.get(("lora_linear", dtype, direction), ()):
            plain = self.seconds("linear", dtype, alone, one.sizes)
            if plain is not None:
                found.append((one.sizes, max(one.seconds - plain, 0.1 * one.seconds)))
        return found
