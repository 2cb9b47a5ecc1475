"""What `finegauge campaign` says at its end: how many cells ended how, and where the answers lie."""

import json
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from finegauge.campaign.axes import SWITCH
from finegauge.campaign.cell import MEASURED, PREDICTED
from finegauge.report.terminal import columns, paint, wrapped

if TYPE_CHECKING:
    from finegauge.campaign.campaign import Summary
    from finegauge.campaign.folder import Folder
    from finegauge.campaign.sweep import Sweep
    from finegauge.profile import Profile

COLOURS = {"completed": "green", "out_of_memory": "yellow", "failed": "red", "interrupted": "red"}
MOST_REASONS = 5
MAY_BE_UNKNOWN = (
    "peak_memory_bytes", "device_memory_bytes", "step_time_s", "step_energy_j", "tokens_per_s",
    "samples_per_s",
)  # fmt: skip


def campaign_lines(sweep: "Sweep", folder: "Folder", summary: "Summary") -> list[str]:
    """Return what one call did, what the folder holds now, and why cells have no answer."""
    lines = [paint(sweep.name, "bold")]
    lines += wrapped(sweep.about, indent="") if sweep.about else []
    asked = sum(summary.outcomes.values())
    lines += [
        "",
        f"{asked:,} cell{'' if asked == 1 else 's'} asked, {summary.before:,} were done before.",
        *_outcomes(sweep, folder),
        "",
    ]
    kept = f"Kept in {folder.path}: finegauge results {folder.path}"
    kept += f", finegauge compare {folder.path}" if SWITCH in sweep.axes else ""
    return [*lines, *_reasons(folder), kept]


def shipped_lines(abouts: Mapping[str, str]) -> list[str]:
    """Return the sweeps that come with FineGauge and what each is about."""
    lines = []
    for name, about in abouts.items():
        lines += [paint(name, "bold"), *(f"  {line}" for line in wrapped(about, indent="", width=96))]
    return lines


def dry_lines(sweep: "Sweep", done: Mapping[str, str]) -> list[str]:
    """Return what a campaign would ask."""
    lines = [paint(sweep.name, "bold")]
    for cell in sweep.cells:
        state = done.get(cell.key) or (f"no run: {cell.refusal}" if cell.run is None else "to do")
        lines.append(f"  {cell.title}: {state}")
    left = sum(cell.key not in done for cell in sweep.cells)
    return [*lines, f"{left:,} of {len(sweep.cells):,} cells are to be asked."]


def campaign_json(sweep: "Sweep", folder: "Folder", summary: "Summary") -> str:
    """Return the same as JSON."""
    whole = {
        "schema_version": 1,
        "command": "campaign",
        "name": sweep.name,
        "folder": folder.path,
        "num_cells": len(sweep.cells),
        "done_before": summary.before,
        "outcomes": dict(summary.outcomes),
        "refused": [{"labels": dict(r.labels), "reason": r.reason} for r in folder.refusals()],
        "results": [
            {
                "cell": result.key, "labels": dict(result.labels), "estimator": result.estimator,
                "repetition": result.repetition, "profile": _profile_json(result.profile),
            }
            for result in folder.results()
        ],
    }  # fmt: skip
    return json.dumps(whole, indent=2, ensure_ascii=False, allow_nan=False)


def _profile_json(profile: "Profile") -> dict[str, Any]:
    """Return a profile for readers, with the reason where it has no answer; null is what is not known."""
    said = profile.to_json() | {"reason": profile.reason}
    return said | {name: said[name] or None for name in MAY_BE_UNKNOWN}


def _outcomes(sweep: "Sweep", folder: "Folder") -> list[str]:
    """Return a row per estimator: how many of its cells ended how."""
    done = folder.done()
    ended = {word: Counter(done.get(c.key, "to do") for c in sweep.cells if c.estimator == word)
             for word in (PREDICTED, MEASURED)}  # fmt: skip
    names = list(dict.fromkeys(name for counter in ended.values() for name in counter))
    rows = [
        [word, *(paint(str(counter[name] or "-"), *_colour(name)) for name in names)]
        for word, counter in ended.items()
        if counter
    ]
    return columns(["", *(name.replace("_", " ") for name in names)], rows, indent="  ")


def _colour(outcome: str) -> tuple[str, ...]:
    """Return the colour of an outcome."""
    return (COLOURS[outcome],) if outcome in COLOURS else ()


def _reasons(folder: "Folder") -> list[str]:
    """Return why cells have no answer, the most frequent reasons."""
    reasons = Counter(refusal.reason for refusal in folder.refusals())
    reasons.update(
        result.profile.reason
        for result in folder.results()
        if result.profile.outcome in ("failed", "unsupported")
    )
    lines = []
    for reason, times in reasons.most_common(MOST_REASONS):
        lines += wrapped(f"- {times:,} x {reason}", indent="  ")
    if len(reasons) > MOST_REASONS:
        lines.append(f"- and {len(reasons) - MOST_REASONS:,} reasons more")
    return [*lines, ""] if lines else []
