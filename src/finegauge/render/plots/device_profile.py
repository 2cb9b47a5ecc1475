"""A device profile as a picture: what products, attention, experts and collectives reach, by size."""

from collections.abc import Callable, Iterable, Mapping
from math import log2

from finegauge.catalogue.device_profile import COLLECTIVES, DeviceProfile, Reading
from finegauge.prediction.links import work_of
from finegauge.reproduction.published import Panel, Series

TERA, GIGA = 1e12, 1e9
RANKS = 8.0
Rate = Callable[[Reading], float]


def profile_panels(profile: DeviceProfile) -> list[Panel]:
    """Return one chart per kind of operator that `profile` has readings of, each of its largest shape."""
    forward = [one for one in profile.readings if one.direction in ("forward", "transfer")]
    kinds = (
        ("Products", "linear", "rows", "tokens"),
        ("Attention, causal", "attention_sdpa", "seq_len", "tokens of a sequence"),
        ("Experts of a layer", "experts_grouped", "rows", "tokens"),
    )
    panels = []
    for title, operator, size, label in kinds:
        by_dtype: dict[str, list[Reading]] = {}
        for one in forward:
            if one.operator == operator:
                by_dtype.setdefault(one.dtype, []).append(one)
        series = [_series(dtype, _largest(rows, size), size, _teraflops) for dtype, rows in by_dtype.items()]
        if series:
            panels.append(Panel(title, f"{label}, log2", "TFLOP/s", tuple(series)))
    sent = {
        name: [one for one in forward if one.operator == name and one.sizes["ranks"] == RANKS]
        for name in COLLECTIVES
    }
    series = [_series(name, rows, "bytes", _bus_rate) for name, rows in sent.items() if rows]
    if series:
        title = f"Collectives between {RANKS:.0f} GPUs"
        panels.append(Panel(title, "bytes, log2", "GB/s on the bus", tuple(series)))
    return panels


def _largest(readings: Iterable[Reading], size: str) -> list[Reading]:
    """Return those of the shape that is largest but for `size`."""
    shapes: dict[tuple[tuple[str, float], ...], list[Reading]] = {}
    for one in readings:
        others = {name: value for name, value in one.sizes.items() if name != size}
        shapes.setdefault(tuple(others.items()), []).append(one)
    return max(shapes.values(), key=lambda rows: (len(rows), sum(one.flops for one in rows)))


def _series(label: str, readings: Iterable[Reading], size: str, rate: Rate) -> Series:
    points: Mapping[float, float] = {log2(one.sizes[size]): rate(one) for one in readings}
    places = tuple(sorted(points))
    return Series(label, label, places, tuple(points[place] for place in places))


def _teraflops(one: Reading) -> float:
    return one.flops / one.seconds / TERA


def _bus_rate(one: Reading) -> float:
    factor = float(work_of(one.operator, one.sizes["ranks"])[1])
    return factor * one.sizes["bytes"] / one.seconds / GIGA
