"""Who is answered: by the name that is asked, site, token and rate; and the headers of every answer.

Without any option this machine alone is answered, under its own names. A foreign site can let a name of its
own lead here (DNS rebinding), but no IP address: so a server of many answers to addresses and stated names.
"""

import hmac
import math
import time
from base64 import b64decode
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping
from ipaddress import IPv6Address, ip_address
from typing import Any, NamedTuple

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response

from finegauge.web import jobs
from finegauge.web.api import API
from finegauge.web.assets import PREFIX, first_script, source, style
from finegauge.web.storage import Metrics

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

BURST_S = 10.0  # of requests of one client that may come at once
SEARCH_COSTS = 10.0  # requests, for a search takes as long as that many edits
MOST_CLIENTS = 10_000
IPV6_PREFIX_BITS = 64  # one customer's network [RFC 6177]
HOSTS = ("127.0.0.1", "localhost", "[::1]")
PROBES = ("/health", "/live")  # asked by what keeps the server running: no token, no rate
_DIRECTIVES = {
    "default-src": "'none'",
    "script-src": f"'self' {source(first_script())}",
    "style-src": source(style()),
    "img-src": "'self' data:",
    "connect-src": "'self'",
    "font-src": "'self'",
    "form-action": "'self'",
    "base-uri": "'none'",
    "frame-ancestors": "'none'",
}
HEADERS = {
    "Content-Security-Policy": "; ".join(f"{name} {source}" for name, source in _DIRECTIVES.items()),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
_ASK_FOR_TOKEN = {"WWW-Authenticate": 'Basic realm="FineGauge", charset="UTF-8"'}
_NO_TOKEN = "This server needs its token: send it as 'Authorization: Bearer ...', or as the password."


class Access(NamedTuple):
    """Who may ask, how often, and under which path."""

    names: tuple[str, ...] = ()  # by which requests may call this server, beside those of this machine
    by_address: bool = False  # by any IP address, too
    token: str = ""  # what everybody has to send; none where empty
    requests_per_s: float = 0.0  # of one client; any number where 0
    root_path: str = ""  # where a proxy puts the page: "/finegauge"


LOCAL = Access()


class Refusal(NamedTuple):
    """Why a request is not answered."""

    status: int
    sentence: str
    headers: Mapping[str, str] = {}


class Rates:
    """How often one client may ask: the clients of late, each with its own clock.

    The generic cell rate algorithm [ITU-T I.371, annex A]: each request moves a client's own clock on by
    its cost; who is farther ahead of the real clock than BURST_S waits until that is over.
    """

    def __init__(self, requests_per_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Allow each client `requests_per_s`; 0 allows any number."""
        self._request_s = 1.0 / requests_per_s if requests_per_s else 0.0
        self._clock = clock
        self._ahead_until_s: OrderedDict[str, float] = OrderedDict()

    def wait_s(self, address: str, num_requests: float = 1.0) -> float:
        """Return 0 where the client may ask now, else the seconds after which it may."""
        if not self._request_s:
            return 0.0
        client, now_s = _client(address), self._clock()
        after_s = max(now_s, self._ahead_until_s.get(client, 0.0)) + num_requests * self._request_s
        if (wait_s := after_s - now_s - max(BURST_S, num_requests * self._request_s)) > 0:
            return wait_s
        self._ahead_until_s[client] = after_s
        self._ahead_until_s.move_to_end(client)
        if len(self._ahead_until_s) > MOST_CLIENTS:
            self._ahead_until_s.popitem(last=False)
        return 0.0


def _client(address: str) -> str:
    """Return whose an address is: that of IPv4, the network of IPv6."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(found, IPv6Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(int(found) >> (128 - IPV6_PREFIX_BITS))


class Guarded:
    """An application whose every answer carries the headers, and which strangers do not reach."""

    def __init__(self, app: App, access: Access, metrics: Metrics, paths: Collection[str]) -> None:
        """Guard `app`, and count what is asked under each of its `paths`."""
        self.app, self._access, self._metrics = app, access, metrics
        self._paths = frozenset(path.partition("{")[0] for path in paths)
        self._rates = Rates(access.requests_per_s)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a stranger, or pass the request on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        since_s, status = time.perf_counter(), 500

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        inside = _below_root(scope, self._access.root_path)
        app: App = self.app if inside else RedirectResponse(f"{self._access.root_path}/", 308)
        if (refused := self._refusal(scope)) is not None:
            app = error_response(scope["path"], refused.status, refused.sentence, headers=refused.headers)
        try:
            await app(scope, receive, sent)
        finally:
            seconds = time.perf_counter() - since_s
            self._metrics.add(self._counted_as(scope["path"]), scope["method"], status, seconds)

    def _refusal(self, scope: Scope) -> Refusal | None:
        headers, path, access = Headers(scope=scope), scope["path"], self._access
        if (stranger := refusal(scope["method"], headers, access)) is not None:
            return stranger
        if path in PROBES:
            return None
        client = (scope.get("client") or ("", 0))[0]
        cost = SEARCH_COSTS if path.rpartition("/")[2] in jobs.SEARCHES else 1.0
        if (wait_s := self._rates.wait_s(client, cost)) > 0:
            retry_s = math.ceil(wait_s)
            said = f"More than {access.requests_per_s:g} requests a second; try again in {retry_s} s."
            return Refusal(429, said, {"Retry-After": str(retry_s)})
        if access.token and not hmac.compare_digest(_token(headers), access.token.encode()):
            return Refusal(401, _NO_TOKEN, _ASK_FOR_TOKEN)
        return None

    def _counted_as(self, path: str) -> str:
        """Return the path by which a request is counted: few, whatever is asked."""
        if path in self._paths:
            return path
        start = path[: path.rfind("/") + 1]
        if path.startswith(PREFIX):
            return PREFIX
        return start if start in self._paths and start != "/" else "other"


def refusal(method: str, headers: Headers, access: Access = LOCAL) -> Refusal | None:
    """Return why a request is refused by the name or the site that it comes by; None where it is not."""
    host = headers.get("host", "").lower()
    if not _is_known(_without_port(host), access):
        names = ", ".join(access.names) or " and ".join(HOSTS[:2])
        if access.by_address:
            names = f"its addresses, {names}" if access.names else "its addresses"
        more = " (--allow-host adds one)" if access != LOCAL else ""
        return Refusal(400, f"This server answers to {names} only; open it under one of them{more}.")
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if method in _SAFE_METHODS and headers.get("sec-fetch-dest", "document") == "document":
        return None  # a link that somebody follows, or no browser
    foreign = site is not None and site not in ("same-origin", "none")
    if foreign or (origin is not None and origin.lower() not in (f"http://{host}", f"https://{host}")):
        return Refusal(403, "This request comes from another site; send it from the page of this server.")
    return None


def _is_known(host: str, access: Access) -> bool:
    if host in HOSTS or host in access.names:
        return True
    if not access.by_address:
        return False
    try:
        ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


def _without_port(host: str) -> str:
    """Return the name in a Host header: "[::1]" of "[::1]:8317"."""
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdecimal() else host


def _below_root(scope: Scope, root_path: str) -> bool:
    """Take the prefix off a request's path, where a proxy left it; return False for the prefix alone."""
    path = scope["path"]
    if root_path and path == root_path:
        return False
    if root_path and path.startswith(f"{root_path}/"):
        scope["path"] = path[len(root_path) :]
        scope["raw_path"] = scope["path"].encode()
    return True


def _token(headers: Headers) -> bytes:
    """Return what a request sends as a token: of a program, or as a password of a browser."""
    kind, _, value = headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return value.strip().encode()
    if kind.lower() != "basic":
        return b""
    try:
        return b64decode(value.strip(), validate=True).partition(b":")[2]
    except ValueError:
        return b""


def error_response(
    path: str, status: int, sentence: str, field: str | None = None, headers: Mapping[str, str] | None = None
) -> Response:
    """Return an error as JSON to programs, as one line of text to people."""
    if path.startswith(f"{API}/") or path == "/openapi.json":
        return JSONResponse({"error": sentence, "field": field}, status, headers)
    return PlainTextResponse(f"{sentence}\n", status, headers)
