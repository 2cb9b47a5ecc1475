"""`finegauge serve` and `mcp`: answers for a browser and for assistants."""

import gc
import os
import socket
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

import click

from finegauge.errors import InputError, UnsupportedError

HOST = "127.0.0.1"  # and no other: the page reads and computes what it is given
DEFAULT_PORT = 8317
_PACKAGES = ("jinja2", "starlette", "uvicorn")
_HEADERS_WITHIN_S = 10
_WAIT_S = 2  # for answers under way, once the server is to end


@click.command()
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=DEFAULT_PORT, show_default=True,
    help="Where to listen; 0 takes a free one.",
)  # fmt: skip
@click.option("--open", "opens", is_flag=True, help="Open the page in your browser.")
def serve(port: int, *, opens: bool) -> None:
    """Serve a page on 127.0.0.1: paste a training file, change fields, see memory, time and cost follow.

    It is reachable from this machine only, uses no network and reads none of your files. /openapi.json
    describes the same answers as JSON. Ctrl-C ends it, with exit code 0.
    """
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        raise UnsupportedError(f"The page needs {', '.join(missing)}: pip install 'finegauge[web]'.")
    gc.enable()  # a server lives long enough to have garbage
    with _listening(port) as listener:
        _run(listener, opens=opens)


def _listening(port: int) -> socket.socket:
    """Return a socket that listens on this machine alone.

    Raises: InputError where the port is taken or not ours to take.
    """
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        why = (error.strerror or str(error)).lower()
        other = port + 1 if 1024 <= port < 65_535 else DEFAULT_PORT
        raise InputError(f"Port {port} cannot be used ({why}); add --port {other}, or another.") from None
    return listener


def _run(listener: socket.socket, *, opens: bool) -> None:
    import uvicorn

    from finegauge.web.app import create_app
    from finegauge.web.workers import Workers, lanes

    url = f"http://{HOST}:{listener.getsockname()[1]}/"
    config = uvicorn.Config(
        create_app(Workers(*lanes())),
        log_level="critical", access_log=False, server_header=False, date_header=True, lifespan="on",
        ws="none", http=_impatient(), proxy_headers=False, backlog=128,
        timeout_graceful_shutdown=_WAIT_S, h11_max_incomplete_event_size=131_072,
    )  # fmt: skip
    server = _server_of(config, url, opens=opens)
    with suppress(KeyboardInterrupt):
        server.run(sockets=[listener])


def _impatient() -> Any:
    """Return uvicorn's protocol, which closes connections whose headers do not arrive in time."""
    import asyncio

    import h11
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Impatient(H11Protocol):
        waiting: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.waiting = self.loop.call_later(_HEADERS_WITHIN_S, transport.close)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            unfinished = self.conn.their_state is h11.IDLE and bool(self.conn.trailing_data[0])
            if self.waiting is not None and not unfinished:
                self.waiting.cancel()
                self.waiting = None
            elif self.waiting is None and unfinished:
                self.waiting = self.loop.call_later(_HEADERS_WITHIN_S, self.transport.close)

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            if self.waiting is not None:
                self.waiting.cancel()

    return Impatient


def _server_of(config: Any, url: str, *, opens: bool) -> Any:
    import uvicorn

    class Announcing(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                click.echo(f"FineGauge is at {url} (this machine only). Ctrl-C ends it.")
                if opens:
                    import webbrowser

                    webbrowser.open(url)

    return Announcing(config)


@click.command()
def mcp() -> None:
    """Serve estimate, plan, check, max_batch, models and gpus to assistants (Model Context Protocol).

    It speaks on stdin and stdout until stdin is closed, reads files below the folder where it was started
    and nowhere else, and writes nothing there.
    """
    if find_spec("mcp") is None:
        raise UnsupportedError("Serving assistants needs the package mcp: pip install 'finegauge[mcp]'.")
    from finegauge.mcp.server import serve

    gc.enable()  # a server lives long enough to have garbage
    serve(os.getcwd())
