"""What `finegauge micro` prints: the device, its best rates, its operators and its host's own work."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from finegauge.answers.profile import predicted_waits
from finegauge.catalogue.device_profile import COLLECTIVES, HOST_COSTS, DeviceProfile, Reading
from finegauge.prediction.links import links_of, work_of
from finegauge.profile import Path, Profile
from finegauge.render.number_format import UNKNOWN, digits, duration, percent
from finegauge.render.terminal import columns, paint, wrapped
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
    if not profile.host:
        return []
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
    if versions:
        yield paint(f"threads: {profile.threads}; {versions}; {profile.fingerprint.get('date', '')}", "dim")


LEAST_FRACTION = 0.01
REST: Path = ("all else",)
MODULE_HEADINGS = ("  stage", "module", "operator", "predicted", "measured", "share", "predicted/measured")


class ModuleTime(NamedTuple):
    """The seconds of one operator of one module in one stage of a step."""

    path: Path  # stage, module, operator
    predicted_s: float
    measured_s: float


class Compared(NamedTuple):
    """One run, as predicted by a device profile and as measured on the same device."""

    name: str
    predicted: Profile
    measured: Profile

    @property
    def modules(self) -> list[ModuleTime]:
        """Return every row of either side, in the order of the prediction."""
        ours, theirs = (one.step_time_s.at(3).parts for one in (self.predicted, self.measured))
        return [
            ModuleTime(path, ours.get(path, 0.0), theirs.get(path, 0.0))
            for path in dict.fromkeys((*ours, *theirs))
        ]


def module_lines(compared: Sequence[Compared]) -> list[str]:
    """Return one table per run, a blank line before each."""
    return [line for one in compared for line in ("", *_module_table(one))]


def modules_json(compared: Sequence[Compared]) -> list[dict[str, Any]]:
    """Return the tables as JSON: every row, however small, and the whole steps."""
    return [
        {
            "name": one.name,
            "phase": one.measured.run.phase,
            "outcome": one.measured.outcome,
            "reason": one.measured.reason,
            "predicted_step_s": one.predicted.step_time_s.total,
            "measured_step_s": one.measured.step_time_s.total,
            "serving": dict(served(one.measured)),
            "predicted_serving": predicted_waits(one.predicted),
            "modules": [{**row._asdict(), "path": list(row.path)} for row in one.modules],
        }
        for one in compared
    ]


def served(measured: Profile) -> Mapping[str, float]:
    """Return seconds to the first token and for each further one, and tokens per second, where known."""
    details = measured.observations.get("steps", {}).get("details", {})
    return {name: value for name, value in details.items() if name.endswith("_s")}


def _module_table(one: Compared) -> list[str]:
    """Return the rows of one run, largest stage first as they come, with their sum."""
    run, whole = one.measured.run, one.measured.step_time_s.total
    title = f"{paint(one.name, 'bold')}  {run.phase}, {run.method}: {duration(whole)} a step"
    if one.measured.outcome != "completed":
        return [f"{paint(one.name, 'bold')}  {one.measured.outcome}: {one.measured.reason}"]
    large: list[ModuleTime] = []
    rest = ModuleTime(REST, 0.0, 0.0)
    for row in one.modules:
        if max(row.predicted_s, row.measured_s) >= LEAST_FRACTION * whole:
            large.append(row)
        else:
            rest = ModuleTime(REST, rest.predicted_s + row.predicted_s, rest.measured_s + row.measured_s)
    total = ModuleTime(("the step",), one.predicted.step_time_s.total, whole)
    ours, theirs = predicted_waits(one.predicted), served(one.measured)
    seen = ", ".join(f"{name} {ours.get(name, 0.0):,.4g} / {value:,.4g}" for name, value in theirs.items())
    rows = [_module_row(row, whole) for row in (*large, rest, total)]
    return [
        title,
        *columns(MODULE_HEADINGS, rows, left=3),
        *([f"  predicted / measured: {seen}"] if seen else []),
    ]


def _module_row(row: ModuleTime, whole: float) -> list[str]:
    """Return the cells of one row."""
    names = [*row.path, "", ""][:3]
    known = row.predicted_s > 0 and row.measured_s > 0
    return [
        f"  {names[0]}",
        *names[1:],
        duration(row.predicted_s) if row.predicted_s else UNKNOWN,
        duration(row.measured_s) if row.measured_s else UNKNOWN,
        percent(row.measured_s / whole),
        f"{row.predicted_s / row.measured_s:.2f}" if known else UNKNOWN,
    ]
