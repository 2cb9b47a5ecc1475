"""`finegauge read`: what a training file means, field by field, and who says so."""

import os
from typing import TYPE_CHECKING, Any

import click

from finegauge.cli.question import alongside_options, say, stated_alongside
from finegauge.errors import FineGaugeError, InputError

if TYPE_CHECKING:
    from finegauge.workload.readers.alongside import Alongside
    from finegauge.workload.run import Run


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="FILE... [KEY=VALUE]...")
@alongside_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")
def read(words: tuple[str, ...], *, as_json: bool) -> None:
    """Show the run that FILE describes: every field, its value, and whether the file or a default says so.

    accelerate's and DeepSpeed's files are recognised among the FILEs and laid over the others. A file
    alone that states no model is shown with the fields that it states.
    """
    from finegauge.workload.readers.reading import companion_fields, describe

    files = [word for word in words if "=" not in word or os.path.exists(word)]
    overrides = tuple(word for word in words if word not in files)
    companions = {file: found for file in files if (found := companion_fields(file)) is not None}
    runs = [file for file in files if file not in companions]
    if not files:
        raise InputError("No file is named; 'finegauge read train.yaml' shows what it means.")
    if not runs:
        results = [{"file": file, "fields": fields} for file, (_, fields) in companions.items()]
    else:
        beside = _with_companions(stated_alongside(), {f: kind for f, (kind, _) in companions.items()})
        results = [_result(file, describe(file, overrides, beside)) for file in runs]
    if as_json:
        say(_document(results))
    else:
        for number, result in enumerate(results):
            say([*([""] if number else []), *_lines(result)])


def _with_companions(stated: "Alongside", kinds: dict[str, str]) -> "Alongside":
    """Return what stands alongside: stated by options, or found among the files."""
    for file, kind in kinds.items():
        if getattr(stated, kind) is not None:
            raise InputError(f"Two files of {kind} are named; keep one.")
        is_accelerate = kind == "accelerate"
        stated = stated._replace(accelerate=file) if is_accelerate else stated._replace(deepspeed=file)
    return stated


def _result(file: str, run: "Run") -> dict[str, Any]:
    """Return one run as plain values; a name that the catalogue lacks is a warning here."""
    warnings = list(run.warnings)
    try:
        run.check_names()
    except FineGaugeError as error:
        warnings.append(str(error))
    origins = {name: run.origins.get(name, "") for name in run.fields()}
    return {"file": file, "run": run.fields(), "origins": origins, "warnings": warnings}


def _document(results: list[dict[str, Any]]) -> str:
    """Return the whole JSON text."""
    import json

    from finegauge import __version__
    from finegauge.report.json_form import SCHEMA_VERSION

    whole = {
        "schema_version": SCHEMA_VERSION,
        "command": "read",
        "finegauge_version": __version__,
        "results": results,
    }
    return json.dumps(whole, indent=2, ensure_ascii=False, allow_nan=False)


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
