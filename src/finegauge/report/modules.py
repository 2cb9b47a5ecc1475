"""Where the time of a step goes, module by module: predicted beside measured, run by run.

The macro half of a report whose micro half is the device profile's operators and collectives: what a module
takes in a step should be what its operators take alone. Rows are stages, parts and operators, as both
Profiles name them; what is below 1 % of the step on both sides is added up.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from finegauge.profile import Path, Profile
from finegauge.report.figures import UNKNOWN, duration, percent
from finegauge.report.serving import predicted_waits
from finegauge.report.terminal import columns, paint

LEAST_FRACTION = 0.01
REST: Path = ("all else",)
HEADINGS = ("  stage", "module", "operator", "predicted", "measured", "share", "predicted/measured")


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
    return [line for one in compared for line in ("", *_table(one))]


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


def _table(one: Compared) -> list[str]:
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
    rows = [_row(row, whole) for row in (*large, rest, total)]
    return [title, *columns(HEADINGS, rows, left=3), *([f"  predicted / measured: {seen}"] if seen else [])]


def _row(row: ModuleTime, whole: float) -> list[str]:
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
