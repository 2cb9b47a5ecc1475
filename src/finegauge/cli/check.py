"""`finegauge check`: will it fit, as an exit code for scripts, job queues, commits and CI."""

import os
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from finegauge.cli.question import alongside_options, runs, say
from finegauge.errors import EXIT_BAD_INPUT, EXIT_DONE, FineGaugeError, InputError

if TYPE_CHECKING:
    from finegauge.plan.estimate import Estimate


class Checked(NamedTuple):
    """What became of one file."""

    file: str
    estimates: "tuple[Estimate, ...]" = ()  # one per GPU
    skipped: str = ""  # why nothing was checked
    error: str = ""  # what is wrong with it

    def exit_code(self, *, allow_risky: bool) -> int:
        """Return the exit code of this file alone."""
        from finegauge.plan.verdict import EXIT_CODES, RISKY

        if self.error:
            return EXIT_BAD_INPUT
        passed = (RISKY,) if allow_risky else ()
        codes = [EXIT_CODES[one.verdict] for one in self.estimates if one.verdict not in passed]
        return max(codes, default=EXIT_DONE)


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="RUN... [KEY=VALUE]...")
@alongside_options
@click.option(
    "--gpu", "gpus", metavar="NAME,NAME", multiple=True, help="GPUs to ask about; 'finegauge gpus'."
)
@click.option("--skip-others", is_flag=True, help="Pass by files that describe no training, and say so.")
@click.option("--allow-risky", is_flag=True, help="Let risky runs pass: exit code 0.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")
@click.pass_context
def check(
    ctx: click.Context, words: tuple[str, ...], gpus: tuple[str, ...], *,
    skip_others: bool, allow_risky: bool, as_json: bool,
) -> None:  # fmt: skip
    """Say whether each RUN fits its GPU: exit code 0 fits, 10 risky, 20 will not fit.

    Risky is a probability of running out of memory from 5 % on, will not fit from 50 % on. Of several GPUs
    and files, the worst decides; a file that is wrong is told, the others are checked all the same, and the
    exit code is 64.
    """
    files = [word for word in words if "=" not in word or os.path.exists(word)]
    overrides = tuple(word for word in words if word not in files)
    if not files:
        raise InputError("No file is named; 'finegauge check train.yaml --gpu H100' says whether it fits.")
    if len(files) == 1 and not skip_others:
        checked = [Checked(files[0], tuple(_estimates(files[0], overrides, gpus)))]
        _show_one(checked[0], as_json=as_json)
    else:
        checked = [_checked(file, overrides, gpus, skip_others=skip_others) for file in files]
        _show_all(checked, as_json=as_json)
    ctx.exit(max(one.exit_code(allow_risky=allow_risky) for one in checked))


def _estimates(file: str, overrides: tuple[str, ...], gpus: tuple[str, ...]) -> "list[Estimate]":
    """Return the answer about one file, once per GPU."""
    from finegauge.plan.estimate import estimate

    return [estimate(run) for run in runs(file, overrides, gpus, common=False)]


def _checked(file: str, overrides: tuple[str, ...], gpus: tuple[str, ...], *, skip_others: bool) -> Checked:
    """Return what becomes of one file among several."""
    from finegauge.workload.readers.reading import no_training

    try:
        if skip_others and os.path.exists(file) and (why := no_training(file)):
            return Checked(file, skipped=why)
        return Checked(file, tuple(_estimates(file, overrides, gpus)))
    except FineGaugeError as error:
        return Checked(file, error=str(error))


def _show_one(checked: Checked, *, as_json: bool) -> None:
    """Print the answer about the only file, as the other commands print theirs."""
    if as_json:
        from finegauge.report.answers import check_answer

        say(check_answer(checked.estimates))
    else:
        from finegauge.report.estimate import one_verdict

        say(one_verdict(one) for one in checked.estimates)


def _show_all(checked: list[Checked], *, as_json: bool) -> None:
    """Print the answers about several files, each under its name; what is wrong goes to stderr."""
    if as_json:
        say(_document(checked))
        return
    from finegauge.report.estimate import one_verdict

    for one in checked:
        if one.error:
            click.echo(f"Error: {one.file}: {one.error}", err=True)
        elif one.skipped:
            say(f"{one.file}: skipped: {one.skipped}")
        else:
            say(f"{one.file}: {one_verdict(estimate)}" for estimate in one.estimates)


def _document(checked: list[Checked]) -> str:
    """Return the whole JSON text about several files."""
    import json

    from finegauge import __version__
    from finegauge.report.json_form import SCHEMA_VERSION

    whole = {
        "schema_version": SCHEMA_VERSION,
        "command": "check",
        "finegauge_version": __version__,
        "files": [_file_json(one) for one in checked],
    }
    return json.dumps(whole, indent=2, ensure_ascii=False, allow_nan=False)


def _file_json(checked: Checked) -> dict[str, Any]:
    """Return one file's results, or why there are none."""
    from finegauge.report.estimate import one_verdict
    from finegauge.report.json_form import verdict_json
    from finegauge.report.terminal import unpainted

    results = [verdict_json(one) | {"sentence": unpainted(one_verdict(one))} for one in checked.estimates]
    warnings = list(checked.estimates[0].run.warnings) if checked.estimates else []
    return {
        "file": checked.file,
        "skipped": checked.skipped or None,
        "error": checked.error or None,
        "warnings": warnings,
        "results": results,
    }
