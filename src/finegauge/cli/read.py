"""`finegauge read`: what a training file means, field by field, and who says so; and as another's file."""

import os
from typing import TYPE_CHECKING, Any

import click

from finegauge.cli.question import alongside_options, say, stated_alongside
from finegauge.errors import InputError

if TYPE_CHECKING:
    from finegauge.workload.readers.alongside import Alongside
    from finegauge.workload.writers import Written


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="FILE... [KEY=VALUE]...")
@alongside_options
@click.option("--export", "framework", metavar="FRAMEWORK", help="Write the run as this framework's files.")
@click.option("-o", "--output", "folder", metavar="DIR", help="Where --export writes them.")
@click.option("--overwrite", is_flag=True, help="Let --export replace files of the same names.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")
def read(
    words: tuple[str, ...], framework: str | None, folder: str | None, *, overwrite: bool, as_json: bool
) -> None:
    """Show the run that FILE describes: every field, its value, and whether the file or a default says so.

    accelerate's and DeepSpeed's files are recognised among the FILEs and laid over the others. A file
    alone that states no model is shown with the fields that it states.

    --export writes the run for another framework instead: llamafactory, axolotl, trl, torchtune, nemo,
    ms-swift, unsloth, torchtitan, deepspeed, skypilot or finegauge.
    """
    from finegauge.report.answers import read_answer, read_result
    from finegauge.workload.readers.reading import companion_fields, describe

    files = [word for word in words if "=" not in word or os.path.exists(word)]
    overrides = tuple(word for word in words if word not in files)
    companions = {file: found for file in files if (found := companion_fields(file)) is not None}
    runs = [file for file in files if file not in companions]
    if not files:
        raise InputError("No file is named; 'finegauge read train.yaml' shows what it means.")
    if framework is None and (folder is not None or overwrite):
        raise InputError("-o and --overwrite go with --export; add --export trl, or another framework.")
    beside = _with_companions(stated_alongside(), {f: kind for f, (kind, _) in companions.items()})
    if framework is not None:
        _export(_the_one(runs), overrides, beside, framework, folder, overwrite=overwrite, as_json=as_json)
        return
    if not runs:
        results = [{"file": file, "fields": fields} for file, (_, fields) in companions.items()]
    else:
        results = [read_result(file, describe(file, overrides, beside)) for file in runs]
    if as_json:
        say(read_answer({"results": results}))
    else:
        for number, result in enumerate(results):
            say([*([""] if number else []), *_lines(result)])


def _the_one(files: list[str]) -> str:
    """Return the training file to export."""
    if len(files) != 1:
        raise InputError(f"--export takes one training file, not {len(files)}; name one.")
    return files[0]


def _export(
    file: str,
    overrides: tuple[str, ...],
    beside: "Alongside",
    framework: str,
    folder: str | None,
    *,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Write the run of `file` for another framework, and say what was written."""
    from finegauge.report.answers import read_answer, read_result
    from finegauge.workload.readers.reading import describe
    from finegauge.workload.writers import write

    if folder is None:
        raise InputError("--export needs a folder to write to; add -o DIR.")
    run = describe(file, overrides, beside)
    written = write(run, framework, folder, recipe=file, overwrite=overwrite)
    if as_json:
        exported = {
            "framework": framework,
            "paths": list(written.paths),
            "command": written.command,
            "warnings": list(written.warnings),
        }
        say(read_answer({"results": [read_result(written.paths[0], written.run)], "exported": exported}))
    else:
        say(export_lines(written))


def export_lines(written: "Written") -> list[str]:
    """Return what was written, how to start it, and what the framework cannot say."""
    from finegauge.report.terminal import paint, wrapped

    lines = [f"Wrote {path}" for path in written.paths]
    lines.append(f"Start it with: {written.command}")
    return lines + [paint(line, "yellow") for text in written.warnings for line in wrapped(text, indent="  ")]


def _with_companions(stated: "Alongside", kinds: dict[str, str]) -> "Alongside":
    """Return what stands alongside: stated by options, or found among the files."""
    for file, kind in kinds.items():
        if getattr(stated, kind) is not None:
            raise InputError(f"Two files of {kind} are named; keep one.")
        is_accelerate = kind == "accelerate"
        stated = stated._replace(accelerate=file) if is_accelerate else stated._replace(deepspeed=file)
    return stated


def _lines(result: dict[str, Any]) -> list[str]:
    """Return one file's fields as a table, the warnings below."""
    from finegauge.report.figures import plain
    from finegauge.report.terminal import columns, paint, wrapped
    from finegauge.workload.method import LORA_FIELDS

    fields, origins = result.get("run", result.get("fields", {})), result.get("origins", {})
    adapts = fields.get("method") not in ("full", "freeze")
    rows = [
        [f"  {name}", plain(value), origins.get(name, "file")]
        for name, value in fields.items()
        if value not in (None, "") and (adapts or name not in LORA_FIELDS)
    ]
    warnings = [
        paint(line, "yellow") for text in result.get("warnings", ()) for line in wrapped(text, indent="  ")
    ]
    return [paint(result["file"], "bold"), *columns(["  field", "value", "origin"], rows, left=3), *warnings]
