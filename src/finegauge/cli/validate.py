"""`finegauge validate`: how wrong the predictions are, on the user's own tables or the shipped ones."""

import click

from finegauge.cli.question import say


@click.command()
@click.argument("tables", nargs=-1, metavar="[TABLE.csv]...")
@click.option(
    "--against",
    "names",
    metavar="NAME,NAME",
    multiple=True,
    help="Rivals on the same rows: 6nd, xia2024, llm-analysis, accelerate, deepspeed, or all.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")
def validate(tables: tuple[str, ...], names: tuple[str, ...], *, as_json: bool) -> None:
    """Hold predictions against measured runs: error by source, GPU, method and family, coverage, worst rows.

    A folder means the tables in it. With no TABLE, it takes the published tables that ship with
    FineGauge; the shipped constants were fitted to their times, and docs/accuracy.md says how wrong they
    are on tables left out of the fit.

    A row that cannot be answered is counted and named. The measured columns are never shown to the
    predictor. docs/measurement-tables.md describes the columns.
    """
    from finegauge.catalogue.tables import measurement_tables
    from finegauge.validate.summary import validate as hold
    from finegauge.workload.readers.measurement_table import tables_in

    wanted = [name.strip().lower() for text in names for name in text.split(",") if name.strip()]
    validation = hold(tables_in(tables) or measurement_tables(), against=wanted)
    if as_json:
        import json

        say(json.dumps(validation.to_json(), allow_nan=False))
    else:
        from finegauge.report.validation import validation_lines

        say(validation_lines(validation))
