"""`finegauge results`: what campaigns and measurements found, as a table to ask and to export."""

import gc

import click

from finegauge.cli.question import say
from finegauge.errors import InputError


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--where", metavar="SQL", help='Only rows that meet a condition: "seq_len > 512".')
@click.option("--columns", "chosen", metavar="NAME,NAME", help="These columns, in this order.")
@click.option("--sql", metavar="SQL", help='A whole question: "SELECT … FROM results GROUP BY …".')
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="Rows to print.")
@click.option("--export", "output", metavar="FILE", help="Write all rows as .csv or .parquet.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")
def results(
    paths: tuple[str, ...],
    where: str | None,
    chosen: str | None,
    sql: str | None,
    limit: int,
    output: str | None,
    *,
    as_json: bool,
) -> None:
    """Show the results in PATHs: campaign folders, or journals of 'measure --store'.

    They are one table named results, a row per trial that ended, a column per field of the run and per
    fact of its step, in SI units; what is not known is NULL. 'DESCRIBE results' lists the columns.
    """
    from finegauge.report.results import results_json, results_lines, telling
    from finegauge.store.table import ask, export, table_of

    if sql and (where or chosen):
        raise InputError("--sql is a whole question; put the condition and the columns into it.")
    table, quarantined = table_of(paths)
    gc.enable()  # so that DuckDB's own objects go at the end; reading is twice as fast without
    whole = sql is None and chosen is None
    if sql is None:
        sql = f"SELECT {_listed(chosen, table.column_names)} FROM results"
        sql += f" WHERE {where}" if where else ""
    found = ask(table, sql)
    if output:
        export(found, output)
    if as_json:
        say(results_json(found, quarantined))
    else:
        say(results_lines(telling(found) if whole else found, limit, quarantined, output))


def _listed(chosen: str | None, known: list[str]) -> str:
    """Return the columns to select: those asked for, or all."""
    from finegauge.errors import UnknownKeyError

    if chosen is None:
        return "*"
    names = [name.strip() for name in chosen.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise UnknownKeyError("--columns", name, known=known)
    return ", ".join(f'"{name}"' for name in names)
