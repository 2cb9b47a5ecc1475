"""`finegauge data`: how long the samples of a data set are in tokens, and what batches they make."""

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from finegauge.cli.question import alongside_options, say, stated_alongside
from finegauge.errors import InputError

if TYPE_CHECKING:
    from finegauge.workload.dataset_files.lengths import Lengths
    from finegauge.workload.run import Run

Heard = Callable[[float, int], None]


@click.command()
@click.argument("file", metavar="FILE")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--tokenizer", metavar="DIR", help="Folder with the model's tokenizer.json, or that file.")
@click.option(
    "--format", "format_name", metavar="NAME", help="messages, sharegpt, alpaca, prompt-completion, ..."
)
@click.option("--template", metavar="NAME", help="auto, model, chatml, alpaca, plain, or a file: x.jinja.")
@click.option("--run", "run_file", metavar="RUN", help="Show the batches that this run makes of the data.")
@click.option("--gpu", "gpus", metavar="NAME,NAME", multiple=True, help="With --run: GPUs to ask about.")
@alongside_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")
def data(
    file: str,
    overrides: tuple[str, ...],
    tokenizer: str | None,
    format_name: str | None,
    template: str | None,
    run_file: str | None,
    gpus: tuple[str, ...],
    *,
    as_json: bool,
) -> None:
    """Count the tokens of every sample in FILE, and show how they spread.

    FILE is JSON, JSONL, CSV, Parquet, Arrow, plain text, or a folder that the library datasets saved. Its
    records may be conversations, Alpaca's, prompts with completions, or texts. What was counted once is
    kept, by content.
    """
    if run_file is None and (overrides or gpus):
        raise InputError(
            f"{overrides[0] if overrides else '--gpu'} is about a run; add --run RUN, or leave it out."
        )
    asked = _runs(run_file, overrides, gpus, file, tokenizer) if run_file is not None else []
    chosen = tokenizer or (asked[0].tokenizer if asked else None)
    if chosen is None:
        raise InputError(
            "No tokenizer is named: add --tokenizer DIR, the folder of the model's tokenizer.json."
        )
    lengths = _counted(file, chosen, format_name, template)
    if as_json:
        from finegauge.report.data import data_json

        batching = []
        if asked:
            from finegauge.report.batching import batching_json

            batching = [batching_json(lengths, run) for run in asked]
        say(data_json(lengths, chosen, batching))
        return
    from finegauge.report.data import data_lines

    say(data_lines(lengths, chosen))
    for run in asked:
        from finegauge.report.batching import batching_lines

        say(["", *batching_lines(lengths, run)])


def with_counted_texts(run: "Run") -> "Run":
    """Count a run's data set, where it is one of texts; return the run, warning of what was left out.

    Who asks for its lengths later finds them counted.
    """
    from finegauge.workload.dataset_files.source import holds_texts

    if run.dataset is None or run.tokenizer is None or not holds_texts(run.dataset, has_tokenizer=True):
        return run
    found = _counted(run.dataset, run.tokenizer).findings
    if not found.num_unreadable:
        return run
    left_out = (
        f"{run.dataset}: {found.num_unreadable:,} of {found.num_rows:,} {found.row_name}s are unreadable and "
        f"left out; 'finegauge data' says which and why."
    )
    stated = run.stated_fields()
    origins = {name: run.origins[name] for name in stated}
    return type(run).from_fields(stated, origins, (*run.warnings, left_out))


def _counted(
    file: str, tokenizer: str, format_name: str | None = None, template: str | None = None
) -> "Lengths":
    """Return the lengths of a data set, and show meanwhile how far the counting is."""
    from finegauge.workload.dataset_files.counting import token_lengths

    gc.enable()  # which a command does without: this one is long
    with _progress(file) as heard:
        return token_lengths(file, tokenizer, format=format_name, template=template, heard=heard)


def _runs(
    run_file: str, overrides: tuple[str, ...], gpus: tuple[str, ...], file: str, tokenizer: str | None
) -> "list[Run]":
    """Return the run with this data set, once per GPU asked about."""
    from finegauge.cli.question import runs
    from finegauge.workload.readers import read

    stated = {
        "dataset": os.path.abspath(file),
        **({"tokenizer": os.path.abspath(tokenizer)} if tokenizer else {}),
    }
    one = None if any(gpus) else read(run_file, overrides, stated_alongside())
    found = [one] if one is not None else runs(run_file, overrides, gpus)
    return [run.replace(origin="command line", **stated) for run in found]


@contextmanager
def _progress(file: str) -> Iterator[Heard | None]:
    """Show how far the counting is, where stderr is a terminal."""
    import sys

    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} % {task.fields[samples]:,} samples"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as shown:
        task = shown.add_task(os.path.basename(os.path.normpath(file)), total=1.0, samples=0)
        yield lambda share, samples: shown.update(task, completed=share, samples=samples)
