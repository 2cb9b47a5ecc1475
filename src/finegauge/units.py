"""Units: bytes per element, SI floats inside, human text at the edge.

Inside the package every quantity is in SI units and says so in its name
(`_s`, `_bytes`, `_j`, `_w`, `_usd`, `_fraction`); GB, GiB, hours and kWh appear
only here, when a number is printed or read.
"""

GB = 1e9
GIB = float(2**30)
HOUR_S = 3600.0
KWH_J = 3.6e6

DTYPE_BYTES: dict[str, float] = {
    "fp64": 8.0,
    "fp32": 4.0,
    "tf32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "fp4": 0.5,
}


def gib(num_bytes: float) -> str:
    """Return `num_bytes` as text in GiB, three significant digits at least."""
    value = num_bytes / GIB
    return f"{value:.1f} GiB" if abs(value) >= 10 else f"{value:.2f} GiB"


def duration(seconds: float) -> str:
    """Return `seconds` as the two units a person would say: "3 d 4 h", "41 min", "2.50 s"."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.0f} ms"
    if seconds < 60:
        return f"{seconds:.2f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes:02d} min"
    days, hours = divmod(round(seconds / HOUR_S), 24)
    return f"{days} d {hours} h"


def usd(amount: float | None) -> str:
    """Return an amount of US dollars as text; an unknown one is "-", never 0."""
    if amount is None:
        return "-"
    return f"${amount:,.0f}" if amount >= 1000 else f"${amount:,.2f}"


def count(value: float) -> str:
    """Return a count with its magnitude: "46.7 B", "7.24 M", "812"."""
    for magnitude, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= magnitude:
            scaled = value / magnitude
            return f"{scaled:.1f} {letter}" if scaled >= 10 else f"{scaled:.2f} {letter}"
    return f"{value:.0f}"
