"""Where the shipped tables lie, and how to read one quickly.

Each table is comma-separated text with a header and no quoting (a test holds every row to that),
so that a command which needs one row starts without the csv module. The tables of measured runs
are quoted where they must be; `workload.readers.measurement_table` reads them as it reads a user's.
"""

import os

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
