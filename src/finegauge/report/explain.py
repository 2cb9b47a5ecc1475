"""What `finegauge explain` prints: every byte and second with its formula, every input with its origin."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from finegauge.plan.estimate import Estimate
from finegauge.plan.verdict import WILL_NOT_FIT
from finegauge.profile import Breakdown, Path, Profile
from finegauge.report import figures
from finegauge.report.estimate import constants_line, one_verdict, subject_lines
from finegauge.report.terminal import WIDTH, bar, columns, pad, paint, visible_width, wrapped
from finegauge.workload.method import LORA_FIELDS

if TYPE_CHECKING:
    from finegauge.workload.run import Run

SUM_BEFORE = {"slack": "= allocated by torch at the peak", "context": "= reserved by torch's allocator"}
LEAST_SHARE_FRACTION = 0.005  # of a step: smaller parts are left to --json


def explain_lines(estimate: Estimate, formulas: Mapping[Path, str]) -> list[str]:
    """Return the whole explanation of one run on one GPU.

    Args:
        estimate: The answer to explain.
        formulas: One line per path of its memory and its time, with the numbers put in.
    """
    profile = estimate.profile
    return [
        one_verdict(estimate),
        *subject_lines(profile.run),
        "",
        *_memory_lines(profile, formulas),
        "",
        *_phase_lines(profile),
        "",
        *_time_lines(profile, formulas),
        *_exchange_lines(profile.run),
        "",
        *_wall_lines(estimate),
        "",
        *_input_lines(profile.run),
        *[line for text in profile.source.assumptions for line in wrapped(f"Assumed: {text}.", indent="  ")],
        constants_line(profile),
    ]


def _memory_lines(profile: Profile, formulas: Mapping[Path, str]) -> list[str]:
    """Return the waterfall: each line an amount, the total so far, its name and its formula."""
    total, lines = 0.0, [paint("Memory, line by line to the figure of nvidia-smi", "bold")]
    lines.append(paint(f"{pad('GiB', 9, right=True)}{pad('so far', 9, right=True)}", "dim"))
    for path, amount in _by_kind(profile.device_memory_bytes):
        if path[0] in SUM_BEFORE and total:
            lines.append(_sum_line(total, SUM_BEFORE[path[0]]))
        total += amount
        amounts = f"{pad(_gib(amount), 9, right=True)}{pad(_gib(total), 9, right=True)}"
        lines += _formula_lines(amounts, " · ".join(path), _formula(path, formulas))
    lines.append(_sum_line(total, "= what has to fit"))
    if profile.cached_bytes:
        amounts = f"{pad(_gib(profile.cached_bytes), 9, right=True)}{pad('', 9)}"
        lines += _formula_lines(amounts, "cached", "freed blocks that the allocator gives back if need be")
        lines.append(_sum_line(total + profile.cached_bytes, "= what nvidia-smi shows"))
    return [*lines, _sum_line(profile.capacity_bytes, f"usable on {profile.run.gpu}")]


def _by_kind(breakdown: Breakdown) -> Iterator[tuple[Path, float]]:
    """Yield the parts in the order of their kinds, so that equal kinds stand together."""
    for kind in breakdown.at(1).parts:
        yield from ((path, value) for path, value in breakdown.parts.items() if path[:1] == kind)


def _formula(path: Path, formulas: Mapping[Path, str]) -> str:
    """Return the formula of `path`, or of the nearest whole it is part of."""
    for length in range(len(path), 0, -1):
        if path[:length] in formulas:
            return formulas[path[:length]]
    return ""


def _formula_lines(amounts: str, name: str, formula: str) -> list[str]:
    """Return amounts, name and formula; a long formula goes on below."""
    below = " " * (visible_width(amounts) + 4)
    text = f"{name}  {formula}".rstrip()
    first, *rest = wrapped(text, indent="  ", width=WIDTH - visible_width(amounts) - 2)
    first = name + paint(first[len(name) :], "dim")
    return [f"{amounts}  {first}", *(paint(f"{below}{line.strip()}", "dim") for line in rest)]


def _sum_line(amount_bytes: float, name: str) -> str:
    """Return a line of the waterfall that sums up."""
    return paint(f"{pad('', 9)}{pad(_gib(amount_bytes), 9, right=True)}  {name}", "bold")


def _gib(amount_bytes: float) -> str:
    """Return GiB with three decimals: a waterfall has to add up."""
    return f"{amount_bytes / 2**30:.3f}"


def _phase_lines(profile: Profile) -> list[str]:
    """Return what is alive at the fullest moment of each phase, by kind."""
    by_phase = profile.phase_memory_bytes
    phases = [path[0] for path in by_phase.at(1).parts]
    kinds = list(dict.fromkeys(path[1] for path in by_phase.at(2).parts if len(path) > 1))
    rows = []
    for phase in phases:
        parts = by_phase.under(phase).at(1)
        cells = [_gib(parts[kind]) if parts[kind] else figures.UNKNOWN for kind in kinds]
        total = paint(_gib(parts.total), *(("bold",) if phase == profile.peak_phase else ()))
        rows.append([f"  {phase}", *cells, total])
    title = paint("Memory by phase, GiB live in torch at its fullest moment", "bold")
    return [title, *columns(["  phase", *kinds, "total"], rows)]


def _time_lines(profile: Profile, formulas: Mapping[Path, str]) -> list[str]:
    """Return the seconds of a step by stage and operator group, with formulas."""
    step, total = profile.step_time_s, profile.step_time_s.total
    lines = [f"{paint('Time of one step', 'bold')}  {figures.digits(total)} s"]
    for stage, stage_s in step.at(1).parts.items():
        drawn = f"{stage[0]}  {paint(bar(stage_s / total, 20), 'blue')}"
        lines += _formula_lines(_time_amounts(stage_s, total), drawn, formulas.get(stage, ""))
        for path, seconds in _largest(step.under(*stage)):
            if path and seconds >= LEAST_SHARE_FRACTION * total:
                formula = formulas.get((*stage, *path), "")
                lines += _formula_lines(_time_amounts(seconds, total), f"  {' · '.join(path)}", formula)
    from finegauge.predict.bottleneck import bottleneck

    return [*lines, *wrapped(f"Bottleneck: {bottleneck(profile)}", indent="  ")]


def _exchange_lines(run: "Run") -> list[str]:
    """Return the messages that one rank takes part in, by kind; none on one GPU."""
    from finegauge.predict.exchange import volumes

    rows = [
        [f"  {volume.kind.replace('_', '-')}", volume.group, f"{volume.num_per_step:,.0f}",
         figures.size(volume.bytes_per_step)]
        for volume in volumes(run)
    ]  # fmt: skip
    if not rows:
        return []
    title = paint(
        "Sent in one step, as one rank sees it: whole tensors, whatever part of them is its own", "bold"
    )
    return ["", title, *columns(["  kind", "among ranks of", "messages", "bytes"], rows)]


def _time_amounts(seconds: float, total_s: float) -> str:
    """Return "  0.83 s   38 %"."""
    return f"{pad(_seconds(seconds), 9, right=True)}{pad(figures.percent(seconds / total_s), 9, right=True)}"


def _largest(parts: Breakdown) -> list[tuple[Path, float]]:
    """Return the parts, the largest group first and, within a group, the largest part first."""
    groups = {path[:1]: value for path, value in parts.at(1).parts.items()}
    return sorted(parts.parts.items(), key=lambda item: (-groups[item[0][:1]], -item[1]))


def _seconds(value_s: float) -> str:
    """Return seconds or milliseconds."""
    return f"{figures.digits(value_s)} s" if value_s >= 0.1 else f"{figures.digits(1e3 * value_s)} ms"


def _wall_lines(estimate: Estimate) -> list[str]:
    """Return the parts of the whole run's wall clock and of its energy."""
    quote = estimate.quote
    if estimate.verdict == WILL_NOT_FIT:
        return [f"{paint('Whole run', 'bold')}  it will not fit, so it has no end and no bill."]
    if quote.num_steps is None:
        return [paint(line, "yellow") for line in wrapped(quote.warnings[0], indent="  ")]
    lines = [f"{paint('Whole run', 'bold')}  {quote.num_steps:,} steps, {figures.hours(quote.wall_s)}"]
    for (part, *_), seconds in quote.wall_time_s.parts.items():
        share = pad(figures.percent(seconds / quote.wall_time_s.total), 9, right=True)
        lines.append(f"{pad(figures.hours(seconds), 9, right=True)}{share}  {part}")
    boards, wall = figures.kwh(quote.boards_energy_j), figures.kwh(quote.wall_energy_j)
    co2 = figures.digits(quote.emissions_kg, 2)
    lines.append(
        f"  Energy: {boards} kWh of the boards, {wall} kWh at the wall, {co2} kg CO2e ({quote.grid})."
    )
    return lines


def _input_lines(run: "Run") -> list[str]:
    """Return every field with its value and who stated it."""
    rows = [
        [f"  {name}", figures.plain(value), run.origins.get(name, "")]
        for name, value in run.fields().items()
        if value not in (None, "") and (run.trains_adapters or name not in LORA_FIELDS)
    ]
    return [
        paint("Inputs, and who stated them", "bold"),
        *columns(["  field", "value", "origin"], rows, left=3),
    ]
