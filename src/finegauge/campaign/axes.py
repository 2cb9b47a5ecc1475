"""The axes of a sweep, its cells, and the folder that keeps how each ended.

An axis named after a field of Run lists its values. `switch` lists changes by the names that
`finegauge whatif` has for them, joined by + where several belong together; baseline changes
nothing. An axis of any other name has named values, each of which sets several fields; named
values of `switch` with nothing behind them are those changes.

What is measured has axes of how it is measured, too: an option (`requests_per_s: [1, 2, 4]`), or
named values with options among their fields (`engine: {here: , vllm: {endpoint: URL}}`).

The folder has one journal of what was started and how it ended, and one driver at a time:

    results.jsonl    a line before each trial and one after it (store.trials), predictions one each
    driver           the process that works here; its lock ends with the process
    sweep.json       name, baseline and axes of the last sweep carried out here, for comparisons

A cell is done once a line says how it ended: completed, out of memory, unsupported or failed.
What was interrupted is asked again.
"""

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache, partial
from hashlib import sha256
from math import prod
from platform import node
from typing import TYPE_CHECKING, Any, NamedTuple

from finegauge.catalogue.hub import user_catalogue
from finegauge.documents import (
    MAX_DOCUMENT_BYTES,
    cache_path,
    open_regular,
    parse_json,
    read_bytes,
    write_document,
)
from finegauge.errors import (
    FieldError,
    FileFormatError,
    FineGaugeError,
    InputError,
    UnknownKeyError,
    UnknownNameError,
    shown,
)
from finegauge.formats.reading import beside
from finegauge.planning.capacity import max_micro_batch_size
from finegauge.planning.whatif import known_switches, switch_named
from finegauge.prediction.predictor import needed
from finegauge.profile import Profile
from finegauge.run.run import FIELDS, Run
from finegauge.sandbox import reading_only
from finegauge.store.document import Facts, profile_document
from finegauge.store.journal import REFUSED, Entry, Trials, ended, lock
from finegauge.store.table import JOURNAL

if TYPE_CHECKING:
    from finegauge.measurement.options import Options

SWITCH = "switch"
BASELINE = "baseline"
LARGEST = "max"  # micro_batch_size: the largest that is predicted to fit
SIZE = "micro_batch_size"


class Value(NamedTuple):
    """One value of an axis."""

    label: str
    fields: Mapping[str, Any] = {}  # that it sets
    switches: tuple[str, ...] = ()  # that it throws, after every field is set
    options: Mapping[str, Any] = {}  # of the measurement
    settled: Mapping[str, Any] = {}  # the fields as a run has them, by which equal questions are told


def _value(label: str, fields: Mapping[str, Any], options: Mapping[str, Any] | None = None) -> Value:
    return Value(label, fields, (), options or {}, settled(fields))


def settled(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields in the types that a run has them in; what is no value of its field, as text."""
    found = {}
    for name, value in fields.items():
        try:
            found[name] = None if value is None else FIELDS[name](name, value)
        except FineGaugeError:
            found[name] = repr(value)
    return found


class Axis(NamedTuple):
    """A name and its values."""

    name: str
    values: tuple[Value, ...]


def axis_of(name: str, stated: Any, where: str, file: str, options: Collection[str] = ()) -> Axis:
    """Return the axis that a sweep file states: a field of Run, "switch", or a name of one's own.

    `stated` is a list of values, or named values with their fields. `where` is what messages call the place;
    files that a value names lie beside `file`. Values may set `options` of the measurement; a field of Run
    goes before an option of its name.

    Raises: InputError for values that are none, and for unknown switches and fields.
    """
    if isinstance(stated, Mapping):
        place = f"{where}: {name}"
        values = tuple(
            _switches(str(label), where) if name == SWITCH and fields is None
            else _fields(label, fields, place, file, options)
            for label, fields in stated.items()
        )  # fmt: skip
    elif not isinstance(stated, Sequence) or isinstance(stated, str):
        raise FieldError(f"{where}: the axis '{name}' should be a list of values, not {shown(stated)}.")
    elif name == SWITCH:
        values = tuple(_switches(str(text), where) for text in stated)
    elif name in FIELDS:
        values = tuple(_value(_label(value), beside({name: value}, file)) for value in stated)
    elif name in options:
        values = tuple(Value(_label(value), options={name: value}) for value in stated)
    else:
        raise UnknownKeyError(f"{where}: axes", name, known=(*FIELDS, SWITCH, *options))
    if not values:
        raise FieldError(f"{where}: the axis '{name}' has no values.")
    if len({value.label for value in values}) < len(values):
        raise FieldError(f"{where}: the axis '{name}' names a value twice.")
    return Axis(name, values)


def _run_of(cell: "Cell") -> Run | str:
    """Return the run of a cell, or the sentence that says why there is none."""
    fields = _merged(cell.part.base, [value.fields for value in cell.values])
    largest = fields.get(SIZE) == LARGEST
    if largest:
        fields[SIZE] = 1
    try:
        with cell.part.reading():
            run = Run.from_fields(fields)
            run.check_names()
            for name in cell.switches:
                run = _switched(run, name)
            return _filled(run) if largest else run
    except FineGaugeError as error:
        return str(error)


def _switched(run: Run, name: str) -> Run:
    switch = switch_named(name)
    assert switch is not None, name  # `_switches` has checked it
    changes = switch.change(run)
    if isinstance(changes, str):
        raise FieldError(f"{name}: {changes}.")
    return run.replace(**changes)


def _filled(run: Run) -> Run:
    size = max_micro_batch_size(run, needed).value
    if not size:
        raise FieldError(f"not even micro_batch_size=1 fits on {run.gpu}.")
    return run.replace(micro_batch_size=size)


def _switches(text: str, where: str) -> Value:
    names = []
    for name in map(str.strip, text.split("+")):
        if name in ("", BASELINE):
            continue
        if (switch := switch_named(name)) is None:
            raise UnknownNameError(f"switch in {where}", name, known=(*known_switches(), BASELINE))
        names.append(switch.name)
    return Value(text, {}, tuple(names))


def _fields(label: Any, fields: Any, where: str, file: str, options: Collection[str]) -> Value:
    if fields is None:
        return Value(str(label))
    if not isinstance(fields, Mapping):
        raise FieldError(f"{where}: '{label}' should have fields with values, not {shown(fields)}.")
    for key in fields:
        if key not in FIELDS and key not in options:
            raise UnknownKeyError(f"{where}: {label}", str(key), known=(*FIELDS, *options))
    own, rest = ({k: v for k, v in fields.items() if (k in FIELDS) == known} for known in (True, False))
    return _value(str(label), beside(own, file), rest)


def _label(value: Any) -> str:
    if isinstance(value, list):
        return "+".join(map(str, value)) or "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


PREDICTED, MEASURED = "predicted", "measured"
KEY_DIGITS = 20
LATELY = 64  # cells whose runs are at hand; a run is large, and a sweep has 100,000


ONLY_TRUSTED = "is taken only from a file that you trust{}: read the file, then add --trust."


def reading_in(folder: str) -> AbstractContextManager[None]:
    """Return the scope of a sweep from anybody: its folder is read, and what every server may read."""
    refusal = f"is outside the sweep's folder, which {ONLY_TRUSTED.format('')}"
    return reading_only(folder, *user_catalogue(), cache_path(), refusal=refusal)


class Part(NamedTuple):
    """One grid of runs, predicted or measured."""

    estimator: str
    base: Mapping[str, Any]
    settled: Mapping[str, Any]  # `settled` of the base
    axes: tuple[Axis, ...]
    repetitions: int
    options: "Options | None"
    calibration: str  # that predictions rest on
    folder: str  # the only one whose files are read; "": a trusted sweep's may lie anywhere

    def reading(self) -> AbstractContextManager[None]:
        """Return the scope in which files are read, those that a file names among them."""
        return reading_in(self.folder) if self.folder else nullcontext()

    @property
    def num_cells(self) -> int:
        """Return the cells of the grid, equal ones included."""
        return self.repetitions * prod(len(axis.values) for axis in self.axes)


class Cell:
    """One run of a campaign, to be predicted or measured; the run is made when it is asked for."""

    __slots__ = ("key", "options", "part", "repetition", "values")

    def __init__(
        self, part: Part, values: tuple[Value, ...], repetition: int = 0, options: "Options | None" = None
    ) -> None:
        """Take a point of a grid: a value of each axis."""
        self.part, self.values, self.repetition, self.options = part, values, repetition, options
        self.key = sha256(f"{self.content()}#{repetition}".encode()).hexdigest()[:KEY_DIGITS]

    def content(self, without: Collection[str] = ()) -> str:
        """Return the run, options and estimator as text, equal for equal cells; without some fields."""
        content = {
            name: value
            for name, value in sorted(_merged(self.part.settled, [v.settled for v in self.values]).items())
            if name not in without and value is not None and value != FIELDS[name].default
        }
        if self.options is not None:
            usual = self.options._field_defaults
            content |= {f"-{n}": v for n, v in self.options._asdict().items() if v != usual[n]}
        return repr((self.estimator, self.part.calibration, self.switches, content))

    def size(self, name: str) -> float:
        """Return the number that is stated for a field, or its default; 0 where it is none."""
        value = _merged(self.part.settled, [v.settled for v in self.values]).get(name)
        value = FIELDS[name].default if value is None else value
        return float(value) if isinstance(value, int | float) else 0.0

    @property
    def estimator(self) -> str:
        """Return predicted or measured."""
        return self.part.estimator

    @property
    def labels(self) -> dict[str, str]:
        """Return the value of each axis by its label, in the order of the sweep."""
        return {axis.name: value.label for axis, value in zip(self.part.axes, self.values, strict=True)}

    @property
    def switches(self) -> list[str]:
        """Return the changes that are made once every field is set."""
        return [name for value in self.values for name in value.switches]

    @property
    def run(self) -> Run | None:
        """Return the run; None where the values of the axes make none."""
        found = _lately(self)
        return found if isinstance(found, Run) else None

    @property
    def refusal(self) -> str:
        """Return why the values make no run."""
        found = _lately(self)
        return found if isinstance(found, str) else ""

    @property
    def title(self) -> str:
        """Return the cell in a few words."""
        words = ", ".join(self.labels.values()) or "the run"
        again = f", repetition {self.repetition + 1}" if self.repetition else ""
        return f"{words} ({self.estimator}{again})"


def _merged(base: Mapping[str, Any], values: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    fields = dict(base)
    for one in values:
        fields |= one
    return fields


_lately = lru_cache(LATELY)(_run_of)


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
