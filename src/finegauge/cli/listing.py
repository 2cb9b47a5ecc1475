"""How a list of rows and a single row look: a table, a card, or JSON.

Printed for a person: one table that a terminal of 100 columns holds, with a line below that says how
many of how many rows it shows. Printed for a program: JSON in SI units, and nothing else.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import click

if TYPE_CHECKING:
    from rich.console import Console

_WIDTH = 100  # where the output is no terminal

as_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")


class ListByDefault(click.Group):
    """A group whose `list` need not be spelled: `gpus --vendor AMD` is `gpus list --vendor AMD`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put `list` before arguments that start with no command."""
        if not args or (args[0] not in self.commands and args[0] not in {"--help", "-h"}):
            args = ["list", *args]
        return super().parse_args(ctx, args)


def print_json(value: object) -> None:
    """Print `value` as indented JSON."""
    from finegauge.report.catalogue_rows import rows_answer

    click.echo(rows_answer(value))


def _console() -> "Console":
    from rich.console import Console

    plain = Console(highlight=False)
    return plain if plain.is_terminal else Console(highlight=False, width=_WIDTH)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table; ">" before a column's name aligns it right, "~" lets its text wrap."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for column in columns:
        side: Literal["right", "left"] = "right" if column.startswith(">") else "left"
        table.add_column(
            column.lstrip(">~"), justify=side, no_wrap=not column.startswith("~"), overflow="fold"
        )
    for row in rows:
        table.add_row(*map(Text, row))
    _console().print(table)


def print_facts(title: str, rows: Mapping[str, str]) -> None:
    """Print one row whole: its title, then a line per fact."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for label, value in rows.items():
        table.add_row(label, Text(value))
    console = _console()
    console.print(Text(title, style="bold"))
    console.print(table)


def footer(num_shown: int, num_known: int, noun: str, hint: str) -> None:
    """Print how many of the known rows are shown, and where to look next."""
    click.echo(f"{num_shown:,} of {num_known:,} {noun}; {hint}.")


def tera(rate: float | None) -> str:
    """Return a rate in units of 1e12, or "-" if it is not known."""
    return "-" if rate is None else f"{rate / 1e12:.1f}"


def scaled(value: float | None, unit: float) -> str:
    """Return `value` in whole units of `unit`, or "-" if it is not known."""
    return "-" if value is None else f"{value / unit:.0f}"


def number(value: float | None) -> str:
    """Return `value` as a whole number, or "-" if it is not known."""
    return scaled(value, 1.0)
