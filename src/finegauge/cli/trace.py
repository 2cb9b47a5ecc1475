"""`finegauge trace`: take a model's operators from its transformers class, for every command to use."""

import gc
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from finegauge.cli.question import say
from finegauge.errors import UnsupportedError, shown

if TYPE_CHECKING:
    from finegauge.graph.blocks import Architecture


@click.command()
@click.argument("model", metavar="MODEL_DIR")
@click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")
def trace(model: str, *, as_json: bool) -> None:
    """Trace the transformers class of the config.json in MODEL_DIR, once, into this user's cache.

    For a model_type that FineGauge does not describe itself. No weights are needed and no code of
    the model's repository is run. Needs torch and transformers: pip install 'finegauge[measure]'.
    """
    from finegauge.catalogue.models import model as figures_of
    from finegauge.graph.families import FAMILIES
    from finegauge.graph.trace_file import architecture, write

    config = figures_of(model).config
    model_type = str(config.get("model_type", ""))
    if model_type in FAMILIES:
        raise UnsupportedError(
            f"model_type {shown(model_type)} is described already, so there is nothing to trace; "
            f"run 'finegauge models show {model}' or 'finegauge estimate {model}'."
        )
    document = _document(config)
    traced = architecture(document)
    path = write(document, config)
    say(_json(document, traced, path) if as_json else _lines(model, config, document, traced, path))


def _document(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the trace of a configuration; a bar on stderr tells how far it is."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        from finegauge.measure.fit.document import PASSES, document
    except ImportError as error:
        raise UnsupportedError(
            f"'finegauge trace' runs the transformers class, and {shown(error.name or 'torch')} is not "
            "installed: pip install torch==2.13.0, then pip install 'finegauge[measure]'."
        ) from None
    gc.enable()  # a trace is long enough to have garbage
    with _bar(PASSES) as heard:
        return document(config, heard)


@contextmanager
def _bar(total: int) -> Iterator[Callable[[str], None]]:
    """Yield what to call after each of at most `total` passes; it draws only for a terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("tracing", total=total)
        yield lambda what: progress.update(task, advance=1, description=f"tracing {what}")


def _lines(
    model: str, config: Mapping[str, Any], document: Mapping[str, Any], traced: "Architecture", path: str
) -> Iterator[str]:
    """Yield what was found, and what to do next."""
    from finegauge.units import count

    yield (
        f"{traced.model_type}: {document['class']} of transformers {document['transformers']}, "
        f"{count(traced.num_parameters)} parameters ({traced.num_parameters:,})"
    )
    for kind, number in traced.layers_by_kind().items():
        yield f"  {number} x {kind}"
    if config.get("auto_map"):
        yield "The repository's own code (auto_map) was not run; transformers' class was."
    yield from (f"Note: {note}" for note in traced.notes)
    yield f"Saved in {path}; every command knows this model now, e.g. finegauge estimate {model}"


def _json(document: Mapping[str, Any], traced: "Architecture", path: str) -> str:
    """Return what was found as JSON."""
    import json

    found = {
        "command": "trace",
        "model_type": traced.model_type,
        "class": document["class"],
        "transformers": document["transformers"],
        "torch": document["torch"],
        "parameters": traced.num_parameters,
        "layers": traced.layers_by_kind(),
        "notes": list(traced.notes),
        "path": path,
    }
    return json.dumps(found, indent=2)
