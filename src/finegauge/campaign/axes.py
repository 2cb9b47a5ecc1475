"""The axes of a sweep and its cells.

An axis named after a field of Run lists its values. `switch` lists changes by the names that
`finegauge whatif` has for them, joined by + where several belong together; baseline changes
nothing. An axis of any other name has named values, each of which sets several fields; named
values of `switch` with nothing behind them are those changes.

What is measured has axes of how it is measured, too: an option (`requests_per_s: [1, 2, 4]`), or
named values with options among their fields (`engine: {here: , vllm: {endpoint: URL}}`).
"""

import json
from collections.abc import Collection, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

from finegauge.errors import FieldError, FineGaugeError, UnknownKeyError, UnknownNameError, shown
from finegauge.formats.reading import beside
from finegauge.run.run import FIELDS, Run
from finegauge.store.document import plain

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
        values = tuple(Value(_label(value), beside({name: value}, file)) for value in stated)
    elif name in options:
        values = tuple(Value(_label(value), options={name: value}) for value in stated)
    else:
        raise UnknownKeyError(f"{where}: axes", name, known=(*FIELDS, SWITCH, *options))
    if not values:
        raise FieldError(f"{where}: the axis '{name}' has no values.")
    if len({value.label for value in values}) < len(values):
        raise FieldError(f"{where}: the axis '{name}' names a value twice.")
    return Axis(name, values)


def run_at(base: Mapping[str, Any], values: Sequence[Value], where: str) -> Run | str:
    """Return the run at one point of the axes, or the sentence that says why there is none.

    Raises: UnknownKeyError where a field does not exist.
    """
    fields = dict(base)
    for value in values:
        fields |= value.fields
    largest = fields.get(SIZE) == LARGEST
    if largest:
        fields[SIZE] = 1
    try:
        run = Run.from_fields(fields)
        run.check_names()
        for name in (name for value in values for name in value.switches):
            run = _switched(run, name)
        return _filled(run) if largest else run
    except UnknownKeyError:
        raise
    except FineGaugeError as error:
        return str(error)


def _switched(run: Run, name: str) -> Run:
    from finegauge.planning.whatif import switch_named

    switch = switch_named(name)
    assert switch is not None, name  # `_switches` has checked it
    changes = switch.change(run)
    if isinstance(changes, str):
        raise FieldError(f"{name}: {changes}.")
    return run.replace(**changes)


def _filled(run: Run) -> Run:
    from finegauge.planning.capacity import max_micro_batch_size

    size = max_micro_batch_size(run).value
    if not size:
        raise FieldError(f"not even micro_batch_size=1 fits on {run.gpu}.")
    return run.replace(micro_batch_size=size)


def _switches(text: str, where: str) -> Value:
    from finegauge.planning.whatif import known_switches, switch_named

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
    return Value(str(label), beside(own, file), options=rest)


def _label(value: Any) -> str:
    if isinstance(value, list):
        return "+".join(map(str, value)) or "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


PREDICTED, MEASURED = "predicted", "measured"
KEY_DIGITS = 20


class Cell(NamedTuple):
    """One run of a campaign, to be predicted or measured."""

    labels: Mapping[str, str]  # axis: value, in the order of the sweep
    estimator: str  # predicted or measured
    run: "Run | None"  # None where the values of the axes make no run
    refusal: str = ""  # why they make none
    repetition: int = 0
    options: "Options | None" = None  # of a measurement
    calibration: str = ""  # that a prediction rests on

    @property
    def key(self) -> str:
        """Return a hash of the cell's content."""
        content: dict[str, Any] = {"estimator": self.estimator, "repetition": self.repetition}
        if self.run is None:
            content |= {"labels": dict(self.labels), "refusal": self.refusal}
        else:
            content["run"] = plain(self.run.fields())
        if self.options is not None:
            content["options"] = plain(self.options._asdict())
        if self.calibration:
            content["calibration"] = self.calibration
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return sha256(text.encode()).hexdigest()[:KEY_DIGITS]

    @property
    def title(self) -> str:
        """Return the cell in a few words."""
        words = ", ".join(self.labels.values()) or "the run"
        again = f", repetition {self.repetition + 1}" if self.repetition else ""
        return f"{words} ({self.estimator}{again})"
