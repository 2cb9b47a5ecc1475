"""One optimizer step as `--json` has it: totals, parts by path, rates, and the interval where one is known.

`Profile` holds breakdowns; a document holds their totals beside their parts, so that a reader need not add
up. `figures_of` and `profile_of` lead from one to the other and back.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from finegauge.answers import Rules
from finegauge.documents import MAX_NUMBER, figure
from finegauge.errors import shown
from finegauge.profile import Breakdown, Interval, Profile, Source
from finegauge.records import same
from finegauge.run.run import Run

WHOLE = ("all",)  # the one part of what is known as a whole alone


class SourceName(NamedTuple):
    """Where a profile comes from."""

    kind: str  # predicted, measured or published
    name: str


@Rules(absent=("device_memory_bytes_p10", "device_memory_bytes_p90", "step_time_s_p10", "step_time_s_p90"))
class ProfileFigures(NamedTuple):
    """One optimizer step on the fullest, slowest GPU."""

    source: SourceName
    outcome: str
    peak_memory_bytes: float
    peak_phase: str
    device_memory_bytes: float
    cached_bytes: float
    capacity_bytes: float
    memory_breakdown_bytes: Breakdown
    phase_memory_bytes: Breakdown
    step_time_s: float
    time_breakdown_s: Breakdown
    step_energy_j: float
    tokens_per_s: float
    samples_per_s: float
    mfu_fraction: float
    host_bound_fraction: float
    device_memory_bytes_p10: float | None
    device_memory_bytes_p90: float | None
    step_time_s_p10: float | None
    step_time_s_p90: float | None
    assumptions: tuple[str, ...]


def figures_of(profile: Profile) -> ProfileFigures:
    """Return what a document says of `profile`."""
    memory = _ends(profile.source.memory_interval, profile.device_memory_bytes)
    time = _ends(profile.source.time_interval, profile.step_time_s)
    totals = ("peak_memory_bytes", "device_memory_bytes", "step_time_s", "step_energy_j")
    figures = same(ProfileFigures, profile) | {name: getattr(profile, name).total for name in totals}
    figures |= {
        "source": SourceName(profile.source.kind, profile.source.name),
        "memory_breakdown_bytes": profile.device_memory_bytes,
        "phase_memory_bytes": profile.phase_memory_bytes.at(1),
        "time_breakdown_s": profile.step_time_s,
        "device_memory_bytes_p10": memory[0],
        "device_memory_bytes_p90": memory[1],
        "step_time_s_p10": time[0],
        "step_time_s_p90": time[1],
        "assumptions": profile.source.assumptions,
    }
    return ProfileFigures(**figures)


def _ends(interval: Interval | None, quantity: Breakdown) -> tuple[float, float] | tuple[None, None]:
    return (None, None) if interval is None else interval.of(quantity.total)


def profile_of(values: Mapping[str, Any], run: Run) -> Profile:
    """Return the profile that a document holds; what it lacks stays empty."""
    rate, step_s = _figure(values.get("tokens_per_s")), _figure(values.get("step_time_s"))
    mfu = _figure(values.get("mfu_fraction"))
    return Profile(
        run=run,
        source=Source(
            kind=str(values["source"]["kind"]),
            name=str(values["source"]["name"]),
            memory_interval=_interval(values, "device_memory_bytes"),
            time_interval=_interval(values, "step_time_s"),
            assumptions=tuple(map(str, values.get("assumptions", ()))),
        ),
        outcome=str(values.get("outcome", "completed")),
        reason=str(values.get("reason", "")),
        peak_memory_bytes=_quantity(values, "peak_memory_breakdown_bytes", "peak_memory_bytes"),
        device_memory_bytes=_quantity(values, "memory_breakdown_bytes", "device_memory_bytes"),
        cached_bytes=_figure(values.get("cached_bytes")),
        peak_phase=str(values.get("peak_phase", "")),
        step_time_s=_quantity(values, "time_breakdown_s", "step_time_s"),
        step_energy_j=_quantity(values, "", "step_energy_j"),
        step_tokens=rate * step_s,
        step_sequences=_figure(values.get("samples_per_s")) * step_s,
        step_flops=mfu * step_s * run.num_gpus,  # of a peak of 1, so that their ratio is what was said
        peak_flops_per_s=1.0 if mfu else 0.0,
        host_bound_fraction=_figure(values.get("host_bound_fraction")),
        capacity_bytes=_figure(values.get("capacity_bytes")),
        step_times_s=tuple(map(_figure, values.get("step_times_s", ()))),
        fingerprint=dict(values.get("fingerprint", {})),
        observations=dict(values.get("observations", {})),
    )  # fmt: skip


def _quantity(values: Mapping[str, Any], parts: str, total: str) -> Breakdown:
    """Return a breakdown, or its total alone where that is all that was said."""
    if named := values.get(parts):
        return breakdown_of(named)
    whole = _figure(values.get(total))
    return Breakdown({WHOLE: whole}) if whole else Breakdown({})


def _figure(value: Any, least: float = 0.0) -> float:
    """Return a number of a document, 0 where it is not known. Raises: ValueError for what is none."""
    number = 0.0 if value is None else figure(value)
    if number < least:
        raise ValueError(f"{shown(value)} is below zero")
    return number


def breakdown_of(parts: Mapping[str, float]) -> Breakdown:
    """Return the breakdown whose parts are named "a / b / c"."""
    return Breakdown({tuple(name.split(" / ")): _figure(value, -MAX_NUMBER) for name, value in parts.items()})


def _interval(values: Mapping[str, Any], name: str) -> Interval | None:
    """Return the 10th and 90th percentile of a quantity, where they were said."""
    low, high, middle = (_figure(values.get(key)) for key in (f"{name}_p10", f"{name}_p90", name))
    return Interval(low / middle, high / middle) if low and high and middle else None


def predicted_waits(profile: Profile) -> dict[str, float]:
    """Return the seconds to the first token and for each further one, and tokens generated per second.

    Empty for a phase that serves nothing, or none beyond the first token.
    """
    from finegauge.prediction.serving import served_outcomes

    found = served_outcomes(profile)
    names = ("ttft_s", "time_per_output_token_s", "output_tokens_per_s")
    if not set(names) <= found.keys():
        return {}
    first_s, further_s, rate = (found[name] for name in names)
    return {"ttft_s": first_s, "time_per_output_token_s": further_s, "written_tokens_per_s": rate}
