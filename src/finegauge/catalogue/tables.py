"""Where the shipped tables lie, and how to read one quickly.

Each table is comma-separated text with a header and no quoting (a test holds every row to that),
so that a command which needs one row starts without the csv module. The tables of measured runs
are quoted where they must be; `workload.readers.measurement_table` reads them as it reads a user's.
"""

import os
from collections.abc import Iterator, Mapping
from typing import Any

from finegauge.errors import FieldError, FileFormatError, InputError, UnknownKeyError, shown

_DATA = os.path.join(os.path.dirname(__file__), "data")


def read_text(filename: str) -> str:
    """Return the text of the shipped file `filename`."""
    with open(os.path.join(_DATA, filename), encoding="utf-8") as file:
        return file.read()


def measurement_tables() -> list[str]:
    """Return the paths of the shipped tables of measured runs, sorted by name."""
    folder = os.path.join(_DATA, "measurements")
    return sorted(os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".csv"))


def table(filename: str) -> list[dict[str, str]]:
    """Return the rows of the shipped table `filename`, by column."""
    return parse(read_text(filename))


def parse(text: str, *, column: str = "", value: str = "") -> list[dict[str, str]]:
    """Return the rows of an unquoted table; with `column`, only those that hold `value` there."""
    header, *lines = text.splitlines()
    columns = header.split(",")
    if not column:
        return [dict(zip(columns, line.split(","), strict=True)) for line in lines if line]
    place = columns.index(column)
    cells = (line.split(",") for line in lines if value in line)
    return [dict(zip(columns, row, strict=True)) for row in cells if row[place] == value]


def optional(cell: str) -> float | None:
    """Return the number in `cell`, or None where the source prints none (never zero)."""
    return float(cell) if cell else None


def optional_int(cell: str) -> int | None:
    """Return the whole number in `cell`, or None where the source prints none."""
    return int(float(cell)) if cell else None


MAX_FILE_BYTES = 5_000_000
MAX_NUMBER = 1e30
_SUFFIXES = (".yaml", ".yml", ".json")


def home() -> str:
    """Return the folder of the user's own catalogue files; it need not exist."""
    return os.environ.get("FINEGAUGE_HOME") or os.path.join(os.path.expanduser("~"), ".config", "finegauge")


def user_rows(folder: str, kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (path, row) for every row in the files of `folder`/`kind`, in the order of file names."""
    directory = os.path.join(folder, kind)
    if not os.path.isdir(directory):
        return
    for filename in sorted(os.listdir(directory)):
        if filename.endswith(_SUFFIXES):
            yield from rows_of(os.path.join(directory, filename))


def rows_of(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (path, row) for every row of one file: a mapping, or a list of mappings."""
    document = read_document(path)
    for row in document if isinstance(document, list) else [document]:
        if not isinstance(row, dict) or not all(isinstance(key, str) for key in row):
            raise FileFormatError(f"{path}: expected one row or a list of rows, each 'field: value' lines.")
        yield path, row


def write_document(content: Mapping[str, Any], path: str) -> None:
    """Write `content` as JSON, whole or not at all; its folder is made where it is missing.

    Raises: InputError if the file cannot be written.
    """
    import json

    unfinished = f"{path}.{os.getpid()}.part"
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with open(unfinished, "w", encoding="utf-8") as file:
            json.dump(content, file, indent=2, ensure_ascii=False, allow_nan=False)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except OSError as error:
        raise InputError(f"Cannot write {shown(path)}: {error.strerror or error}.") from None


def read_document(path: str) -> Any:
    """Return what a YAML or JSON file holds.

    Raises: FileFormatError if it is missing, too large, not text, or not YAML or JSON.
    """
    text = read_bounded(path)
    try:
        if path.endswith(".json"):
            import json

            return json.loads(text)
        return _safe_yaml(text, path)
    except (ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0] if str(error) else "nested too deeply"
        raise FileFormatError(f"{path} cannot be read: {reason}.") from None


def read_bounded(path: str) -> str:
    """Return the text of a file of at most 5 MB."""
    try:
        if os.path.exists(path) and not os.path.isfile(path):
            raise FileFormatError(f"{shown(path)} is not a file of YAML or JSON.")
        size = os.path.getsize(path)
        if size > MAX_FILE_BYTES:
            raise FileFormatError(
                f"{path} holds {size / 1e6:.1f} MB; FineGauge reads at most {MAX_FILE_BYTES / 1e6:.0f} MB."
            )
        with open(path, encoding="utf-8") as file:
            return file.read(MAX_FILE_BYTES)
    except OSError as error:
        raise InputError(f"Cannot read {shown(path)}: {error.strerror or error}.") from None
    except UnicodeDecodeError:
        raise FileFormatError(f"{path} is not text; expected UTF-8 YAML or JSON.") from None


def _safe_yaml(text: str, path: str) -> Any:
    import yaml

    try:
        for token in yaml.scan(text, Loader=yaml.SafeLoader):
            if isinstance(token, yaml.AnchorToken | yaml.AliasToken):
                raise FileFormatError(f"{path}: YAML anchors and aliases are not read here; write rows out.")
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        reason = getattr(error, "problem", None) or "not valid YAML"
        raise FileFormatError(f"{path}{line}: {reason}.") from None


def checked_row(
    row: Mapping[str, Any], where: str, *, kinds: Mapping[str, str], required: tuple[str, ...]
) -> dict[str, Any]:
    """Return `row` with each value as its field's kind.

    Args:
        row: One row of a user's file.
        where: The file, for messages.
        kinds: For each field that exists: "text", "names", "positive", "number" or "any".
        required: Fields that must be there.

    Raises: UnknownKeyError, FieldError.
    """
    for key in row:
        if key not in kinds:
            raise UnknownKeyError(where, key, known=kinds)
    for key in required:
        if row.get(key) is None:
            raise FieldError(f"{where}: '{key}' is missing; a row needs {', '.join(required)}.")
    return {key: _as_kind(value, kinds[key], key, where) for key, value in row.items() if value is not None}


def _as_kind(value: Any, kind: str, key: str, where: str) -> Any:
    if kind == "text":
        if isinstance(value, dict | list):
            raise FieldError(f"{where}: '{key}' should be text, not {shown(value)}.")
        return str(value)
    if kind == "names":
        names = [value] if isinstance(value, str) else value
        if not isinstance(names, list) or not all(isinstance(name, str | int | float) for name in names):
            raise FieldError(f"{where}: '{key}' should be a list of names, not {shown(value)}.")
        return tuple(str(name) for name in names)
    if kind in {"positive", "number"}:
        return positive(value, f"{where}: '{key}'", zero=kind == "number")
    return value


def positive(value: Any, what: str, *, zero: bool = False) -> float:
    """Return `value` as a float, refusing text, booleans, negative and absurd numbers.

    YAML reads 1e15 (no dot, no sign) as text: text that spells a number is a number here.
    """
    try:
        number = float(value) if not isinstance(value, bool) else float("nan")
    except (TypeError, ValueError):
        number = float("nan")
    if not (0 <= number < MAX_NUMBER) or (number == 0 and not zero):
        floor = "zero or more" if zero else "above zero"
        raise FieldError(f"{what} should be a number {floor}, not {shown(value)}.")
    return number
