"""`finegauge read` and `data`: what a training file means, and how long a data set's samples are."""

import gc
import os
from typing import TYPE_CHECKING

import click

from finegauge.cli.run_options import (
    alongside_options,
    file_name,
    json_option,
    overrides_argument,
    parted,
    progress_bar,
    read_run,
    runs,
    say,
    show,
    stated_alongside,
)
from finegauge.errors import InputError

if TYPE_CHECKING:
    from finegauge.data.token_lengths import Lengths
    from finegauge.formats.launcher_files import Alongside
    from finegauge.run.run import Run


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="RUN... [KEY=VALUE]...")
@alongside_options
@click.option("--export", "framework", metavar="FRAMEWORK", help="Write the run as this framework's files.")
@click.option("-o", "--output", "folder", metavar="DIR", help="Where --export writes them.")
@click.option("--overwrite", is_flag=True, help="Let --export replace files of the same names.")
@json_option
def read(
    words: tuple[str, ...], framework: str | None, folder: str | None, *, overwrite: bool, as_json: bool
) -> None:
    """Show the run that RUN describes: every field, its value, and whether the file or a default sets it.

    accelerate's and DeepSpeed's files are recognised among the RUNs and laid over the others. A file
    alone that states no model is shown with the fields that it states.

    --export writes the run for another framework instead: llamafactory, axolotl, trl, torchtune, nemo,
    ms-swift, unsloth, torchtitan, deepspeed, skypilot or finegauge.
    """
    from finegauge.answers.files import LauncherFile, ReadAnswer, RunOfFile, run_of_file
    from finegauge.formats.reading import companion_fields, describe
    from finegauge.render.files import read_sections
    from finegauge.render.terminal import section_lines

    files, overrides = parted(words)
    companions = {file: found for file in files if (found := companion_fields(file)) is not None}
    recipes = [file for file in files if file not in companions]
    if not files:
        raise InputError("No file is named; 'finegauge read train.yaml' shows what it means.")
    if framework is None and (folder is not None or overwrite):
        raise InputError("-o and --overwrite go with --export; add --export trl, or another framework.")
    beside = _with_companions(stated_alongside(), {f: kind for f, (kind, _) in companions.items()})
    if framework is not None:
        if len(recipes) != 1:
            raise InputError(f"--export takes one training file, not {len(recipes)}; name one.")
        if folder is None:
            raise InputError("--export needs a folder to write to; add -o DIR.")
        from finegauge.answers.files import export_answer
        from finegauge.formats.writing import write
        from finegauge.render.files import written_section

        run = describe(recipes[0], overrides, beside)
        written = write(run, framework, folder, recipe=recipes[0], overwrite=overwrite)
        if as_json:
            show("read", export_answer(framework, written), as_json=True)
        else:
            say(section_lines(written_section(written)))
        return
    results: list[RunOfFile | LauncherFile] = [
        run_of_file(file, describe(file, overrides, beside)) for file in recipes
    ]
    if not recipes:
        results += [LauncherFile(file, fields) for file, (_, fields) in companions.items()]
    answer = ReadAnswer(tuple(results))
    if as_json:
        show("read", answer, as_json=True)
        return
    for number, part in enumerate(read_sections(answer)):
        say([*([""] if number else []), *section_lines(part)])


def _with_companions(stated: "Alongside", kinds: dict[str, str]) -> "Alongside":
    """Return the launcher's files: stated by options, or found among the arguments."""
    for file, kind in kinds.items():
        if getattr(stated, kind) is not None:
            raise InputError(f"Two files of {kind} are named; keep one.")
        is_accelerate = kind == "accelerate"
        stated = stated._replace(accelerate=file) if is_accelerate else stated._replace(deepspeed=file)
    return stated


@click.command()
@click.argument("file", metavar="FILE")
@overrides_argument
@click.option("--tokenizer", metavar="DIR", help="Folder with the model's tokenizer.json, or that file.")
@click.option(
    "--format", "format_name", metavar="NAME", help="messages, sharegpt, alpaca, prompt-completion, ..."
)
@click.option("--template", metavar="NAME", help="auto, model, chatml, alpaca, plain, or a file: x.jinja.")
@click.option("--run", "run_file", metavar="RUN", help="Show the batches that this run makes of the data.")
@click.option("--gpu", "gpus", metavar="NAME,NAME", multiple=True, help="With --run: GPUs to ask about.")
@alongside_options
@json_option
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
    from finegauge.answers.files import data_answer
    from finegauge.render.files import data_report

    show("data", data_answer(lengths, chosen, asked), data_report, as_json=as_json)


def _counted(
    file: str, tokenizer: str, format_name: str | None = None, template: str | None = None
) -> "Lengths":
    """Return the lengths of a data set, and show meanwhile how far the counting is."""
    from finegauge.data.token_lengths import token_lengths

    gc.enable()  # which a command does without: this one is long
    with progress_bar(file_name(file)) as heard:
        return token_lengths(file, tokenizer, format=format_name, template=template, heard=heard)


def _runs(
    run_file: str, overrides: tuple[str, ...], gpus: tuple[str, ...], file: str, tokenizer: str | None
) -> "list[Run]":
    stated = {
        "dataset": os.path.abspath(file),
        **({"tokenizer": os.path.abspath(tokenizer)} if tokenizer else {}),
    }
    one = None if any(gpus) else read_run(run_file, overrides)
    found = [one] if one is not None else runs(run_file, overrides, gpus)
    return [run.replace(origin="command line", **stated) for run in found]
