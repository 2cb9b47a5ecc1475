"""Models that FineGauge does not know yet: their config.json is fetched, their class traced."""

import gc
import os
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import click

from finegauge.catalogue.hub import fetch_config, is_hub_id
from finegauge.cli.progress import progress_bar
from finegauge.errors import UnknownNameError, UnsupportedError, cleaned, shown


def fetch(error: UnknownNameError, *, offline: bool) -> None:
    """Fetch the config.json of the model that `error` says is unknown, and say so.

    Raises: the error where no model of the Hub is meant; UnsupportedError where it is not to be had.
    """
    if error.kind != "model" or not is_hub_id(error.name):
        raise error
    got = fetch_config(error.name, error.near, offline=offline)
    size = f"{got.num_bytes / 1e3:.1f} kB"
    click.echo(f"Fetched {got.model}/config.json ({size}) from {got.endpoint}, kept as {got.path}", err=True)


def trace_once(model: str, config: Mapping[str, Any]) -> None:
    """Trace the class of a model_type that nothing describes, and keep what was found.

    Raises: UnsupportedError with the exact command where it cannot be traced here.
    """
    from finegauge.model.families import untraced
    from finegauge.model.traced import write_trace

    why = untraced(config)
    if not why:
        return
    missing = [name for name in ("torch", "transformers") if find_spec(name) is None]
    if missing:
        raise UnsupportedError(
            f"{why} Its transformers class can be traced, once, but {' and '.join(missing)} is missing: "
            f"pip install torch==2.13.0 'finegauge[measure]', then run this again."
        )
    click.echo(f"{cleaned(why)} Tracing its transformers class, once ...", err=True)
    path = write_trace(document(config), config)
    click.echo(f"Traced {shown(model)}, kept as {path}", err=True)


def document(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the trace of a configuration; a bar on stderr tells how far it is."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        from finegauge.measurement.tracer.document import trace_document
    except ImportError as error:
        raise UnsupportedError(
            f"'finegauge trace' runs the transformers class, and {shown(error.name or 'torch')} is not "
            "installed: pip install torch==2.13.0, then pip install 'finegauge[measure]'."
        ) from None
    gc.enable()  # a trace is long enough to have garbage
    with progress_bar("tracing") as heard:
        return trace_document(config, heard)
