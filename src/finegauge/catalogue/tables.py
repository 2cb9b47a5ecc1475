"""The shipped tables, and the user's own rows beside them, each as the NamedTuple that describes it.

A shipped table is comma-separated text with a header and no quoting (a test holds every row to that),
so that a command which needs one row starts without the csv module. The tables of measured runs
are quoted where they must be; `formats.measurement_tables` reads them as it reads a user's.

The user's rows lie in `$FINEGAUGE_HOME/<kind>/` (`~/.config/finegauge/<kind>/` where the variable is not
set), `<kind>` being gpus, offers, models or datasets: YAML or JSON files that hold one row or a list of rows,
whose keys are the field names of the shipped rows.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, TypeVar

from finegauge.documents import figure, parse_json, read_document
from finegauge.errors import FieldError, FileFormatError, UnknownKeyError, shown

_DATA = os.path.join(os.path.dirname(__file__), "data")
Row = TypeVar("Row")


def read_shipped(filename: str) -> str:
    """Return the text of the shipped file `filename`."""
    with open(os.path.join(_DATA, filename), encoding="utf-8") as file:
        return file.read()


@cache
def lines_of(filename: str) -> tuple[str, ...]:
    """Return the lines of the shipped file `filename`."""
    return tuple(read_shipped(filename).splitlines())


def line_of(filename: str, key: str, *, before: str, fold: Callable[[str], str]) -> str | None:
    """Return the line of a shipped file whose name or alias is `key`; they stand `before` that field.

    `fold` says what of a spelling does not count. No line is decoded: most commands need one or two rows.
    """
    quoted, end = f'"{key}"', f'"{before}"'
    for line in lines_of(filename):
        if quoted in fold(line.partition(end)[0]):
            return line
    return None


@cache
def refused(kind: str) -> tuple[Mapping[str, Any], ...]:
    """Return the rows of what is not predicted: of a `model`, a `gpu` or another program's `file`."""
    rows = (parse_json(line, "refused.jsonl") for line in lines_of("refused.jsonl"))
    return tuple(row for row in rows if row["kind"] == kind)


def refusal(kind: str, name: str, owner: str = "") -> str:
    """Return why the model or gpu of that folded name is not predicted; "" of any other."""
    rows = (row for row in refused(kind) if owner in row.get("owners", [owner]))
    return next((str(row["reason"]) for row in rows if re.fullmatch(row["pattern"], name)), "")


def measurement_tables() -> list[str]:
    """Return the paths of the shipped tables of measured runs that constants are fitted to, by name."""
    return _tables_in(os.path.join(_DATA, "measurements"))


def held_out_tables() -> list[str]:
    """Return the paths of the shipped tables of measured runs that nothing was fitted to, sorted by name."""
    return _tables_in(os.path.join(_DATA, "measurements", "held_out"))


def _tables_in(folder: str) -> list[str]:
    return sorted(os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".csv"))


def table(filename: str) -> list[dict[str, str]]:
    """Return the rows of the shipped table `filename`, by column."""
    return parse(read_shipped(filename))


def parse(text: str, *, column: str = "", value: str = "") -> list[dict[str, str]]:
    """Return the rows of an unquoted table; with `column`, only those that hold `value` there."""
    header, *lines = text.splitlines()
    columns = header.split(",")
    place = columns.index(column) if column else -1
    rows = []
    for line in lines:
        if line and value in line:
            cells = line.split(",")
            if not column or cells[place] == value:
                rows.append(dict(zip(columns, cells, strict=True)))
    return rows


def filled(kind: Callable[..., Row], cells: Mapping[str, str], **others: Any) -> Row:
    """Return a row as the NamedTuple `kind`, each cell in its field's type, an empty one as None.

    A column that is no field is left out; `others` are fields that are not one cell.
    """
    for name, type_ in kind.__annotations__.items():
        if name in cells and name not in others:
            others[name] = _CELLS[type_](cells[name])
    return kind(**others)


@cache
def rows_as(kind: Callable[..., Row], filename: str) -> tuple[Row, ...]:
    """Return the rows of the shipped table `filename`, each as the NamedTuple `kind`."""
    return tuple([filled(kind, row) for row in table(filename)])


def _whole(cell: str) -> int | None:
    return int(float(cell)) if cell else None


_CELLS: dict[Any, Callable[[str], Any]] = {
    str: str,
    float: float,
    int: _whole,
    bool: bool,
    float | None: lambda cell: float(cell) if cell else None,
    int | None: _whole,
    bool | None: {"yes": True, "no": False}.get,
    tuple[str, ...]: lambda cell: tuple(filter(None, cell.split(";"))),
}


def user_rows(folder: str, kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (path, row) for every row in the files of `folder`/`kind`, in the order of file names."""
    directory = os.path.join(folder, kind)
    if os.path.isdir(directory):
        for filename in sorted(os.listdir(directory)):
            if filename.endswith((".yaml", ".yml", ".json")):
                yield from rows_of(os.path.join(directory, filename))


def rows_of(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (path, row) for every row of one file: a mapping, or a list of mappings."""
    document = read_document(path)
    for row in document if isinstance(document, list) else [document]:
        if not isinstance(row, dict) or not all(isinstance(key, str) for key in row):
            raise FileFormatError(f"{path}: expected one row or a list of rows, each 'field: value' lines.")
        yield path, row


def checked_row(
    row: Mapping[str, Any],
    where: str,
    types: Mapping[str, Any],
    *,
    required: tuple[str, ...],
    zero: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Return a user's row with each value in the type of its field; what is not given is left out.

    `where` is the file, for messages; `zero` names the numbers that may be 0.

    Raises: UnknownKeyError, FieldError.
    """
    for key in row:
        if key not in types:
            raise UnknownKeyError(where, key, known=types)
    for key in required:
        if row.get(key) is None:
            raise FieldError(f"{where}: '{key}' is missing; a row needs {', '.join(required)}.")
    given = {key: value for key, value in row.items() if value is not None}
    for key, value in given.items():
        given[key] = _checked(value, types[key], f"{where}: '{key}'", zero=key in zero)
    return given


def _checked(value: Any, type_: Any, what: str, *, zero: bool) -> Any:
    if type_ is str:
        if isinstance(value, dict | list):
            raise FieldError(f"{what} should be text, not {shown(value)}.")
        return str(value)
    if type_ == tuple[str, ...]:
        names = [value] if isinstance(value, str) else value
        if not isinstance(names, list) or not all(isinstance(name, str | int | float) for name in names):
            raise FieldError(f"{what} should be a list of names, not {shown(value)}.")
        return tuple(map(str, names))
    return _NUMBERS[type_](positive(value, what, zero=zero)) if type_ in _NUMBERS else value


_NUMBERS: dict[Any, Callable[[float], float]] = {int: int, float: float, int | None: int, float | None: float}


def positive(value: Any, what: str, *, zero: bool = False) -> float:
    """Return `value` as a float, refusing text, booleans, negative and absurd numbers.

    YAML reads 1e15 (no dot, no sign) as text: text that spells a number is a number here.
    """
    try:
        number = figure(value)
    except ValueError:
        number = -1.0
    if number < 0 or (number == 0 and not zero):
        floor = "zero or more" if zero else "above zero"
        raise FieldError(f"{what} should be a number {floor}, not {shown(value)}.")
    return number
