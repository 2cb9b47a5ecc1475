"""Journals of results for the tests of tables."""

from pathlib import Path
from typing import Any, NamedTuple

from finegauge.profile import Breakdown, Profile, Source
from finegauge.run.run import Run
from finegauge.store.document import profile_document
from finegauge.store.journal import Journal, Refused, ended, record_of

RUN = Run(model="llama-2-7b", method="lora", gpu="a40")


def result(cell: str = "a", *, labels: dict[str, str] | None = None, **changes: Any) -> dict[str, Any]:
    """Return the record of a result; `changes` are fields of its Profile."""
    profile = Profile(
        run=changes.pop("run", RUN),
        source=Source("measured", "a test"),
        step_tokens=changes.pop("step_tokens", 512.0),
        step_sequences=2.0,
        **changes,
    )
    asked = {"cell": cell, "labels": labels or {}, "estimator": "measured", "repetition": 0}
    return ended(cell, asked, profile_document(profile))


def timed(cell: str, step_s: float, **changes: Any) -> dict[str, Any]:
    """Return the record of a result that took `step_s` seconds, a quarter of them forward."""
    parts = {("forward", "moe"): 0.125 * step_s, ("forward", "head"): 0.125 * step_s,
             ("backward",): 0.75 * step_s}  # fmt: skip
    return result(cell, step_time_s=Breakdown(parts), **changes)


def journal(folder: Path, *records: dict[str, Any], name: str = "store.jsonl") -> Journal:
    """Return a journal that holds `records`."""
    written = Journal(str(folder / name))
    if records:
        written.append(*records)
    return written


class Contents(NamedTuple):
    """What a journal holds."""

    records: list[dict[str, Any]]
    num_quarantined: int  # lines that did not read back


def read_back(journal: Journal) -> Contents:
    """Return every record of a journal; lines that are none go into quarantine."""
    records, refused = [], Refused()
    for _, line in journal.lines():
        try:
            records.append(record_of(line))
        except ValueError as error:
            refused.add(line, error)
    refused.keep(journal.quarantine)
    return Contents(records, refused.number)
