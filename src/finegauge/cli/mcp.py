"""`finegauge mcp`: a server by which assistants ask FineGauge, over stdin and stdout."""

import gc
import os
from importlib.util import find_spec

import click

from finegauge.errors import UnsupportedError


@click.command()
def mcp() -> None:
    """Serve estimate, plan, check, max_batch, models and gpus to assistants (Model Context Protocol).

    It speaks on stdin and stdout until stdin is closed, reads files below the folder where it was started
    and nowhere else, and writes nothing there.
    """
    if find_spec("mcp") is None:
        raise UnsupportedError("Serving assistants needs the package mcp: pip install 'finegauge[mcp]'.")
    from finegauge.integrations.mcp_server import serve

    gc.enable()  # a server lives long enough to have garbage
    serve(os.getcwd())
