"""The memory of the fullest moment as a waterfall: each kind on top of those before it."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from finegauge.profile import Path, Profile
from finegauge.report import figures
from finegauge.report.bars import Table
from finegauge.report.drawing import INK, ROOM, SOFT, VERMILION, Drawing, new_axes, shades
from finegauge.report.measurement import formula
from finegauge.units import GIB, gib

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KEY = "memory"
LEAST_FRACTION = 0.002  # of what has to fit: smaller parts stand together
ROW_INCHES = 0.36
FAR_RATIO = 8.0  # beyond so many times what is needed, the capacity stands off the axis
MIB = 2.0**20


class Step(NamedTuple):
    """One part of the waterfall."""

    kind: str
    name: str
    start_bytes: float
    num_bytes: float


class Waterfall(NamedTuple):
    """All that has to fit, part by part."""

    steps: tuple[Step, ...]
    low_bytes: float | None  # 10th percentile of the total
    high_bytes: float | None
    capacity_bytes: float
    on: str  # which GPU

    @property
    def total_bytes(self) -> float:
        """Return what has to fit."""
        return sum(step.num_bytes for step in self.steps)


def memory_drawing(profile: Profile, formulas: Mapping[Path, str]) -> Drawing:
    """Return the waterfall of `profile`, its table with the formula of each part."""
    interval, total = profile.source.memory_interval, profile.device_memory_bytes.total
    low, high = (None, None) if interval is None else interval.of(total)
    on = profile.fingerprint.get("device") or str(profile.run.gpu or "this machine")
    data = Waterfall(_steps(profile), low, high, profile.capacity_bytes, on)
    room = f" of {gib(data.capacity_bytes)} usable on {on}" if data.capacity_bytes else ""
    phase = f", fullest in {profile.peak_phase}" if profile.peak_phase else ""
    needs = "held" if profile.source.kind == "measured" else "needs"
    said = figures.gib_interval(total, interval) if total >= GIB else figures.size(total)
    caption = f"The fullest rank {needs} {said}{room}{phase}; each bar starts where the one above it ends."
    caption += " The whisker spans the 10th to the 90th percentile." if low else ""
    return Drawing(KEY, "Memory, kind by kind", caption, _table(profile, formulas), lambda: draw(data))


def draw(data: Waterfall) -> "Figure":
    """Return the waterfall: a row per part, its name above its bar, the capacity as a dashed line."""
    unit, per_unit = ("GiB", GIB) if data.total_bytes >= GIB else ("MiB", MIB)
    shown = _shown(data)
    rows = len(shown) + 1
    figure, axes = new_axes(ROW_INCHES * rows + 0.55)
    colours = shades(dict.fromkeys(step.kind for step in shown))
    needed = max(data.high_bytes or 0.0, data.total_bytes)
    near = 0 < data.capacity_bytes <= FAR_RATIO * needed  # else the bars would be too small to be seen
    whole = 1.02 * max(needed, data.capacity_bytes if near else 0.0) / per_unit
    for row, step in enumerate(shown):
        start, width = step.start_bytes / per_unit, step.num_bytes / per_unit
        axes.barh(row, whole, 0.34, color=ROOM, zorder=1)
        axes.barh(row, width, 0.34, left=start, color=colours[step.kind], zorder=2)
        _say(axes, row, step.name, figures.size(step.num_bytes))
    axes.barh(rows - 1, data.total_bytes / per_unit, 0.34, color=SOFT, zorder=2)
    _say(axes, rows - 1, "all that has to fit", figures.size(data.total_bytes), bold=True)
    if data.low_bytes is not None and data.high_bytes is not None:
        ends = data.low_bytes / per_unit, data.high_bytes / per_unit
        half = (ends[1] - ends[0]) / 2
        axes.errorbar(sum(ends) / 2, rows - 1, xerr=half, color=INK, capsize=3, lw=1.4, zorder=4)
    axes.set(xlim=(0, whole), ylim=(rows - 0.6, -0.75), xlabel=unit)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    if near:
        axes.axvline(data.capacity_bytes / per_unit, color=VERMILION, ls="--", lw=1.6, zorder=3)
    if data.capacity_bytes:
        where = "dashed" if near else "beyond this axis"
        axes.set_xlabel(f"{unit} ({where}: {gib(data.capacity_bytes)} usable on {data.on})")
    return figure


def _say(axes: "Axes", row: int, name: str, amount: str, *, bold: bool = False) -> None:
    """Write a part's name and amount above its bar."""
    weight = "bold" if bold else "normal"
    axes.text(0, row - 0.24, f"{name}   {amount}", va="bottom", fontsize=8, fontweight=weight)


def _steps(profile: Profile) -> tuple[Step, ...]:
    """Return the parts, equal kinds together, each starting where the last ends."""
    breakdown, steps, start = profile.device_memory_bytes, list[Step](), 0.0
    for kind in breakdown.at(1).parts:
        for path, amount in breakdown.parts.items():
            if path[:1] == kind and amount > 0:
                steps.append(Step(path[0], " · ".join(path), start, amount))
                start += amount
    return tuple(steps)


def _shown(data: Waterfall) -> Sequence[Step]:
    """Return the parts that are drawn: of a kind, those too small to be seen stand together."""
    shown: list[Step] = []
    for step in data.steps:
        small = step.num_bytes < LEAST_FRACTION * data.total_bytes
        last = shown[-1] if shown else None
        if small and last is not None:
            shown[-1] = last._replace(num_bytes=last.num_bytes + step.num_bytes, name=_with_others(last.name))
        else:
            shown.append(step)
    return shown


def _with_others(name: str) -> str:
    """Return a name that says that small parts stand with it."""
    return name if name.endswith(" and small parts") else f"{name} and small parts"


def _table(profile: Profile, formulas: Mapping[Path, str]) -> Table:
    """Return every part with its formula, and the sums."""
    total = profile.device_memory_bytes.total
    rows = [
        (step.name, f"{step.num_bytes / GIB:.3f}", f"{(step.start_bytes + step.num_bytes) / GIB:.3f}",
         figures.percent(step.num_bytes / total), formula(tuple(step.name.split(" · ")), formulas))
        for step in _steps(profile)
    ]  # fmt: skip
    rows.append(("all that has to fit", f"{total / GIB:.3f}", f"{total / GIB:.3f}", "100 %", ""))
    if profile.source.memory_interval is not None:
        low, high = profile.source.memory_interval.of(total)
        rows.append(("10th to 90th percentile", f"{low / GIB:.3f} to {high / GIB:.3f}", "", "", ""))
    if profile.capacity_bytes:
        rows.append(("usable", f"{profile.capacity_bytes / GIB:.3f}", "", "", str(profile.run.gpu or "")))
    return Table(
        "Memory by kind and part",
        ("part", "GiB", "so far", "share", "how it comes about"),
        tuple(rows),
        ends_in_text=True,
    )
