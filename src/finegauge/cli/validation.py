"""`finegauge validate` and `calibrate`: how wrong predictions are, and constants fitted to measured runs."""

import json
import os
from functools import partial
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import click

from finegauge.cli.measurements import check_libraries
from finegauge.cli.progress import progress_bar
from finegauge.cli.run_options import say
from finegauge.errors import InputError, UnsupportedError, shown

if TYPE_CHECKING:
    from finegauge.laws.fit import SweepTable
    from finegauge.laws.law import Law
    from finegauge.progress import Progress


@click.command()
@click.argument("tables", nargs=-1, metavar="[TABLE.csv]...")
@click.option(
    "--against",
    "names",
    metavar="NAME,NAME",
    multiple=True,
    help="Rivals on the same rows: 6nd, xia2024, llm-analysis, accelerate, deepspeed, or all.",
)
@click.option(
    "--operators", "asked", flag_value="operators", help="The tables hold seconds of operators, not of runs."
)
@click.option(
    "--here",
    "asked",
    flag_value="here",
    help="Measure unseen configurations on this machine instead of tables.",
)
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
    asked: str | None,
    *,
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

    With --operators, the tables hold timed products, attention, experts or collectives, told by their columns
    (docs/measurement-tables.md); errors come by GPU, kind and number format.

    A row that cannot be answered is counted and named. The measured columns are never shown to the
    predictor. docs/measurement-tables.md describes the columns.
    """
    if asked == "operators":
        if names or not tables:
            raise click.UsageError("--operators takes tables, and no --against.", ctx)
        _operators(tables, as_json=as_json)
        return
    if asked == "here":
        if tables or names:
            raise click.UsageError(
                "--here draws its own configurations; leave out tables and --against.", ctx
            )

        ctx.exit(validate_on(device, num=num, seed=seed, steps=steps, threads=threads, as_json=as_json))
    from finegauge.catalogue.tables import measurement_tables
    from finegauge.formats.measurement_tables import tables_in
    from finegauge.validation.summary import validate as hold

    wanted = [name.strip().lower() for text in names for name in text.split(",") if name.strip()]
    validation = hold(tables_in(tables) or measurement_tables(), against=wanted)
    if as_json:
        say(json.dumps(validation.to_json(), allow_nan=False))
    else:
        from finegauge.render.validation import validation_lines

        say(validation_lines(validation))


def _operators(tables: tuple[str, ...], *, as_json: bool) -> None:
    """Print how predicted seconds of operators compare with those in the tables."""
    from finegauge.validation.operators import validate_operators

    found = validate_operators(tables)
    if as_json:
        say(json.dumps(found.to_json(), allow_nan=False))
        return
    from finegauge.render.operators import operator_lines

    say(operator_lines(found))


HOLDS, DOES_NOT_HOLD = 0, 10


def validate_on(device: str, *, num: int, seed: int, steps: int, threads: int, as_json: bool) -> int:
    """Print how predictions and measurements of unseen configurations compare; return the exit code.

    Raises: UnsupportedError without PyTorch or the device.
    """
    from finegauge.catalogue.device_profile import device_profile
    from finegauge.measurement.options import Options
    from finegauge.measurement.trial import measure
    from finegauge.render.validation import here_lines
    from finegauge.validation.local_validation import validate_here

    check_libraries()
    path = _profile_path(device, threads)
    options = Options(device=device, steps=steps, threads=device_profile(path).threads)
    with TemporaryDirectory(prefix="finegauge-") as folder:
        found = validate_here(
            path, partial(measure, options=options), folder, num=num, seed=seed, heard=_heard
        )
        if as_json:
            say(json.dumps({"command": "validate --here", **found.to_json()}, allow_nan=False))
        else:
            say(here_lines(found))
    return HOLDS if found.holds else DOES_NOT_HOLD


def _profile_path(device: str, threads: int) -> str:
    """Return the path of this machine's device profile, timed now if there is none for so many threads."""
    from finegauge.catalogue.device_profile import device_profile, own_profile_path, write

    path = own_profile_path(device)
    if not os.path.isfile(path) or (threads and device_profile(path).threads != threads):
        from finegauge.measurement.bench.microbenchmarks import micro

        click.echo("Timing this machine's operators once: about two minutes.", err=True)
        write(micro(device=device, threads=threads), path)
    return path


def _heard(progress: "Progress") -> None:
    """Say on stderr which configuration is measured."""
    click.echo(f"measuring {progress.what}", err=True)


@click.command()
@click.argument("tables", nargs=-1, required=True, metavar="TABLE.csv...")
@click.option("--law", "law_name", metavar="LAW", help="affine, xia-eq2, xia-eq2-printed or xia-eq1.")
@click.option("--name", metavar="NAME", help="What to call the result; the first table's name otherwise.")
@click.option("--where", multiple=True, metavar="COLUMN=VALUE", help="With --law: take only these rows.")
@click.option("--from-datasheet", is_flag=True, help="Refine the datasheet's constants, not those in force.")
@click.option(
    "-o", "--output", metavar="PATH", help="Write the calibration here; with --law: draw into this folder."
)
@click.option("--date", metavar="YYYY-MM-DD", help="What to date the result; today otherwise.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")
def calibrate(
    tables: tuple[str, ...],
    law_name: str | None,
    name: str | None,
    where: tuple[str, ...],
    output: str | None,
    date: str | None,
    *,
    from_datasheet: bool,
    as_json: bool,
) -> None:
    """Fit the physical constants of predictions, or with --law a closed-form law, to measured runs.

    Without --law, TABLE is a measurement table (docs/measurement-tables.md) or a folder of such; the
    constants in force are refined and stay where they are where the tables say little. Use the result
    by FINEGAUGE_CALIBRATION=PATH.

    With --law, TABLE is one sweep with the columns batch, sparsity (optional), and samples_per_s,
    step_time_s or tokens_per_s_per_gpu; for xia-eq1 max_batch, gpu_memory_gb, model_memory_gb,
    seq_len. The law is kept for 'finegauge estimate --law NAME'.
    """
    called = name or os.path.splitext(os.path.basename(os.path.normpath(tables[0])))[0]
    fitted_on = _day(date)
    if law_name is None:
        if where:
            raise InputError("--where chooses rows of a sweep; add --law, or leave it out.")
        _constants(tables, called, output, fitted_on, from_datasheet=from_datasheet, as_json=as_json)
        return
    if len(tables) > 1:
        raise InputError(f"--law fits one sweep; {len(tables)} tables are named. Name one.")
    _law(tables[0], law_name, called, where, output, fitted_on, as_json=as_json)


def _constants(
    tables: tuple[str, ...], name: str, output: str | None, date: str, *, from_datasheet: bool, as_json: bool
) -> None:
    """Fit the physical constants of predictions."""
    _check_scipy()
    from finegauge.calibration.calibrate import calibrate as fitted
    from finegauge.calibration.calibrate import document
    from finegauge.documents import write_document
    from finegauge.formats.measurement_tables import read_table, tables_in
    from finegauge.prediction.calibration import DATASHEET, current

    rows = [row for table in tables_in(tables) for row in read_table(table)]
    start = DATASHEET if from_datasheet else current()
    with progress_bar("fitting, and leaving each source out") as heard:
        result = fitted(rows, start, name, heard)
    content = document(result, date=date)
    if output is not None:
        write_document(content, output)
    if as_json:
        say(json.dumps(content, allow_nan=False))
        return
    from finegauge.render.law import calibration_lines

    say(calibration_lines(content, output))


def _check_scipy() -> None:
    """Raise UnsupportedError where scipy is not installed."""
    from importlib.util import find_spec

    if find_spec("scipy") is None:
        raise UnsupportedError(
            "Fitting constants needs scipy: pip install 'finegauge[calibrate]'. Predicting works without it."
        )


def _law(
    table: str,
    law_name: str,
    name: str,
    where: tuple[str, ...],
    output: str | None,
    date: str,
    *,
    as_json: bool,
) -> None:
    """Fit a closed-form law to a sweep, keep it by name, and draw it."""
    if output is not None:
        from finegauge.render.plots.charts import check_matplotlib

        check_matplotlib()
    from finegauge.laws.fit import fit, read_sweep
    from finegauge.laws.law import form
    from finegauge.laws.registry import check_name, store
    from finegauge.render.law import law_json, law_lines

    equation = form(law_name)
    called = check_name(name)
    sweep = read_sweep(table, equation, where)
    law = fit(equation, sweep.observations, name=called, table=sweep.name, context=sweep.context, fitted=date)
    path = store(law)
    drawn = _draw(law, sweep, output) if output is not None else ()
    say(law_json(law, sweep, path) if as_json else law_lines(law, sweep, (f"stored as {path}", *drawn)))


def _day(text: str | None) -> str:
    """Return the day that `text` names, or today, as ISO 8601 writes it."""
    from datetime import date

    try:
        return (date.fromisoformat(text) if text else date.today()).isoformat()
    except ValueError:
        raise InputError(f"--date={shown(text)} is no day; write it as {date.today().isoformat()}.") from None


def _draw(law: "Law", sweep: "SweepTable", folder: str) -> tuple[str, ...]:
    """Draw fit and residuals, and say into which files."""
    from finegauge.render.law import law_panels
    from finegauge.render.plots.charts import save_charts

    try:
        os.makedirs(folder, exist_ok=True)
        paths = save_charts(
            law_panels(law, sweep), os.path.join(folder, law.name), f"{law.name}: {law.form.equation}"
        )
    except OSError as error:
        raise InputError(f"Cannot write to {shown(folder)}: {error.strerror or error}.") from None
    return tuple(f"drawn as {path}" for path in paths)
