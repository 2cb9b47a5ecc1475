"""`finegauge validate`, `calibrate` and `learn`: how wrong predictions are, and what measured runs teach."""

import os
from datetime import date
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from finegauge.cli.run_options import json_option, parted, progress_bar, say, show
from finegauge.errors import EXIT_DONE, InputError, UnsupportedError, shown

if TYPE_CHECKING:
    from finegauge.answers.calibration import LawAnswer

EXIT_DOES_NOT_HOLD = 10


@click.command()
@click.argument("tables", nargs=-1, metavar="[TABLE.csv]...")
@click.option(
    "--against",
    "names",
    metavar="NAME,NAME",
    multiple=True,
    help="Rivals on the same rows: 6nd, xia2024, what is installed (accelerate, unsloth ...), or all.",
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
@json_option
@click.pass_context
def validate(
    ctx: click.Context,
    /,
    tables: tuple[str, ...],
    names: tuple[str, ...],
    asked: str | None,
    *,
    as_json: bool,
    **drawn: Any,
) -> None:
    """Hold predictions against measured runs: error by source, GPU, method and family, coverage, worst rows.

    A folder means the tables in it. With no TABLE, it takes the published tables that ship with
    FineGauge; to some of them the shipped constants were fitted, to those of newer hardware they were not,
    and docs/accuracy.md says how wrong they are on tables left out of the fit.

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
        from finegauge.answers.validation import operators_answer
        from finegauge.render.validation import operators_report

        show("validate --operators", operators_answer(tables), operators_report, as_json=as_json)
        return
    from finegauge.answers.validation import here_answer, validation_answer
    from finegauge.render.validation import here_report, validation_report

    if asked == "here":
        if tables or names:
            raise click.UsageError(
                "--here draws its own configurations; leave out tables and --against.", ctx
            )
        say_on_stderr = partial(say, err=True)
        found = here_answer(
            **drawn, heard=lambda progress: say_on_stderr(f"measuring {progress.what}"), said=say_on_stderr
        )
        show("validate --here", found, here_report, as_json=as_json)
        ctx.exit(EXIT_DONE if found.summary.holds else EXIT_DOES_NOT_HOLD)
    from finegauge.catalogue.tables import held_out_tables, measurement_tables
    from finegauge.formats.measurement_tables import tables_in
    from finegauge.validation.summary import validate as hold

    wanted = [name.strip().lower() for text in names for name in text.split(",") if name.strip()]
    validation = hold(tables_in(tables) or [*measurement_tables(), *held_out_tables()], against=wanted)
    show("validate", validation_answer(validation), validation_report, as_json=as_json)


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
@json_option
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
    if output is not None:
        from finegauge.render.plots.drawing import check_matplotlib

        check_matplotlib("calibrate")
    from finegauge.answers.calibration import law_answer
    from finegauge.laws.fit import fit, read_sweep
    from finegauge.laws.law import check_name, form, store
    from finegauge.render.calibration import law_report

    equation = form(law_name)
    called = check_name(called)
    sweep = read_sweep(tables[0], equation, where)
    law = fit(
        equation, sweep.observations, name=called, table=sweep.name, context=sweep.context, fitted=fitted_on
    )
    answer = law_answer(law, sweep, store(law))
    drawn = _draw(answer, output) if output is not None else ()
    show("calibrate", answer, partial(law_report, drawn=drawn), as_json=as_json)


def _constants(
    tables: tuple[str, ...], name: str, output: str | None, date: str, *, from_datasheet: bool, as_json: bool
) -> None:
    from importlib.util import find_spec

    if find_spec("scipy") is None:
        raise UnsupportedError(
            "Fitting constants needs scipy: pip install 'finegauge[calibrate]'. Predicting works without it."
        )
    from finegauge.answers.calibration import calibration_answer
    from finegauge.calibration import calibrate as fitted
    from finegauge.documents import write_document
    from finegauge.formats.measurement_tables import read_table, tables_in
    from finegauge.prediction.calibration import DATASHEET, SCHEMA_VERSION, current
    from finegauge.render.calibration import calibration_report
    from finegauge.render.json import encoded

    rows = [row for table in tables_in(tables) for row in read_table(table)]
    start = DATASHEET if from_datasheet else current()
    with progress_bar("fitting, and leaving each source out") as heard:
        answer = calibration_answer(fitted(rows, start, name, heard), date=date)
    if output is not None:
        write_document({"schema_version": SCHEMA_VERSION, **encoded(answer)}, output)
    show("calibrate", answer, partial(calibration_report, path=output), as_json=as_json)


def _day(text: str | None) -> str:
    try:
        return (date.fromisoformat(text) if text else date.today()).isoformat()
    except ValueError:
        raise InputError(f"--date={shown(text)} is no day; write it as {date.today().isoformat()}.") from None


def _draw(answer: "LawAnswer", folder: str) -> tuple[str, ...]:
    from finegauge.render.calibration import law_panels
    from finegauge.render.plots.drawing import save_charts

    law = answer.stored.law
    return save_charts(law_panels(answer), os.path.join(folder, law.name), f"{law.name}: {law.form.equation}")


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="PATH... [KEY=VALUE]...")
@click.option(
    "--gpu", default="", metavar="NAME", help="What they ran on, where their logs do not say; here."
)
@click.option(
    "--row", "as_rows", is_flag=True, help="Print the runs as rows to share, without names or paths."
)
@click.option("-o", "--output", metavar="FILE", help="Write the calibration with what was learned.")
@json_option
def learn(words: tuple[str, ...], *, gpu: str, as_rows: bool, output: str | None, as_json: bool) -> None:
    """Learn from finished trainings how fast this machine and its trainers are.

    PATH is an output folder (trainer_state.json with training_args.bin or the training file), a folder of
    TensorBoard, of Weights & Biases (wandb/offline-run-...) or of MLflow (mlruns), logs of torchtune,
    LLaMA-Factory or ms-swift, a folder of any of these, or a CSV of rows. Three constants are learned for
    each GPU and framework, and used only where they predict left-out runs a quarter better. Use the file of
    -o by FINEGAUGE_CALIBRATION=FILE. Nothing is run, nothing sent.
    """
    from finegauge.answers.calibration import learned_from, read_finished
    from finegauge.documents import read_document, write_document
    from finegauge.prediction.calibration import current, in_force
    from finegauge.render.calibration import learn_report
    from finegauge.render.json import encoded

    paths, overrides = parted(words)
    if not paths:
        raise InputError(
            "No PATH is named; 'finegauge learn OUTPUT_DIR --gpu NAME' reads a finished training."
        )
    found = read_finished(paths, overrides, gpu)
    if as_rows:
        from finegauge.formats.measurement_tables import table_of

        say(table_of([row for row, _ in found]).rstrip("\n"))
        return
    answer, calibration = learned_from(found, current())
    if output is not None and any(one.use == "used" for one in answer.learned):
        write_document({**read_document(in_force()), "learned": encoded(calibration.learned)}, output)
        answer = answer._replace(stored=output)
    show("learn", answer, learn_report, as_json=as_json)
