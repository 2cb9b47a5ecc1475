"""`finegauge estimate`, `explain`, `check`, `max-batch`, `max-length`: fit, time, cost, and why."""

import gc
import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from finegauge.cli.measurements import byte_size, progress
from finegauge.cli.run_options import alongside_options, question, runs, say, stated_alongside
from finegauge.errors import EXIT_BAD_INPUT, EXIT_DONE, FineGaugeError, InputError, UnsupportedError
from finegauge.planning.capacity import (
    MAX_MICRO_BATCH_SIZE,
    MAX_SEQ_LEN,
    Capacity,
    max_micro_batch_size,
    max_seq_len,
)

if TYPE_CHECKING:
    from finegauge.measurement.options import Options
    from finegauge.measurement.process import Heard
    from finegauge.planning.estimate import Estimate
    from finegauge.profile import Estimator, Profile
    from finegauge.run.run import Run


@click.command()
@question
@click.option("--at-max-batch", is_flag=True, help="On each GPU, take the largest micro-batch that fits it.")
@click.option(
    "--law", metavar="NAME", help="Take the time from a law of 'finegauge calibrate', or its .json."
)
def estimate(
    run_file: str,
    overrides: tuple[str, ...],
    gpus: tuple[str, ...],
    *,
    as_json: bool,
    at_max_batch: bool,
    law: str | None,
) -> None:
    """Estimate memory, time, cost and energy of RUN, on one GPU or several.

    With no GPU stated, it compares a few common ones. A run that does not fit is an answer, not an
    error: the exit code is 0 ('finegauge check' is for scripts).
    """
    from finegauge.planning.estimate import estimates

    asked = runs(run_file, overrides, gpus)
    estimator = None if law is None else _with_law(law)
    found, unsupported = estimates(asked, estimator, at_max_batch=at_max_batch)
    if as_json:
        from finegauge.render.json import estimate_answer

        say(estimate_answer(asked[0], found, unsupported))
    else:
        from finegauge.render.estimate import estimate_lines

        say(estimate_lines(found, unsupported))


def _with_law(name: str) -> "Estimator":
    """Return predictions in which the law called `name` has the say about its part."""
    from finegauge.laws.registry import load, with_law
    from finegauge.prediction.predictor import predict

    return with_law(load(name), predict)


@click.command()
@question
def explain(run_file: str, overrides: tuple[str, ...], gpus: tuple[str, ...], *, as_json: bool) -> None:
    """Explain the memory and time of RUN, line by line, up to the figure that nvidia-smi shows."""
    from finegauge.planning.estimate import estimate

    estimates = [estimate(run) for run in runs(run_file, overrides, gpus, common=False)]
    if as_json:
        from finegauge.render.json import explain_answer

        say(explain_answer(estimates))
    else:
        from finegauge.prediction.explanation import formulas
        from finegauge.render.estimate import explain_lines

        for number, one in enumerate(estimates):
            say([*([""] if number else []), *explain_lines(one, formulas(one.run))])


class Checked(NamedTuple):
    """What became of one file."""

    file: str
    estimates: "tuple[Estimate, ...]" = ()  # one per GPU
    skipped: str = ""  # why nothing was checked
    error: str = ""  # what is wrong with it

    def exit_code(self, *, allow_risky: bool) -> int:
        """Return the exit code of this file alone."""
        from finegauge.prediction.uncertainty import EXIT_CODES, RISKY

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
    from finegauge.planning.estimate import estimate

    return [estimate(run) for run in runs(file, overrides, gpus, common=False)]


def _checked(file: str, overrides: tuple[str, ...], gpus: tuple[str, ...], *, skip_others: bool) -> Checked:
    """Return what becomes of one file among several."""
    from finegauge.formats.reading import no_training

    try:
        if skip_others and os.path.exists(file) and (why := no_training(file)):
            return Checked(file, skipped=why)
        return Checked(file, tuple(_estimates(file, overrides, gpus)))
    except FineGaugeError as error:
        return Checked(file, error=str(error))


def _show_one(checked: Checked, *, as_json: bool) -> None:
    """Print the answer about the only file, as the other commands print theirs."""
    if as_json:
        from finegauge.render.json import check_answer

        say(check_answer(checked.estimates))
    else:
        from finegauge.render.estimate import one_verdict

        say(one_verdict(one) for one in checked.estimates)


def _show_all(checked: list[Checked], *, as_json: bool) -> None:
    """Print the answers about several files, each under its name; what is wrong goes to stderr."""
    if as_json:
        say(_document(checked))
        return
    from finegauge.render.estimate import one_verdict

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
    from finegauge.render.json import SCHEMA_VERSION

    whole = {
        "schema_version": SCHEMA_VERSION,
        "command": "check",
        "finegauge_version": __version__,
        "files": [_file_json(one) for one in checked],
    }
    return json.dumps(whole, indent=2, ensure_ascii=False, allow_nan=False)


def _file_json(checked: Checked) -> dict[str, Any]:
    """Return one file's results, or why there are none."""
    from finegauge.render.estimate import one_verdict
    from finegauge.render.json import verdict_json
    from finegauge.render.terminal import unpainted

    results = [verdict_json(one) | {"sentence": unpainted(one_verdict(one))} for one in checked.estimates]
    warnings = list(checked.estimates[0].run.warnings) if checked.estimates else []
    return {
        "file": checked.file,
        "skipped": checked.skipped or None,
        "error": checked.error or None,
        "warnings": warnings,
        "results": results,
    }


@click.command("max-batch")
@question
@click.option(
    "--limit", type=click.IntRange(1, 1_000_000), default=MAX_MICRO_BATCH_SIZE, show_default=True,
    help="Look no further.",
)  # fmt: skip
@click.option(
    "--measured", is_flag=True, help="Run up to four trials on this machine between the predicted bounds."
)
@click.option(
    "--device", type=click.Choice(["cpu", "cuda"]), default="cpu", help="Of the trials.  [default: cpu]"
)
@click.option(
    "--memory-limit", "size", metavar="SIZE", default="", help="The most a trial may allocate: 2GiB."
)
@click.option("--store", type=click.Path(dir_okay=False), help="Add the trials to this journal (JSON lines).")
def max_batch(
    run_file: str,
    overrides: tuple[str, ...],
    gpus: tuple[str, ...],
    *,
    as_json: bool,
    limit: int,
    measured: bool,
    device: str,
    size: str,
    store: str | None,
) -> None:
    """Find the largest micro_batch_size of RUN whose longest batch fits; 0 if not even 1 does.

    With --measured the answer is tried out: a trial that is certain to run out of memory is not launched.
    """
    if measured:
        show_measured(
            run_file, overrides, device=device, size=size, limit=limit, store=store, as_json=as_json
        )
        return
    asked = runs(run_file, overrides, gpus)
    _show("max-batch", [(run, max_micro_batch_size(run, limit=limit)) for run in asked], as_json=as_json)


@click.command("max-length")
@question
@click.option(
    "--limit",
    type=click.IntRange(1, 16_777_216),
    default=MAX_SEQ_LEN,
    show_default=True,
    help="Look no further.",
)
def max_length(
    run_file: str, overrides: tuple[str, ...], gpus: tuple[str, ...], *, as_json: bool, limit: int
) -> None:
    """Find the longest seq_len that fits with RUN's micro_batch_size, every sequence that long."""
    asked = runs(run_file, overrides, gpus)
    _show("max-length", [(run, max_seq_len(run, limit=limit)) for run in asked], as_json=as_json)


def _show(command: str, found: list[tuple["Run", Capacity]], *, as_json: bool) -> None:
    """Print one result per GPU."""
    if as_json:
        from finegauge.render.json import capacity_answer

        say(capacity_answer(command, found))
    else:
        from finegauge.render.capacity import capacity_lines

        say(capacity_lines(found))


SPARE_FRACTION = 0.1  # of the memory that is free: left to whatever else runs on this machine


def show_measured(
    run_file: str,
    overrides: Iterable[str],
    *,
    device: str,
    size: str,
    limit: int,
    store: str | None,
    as_json: bool,
) -> None:
    """Print the largest micro-batch that a trial has shown to fit."""
    from finegauge.formats.reading import read
    from finegauge.measurement.options import Options
    from finegauge.planning.capacity import measured_max_micro_batch_size
    from finegauge.prediction.predictor import memory_estimator

    gc.enable()
    run = read(run_file, tuple(overrides), stated_alongside())
    allowed = byte_size(size) if size else 0.0
    if device == "cpu" and not allowed:
        allowed = (1 - SPARE_FRACTION) * available_bytes()
    options = Options(device=device, steps=1, warmup_steps=1, memory_limit_bytes=allowed)
    with progress() as heard, memory_estimator(run, device) as predict:
        found = measured_max_micro_batch_size(
            run,
            _measuring(options, heard, store),
            predict,
            capacity_bytes=allowed or predict(run).capacity_bytes,
            limit=limit,
        )
    failed = next((trial for trial in found.trials if trial.outcome in ("failed", "unsupported")), None)
    if failed is not None:
        raise UnsupportedError(f"A trial brought no answer: {failed.reason}.")
    if as_json:
        from finegauge.render.json import document, measured_capacity_json

        say(document("max-batch", run, [measured_capacity_json(found)]))
    else:
        from finegauge.render.capacity import measured_capacity_lines

        say(measured_capacity_lines(run, found, allowed))


def available_bytes() -> float:
    """Return the memory that programs could still allocate without swapping."""
    with open("/proc/meminfo", encoding="ascii") as lines:
        for line in lines:
            if line.startswith("MemAvailable:"):
                return float(line.split()[1]) * 1024
    return float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))


def _measuring(options: "Options", heard: "Heard | None", store: str | None) -> "Callable[[Run], Profile]":
    """Return the Estimator that runs a trial."""
    from finegauge.measurement.trial import measure

    return lambda run: measure(run, options, heard=heard, store=store)
