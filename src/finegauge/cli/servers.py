"""`finegauge serve` and `mcp`: answers for a browser and assistants; `doctor`, `completion`: this machine."""

import errno
import gc
import os
import re
import socket
from contextlib import suppress
from importlib.util import find_spec
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING, Any

import click

from finegauge.cli.run_options import json_option, say, show
from finegauge.errors import InputError, UnsupportedError, shown

if TYPE_CHECKING:
    from finegauge.web.guard import Access

HOST = "127.0.0.1"  # where no other is stated: the page reads and computes what it is given
DEFAULT_PORT = 8317
_PACKAGES = ("jinja2", "starlette", "uvicorn")
_HEADERS_WITHIN_S = 10
_WAIT_S = 2  # for answers under way, once the server is to end
_REQUESTS_PER_S = 20.0  # of one client, where others than this machine ask
_MOST_CONNECTIONS = 1_000  # at once, where others than this machine ask
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
_ROOT = re.compile(r"(/[A-Za-z0-9._~-]+)+")


@click.command()
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=DEFAULT_PORT, show_default=True,
    help="Where to listen; 0 takes a free one.",
)  # fmt: skip
@click.option("--open", "opens", is_flag=True, help="Open the page in your browser.")
@click.option(
    "--host", default=HOST, show_default=True, metavar="ADDRESS",
    help="Listen for others too: 0.0.0.0 is every address of this machine.",
)  # fmt: skip
@click.option(
    "--allow-host", "names", multiple=True, metavar="NAME",
    help="A name by which others open the page: gauge.example.org.",
)  # fmt: skip
@click.option(
    "--trust-proxy", "proxies", multiple=True, metavar="ADDRESS|NETWORK",
    help="A proxy whose X-Forwarded-For says who asks.",
)  # fmt: skip
@click.option("--root-path", default="", metavar="/PATH", help="Where a proxy shows the page.")
@click.option(
    "--token-variable", metavar="NAME", help="Environment variable with a token that all must send."
)
@click.option(
    "--rate", "requests_per_s", type=click.FloatRange(0, 10_000), metavar="NUMBER",
    help=f"Requests a second of one client; 0 is any. [default: {_REQUESTS_PER_S:g} for others, else any]",
)  # fmt: skip
@click.option("--workers", type=click.IntRange(1, 256), help="Processes that answer.  [default: cores + 2]")
def serve(
    port: int, *, opens: bool, host: str, names: tuple[str, ...], proxies: tuple[str, ...], root_path: str,
    token_variable: str | None, requests_per_s: float | None, workers: int | None,
) -> None:  # fmt: skip
    """Serve a page on 127.0.0.1: paste a training file, change fields, see memory, time and cost follow.

    It is reachable from this machine only, unless --host says otherwise, uses no network and reads none of
    your files. /openapi.json describes the same answers as JSON, /metrics counts for Prometheus. Ctrl-C ends
    it, with exit code 0.
    """
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        raise UnsupportedError(f"The page needs {', '.join(missing)}: pip install 'finegauge[web]'.")
    gc.enable()  # a server lives long enough to have garbage
    from finegauge.web.guard import Access

    others = not _is_loopback(host) or bool(names or proxies)
    rate = requests_per_s if requests_per_s is not None else _REQUESTS_PER_S if others else 0.0
    access = Access(
        names=tuple(map(_name, names)),
        by_address=not _is_loopback(host),
        token=_token(token_variable),
        requests_per_s=rate,
        root_path=_root_path(root_path),
    )
    trusted = [str(_network(one)) for one in proxies]
    with _listening(host, port) as listener:
        _run(listener, access, trusted, workers or 0, opens=opens)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _name(name: str) -> str:
    if not _NAME.fullmatch(name.lower()):
        raise InputError(f"--allow-host {shown(name)} is no name; give one without port and path.")
    return name.lower()


def _network(text: str) -> IPv4Network | IPv6Network:
    """Return whose forwarded addresses are believed.

    Raises: InputError for what is no network, and for all addresses, for then every client chooses its own.
    """
    try:
        found = ip_network(text, strict=False)
    except ValueError:
        raise InputError(
            f"--trust-proxy {shown(text)} is no address; give one (10.0.0.5) or a network (10.0.0.0/8)."
        ) from None
    if not found.prefixlen:
        raise InputError(
            f"--trust-proxy {shown(text)} would believe everybody; name the proxy's address or network."
        )
    return found


def _root_path(text: str) -> str:
    found = text.rstrip("/")
    if found and not _ROOT.fullmatch(found):
        raise InputError(f"--root-path {shown(text)} is no path; give one such as /finegauge.")
    return found


def _token(variable: str | None) -> str:
    if variable is None:
        return ""
    token = os.environ.get(variable, "").strip()
    if not token or not token.isascii() or not token.isprintable():
        raise InputError(f"--token-variable {shown(variable)} holds no token; set it to letters and digits.")
    return token


def _listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens, on this machine alone where `host` does not say otherwise.

    Raises: InputError where the address or the port cannot be used.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError):
        raise InputError(f"--host {shown(host)} is no address of this machine; try 0.0.0.0.") from None
    listener = socket.socket(family, kind)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(128)
    except OSError as error:
        listener.close()
        why = (error.strerror or str(error)).lower()
        if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
            raise InputError(f"--host {shown(host)} cannot be used ({why}); try 0.0.0.0.") from None
        other = port + 1 if 1024 <= port < 65_535 else DEFAULT_PORT
        raise InputError(f"Port {port} cannot be used ({why}); add --port {other}, or another.") from None
    return listener


def _run(listener: socket.socket, access: "Access", trusted: list[str], workers: int, *, opens: bool) -> None:
    import uvicorn

    from finegauge.web.app import create_app
    from finegauge.web.workers import Workers, lanes

    host, port = listener.getsockname()[:2]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}{access.root_path}/"
    alone = not (access.by_address or access.names or trusted)
    config = uvicorn.Config(
        create_app(Workers(*lanes(workers)), access),
        log_level="critical", access_log=False, server_header=False, date_header=True, lifespan="on",
        ws="none", http=_impatient(), proxy_headers=bool(trusted), forwarded_allow_ips=trusted, backlog=128,
        limit_concurrency=None if alone else _MOST_CONNECTIONS,
        timeout_graceful_shutdown=_WAIT_S, h11_max_incomplete_event_size=131_072,
    )  # fmt: skip
    reached = "this machine only" if alone else "whoever reaches it may ask"
    if access.token:
        reached += ", with the token"
    server = _server_of(config, url, reached, opens=opens)
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


def _server_of(config: Any, url: str, reached: str, *, opens: bool) -> Any:
    import uvicorn

    class Announcing(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                click.echo(f"FineGauge is at {url} ({reached}). Ctrl-C ends it.")
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
    from finegauge.mcp import serve

    gc.enable()  # a server lives long enough to have garbage
    serve(os.getcwd())


@click.command()
@json_option
def doctor(*, as_json: bool) -> None:
    """Show this machine's GPU, host and disk, which extras are installed, and the way to what is missing."""
    from finegauge.answers.catalogue import doctor_answer
    from finegauge.render.device_profile import doctor_report

    show("doctor", doctor_answer(), doctor_report, as_json=as_json)


@click.command()
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
def completion(shell: str) -> None:
    """Print SHELL's completion of commands, fields, GPUs and models; its first line says how to use it."""
    from click.shell_completion import get_completion_class

    where = {
        "bash": "finegauge completion bash >> ~/.bashrc",
        "zsh": "finegauge completion zsh >> ~/.zshrc",
        "fish": "finegauge completion fish > ~/.config/fish/completions/finegauge.fish",
    }
    found = get_completion_class(shell)
    assert found is not None
    root = click.get_current_context().find_root().command
    say(f"# {where[shell]}\n{found(root, {}, 'finegauge', '_FINEGAUGE_COMPLETE').source()}")
