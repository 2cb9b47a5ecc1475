"""A campaign's folder: one journal of what was started and how it ended, and one driver at a time.

    results.jsonl    a line before each trial and one after it (store.trials), predictions one each
    driver           the process that works here; its lock ends with the process
    sweep.json       name, baseline and axes of the last sweep carried out here, for comparisons

A cell is done once a line says how it ended: completed, out of memory, unsupported or failed.
What was interrupted is asked again.
"""

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from platform import node
from typing import Any, NamedTuple

from finegauge.campaign.axes import BASELINE, Cell
from finegauge.documents import MAX_DOCUMENT_BYTES, open_regular, parse_json, read_bytes, write_document
from finegauge.errors import FileFormatError, InputError, shown
from finegauge.profile import Profile
from finegauge.store.document import Facts, profile_document
from finegauge.store.journal import REFUSED, Entry, Trials, ended, lock
from finegauge.store.table import JOURNAL

DRIVER = "driver"
ABOUT = "sweep.json"


class Result(NamedTuple):
    """How one cell ended."""

    key: str
    labels: Mapping[str, str]
    estimator: str
    repetition: int
    facts: Facts
    read: Callable[[], Profile]

    @property
    def profile(self) -> Profile:
        """Return the profile, which is read from the disk."""
        return self.read()


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
            raise self._cannot("used", error) from None
        try:
            try:
                lock(descriptor, 0.0)
                os.ftruncate(descriptor, 0)
                os.write(descriptor, f"process {os.getpid()} on {node()}".encode())
            except BlockingIOError:
                who = os.read(descriptor, 200).decode("utf-8", "replace").strip()
                raise InputError(
                    f"The campaign in {shown(self.path)} is being worked on by {who or 'another process'}; "
                    "wait for it to end, or name another folder."
                ) from None
            except OSError as error:
                raise self._cannot("locked", error) from None
            self.trials.recover()
            yield
        finally:
            os.close(descriptor)  # which unlocks

    def _cannot(self, what: str, error: OSError) -> InputError:
        return InputError(
            f"The campaign's folder {shown(self.path)} cannot be {what}: {error.strerror or error}."
        )

    def describe(self, said: About) -> None:
        """Write sweep.json, whole or not at all."""
        write_document(said._asdict(), os.path.join(self.path, ABOUT))

    def described(self) -> About:
        """Return what sweep.json holds; defaults where there is none."""
        try:
            text = read_bytes(os.path.join(self.path, ABOUT), MAX_DOCUMENT_BYTES, links=False)
            kept = parse_json(text, ABOUT)
        except FileFormatError:
            return About()
        if not isinstance(kept, dict) or not isinstance(kept.get("axes"), dict):
            return About()
        words = {name: str(kept.get(name, "")) for name in ("name", "about", "baseline", "claims")}
        axes = {axis: list(map(str, of)) for axis, of in kept["axes"].items() if isinstance(of, list)}
        return About(**words, axes=axes)

    def start(self, cell: Cell) -> str:
        """Record that `cell` is about to be measured, and return the trial's name."""
        assert cell.run is not None
        return self.trials.start(cell.run, about(cell))

    def answer(self, answers: Iterable[tuple[Cell, Profile | str]]) -> None:
        """Record answers that took no trial: predictions, cells that need not be asked or make no run."""
        records = [
            {"event": REFUSED, "trial": cell.key, "asked": about(cell), "reason": answer}
            if isinstance(answer, str)
            else ended(cell.key, about(cell), profile_document(answer))
            for cell, answer in answers
        ]
        if records:
            self.trials.journal.append(*records)

    def results(self) -> list[Result]:
        """Return the last result of every cell that is done."""
        return [
            Result(
                key=one.asked["cell"], labels=one.asked["labels"], estimator=one.asked["estimator"],
                repetition=one.asked["repetition"], facts=one.facts, read=partial(self.trials.profile, one),
            )
            for one in self._last()
            if one.facts is not None
        ]  # fmt: skip

    def done(self) -> dict[str, str]:
        """Return the outcome of every cell that is done, by its key."""
        return {one.asked["cell"]: one.facts.outcome if one.facts else REFUSED for one in self._last()}

    def refusals(self) -> list[Refusal]:
        """Return the cells that make no run, repetitions once."""
        found = {}
        for one in self._last():
            if one.facts is None:
                asked = one.asked
                said = Refusal(asked["cell"], asked["labels"], asked["estimator"], one.reason)
                found[said.estimator, *said.labels.items()] = said
        return list(found.values())

    def _last(self) -> Collection[Entry]:
        """Return how every cell that is done ended; its last end counts."""
        return {
            one.asked["cell"]: one
            for one in self.trials.look().entries
            if one.is_cell and (one.facts is None or one.facts.outcome != "interrupted")
        }.values()


def about(cell: Cell) -> dict[str, Any]:
    """Return the fields of a cell that its records keep."""
    said = {} if cell.options is None else cell.options._asdict()
    said |= {"cell": cell.key, "labels": cell.labels, "estimator": cell.estimator}
    return said | {"repetition": cell.repetition}
