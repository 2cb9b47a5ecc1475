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
@click.option("--here", is_flag=True, help="Measure unseen configurations on this machine instead of tables.")
@click.option(
    "--device", type=click.Choice(["cpu", "cuda"]), default="cpu", help="With --here: what to run on."
)
@click.option("--num", type=click.IntRange(1, 1000), default=20, help="With --here: how many configurations.")
@click.option("--seed", type=click.IntRange(0), default=0, help="With --here: what they are drawn from.")
@click.option("--steps", type=click.IntRange(3), default=10, help="With --here: measured steps of each.")
@click.option("--threads", type=click.IntRange(0), default=0, help="With --here: of the host's arithmetic.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")
@click.pass_context
def validate(
    ctx: click.Context,
    tables: tuple[str, ...],
    names: tuple[str, ...],
    *,
    here: bool,
    device: str,
    num: int,
    seed: int,
    steps: int,
    threads: int,
    as_json: bool,
) -> None:
    """Hold predictions against measured runs: error by source, GPU, method and family, coverage, worst rows.

    A folder means the tables in it. With no TABLE, it takes the published tables that ship with
    FineGauge; the shipped constants were fitted to their times, and docs/accuracy.md says how wrong they
    are on tables left out of the fit.

    With --here, no table is read: this machine's operators are timed once (as 'finegauge micro' does),
    then tiny configurations drawn from the seed are predicted from them and measured. The exit code is 0
    if the medians are within 15 % of the step time and 3 % of the peak memory, else 10.

    A row that cannot be answered is counted and named. The measured columns are never shown to the
    predictor. docs/measurement-tables.md describes the columns.
    """
    if here:
        if tables or names:
            raise click.UsageError(
                "--here draws its own configurations; leave out tables and --against.", ctx
            )
        from finegauge.cli.here import validate_on

        ctx.exit(validate_on(device, num=num, seed=seed, steps=steps, threads=threads, as_json=as_json))
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
