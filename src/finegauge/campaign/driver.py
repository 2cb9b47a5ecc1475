"""Carry out a sweep: every cell once, across interruptions.

The driver alone writes to the folder. An engine measures cells and returns them in any order:
processes of this machine by default, or a Ray cluster. Finished cells are not repeated, and
cells larger than a run that was out of memory are skipped. Predictions come first: they take
milliseconds.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple, Protocol

from finegauge.campaign.axes import MEASURED, About, Cell, Folder
from finegauge.campaign.sweep import Sweep
from finegauge.errors import FineGaugeError
from finegauge.measurement.options import Options
from finegauge.measurement.trial import measure, without_result
from finegauge.prediction.predictor import predict
from finegauge.profile import Profile, Source
from finegauge.progress import Heard, Progress
from finegauge.run.run import Run

PRUNED = Source("pruned", "a smaller run")


class Pruning:
    """The runs that were out of memory, and the larger ones that need not be tried."""

    def __init__(self, fields: Sequence[str]) -> None:
        """Compare runs by `fields`, of which a larger value needs at least as much memory."""
        self.fields = tuple(fields)
        self.failed: dict[str, list[tuple[float, ...]]] = {}  # by the rest of their content

    def remember(self, cell: Cell, outcome: str) -> None:
        """Note how a cell ended."""
        if outcome == "out_of_memory" and self.fields:
            self.failed.setdefault(cell.content(self.fields), []).append(self.sizes(cell))

    def reason(self, cell: Cell) -> str:
        """Return why a cell need not be asked; "" where it has to be."""
        own = self.sizes(cell)
        for sizes in self.failed.get(cell.content(self.fields), ()) if self.failed else ():
            if own != sizes and all(mine >= theirs for mine, theirs in zip(own, sizes, strict=True)):
                smaller = ", ".join(f"{n}={v:g}" for n, v in zip(self.fields, sizes, strict=True))
                return f"not asked: {smaller} is out of memory already"
        return ""

    def sizes(self, cell: Cell) -> tuple[float, ...]:
        """Return the fields in which runs may differ."""
        return tuple(map(cell.size, self.fields))


WRITE_EVERY_S = 1.0  # predictions are put on the disk together


class Summary(NamedTuple):
    """What one call of `carry_out` did."""

    outcomes: Mapping[str, int]  # of the cells of this call, by outcome
    before: int  # cells that were done already


Start = Callable[[Cell], str]


class Engine(Protocol):
    """A measurement backend."""

    def measure(self, cells: Iterator[Cell], start: Start) -> Iterator[tuple[str, Cell, Profile]]:
        """Yield (trial, cell, profile) as each ends.

        Args:
            cells: Taken one by one, as late as possible: what is known by then prunes them.
            start: Called before a cell is launched; returns the trial's name.
        """
        ...


def carry_out(
    sweep: Sweep, where: str | Folder, engine: Engine, *, heard: Heard | None = None, retry: bool = False
) -> Summary:
    """Ask every cell of `sweep` that a folder does not know yet.

    The folder is made where it is missing; `retry` repeats cells that failed or were unsupported.

    Raises: InputError where somebody else works in the folder, or it cannot be written.
    """
    folder = Folder(where) if isinstance(where, str) else where
    with folder.driven():
        folder.describe(About(sweep.name, sweep.about, sweep.baseline, sweep.claims, sweep.axes))
        return _Driver(sweep, folder, heard, retry=retry).work(engine)


class _Driver:
    """One call: what is left to do, and what has been done."""

    def __init__(self, sweep: Sweep, folder: Folder, heard: Heard | None, *, retry: bool) -> None:
        self.folder, self.heard = folder, heard
        self.pruning = Pruning(sweep.prune)
        done = folder.done()
        if retry:
            done = {key: outcome for key, outcome in done.items() if outcome not in ("failed", "unsupported")}
        left = [cell for cell in sweep.cells if cell.key not in done]
        for cell in sweep.cells if left else ():
            self.pruning.remember(cell, done.get(cell.key, ""))
        self.todo = sorted(left, key=self._order)
        self.before = len(sweep.cells) - len(left)
        self.total = len(sweep.cells)
        self.outcomes: Counter[str] = Counter()
        self.measuring_s: list[float] = []

    def work(self, engine: Engine) -> Summary:
        """Answer everything that is left."""
        self._answer()
        waiting = (cell for cell in self.todo if cell.estimator == MEASURED and cell.run is not None)
        since = time.monotonic()
        for trial, cell, profile in engine.measure(self._unpruned(waiting), self._start):
            self.folder.trials.end(trial, profile)
            self.measuring_s.append(time.monotonic() - since)
            since = time.monotonic()
            self._ended(cell, profile.outcome)
        return Summary(dict(self.outcomes), self.before)

    def _order(self, cell: Cell) -> tuple[bool, int, tuple[float, ...]]:
        """Return when a cell's turn is: small ones first, so that they can prune; repetitions in rounds."""
        return cell.estimator == MEASURED, cell.repetition, self.pruning.sizes(cell)

    def _answer(self) -> None:
        """Answer cells that take no trial, and put the answers on the disk every second."""
        answers: list[tuple[Cell, Profile | str]] = []
        since = time.monotonic()
        for cell in self.todo:
            run = cell.run
            if run is None:
                answers.append((cell, cell.refusal))
                self._ended(cell, "refused")
            elif cell.estimator != MEASURED:
                with cell.part.reading():
                    profile = self._pruned(cell, run) or _predicted(run)
                answers.append((cell, profile))
                self._ended(cell, profile.outcome)
            if time.monotonic() - since > WRITE_EVERY_S:
                self.folder.answer(answers)
                answers, since = [], time.monotonic()
        self.folder.answer(answers)

    def _pruned(self, cell: Cell, run: Run) -> Profile | None:
        """Return the profile of a cell that need not be asked, with the reason; None where it has to be."""
        reason = self.pruning.reason(cell)
        return Profile(run=run, source=PRUNED, outcome="out_of_memory", reason=reason) if reason else None

    def _unpruned(self, cells: Iterator[Cell]) -> Iterator[Cell]:
        """Yield the cells that have to be measured, deciding when each is taken."""
        for cell in cells:
            assert cell.run is not None
            if pruned := self._pruned(cell, cell.run):
                self.folder.answer([(cell, pruned)])
                self._ended(cell, pruned.outcome)
            else:
                yield cell

    def _start(self, cell: Cell) -> str:
        self._tell(cell)
        return self.folder.start(cell)

    def _ended(self, cell: Cell, outcome: str) -> None:
        self.outcomes[outcome] += 1
        self.pruning.remember(cell, outcome)
        self._tell(cell)

    def _tell(self, cell: Cell) -> None:
        if self.heard is not None:
            done = self.before + sum(self.outcomes.values())
            left_s = (self.total - done) * fmean(self.measuring_s) if self.measuring_s else None
            self.heard(Progress(cell.title, done, self.total, left_s))


def _predicted(run: Run) -> Profile:
    try:
        return predict(run)
    except FineGaugeError as error:
        source = Source("predicted", "FineGauge")
        return Profile(run=run, source=source, outcome="unsupported", reason=str(error))


class LocalEngine:
    """Measures here."""

    def measure(self, cells: Iterator[Cell], start: Start) -> Iterator[tuple[str, Cell, Profile]]:
        """Yield (trial, cell, profile) as each ends; an interruption is passed on, and is an outcome."""
        for cell in cells:
            assert cell.run is not None
            trial = start(cell)
            try:
                profile = measure(cell.run, cell.options or Options())
            except KeyboardInterrupt:
                yield trial, cell, without_result(cell.run, "interrupted", "Ctrl-C")
                raise
            yield trial, cell, profile
