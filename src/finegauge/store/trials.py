"""Which trials were started, and how each ended: a journal with one line before and one after.

    {"event": "started", "trial": id, "process": …, "run": …, "asked": …}
    {"event": "ended", "trial": id, "asked": …, "profile": …}

A trial without an end whose process is gone was interrupted, and is recorded as such by
whoever opens the store next.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from platform import node
from typing import TYPE_CHECKING, Any

from finegauge.profile import Profile, Source
from finegauge.store.document import profile_document, profile_of, run_document, run_of
from finegauge.store.journal import Journal

if TYPE_CHECKING:
    from finegauge.workload.run import Run

STARTED, ENDED = "started", "ended"
GONE = "the measuring process ended without a word (killed, or the machine stopped)"


class Trials:
    """The trials of one journal."""

    def __init__(self, path: str) -> None:
        """Name the journal's file; it need not exist."""
        self.journal = Journal(path)

    def start(self, run: "Run", asked: Mapping[str, Any]) -> str:
        """Record that `run` is about to be measured as `asked`, and return the trial's name."""
        trial = os.urandom(8).hex()
        self.journal.append(
            {
                "event": STARTED,
                "trial": trial,
                "process": [os.getpid(), _born(os.getpid()), node()],
                "run": run_document(run),
                "asked": dict(asked),
            }
        )
        return trial

    def end(self, trial: str, profile: Profile) -> None:
        """Record how `trial` ended; nothing is recorded twice."""
        with self.journal.locked() as descriptor:
            if trial not in {record["trial"] for record in self._of(ENDED)}:
                asked = {record["trial"]: record["asked"] for record in self._of(STARTED)}.get(trial, {})
                record = ended(trial, asked, profile_document(profile))
                self.journal.append_locked(descriptor, (record,))

    def profiles(self) -> list[Profile]:
        """Return how every trial that ended did end, in the order in which they did."""
        return [profile_of(record["profile"]) for record in self._of(ENDED)]

    def recover(self) -> int:
        """Record as interrupted every trial whose process is gone, and return their number."""
        if not os.path.exists(self.journal.path):
            return 0
        with self.journal.locked() as descriptor:
            known = {record["trial"] for record in self._of(ENDED)}
            lost = [r for r in self._of(STARTED) if r["trial"] not in known and not _alive(*r["process"])]
            records = tuple(
                ended(r["trial"], r["asked"], profile_document(interrupted(r["run"]))) for r in lost
            )
            if records:
                self.journal.append_locked(descriptor, records)
        return len(lost)

    def _of(self, event: str) -> list[dict[str, Any]]:
        """Return the records of one event."""
        return [record for record in self.journal.read().records if record.get("event") == event]


def ended(trial: str, asked: Mapping[str, Any], profile: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record of an end: what was asked, and what came of it."""
    return {"event": ENDED, "trial": trial, "asked": dict(asked), "profile": dict(profile)}


def interrupted(run: Mapping[str, Any]) -> Profile:
    """Return the profile of a trial that left no word."""
    return Profile(run=run_of(run), source=Source("measured", "trial"), outcome="interrupted", reason=GONE)


def _alive(process: int, born: str, host: str) -> bool:
    """Return whether the process that started a trial still runs; of another host's nothing is known."""
    return host != node() or (bool(born) and _born(process) == born)


def _born(process: int) -> str:
    """Return when a process began, in the kernel's clock ticks of this boot; "" if it is gone."""
    with suppress(OSError), open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as stat:
        state, *rest = stat.read().rpartition(")")[2].split()
        with open("/proc/sys/kernel/random/boot_id", encoding="utf-8") as boot:
            return "" if state in "ZX" else f"{boot.read().strip()}:{rest[18]}"
    return ""
