"""What `finegauge micro` prints: the device, its best rates, its operators and its host's own work."""

from collections.abc import Iterator, Sequence
from statistics import median

from finegauge.catalogue.device_profile import COLLECTIVES, HOST_COSTS, DeviceProfile, Reading
from finegauge.predict.links import links_of, work_of
from finegauge.report.figures import UNKNOWN, digits, duration, percent
from finegauge.report.terminal import columns, paint, wrapped
from finegauge.units import gib

KB = 1e3
LINK_HEADINGS = (
    "collective", "ranks", "readings", "smallest", "largest", "GB/s", "step, fitted", "GB/s", "off by",
)  # fmt: skip
HEADINGS = ("operator", "dtype", "readings", "quickest", "slowest", "best GFLOP/s", "best GB/s", "spread")


def profile_lines(profile: DeviceProfile) -> list[str]:
    """Return the profile as text."""
    links = _links(profile)
    apart = ["", *links] if links else []
    return [*_device(profile), "", *_operators(profile), *apart, "", *_host(profile), *_notes(profile)]


def _device(profile: DeviceProfile) -> Iterator[str]:
    """Yield what the device is and its best rates."""
    yield paint(f"Device profile of {profile.name} ({profile.device})", "bold")
    rates = ", ".join(
        f"{digits(rate / 1e9)} GFLOP/s in {dtype}" for dtype, rate in profile.flops_per_s.items()
    )
    yield (
        f"{gib(profile.memory_bytes)} of memory, {gib(profile.usable_bytes)} usable; "
        f"copies at {digits(profile.memory_bytes_per_s / 1e9)} GB/s; products at {rates}"
    )


def _operators(profile: DeviceProfile) -> list[str]:
    """Return one row per operator and dtype, forward (or the one direction it has)."""
    groups: dict[tuple[str, str], list[Reading]] = {}
    for one in profile.readings:
        if not one.direction.startswith("backward") and one.operator not in COLLECTIVES:
            groups.setdefault((one.operator, one.dtype), []).append(one)
    return columns(HEADINGS, [_row(*key, readings) for key, readings in groups.items()], left=2)


def _row(operator: str, dtype: str, readings: Sequence[Reading]) -> list[str]:
    """Return the row of one operator in one dtype."""
    seconds = [one.seconds for one in readings]
    flops = max(one.flops / one.seconds for one in readings)
    moved = max(one.bytes / one.seconds for one in readings)
    return [
        operator,
        dtype,
        str(len(readings)),
        duration(min(seconds)),
        duration(max(seconds)),
        digits(flops / 1e9) if flops else UNKNOWN,
        digits(moved / 1e9) if moved else UNKNOWN,
        percent(median(one.spread_fraction for one in readings)),
    ]


def _links(profile: DeviceProfile) -> list[str]:
    """Return one row per kind of collective and number of ranks, with the latency and bandwidth fitted."""
    groups: dict[tuple[str, int], list[Reading]] = {}
    for one in profile.readings:
        if one.operator in COLLECTIVES:
            groups.setdefault((one.operator, int(one.sizes["ranks"])), []).append(one)
    if not groups:
        return []
    links = {link.kind: link for link in links_of(profile)}
    rows = []
    for (kind, ranks), readings in groups.items():
        smallest, largest = (pick(readings, key=lambda one: one.sizes["bytes"]) for pick in (min, max))
        rate = largest.sizes["bytes"] * work_of(kind, ranks)[1] / largest.seconds
        link = links[kind]
        rows.append(
            [
                kind,
                str(ranks),
                str(len(readings)),
                f"{duration(smallest.seconds)} ({smallest.sizes['bytes'] / KB:,.0f} kB)",
                f"{duration(largest.seconds)} ({largest.sizes['bytes'] / KB:,.0f} kB)",
                digits(rate / 1e9),
                duration(link.hop_s),
                digits(link.bytes_per_s / 1e9),
                percent(link.error_fraction),
            ]
        )
    return columns(LINK_HEADINGS, rows)


def _host(profile: DeviceProfile) -> list[str]:
    """Return the host's costs with what each is of."""
    rows = [[name, duration(value), HOST_COSTS[name]] for name, value in profile.host.items()]
    widest = max((len(row[1]) for row in rows), default=0)
    return [paint("The host's own work", "dim")] + [
        f"{name:24} {value:>{widest}}  {paint(what, 'dim')}" for name, value, what in rows
    ]


def _notes(profile: DeviceProfile) -> Iterator[str]:
    """Yield what could not be measured, and what the readings hold for."""
    for note in profile.notes:
        yield from wrapped(f"Note: {note}", indent="  ")
    versions = ", ".join(
        f"{name} {profile.fingerprint[name]}"
        for name in ("torch", "transformers", "peft", "bitsandbytes")
        if name in profile.fingerprint
    )
    yield paint(f"threads: {profile.threads}; {versions}; {profile.fingerprint.get('date', '')}", "dim")
