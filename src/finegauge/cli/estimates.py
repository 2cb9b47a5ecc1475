"""`finegauge estimate`, `explain`, `check`, `why`, `can`, `max-batch`, `max-length`: fit, time, cost, why."""

import gc
import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from finegauge.cli.run_options import (
    alongside_options,
    fix_options,
    gpu_option,
    json_option,
    one_run,
    parted,
    progress_bar,
    question,
    read_run,
    run_of,
    runs,
    say,
    show,
)
from finegauge.errors import EXIT_BAD_INPUT, EXIT_DONE, FineGaugeError, InputError, UnsupportedError
from finegauge.planning.capacity import (
    MAX_MICRO_BATCH_SIZE,
    MAX_SEQ_LEN,
    Capacity,
    max_micro_batch_size,
    max_seq_len,
    measured_max_micro_batch_size,
)
from finegauge.records import NamedTuple
from finegauge.run.run import FROM_MODEL_ALONE, Run

if TYPE_CHECKING:
    from finegauge.answers.estimate import CheckAnswer
    from finegauge.formats.evidence import Evidence


@click.command()
@question
@click.option("--at-max-batch", is_flag=True, help="On each GPU, take the largest safe micro-batch.")
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

    With no GPU stated, it is this machine's; where there is none, a few common ones are compared. A run that
    does not fit is an answer, not an error: the exit code is 0 ('finegauge check' is for scripts).
    """
    from finegauge.answers.estimate import estimate_answer
    from finegauge.render.estimate import estimate_report

    asked = runs(run_file, overrides, gpus)
    estimator = None
    if law is not None:
        from finegauge.laws.law import load, with_law
        from finegauge.prediction.predictor import predict

        estimator = with_law(load(law), predict)
    answer = estimate_answer(asked, estimator, at_max_batch=at_max_batch)
    show("estimate", answer, estimate_report, as_json=as_json)


@click.command()
@question
def explain(run_file: str, overrides: tuple[str, ...], gpus: tuple[str, ...], *, as_json: bool) -> None:
    """Explain the memory and time of RUN, line by line, up to the figure that nvidia-smi shows."""
    from finegauge.answers.estimate import explain_answer
    from finegauge.render.estimate import explain_report
    from finegauge.render.terminal import report_lines

    answer = explain_answer(runs(run_file, overrides, gpus, unnamed="one"))
    if as_json:
        show("explain", answer, as_json=True)
    for number, one in enumerate(() if as_json else answer.results):
        say([*([""] if number else []), *report_lines(explain_report(one))])


class Checked(NamedTuple):
    """What became of one file."""

    file: str
    answer: "CheckAnswer | None" = None  # one result per GPU
    skipped: str = ""  # why nothing was checked
    error: str = ""  # what is wrong with it

    def exit_code(self, *, allow_risky: bool) -> int:
        """Return the exit code of this file alone."""
        from finegauge.prediction.uncertainty import EXIT_CODES, RISKY

        if self.error:
            return EXIT_BAD_INPUT
        passed = (RISKY,) if allow_risky else ()
        results = self.answer.results if self.answer else ()
        codes = [EXIT_CODES[one.verdict] for one in results if one.verdict not in passed]
        return max(codes, default=EXIT_DONE)


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="RUN... [KEY=VALUE]...")
@alongside_options
@gpu_option
@click.option("--skip-others", is_flag=True, help="Skip files that describe no training, and say so.")
@click.option("--allow-risky", is_flag=True, help="Let risky runs pass: exit code 0.")
@fix_options
@json_option
@click.pass_context
def check(
    ctx: click.Context, words: tuple[str, ...], gpus: tuple[str, ...], *,
    skip_others: bool, allow_risky: bool, fixed: str, overwrite: bool, as_json: bool,
) -> None:  # fmt: skip
    """Say whether each RUN fits its GPU: exit code 0 fits, 10 risky, 20 will not fit.

    Risky is a probability of running out of memory from 5 % on, will not fit from 50 % on. Of several GPUs
    and files, the worst decides; an error in a file is reported, the others are still checked, and the
    exit code is 64.

    --fix writes a run that does not fit with the change that costs least on the same GPUs, for the framework
    that it came from where its files can say it; the exit code is then that of the run as written.
    """
    files, overrides = parted(words)
    if not files:
        raise InputError("No file is named; 'finegauge check train.yaml --gpu H100' says whether it fits.")
    if fixed:
        if len(files) > 1:
            raise InputError(f"--fix takes one RUN, not {len(files)}; name one.")
        ctx.exit(_fix(files[0], overrides, gpus, fixed, overwrite=overwrite, as_json=as_json))
    if len(files) == 1 and not skip_others:
        checked = [Checked(files[0], _answer(files[0], overrides, gpus))]
        _show_one(checked[0], as_json=as_json)
    else:
        checked = [_checked(file, overrides, gpus, skip_others=skip_others) for file in files]
        _show_all(checked, as_json=as_json)
    ctx.exit(max(one.exit_code(allow_risky=allow_risky) for one in checked))


def _fix(
    file: str, overrides: Iterable[str], gpus: Iterable[str], folder: str, *, overwrite: bool, as_json: bool
) -> int:
    """Write a run that is not safe with the change that makes it safe; return the exit code."""
    from finegauge.answers.estimate import fixed_answer

    answer = fixed_answer(one_run(file, overrides, gpus, "--fix"), folder, recipe=file, overwrite=overwrite)
    checked = Checked(file, answer)
    _show_one(checked, as_json=as_json)
    if answer.fixed is None:
        return checked.exit_code(allow_risky=False)
    if not as_json:
        from finegauge.render.terminal import section_lines
        from finegauge.render.whatif import fixed_section

        say(section_lines(fixed_section(answer.fixed)))
    return EXIT_DONE


def _answer(file: str, overrides: tuple[str, ...], gpus: tuple[str, ...]) -> "CheckAnswer":
    from finegauge.answers.estimate import check_answer

    return check_answer(runs(file, overrides, gpus))


def _checked(file: str, overrides: tuple[str, ...], gpus: tuple[str, ...], *, skip_others: bool) -> Checked:
    from finegauge.formats.reading import no_training

    try:
        if skip_others and os.path.exists(file) and (why := no_training(file)):
            return Checked(file, skipped=why)
        return Checked(file, _answer(file, overrides, gpus))
    except FineGaugeError as error:
        return Checked(file, error=str(error))


def _show_one(checked: Checked, *, as_json: bool) -> None:
    assert checked.answer is not None
    if as_json:
        show("check", checked.answer, as_json=True)
    else:
        say(_sentences(checked.answer))


def _sentences(answer: "CheckAnswer", name: str = "") -> list[str]:
    """Return a verdict with its advice for each GPU, unwrapped where the terminal's width is not known."""
    from finegauge.render.run_parts import headline, subject
    from finegauge.render.terminal import UNLIMITED, has_width, painted, wrapped

    most = 0 if has_width() else UNLIMITED
    said = [painted(headline(one)) for one in answer.found]
    if answer.run.origins["method"].startswith(FROM_MODEL_ALONE):
        said = [f"{one} Assumed: {subject(of.run)}." for one, of in zip(said, answer.found, strict=True)]
    if any(one.advice for one in answer.found):
        from finegauge.render.whatif import advice_sentence

        advice = [advice_sentence(one.advice) if one.advice else "" for one in answer.found]
        said = [f"{one} {more}" if more else one for one, more in zip(said, advice, strict=True)]
    return [line for one in said for line in wrapped(name + one, indent="  ", width=most)]


def _show_all(checked: list[Checked], *, as_json: bool) -> None:
    """Print the answers about several files, each under its name; what is wrong goes to stderr."""
    if as_json:
        from finegauge.render.schema import CheckedFile, CheckedFiles, file_verdict

        files = (
            CheckedFile(
                one.file, one.skipped or None, one.error or None,
                one.answer.run.warnings if one.answer else (),
                tuple(map(file_verdict, one.answer.found)) if one.answer else (),
            )
            for one in checked
        )  # fmt: skip
        show("check", CheckedFiles(tuple(files)), as_json=True)
        return
    for one in checked:
        if one.error:
            say(f"Error: {one.file}: {one.error}", err=True)
        elif one.skipped:
            say(f"{one.file}: skipped: {one.skipped}")
        elif one.answer:
            say(_sentences(one.answer, f"{one.file}: "))


SPARE_FRACTION = 0.1  # of the memory that is free: left to whatever else runs on this machine


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
    """Find the largest micro_batch_size of RUN whose longest batch is safe, and the largest that may fit.

    With --measured the answer is tried out: a trial that is certain to run out of memory is not launched.
    """
    if not measured:
        asked = runs(run_file, overrides, gpus)
        _show("max-batch", [(run, max_micro_batch_size(run, limit=limit)) for run in asked], as_json=as_json)
        return
    from finegauge.answers.measurement import measured_capacity_answer
    from finegauge.catalogue.machine import host_memory_bytes
    from finegauge.cli.measurements import byte_size
    from finegauge.measurement.options import Options
    from finegauge.measurement.trial import measure
    from finegauge.prediction.predictor import memory_estimator
    from finegauge.render.measurement import measured_capacity_report

    gc.enable()
    run = read_run(run_file, overrides)
    allowed = byte_size(size) if size else 0.0
    if device == "cpu" and not allowed:
        allowed = (1 - SPARE_FRACTION) * host_memory_bytes()[1]
    options = Options(device=device, steps=1, warmup_steps=1, memory_limit_bytes=allowed)
    with progress_bar("") as heard, memory_estimator(run, device) as predict:
        found = measured_max_micro_batch_size(
            run,
            lambda run: measure(run, options, heard=heard, store=store),
            predict,
            capacity_bytes=allowed or predict(run).capacity_bytes,
            limit=limit,
        )
    failed = next((trial for trial in found.trials if trial.outcome in ("failed", "unsupported")), None)
    if failed is not None:
        raise UnsupportedError(f"A trial brought no answer: {failed.reason}.")
    answer = measured_capacity_answer(run, found, allowed)
    show("max-batch", answer, measured_capacity_report, as_json=as_json)


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


@click.command()
@question
def can(run_file: str, overrides: tuple[str, ...], gpus: tuple[str, ...], *, as_json: bool) -> None:
    """Say what fits: full, LoRA and QLoRA, whole and divided over the GPUs, by micro-batch and length.

    Of RUN, the method, the batch and the data are left open: finegauge can Qwen/Qwen3-32B --gpu 4090:2.
    """
    from finegauge.answers.plan import can_answer
    from finegauge.render.whatif import can_report

    asked = runs(run_file, overrides, gpus, unnamed="one")
    with progress_bar("trying") as heard:
        answer = can_answer(asked, heard)
    show("can", answer, can_report, as_json=as_json)


def _show(command: str, found: list[tuple[Run, Capacity]], *, as_json: bool) -> None:
    from finegauge.answers.estimate import capacity_answer
    from finegauge.render.estimate import capacity_report

    show(command, capacity_answer(found), capacity_report, as_json=as_json)


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="RUN [EVIDENCE]... [KEY=VALUE]...")
@alongside_options
@gpu_option
@fix_options
@json_option
def why(words: tuple[str, ...], gpus: tuple[str, ...], *, fixed: str, overwrite: bool, as_json: bool) -> None:
    """Say why RUN failed, by what it left behind, and what to change.

    EVIDENCE is the text of an error, a log, what nvidia-smi prints, a memory snapshot of PyTorch
    (torch.cuda.memory._dump_snapshot), or - for standard input. Named are the moment and the tensor, how far
    the figures agree with the prediction, which option cannot be active, and the cheapest change that fits.
    """
    from finegauge.answers.runs import gpu_of_size
    from finegauge.answers.why import why_answer
    from finegauge.render.why import why_report

    named, overrides = parted(words)
    if not named:
        raise InputError("No RUN is named; 'finegauge why train.yaml error.log' says why it failed.")
    file, *files = named
    if _is_error(file):
        raise InputError(
            "No RUN is named before the error; 'finegauge why train.yaml ERROR' or 'finegauge why "
            "Qwen/Qwen3-8B ERROR' says why it failed."
        )
    pieces = [_evidence(one) for one in files]
    if not gpus and pieces and run_of(file, overrides).gpu is None:
        sizes = [one.total_bytes for one in pieces if one.total_bytes]
        seen = next((one.gpu for one in pieces if one.gpu), "") or (gpu_of_size(sizes[0]) if sizes else "")
        gpus = (seen,) if seen else ()
    run = one_run(file, overrides, gpus, "why")
    answer = why_answer(run, pieces, recipe=file, folder=fixed, overwrite=overwrite)
    show("why", answer, why_report, as_json=as_json)


def _is_error(word: str) -> bool:
    """Return whether an argument is an error's own text, no file."""
    return " " in word.strip() and "out of memory" in word.lower() and not os.path.exists(word)


def _evidence(path: str) -> "Evidence":
    from finegauge.answers.why import read_evidence
    from finegauge.formats.evidence import MAX_BYTES, text_evidence

    if _is_error(path):
        return text_evidence(path, "the error")
    if path != "-":
        return read_evidence(path)
    text = sys.stdin.buffer.read(MAX_BYTES).decode("utf-8", errors="replace")
    return text_evidence(text, "standard input")
