"""Variants of a checked run, made without checking every field again: a search needs thousands.

What varies must be consistent, which is the caller's business: a plan that is handed out is made
anew by `Run.replace`, which checks everything. A value may be an array, one number per machine.
"""

from operator import attrgetter
from typing import Any

from finegauge.workload.run import FROM_CALLER, Run

NAMES = tuple(Run.__dataclass_fields__)
VALUES = attrgetter(*NAMES)
SLOTS = {name: getattr(Run, name).__set__ for name in NAMES}  # what assigning to a frozen run refuses


def unchecked(run: Run, **changes: Any) -> Run:
    """Return `run` with `changes`, which count as stated by the caller."""
    other = object.__new__(Run)
    for assign, value in zip(SLOTS.values(), VALUES(run), strict=True):
        assign(other, value)
    for name, value in changes.items():
        SLOTS[name](other, value)
    SLOTS["origins"](other, {**run.origins, **dict.fromkeys(changes, FROM_CALLER)})
    return other
