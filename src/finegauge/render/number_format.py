"""How a figure is printed: three digits that matter, the unit a person would say, "-" for unknown."""

from finegauge.profile import Interval
from finegauge.units import GIB, HOUR_S, KWH_J, gib

UNKNOWN = "-"
FAR_RATIO = 3.0  # from which a multiple is said, no percentage


def digits(value: float | None, most: int = 3) -> str:
    """Return `value` with about `most` significant digits and thousands apart; "-" if unknown."""
    if value is None:
        return UNKNOWN
    size = abs(value)
    if size >= 10 ** (most - 1):
        return f"{value:,.0f}"
    for decimals in range(1, most):
        if size >= 10 ** (most - 1 - decimals):
            return f"{value:.{decimals}f}"
    return f"{value:.2f}" if size >= 0.1 else f"{value:.2g}"


def percent(fraction: float) -> str:
    """Return a fraction as percent: "2 %", "<1 %", ">99 %"."""
    if 0 < fraction < 0.005:
        return "<1 %"
    if 0.995 <= fraction < 1:
        return ">99 %"
    return f"{100 * fraction:.0f} %"


def percents(fraction: float | None, sign: str = "") -> str:
    """Return a fraction with one decimal: "2.4 %", or "+2.4 %" where `sign` is "+"; "-" if unknown."""
    return UNKNOWN if fraction is None else f"{100 * fraction:{sign}.1f} %"


def times(ratio: float) -> str:
    """Return "16 x", which says more than 1,500 % beyond."""
    return f"{ratio:,.0f} x" if ratio >= 10 else f"{ratio:.1f} x"


def error_percent(predicted: float | None, measured: float | None) -> str:
    """Return how far a prediction is off its measurement: "+4 %", "16 x"; "-" where either is not known."""
    if not predicted or not measured:
        return UNKNOWN
    if predicted / measured >= FAR_RATIO:
        return times(predicted / measured)
    error = round(100 * (predicted / measured - 1))
    return f"{error:+d} %" if error else "0 %"


def probability(fraction: float) -> str:
    """Return a probability as percent; one near 0 or 1 is "<1 %" or ">99 %"."""
    return percent(min(max(fraction, 1e-9), 1 - 1e-9))


def gib_of(needed_bytes: float, usable_bytes: float) -> str:
    """Return "23.4/44.4", both in GiB."""
    return f"{needed_bytes / GIB:.1f}/{usable_bytes / GIB:.1f}"


def gib_interval(needed_bytes: float, interval: Interval | None) -> str:
    """Return "23.4 GiB [22.1–25.0]", the 10th and 90th percentile where they are known."""
    if interval is None:
        return gib(needed_bytes)
    low, high = interval.of(needed_bytes)
    return f"{gib(needed_bytes)} [{low / GIB:.1f}–{high / GIB:.1f}]"


def seconds_interval(median_s: float, interval: Interval | None) -> str:
    """Return "2.81 [2.10–3.52]", the 10th and 90th percentile where they are known."""
    if interval is None:
        return digits(median_s)
    low, high = interval.of(median_s)
    return f"{digits(median_s)} [{digits(low, 2)}–{digits(high, 2)}]"


def duration_interval(median_s: float, interval: Interval | None) -> str:
    """Return "2.81 [2.10–3.52] s", or of short times "5.48 [4.9–6.4] ms"."""
    if median_s >= 0.1:
        return f"{seconds_interval(median_s, interval)} s"
    return f"{seconds_interval(1e3 * median_s, interval)} ms"


def duration(seconds: float) -> str:
    """Return seconds in the unit that a person would say: "36.0 ms", "1.20 s"."""
    for unit, per_s in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if abs(seconds) * per_s >= 1 or unit == "us":
            return f"{digits(seconds * per_s) if seconds else '0'} {unit}"
    return UNKNOWN


def size(num_bytes: float) -> str:
    """Return bytes in the unit that a person would say: "12.3 MiB", "1.20 GiB"."""
    for unit, per_unit in (("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10)):
        if abs(num_bytes) >= per_unit:
            return f"{digits(num_bytes / per_unit)} {unit}"
    return f"{num_bytes:.0f} B"


def si(value: float) -> str:
    """Return a number with its SI prefix, a unit to follow: "4.29 G", "812 "."""
    for magnitude, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= magnitude:
            return f"{digits(value / magnitude)} {prefix}"
    return f"{digits(value)} "


def hours(wall_s: float | None) -> str:
    """Return "118 h", "12 min" or "30 s"; "-" if unknown."""
    if wall_s is None:
        return UNKNOWN
    if wall_s < 60:
        return f"{digits(wall_s, 2)} s"
    return f"{digits(wall_s / HOUR_S)} h" if wall_s >= HOUR_S else f"{digits(wall_s / 60, 2)} min"


def kwh(energy_j: float | None) -> str:
    """Return kWh; "-" if unknown."""
    return digits(None if energy_j is None else energy_j / KWH_J)


def dollars(amount_usd: float | None) -> str:
    """Return "$52.30", "$1,234" or "-" if unknown, never 0 for what costs less than a cent."""
    if amount_usd is None:
        return UNKNOWN
    if 0 < amount_usd < 0.01:
        return "<$0.01"
    return f"${amount_usd:,.0f}" if amount_usd >= 100 else f"${amount_usd:,.2f}"


def plain(value: object) -> str:
    """Return the value of a field as a run file would state it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return ", ".join(map(str, value)) or "none"
    if value is None:
        return UNKNOWN
    return f"{value:g}" if isinstance(value, float) else str(value)
