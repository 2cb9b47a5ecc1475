"""`finegauge calibrate`: fit the constants of predictions, or a closed-form law, to measured runs."""

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from finegauge.cli.question import say
from finegauge.errors import InputError, UnsupportedError, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from finegauge.laws.law import Law
    from finegauge.laws.table import SweepTable


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
    from finegauge.calibrate.calibrate import calibrate as fitted
    from finegauge.calibrate.document import document
    from finegauge.catalogue.documents import write_document
    from finegauge.predict.calibrated import current
    from finegauge.predict.calibration import DATASHEET
    from finegauge.workload.readers.measurement_table import read_table, tables_in

    rows = [row for table in tables_in(tables) for row in read_table(table)]
    start = DATASHEET if from_datasheet else current()
    sources = len({row.source for row in rows})
    with _progress(sources + 1) as tick:
        result = fitted(rows, start, name, tick)
    content = document(result, date=date)
    if output is not None:
        write_document(content, output)
    if as_json:
        import json

        say(json.dumps(content, allow_nan=False))
        return
    from finegauge.report.calibration import calibration_lines

    say(calibration_lines(content, output))


def _check_scipy() -> None:
    """Raise UnsupportedError where scipy is not installed."""
    from importlib.util import find_spec

    if find_spec("scipy") is None:
        raise UnsupportedError(
            "Fitting constants needs scipy: pip install 'finegauge[calibrate]'. Predicting works without it."
        )


@contextmanager
def _progress(total: int) -> "Iterator[Callable[[], None]]":
    """Show a progress bar while the constants are fitted, where stderr is a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("Fitting, and leaving each source out", total=total)
        yield lambda: bar.advance(task)


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
        from finegauge.report.charts import check_matplotlib

        check_matplotlib()
    from finegauge.laws.fit import fit
    from finegauge.laws.forms import form
    from finegauge.laws.shelf import check_name, store
    from finegauge.laws.table import read_sweep
    from finegauge.report.law import law_json, law_lines

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
    from finegauge.report.charts import save_charts
    from finegauge.report.law import law_panels

    try:
        os.makedirs(folder, exist_ok=True)
        paths = save_charts(
            law_panels(law, sweep), os.path.join(folder, law.name), f"{law.name}: {law.form.equation}"
        )
    except OSError as error:
        raise InputError(f"Cannot write to {shown(folder)}: {error.strerror or error}.") from None
    return tuple(f"drawn as {path}" for path in paths)
