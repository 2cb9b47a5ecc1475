"""Who may ask this server, and what a browser may do with its answers.

It listens on this machine alone, but every page that the user's browser shows can send requests to it. So:
a request must name this machine as its host (a foreign name that resolves to 127.0.0.1 does not pass), a
request that changes or computes something must come from the server's own page or from no page at all,
and no page elsewhere is told an answer. The Content-Security-Policy allows scripts and images of this
server, the page's one style by its hash, and no code or other style inside a page. There is no
Cross-Origin-Opener-Policy: for it the browser starts another process once the answer has come, 50 ms later;
who opens the page in a window learns nothing of it without one either.
"""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse

from finegauge.web.assets import style_source

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

HOSTS = ("127.0.0.1", "localhost", "[::1]")
_DIRECTIVES = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": style_source(),
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


class Guarded:
    """An application whose every answer carries the headers, and which strangers do not reach."""

    def __init__(self, app: App) -> None:
        """Guard `app`."""
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a stranger, or pass the request on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        status, why = refusal(scope["method"], Headers(scope=scope))
        app: App = PlainTextResponse(f"{why}\n", status_code=status) if why else self.app
        await app(scope, receive, sent)


def refusal(method: str, headers: Headers) -> tuple[int, str]:
    """Return the status and the sentence with which a request is refused; (200, "") where it is not."""
    host = headers.get("host", "").lower()
    if _without_port(host) not in HOSTS:
        return 400, "This server answers to 127.0.0.1 and localhost only; open it under one of them."
    if method in _SAFE_METHODS:
        return 200, ""
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    foreign = site is not None and site not in ("same-origin", "none")
    if foreign or (origin is not None and origin.lower() not in (f"http://{host}", f"https://{host}")):
        return 403, "This request comes from another site; send it from the page of this server."
    return 200, ""


def _without_port(host: str) -> str:
    """Return the name in a Host header: "[::1]" of "[::1]:8317"."""
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdecimal() else host
