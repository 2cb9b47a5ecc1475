"""The report about a kept answer of `estimate` or `explain`: what it says, nothing computed anew."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from finegauge.plan.verdict import verdict
from finegauge.profile import Path, Profile
from finegauge.report import figures
from finegauge.report.bars import Table, memory_bar, stage_bar
from finegauge.report.drawings.front import Way, front_drawing
from finegauge.report.drawings.memory import memory_drawing
from finegauge.report.drawings.step_time import step_time_drawing
from finegauge.report.estimate import WORDS
from finegauge.report.page import Fact, Report, filled, section
from finegauge.report.profile_report import TONES, about, bottleneck_text, title_of
from finegauge.report.report_tables import assumption_table, formula_table
from finegauge.units import gib

if TYPE_CHECKING:
    from finegauge.report.drawing import Drawing

SIZES = ("device_memory_bytes", "capacity_bytes")


def answered_report(
    profile: Profile, formulas: Mapping[Path, str], results: Sequence[Mapping[str, Any]]
) -> Report:
    """Return the report about an answer that a file holds.

    Args:
        profile: Of the first GPU that was asked about.
        formulas: By path, where the answer has them.
        results: Of every GPU, as the file has them.
    """
    from finegauge.predict.uncertainty import probability_out_of_memory

    needed, room = profile.device_memory_bytes.total, profile.capacity_bytes
    chance = probability_out_of_memory(profile)
    said = figures.gib_interval(needed, profile.source.memory_interval)
    word = verdict(chance)
    took = figures.duration_interval(profile.step_time_s.total, profile.source.time_interval)
    return Report(
        title=title_of(profile.run),
        verdict=f"{WORDS[word]}: {said} of {gib(room)}, P(OOM) {figures.probability(chance)}.",
        tone=TONES[word],
        about=about(profile.run),
        facts=(
            Fact("Memory", said, f"of {gib(room)}"),
            Fact("One step", took, f"{figures.digits(profile.tokens_per_s)} tokens/s"),
            Fact("Of the peak", figures.percent(profile.mfu_fraction), "model FLOP/s"),
        ),
        bars=(("Memory", memory_bar(profile)), ("One step", stage_bar(profile))),
        sections=filled(
            section("memory", "Memory", drawings=(memory_drawing(profile, formulas),)),
            section("time", "Time", texts=(bottleneck_text(profile),),
                    drawings=(step_time_drawing(profile),)),
            section("cost", "Every GPU that was asked about", drawings=(_costs(results),),
                    tables=(_verdicts(results),)),
            section("assumptions", "Assumptions and origins", texts=profile.run.warnings,
                    tables=(assumption_table(profile.run), formula_table(profile, formulas))),
            section("sources", "Sources",
                    texts=(f"Constants: {profile.source.name}.", *profile.source.assumptions)),
        ),
    )  # fmt: skip


def _costs(results: Sequence[Mapping[str, Any]]) -> "Drawing | None":
    """Return cost against time of the GPUs that were asked about, where there are several."""
    ways = []
    for one in results:
        bill = one.get("quote") or {}
        cheapest = bill.get("cheapest_on_demand") or {}
        if bill.get("wall_s") is not None and cheapest.get("on_demand_usd") is not None:
            name = f"{one['gpu']} · {cheapest['provider']}"
            ways.append(
                Way(name, str(one["gpu"]), bill["wall_s"], cheapest["on_demand_usd"], bill["wall_energy_j"])
            )
    if len(ways) < 2:
        return None
    return front_drawing(ways, about="The run on each GPU, at its cheapest offer")


def _verdicts(results: Sequence[Mapping[str, Any]]) -> Table | None:
    """Return a row per GPU, where there are several."""
    rows = tuple(
        (
            str(one["gpu"]), WORDS.get(one["verdict"], one["verdict"]),
            *(gib(one[name]) if one.get(name) else figures.UNKNOWN for name in SIZES),
            figures.hours((one.get("quote") or {}).get("wall_s")), str(one.get("reason", "")),
        )
        for one in results
    )  # fmt: skip
    headings = ("GPU", "verdict", "needs", "has", "time", "why not")
    table = Table("Does it fit, and how long does it take", headings, rows, 2, ends_in_text=True)
    return table if len(rows) > 1 else None
