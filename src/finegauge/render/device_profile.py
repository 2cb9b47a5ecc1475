"""How `micro` looks (device, best rates, operators, host, runs), `doctor`, and the list of frameworks."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from math import log2
from typing import Any

from finegauge import __version__
from finegauge.answers.catalogue import LIMITED, MISSING, WORKS, DefaultsSince, DoctorAnswer, FrameworksAnswer
from finegauge.answers.measurement import CollectiveRates, MicroAnswer, ModuleTime, RunByModule
from finegauge.catalogue.device_profile import COLLECTIVES, HOST_COSTS, DeviceProfile, Reading
from finegauge.prediction.links import work_of
from finegauge.render import number_format as fmt
from finegauge.render.number_format import UNKNOWN, digits, duration, percent
from finegauge.render.report import Note, Report, Section, Table, Text, Toned, notes, section
from finegauge.reproduction import Panel, Series
from finegauge.units import counted, gib

LINK_HEADINGS = (
    "collective", "ranks", "readings", "smallest", "largest", "GB/s", "step, fitted", "GB/s", "off by",
)  # fmt: skip
HEADINGS = ("operator", "dtype", "readings", "quickest", "slowest", "best GFLOP/s", "best GB/s", "spread")
MODULE_HEADINGS = ("stage", "module", "operator", "predicted", "measured", "share", "predicted/measured")
LEAST_FRACTION = 0.01  # of the step: smaller modules are summed up
REST = "all else"


def micro_report(answer: MicroAnswer, *, is_own: bool = False) -> Report:
    """Return what a terminal shows of a device profile, which is this machine's own where `is_own`."""
    profile = answer.profile
    operators = tuple(
        (
            one.operator, one.dtype, str(one.num_readings), duration(one.quickest_s), duration(one.slowest_s),
            _giga(one.flops_per_s), _giga(one.bytes_per_s), percent(one.spread_fraction),
        )
        for one in answer.operators
    )  # fmt: skip
    host = tuple(
        (name, duration(value), Toned(HOST_COSTS[name], "soft")) for name, value in profile.host.items()
    )
    links = tuple(map(_link, answer.collectives))
    rates = ", ".join(f"{_giga(rate)} GFLOP/s in {dtype}" for dtype, rate in profile.flops_per_s.items())
    known = Note(
        f"{gib(profile.memory_bytes)} of memory, {gib(profile.usable_bytes)} usable; "
        f"copies at {_giga(profile.memory_bytes_per_s)} GB/s; products at {rates}"
    )
    files = (
        ("Written to", answer.path or UNKNOWN),
        ("Use it by", f"--gpu {'here' if is_own else answer.path}"),
    )
    return Report.of(
        profile.name, "",
        section("device", f"Device profile of {profile.name} ({profile.device})", known),
        section("operators", "", Table("Operators", HEADINGS, operators, 2)),
        section("links", "", Table("Collectives", LINK_HEADINGS, links)),
        section("host", "The host's own work", Table("Host", ("", "", ""), host, ends_in_text=True)),
        section("notes", "", *notes(f"  Note: {note}" for note in profile.notes),
                Note(_machine(profile), tone="soft")),
        *map(_modules, answer.runs or ()),
        section("files", "", Table("Files", ("", ""), files if answer.path else (), ends_in_text=True)),
    )  # fmt: skip


def _giga(rate: float) -> str:
    return digits(rate / 1e9) if rate else UNKNOWN


def _link(one: CollectiveRates) -> tuple[str, ...]:
    """Return the row of one kind of collective: readings, then the latency and bandwidth fitted to them."""

    def message(reading: Reading) -> str:
        return f"{duration(reading.seconds)} ({reading.sizes['bytes'] / 1e3:,.0f} kB)"

    return (
        one.kind, str(one.ranks), str(one.num_readings), message(one.smallest), message(one.largest),
        _giga(one.bytes_per_s), duration(one.link.hop_s), _giga(one.link.bytes_per_s),
        percent(one.link.error_fraction),
    )  # fmt: skip


def _machine(profile: DeviceProfile) -> str:
    versions = ", ".join(
        f"{name} {profile.fingerprint[name]}"
        for name in ("torch", "transformers", "peft", "bitsandbytes")
        if name in profile.fingerprint
    )
    return f"threads: {profile.threads}; {versions}; {profile.fingerprint.get('date', '')}"


def _modules(one: RunByModule) -> Section:
    if one.outcome != "completed":
        return section("modules", one.name, Note(f"{one.outcome}: {one.reason}"))
    waits = ", ".join(
        f"{name} {one.predicted_serving.get(name, 0.0):,.4g} / {value:,.4g}"
        for name, value in one.serving.items()
    )
    rows = tuple(_module_row(row, one.measured_step_s) for row in _shown(one))
    return section(
        "modules",
        one.name,
        Table(one.name, MODULE_HEADINGS, rows, 3, indent=2),
        Note(f"  predicted / measured: {waits}") if waits else None,
        said=f"{one.phase}, {one.method}: {duration(one.measured_step_s)} a step",
    )


def _shown(one: RunByModule) -> Iterator[ModuleTime]:
    """Yield what takes a share worth showing on either side, then the sum of all else, then the step."""
    least_s = LEAST_FRACTION * one.measured_step_s
    small = [row for row in one.modules if max(row.predicted_s, row.measured_s) < least_s]
    yield from (row for row in one.modules if row not in small)
    yield ModuleTime((REST,), sum(row.predicted_s for row in small), sum(row.measured_s for row in small))
    yield ModuleTime(("the step",), one.predicted_step_s, one.measured_step_s)


def _module_row(row: ModuleTime, whole_s: float) -> tuple[str, ...]:
    known = row.predicted_s > 0 and row.measured_s > 0
    return (
        *(*row.path, "", "")[:3],
        duration(row.predicted_s) if row.predicted_s else UNKNOWN,
        duration(row.measured_s) if row.measured_s else UNKNOWN,
        percent(row.measured_s / whole_s),
        f"{row.predicted_s / row.measured_s:.2f}" if known else UNKNOWN,
    )


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
        series = [
            _series(dtype, _largest(rows, size), size, lambda one: one.flops / one.seconds / TERA)
            for dtype, rows in by_dtype.items()
        ]
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


def _bus_rate(one: Reading) -> float:
    factor = float(work_of(one.operator, one.sizes["ranks"])[1])
    return factor * one.sizes["bytes"] / one.seconds / GIGA


WORDS = {WORKS: Toned("works", "good"), LIMITED: Toned("limited", "risky"), MISSING: Toned("missing", "soft")}
TITLES = {"machine": "This machine", "extras": "Extras, and what each makes work"}


def doctor_report(answer: DoctorAnswer) -> Report:
    """Return what is shown of this machine."""
    missing = sum(one.state == MISSING for one in answer.findings)
    said = f"{missing} extras are not installed" if missing else "every extra is installed"
    return Report.of(
        "This machine",
        (f"FineGauge {__version__}", Toned(" predicts here", "strong", "good"), f"; {said}."),
        *(section(group, "", _table(answer, group)) for group in TITLES),
        tone="good",
        subject=(f"Python {answer.python} · {answer.system}",),
    )


def _table(answer: DoctorAnswer, group: str) -> Table:
    rows: list[tuple[Text, ...]] = []
    for one in answer.findings:
        if one.group == group:
            way_out = f"{one.found}; {one.way_out}" if one.way_out else one.found
            rows.append((one.name, WORDS[one.state], way_out))
    return Table(TITLES[group], ("", "", ""), tuple(rows), num_text_columns=2, ends_in_text=True)


FRAMEWORK_HEADINGS = ("framework", "files read", "--export", "does unasked")


def frameworks_report(answer: FrameworksAnswer) -> Report:
    """Return what is shown of frameworks."""
    rows = tuple(
        (
            one.name, "yes" if one.reads else fmt.UNKNOWN, one.export or fmt.UNKNOWN,
            ", ".join(one.behaviours).replace("_", " ") or fmt.UNKNOWN,
        )
        for one in answer.frameworks
    )  # fmt: skip
    defaults = tuple(
        (Toned(one.name, "strong"), "; ".join(map(_change, one.defaults)))
        for one in answer.frameworks
        if one.defaults
    )
    return Report.of(
        "Frameworks", "",
        section("frameworks", "",
                Table(counted(len(rows), "framework"), FRAMEWORK_HEADINGS, rows, 3, ends_in_text=True)),
        section("defaults", "Where a file leaves a field open",
                Table("Defaults", ("", ""), defaults, ends_in_text=True, indent=2)),
    )  # fmt: skip


def _change(change: DefaultsSince) -> str:
    since = f"from {change.since}: " if change.since != "0.0" else ""
    where = f" (where {_pairs(change.where, ' is ')})" if change.where else ""
    return f"{since}{_pairs(change.fields, '=')}{where}"


def _pairs(values: Mapping[str, Any], between: str) -> str:
    return ", ".join(f"{name}{between}{fmt.plain(value)}" for name, value in values.items())
