"""A campaign's folder: one journal of what was started and how it ended, and one driver at a time.

    results.jsonl    a line before each trial and one after it (store.trials), predictions one each
    driver           the process that works here; its lock ends with the process
    sweep.json       name, baseline and axes of the last sweep carried out here, for comparisons

A cell is done once a line says how it ended: completed, out of memory, unsupported or failed.
What was interrupted is asked again.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from platform import node
from typing import Any, NamedTuple

from finegauge.campaign.axes import BASELINE, Cell
from finegauge.documents import open_regular, write_document
from finegauge.errors import InputError, shown
from finegauge.profile import Profile
from finegauge.store.document import profile_document, profile_of
from finegauge.store.journal import ENDED, REFUSED, Trials, ended, lock
from finegauge.store.table import JOURNAL

DRIVER = "driver"
ABOUT = "sweep.json"


class Result(NamedTuple):
    """How one cell ended."""

    key: str
    labels: Mapping[str, str]
    estimator: str
    repetition: int
    profile: Profile


class About(NamedTuple):
    """Name, purpose, baseline, claims and axes of a sweep."""

    name: str = ""
    about: str = ""
    baseline: str = BASELINE
    claims: str = ""
    axes: Mapping[str, Sequence[str]] = {}  # every axis with its values, in the order of the sweep


class Refusal(NamedTuple):
    """A cell whose values make no run."""

    key: str
    labels: Mapping[str, str]
    estimator: str
    reason: str


class Folder:
    """Where a campaign keeps what it knows."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.trials = Trials(os.path.join(path, JOURNAL))

    @contextmanager
    def driven(self) -> Iterator[None]:
        """Lock the folder for this process.

        Raises: InputError where somebody does, or the folder cannot be written.
        """
        name = os.path.join(self.path, DRIVER)
        try:
            os.makedirs(self.path, exist_ok=True)
            descriptor = open_regular(name, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise InputError(
                f"The campaign's folder {shown(self.path)} cannot be used: {error.strerror or error}."
            ) from None
        try:
            try:
                lock(descriptor, 0.0)
            except BlockingIOError:
                who = os.read(descriptor, 200).decode("utf-8", "replace").strip()
                raise InputError(
                    f"The campaign in {shown(self.path)} is being worked on by {who or 'another process'}; "
                    "wait for it to end, or name another folder."
                ) from None
            except OSError as error:
                raise InputError(
                    f"The campaign's folder {shown(self.path)} cannot be locked: {error.strerror}."
                ) from None
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"process {os.getpid()} on {node()}".encode())
            self.trials.recover()
            yield
        finally:
            os.close(descriptor)  # which unlocks

    def describe(self, said: About) -> None:
        """Write sweep.json, whole or not at all."""
        write_document(said._asdict(), os.path.join(self.path, ABOUT))

    def described(self) -> About:
        """Return what sweep.json holds; defaults where there is none."""
        try:
            with open(os.path.join(self.path, ABOUT), encoding="utf-8") as file:
                kept = json.load(file)
        except (OSError, ValueError):
            return About()
        if not isinstance(kept, dict) or not isinstance(kept.get("axes"), dict):
            return About()
        words = {name: str(kept.get(name, "")) for name in ("name", "about", "baseline", "claims")}
        return About(**words, axes={str(axis): list(values) for axis, values in kept["axes"].items()})

    def start(self, cell: Cell) -> str:
        """Record that `cell` is about to be measured, and return the trial's name."""
        assert cell.run is not None
        return self.trials.start(cell.run, about(cell))

    def answer(self, answers: Iterable[tuple[Cell, Profile]]) -> None:
        """Record answers that took no trial: predictions, and cells that need not be asked."""
        records = [ended(cell.key, about(cell), profile_document(profile)) for cell, profile in answers]
        if records:
            self.trials.journal.append(*records)

    def refuse(self, cell: Cell) -> None:
        """Record that the values of a cell make no run, and why."""
        self.trials.journal.append(
            {"event": REFUSED, "trial": cell.key, "asked": about(cell), "reason": cell.refusal}
        )

    def results(self) -> list[Result]:
        """Return the last result of every cell that is done."""
        return [
            Result(
                key=asked["cell"], labels=asked["labels"], estimator=asked["estimator"],
                repetition=asked["repetition"], profile=profile_of(record["profile"]),
            )
            for asked, record in self._ended()
        ]  # fmt: skip

    def done(self) -> dict[str, str]:
        """Return the outcome of every cell that is done, by its key."""
        ended = {asked["cell"]: record["profile"]["outcome"] for asked, record in self._ended()}
        return ended | {refusal.key: REFUSED for refusal in self.refusals()}

    def refusals(self) -> list[Refusal]:
        """Return the cells that make no run, each once."""
        found = {}
        for record in self.trials.journal.read().records:
            if record.get("event") == REFUSED:
                cell, labels, estimator = (record["asked"][name] for name in ("cell", "labels", "estimator"))
                found[cell] = Refusal(cell, labels, estimator, record["reason"])
        return list(found.values())

    def _ended(self) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
        """Yield (what was asked, the record of its end) of every cell that is done; its last end counts."""
        last: dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {}
        for record in self.trials.journal.read().records:
            asked = record.get("asked", {})
            if (
                record.get("event") == ENDED
                and "cell" in asked
                and record["profile"]["outcome"] != "interrupted"
            ):
                last[asked["cell"]] = asked, record
        yield from last.values()


def about(cell: Cell) -> dict[str, Any]:
    """Return the fields of a cell that its records keep."""
    said = {} if cell.options is None else cell.options._asdict()
    said |= {"cell": cell.key, "labels": cell.labels, "estimator": cell.estimator}
    return dict(json.loads(json.dumps(said | {"repetition": cell.repetition})))
