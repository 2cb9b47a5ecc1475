r"""What collectives of a measured device take: a latency and a bandwidth of each kind, fitted to readings.

$$ t = steps(n) \cdot latency + \frac{f(n) \cdot bytes}{bandwidth} $$

Steps and factors $f$ are those of rings [1]; both constants minimise the sum of squares of relative
errors over all payloads and numbers of ranks that `finegauge micro --collectives` has timed, and neither
is negative.

Neglected: that a library changes its algorithm with the payload, and caches that hold small ones.

[1] Thakur et al. 2005, IJHPCA 19(1), sections 3 and 4
"""

from collections.abc import Sequence
from math import ceil, inf, log2
from typing import TYPE_CHECKING, Any, NamedTuple

from finegauge.arithmetic import where

if TYPE_CHECKING:
    from finegauge.catalogue.device_profile import DeviceProfile, Reading


class Link(NamedTuple):
    """One kind of collective between the ranks of a machine."""

    kind: str
    hop_s: float  # latency of a step
    bytes_per_s: float
    error_fraction: float = 0.0  # of its readings: the root of the mean of squared relative errors

    def seconds(self, num_bytes: Any, ranks: Any) -> Any:
        """Return the seconds of one collective of `num_bytes` among `ranks` ranks."""
        steps, factor = work_of(self.kind, ranks)
        return where(num_bytes > 0, steps * self.hop_s + factor * num_bytes / self.bytes_per_s, 0.0)


def work_of(kind: str, ranks: Any) -> tuple[Any, Any]:
    """Return the steps of a collective, and how often its payload crosses a link."""
    match kind:
        case "all_reduce":
            return 2 * (ranks - 1), 2.0 * (ranks - 1) / ranks
        case "send":
            return 1, 1.0
        case "broadcast":
            return ceil(log2(ranks)), 1.0
        case _:
            return ranks - 1, (ranks - 1) / ranks


def links_of(profile: "DeviceProfile") -> tuple[Link, ...]:
    """Return the fitted link of each kind of `profile`; none where it has no readings of collectives."""
    by_kind: dict[str, list[Reading]] = {}
    for one in profile.readings:
        if "ranks" in one.sizes:
            by_kind.setdefault(one.operator, []).append(one)
    return tuple(fitted(kind, readings) for kind, readings in by_kind.items())


def fitted(kind: str, readings: "Sequence[Reading]") -> Link:
    """Return the latency and bandwidth that fit `readings` of one kind best."""
    rows = []
    for one in readings:
        steps, factor = work_of(kind, int(one.sizes["ranks"]))
        rows.append((steps / one.seconds, factor * one.sizes["bytes"] / one.seconds))
    hop_s, per_byte_s = _least_squares(rows)
    errors = [hop_s * steps + per_byte_s * moved - 1.0 for steps, moved in rows]
    error = (sum(value**2 for value in errors) / len(errors)) ** 0.5
    return Link(kind, hop_s, 1.0 / per_byte_s if per_byte_s else inf, error)


def _least_squares(rows: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return what brings x·hop + y·per_byte closest to 1 for all rows (x, y), neither below 0."""
    xx, xy, yy = (sum(row[i] * row[j] for row in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    x, y = (sum(row[i] for row in rows) for i in (0, 1))
    determinant = xx * yy - xy * xy
    if determinant > 0:
        found = (x * yy - y * xy) / determinant, (y * xx - x * xy) / determinant
        if min(found) >= 0:
            return found
    alone = (x / xx, 0.0), (0.0, y / yy)  # the better of both ends of what is allowed
    return min(alone, key=lambda one: sum((one[0] * a + one[1] * b - 1.0) ** 2 for a, b in rows))
